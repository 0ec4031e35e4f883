//! Somebody else's training command, looked over: what it is, what it needs, what it finds on this machine.

use std::path::{Path, PathBuf};

use plimsoll_launch::check::{
    CheckFacts, Checklist, Item, LoaderFacts, Module, Programs, RunFacts, TrainerCheck, check,
};
use plimsoll_launch::checkpoints::{self, Found};
use plimsoll_launch::{Command, Knob, Settings};
use plimsoll_machine::{Bytes, Root, probe};

use super::host::{card_facts, host_facts};
use super::{deepspeed, fail, pass, programs, python};
use crate::launch::{Question, forecast, python_of};
use crate::render::{Fail, OrFail};
use crate::verbs::run::charge_of;

/// The trainer's name, and the points of its command.
pub fn points(words: &[String], trainer: Option<&str>, ram: Option<Bytes>) -> Result<(String, Checklist), Fail> {
    let charge = charge_of(trainer, words)?;
    let env = |name: &str| std::env::var(name).ok();
    let command = match charge.command() {
        Ok(command) => command,
        // What is refused before a start is a point like others.
        Err(wrong) => return Ok(("command".to_string(), Checklist { items: vec![refused(wrong)] })),
    };
    let name = command.name();
    let (settings, mut items) = match command.read(&charge.folder, env) {
        Ok(reading) => (reading.settings, Vec::new()),
        Err(wrong) => (Settings::new(), vec![refused(Fail::new(crate::render::Exit::BadInput, wrong))]),
    };
    items.extend(starts(&command, &charge.folder, &name));
    let root = Root::system();
    let writes = charge.folder.join(
        command.layers().find_map(|layer| command.checkpoint_roots(layer).into_iter().next()).unwrap_or_default(),
    );
    let found = probe(&root, &writes).or_usage()?;
    let mut host = host_facts(&root, &found);
    host.available = host.available.map(|left| ram.map_or(left, |ram| left.min(ram)));
    let mut card = card_facts(env).filter(|_| !command.leaves_cards_alone());
    // What it needs is estimated where its model is known; otherwise these points stay open.
    let question = Question {
        command: &command,
        settings: &settings,
        folder: &charge.folder,
        shape: None,
        length: None,
        resume: false,
        on_card: Some(card.is_some()),
        elsewhere: false,
    };
    if let Ok(Ok(needs)) = forecast(question) {
        host.demand = Some(needs.host.expected);
        if let (Some(card), Some(table)) = (&mut card, needs.card) {
            card.demand = Some(table.expected);
        }
    }
    let count = |knob| settings.get(&knob).and_then(|value| value.count());
    let facts = CheckFacts {
        host,
        loader: LoaderFacts {
            ranks: count(Knob::Processes).unwrap_or(1),
            workers: count(Knob::Workers).unwrap_or(0),
            prefetch: count(Knob::Prefetch).unwrap_or(2),
            batch: None,
            pinned: Bytes::ZERO,
        },
        trainer: trainer_check(&command, &charge.folder, &settings, card.is_some(), env),
        card,
        run: run_facts(&command, &charge.folder, &settings, found.disk.space.available),
    };
    items.extend(check(&facts).items);
    Ok((name, Checklist { items }))
}

fn refused(wrong: Fail) -> Item {
    let fact = wrong.fact.map_or("it is refused".to_string(), |fact| fact.to_string());
    fail("command", fact, wrong.hint.unwrap_or_else(|| "put it right: `plimsoll run` refuses it too".to_string()))
}

/// Whether what was typed can be started at all.
fn starts(command: &Command, folder: &Path, name: &str) -> Vec<Item> {
    let first = command.words.first().map_or("", String::as_str);
    let mut out = vec![match programs::find(first, folder) {
        Some(path) => pass("command", format!("{name}; `{first}` is {}", path.display())),
        None => fail("command", format!("{name}; `{first}` is no program on the path"), "install it, or name its path"),
    }];
    let script = command.script.map(|at| command.words[at].as_str()).filter(|word| word.ends_with(".py"));
    if let Some(script) = script {
        out.push(match fs_err::metadata(folder.join(script)) {
            Ok(found) if found.is_file() => pass("script", format!("`{script}` is there")),
            _ => fail("script", format!("`{script}` is not there"), "name it as it is seen from here"),
        });
    }
    for layer in command.layers() {
        for (program, why) in &layer.needs.programs {
            // `ninja` is asked for by DeepSpeed's own points.
            if program != "ninja" && programs::find(program, folder).is_none() {
                out.push(fail("program", format!("`{program}` is not on the path"), why.clone()));
            }
        }
    }
    out
}

