//! A machine that was looked at before: what `plimsoll probe --json` printed there, read here.
//!
//! So a job can be planned for a rented server at home. Only what a plan needs is read; a file that contradicts itself is
//! refused.

use std::path::Path;

use plimsoll_machine::Bytes;
use serde::Deserialize;

use crate::render::{Fail, OrFail};

/// The machine, as far as a plan depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// RAM in all.
    pub ram: Bytes,
    /// RAM that a run could use when it was looked at.
    pub usable: Bytes,
    /// What is free of each card.
    pub cards: Vec<Bytes>,
    /// Cores that a run could use, where the file has them.
    pub cores: Option<u64>,
}

impl Recorded {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Recorded, Fail> {
        let text = fs_err::read_to_string(path).or_usage()?;
        of(&text).map_err(|fact| {
            Fail::usage(format!("`{}` is not a recorded machine: {fact}", path.display()))
                .hint("on the machine itself: plimsoll probe --json > machine.json")
        })
    }

    /// What a run may take of its RAM: as `plimsoll run` would there, a twentieth less than what is usable.
    pub fn budget(&self) -> Bytes {
        Bytes(self.usable.0 - self.usable.0 / 20)
    }

    /// What is free of the fullest card; none without cards.
    pub fn vram(&self) -> Option<Bytes> {
        self.cards.iter().copied().min()
    }
}

#[derive(Deserialize)]
struct File {
    usable: Bytes,
    ram: Ram,
    cpu: Option<Cpu>,
    gpus: Seen<Gpus>,
}

#[derive(Deserialize)]
struct Ram {
    total: Bytes,
}

#[derive(Deserialize)]
struct Cpu {
    cores: Cores,
}

#[derive(Deserialize)]
struct Cores {
    usable: u64,
}

#[derive(Deserialize)]
struct Gpus {
    cards: Vec<Seen<Card>>,
}

#[derive(Deserialize)]
struct Card {
    name: String,
    memory: Seen<Memory>,
}

#[derive(Deserialize)]
struct Memory {
    total: Bytes,
    free: Bytes,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Seen<T> {
    Unseen { unseen: String },
    Seen(T),
}

fn of(text: &str) -> Result<Recorded, String> {
    let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if file.usable > file.ram.total {
        return Err(format!("`usable` is {}, more than the {} of `ram.total`", file.usable, file.ram.total));
    }
    let mut cards = Vec::new();
    if let Seen::Seen(gpus) = file.gpus {
        for card in gpus.cards {
            let Seen::Seen(Card { name, memory }) = card else { continue };
            match memory {
                Seen::Seen(memory) if memory.free > memory.total => {
                    return Err(format!("`{name}` has {} free of {}", memory.free, memory.total));
                }
                Seen::Seen(memory) => cards.push(memory.free),
                Seen::Unseen { unseen } => return Err(format!("the memory of `{name}` was not seen: {unseen}")),
            }
        }
    }
    let cores = file.cpu.map(|cpu| cpu.cores.usable);
    Ok(Recorded { ram: file.ram.total, usable: file.usable, cards, cores })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_comes_back_as_it_was_printed() {
        let here = plimsoll_machine::probe(&plimsoll_machine::Root::system(), Path::new(".")).unwrap();
        let read = of(&serde_json::to_string(&here).unwrap()).unwrap();
        assert_eq!((read.ram, read.usable), (here.ram.total, here.usable));
        assert_eq!(read.cores, Some(here.cpu.cores.usable as u64));
    }

    #[test]
    fn cards_are_read_and_a_file_that_contradicts_itself_is_refused() {
        let text = |usable: u64, free: u64| {
            format!(
                r#"{{"usable": {usable}, "ram": {{"total": 100}}, "gpus": {{"driver": "x", "cuda": null, "cards": [
                {{"name": "A", "memory": {{"total": 50, "free": {free}}}}}, {{"name": "B", "memory": {{"total": 50, "free": 30}}}}]}}}}"#
            )
        };
        let read = of(&text(80, 40)).unwrap();
        assert_eq!((read.cards.len(), read.vram(), read.budget()), (2, Some(Bytes(30)), Bytes(76)));
        assert!(of(&text(101, 40)).unwrap_err().contains("ram.total"));
        assert!(of(&text(80, 51)).unwrap_err().starts_with("`A` has "));
        assert!(of("{}").is_err() && of("no").is_err());
        let none = r#"{"usable": 1, "ram": {"total": 2}, "gpus": {"unseen": "no NVML"}}"#;
        assert_eq!(of(none).unwrap().vram(), None);
    }
}
