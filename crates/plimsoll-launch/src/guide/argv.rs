//! A trainer's command line, looked at before it starts: nothing twice, nothing unknown.
//!
//! Most trainers take the last of two equal flags without a word, and some find an unknown one only after they have
//! trained. It refuses to know what a flag means.

use std::collections::BTreeMap;

use super::refusal::Refusal;

/// The flags of a command line with their values; a flag without one has an empty value.
pub type Flags = BTreeMap<String, String>;

/// Reads `argv` (without the program). `known` are the names that the trainer has, where that is known.
///
/// `--learn-rate` and `--learn_rate` are one flag. What is appended (`--trainer.callbacks+=X`) may come again, and so
/// may the keys below it.
pub fn check<S: AsRef<str>>(argv: &[S], known: Option<&[String]>) -> Result<Flags, Refusal> {
    let mut flags = Flags::new();
    let mut rest = argv.iter().map(AsRef::as_ref).peekable();
    while let Some(word) = rest.next() {
        if word == "--" {
            break;
        }
        let Some(bare) = flag_name(word) else { continue };
        let (name, value) = match bare.split_once('=') {
            Some((name, value)) => (name, value.to_string()),
            None => (bare, rest.next_if(|next| flag_name(next).is_none()).unwrap_or_default().to_string()),
        };
        let appended = name.ends_with('+');
        let key = name.trim_end_matches('+').replace('-', "_");
        let dashes = &word[..word.len() - bare.len()];
        if let Some(known) = known.filter(|known| !known.iter().any(|flag| flag.replace('-', "_") == key)) {
            let nearest = super::profile::nearest(&key, known.iter().map(String::as_str)).into_iter().next();
            let nearest = nearest.map(|flag| format!("{dashes}{flag}"));
            return Err(Refusal::UnknownFlag { flag: format!("{dashes}{name}"), nearest });
        }
        if appended {
            let below = format!("{key}.");
            flags.retain(|flag, _| !flag.starts_with(&below));
            flags.insert(key, value);
        } else if let Some(first) = flags.insert(key, value.clone()) {
            return Err(Refusal::DuplicateFlag { flag: format!("{dashes}{name}"), first, second: value });
        }
    }
    Ok(flags)
}

/// A word without its dashes, if it is a flag and not a negative number or a dash.
fn flag_name(word: &str) -> Option<&str> {
    let bare = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
    bare.starts_with(|first: char| first.is_alphabetic() || first == '_').then_some(bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_in_two_spellings_is_still_twice() {
        let refused = check(&["--learn-rate", "1", "--learn_rate=2"], None).unwrap_err();
        assert_eq!(refused.to_string(), "duplicate flag `--learn_rate`: `1`, then `2`");
    }

    #[test]
    fn what_is_appended_may_come_again() {
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
