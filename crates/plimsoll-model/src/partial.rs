//! A folder that appears whole or not at all.
//!
//! Invariant: everything is written into a sibling (`.NAME.partial`), synced, and renamed; the kernel itself refuses the
//! rename if the name has been taken meanwhile. A sibling left by a killed writer is cleared by the next one; one folder
//! has one writer.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde_json::Value;

use crate::ModelError;
use crate::normalisation::WriteText;

/// What to do with a folder that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Leave it, and say so.
    Refuse,
    /// Put the new one in its place, in one step, then remove it.
    Replace,
}

/// Copied from the source folder where it has them.
const SIDE_FILES: [&str; 9] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "spiece.model",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
];

/// A folder in the making; removed with its contents unless finished.
pub(crate) struct Partial {
    path: PathBuf,
}

impl Partial {
    pub(crate) fn begin(dir: &Path, existing: Existing) -> Result<Partial, ModelError> {
        let Some(name) = dir.file_name() else {
            return Err(ModelError::NotAFolder { dir: dir.into() });
        };
        if let Ok(facts) = fs_err::symlink_metadata(dir) {
            match existing {
                Existing::Refuse => return Err(ModelError::Exists { dir: dir.into() }),
                Existing::Replace if !facts.is_dir() => return Err(ModelError::NotAFolder { dir: dir.into() }),
                Existing::Replace => {}
            }
        }
        let parent = parent_of(dir);
        fs_err::create_dir_all(parent)?;
        let path = parent.join(format!(".{}.partial", name.to_string_lossy()));
        if path.is_dir() {
            fs_err::remove_dir_all(&path)?;
        }
        fs_err::create_dir(&path)?;
        Ok(Partial { path })
    }

    pub(crate) fn write_json(&self, name: &str, value: &Value) -> Result<(), ModelError> {
        self.write_text(name, &format!("{value:#}\n"))
    }

    pub(crate) fn write_text(&self, name: &str, text: &str) -> Result<(), ModelError> {
        let mut file = fs_err::File::create(self.path.join(name))?;
        file.write_all(text.as_bytes())?;
        Ok(file.sync_all()?)
    }

    /// What `write` writes, piece by piece; the file, to be read.
    pub(crate) fn write_pieces(&self, name: &str, write: WriteText<'_>) -> Result<fs_err::File, ModelError> {
        let mut out = BufWriter::new(self.create(name)?);
        write(&mut out)?;
        out.flush()?;
        out.get_ref().sync_all()?;
        Ok(fs_err::File::open(self.path.join(name))?)
    }

    pub(crate) fn create(&self, name: &str) -> Result<fs_err::File, ModelError> {
        Ok(fs_err::File::create(self.path.join(name))?)
    }

    /// Copies the tokenizer's files, and those around them, that `source` has.
    pub(crate) fn copy_side_files(&self, source: &Path) -> Result<(), ModelError> {
        for name in SIDE_FILES {
            let from = source.join(name);
            if from.is_file() {
                self.copy(&from, name)?;
            }
        }
        Ok(())
    }

    /// The contents of a file, not its permissions: a source kept read-only must not make a model that cannot be moved.
    pub(crate) fn copy(&self, from: &Path, name: &str) -> Result<(), ModelError> {
        let mut to = fs_err::File::create(self.path.join(name))?;
        std::io::copy(&mut fs_err::File::open(from)?, &mut to)?;
        Ok(to.sync_all()?)
    }

    pub(crate) fn finish(self, dir: &Path, existing: Existing) -> Result<(), ModelError> {
        fs_err::File::open(&self.path)?.sync_all()?;
        match existing {
            Existing::Refuse => self.take_name(dir)?,
            Existing::Replace => match renameat_with(CWD, &self.path, CWD, dir, RenameFlags::EXCHANGE) {
                Ok(()) => {}
                Err(Errno::NOENT) => self.take_name(dir)?,
                Err(errno) if unsupported(errno) => self.step_aside(dir)?,
                Err(errno) => return Err(std::io::Error::from(errno).into()),
            },
        }
        fs_err::File::open(parent_of(dir))?.sync_all()?;
        Ok(())
        // Dropped here: what an exchange left under the partial name, the old folder, goes.
    }

    /// Replacing where the file system cannot exchange: there is always the old folder or the new one, whole, under
    /// its name or beside it.
    fn step_aside(&self, dir: &Path) -> Result<(), ModelError> {
        let old = self.path.with_extension("replaced");
        fs_err::rename(dir, &old)?;
        fs_err::rename(&self.path, dir)?;
        Ok(fs_err::remove_dir_all(&old)?)
    }

    fn take_name(&self, dir: &Path) -> Result<(), ModelError> {
        match renameat_with(CWD, &self.path, CWD, dir, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(ModelError::Exists { dir: dir.into() }),
            // Network and WSL drives: ask, then rename.
            Err(errno) if unsupported(errno) => match dir.try_exists()? {
                true => Err(ModelError::Exists { dir: dir.into() }),
                false => Ok(fs_err::rename(&self.path, dir)?),
            },
            Err(errno) => Err(std::io::Error::from(errno).into()),
        }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Not there after a plain rename; anything else that stays is cleared by the next writer.
        let _ = fs_err::remove_dir_all(&self.path);
    }
}

fn unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

fn parent_of(dir: &Path) -> &Path {
    dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
