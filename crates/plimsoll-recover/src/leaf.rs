//! The worker's own memory cgroup: its limit, so that an overshoot kills the worker and nobody else, and its counters,
//! so that the kill is seen to be its.
//!
//! The leaf lies inside of our own cgroup, so every limit above still binds, and it is removed when dropped. A machine
//! that does not let us have one is no error: [`NoLeaf`] says why, and the run goes on without. Its limit is on RAM:
//! whether the worker may use swap stays as the machine has it, since a run that swaps is slow and a run that is killed
//! is lost; `pressure` watches the swap. It knows no plan and starts no process.

mod leftovers;
mod refusal;
mod split;
mod word;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fs_err as fs;
use plimsoll_machine::{
    Bytes, CgroupVersion, MemoryCounters, Place, Pressure, Root, Sighting, in_first_cgroup_namespace,
};

pub use refusal::NoLeaf;

use crate::RecoverError;
use split::Split;

/// How long the kernel is given to let go of a worker that has been reaped.
const EMPTY_WITHIN: Duration = Duration::from_millis(500);

/// A memory cgroup for one worker.
#[derive(Debug)]
pub struct Leaf {
    root: Root,
    place: Place,
    kernel_path: Option<String>,
    procs: OwnedFd,
    guard: Option<Guard>,
    // Undone after the leaf is gone: fields are dropped after `drop` has run.
    _split: Option<Split>,
}

/// The limit of a leaf, and how much of it lies above what the worker is meant to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Guard {
    limit: Bytes,
    margin: Bytes,
}

/// The way into a leaf for a process that is being started.
#[derive(Debug)]
pub struct Door(OwnedFd);

