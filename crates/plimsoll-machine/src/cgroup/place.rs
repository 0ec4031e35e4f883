//! `Place`: a memory cgroup whose folder was found, and what can be asked of it alone.

use std::path::{Path, PathBuf};

use crate::cgroup::locate::{locate, locate_memory};
use crate::cgroup::{CgroupVersion, levels};
use crate::{Bytes, MachineError, Pressure, Root, Sighting, mounts, pressure};

/// A memory cgroup's folder and those of its ancestors, as far as they are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The kind of hierarchy.
    pub version: CgroupVersion,
    /// Its name as `/proc/self/cgroup` gives it.
    pub name: String,
    /// Its own folder first, the mount point last; never empty.
    pub chain: Vec<PathBuf>,
}

/// What a cgroup and its descendants use, limits aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Page cache included.
    pub current: Bytes,
    /// Of it, what the kernel can drop at once.
    pub reclaimable: Bytes,
    /// Of it, pages of files, those not written back yet included; no shared memory.
    pub files: Bytes,
}

impl Place {
    /// The memory cgroup of this process.
    pub fn own(root: &Root) -> Result<Sighting<Place>, MachineError> {
        Ok(match locate_memory(root, &mounts::read(root)?)? {
            Ok(place) => Sighting::Seen(place),
            Err(reason) => Sighting::unseen(reason),
        })
    }

    /// The memory cgroup that `/proc` called `name`; `None` where it is not there, or no longer.
    pub fn named(root: &Root, name: &str) -> Result<Option<Place>, MachineError> {
        let mounts = mounts::read(root)?;
        let kinds = [(CgroupVersion::V1, "memory", "memory.oom_control"), (CgroupVersion::V2, "", "memory.events")];
        let found = kinds.into_iter().find_map(|(version, controller, file)| {
            let place = locate(root, &mounts, version, controller, name)?;
            // Where the folder is gone, the nearest ancestor is found: that is another cgroup.
            let whole = place.dir().file_name() == Path::new(name).file_name();
            (whole && root.has(&place.dir().join(file))).then_some(place)
        });
        Ok(found)
    }

    /// Its own folder, as the machine names it.
    pub fn dir(&self) -> &Path {
        &self.chain[0]
    }

    /// A cgroup in it, there or not.
    pub fn child(&self, name: &str) -> Place {
        let mut chain = Vec::with_capacity(self.chain.len() + 1);
        chain.push(self.dir().join(name));
        chain.extend_from_slice(&self.chain);
        Place { version: self.version, name: format!("{}/{name}", self.name.trim_end_matches('/')), chain }
    }

    /// What it uses now.
    pub fn usage(&self, root: &Root) -> Result<Usage, MachineError> {
        levels::read_usage(root, self.version, self.dir())
    }

    /// Memory pressure in it.
    pub fn pressure(&self, root: &Root) -> Result<Sighting<Pressure>, MachineError> {
        match self.version {
            CgroupVersion::V1 => Ok(Sighting::unseen("cgroup v1 has no pressure figures")),
            CgroupVersion::V2 => pressure::read(root, &self.dir().join("memory.pressure")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_its_parents_above_it() {
        let top = Place { version: CgroupVersion::V1, name: "/".into(), chain: vec!["/m".into()] };
        let leaf = top.child("a").child("b");
        assert_eq!((leaf.name.as_str(), leaf.dir()), ("/a/b", Path::new("/m/a/b")));
        assert_eq!(leaf.chain, ["/m/a/b", "/m/a", "/m"].map(PathBuf::from));
    }
}
