//! What a foreign trainer will need, before it starts: the facts gathered, the estimate asked for, and what earlier runs
//! measured laid over it.

use std::path::{Path, PathBuf};

use plimsoll_launch::estimate::{
    self, Device, Key, Record, Shape, Table, correct, described, host, measured, terms_of, vits, vram,
};
use plimsoll_launch::{Command, Knob, Settings};
use plimsoll_machine::{Bytes, Cards, Headroom, Root, Sighting};
use serde::Serialize;

use super::charge::{Charge, described_in};
use crate::render::{Fail, OrFail};

/// An estimate.
#[derive(Clone, Debug, Serialize)]
pub struct Forecast {
    /// The model and its number of parameters.
    pub model: String,
    /// Of the machine's memory.
    pub host: Table,
    /// Of a card's, where it computes on one.
    pub card: Option<Table>,
    /// What the estimates were before earlier runs corrected them.
    #[serde(skip)]
    pub raw: (Bytes, Option<Bytes>),
    /// What a measurement is filed under.
    #[serde(skip)]
    pub key: Key,
    /// The settings that memory depends on.
    #[serde(skip)]
    pub filed: Settings,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The command.
    pub command: &'a Command,
    /// Its settings.
    pub settings: &'a Settings,
    /// Where it runs.
    pub folder: &'a Path,
    /// A description of the model, where the user gives one.
    pub shape: Option<&'a Path>,
    /// The length of its samples, where the user says it.
    pub length: Option<u64>,
    /// Whether it goes on from a checkpoint.
    pub resume: bool,
    /// Whether it computes on a card, where that is said.
    pub on_card: Option<bool>,
    /// It will run on another machine, of which nothing was measured here.
    pub elsewhere: bool,
}

/// The estimate; `None` where too little is known of the model, with what is missing.
pub fn forecast(question: Question<'_>) -> Result<Result<Forecast, String>, Fail> {
    let Question { command, settings, folder, shape, length, resume, on_card, elsewhere } = question;
    let (shape, model) = match shape_of(command, folder, shape)? {
        Some(found) => found,
        None => return Ok(Err("the model's shape is not known; describe it with `--shape FILE`".to_string())),
    };
    let params = shape.params();
    let device = match on_card {
        Some(true) => Device::Cuda,
        Some(false) => Device::Cpu,
        None => device(command),
    };
    let mut settings_known = settings.clone();
    if !settings.contains_key(&Knob::Length) {
        match length.or_else(|| longest_of(command, folder)) {
            Some(length) => _ = settings_known.insert(Knob::Length, length.into()),
            None if matches!(shape.family, estimate::Family::CnnLstm(_)) => {}
            None => {
                return Ok(Err("the length of its samples is not known; tell it with `--length N`".to_string()));
            }
        }
    }
    let terms = terms_of(command, &settings_known, shape, device, resume);
    let records = measured::load(&store()).unwrap_or_default();
    let key = Key {
        trainer: command.trainer.name.clone(),
        model: format!("{model}, {params} parameters"),
        machine: if elsewhere { "another".to_string() } else { machine() },
    };
    let filed = filed(settings, resume);
    let table = host(&terms);
    let card = (device == Device::Cuda).then(|| vram(&terms));
    let raw = (table.expected, card.as_ref().map(|card| card.expected));
    Ok(Ok(Forecast {
        model: key.model.clone(),
        host: correct(table, &key, &filed, &records),
        card: card.map(|card| correct(card, &key, &filed, &records)),
        raw,
        key,
        filed,
    }))
}

/// Files what a run took.
pub fn remember(forecast: &Forecast, ram: Bytes, vram: Bytes) {
    let path = store();
    if let Some(folder) = path.parent() {
        let _ = fs_err::create_dir_all(folder);
    }
    let record = |memory, expected, measured| Record {
        key: forecast.key.clone(),
        memory,
        settings: forecast.filed.clone(),
        expected,
        measured,
    };
    // A store that cannot be written costs a better estimate, and no run.
    let _ = measured::append(&path, &record(estimate::Memory::Host, forecast.raw.0, ram));
    if let Some(expected) = forecast.raw.1.filter(|_| vram > Bytes::ZERO) {
        let _ = measured::append(&path, &record(estimate::Memory::Card, expected, vram));
    }
}

