//! The folders that a job needs, found through links: a container sees only what is mounted.

use std::path::{Path, PathBuf};

use plimsoll_deploy::Mount;

use crate::render::Fail;

use super::text;

/// The root, which is nobody's folder: mounted into a container it would hide the image.
const ROOT: &str = "/";

/// What was found.
#[derive(Debug, Default)]
pub struct Folders {
    /// Folders that can be mounted.
    pub mounts: Vec<Mount>,
    /// What lies in the root itself, or is it.
    pub bare: Vec<PathBuf>,
}

impl Folders {
    /// A folder that is read, or the folder of a file; and where links in it lead.
    pub fn read(&mut self, path: &Path) -> Result<(), Fail> {
        self.add(path, &folder_of(path), false)?;
        if let Some(real) = real(path).filter(|real| real != path) {
            self.add(path, &folder_of(&real), false)?;
        }
        // Model folders of a hub's cache are made of links to elsewhere.
        for entry in fs_err::read_dir(path).into_iter().flatten().flatten() {
            if let Some(real) = real(&entry.path()).filter(|_| entry.path().is_symlink()) {
                self.add(&entry.path(), &folder_of(&real), false)?;
            }
        }
        Ok(())
    }

    /// A folder that is written to.
    pub fn written(&mut self, path: &Path) -> Result<(), Fail> {
        self.add(path, path, true)?;
        match real(path).filter(|real| real != path) {
            Some(real) => self.add(path, &real, true),
            None => Ok(()),
        }
    }

    /// The folder that a new one is made in.
    pub fn above(&mut self, path: &Path) -> Result<(), Fail> {
        self.add(path, path.parent().unwrap_or(Path::new(ROOT)), true)
    }

    /// What the words of somebody else's command name: folders are perhaps written to, files that are there are read.
    pub fn named(&mut self, words: &[String]) -> Result<(), Fail> {
        // The program itself and what it brings are the image's.
        for word in words.iter().skip(1) {
            let path = word.split_once('=').map_or(word.as_str(), |(_, value)| value);
            if !path.starts_with('/') || path.trim_end_matches('/').is_empty() || of_the_system(path) {
                continue;
            }
            let path = Path::new(path);
            match (path.is_dir(), path.is_file()) {
                (true, _) => self.written(path)?,
                (_, true) => self.read(path)?,
                _ => {
                    let above = path.parent().filter(|above| *above != Path::new(ROOT)).unwrap_or(path);
                    self.add(path, above, true)?;
                }
            }
        }
        Ok(())
    }

    /// A folder, and what it is needed for.
    fn add(&mut self, needed: &Path, folder: &Path, written: bool) -> Result<(), Fail> {
        match folder == Path::new(ROOT) {
            true => self.bare.push(needed.to_path_buf()),
            false => self.mounts.push(Mount { path: text(folder)?, written }),
        }
        Ok(())
    }
}

fn of_the_system(path: &str) -> bool {
    let first = path.split('/').nth(1).unwrap_or_default();
    ["bin", "dev", "etc", "lib", "lib64", "proc", "sbin", "sys", "tmp", "usr"].contains(&first)
}

fn real(path: &Path) -> Option<PathBuf> {
    fs_err::canonicalize(path).ok()
}

fn folder_of(path: &Path) -> PathBuf {
    match path.is_dir() {
        true => path.to_path_buf(),
        false => path.parent().unwrap_or(Path::new(ROOT)).to_path_buf(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_and_files_stand_for_their_folder() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs_err::canonicalize(dir.path()).unwrap();
        for folder in ["model", "blobs", "data"] {
            fs_err::create_dir(root.join(folder)).unwrap();
        }
        fs_err::write(root.join("blobs/1"), "x").unwrap();
        std::os::unix::fs::symlink(root.join("blobs/1"), root.join("model/config.json")).unwrap();
        fs_err::write(root.join("data/a.jsonl"), "x").unwrap();
        let mut folders = Folders::default();
        folders.read(&root.join("model")).unwrap();
        folders.read(&root.join("data/a.jsonl")).unwrap();
        let names: Vec<String> =
            folders.mounts.iter().map(|mount| mount.path.replace(root.to_str().unwrap(), "")).collect();
        assert_eq!(names, ["/model", "/blobs", "/data"]);
    }

    #[test]
    fn a_command_names_its_folders_and_the_program_stays_in_the_image() {
        let words = ["/opt/venv/bin/python3", "--csv", "/data/m.csv", "--out=/runs", "--x", "/usr/share/x", "rel", "/"];
        let mut folders = Folders::default();
        folders.named(&words.map(String::from)).unwrap();
        let paths: Vec<&str> = folders.mounts.iter().map(|mount| mount.path.as_str()).collect();
        assert_eq!(paths, ["/data", "/runs"]);
    }

    #[test]
    fn the_root_is_never_mounted_and_what_lies_in_it_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::os::unix::fs::symlink("/", &root).unwrap();
        let mut folders = Folders::default();
        folders.read(Path::new("/job.toml")).unwrap();
        folders.written(Path::new("/")).unwrap();
        folders.above(Path::new("/run1")).unwrap();
        folders.above(Path::new("/srv/run1")).unwrap();
        folders.written(&root).unwrap();
        assert_eq!(folders.bare, ["/job.toml", "/", "/run1", root.to_str().unwrap()].map(PathBuf::from));
        let paths: Vec<&str> = folders.mounts.iter().map(|mount| mount.path.as_str()).collect();
        assert_eq!(paths, ["/srv", root.to_str().unwrap()]);
    }
}
