//! Flags among words: `--flag value`, `--flag=value`, `--flag`. Dashes and underscores in a long name are the same.

use std::ops::Range;

/// A flag that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Which word.
    pub at: usize,
    /// Its value; `None` where it stands alone.
    pub value: Option<String>,
    /// Whether the value is in the same word.
    pub joined: bool,
}

/// All places of `flag` among `words[range]`.
pub(super) fn find(words: &[String], range: Range<usize>, flag: &str) -> Vec<Found> {
    let wanted = plain(flag);
    let mut found = Vec::new();
    for at in range.clone() {
        let word = &words[at];
        if !word.starts_with('-') {
            continue;
        }
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (word.as_str(), None),
        };
        if plain(name) != wanted {
            continue;
        }
        let joined = value.is_some();
        let next = words.get(at + 1).filter(|next| at + 1 < range.end && is_value(next));
        found.push(Found { at, value: value.or_else(|| next.cloned()), joined });
    }
    found
}

/// Whether a word is a value and no flag; a negative number is a value.
fn is_value(word: &str) -> bool {
    !word.starts_with('-') || word.len() == 1 || word[1..].starts_with(|c: char| c.is_ascii_digit() || c == '.')
}

/// A flag's name without its spelling.
pub(super) fn plain(flag: &str) -> String {
    match flag.strip_prefix("--") {
        Some(name) => format!("--{}", name.replace('-', "_")),
        None => flag.to_string(),
    }
}

/// Sets `flag` to `value` among `words`, where it stands or at `end`.
pub(super) fn set(words: &mut Vec<String>, range: Range<usize>, flag: &str, value: Option<&str>) {
    match (find(words, range.clone(), flag).pop(), value) {
        (Some(found), Some(value)) if found.joined => {
            let name = words[found.at].split_once('=').map_or(flag, |(name, _)| name).to_string();
            words[found.at] = format!("{name}={value}");
        }
        (Some(found), Some(value)) if found.value.is_some() => words[found.at + 1] = value.to_string(),
        (Some(found), Some(value)) => words.insert(found.at + 1, value.to_string()),
        (Some(_), None) => {}
        (None, value) => {
            // Behind all others of its layer; a program that wants its flags before a `--` keeps them there.
            let end =
                words[range.clone()].iter().position(|word| word == "--").map_or(range.end, |at| range.start + at);
            let new: Vec<String> = std::iter::once(flag.to_string()).chain(value.map(str::to_string)).collect();
            words.splice(end..end, new);
        }
    }
}

/// Removes `flag`, and its value where it has one of its own.
pub(super) fn remove(words: &mut Vec<String>, range: Range<usize>, flag: &str, alone: bool) {
    for found in find(words, range, flag).into_iter().rev() {
        let last = if found.value.is_some() && !found.joined && !alone { found.at + 1 } else { found.at };
        words.drain(found.at..=last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_string).collect()
    }

    fn all(words: &[String], flag: &str) -> Vec<Option<String>> {
        find(words, 0..words.len(), flag).into_iter().map(|found| found.value).collect()
    }

    #[test]
    fn a_flag_is_found_in_every_spelling() {
        let words = words("t --batch-size 4 --lr=-1e-3 --quiet --batch_size=8 --shift -2");
        assert_eq!(all(&words, "--batch_size"), [Some("4".to_string()), Some("8".to_string())]);
        assert_eq!(all(&words, "--lr"), [Some("-1e-3".to_string())]);
        assert_eq!(all(&words, "--quiet"), [None]);
        assert_eq!(all(&words, "--shift"), [Some("-2".to_string())]);
        assert_eq!(all(&words, "--batch"), []);
    }

    #[test]
    fn setting_keeps_the_spelling_and_the_place() {
        let mut these = words("t --batch-size 4 x --lr=1");
        let end = these.len();
        set(&mut these, 1..end, "--batch_size", Some("2"));
        set(&mut these, 1..end, "--lr", Some("2"));
        set(&mut these, 1..end, "--new", Some("7"));
        assert_eq!(these, words("t --batch-size 2 x --lr=2 --new 7"));
        let mut with_rest = words("t --a 1 -- rest");
        set(&mut with_rest, 1..5, "--b", Some("2"));
        assert_eq!(with_rest, words("t --a 1 --b 2 -- rest"));
    }

    #[test]
    fn removing_takes_the_value_along() {
        let mut these = words("t --a 1 --b=2 --c");
        let end = these.len();
        remove(&mut these, 1..end, "--a", false);
        let end = these.len();
        remove(&mut these, 1..end, "--b", false);
        assert_eq!(these, words("t --c"));
    }
}
