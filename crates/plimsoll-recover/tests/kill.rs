//! A process that writes checkpoints is killed, at random moments, before and after every single system call, and at
//! every byte of every file; what it had finished is there afterwards, whole, every time.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use plimsoll_recover::RecoverError;
use plimsoll_recover::checkpoint::{
    BUFFER, Found, Manifest, State, Writer, clean_leftovers, latest_complete, list, retain, verify,
};
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

/// Saves `step` with files that are each longer than the one before, the manifest last, so that a limit on the length of
/// files can stop the writer in any of them.
fn save_rising(dir: &Path, step: u64) -> Result<PathBuf, RecoverError> {
    let mut writer = Writer::begin(dir, step)?;
    for (name, bytes) in [("first", 40), ("second", 90)] {
        writer.file(name, |sink| content(step)[..bytes].chunks(7).try_for_each(|piece| sink.write_all(piece)))?;
    }
    writer.finish(json!({ "cursor": step }))
}

/// Two checkpoints, in memory.
fn shelf() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    [1, 2].iter().for_each(|step| drop(save_rising(dir.path(), *step).unwrap()));
    dir
}

/// The names in a folder, and each file's length.
fn names(dir: &Path) -> Vec<(String, u64)> {
    let entries = fs_err::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<_> =
        entries.map(|e| (e.file_name().into_string().unwrap(), e.metadata().unwrap().len())).collect();
    names.sort();
    names
}

/// The steps in `dir`; panics unless each verifies and nothing else is there.
fn steps(dir: &Path) -> Vec<u64> {
    let whole = |one: &Found| verify(&one.path).unwrap().step;
    let steps: Vec<u64> = list(dir).unwrap().iter().map(whole).collect();
    let visible = names(dir).into_iter().filter(|(name, _)| !name.starts_with('.')).count();
    assert_eq!(visible, steps.len());
    steps
}

#[test]
fn a_writer_that_dies_at_any_byte_of_any_file_costs_nothing_that_was_finished() {
    let mut met = BTreeMap::new();
    // A new step, and one that replaces another.
    for step in [3, 2] {
        for byte in 0.. {
            let dir = shelf();
            let ended = forked::wait(forked::start(|| {
                forked::limit_files(byte);
                save_rising(dir.path(), step).map_or(1, |_| 0)
            }));
            if libc::WIFEXITED(ended) {
                assert_eq!(libc::WEXITSTATUS(ended), 0);
                assert_eq!(steps(dir.path()).last(), Some(&step));
                break;
            }
            assert_eq!(libc::WTERMSIG(ended), libc::SIGXFSZ);
            assert_eq!(steps(dir.path()), [1, 2], "step {step}, byte {byte}");
            let left = names(dir.path()).into_iter().find(|(name, _)| name.starts_with(".tmp-step-")).unwrap().0;
            let cut: Vec<_> = names(&dir.path().join(left)).into_iter().filter(|(_, bytes)| *bytes == byte).collect();
            // `first` and `second` may by chance be as long as the limit; the one being written is the last.
            let last =
                cut.iter().max_by_key(|(name, _)| ["first", "second", "manifest.json"].iter().position(|n| n == name));
            *met.entry(last.expect("a file ends at the limit").0.clone()).or_insert(0) += 1;
            assert_eq!(clean_leftovers(dir.path()).unwrap().len(), 1);
            save_rising(dir.path(), step).unwrap();
            assert_eq!(steps(dir.path()).last(), Some(&step.max(2)));
            assert_eq!(names(dir.path()).len(), steps(dir.path()).len());
        }
    }
    println!("died at these many bytes: {met:?}");
    assert_eq!((met["first"], met["second"]), (2 * 40, 2 * 50));
    assert!(met["manifest.json"] > 2 * 100);
}

