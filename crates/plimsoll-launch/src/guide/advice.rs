//! What a guide says to do, in its order, less what is set already. Each step carries what is wrong with it.

use serde::{Deserialize, Serialize};

use super::book::Book;
use crate::knob::{Knob, Settings, Value};

/// What a guide has advice for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Killed for host memory.
    HostOom,
    /// A card's memory ran out.
    CudaOom,
    /// How busy the card is, in percent.
    GpuUtilPct,
    /// RAM is still short after guide 001's policy.
    HostShortAfterPolicy,
    /// Guide 002: the first OOM.
    FirstOom,
    /// Guide 002: memory is left.
    Headroom,
    /// Guide 002: no preset fits.
    AllPresetsOom,
    /// Guide 002: too slow.
    Slow,
    /// Guide 002: DeepSpeed fails otherwise.
    DeepspeedError,
    /// Guide 003: any OOM.
    Oom,
    /// Guide 004: mixed precision saves nothing.
    AmpNoGain,
}

/// When a card's memory ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// In the middle of an epoch.
    MidEpoch,
    /// In validation.
    Validation,
    /// After several epochs.
    AfterEpochs,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The guide's word for it.
    pub say: String,
    at_most: Option<(Knob, u64)>,
    at_least: Option<(Knob, u64)>,
    word: Option<(Knob, String)>,
    /// Whether it needs RAM to be left.
    #[serde(default)]
    takes_ram: bool,
    /// Ids of what is wrong with it.
    #[serde(default)]
    pub corrections: Vec<String>,
}

/// Steps for an event.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Advice {
    event: Event,
    phase: Option<Phase>,
    below: Option<f64>,
    pub(super) steps: Vec<Step>,
}

/// What is going on.
#[derive(Clone, Debug, PartialEq)]
pub struct Situation {
    /// What happened.
    pub event: Event,
    /// When, where the guide asks.
    pub phase: Option<Phase>,
    /// What was read, for events that are a reading.
    pub reading: Option<f64>,
    /// Whether RAM is left.
    pub ram_headroom: bool,
    /// What is set now.
    pub settings: Settings,
}

impl Situation {
    /// An event, nothing else known.
    pub fn of(event: Event) -> Situation {
        Situation { event, phase: None, reading: None, ram_headroom: true, settings: Settings::new() }
    }
}

/// A guide's steps for a situation; none where it has no advice, or where the reading is no reason for any.
pub fn advice(book: Book, now: &Situation) -> Vec<&'static Step> {
    let fits = |advice: &&Advice| {
        let reading = advice.below.is_none_or(|below| now.reading.is_some_and(|reading| reading < below));
        advice.event == now.event && advice.phase == now.phase && reading
    };
    let steps = book.advice().iter().find(fits).map(|advice| advice.steps.as_slice()).unwrap_or_default();
    steps.iter().filter(|step| (now.ram_headroom || !step.takes_ram) && step.changes(&now.settings)).collect()
}

impl Step {
    /// Whether it would change anything; what is not set is taken to be the trainer's default, and worth naming.
    fn changes(&self, settings: &Settings) -> bool {
        let count = |knob| settings.get(knob).and_then(Value::count);
        let word = |knob| settings.get(knob).and_then(Value::word);
        self.at_most.as_ref().is_none_or(|(knob, most)| count(knob).is_none_or(|now| now > *most))
            && self.at_least.as_ref().is_none_or(|(knob, least)| count(knob).is_none_or(|now| now < *least))
            && self.word.as_ref().is_none_or(|(knob, wanted)| word(knob).is_none_or(|now| now != wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_is_taken_already_is_not_advised_again() {
        let mut now = Situation::of(Event::HostOom);
        now.settings.insert(Knob::Workers, 1.into());
        let said: Vec<_> = advice(Book::Piper, &now).into_iter().map(|step| step.say.as_str()).collect();
        assert_eq!(said, ["batch_size=12", "accum=2"]);
    }

    #[test]
    fn a_busy_card_needs_no_advice_and_a_full_machine_none_that_takes_ram() {
        let mut now = Situation { reading: Some(80.0), ..Situation::of(Event::GpuUtilPct) };
        assert!(advice(Book::Piper, &now).is_empty());
        (now.reading, now.ram_headroom) = (Some(79.0), false);
        let said: Vec<_> = advice(Book::Piper, &now).into_iter().map(|step| step.say.as_str()).collect();
        assert_eq!(said, ["dataset on NVMe"]);
    }
}
