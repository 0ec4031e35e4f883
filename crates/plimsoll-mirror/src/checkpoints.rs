//! Copying checkpoints: the newest first, the manifest last; and removing old ones, the manifest first.
//!
//! Invariant: at every instant a checkpoint with a manifest at the other end is whole. A checkpoint that the run removes
//! while it is being copied is no loss if there is a newer one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use fs_err as fs;
use object_store::ObjectStoreExt;
use plimsoll_machine::Bytes;
use plimsoll_recover::checkpoint::{self, MANIFEST, Manifest};

use crate::layout::{self, step_key};
use crate::report::Report;
use crate::send::{Meter, Mirror};
use crate::shelf::{self, Local};
use crate::state::Stamp;
use crate::{MirrorError, PART};

/// A complete checkpoint of the run.
struct Here {
    local: Local,
    path: PathBuf,
    best: Option<u64>,
}

impl Mirror<'_> {
    /// Copies all complete checkpoints that are worth it.
    pub(crate) async fn checkpoints(&mut self) -> Result<(), MirrorError> {
        let dir = self.wish.run.join(layout::CHECKPOINTS);
        loop {
            let stamp = settled(&dir);
            if stamp.is_some() && stamp == self.seen {
                return Ok(());
            }
            let here = complete_in(&dir)?;
            let local: Vec<Local> = here.iter().map(|one| one.local).collect();
            let best = here.last().and_then(|one| one.best);
            let next = shelf::next(&local, &self.state, &self.refused, self.wish.keep, best);
            let before = self.state.skipped.len();
            self.state.skipped.extend(&next.skip);
            if self.state.skipped.len() > before {
                self.save();
            }
            let Some(one) = here.iter().find(|one| Some(one.local.0) == next.copy) else {
                self.seen = stamp;
                return Ok(());
            };
            let steps: BTreeSet<u64> = local.iter().map(|(step, _)| *step).collect();
            match self.checkpoint(one).await {
                Ok(()) => self.prune(&steps, best).await?,
                Err(error) if error.is_local() => self.give_up(one, &dir, error).await?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Copies one checkpoint.
    async fn checkpoint(&mut self, one: &Here) -> Result<(), MirrorError> {
        let began = Instant::now();
        let (step, crc32) = one.local;
        let manifest = Manifest::read(&one.path)?;
        let text = fs::read(one.path.join(MANIFEST))?;
        let home = step_key(step);
        let last = format!("{home}/{MANIFEST}");
        self.meter = Meter { step: Some(step), done: Bytes::ZERO, total: manifest.bytes() };
        if !self.is_whole_there(&home, &manifest, &text).await? {
            self.state.uploaded.remove(&step);
            self.state.uploading = Some(step);
            self.save();
            // What is there of this step, from before a resume, must not count while its files change.
            self.remove(&last).await?;
            for (name, facts) in &manifest.files {
                self.send(&format!("{home}/{name}"), &one.path.join(name), Some(*facts)).await?;
            }
            self.put(&last, text.clone().into(), crc32fast::hash(&text)).await?;
        }
        self.state.uploaded.insert(step, crc32);
        self.state.uploading = None;
        self.state.forget(&home);
        self.save();
        self.problems.remove(&home);
        let url = format!("{}/{home}", self.remote.url);
        let seconds = began.elapsed().as_secs_f64();
        self.patience.tell(Report::Mirrored { step: Some(step), url, bytes: manifest.bytes(), seconds });
        self.meter = Meter::default();
        // A journal of one part goes along: it is what a lost machine leaves.
        let journal = self.wish.run.join(layout::JOURNAL);
        if fs::metadata(&journal).is_ok_and(|facts| facts.len() <= PART.0) {
            self.file(layout::JOURNAL).await?;
        }
        Ok(())
    }

    /// Whether this very checkpoint is there, by its manifest and the lengths of its files: the state was lost, or the
    /// run was fetched.
    async fn is_whole_there(&self, home: &str, manifest: &Manifest, text: &[u8]) -> Result<bool, MirrorError> {
        let (key, store) = (self.remote.key(&format!("{home}/{MANIFEST}")), &self.remote.store);
        let there = self.patience.persist(async || store.get(&key).await?.bytes().await).await?;
        if there.as_deref() != Some(text) {
            return Ok(false);
        }
        for (name, facts) in &manifest.files {
            let key = self.remote.key(&format!("{home}/{name}"));
            let meta = self.patience.persist(async || store.head(&key).await).await?;
            if meta.is_none_or(|meta| meta.size != facts.bytes.0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A checkpoint that cannot be copied: because it is gone, which is fine if there is a newer one, or damaged.
    async fn give_up(&mut self, one: &Here, dir: &Path, error: MirrorError) -> Result<(), MirrorError> {
        let (step, _) = one.local;
        let gone = error.is_vanished() && !one.path.join(MANIFEST).exists();
        let replaced = gone && complete_in(dir)?.iter().any(|other| other.local.0 >= step);
        if !replaced {
            let message = format!("the checkpoint of step {step} is not copied: {error}");
            self.patience.trouble(message.clone());
            self.problems.insert(step_key(step), message);
        }
        if !gone {
            self.refused.push(one.local);
        }
        self.state.uploading = None;
        let home = step_key(step);
        let uploads = self.state.forget(&home);
        self.save();
        if let Some(store) = self.remote.parts.clone() {
            for (name, id) in uploads {
                let _ = store.abort_multipart(&self.remote.key(&name), &id).await;
            }
        }
        let shelf = shelf::list(&self.remote, &self.patience).await?;
        self.take_down(shelf.get(&step)).await
    }

    /// Removes what is no longer kept at the other end.
    async fn prune(&mut self, here: &BTreeSet<u64>, best: Option<u64>) -> Result<(), MirrorError> {
        let shelf = shelf::list(&self.remote, &self.patience).await?;
        for step in shelf::leaving(&shelf, here, self.wish.keep, best) {
            self.take_down(shelf.get(&step)).await?;
            self.patience.tell(Report::Removed { step });
        }
        Ok(())
    }

    /// Removes a checkpoint's objects, the manifest first.
    async fn take_down(&self, shelved: Option<&shelf::Shelved>) -> Result<(), MirrorError> {
        let mut names: Vec<&String> = shelved.map(|one| one.names.iter().collect()).unwrap_or_default();
        names.sort_by_key(|name| !name.ends_with(&format!("/{MANIFEST}")));
        for name in names {
            self.remove(name).await?;
        }
        Ok(())
    }
}

/// The complete checkpoints in `dir`, by ascending step. One that leaves meanwhile is not among them.
fn complete_in(dir: &Path) -> Result<Vec<Here>, MirrorError> {
    let mut here = Vec::new();
    for found in checkpoint::list(dir)? {
        if found.state != checkpoint::State::Complete {
            continue;
        }
        let (Ok(text), Ok(manifest)) = (fs::read(found.path.join(MANIFEST)), Manifest::read(&found.path)) else {
            continue;
        };
        let best = manifest.facts.get("best_step").and_then(serde_json::Value::as_u64);
        here.push(Here { local: (found.step, crc32fast::hash(&text)), path: found.path, best });
    }
    Ok(here)
}

/// The stamp of a folder that has not changed for two seconds: any change from now on gives it another one.
fn settled(dir: &Path) -> Option<Stamp> {
    let stamp = Stamp::of(&fs::metadata(dir).ok()?);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_nanos() as i64;
    (now.saturating_sub(stamp.modified_ns) > 2_000_000_000).then_some(stamp)
}