impl Door {
    /// Moves the calling process into the leaf. One system call: it may be called between `fork` and `exec`.
    pub fn enter(&self) -> io::Result<()> {
        loop {
            match rustix::io::write(&self.0, b"0") {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Leaf {
    /// Makes a leaf in this process's own memory cgroup. On v2 this process moves into a leaf of its own beside it, since
    /// there only leaves may hold processes; both are undone when the leaf is dropped. One leaf at a time.
    pub fn make(root: &Root) -> Result<Leaf, NoLeaf> {
        let own = match Place::own(root)? {
            Sighting::Seen(place) => place,
            Sighting::Unseen { reason } => return Err(NoLeaf::NoController { reason }),
        };
        let dir = root.join(own.dir());
        let members = word::processes(&dir).map_err(|source| NoLeaf::refused(dir.clone(), source))?;
        if !members.contains(&std::process::id()) {
            return Err(NoLeaf::NotShown { name: own.name, path: own.chain[0].clone() });
        }
        leftovers::remove(root, &dir);
        static MADE: AtomicU64 = AtomicU64::new(1);
        let name = format!("plimsoll-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let split = match own.version {
            CgroupVersion::V1 => {
                must_bind(&dir)?;
                None
            }
            CgroupVersion::V2 => Split::make(root, &dir, &name, &members)?,
        };
        let place = own.child(&name);
        let dir = root.join(place.dir());
        fs::create_dir(&dir).map_err(|source| NoLeaf::refused(dir.clone(), source))?;
        let open = || -> io::Result<OwnedFd> {
            settle(&dir, place.version)?;
            Ok(fs::OpenOptions::new().write(true).open(dir.join("cgroup.procs"))?.into_parts().0.into())
        };
        let procs = open().map_err(|source| {
            let _ = fs::remove_dir(&dir);
            NoLeaf::refused(dir.clone(), source)
        })?;
        let kernel_path = in_first_cgroup_namespace(root).then(|| place.name.clone());
        Ok(Leaf { root: root.clone(), place, kernel_path, procs, guard: None, _split: split })
    }

    /// The way in, for a worker that is about to be started.
    pub fn door(&self) -> Result<Door, RecoverError> {
        self.procs.try_clone().map(Door).map_err(RecoverError::File)
    }

    /// Limits the worker's RAM to `plan` and `margin`. A limit below what it uses already is refused, where v2 would
    /// kill it.
    pub fn limit(&mut self, plan: Bytes, margin: Bytes) -> Result<(), RecoverError> {
        let limit = plan.saturating_add(margin);
        let used = self.working_set()?;
        let path = self.dir();
        if used > limit {
            return Err(RecoverError::LeafTooFull { path, used, limit });
        }
        let file = match self.place.version {
            CgroupVersion::V1 => "memory.limit_in_bytes",
            CgroupVersion::V2 => "memory.max",
        };
        word::write(&path.join(file), &limit.0.to_string())?;
        self.guard = Some(Guard { limit, margin });
        Ok(())
    }

    /// What the limit leaves, where the worker has used up more than half of the margin; `None` where it has not, or
    /// where there is no limit. A checkpoint that is being written back is no use of the margin: the kernel slows its
    /// writer down and waits.
    pub fn short_of(&self) -> Result<Option<Bytes>, RecoverError> {
        let Some(guard) = self.guard else { return Ok(None) };
        let left = guard.limit.saturating_sub(self.without_files()?);
        Ok((left.0 < guard.margin.0 / 2).then_some(left))
    }

    /// Its counters now; they were all zero when it was made.
    pub fn counters(&self) -> Result<MemoryCounters, RecoverError> {
        Ok(MemoryCounters::read(&self.root, &self.place)?)
    }

    /// The most that the worker ever used, page cache included; `None` on a kernel that does not say (v2 before 5.19).
    pub fn peak(&self) -> Option<Bytes> {
        self.counters().ok()?.peak()
    }

    /// Memory pressure in it; cgroup v1 has no such figures.
    pub fn pressure(&self) -> Result<Sighting<Pressure>, RecoverError> {
        Ok(self.place.pressure(&self.root)?)
    }

    /// Its name as `/proc` gives it.
    pub fn name(&self) -> &str {
        &self.place.name
    }

    /// Its name as the kernel's log gives it; `None` where a cgroup namespace hides that.
    pub fn kernel_path(&self) -> Option<&str> {
        self.kernel_path.as_deref()
    }

    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// What its processes take that cannot be dropped: page cache left out.
    pub fn working_set(&self) -> Result<Bytes, RecoverError> {
        let usage = self.place.usage(&self.root)?;
        Ok(usage.current.saturating_sub(usage.reclaimable))
    }

    /// What its processes take of their own: heap, shared memory and what the kernel keeps for them, without any file's
    /// pages. A checkpoint that is being written fills the page cache, which is no need of the program's.
    pub fn without_files(&self) -> Result<Bytes, RecoverError> {
        let usage = self.place.usage(&self.root)?;
        Ok(usage.current.saturating_sub(usage.files))
    }

    /// The file that lists its processes.
    pub fn procs_file(&self) -> PathBuf {
        self.dir().join("cgroup.procs")
    }

    fn dir(&self) -> PathBuf {
        self.root.join(self.place.dir())
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        let dir = self.dir();
        let patience = Instant::now() + EMPTY_WITHIN;
        // A process that was reaped is still a member for a moment. One that lives on keeps the folder, and the next
        // supervisor removes it when it is empty.
        while fs::remove_dir(&dir).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
            && Instant::now() < patience
        {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Before kernel 5.11 a v1 cgroup could be told not to count its children; a leaf there would escape all limits.
fn must_bind(dir: &std::path::Path) -> Result<(), NoLeaf> {
    match fs::read_to_string(dir.join("memory.use_hierarchy")) {
        Ok(text) if text.trim() == "0" => Err(NoLeaf::WouldEscape { path: dir.to_path_buf() }),
        _ => Ok(()),
    }
}

/// What a leaf is told before anybody is in it: all of the worker dies, or nothing of it.
fn settle(dir: &std::path::Path, version: CgroupVersion) -> io::Result<()> {
    match version {
        // A leaf inherits its parent's wish that nobody be killed: then the worker would hang at the limit for ever.
        CgroupVersion::V1 => {
            let control = dir.join("memory.oom_control");
            if fs::read_to_string(&control)?.lines().any(|line| line.trim() == "oom_kill_disable 1") {
                word::write(&control, "0")?;
            }
            Ok(())
        }
        // Before kernel 4.19 there is no such file, and the kernel chooses one process.
        CgroupVersion::V2 => match word::write(&dir.join("memory.oom.group"), "1") {
            Err(error) if error.kind() == io::ErrorKind::NotFound && dir.join("memory.max").exists() => Ok(()),
            other => other,
        },
    }
}