fn trainer_check(
    command: &Command,
    folder: &Path,
    settings: &Settings,
    on_card: bool,
    env: impl Fn(&str) -> Option<String>,
) -> TrainerCheck {
    let python = python_of(command, folder).and_then(|path| programs::find(&path.display().to_string(), folder));
    let mut names: Vec<String> = Vec::new();
    for layer in command.layers() {
        let wanted = layer.needs.imports.iter().chain(layer.needs.modules.keys());
        for name in wanted {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
    }
    let known = python.as_deref().map(|python| python::importable(python, &names, folder)).unwrap_or_default();
    let modules = names.into_iter().map(|name| Module { importable: known.get(&name).copied(), name });
    let launcher = command.launcher.as_ref().map(|launcher| launcher.name.as_str());
    let flagged = command.asks_for_deepspeed();
    let runs_deepspeed = flagged || launcher == Some("deepspeed");
    let piper = command.trainer.name == "piper";
    let manual =
        command.layers().any(|layer| layer.knobs.get(&Knob::Accumulation).is_some_and(|place| place.refused.is_some()));
    let clips = command.value_of("--trainer.gradient_clip_val").is_some_and(|value| value.parse::<f64>() != Ok(0.0));
    // A refused knob is read from no place: what the user wrote stands on the command line.
    let said = command.value_of("--trainer.accumulate_grad_batches").and_then(|value| value.parse().ok());
    TrainerCheck {
        modules: modules.collect(),
        argv: command.words.clone(),
        manual_optimization: manual,
        accumulation: settings.get(&Knob::Accumulation).and_then(|value| value.count()).or(said),
        clips,
        // A script of the user's that names the list of callbacks changes it.
        watches_mos: piper && !command.source.contains("_DEFAULT_CALLBACKS"),
        mos_reachable: if piper { mos_reachable(&env) } else { None },
        deepspeed: runs_deepspeed,
        unbuilt_ops: if runs_deepspeed { deepspeed::unbuilt(settings, on_card, &env) } else { None },
        deepspeed_with_use_cpu: flagged && launcher != Some("accelerate") && command.value_of("--use_cpu").is_some(),
        programs: Programs {
            numactl: Some(programs::find("numactl", folder).is_some()),
            ninja: Some(programs::any(&["ninja"], python.as_deref(), folder)),
            compiler: Some(programs::any(&["c++", "g++", "clang++"], None, folder)),
        },
    }
}

/// Whether Piper's score can be computed: its network is in the cache of torch, or there is no way to any network.
fn mos_reachable(env: impl Fn(&str) -> Option<String>) -> Option<bool> {
    let home =
        env("TORCH_HOME").map(PathBuf::from).or_else(|| Some(PathBuf::from(env("HOME")?).join(".cache/torch")))?;
    let cached = fs_err::read_dir(home.join("hub")).into_iter().flatten().filter_map(Result::ok);
    let cached =
        cached.map(|entry| entry.file_name().to_string_lossy().to_lowercase()).any(|name| name.contains("mos"));
    if cached {
        return Some(true);
    }
    let proxied =
        ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"].iter().any(|name| env(name).is_some());
    let routes = fs_err::read_to_string("/proc/net/route").ok()?;
    let leads_out = routes.lines().skip(1).any(|line| line.split_whitespace().nth(1) == Some("00000000"));
    // Whether somebody answers out there is not tried.
    if leads_out || proxied { None } else { Some(false) }
}

fn run_facts(command: &Command, folder: &Path, settings: &Settings, free: Bytes) -> RunFacts {
    let found = checkpoints::find(command, folder);
    let kept = command.value_of("--save_total_limit").and_then(|value| value.parse().ok());
    let lightning = command.layers().any(|layer| layer.name == "lightning" || layer.name == "piper");
    let on_exception = command.words.iter().any(|word| word.contains("save_on_exception=true"));
    let mut facts = RunFacts {
        disk_free: Some(free),
        checkpoint: found.iter().map(|one| checkpoints::size(&one.path)).max().filter(|bytes| *bytes > Bytes::ZERO),
        kept,
        saves_on_stop: match command.layers().any(|layer| layer.stop.saves) || on_exception {
            true => Some(true),
            false if lightning => Some(false),
            false => None,
        },
        ..RunFacts::default()
    };
    let flag = command.layers().find_map(|layer| layer.checkpoints.resume.clone());
    if let Some(from) = flag.and_then(|flag| command.value_of(&flag)) {
        resume(&mut facts, &folder.join(from), &found, settings);
    }
    facts
}

/// What is to be gone on from.
fn resume(facts: &mut RunFacts, from: &Path, found: &[Found], settings: &Settings) {
    facts.resumes = true;
    let same = |one: &&Found| fs_err::canonicalize(&one.path).ok() == fs_err::canonicalize(from).ok();
    facts.resume_complete = match found.iter().find(same) {
        Some(one) => Some(one.torn.is_none()),
        None if !from.exists() => Some(false),
        None => None,
    };
    if from.is_dir() && from.join("trainer_state.json").exists() {
        let sharded = shards(from);
        facts.resume_optimizer = Some(from.join("optimizer.pt").exists() || sharded > 0);
    } else if from.is_file() {
        // One file of torch holds what the trainer put there.
        facts.resume_optimizer = None;
    }
    let (then, now) = (shards(from), settings.get(&Knob::Processes).and_then(|value| value.count()));
    facts.ranks_then_and_now = now.filter(|_| then > 0).map(|now| (then, now));
}

/// Ranks whose shards of an optimizer's state lie in a checkpoint of DeepSpeed.
fn shards(folder: &Path) -> u64 {
    let names = |folder: &Path| {
        let entries = fs_err::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())).collect::<Vec<_>>()
    };
    let here = |all: &[(String, PathBuf)]| {
        all.iter().filter(|(name, _)| name.contains("zero_pp_rank_") && name.ends_with("optim_states.pt")).count()
            as u64
    };
    let all = names(folder);
    let below = all.iter().filter(|(name, _)| name.starts_with("global_step")).map(|(_, path)| here(&names(path)));
    here(&all).max(below.max().unwrap_or(0))
}
