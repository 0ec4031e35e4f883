//! What a line is a sign of, and what it is none of.

use proptest::prelude::*;

use super::*;

fn told(text: &str) -> Option<(Weight, FailureKind)> {
    read(text).map(|sign| (sign.weight, sign.kind))
}

#[test]
fn launchers_tell_who_ended_how() {
    let torchrun =
        "E1115 12:03:34 4453 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 4457) of binary: python3";
    let sign = read(torchrun).unwrap();
    assert_eq!((sign.weight, sign.kind), (Weight::Killed, FailureKind::KilledUnproven { signal: 9 }));
    assert_eq!((sign.who.rank, sign.who.pid), (Some(1), Some(4457)));
    let deepspeed = "[ERROR] [launch.py:259:sigkill_handler] ['python', '-u', 'ds.py', '--local_rank=1'] exits with return code = -9";
    assert_eq!(read(deepspeed).unwrap().who.rank, Some(1));
    let spawned = "torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGKILL";
    assert_eq!(read(spawned).unwrap().who.rank, Some(3));
    let mpi = "mpirun noticed that process rank 2 with PID 812 on node n1 exited on signal 9 (Killed).";
    assert_eq!(read(mpi).unwrap().who, Who { rank: Some(2), pid: Some(812), loader: false });
    let sibling = "failed (exitcode: -15) local_rank: 0 (pid: 4456) of binary: python3";
    assert_eq!(told(sibling), Some((Weight::Echo, FailureKind::PeerLost)));
}

#[test]
fn lines_that_tell_nothing_are_no_signs() {
    for line in [
        "step 120 loss 0.41",
        "UserWarning: expandable_segments not supported on this platform",
        "GPU available: False, used: False",
        "wandb: Run history:",
        "Checkpoint saved to out/checkpoint-500",
        "Process 5008 exits successfully.",
        "No seed found, seed set to 0",
        "WARNING: No module named 'flash_attn', using sdpa",
    ] {
        assert_eq!(told(line), None, "{line}");
    }
}

#[test]
fn what_stands_in_shared_memory_is_not_the_disk() {
    let line =
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_27_21_0>: No space left on device (28)";
    assert_eq!(told(line), Some((Weight::Root, FailureKind::SharedMemoryFull)));
    assert_eq!(told("OSError: [Errno 28] No space left on device"), Some((Weight::Root, FailureKind::DiskFull)));
}

#[test]
fn only_faults_of_the_hardware_are_a_lost_card() {
    let xid = |number: u32| format!("NVRM: Xid (PCI:0000:01:00): {number}, pid=812, name=python3, Ch 00000008");
    assert_eq!(told(&xid(79)), Some((Weight::Root, FailureKind::CardLost)));
    assert_eq!((told(&xid(31)), told(&xid(43))), (None, None));
}

proptest! {
    #[test]
    fn any_line_is_read_without_a_panic(text in "\\PC{0,200}") {
        read(&text);
    }

    #[test]
    fn any_shuffle_of_known_words_is_read_without_a_panic(
        words in proptest::collection::vec(prop::sample::select(vec![
            "DataLoader worker (pid", "(s) ", "12", ") ", "is killed by signal: ", "Killed", ". ", "failed (exitcode: ", "-9", ")",
            " local_rank: ", "exits with return code = ", "died with <Signals.", "SIGKILL: 9", "No module named ", "'", "é", ": ",
            "ModuleNotFoundError: ", ": not found", "NVRM: Xid (", "):", "-", "Unable to JIT load the ", " op",
        ]), 0..20)
    ) {
        read(&words.concat());
    }
}
