//! Bringing a run back: the job, the plan, the small files of its model, and the newest checkpoint that is whole.
//!
//! Invariant: a folder is written into only if it is new or a copy of the same run, and a checkpoint appears in it whole
//! or not at all. What has been brought is not brought again.

use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;
use object_store::ObjectStoreExt;
use plimsoll_machine::Bytes;
use plimsoll_recover::checkpoint::{self, MANIFEST, Manifest};
use plimsoll_recover::{atomic_write, room_for};
use tokio::runtime::Builder;
use tokio::sync::watch;

use crate::MirrorError;
use crate::download::{Fetcher, Got};
use crate::folders::Contents;
use crate::layout::{BASE, CHECKPOINTS, COMPLETE, DESCRIPTION, IDENTITY, JOB, JOURNAL, PLAN, step_key};
use crate::patience::Patience;
use crate::remote::{Missing, Remote};
use crate::report::{Mode, Report};
use crate::round::Identity;
use crate::shelf;
use crate::state::{self, FOLDER};

/// The lock of a run folder.
const LOCK: &str = ".lock";

/// What was brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The step of the checkpoint.
    pub step: u64,
    /// The folder with the small files of the model, where they were copied whole.
    pub base: Option<PathBuf>,
}

/// Brings the run at `url` into the folder `out`, which must be new, empty, or a copy of the same run.
pub fn fetch(url: &str, out: &Path, report: &mut dyn FnMut(Report)) -> Result<Fetched, MirrorError> {
    let remote = Remote::open(url, None, Missing::Leave)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let fetched = runtime.block_on(async {
        let (_keep, mode) = watch::channel(Mode::Once);
        let patience = Patience::new(&remote.url, mode, report);
        Fetcher { remote, patience }.run(out).await
    });
    runtime.shutdown_background();
    fetched
}