#[test]
fn a_write_that_fails_at_any_byte_of_any_file_is_told_and_the_next_save_works() {
    for byte in 0.. {
        let dir = shelf();
        let ended = forked::wait(forked::start(|| {
            forked::ignore_the_limit_signal();
            let limit = forked::limit_files(byte);
            let told = match save_rising(dir.path(), 3) {
                Ok(_) => return 77,
                Err(error) => format!("{error}: {}", error.source().map(ToString::to_string).unwrap_or_default()),
            };
            // Nothing is left of it, and nothing else was touched.
            let names = names(dir.path()).len();
            forked::limit_files(limit);
            save_rising(dir.path(), 3).unwrap();
            if told.contains(".tmp-step-3-") && told.contains("too large") && names == 2 { 0 } else { 1 }
        }));
        assert!(libc::WIFEXITED(ended), "byte {byte}");
        if libc::WEXITSTATUS(ended) == 77 {
            assert!(byte > 200, "only {byte} bytes were reached");
            break;
        }
        assert_eq!(libc::WEXITSTATUS(ended), 0, "byte {byte}");
        assert_eq!(steps(dir.path()), [1, 2, 3], "byte {byte}");
        assert_eq!(names(dir.path()).len(), 3);
    }
}

#[test]
fn a_writer_that_dies_within_a_file_larger_than_its_buffer_costs_nothing_either() {
    let long = vec![7; 2 * BUFFER.0 as usize + 99];
    let long_save = |dir: &Path, step| -> Result<PathBuf, RecoverError> {
        let mut writer = Writer::begin(dir, step)?;
        writer.file("long", |sink| long.chunks(70_001).try_for_each(|piece| sink.write_all(piece)))?;
        writer.finish(json!({}))
    };
    let dir = shelf();
    for byte in (0..long.len() as u64).step_by(99_991) {
        let ended = forked::wait(forked::start(|| {
            forked::limit_files(byte);
            long_save(dir.path(), 3).map_or(1, |_| 0)
        }));
        assert!(libc::WIFSIGNALED(ended) && libc::WTERMSIG(ended) == libc::SIGXFSZ, "byte {byte}: {ended:#x}");
        assert_eq!(steps(dir.path()), [1, 2], "byte {byte}");
        clean_leftovers(dir.path()).unwrap();
    }
    long_save(dir.path(), 3).unwrap();
    assert_eq!(steps(dir.path()), [1, 2, 3]);
}

/// Children that are copies of this process.
mod forked {
    /// Runs `work` in a child, which ends with the status that it returns, or with 1 if it panics.
    pub fn start(work: impl FnOnce() -> libc::c_int) -> libc::pid_t {
        // SAFETY: the child runs `work`, which uses files and the heap only (glibc keeps its heap usable across a
        // fork), takes no lock that another thread of this test could hold, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(1);
            // SAFETY: ends this process without running the parent's destructors.
            unsafe { libc::_exit(status) };
        }
        child
    }

    /// How a child ended, or was halted under `ptrace`.
    pub fn wait(child: libc::pid_t) -> libc::c_int {
        let mut status = 0;
        // SAFETY: waits for our own child; the status has room.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        status
    }

    /// Lets this process write no file past `bytes`: the next byte is `SIGXFSZ`. Returns the limit before.
    pub fn limit_files(bytes: u64) -> u64 {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let before = getrlimit(Resource::Fsize);
        setrlimit(Resource::Core, Rlimit { current: Some(0), ..getrlimit(Resource::Core) }).unwrap();
        setrlimit(Resource::Fsize, Rlimit { current: Some(bytes), ..before }).unwrap();
        before.current.unwrap_or(u64::MAX)
    }

    /// Ignored, the signal becomes an error of the write.
    pub fn ignore_the_limit_signal() {
        // SAFETY: sets a disposition to "ignore", which involves no handler.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    }
}

/// A forked child under `ptrace`, killed at its n-th stop at the entry or the exit of a system call.
mod traced {
    use super::forked::{start, wait};

    #[derive(Debug, PartialEq)]
    pub enum End {
        Killed,
        Finished,
    }

    /// `None` where tracing is not allowed.
    pub fn run_until(stop: usize, work: impl FnOnce()) -> Option<End> {
        let child = start(|| {
            // SAFETY: plain calls on ourselves.
            unsafe {
                if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
                    return 77;
                }
                libc::raise(libc::SIGSTOP);
            }
            work();
            0
        });
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
}
