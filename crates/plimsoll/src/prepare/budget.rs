//! The budgets of a run: what was asked for, and never more than the machine can give.
//!
//! The deciding functions are pure. What the run itself holds already, in memory or on disk, is the run's to use.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use plimsoll_machine::{Bytes, Headroom, Root, children, own_memory, process_memory, space_of};

use super::Supervisor;
use crate::render::Fail;
use crate::settings::Settings;

/// What is left to the machine when no RAM budget is given: a twentieth, and at least this.
const MARGIN: Bytes = Bytes::mib(256);
/// What a reading of usable RAM may be off: charges that cores hold back, and what the kernel keeps for a process besides
/// page tables. A plan has lines of its own for both.
const UNSEEN: Bytes = Bytes::mib(4);

/// What a run may use, and what there is.
pub struct Budgets {
    /// RAM that the run may use.
    pub ram: Bytes,
    /// RAM that the machine can give now.
    pub ram_there: Bytes,
    /// Disk that the run may use.
    pub disk: Bytes,
    /// Free disk, with what the run has written already.
    pub disk_there: Bytes,
}

/// RAM and disk that the run may use, with what is to be said about them. `folder` is the run's; `unpacked` was written for it
/// elsewhere.
pub fn budgets(
    settings: &Settings,
    supervisor: Supervisor,
    root: &Root,
    (folder, unpacked): (&Path, Bytes),
    remarks: &mut Vec<String>,
) -> Result<Budgets, Fail> {
    let mut ours = vec![own_memory(root)?];
    if let Supervisor::Running(pid) = supervisor {
        let us = std::process::id();
        // The supervisor, and what else it has started: a mirror has its own line in the plan.
        let others = children(root, pid).into_iter().filter(|other| *other != us);
        ours.extend(std::iter::once(pid).chain(others).filter_map(|pid| process_memory(root, pid).ok()));
    }
    // Mapped files are not added: the kernel counts them as memory that can be had.
    let held: Bytes = ours.iter().map(|m| m.rss_anon + m.rss_shmem + m.page_tables).sum();
    let ram_there = Headroom::find(root)?.read()? + held;
    let (ram, said) = ram(settings.ram, ram_there);
    remarks.extend(said);
    // Before the run has a folder of its own, what lies there is somebody else's.
    let written = match supervisor {
        Supervisor::Running(_) => on_disk(&folder.join("checkpoints")) + on_disk(&folder.join("model")),
        Supervisor::Later => Bytes::ZERO,
    };
    let written = written + unpacked;
    let free = free(folder)?;
    let (disk, said) = disk(settings.disk, free, written);
    remarks.extend(said);
    Ok(Budgets { ram, ram_there, disk, disk_there: free + written })
}

/// The RAM budget, from what was asked for and what can be had.
fn ram(given: Option<Bytes>, usable: Bytes) -> (Bytes, Option<String>) {
    match given {
        Some(given) if given > usable + UNSEEN => {
            let said = format!("RAM budget: {usable} instead of the {given} asked for: the machine has no more now");
            (usable, Some(said))
        }
        Some(given) => (given, None),
        None => {
            let margin = MARGIN.max(Bytes(usable.0 / 20));
            let budget = usable.saturating_sub(margin);
            (budget, Some(format!("RAM budget: {budget} ({usable} can be had, {margin} left to the machine)")))
        }
    }
}

/// The disk budget, from what was asked for, what is free, and what the run has written already.
fn disk(given: Option<Bytes>, free: Bytes, written: Bytes) -> (Bytes, Option<String>) {
    let most = free + written;
    match given {
        Some(given) if given > most => {
            let said = format!("disk budget: {most} instead of the {given} asked for: the disk has no more free");
            (most, Some(said))
        }
        Some(given) => (given, None),
        None => (most.saturating_sub(Bytes(free.0 / 50)), None),
    }
}

/// Free space where `folder` is or will be.
fn free(folder: &Path) -> Result<Bytes, Fail> {
    let there = folder.ancestors().find(|p| p.is_dir()).unwrap_or(Path::new("."));
    Ok(space_of(there)?.available)
}

/// What the files below `folder` take; nothing where it is not there.
fn on_disk(folder: &Path) -> Bytes {
    let Ok(entries) = fs_err::read_dir(folder) else { return Bytes::ZERO };
    let of = |entry: fs_err::DirEntry| match entry.metadata() {
        Ok(facts) if facts.is_dir() => on_disk(&entry.path()),
        Ok(facts) => Bytes(facts.blocks() * 512),
        Err(_) => Bytes::ZERO,
    };
    entries.flatten().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_ram_than_the_machine_has_is_cut_to_what_it_has_and_both_are_said() {
        let (budget, said) = ram(Some(Bytes::gib(64)), Bytes::gib(20));
        assert_eq!(budget, Bytes::gib(20));
        let said = said.unwrap();
        assert!(said.contains("20.00 GiB instead of the 64.00 GiB"), "{said}");
        assert_eq!(ram(Some(Bytes::gib(2)), Bytes::gib(20)), (Bytes::gib(2), None));
        // A cgroup made to a plan's measure is not refused for what a reading does not see.
        assert_eq!(ram(Some(Bytes::mib(100)), Bytes::mib(98)), (Bytes::mib(100), None));
    }

    #[test]
    fn without_a_ram_budget_a_margin_is_left() {
        assert_eq!(ram(None, Bytes::gib(20)).0, Bytes::gib(19));
        assert_eq!(ram(None, Bytes::gib(1)).0, Bytes::mib(768));
        assert_eq!(ram(None, Bytes::mib(100)).0, Bytes::ZERO);
    }

    #[test]
    fn what_the_run_has_written_counts_as_its_own() {
        let (free, written) = (Bytes::gib(1), Bytes::gib(3));
        assert_eq!(disk(None, free, written).0, Bytes(4 * (1 << 30) - (1 << 30) / 50));
        assert_eq!(disk(Some(Bytes::gib(2)), free, written), (Bytes::gib(2), None));
        let (budget, said) = disk(Some(Bytes::gib(9)), free, written);
        assert_eq!(budget, Bytes::gib(4));
        assert!(said.unwrap().contains("4.00 GiB instead of the 9.00 GiB"));
    }

    #[test]
    fn the_files_of_a_run_are_counted_at_every_depth() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("step-2/more");
        fs_err::create_dir_all(&deep).unwrap();
        fs_err::write(dir.path().join("step-2/a"), vec![1u8; 100_000]).unwrap();
        fs_err::write(deep.join("b"), vec![1u8; 50_000]).unwrap();
        let counted = on_disk(dir.path());
        assert!(counted >= Bytes(150_000) && counted <= Bytes(400_000), "{counted:?}");
        assert_eq!(on_disk(&dir.path().join("not-there")), Bytes::ZERO);
    }
}
