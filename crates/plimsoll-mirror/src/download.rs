//! Bringing one object here, whole: under another name, gone on with after an interruption, its checksum taken on the
//! way, renamed at the end.

use std::io::Write;
use std::path::{Path, PathBuf};

use fs_err as fs;
use object_store::{GetOptions, GetRange, ObjectStore};
use plimsoll_machine::Bytes;
use plimsoll_recover::checkpoint::FileFacts;

use crate::MirrorError;
use crate::patience::Patience;
use crate::remote::Remote;
use crate::send::next_chunk;
use crate::source::{crc32_from, crc32_of};
use crate::trouble::{Nature, trouble};

/// What became of a download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    /// It is here.
    Here(FileFacts),
    /// It is not there.
    Absent,
    /// What is there is not what it should be.
    Wrong(FileFacts),
}

/// Who fetches, and from where.
pub(crate) struct Fetcher<'a> {
    pub remote: Remote,
    pub patience: Patience<'a>,
}

impl Fetcher<'_> {
    /// Brings the object `name` to the file `to`. What is expected of it decides whether it is right, and whether a
    /// half of it that is here is gone on with.
    pub(crate) async fn bring(
        &self,
        name: &str,
        to: &Path,
        expected: Option<FileFacts>,
        moved: &mut dyn FnMut(Bytes),
    ) -> Result<Got, MirrorError> {
        if let Some(facts) = expected.filter(|facts| is_right(to, facts)) {
            moved(facts.bytes);
            return Ok(Got::Here(facts));
        }
        let half = half_of(to);
        let resumed = expected.is_some() && half.exists();
        let got = self.bring_half(name, &half, expected, moved).await?;
        let got = match got {
            // The half that was here may have been of another content.
            Got::Wrong(_) if resumed => self.bring_half(name, &half, expected, moved).await?,
            got => got,
        };
        if let Got::Here(_) = got {
            fs::rename(&half, to)?;
        }
        Ok(got)
    }

    async fn bring_half(
        &self,
        name: &str,
        half: &Path,
        expected: Option<FileFacts>,
        moved: &mut dyn FnMut(Bytes),
    ) -> Result<Got, MirrorError> {
        let most = expected.map_or(u64::MAX, |facts| facts.bytes.0);
        let mut have = match expected.is_some() && half.exists() {
            true => crc32_of(half)?,
            false => (Bytes::ZERO, 0),
        };
        if have.0.0 > most {
            have = (Bytes::ZERO, 0);
        }
        let mut file = fs::OpenOptions::new().create(true).append(true).open(half)?;
        file.set_len(have.0.0)?;
        moved(have.0);
        while have.0.0 < most || most == 0 {
            match self.go_on(name, &mut file, &mut have, moved).await? {
                Ok(()) => break,
                Err(failed) if matches!(failed.nature, Nature::Absent | Nature::Gone) => {
                    fs::remove_file(half)?;
                    return Ok(Got::Absent);
                }
                Err(failed) => {
                    self.patience.weather(failed).await?;
                    if expected.is_none() {
                        // Another content may be there by now: from the start.
                        have = (Bytes::ZERO, 0);
                        file.set_len(0)?;
                    }
                }
            }
        }
        file.sync_all()?;
        let facts = FileFacts { bytes: have.0, crc32: have.1 };
        if expected.is_some_and(|expected| expected != facts) {
            fs::remove_file(half)?;
            return Ok(Got::Wrong(facts));
        }
        Ok(Got::Here(facts))
    }

    /// Appends what comes from where `have` ends; the outer error is about the file here.
    async fn go_on(
        &self,
        name: &str,
        file: &mut fs::File,
        have: &mut (Bytes, u32),
        moved: &mut dyn FnMut(Bytes),
    ) -> Result<Result<(), crate::trouble::Trouble>, MirrorError> {
        let key = self.remote.key(name);
        let mut options = GetOptions::default();
        if have.0 > Bytes::ZERO {
            options.range = Some(GetRange::Offset(have.0.0));
        }
        let mut stream = match self.remote.store.get_opts(&key, options).await {
            Ok(got) => got.into_stream(),
            Err(error) => return Ok(Err(trouble(&error))),
        };
        loop {
            match next_chunk(&mut stream).await {
                Ok(Some(chunk)) => {
                    file.write_all(&chunk)?;
                    have.1 = crc32_from(have.1, have.0.0, &chunk);
                    have.0 += Bytes(chunk.len() as u64);
                    self.patience.well();
                    moved(Bytes(chunk.len() as u64));
                }
                Ok(None) => return Ok(Ok(())),
                Err(error) => return Ok(Err(trouble(&error))),
            }
        }
    }
}

/// Whether a file is there and has this content.
fn is_right(path: &Path, facts: &FileFacts) -> bool {
    let length = fs::metadata(path).map(|found| found.len());
    length.is_ok_and(|length| length == facts.bytes.0) && crc32_of(path).is_ok_and(|(_, crc32)| crc32 == facts.crc32)
}

/// The name under which a file comes.
fn half_of(to: &Path) -> PathBuf {
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    to.with_file_name(format!(".{name}.half"))
}
