//! A memory cgroup of our own, version 1 or 2: made, entered, and always removed with what is left in it.
//!
//! Everything in it was started by us, so everything in it may be killed. It sits directly below the mount, and where
//! that is not allowed the caller is told why.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use plimsoll_machine::Bytes;

use super::run::kill;

/// How long the kernel may take to bury what was in a cgroup.
const PATIENCE: Duration = Duration::from_secs(10);

/// A cgroup; dropping it removes it.
#[derive(Debug)]
pub struct Cgroup {
    dir: PathBuf,
}

#[allow(dead_code, reason = "each test file uses its own part")]
impl Cgroup {
    /// Makes a cgroup that holds `limit` bytes, rounded up to a page, and no swap; or says why it cannot.
    pub fn limited_to(limit: u64) -> Result<Cgroup, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("plimsoll-contract-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let (mount, files) = match mounted("memory.limit_in_bytes") {
            Some(mount) => (mount, ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]),
            None => (mount_v2()?, ["memory.max", "memory.swap.max"]),
        };
        let dir = mount.join(name);
        fs_err::create_dir(&dir).map_err(|e| e.to_string())?;
        let cgroup = Cgroup { dir };
        let limit = limit.next_multiple_of(4096).to_string();
        fs_err::write(cgroup.dir.join(files[0]), &limit).map_err(|e| e.to_string())?;
        let swap = if files[1] == "memory.swap.max" { "0" } else { &limit };
        // A kernel without swap accounting has no such file, and then no swap is counted here either.
        let _ = fs_err::write(cgroup.dir.join(files[1]), swap);
        Ok(cgroup)
    }

    /// What its processes hold that the kernel cannot take back by dropping files.
    pub fn held(&self) -> Bytes {
        let stat = fs_err::read_to_string(self.dir.join("memory.stat")).unwrap();
        let of = |key: &str| {
            let line = stat.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
            line.and_then(|value| value.trim().parse::<u64>().ok())
        };
        // Version 1 counts what is below it by `total_`, version 2 always.
        Bytes(of("total_rss").or_else(|| of("anon")).unwrap())
    }

    /// The command's process moves into the cgroup before it becomes the program.
    pub fn enter(&self, command: &mut Command) {
        let procs = fs_err::OpenOptions::new().write(true).open(self.dir.join("cgroup.procs")).unwrap().into_file();
        // SAFETY: between fork and exec only one `write` is made: no allocation, no lock.
        unsafe { command.pre_exec(move || (&procs).write_all(b"0")) };
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let start = Instant::now();
        loop {
            let left = fs_err::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
            left.lines().filter_map(|pid| pid.parse().ok()).for_each(kill);
            // What a supervisor that was killed could not remove.
            for inner in fs_err::read_dir(&self.dir).into_iter().flatten().flatten() {
                if inner.file_type().is_ok_and(|kind| kind.is_dir()) {
                    let _ = fs_err::remove_dir(inner.path());
                }
            }
            if fs_err::remove_dir(&self.dir).is_ok() || !self.dir.exists() || start.elapsed() > PATIENCE {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Where version 1's memory controller is mounted, if it is.
fn mounted(file: &str) -> Option<PathBuf> {
    let place = Path::new("/sys/fs/cgroup/memory");
    place.join(file).exists().then(|| place.to_path_buf())
}

fn mount_v2() -> Result<PathBuf, String> {
    let place = Path::new("/sys/fs/cgroup");
    let file = place.join("cgroup.subtree_control");
    let enabled = fs_err::read_to_string(&file).map_err(|e| format!("no memory cgroup of version 1 or 2: {e}"))?;
    match enabled.split_whitespace().any(|c| c == "memory") {
        true => Ok(place.to_path_buf()),
        false => Err(format!("`{}` does not hand `memory` down, it holds `{}`", file.display(), enabled.trim())),
    }
}
