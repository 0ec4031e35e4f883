//! `plimsoll run`: plan, start, guard and resume a foreign trainer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plimsoll_launch::ladder::Allow;
use plimsoll_launch::{Knob, LaunchError, Settings, Value};
use plimsoll_machine::Bytes;
use plimsoll_recover::{Events, RunLock};
use plimsoll_watch::{Event, Journal};

use crate::args::RunArgs;
use crate::job::run_folder;
use crate::launch::{CHARGE, Charge, Ready, fit, guard, now_unix_ms};
use crate::render::{self, Exit, Fail, OrFail};
use crate::verbs::turn::{Start, take};

/// What is read of a journal's end.
const TAIL: Bytes = Bytes::mib(4);

/// Starts a new run.
pub fn run(args: &RunArgs) -> Result<(), Fail> {
    if let Some(run) = args.out.as_deref().filter(|out| args.go_on && out.join(CHARGE).exists()) {
        return resume(run, Start::Guarded);
    }
    let charge = charge(args)?;
    let command = charge.command()?;
    // Everything that can be refused is, before anything is made.
    let Planned { over, ram, vram } = planned(&charge)?;
    let trial = Ready::new(Path::new("."), &charge, &over, None)?;
    let events = Events::install()?;
    let fresh = run_folder::make(args.out.as_deref(), &command.trainer.name)?;
    let folder = fresh.folder();
    let lock = take(folder, Start::of(args.go_on))?;
    // Whoever had it before may have begun the run.
    if args.go_on && folder.join(CHARGE).exists() {
        return resume_in(folder, &lock, events);
    }
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
        planned_ram_bytes: ram,
        planned_vram_bytes: vram,
        facts: serde_json::json!({ "command": charge.words }),
    })?;
    drop((journal, trial, command));
    render::talk(format!("plimsoll: run folder {}", folder.display()));
    guard(folder, charge, over, false, &lock, events)
}

/// Goes on with a run of a foreign trainer.
pub fn resume(folder: &Path, start: Start) -> Result<(), Fail> {
    drop(Charge::of_run(folder)?);
    if is_finished(folder) {
        return Ok(());
    }
    let lock = take(folder, start)?;
    resume_in(folder, &lock, Events::install()?)
}

/// Goes on in a folder that is ours now.
fn resume_in(folder: &Path, lock: &RunLock, events: Events) -> Result<(), Fail> {
    let charge = Charge::of_run(folder)?;
    // The process that was waited for may have come to the end.
    if is_finished(folder) {
        return Ok(());
    }
    let over = last_settings(folder, &charge);
    guard(folder, charge, over, true, lock, events)
}

fn is_finished(folder: &Path) -> bool {
    let finished = folder.join("summary.json").exists();
    if finished {
        render::talk(format!("`{}` is finished; nothing is left to do", folder.display()));
    }
    finished
}

/// The settings that a run had when it was last started, over the command's own.
fn last_settings(folder: &Path, charge: &Charge) -> Settings {
    let mut over = charge.set.clone();
    let records = plimsoll_watch::last(&folder.join("journal.jsonl"), TAIL).unwrap_or_default();
    let last = records.iter().rev().find_map(|record| match &record.event {
        Event::Launched { settings, .. } => Some(settings),
        _ => None,
    });
    for (name, value) in last.into_iter().flatten() {
        if let (Ok(knob), Ok(value)) = (knob(name), serde_json::from_value::<Value>(value.clone())) {
            over.insert(knob, value);
        }
    }
    over
}

/// What was planned.
struct Planned {
    over: Settings,
    ram: Bytes,
    vram: Bytes,
}

/// Settings that fit, as far as can be said beforehand; refuses what cannot fit.
fn planned(charge: &Charge) -> Result<Planned, Fail> {
    let fitted = fit(charge, !charge.as_is)?;
    for step in &fitted.steps {
        render::talk(format!("plimsoll: one step down before the start: {step}"));
    }
    let (mut ram, mut vram) = (Bytes::ZERO, Bytes::ZERO);
    match &fitted.forecast {
        Ok(forecast) => {
            let host = &forecast.host;
            ram = host.safe;
            render::talk(format!(
                "plimsoll: {} of RAM are expected, at most {} ({}); {} may be used",
                host.expected,
                host.safe,
                host.source,
                fitted.ram.unwrap_or_default()
            ));
            if let Some(card) = &forecast.card {
                vram = card.safe;
                let there = fitted.vram.map_or(String::new(), |there| format!("; {there} are there"));
                render::talk(format!(
                    "plimsoll: {} of VRAM are expected on each card, at most {} ({}){there}",
                    card.expected, card.safe, card.source
                ));
            }
        }
        Err(why) => render::talk(format!("plimsoll: no estimate: {why}")),
    }
    match &fitted.short {
        Some(short) if short.certain && !charge.as_is => {
            let fact =
                format!("it does not fit: {} are expected, {} are there; {}", short.needs, short.there, short.bottom);
            Err(Fail::new(Exit::DoesNotFit, anyhow::anyhow!(fact))
                .hint("`--as-is` starts it all the same; `plimsoll plan` shows the whole estimate"))
        }
        Some(short) => {
            render::talk(format!(
                "plimsoll: this may not fit: {} are expected, {} are there",
                short.needs, short.there
            ));
            Ok(Planned { over: fitted.over, ram, vram })
        }
        None => Ok(Planned { over: fitted.over, ram, vram }),
    }
}

/// The charge of a command, and of nothing else yet.
pub fn charge_of(trainer: Option<&str>, words: &[String]) -> Result<Charge, Fail> {
    let (trainer, trainer_files) = match trainer {
        Some(name) if name.ends_with(".toml") => named_by_file(Path::new(name))?,
        other => (other.map(str::to_string), Vec::new()),
    };
    let folder = std::env::current_dir().or_failed()?;
    Ok(Charge { words: words.to_vec(), folder, trainer, trainer_files, ..Charge::default() })
}

/// The charge of what was said.
pub fn charge(args: &RunArgs) -> Result<Charge, Fail> {
    let charge = Charge {
        flags: pairs(&args.knob)?.into_iter().collect::<BTreeMap<_, _>>(),
        resume_flag: args.resume_flag.clone(),
        checkpoints: args.checkpoints.clone(),
        set: settings(&args.set)?,
        allow: allow(&args.allow)?,
        ram: args.ram,
        vram: args.vram,
        length: args.length,
        shape: args.shape.as_deref().map(|path| fs_err::canonicalize(path).or_usage()).transpose()?,
        as_is: args.as_is,
        stall_after: args.stall_after,
        stop_within: args.stop_within,
        quiet: args.quiet,
        began_unix_ms: now_unix_ms(),
        ..charge_of(args.trainer.as_deref(), &args.command)?
    };
    charge.understood()
}

fn named_by_file(path: &Path) -> Result<(Option<String>, Vec<PathBuf>), Fail> {
    let mut shelf = plimsoll_launch::Shelf::built_in().or_failed()?;
    let name = shelf.add(path).or_usage()?;
    Ok((Some(name), vec![fs_err::canonicalize(path).or_usage()?]))
}

/// `KNOB=TEXT` pairs; a knob twice is refused.
pub fn pairs(said: &[String]) -> Result<Vec<(Knob, String)>, Fail> {
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
