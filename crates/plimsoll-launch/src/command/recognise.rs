//! Which trainer a command is, and what launches it.

use crate::{LaunchError, Shelf, Trainer};

use super::flags;

/// Where the script is: the first word that ends in `.py` and is no value of a flag, or the module after `-m`; behind a
/// launcher too.
pub(super) fn script(words: &[String]) -> Option<usize> {
    let launched = |module: &str| {
        ["torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner"]
            .contains(&module)
    };
    let mut at = 0;
    while at < words.len() {
        let word = words[at].as_str();
        if matches!(word, "-m" | "--module") {
            let module = words.get(at + 1)?;
            if !launched(module) {
                return Some(at + 1);
            }
            at += 2;
            continue;
        }
        if word.ends_with(".py") && at > 0 {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// The launcher and the trainer of a command.
pub fn recognise(
    words: &[String],
    script: Option<usize>,
    source: &str,
    shelf: &Shelf,
    named: Option<&str>,
) -> Result<(Option<Trainer>, Trainer), LaunchError> {
    let all = shelf.all()?;
    let named = named.map(|name| shelf.get(name)).transpose()?;
    let launcher = all.iter().find(|one| one.launcher && launches(one, words, script)).cloned();
    let trainer = match named {
        Some(one) if !one.launcher => one,
        // A launcher that was named is the launcher; what it launches is looked for all the same.
        named => {
            let found = best(&all, words, script, source)?;
            let launcher = named.or(launcher);
            return Ok((launcher, found.map_or_else(|| shelf.get("generic"), Ok)?));
        }
    };
    Ok((launcher, trainer))
}

fn launches(one: &Trainer, words: &[String], script: Option<usize>) -> bool {
    let head = &words[..script.unwrap_or(words.len())];
    let program = |text: &String| {
        let wanted: Vec<&str> = text.split_whitespace().collect();
        head.windows(wanted.len()).take(3).any(|found| {
            let first = found[0].rsplit('/').next().unwrap_or(&found[0]);
            first == wanted[0] && found[1..].iter().zip(&wanted[1..]).all(|(a, b)| a == b)
        })
    };
    let module = |text: &String| head.windows(2).any(|pair| pair[0] == "-m" && pair[1] == *text);
    one.recognise.programs.iter().any(program) || one.recognise.modules.iter().any(module)
}

/// The trainer with the strongest mark: a module outweighs a flag, a flag the script's text; one that builds on another
/// outweighs it.
fn best(
    all: &[Trainer],
    words: &[String],
    script: Option<usize>,
    source: &str,
) -> Result<Option<Trainer>, LaunchError> {
    let score = |one: &Trainer| {
        let module = script.is_some_and(|at| {
            let before = at.checked_sub(1).map(|at| words[at].as_str());
            matches!(before, Some("-m" | "--module")) && one.recognise.modules.contains(&words[at])
        });
        let flags = one.recognise.flags.iter().any(|flag| !flags::find(words, 0..words.len(), flag).is_empty());
        let text = one.recognise.source.iter().any(|mark| source.contains(mark.as_str()));
        4 * u32::from(module) + 2 * u32::from(flags) + u32::from(text)
    };
    let deeper = |one: &Trainer| u32::from(one.base.is_some());
    let found = all.iter().filter(|one| !one.launcher && score(one) > 0);
    Ok(found.max_by_key(|one| (deeper(one) * score(one).min(1), score(one))).cloned())
}
