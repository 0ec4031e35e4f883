//! Points about a card: who else uses it, which one it is, how its memory is cut.

use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};

use super::Item;

/// The card that is to be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CardFacts {
    /// Its memory.
    pub total: Option<Bytes>,
    /// What is free on it.
    pub free: Option<Bytes>,
    /// What the training is reckoned to need on it.
    pub demand: Option<Bytes>,
    /// Others on it; `None` where the driver does not say.
    pub others: Option<Vec<CardHolder>>,
    /// How many cards the machine has.
    pub cards: u32,
    /// `CUDA_DEVICE_ORDER`, where it is set.
    pub device_order: Option<String>,
    /// `PYTORCH_ALLOC_CONF` or its older name, where it is set.
    pub alloc_conf: Option<String>,
    /// Whether growing segments work: CUDA on Linux.
    pub segments_work: bool,
}

/// A process that holds memory on the card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardHolder {
    /// Its number.
    pub pid: u32,
    /// Its name, where it can be read.
    #[serde(default)]
    pub name: Option<String>,
    /// What it holds; drivers on Windows do not say.
    #[serde(default)]
    pub held: Option<Bytes>,
}

pub(super) fn items(card: &CardFacts) -> Vec<Item> {
    let mut out = vec![memory(card), others(card)];
    out.extend(order(card));
    out.push(segments(card));
    out
}

fn memory(card: &CardFacts) -> Item {
    let Some(free) = card.free else {
        return Item::unknown("card memory", "could not be read", "look at `nvidia-smi`");
    };
    let cure = "make the micro-batch smaller and accumulate more where the trainer can (`plimsoll plan --trainer`)";
    Item::demand("card memory", card.demand, free, "are free", cure)
}

fn others(card: &CardFacts) -> Item {
    let name = "others on the card";
    let Some(others) = &card.others else {
        return Item::unknown(name, "the driver does not say who uses the card", "look at `nvidia-smi`");
    };
    if others.is_empty() {
        return Item::pass(name, "nobody else uses the card");
    }
    let told: Vec<String> = others
        .iter()
        .map(|other| {
            let who = other.name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
            let held = other.held.map_or("an unknown amount".to_string(), |held| held.to_string());
            format!("process {}{who} holds {held}", other.pid)
        })
        .collect();
    Item::fail(name, told.join(", "), "let them end first, or take another card; nothing is killed for you")
}

fn order(card: &CardFacts) -> Option<Item> {
    let name = "order of cards";
    if card.cards < 2 {
        return None;
    }
    Some(match card.device_order.as_deref() {
        Some("PCI_BUS_ID") => Item::pass(name, "CUDA counts the cards as the driver's tools do"),
        other => Item::fail(
            name,
            format!("`CUDA_DEVICE_ORDER` is {}: CUDA's card 0 is the fastest, not the first", told(other)),
            "set `CUDA_DEVICE_ORDER=PCI_BUS_ID`",
        ),
    })
}

fn segments(card: &CardFacts) -> Item {
    let name = "fragments";
    let set = card.alloc_conf.as_deref().is_some_and(|conf| conf.contains("expandable_segments:True"));
    match (card.segments_work, set) {
        (true, true) => Item::pass(name, "the allocator's segments grow"),
        (true, false) => Item::fail(
            name,
            format!("`PYTORCH_ALLOC_CONF` is {}", told(card.alloc_conf.as_deref())),
            "set `PYTORCH_ALLOC_CONF=expandable_segments:True` before the start (older torch: \
             `PYTORCH_CUDA_ALLOC_CONF`); it changes no result",
        ),
        (false, true) => Item::fail(
            name,
            "`expandable_segments` is set, but works only with CUDA on Linux: here it is ignored",
            "take it out, so that nobody counts on it",
        ),
        (false, false) => Item::pass(name, "`expandable_segments` does not work here and is not set"),
    }
}

fn told(value: Option<&str>) -> String {
    value.map_or("not set".to_string(), |value| format!("`{value}`"))
}
