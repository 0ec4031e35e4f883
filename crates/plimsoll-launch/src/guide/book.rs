//! The profile files, embedded and read once.
//!
//! A file that does not read is a fault of the build, not of a user: `every_book_reads` is the test that finds it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::advice::Advice;
use super::checklist::Check;
use super::cleanup::Cleanup;
use super::figure::{Gb, Span};
use super::host_ram::{Headroom, Itemisation, Speed};
use super::model::Model;
use super::oom::Signature;
use super::policy::{Snapshot, Version};
use super::preset::Select;
use super::profile::Profile;

/// A file of profiles: one guide, or two that speak of the same program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Book {
    /// Guide 000: Piper on servers with little RAM.
    Piper,
    /// Guides 001 and 003: ChatLM's T5 under accelerate.
    Chatlm,
    /// Guide 002: Qwen LoRA presets under DeepSpeed.
    Qwen,
    /// Guide 004: a CNN-LSTM on an RTX 3060.
    Rtx3060,
}

impl Book {
    /// All of them, in the order of the guides.
    pub const ALL: [Book; 4] = [Book::Piper, Book::Chatlm, Book::Qwen, Book::Rtx3060];

    /// The profiles of it.
    pub fn profiles(self) -> &'static [Profile] {
        match self {
            Book::Piper => &PIPER.profile,
            Book::Chatlm => &CHATLM.profile,
            Book::Qwen => &QWEN.profile,
            Book::Rtx3060 => &RTX3060.profile,
        }
    }

    pub(super) fn advice(self) -> &'static [Advice] {
        match self {
            Book::Piper => &PIPER.advice,
            Book::Chatlm => &CHATLM.advice,
            Book::Qwen => &QWEN.advice,
            Book::Rtx3060 => &RTX3060.advice,
        }
    }
}

/// A part of host RAM for which a guide gives a range.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Component {
    /// What it is.
    pub name: String,
    /// From, to, in GB.
    pub gb: Span,
}

/// What a guide's compose files run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuideCommand {
    /// Its words, without the settings of a profile.
    pub words: Vec<String>,
    /// More words for several cards.
    pub several: Vec<String>,
    /// Where the data lie, and where it runs.
    pub folder: String,
    /// The length of its samples, where nothing else tells it.
    pub length: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PiperBook {
    pub guide: String,
    pub title: String,
    pub table: Vec<String>,
    pub command: GuideCommand,
    pub profile: Vec<Profile>,
    pub itemisation: Vec<Itemisation>,
    pub speed: Speed,
    pub headroom: Headroom,
    pub component: Vec<Component>,
    pub advice: Vec<Advice>,
    pub signature: Vec<Signature>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChatlmBook {
    pub guide: String,
    pub title: String,
    pub model: Model,
    pub snapshot: Snapshot,
    pub profile: Vec<Profile>,
    pub min_ram: BTreeMap<String, Gb>,
    pub version: Vec<Version>,
    pub advice: Vec<Advice>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QwenBook {
    pub guide: String,
    pub title: String,
    pub model: Model,
    pub profile: Vec<Profile>,
    pub select: Vec<Select>,
    pub advice: Vec<Advice>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rtx3060Book {
    pub guide: String,
    pub title: String,
    pub profile: Vec<Profile>,
    pub cleanup: Cleanup,
    pub check: Vec<Check>,
    pub advice: Vec<Advice>,
}

pub(super) static PIPER: LazyLock<PiperBook> = LazyLock::new(|| {
    let mut book: PiperBook = read("piper.toml", include_str!("../../profiles/piper.toml"));
    name(&mut book.profile, &book.guide, &book.title);
    book
});
pub(super) static CHATLM: LazyLock<ChatlmBook> = LazyLock::new(|| {
    let mut book: ChatlmBook = read("chatlm.toml", include_str!("../../profiles/chatlm.toml"));
    name(&mut book.profile, &book.guide, &book.title);
    book
});
pub(super) static QWEN: LazyLock<QwenBook> = LazyLock::new(|| {
    let mut book: QwenBook = read("qwen.toml", include_str!("../../profiles/qwen.toml"));
    name(&mut book.profile, &book.guide, &book.title);
    book
});
pub(super) static RTX3060: LazyLock<Rtx3060Book> = LazyLock::new(|| {
    let mut book: Rtx3060Book = read("rtx3060.toml", include_str!("../../profiles/rtx3060.toml"));
    name(&mut book.profile, &book.guide, &book.title);
    book
});

/// Reads an embedded file.
pub(super) fn read<T: DeserializeOwned>(file: &str, text: &str) -> T {
    toml::from_str(text).unwrap_or_else(|wrong| panic!("the embedded `{file}` does not read: {wrong}"))
}

/// Gives each profile the guide and the title of its file, where it names none.
fn name(profiles: &mut [Profile], guide: &str, title: &str) {
    for profile in profiles {
        if profile.guide.is_empty() {
            profile.guide = guide.to_string();
        }
        profile.title = title.to_string();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guide::correction;

    #[test]
    fn every_book_reads() {
        for book in Book::ALL {
            assert!(!book.profiles().is_empty() && !book.advice().is_empty(), "{book:?}");
        }
    }

    #[test]
    fn every_correction_that_a_book_names_exists() {
        let steps = Book::ALL.into_iter().flat_map(|book| book.advice()).flat_map(|advice| &advice.steps);
        let mut named: Vec<&String> = steps.flat_map(|step| &step.corrections).collect();
        named.extend(PIPER.signature.iter().flat_map(|signature| &signature.corrections));
        named.extend(RTX3060.check.iter().flat_map(|check| &check.corrections));
        named.extend(Book::ALL.into_iter().flat_map(|book| book.profiles()).flat_map(|profile| &profile.corrections));
        assert!(named.len() > 100);
        for id in named {
            assert!(correction(id).is_some(), "`{id}`");
        }
    }
}
