//! `plimsoll run`: plan, start, guard and resume a foreign trainer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_launch::ladder::Allow;
use plimsoll_launch::{Knob, LaunchError, Settings, Value};
use plimsoll_recover::{Events, RunLock};
use plimsoll_watch::{Event, Journal};

use crate::args::RunArgs;
use crate::job::run_folder;
use crate::launch::{Charge, Ready, guard, now_unix_ms};
use crate::render::{self, Exit, Fail, OrFail};

/// How long a resume waits for a trainer that still ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts a new run.
pub fn run(args: &RunArgs) -> Result<(), Fail> {
    let charge = charge(args)?;
    let command = charge.command()?;
    let over = charge.set.clone();
    // Everything that can be refused is, before anything is made.
    let trial = Ready::new(Path::new("."), &charge, &over, None)?;
    let events = Events::install()?;
    let fresh = run_folder::make(args.out.as_deref(), &command.trainer.name)?;
    let folder = fresh.folder();
    let lock = RunLock::take(folder, PATIENCE).or_usage()?;
    run_folder::is_unused(folder)?;
    charge.write(folder)?;
    let mut journal = Journal::create(&folder.join("journal.jsonl"))?;
    journal.record(&Event::RunStarted {
        version: env!("CARGO_PKG_VERSION").to_string(),
        plan: command.trainer.name.clone(),
        total_steps: 0,
        effective_batch: trial.effective_batch().unwrap_or(0),
        threads: 0,
        simd: String::new(),
        planned_ram_bytes: plimsoll_machine::Bytes::ZERO,
        planned_vram_bytes: plimsoll_machine::Bytes::ZERO,
        facts: serde_json::json!({ "command": charge.words }),
    })?;
    drop((journal, trial, command));
    render::talk(format!("plimsoll: run folder {}", folder.display()));
    guard(folder, charge, over, false, &lock, events)
}

/// Goes on with a run of a foreign trainer.
pub fn resume(folder: &Path) -> Result<(), Fail> {
    let charge = Charge::of_run(folder)?;
    if folder.join("summary.json").exists() {
        render::talk(format!("`{}` is finished; nothing is left to do", folder.display()));
        return Ok(());
    }
    let lock = RunLock::take(folder, PATIENCE).or_usage()?;
    let over = charge.set.clone();
    guard(folder, charge, over, true, &lock, Events::install()?)
}

fn charge(args: &RunArgs) -> Result<Charge, Fail> {
    let (trainer, trainer_files) = match &args.trainer {
        Some(name) if name.ends_with(".toml") => named_by_file(Path::new(name))?,
        other => (other.clone(), Vec::new()),
    };
    let folder = std::env::current_dir().or_failed()?;
    Ok(Charge {
        words: args.command.clone(),
        folder,
        trainer,
        trainer_files,
        flags: pairs(&args.knob)?.into_iter().collect::<BTreeMap<_, _>>(),
        resume_flag: args.resume_flag.clone(),
        checkpoints: args.checkpoints.clone(),
        set: settings(&args.set)?,
        allow: allow(&args.allow)?,
        ram: args.ram,
        as_is: args.as_is,
        stall_after: args.stall_after,
        stop_within: args.stop_within,
        quiet: args.quiet,
        began_unix_ms: now_unix_ms(),
    })
}

fn named_by_file(path: &Path) -> Result<(Option<String>, Vec<PathBuf>), Fail> {
    let mut shelf = plimsoll_launch::Shelf::built_in().or_failed()?;
    let name = shelf.add(path).or_usage()?;
    Ok((Some(name), vec![fs_err::canonicalize(path).or_usage()?]))
}

/// `KNOB=TEXT` pairs; a knob twice is refused.
fn pairs(said: &[String]) -> Result<Vec<(Knob, String)>, Fail> {
    let mut found: Vec<(Knob, String)> = Vec::new();
    for text in said {
        let Some((name, value)) = text.split_once('=') else {
            return Err(Fail::usage(format!("`{text}`: expected KNOB=VALUE")));
        };
        let knob = knob(name)?;
        if found.iter().any(|(known, _)| *known == knob) {
            return Err(Fail::usage(format!("`{name}` is given twice")));
        }
        found.push((knob, value.to_string()));
    }
    Ok(found)
}

fn knob(name: &str) -> Result<Knob, Fail> {
    let found = Knob::ALL.into_iter().find(|knob| knob.name() == name);
    found.ok_or_else(|| {
        let there = Knob::ALL.iter().map(|knob| format!("`{knob}`")).collect::<Vec<_>>().join(", ");
        Fail::new(Exit::BadInput, LaunchError::NoKnob { name: name.to_string(), there })
    })
}

/// Settings of `--set`.
pub fn settings(said: &[String]) -> Result<Settings, Fail> {
    let value = |text: String| match (text.parse::<u64>(), text.as_str()) {
        (Ok(count), _) => Value::Count(count),
        (_, "true" | "on") => Value::On(true),
        (_, "false" | "off") => Value::On(false),
        _ => Value::Word(text),
    };
    Ok(pairs(said)?.into_iter().map(|(knob, text)| (knob, value(text))).collect())
}

/// What `--allow` allows.
pub fn allow(said: &[String]) -> Result<Allow, Fail> {
    let mut allow = Allow::default();
    for word in said {
        let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        match (name, value) {
            ("batch", None) => allow.batch = true,
            ("length", None) => allow.length = Some(0),
            ("length", Some(value)) => {
                let wrong = |_| Fail::usage(format!("`--allow {word}`: expected a number behind `length=`"));
                allow.length = Some(value.parse().map_err(wrong)?);
            }
            ("precision", value) => allow.precision.push(value.unwrap_or("bf16-mixed").to_string()),
            ("optimizer", value) => allow.optimizer.push(value.unwrap_or("adamw8bit").to_string()),
            _ => {
                let fact = format!("`--allow {word}`: there is no such rung");
                return Err(Fail::usage(fact).hint("there are `batch`, `length`, `precision` and `optimizer`"));
            }
        }
    }
    Ok(allow)
}
