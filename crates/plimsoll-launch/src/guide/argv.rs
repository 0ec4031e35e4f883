//! A trainer's command line against the flags that a guide's trainer has: nothing twice, nothing unknown.
//!
//! Some trainers find an unknown flag only after they have trained. How flags are read, and what stands twice, is
//! `command::flags`' business; what a flag means is nobody's here.

use std::collections::BTreeMap;

use super::refusal::Refusal;
use crate::command::flags;

/// The flags of a command line with their values; a flag without one has an empty value.
pub type Flags = BTreeMap<String, String>;

/// Reads `argv` (without the program). `known` are the names that the trainer has, where that is known.
pub fn check<S: AsRef<str>>(argv: &[S], known: Option<&[String]>) -> Result<Flags, Refusal> {
    let bare = |flag: &str| flag.trim_start_matches('-').replace('-', "_");
    let all = flags::all(argv, 0..argv.len());
    if let Some(known) = known {
        let is_known = |name: &str| known.iter().any(|flag| bare(flag) == bare(name));
        if let Some(strange) = all.iter().find(|flag| !is_known(&flag.name)) {
            let nearest = super::profile::nearest(&bare(&strange.name), known.iter().map(String::as_str));
            let dashes = &strange.name[..strange.name.len() - strange.name.trim_start_matches('-').len()];
            let nearest = nearest.first().map(|flag| format!("{dashes}{flag}"));
            return Err(Refusal::UnknownFlag { flag: strange.name.clone(), nearest });
        }
    }
    if let Some(double) = flags::doubles(argv, 0..argv.len()).into_iter().next() {
        let [first, second] = [0, 1].map(|at| double.values[at].clone());
        return Err(Refusal::DuplicateFlag { flag: double.flag, first, second });
    }
    Ok(all.into_iter().map(|flag| (bare(&flag.name), flag.value.unwrap_or_default())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_that_stands_twice_is_refused_and_one_that_is_appended_to_is_not() {
        let refused = check(&["--learn-rate", "1", "--learn_rate=2"], None).unwrap_err();
        assert_eq!(refused.to_string(), "duplicate flag `--learn_rate`: `1`, then `2`");
        let argv = ["fit", "--t.cb+=A", "--t.cb.dir=x", "--t.cb+=B", "--t.cb.dir=y", "--lr", "-1"];
        let flags = check(&argv, None).unwrap();
        assert_eq!((flags["t.cb"].as_str(), flags["t.cb.dir"].as_str(), flags["lr"].as_str()), ("B", "y", "-1"));
    }

    #[test]
    fn an_unknown_flag_is_refused_with_the_one_that_was_meant() {
        let known = ["epochs".to_string(), "learn_rate".to_string()];
        let refused = check(&["--epoch=5"], Some(&known)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "unknown flag `--epoch`, refused before training starts; perhaps `--epochs` was meant"
        );
    }
}