/// The settings that memory depends on: neither where it writes nor how often.
fn filed(settings: &Settings, resume: bool) -> Settings {
    let of_disk = |knob: &Knob| matches!(knob, Knob::Output | Knob::SaveEvery | Knob::Resume);
    let mut filed: Settings =
        settings.iter().filter(|(knob, _)| !of_disk(knob)).map(|(knob, value)| (*knob, value.clone())).collect();
    if resume {
        filed.insert(Knob::Resume, true.into());
    }
    filed
}

/// What may be taken of RAM, and of one card; `asked` outweighs what the machine shows.
pub fn room(ram: Option<Bytes>, vram: Option<Bytes>) -> (Option<Bytes>, Option<Bytes>) {
    let free = || Headroom::find(&Root::system()).and_then(|headroom| headroom.read()).ok();
    let ram = ram.or_else(|| free().map(|free| Bytes(free.0 - free.0 / 20)));
    let card = || match Cards::open() {
        Sighting::Seen(cards) => cards.look().iter().map(|card| card.memory.free).min(),
        Sighting::Unseen { .. } => None,
    };
    (ram, vram.or_else(card))
}

fn shape_of(command: &Command, folder: &Path, said: Option<&Path>) -> Result<Option<(Shape, String)>, Fail> {
    let read = |path: &Path| -> Result<Shape, Fail> {
        let text = fs_err::read_to_string(path).or_usage()?;
        let json = serde_json::from_str(&text).or_usage();
        let json = json.map_err(|fail| fail.context(format!("cannot read `{}`", path.display())))?;
        let shape = described(&json).or_usage();
        shape.map_err(|fail| fail.context(format!("`{}` describes no model", path.display())))
    };
    if let Some(path) = said {
        let path = described_in(path);
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        return Ok(Some((read(&path)?, name)));
    }
    for layer in command.layers() {
        if layer.costs.shape.as_deref() == Some("vits") {
            return Ok(Some((vits::medium(), "vits".to_string())));
        }
        if let Some(name) = command.first_of(&layer.costs.model) {
            let config = folder.join(&name).join("config.json");
            if config.is_file() {
                return Ok(Some((read(&config)?, name)));
            }
        }
    }
    Ok(None)
}

/// Whether a command computes on a card: as was said, else as its words have it and the machine that it is for.
pub fn on_card(command: &Command, charge: &Charge) -> bool {
    match (charge.on_card, charge.elsewhere) {
        (Some(said), _) => said,
        (None, Some(there)) => there && !command.leaves_cards_alone(),
        (None, None) => charge.vram.is_some() || device(command) == Device::Cuda,
    }
}

/// Where it computes: on a card where there is one and nothing says otherwise.
fn device(command: &Command) -> Device {
    let hidden = std::env::var("CUDA_VISIBLE_DEVICES").is_ok_and(|cards| cards.is_empty() || cards == "-1");
    let cpu = command.leaves_cards_alone() || std::env::var("DS_ACCELERATOR").is_ok_and(|name| name == "cpu") || hidden;
    match Cards::open() {
        Sighting::Seen(_) if !cpu => Device::Cuda,
        _ => Device::Cpu,
    }
}

/// The longest sample of a table that the trainer names no limit for.
pub fn longest_of(command: &Command, folder: &Path) -> Option<u64> {
    let rows = command.layers().find_map(|layer| layer.place(Knob::Length)?.rows.clone())?;
    let table = folder.join(command.value_of(&rows.table)?);
    let sounds = command.value_of(&rows.folder).map(|sounds| folder.join(sounds));
    plimsoll_launch::cut::longest(&table, sounds.as_deref(), rows.separator)
}

/// Where measurements are kept.
fn store() -> PathBuf {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    state.or_else(home).unwrap_or_else(std::env::temp_dir).join("plimsoll/measured.jsonl")
}

/// This machine, as far as memory depends on it.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cards = match Cards::open() {
        Sighting::Seen(cards) => {
            cards.look().iter().map(|card| card.memory.total.to_string()).collect::<Vec<_>>().join(" + ")
        }
        Sighting::Unseen { .. } => "no card".to_string(),
    };
    format!("{cores} cores, {cards}")
}
