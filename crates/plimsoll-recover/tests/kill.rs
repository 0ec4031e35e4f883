//! A process that writes checkpoints is killed, at random moments and before and after every single system call; what
//! it had finished is there afterwards, whole, every time.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use plimsoll_recover::checkpoint::{Manifest, State, Writer, clean_leftovers, latest_complete, list, retain};
use serde_json::json;

const DIR: &str = "PLIMSOLL_TEST_CHECKPOINTS";

fn content(step: u64) -> Vec<u8> {
    (0..60_000 + step % 100).map(|at| (at.wrapping_mul(step + 1) >> 3) as u8).collect()
}

fn save(dir: &Path, step: u64) {
    let mut writer = Writer::begin(dir, step).unwrap();
    let bytes = content(step);
    writer.file("weights", |sink| bytes.chunks(4096).try_for_each(|piece| sink.write_all(piece))).unwrap();
    writer.file("optimizer", |sink| sink.write_all(&bytes)).unwrap();
    writer.finish(json!({ "cursor": step })).unwrap();
}

/// What a resume would start from; panics if it is not whole or anything with a good name is broken.
fn survivor(dir: &Path) -> Option<Manifest> {
    let broken: Vec<_> = list(dir).unwrap().into_iter().filter(|one| one.state != State::Complete).collect();
    assert!(broken.is_empty(), "{broken:?}");
    let latest = latest_complete(dir).unwrap();
    assert!(latest.skipped.is_empty(), "{:?}", latest.skipped);
    let manifest = latest.manifest?;
    for name in ["weights", "optimizer"] {
        let mut bytes = Vec::new();
        manifest.open_file(name).unwrap().read_to_end(&mut bytes).unwrap();
        assert!(bytes == content(manifest.step), "{name} of step {}", manifest.step);
    }
    assert_eq!(manifest.facts["cursor"], manifest.step);
    Some(manifest)
}

#[test]
#[ignore = "the process that `killed_at_random_moments_nothing_finished_is_lost` starts and kills"]
fn writing_process() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let dir = Path::new(&dir);
    clean_leftovers(dir).unwrap();
    let mut step = survivor(dir).map_or(0, |manifest| manifest.step);
    loop {
        // Every step is saved twice, so that kills also meet a replacement.
        step += 1;
        save(dir, step);
        save(dir, step);
        retain(dir, 2, &[]).unwrap();
        println!("\ndone {step}");
    }
}

#[test]
fn killed_at_random_moments_nothing_finished_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (mut reached, mut noise) = (0, 0x9e37_79b9_u64);
    for round in 0..50 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "writing_process", "--nocapture", "--test-threads=1"])
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let done = |line: std::io::Result<String>| line.unwrap().strip_prefix("done ").map(|n| n.parse().unwrap());
        reached = lines.by_ref().find_map(done).expect("the process ended by itself");
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros(noise >> 49));
        child.kill().unwrap();
        child.wait().unwrap();
        reached = lines.filter_map(done).last().unwrap_or(reached);
        let step = survivor(dir.path()).expect("a finished checkpoint was lost").step;
        assert!(step == reached || step == reached + 1, "round {round}: {step} after {reached}");
    }
    assert!(reached >= 50);
}

#[test]
fn killed_around_every_system_call_the_old_or_the_new_one_is_whole() {
    let mut calls = 0;
    for stop in 0.. {
        // Memory keeps exactly what system calls have done, and hundreds of rounds need no real disk for that.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        for step in [1, 2, 3] {
            save(dir.path(), step);
        }
        // Replaces step 3, adds step 4, deletes 1 and 2.
        let work = || {
            save(dir.path(), 3);
            save(dir.path(), 4);
            retain(dir.path(), 2, &[]).unwrap();
        };
        let Some(end) = traced::run_until(stop, work) else {
            println!("skipped: this machine does not let a process trace its child");
            return;
        };
        let step = survivor(dir.path()).expect("no checkpoint is left").step;
        assert!(step == 3 || step == 4);
        clean_leftovers(dir.path()).unwrap();
        for entry in fs_err::read_dir(dir.path()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(name.starts_with("step-"), "killed at stop {stop}: `{name}` is left");
        }
        if end == traced::End::Finished {
            assert_eq!(step, 4);
            calls = stop;
            break;
        }
    }
    assert!(calls > 50, "only {calls} stops were seen");
    println!("killed at {calls} stops");
}

/// A forked child under `ptrace`, killed at its n-th stop at the entry or the exit of a system call.
mod traced {
    #[derive(Debug, PartialEq)]
    pub enum End {
        Killed,
        Finished,
    }

    /// `None` where tracing is not allowed.
    pub fn run_until(stop: usize, work: impl FnOnce()) -> Option<End> {
        // SAFETY: the child runs `work`, which uses files and the heap only (glibc keeps its heap usable across a
        // fork), takes no lock that another thread of this test could hold, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: plain calls on ourselves.
            unsafe {
                if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
                    libc::_exit(77);
                }
                libc::raise(libc::SIGSTOP);
            }
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: ends this process without running the parent's destructors.
            unsafe { libc::_exit(if done.is_ok() { 0 } else { 1 }) };
        }
        let mut status = wait(child);
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 77 {
            return None;
        }
        for _ in 0..stop {
            // SAFETY: `child` is our stopped tracee.
            assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, child, 0, 0) }, 0);
            status = wait(child);
            if libc::WIFEXITED(status) {
                assert_eq!(libc::WEXITSTATUS(status), 0, "the writer failed");
                return Some(End::Finished);
            }
            assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTRAP, "status {status:#x}");
        }
        // SAFETY: `child` is ours and has not been waited for.
        assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
        assert!(libc::WIFSIGNALED(wait(child)));
        Some(End::Killed)
    }

    fn wait(child: libc::pid_t) -> libc::c_int {
        let mut status = 0;
        // SAFETY: waits for our own child; the status has room.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        status
    }
}
