//! Space and file system of a path, and of `/dev/shm`.
//!
//! A path that does not exist yet is answered for by its nearest ancestor that does. A run folder on tmpfs would eat
//! the RAM that the plan counts on, and one on a network share has other rates, so the kind is told.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::{Bytes, MachineError, Mount, Root, Sighting, mount_of};

const SHM: &str = "/dev/shm";

/// What a file system is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskKind {
    /// A disk of this machine, as far as can be told.
    Local,
    /// RAM.
    Memory,
    /// Another machine.
    Network,
}

impl DiskKind {
    /// The kind, by the file system's name.
    pub fn of(fs: &str) -> DiskKind {
        match fs {
            "tmpfs" | "ramfs" | "rootfs" => DiskKind::Memory,
            "nfs" | "nfs4" | "cifs" | "smb3" | "ceph" | "glusterfs" | "lustre" | "gpfs" | "beegfs" | "fuse.sshfs"
            | "fuse.glusterfs" | "fuse.s3fs" | "fuse.rclone" | "fuse.gcsfuse" | "afs" => DiskKind::Network,
            _ => DiskKind::Local,
        }
    }
}

/// Space of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Space {
    /// In all.
    pub total: Bytes,
    /// For a process without privileges.
    pub available: Bytes,
}

/// The file system of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Disk {
    /// The path, or its nearest ancestor that exists.
    pub path: PathBuf,
    /// Where the file system is mounted; `None` where the mount table does not show it.
    pub mount: Option<PathBuf>,
    /// Its name: `ext4`, `overlay`, `tmpfs`.
    pub fs: Option<String>,
    /// What it is made of.
    pub kind: DiskKind,
    /// Its space.
    pub space: Space,
}

pub(crate) fn read(root: &Root, mounts: &[Mount], path: &Path) -> Result<Disk, MachineError> {
    let real = root.join(absolute(root, path)?);
    let there = real.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    // Links are followed, so that the path is compared with mount points as they are.
    let there = fs_err::canonicalize(there)
        .map_err(|source| MachineError::NoSpaceFigures { path: there.to_path_buf(), source })?;
    let base = fs_err::canonicalize(root.join("/")).unwrap_or_else(|_| root.join("/"));
    let named = match there.strip_prefix(&base) {
        Ok(rest) => Path::new("/").join(rest),
        Err(_) => there.clone(),
    };
    let mount = mount_of(mounts, &named);
    Ok(Disk {
        kind: mount.map_or(DiskKind::Local, |mount| DiskKind::of(&mount.fs)),
        mount: mount.map(|mount| mount.point.clone()),
        fs: mount.map(|mount| mount.fs.clone()),
        space: space_of(&there)?,
        path: named,
    })
}

/// `/dev/shm`: asked of the system, or worked out from the mount table of a recorded tree.
pub(crate) fn read_shm(root: &Root, mounts: &[Mount], ram: Bytes) -> Result<Sighting<Space>, MachineError> {
    let Some(mount) = mount_of(mounts, Path::new(SHM)).filter(|mount| mount.point == Path::new(SHM)) else {
        return Ok(Sighting::unseen(format!("`{SHM}` is not mounted")));
    };
    if root.is_system() {
        return Ok(Sighting::Seen(space_of(Path::new(SHM))?));
    }
    let total = tmpfs_size(mount, ram);
    Ok(Sighting::Seen(Space { total, available: total }))
}

/// The size that a tmpfs was mounted with; half of the RAM where none was given.
fn tmpfs_size(mount: &Mount, ram: Bytes) -> Bytes {
    let given = mount.options.split(',').find_map(|option| option.strip_prefix("size=")?.strip_suffix('k'));
    match given.and_then(|kib| kib.parse::<u64>().ok()).and_then(|kib| kib.checked_mul(1024)) {
        Some(bytes) => Bytes(bytes),
        None => Bytes(ram.0 / 2),
    }
}

fn absolute(root: &Root, path: &Path) -> Result<PathBuf, MachineError> {
    if path.is_absolute() || !root.is_system() {
        return Ok(path.to_path_buf());
    }
    std::path::absolute(if path.as_os_str().is_empty() { Path::new(".") } else { path })
        .map_err(|source| MachineError::NoSpaceFigures { path: path.to_path_buf(), source })
}

/// The space of the file system of a path that exists, asked of the running system.
pub fn space_of(path: &Path) -> Result<Space, MachineError> {
    let figures = rustix::fs::statvfs(path)
        .map_err(|errno| MachineError::NoSpaceFigures { path: path.to_path_buf(), source: errno.into() })?;
    let bytes = |blocks: u64| Bytes(blocks.saturating_mul(figures.f_frsize));
    Ok(Space { total: bytes(figures.f_blocks), available: bytes(figures.f_bavail) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_does_not_exist_yet_is_answered_for_by_its_ancestor() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("runs/first/checkpoints");
        let disk = read(&Root::system(), &[], &deep).unwrap();
        assert_eq!(disk.path, fs_err::canonicalize(dir.path()).unwrap());
        assert!(disk.space.total > Bytes::ZERO && disk.space.available <= disk.space.total);
    }

    #[test]
    fn a_link_is_followed_to_its_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let base = fs_err::canonicalize(dir.path()).unwrap();
        fs_err::create_dir(base.join("fast")).unwrap();
        std::os::unix::fs::symlink(base.join("fast"), base.join("link")).unwrap();
        let mount = |point: PathBuf, fs: &str| Mount {
            root: "/".into(),
            point,
            fs: fs.into(),
            source: "x".into(),
            options: "rw".into(),
        };
        let mounts = [mount("/".into(), "ext4"), mount(base.join("fast"), "tmpfs")];
        let disk = read(&Root::system(), &mounts, &base.join("link/run")).unwrap();
        assert_eq!((disk.fs.as_deref(), disk.kind), (Some("tmpfs"), DiskKind::Memory));
    }

    #[test]
    fn a_path_that_no_file_system_answers_for_is_an_error_with_its_name() {
        let error = space_of(Path::new("/nowhere/at/all")).unwrap_err();
        assert!(matches!(&error, MachineError::NoSpaceFigures { path, .. } if path == Path::new("/nowhere/at/all")));
        assert!(error.to_string().starts_with("the file system of `/nowhere/at/all` cannot be asked"), "{error}");
    }

    #[test]
    fn tmpfs_without_a_size_is_half_of_the_ram() {
        let mut mount = Mount {
            root: "/".into(),
            point: SHM.into(),
            fs: "tmpfs".into(),
            source: "shm".into(),
            options: "rw,size=65536k".into(),
        };
        assert_eq!(tmpfs_size(&mount, Bytes::gib(16)), Bytes::mib(64));
        mount.options = "rw,inode64".into();
        assert_eq!(tmpfs_size(&mount, Bytes::gib(16)), Bytes::gib(8));
    }
}
