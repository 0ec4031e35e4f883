//! One start, made ready: the command with its settings, the copies that it needs written, the checkpoint that it goes
//! on from.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_launch::checkpoints::{self, Found};
use plimsoll_launch::command::Edited;
use plimsoll_launch::{Command, Knob, Settings, Value};
use plimsoll_recover::atomic_write;

use super::charge::Charge;
use crate::render::{Fail, OrFail};

/// A start.
#[derive(Debug)]
pub struct Ready {
    /// The command as the user gave it.
    pub command: Command,
    /// All settings that hold, defaults included.
    pub settings: Settings,
    /// What is run.
    pub edited: Edited,
    /// What differs from the user's command.
    pub changes: Vec<String>,
    /// The checkpoint that it goes on from.
    pub from: Option<Found>,
    /// A remark on how it goes on, where there is one.
    pub remark: Option<String>,
}

impl Ready {
    /// The command with `over` in the place of its own settings, going on from its newest whole checkpoint if `going_on`.
    pub fn new(run: &Path, charge: &Charge, over: &Settings, going_on: Option<&[PathBuf]>) -> Result<Ready, Fail> {
        let command = charge.command()?;
        let reading = command.read(&charge.folder, |name| std::env::var(name).ok()).or_usage()?;
        let mut settings = reading.settings.clone();
        let changed: Settings = over.iter().filter(|(knob, to)| settings.get(knob) != Some(to)).map(pair).collect();
        // The command may run elsewhere than we do.
        let copies = fs_err::canonicalize(run).unwrap_or_else(|_| run.to_path_buf()).join("config");
        let mut edited = command.with(&changed, &charge.folder, &copies).or_usage()?;
        let changes = changed.iter().map(|(knob, to)| told(*knob, settings.get(knob), to)).collect();
        settings.extend(changed);
        let (mut from, mut remark) = (None, None);
        if let Some(passed_over) = going_on {
            let found = own_checkpoints(&command, charge);
            let usable: Vec<Found> = found.into_iter().filter(|one| !passed_over.contains(&one.path)).collect();
            match checkpoints::latest_whole(&usable) {
                Some(newest) => match command.going_on(&edited, &absolute(&charge.folder, &newest.path), newest.form) {
                    Some(words) => (edited, from) = (words, Some(newest.clone())),
                    None => {
                        remark = Some(format!(
                            "`{}` is there, but how `{}` takes it up is not known; it begins anew (name the flag with \
                             `--resume-flag`)",
                            newest.path.display(),
                            command.trainer.name
                        ));
                    }
                },
                None => remark = Some("no whole checkpoint is there; it begins anew".to_string()),
            }
        }
        Ok(Ready { command, settings, edited, changes, from, remark })
    }

    /// Writes the copies that the command names.
    pub fn write_copies(&self, charge: &Charge) -> Result<Vec<String>, Fail> {
        let mut done = Vec::new();
        for copy in &self.edited.copies {
            make_folder(&copy.to)?;
            atomic_write(&copy.to, &serde_json::to_vec_pretty(&copy.content).or_failed()?)?;
            done.push(format!("`{}` stands in for `{}`", copy.to.display(), copy.of.display()));
        }
        if let Some(order) = &self.edited.cut {
            make_folder(&order.to)?;
            let (text, cut) = plimsoll_launch::cut::cut(order, &charge.folder).or_usage()?;
            atomic_write(&order.to, text.as_bytes())?;
            done.push(format!(
                "`{}` stands in for `{}`: {} rows stay, {} last more than {} s, {} could not be measured",
                order.to.display(),
                order.of.display(),
                cut.kept,
                cut.dropped,
                order.seconds,
                cut.unmeasured
            ));
        }
        Ok(done)
    }

    /// Samples per weight update, where the settings tell.
    pub fn effective_batch(&self) -> Option<u64> {
        let or_one = |knob| if self.settings.contains_key(&knob) { self.count(knob) } else { Some(1) };
        Some(self.count(Knob::Batch)? * or_one(Knob::Accumulation)? * or_one(Knob::Processes)?)
    }

    /// The number that a knob is set to.
    pub fn count(&self, knob: Knob) -> Option<u64> {
        self.settings.get(&knob)?.count()
    }

    /// Knobs that this command can set.
    pub fn knobs(&self, charge: &Charge) -> Vec<Knob> {
        Knob::ALL.into_iter().filter(|knob| self.command.can_set(*knob, &charge.folder)).collect()
    }
}

/// Checkpoints that this run wrote, the oldest first.
pub fn own_checkpoints(command: &Command, charge: &Charge) -> Vec<Found> {
    let began = UNIX_EPOCH + Duration::from_millis(charge.began_unix_ms);
    let own = |found: &Found| found.written >= began;
    checkpoints::find(command, &charge.folder).into_iter().filter(own).collect()
}

/// Milliseconds since 1970, rounded down to what file systems keep.
pub fn now_unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_millis() as u64).saturating_sub(20)
}

fn pair((knob, value): (&Knob, &Value)) -> (Knob, Value) {
    (*knob, value.clone())
}

fn told(knob: Knob, from: Option<&Value>, to: &Value) -> String {
    match from {
        Some(from) => format!("{knob} {to} instead of {from}"),
        None => format!("{knob} {to}"),
    }
}

fn absolute(folder: &Path, path: &Path) -> PathBuf {
    let joined = folder.join(path);
    fs_err::canonicalize(&joined).unwrap_or(joined)
}

fn make_folder(file: &Path) -> Result<(), Fail> {
    let folder = file.parent().unwrap_or(Path::new("."));
    fs_err::create_dir_all(folder).or_failed()
}
