//! The folders that a job needs, found through links: a container sees only what is mounted.

use std::path::{Path, PathBuf};

use plimsoll_deploy::Mount;

use crate::render::Fail;

use super::text;

/// A folder that is read, or the folder of a file; and where links in it lead.
pub fn read(path: &Path, mounts: &mut Vec<Mount>) -> Result<(), Fail> {
    let mut found = vec![folder_of(path)];
    found.extend(real(path).filter(|real| real != path).map(|real| folder_of(&real)));
    // Model folders of a hub's cache are made of links to elsewhere.
    for entry in fs_err::read_dir(path).into_iter().flatten().flatten() {
        if entry.path().is_symlink() {
            found.extend(real(&entry.path()).map(|real| folder_of(&real)));
        }
    }
    for folder in found {
        mounts.push(Mount { path: text(&folder)?, written: false });
    }
    Ok(())
}

/// A folder that is written to.
pub fn written(path: &Path, mounts: &mut Vec<Mount>) -> Result<(), Fail> {
    mounts.push(Mount { path: text(path)?, written: true });
    if let Some(real) = real(path).filter(|real| real != path) {
        mounts.push(Mount { path: text(&real)?, written: true });
    }
    Ok(())
}

/// What the words of somebody else's command name: folders are perhaps written to, files that are there are read.
pub fn named(words: &[String], mounts: &mut Vec<Mount>) -> Result<(), Fail> {
    // The program itself and what it brings are the image's.
    for word in words.iter().skip(1) {
        let path = word.split_once('=').map_or(word.as_str(), |(_, value)| value);
        if !path.starts_with('/') || path.trim_end_matches('/').is_empty() || of_the_system(path) {
            continue;
        }
        let path = Path::new(path);
        match (path.is_dir(), path.is_file()) {
            (true, _) => written(path, mounts)?,
            (_, true) => read(path, mounts)?,
            _ => {
                let above = path.parent().filter(|above| *above != Path::new("/")).unwrap_or(path);
                mounts.push(Mount { path: text(above)?, written: true });
            }
        }
    }
    Ok(())
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
        false => path.parent().unwrap_or(Path::new("/")).to_path_buf(),
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
        let mut mounts = Vec::new();
        read(&root.join("model"), &mut mounts).unwrap();
        read(&root.join("data/a.jsonl"), &mut mounts).unwrap();
        let names: Vec<String> = mounts.iter().map(|mount| mount.path.replace(root.to_str().unwrap(), "")).collect();
        assert_eq!(names, ["/model", "/blobs", "/data"]);
    }

    #[test]
    fn a_command_names_its_folders_and_the_program_stays_in_the_image() {
        let words = ["/opt/venv/bin/python3", "--csv", "/data/m.csv", "--out=/runs", "--x", "/usr/share/x", "rel", "/"];
        let mut mounts = Vec::new();
        named(&words.map(String::from), &mut mounts).unwrap();
        let paths: Vec<&str> = mounts.iter().map(|mount| mount.path.as_str()).collect();
        assert_eq!(paths, ["/data", "/runs"]);
    }
}
