//! What is refused before a command starts: a knob's flag that stands twice, and one that is a letter away from a knob's.
//!
//! Other flags may stand as often as their program likes. The spellings of a trainer that only guesses are flags of their
//! own: `--out` and `--output-dir` may be two things.

use super::{Command, flags};
use crate::{LaunchError, Trainer};

impl Command {
    pub(super) fn refuse(&self) -> Result<(), LaunchError> {
        if self.is_hidden() {
            return Ok(());
        }
        for layer in self.layers() {
            let mut there = flags::all(&self.words, self.range(layer.launcher));
            there.retain(|flag| !flag.appended);
            refuse_doubles(layer, &there)?;
            if !layer.guesses {
                self.refuse_near_misses(layer, &there)?;
            }
        }
        Ok(())
    }

    fn refuse_near_misses(&self, layer: &Trainer, there: &[flags::Flag]) -> Result<(), LaunchError> {
        const SHORTEST: usize = 10;
        let known: Vec<&String> = self.layers().flat_map(|layer| layer.knobs.values()).flat_map(|p| &p.flags).collect();
        for flag in there {
            let name = flags::plain(&flag.name);
            if name.len() < SHORTEST || !name.starts_with("--") || self.source.contains(name.trim_start_matches('-')) {
                continue;
            }
            if known.iter().any(|known| flags::plain(known) == name) {
                continue;
            }
            let near = |known: &&&String| strsim::damerau_levenshtein(&flags::plain(known), &name) == 1;
            if let Some(meant) = known.iter().find(near) {
                let (found, meant) = (self.words[flag.at].clone(), meant.to_string());
                return Err(LaunchError::NearMiss { found, trainer: layer.name.clone(), meant });
            }
        }
        Ok(())
    }
}

fn refuse_doubles(layer: &Trainer, there: &[flags::Flag]) -> Result<(), LaunchError> {
    let mut groups: Vec<Vec<String>> = Vec::new();
    for place in layer.knobs.values() {
        let mut names: Vec<String> = place.flags.iter().map(|flag| flags::plain(flag)).collect();
        names.dedup();
        match layer.guesses {
            true => groups.extend(names.into_iter().map(|name| vec![name])),
            false => groups.push(names),
        }
    }
    groups.extend(layer.checkpoints.resume.iter().map(|flag| vec![flags::plain(flag)]));
    for group in groups {
        let seen: Vec<&flags::Flag> = there.iter().filter(|flag| group.contains(&flags::plain(&flag.name))).collect();
        if let [first, second, ..] = seen[..] {
            let text = |found: &flags::Flag| found.value.clone().unwrap_or_default();
            let (first, second, flag) = (text(first), text(second), second.name.clone());
            return Err(LaunchError::Twice { flag, first, second });
        }
    }
    Ok(())
}
