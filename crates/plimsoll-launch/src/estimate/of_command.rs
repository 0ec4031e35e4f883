//! The terms of a command: what its trainer and launcher imply, and its settings laid over that.

use super::precision::Device;
use super::runtime::Software;
use super::shape::Shape;
use super::terms::Terms;
use crate::{Command, Knob, Launcher, Settings};

/// What an estimate of `command` depends on. A word of the trainer's own that there is no formula for is left out.
pub fn terms_of(command: &Command, settings: &Settings, shape: Shape, device: Device, resume: bool) -> Terms {
    let mut terms = Terms::new(shape, device, software(command));
    let ranks = settings.get(&Knob::Processes).and_then(|value| value.count()).unwrap_or(1);
    terms.launcher = Launcher::of(command, ranks);
    terms.resume = resume;
    let lightning = is_or_builds_on(command, "lightning");
    (terms.loader.validation, terms.loader.sanity) = (lightning, lightning);
    if command.trainer.name == "piper" {
        (terms.loader.persistent, terms.loader.prefetch, terms.loader.pin) = (true, 4, device == Device::Cuda);
    }
    settings.iter().fold(terms, |terms, (knob, value)| {
        let one = Settings::from([(*knob, value.clone())]);
        terms.clone().with(&one).unwrap_or(terms)
    })
}

fn is_or_builds_on(command: &Command, name: &str) -> bool {
    command.layers().any(|layer| layer.name == name || layer.base.as_deref() == Some(name))
}

fn software(command: &Command) -> Software {
    let deepspeed = command.layers().any(|layer| layer.name == "deepspeed") || command.asks_for_deepspeed();
    match command.trainer.name.as_str() {
        "piper" => Software::Piper,
        "lightning" => Software::Lightning,
        "hf-trainer" if deepspeed => Software::HfDeepSpeed,
        "hf-trainer" => Software::HfTrainer,
        _ if deepspeed => Software::DeepSpeed,
        _ if is_or_builds_on(command, "lightning") => Software::Lightning,
        _ if is_or_builds_on(command, "hf-trainer") => Software::HfTrainer,
        _ => Software::Torch,
    }
}
