//! One look at everything that presses on a run, cheap enough for once a second.
//!
//! The leaf's limit is a guard above the plan, not the room that the run was promised; it counts only when the worker
//! has eaten into the margin. Nothing is decided here (`pressure` does that), and nothing is kept but the last swap
//! counters.

use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_machine::{
    Bytes, Headroom, MachineError, Place, Pressure, ProcessMemory, Root, Sighting, VmStat, machine_pressure,
    process_memory, space_of,
};

use crate::RecoverError;
use crate::cause::LastSample;
use crate::leaf::Leaf;
use crate::pressure::Sample;

/// Looks at the machine again and again, for one worker.
#[derive(Debug)]
pub struct Sampler {
    root: Root,
    run_folder: PathBuf,
    headroom: Headroom,
    own: Option<Place>,
    before: Option<(Duration, VmStat)>,
}

/// What one look saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    /// For `pressure`.
    pub sample: Sample,
    /// The worker's memory; all zero when it has just ended.
    pub worker: ProcessMemory,
    /// What could still be taken of the machine, limits aside.
    pub host_headroom: Bytes,
    /// The machine's RAM.
    pub host_ram: Bytes,
}

impl Look {
    /// The part that a death is judged by.
    pub fn last(&self) -> LastSample {
        LastSample {
            headroom: self.sample.headroom,
            host_headroom: Some(self.host_headroom),
            host_ram: Some(self.host_ram),
            swap: self.sample.swap_used,
            stall_full: self.sample.stall_full,
        }
    }
}

impl Sampler {
    /// Finds the files once. Made anew for each worker, after its leaf: on v2 the leaf moves us into another cgroup.
    pub fn new(root: &Root, run_folder: &Path) -> Result<Sampler, RecoverError> {
        let own = match Place::own(root)? {
            Sighting::Seen(place) => Some(place),
            Sighting::Unseen { .. } => None,
        };
        let (root, run_folder) = (root.clone(), run_folder.to_path_buf());
        Ok(Sampler { headroom: Headroom::find(&root)?, root, run_folder, own, before: None })
    }

    /// Looks, `at` after the worker's start.
    pub fn look(&mut self, worker: u32, at: Duration, leaf: Option<&Leaf>) -> Result<Look, RecoverError> {
        let (usable, ram) = self.headroom.read_with_ram()?;
        let guard = match leaf {
            Some(leaf) => leaf.short_of()?,
            None => None,
        };
        let memory = match process_memory(&self.root, worker) {
            Err(MachineError::NoProcess { .. }) => ProcessMemory::default(),
            other => other?,
        };
        let counters = match VmStat::read(&self.root) {
            Err(MachineError::Missing { .. }) => VmStat::default(), // a sandbox that plays the kernel may lack it
            other => other?,
        };
        let (swap_in, swap_out) = match self.before.replace((at, counters)) {
            Some((then, before)) => rates(&before, &counters, at.saturating_sub(then)),
            None => (Bytes::ZERO, Bytes::ZERO),
        };
        let stall = self.stall(leaf)?;
        let sample = Sample {
            at,
            headroom: guard.map_or(usable.bytes, |left| left.min(usable.bytes)),
            swap_used: memory.swap,
            swap_in,
            swap_out,
            stall_some: stall.map(|stall| stall.some.avg10),
            stall_full: stall.map(|stall| stall.full.avg10),
            disk_free: space_of(&self.run_folder)?.available,
        };
        Ok(Look { sample, worker: memory, host_headroom: ram.available, host_ram: ram.total })
    }

    /// Pressure in the nearest cgroup that has figures of its own: the worker's, ours, the machine's.
    fn stall(&self, leaf: Option<&Leaf>) -> Result<Option<Pressure>, RecoverError> {
        if let Some(leaf) = leaf
            && let Sighting::Seen(pressure) = leaf.pressure()?
        {
            return Ok(Some(pressure));
        }
        if let Some(own) = &self.own
            && let Sighting::Seen(pressure) = own.pressure(&self.root)?
        {
            return Ok(Some(pressure));
        }
        Ok(machine_pressure(&self.root)?.seen().copied())
    }
}

/// Swapped in and out per second; nothing where no time has passed or the kernel has no swap.
fn rates(before: &VmStat, now: &VmStat, passed: Duration) -> (Bytes, Bytes) {
    let rate = |before: Option<Bytes>, now: Option<Bytes>| match (before, now) {
        (Some(before), Some(now)) if !passed.is_zero() => {
            Bytes((now.saturating_sub(before).0 as f64 / passed.as_secs_f64()) as u64)
        }
        _ => Bytes::ZERO,
    };
    (rate(before.swapped_in, now.swapped_in), rate(before.swapped_out, now.swapped_out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swapping_is_told_per_second_and_a_counter_that_fell_tells_nothing() {
        let stat = |mib| VmStat { oom_kill: None, swapped_in: Some(Bytes::mib(mib)), swapped_out: Some(Bytes::mib(8)) };
        let two = Duration::from_secs(2);
        assert_eq!(rates(&stat(10), &stat(30), two), (Bytes::mib(10), Bytes::ZERO));
        assert_eq!(rates(&stat(30), &stat(10), two), (Bytes::ZERO, Bytes::ZERO));
        assert_eq!(rates(&stat(10), &stat(30), Duration::ZERO), (Bytes::ZERO, Bytes::ZERO));
        assert_eq!(rates(&VmStat::default(), &stat(30), two), (Bytes::ZERO, Bytes::ZERO));
    }
}
