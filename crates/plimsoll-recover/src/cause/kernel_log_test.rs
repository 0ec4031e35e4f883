use proptest::prelude::*;

use super::*;

const MODERN: &str = "\
[ 1000.000001] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=921
[ 1000.000009] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=pod7,mems_allowed=0,oom_memcg=/kubepods/pod7,task_memcg=/kubepods/pod7/c1,task=python,pid=19024,uid=9999
[ 1000.000012] Memory cgroup out of memory: Killed process 19024 (python) total-vm:1448016kB, anon-rss:350452kB, file-rss:67832kB, shmem-rss:0kB, UID:9999 pgtables:1208kB oom_score_adj:921
[ 1000.100000] oom_reaper: reaped process 19024 (python), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB
";

#[test]
fn a_modern_kill_is_one_kill_with_its_cgroups_and_its_memory_by_sort() {
    let story = parse_kernel_log(MODERN);
    assert_eq!(story.kills.len(), 1);
    let kill = &story.kills[0];
    assert_eq!((kill.pid, kill.comm.as_str(), kill.scope), (19024, "python", Scope::Cgroup));
    assert_eq!(kill.oom_memcg.as_deref(), Some("/kubepods/pod7"));
    assert_eq!(kill.task_memcg.as_deref(), Some("/kubepods/pod7/c1"));
    let expected = Resident { anon: Bytes::kib(350_452), file: Bytes::kib(67_832), shmem: Some(Bytes::ZERO) };
    assert_eq!(kill.resident, Some(expected));
}

#[test]
fn an_old_kernels_two_lines_are_one_kill_and_the_victim_is_the_one_killed() {
    let text = "\
Memory cgroup out of memory: Kill process 4242 (python3) score 1971 or sacrifice child
Killed process 4250 (python3) total-vm:9000kB, anon-rss:8000kB, file-rss:10kB
Out of memory: Kill process 77 (java) score 900 or sacrifice child
Killed process 77 (java), UID 1000, total-vm:9000kB, anon-rss:8000kB, file-rss:10kB, shmem-rss:4kB";
    let kills = parse_kernel_log(text).kills;
    let told: Vec<_> = kills.iter().map(|kill| (kill.pid, kill.scope, kill.comm.as_str())).collect();
    assert_eq!(told, [(4250, Scope::Cgroup, "python3"), (77, Scope::Host, "java")]);
    assert_eq!(kills[0].resident.unwrap().shmem, None);
}

#[test]
fn a_chosen_victim_without_a_second_line_still_counts() {
    let kills = parse_kernel_log("Out of memory: Kill process 5 (a) score 1 or sacrifice child").kills;
    assert_eq!((kills.len(), kills[0].pid, kills[0].scope), (1, 5, Scope::Host));
}

#[test]
fn names_with_brackets_and_every_prefix_are_read() {
    for prefix in ["", "<3>", "3,1042,998877,-;", "Nov 15 07:00:01 box kernel: [9.1] "] {
        let line =
            format!("{prefix}Out of memory: Killed process 9 (a (b) c) total-vm:1kB, anon-rss:2kB, file-rss:3kB");
        let kills = parse_kernel_log(&line).kills;
        assert_eq!((kills[0].pid, kills[0].comm.as_str()), (9, "a (b) c"), "{prefix}");
    }
}

#[test]
fn a_lost_kill_line_is_replaced_by_the_line_of_context() {
    let text = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/a,b,task=x,pid=3,uid=0";
    let kills = parse_kernel_log(text).kills;
    assert_eq!((kills[0].pid, kills[0].scope, kills[0].task_memcg.as_deref()), (3, Scope::Host, Some("/a,b")));
}

#[test]
fn faults_and_failing_disks_are_told_apart_from_chatter() {
    let text = "\
plimsoll[42]: segfault at 0 ip 000055 sp 00007f error 4 in plimsoll[5500+1000]
traps: plimsoll[43] general protection fault ip:55 sp:7f error:0 in libc.so.6[7f+1]
blk_update_request: I/O error, dev sdb, sector 2048 op 0x1:(WRITE)
XFS (sda1): Mounting V5 Filesystem
XFS (sda1): metadata I/O error in \"xfs_trans_read_buf_map\"
usb 1-1: new high-speed device";
    let story = parse_kernel_log(text);
    assert_eq!(story.faults.iter().map(|fault| fault.0).collect::<Vec<_>>(), [42, 43]);
    assert_eq!(story.disk_errors.len(), 2);
}

proptest! {
    #[test]
    fn any_text_is_read_without_a_panic(text in "\\PC{0,400}") {
        parse_kernel_log(&text);
    }

    #[test]
    fn any_shuffle_of_the_kernels_own_words_is_read_without_a_panic(
        words in proptest::collection::vec(prop::sample::select(vec![
            "Killed process ", "Kill process ", "Memory cgroup out of memory: ", "Out of memory: ", "(", ")", "é", "[",
            "]: segfault at ", "traps: ", " general protection", "oom-kill:constraint=", ",task_memcg=", ",task=",
            ",pid=", "7", "99999999999999999999999", " total-vm:", "anon-rss:", "file-rss:", "kB", "\n", "Tasks in ",
            " are going to be killed due to memory.oom.group set", ", UID ", " score ", "XFS (",
        ]), 0..40)
    ) {
        parse_kernel_log(&words.concat());
    }

    #[test]
    fn a_kill_survives_any_name_and_number(pid in any::<u32>(), comm in "[a-z)( :,]{1,15}", anon in 0u64..1 << 40) {
        let line = format!("Out of memory: Killed process {pid} ({comm}) total-vm:1kB, anon-rss:{anon}kB, file-rss:0kB");
        let kills = parse_kernel_log(&line).kills;
        prop_assert_eq!(kills.len(), 1);
        prop_assert_eq!(kills[0].pid, pid);
        prop_assert_eq!(kills[0].resident.unwrap().anon, Bytes::kib(anon));
    }
}
