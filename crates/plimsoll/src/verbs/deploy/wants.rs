//! What a trainer wants of the hardware, and what the machine has that it is planned for.

use plimsoll_deploy::Wants;
use plimsoll_launch::guide::Profile;
use plimsoll_launch::{Knob, Value};
use plimsoll_machine::{Cards, Sighting};

use crate::args::ForeignFlags;
use crate::launch::{Charge, Ready, Recorded, on_card};

/// Of a command on this machine, a recorded one, or a profile's server.
pub fn wants(
    flags: &ForeignFlags,
    charge: &Charge,
    ready: &Ready,
    machine: Option<&Recorded>,
    profile: Option<&Profile>,
) -> Wants {
    let (cards, cores) = match (machine, profile.and_then(|profile| profile.server)) {
        (Some(machine), _) => (machine.cards.len() as u64, machine.cores),
        (None, Some(server)) => (server.cards, None),
        (None, None) => (cards_here(), std::thread::available_parallelism().ok().map(|cores| cores.get() as u64)),
    };
    Wants {
        said_cards: flags.cards,
        said_cores: flags.cores,
        on_card: on_card(&ready.command, charge),
        ranks: ranks(ready),
        workers: ready.count(Knob::Workers),
        cards,
        cores,
    }
}

fn cards_here() -> u64 {
    match Cards::open() {
        Sighting::Seen(cards) => cards.look().len() as u64,
        Sighting::Unseen { .. } => 0,
    }
}

/// Ranks on the machine; none where there is one on every card that is found.
fn ranks(ready: &Ready) -> Option<u64> {
    // DeepSpeed's launcher takes all cards, the others one.
    let default = match &ready.command.launcher {
        Some(launcher) if launcher.name == "deepspeed" => None,
        _ => Some(1),
    };
    ready.settings.get(&Knob::Processes).map_or(default, |said| counted(said).filter(|ranks| *ranks > 0))
}

/// A number, or a list of cards (`0,1`, `[0, 1]`); `auto`, `gpu` and `-1` are neither.
fn counted(said: &Value) -> Option<u64> {
    let Value::Word(word) = said else { return said.count() };
    let listed = word.contains(',') || word.starts_with('[');
    let ids: Vec<&str> = word.trim_matches(['[', ']']).split(',').map(str::trim).filter(|id| !id.is_empty()).collect();
    match listed && ids.iter().all(|id| id.parse::<u64>().is_ok()) {
        true => Some(ids.len() as u64),
        false => said.count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_a_number_a_list_of_cards_or_as_many_as_there_are() {
        let counted = |word: &str| counted(&Value::Word(word.to_string()));
        assert_eq!(
            (counted("4"), counted("0,1"), counted("0,"), counted("[0, 2]")),
            (Some(4), Some(2), Some(1), Some(2))
        );
        assert_eq!((counted("auto"), counted("gpu"), counted("-1"), counted("a,b")), (None, None, None, None));
    }
}