impl Fetcher<'_> {
    async fn run(&self, out: &Path) -> Result<Fetched, MirrorError> {
        let url = self.remote.url.clone();
        let identity = self.identity().await?;
        let shelf = shelf::list(&self.remote, &self.patience).await?;
        let steps: Vec<u64> = shelf.iter().rev().filter(|(_, one)| one.whole).map(|(step, _)| *step).collect();
        if steps.is_empty() {
            return Err(MirrorError::NoCheckpoint { url });
        }
        let known = is_copy(out, &identity.run)?;
        if !known && !is_new(out)? {
            return Err(MirrorError::NotACopy { path: out.to_path_buf(), url });
        }
        fs::create_dir_all(out.join(FOLDER))?;
        fs::create_dir_all(out.join(CHECKPOINTS))?;
        let mut state = state::read(out)?.at(&url);
        state.run = identity.run;
        state.write(out)?;
        // The job first: a folder with a checkpoint and no job would be nobody's run.
        for (name, needed) in [(JOB, true), (DESCRIPTION, false), (PLAN, false), (JOURNAL, false)] {
            let to = out.join(name);
            if !to.exists() && self.bring(name, &to, None, &mut |_| {}).await? == Got::Absent && needed {
                return Err(MirrorError::NoRun { url, key: name.to_string() });
            }
        }
        let base = self.base(&out.join(BASE)).await?;
        let (step, crc32) = self.newest(&steps, &out.join(CHECKPOINTS)).await?;
        state.uploaded.insert(step, crc32);
        state.write(out)?;
        Ok(Fetched { step, base })
    }

    async fn identity(&self) -> Result<Identity, MirrorError> {
        let (key, store) = (self.remote.key(IDENTITY), &self.remote.store);
        let text = self.patience.persist(async || store.get(&key).await?.bytes().await).await?;
        let identity = text.and_then(|text| serde_json::from_slice(&text).ok());
        identity.ok_or_else(|| MirrorError::NoRun { url: self.remote.url.clone(), key: IDENTITY.to_string() })
    }

    /// The small files of the model; `None` if they were not copied whole.
    async fn base(&self, to: &Path) -> Result<Option<PathBuf>, MirrorError> {
        let (key, store) = (self.remote.key(&format!("{BASE}/{COMPLETE}")), &self.remote.store);
        let text = self.patience.persist(async || store.get(&key).await?.bytes().await).await?;
        let Some(contents) = text.and_then(|text| serde_json::from_slice::<Contents>(&text).ok()) else {
            return Ok(None);
        };
        fs::create_dir_all(to)?;
        for (name, facts) in contents.files.iter().filter(|(name, _)| is_plain(name)) {
            let got = self.bring(&format!("{BASE}/{name}"), &to.join(name), Some(*facts), &mut |_| {}).await?;
            if !matches!(got, Got::Here(_)) {
                return Ok(None);
            }
        }
        Ok(Some(to.to_path_buf()))
    }

    /// Brings the newest checkpoint of `steps` that is whole; its step and the checksum of its manifest.
    async fn newest(&self, steps: &[u64], dir: &Path) -> Result<(u64, u32), MirrorError> {
        for &step in steps {
            let home = dir.join(format!("step-{step}"));
            if checkpoint::verify(&home).is_err() {
                match self.checkpoint(step, dir, &home).await? {
                    Ok(()) => {}
                    Err(reason) => {
                        self.patience.tell(Report::PassedOver { step, reason });
                        continue;
                    }
                }
            }
            return Ok((step, crc32fast::hash(&fs::read(home.join(MANIFEST))?)));
        }
        Err(MirrorError::NoneWhole { url: self.remote.url.clone(), tried: steps.to_vec() })
    }

    /// Brings one checkpoint to `home`; the inner error says why it cannot be used.
    async fn checkpoint(&self, step: u64, dir: &Path, home: &Path) -> Result<Result<(), String>, MirrorError> {
        // A name that nobody takes for a checkpoint, and that the next fetch finds again.
        let halfway = dir.join(format!(".fetch-step-{step}"));
        let (key, store) = (self.remote.key(&format!("{}/{MANIFEST}", step_key(step))), &self.remote.store);
        let Some(text) = self.patience.persist(async || store.get(&key).await?.bytes().await).await? else {
            return Ok(Err("its manifest is not there any more".to_string()));
        };
        if fs::read(halfway.join(MANIFEST)).is_ok_and(|before| before != text) {
            fs::remove_dir_all(&halfway)?;
        }
        fs::create_dir_all(&halfway)?;
        atomic_write(&halfway.join(MANIFEST), &text)?;
        let manifest = match Manifest::read(&halfway) {
            Ok(manifest) if manifest.step == step => manifest,
            Ok(other) => return Ok(Err(format!("its manifest is of step {}", other.step))),
            Err(error) => return Ok(Err(error.to_string())),
        };
        let total = manifest.bytes();
        room_for(dir, total)?;
        let mut done = Bytes::ZERO;
        for (name, facts) in &manifest.files {
            let mut moved = |bytes| {
                done += bytes;
                self.patience.progress(Some(step), done.min(total), total);
            };
            let key = format!("{}/{name}", step_key(step));
            match self.bring(&key, &halfway.join(name), Some(*facts), &mut moved).await? {
                Got::Here(_) => {}
                Got::Absent => return Ok(Err(format!("`{name}` is not there"))),
                Got::Wrong(found) => {
                    return Ok(Err(format!(
                        "`{name}`: expected {} bytes with checksum `{:08x}`, found {} with `{:08x}`",
                        facts.bytes.0, facts.crc32, found.bytes.0, found.crc32
                    )));
                }
            }
        }
        fs::File::open(&halfway)?.sync_all()?;
        if home.exists() {
            // It was looked at above, and is not whole.
            fs::remove_dir_all(home)?;
        }
        fs::rename(&halfway, home)?;
        fs::File::open(dir)?.sync_all()?;
        Ok(Ok(()))
    }
}

/// Whether `out` is a copy, or the original, of this run.
fn is_copy(out: &Path, run: &str) -> Result<bool, MirrorError> {
    Ok(out.is_dir() && state::read(out)?.run == run)
}

/// Whether `out` is not there, or is an empty folder; a lock in it does not count.
fn is_new(out: &Path) -> Result<bool, MirrorError> {
    let entries = match fs::read_dir(out) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        entries => entries?,
    };
    for entry in entries {
        if entry?.file_name() != LOCK {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a name stays in its folder.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0'])
}
