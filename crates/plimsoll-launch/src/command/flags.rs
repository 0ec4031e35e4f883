//! Flags among words: `--flag value`, `--flag=value`, `--flag`. Dashes and underscores in a long name are the same.
//!
//! The one reader of argv: commands, the checklist and the guides' rules ask it. A word `--` ends the flags, a negative
//! number is a value, and what is appended (`--callbacks+=A`) may come again, as may the keys below it. What a flag means
//! is not its business.

use std::collections::BTreeMap;
use std::ops::Range;

/// A flag that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flag {
    /// Which word.
    pub at: usize,
    /// Its name as it is written, dashes included.
    pub name: String,
    /// Its value; `None` where it stands alone.
    pub value: Option<String>,
    /// Whether the value is in the same word.
    pub joined: bool,
    /// Whether the value is appended to a list (`+=`).
    pub appended: bool,
}

/// A flag that stands more than once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Double {
    /// Its name as it is written the second time.
    pub flag: String,
    /// Its values in order; an empty one where it stands alone.
    pub values: Vec<String>,
}

/// All flags among `words[range]`.
pub(crate) fn all<S: AsRef<str>>(words: &[S], range: Range<usize>) -> Vec<Flag> {
    let words = &words[..range.end];
    let mut found = Vec::new();
    for (at, word) in words.iter().map(AsRef::as_ref).enumerate().skip(range.start) {
        if word == "--" {
            break;
        }
        if is_value(word) {
            continue;
        }
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (word, None),
        };
        let joined = value.is_some();
        let next = || words.get(at + 1).map(AsRef::as_ref).filter(|next| is_value(next)).map(str::to_string);
        let (name, appended) = name.strip_suffix('+').map_or((name, false), |name| (name, true));
        found.push(Flag { at, name: name.to_string(), value: value.or_else(next), joined, appended });
    }
    found
}

/// All places of `flag` among `words[range]`, those aside where it is appended to.
pub(crate) fn find(words: &[String], range: Range<usize>, flag: &str) -> Vec<Flag> {
    let wanted = plain(flag);
    let is_it = |found: &Flag| !found.appended && plain(&found.name) == wanted;
    all(words, range).into_iter().filter(is_it).collect()
}

/// The long flags that stand more than once among `words[range]`. Short ones may (`-v -v`).
pub(crate) fn doubles<S: AsRef<str>>(words: &[S], range: Range<usize>) -> Vec<Double> {
    let mut seen: BTreeMap<String, Double> = BTreeMap::new();
    let mut doubles = Vec::new();
    for flag in all(words, range).into_iter().filter(|flag| flag.name.starts_with("--")) {
        let key = plain(&flag.name);
        if flag.appended {
            // Another one of the list begins, with keys of its own.
            let below = format!("{key}.");
            let ended = seen.extract_if(.., |key, _| key.starts_with(&below)).map(|(_, double)| double);
            doubles.extend(ended.filter(|double| double.values.len() > 1));
            continue;
        }
        let double = seen.entry(key).or_insert_with(|| Double { flag: String::new(), values: Vec::new() });
        double.flag = flag.name;
        double.values.push(flag.value.unwrap_or_default());
    }
    doubles.extend(seen.into_values().filter(|double| double.values.len() > 1));
    doubles
}

/// Whether a word is a value and no flag; a negative number is a value.
fn is_value(word: &str) -> bool {
    !word.starts_with('-') || word.len() == 1 || word[1..].starts_with(|c: char| c.is_ascii_digit() || c == '.')
}

/// A flag's name without its spelling.
pub(crate) fn plain(flag: &str) -> String {
    match flag.strip_prefix("--") {
        Some(name) => format!("--{}", name.replace('-', "_")),
        None => flag.to_string(),
    }
}

/// Sets `flag` to `value` among `words[range]`: where it stands, or else at `end`.
pub(super) fn set(words: &mut Vec<String>, range: Range<usize>, end: usize, flag: &str, value: Option<&str>) {
    match (find(words, range, flag).pop(), value) {
        (Some(found), Some(value)) if found.joined => words[found.at] = format!("{}={value}", found.name),
        (Some(found), Some(value)) if found.value.is_some() => words[found.at + 1] = value.to_string(),
        (Some(found), Some(value)) => words.insert(found.at + 1, value.to_string()),
        (Some(_), None) => {}
        (None, value) => {
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

    fn values(words: &[String], flag: &str) -> Vec<Option<String>> {
        find(words, 0..words.len(), flag).into_iter().map(|found| found.value).collect()
    }

    fn twice(text: &str) -> Vec<(String, Vec<String>)> {
        let words = words(text);
        doubles(&words, 0..words.len()).into_iter().map(|double| (double.flag, double.values)).collect()
    }

    #[test]
    fn a_flag_is_found_in_every_spelling() {
        let words =
            words("t --batch-size 4 --lr=-1e-3 --quiet --batch_size=8 --shift -2 --bias -.5 --name - -- --lr 1");
        assert_eq!(values(&words, "--batch_size"), [Some("4".to_string()), Some("8".to_string())]);
        assert_eq!(values(&words, "--lr"), [Some("-1e-3".to_string())]);
        assert_eq!(values(&words, "--quiet"), [None]);
        assert_eq!(values(&words, "--shift"), [Some("-2".to_string())]);
        assert_eq!(values(&words, "--bias"), [Some("-.5".to_string())]);
        assert_eq!(values(&words, "--name"), [Some("-".to_string())]);
        assert_eq!(values(&words, "--batch"), []);
    }

    #[test]
    fn setting_keeps_the_spelling_and_the_place() {
        let mut these = words("t --batch-size 4 x --lr=1");
        set(&mut these, 1..5, 5, "--batch_size", Some("2"));
        set(&mut these, 1..5, 5, "--lr", Some("a=b"));
        set(&mut these, 1..5, 5, "--new", Some("7"));
        assert_eq!(these, words("t --batch-size 2 x --lr=a=b --new 7"));
    }

    #[test]
    fn removing_takes_the_value_along() {
        let mut these = words("t --a 1 --b=2 --c");
        remove(&mut these, 1..5, "--a", false);
        remove(&mut these, 1..3, "--b", false);
        assert_eq!(these, words("t --c"));
    }

    #[test]
    fn a_flag_in_two_spellings_is_still_twice_and_short_ones_may_come_again() {
        let expected = ("--learn_rate".to_string(), vec!["1".to_string(), "2".to_string()]);
        assert_eq!(twice("--learn-rate 1 -v -v --learn_rate=2 --a -1 --b -1"), [expected]);
        assert_eq!(twice("--a 1 -- --a 2"), []);
    }

    #[test]
    fn what_is_appended_may_come_again_with_the_keys_below_it() {
        assert_eq!(twice("fit --t.cb+=A --t.cb.dir=x --t.cb+=B --t.cb.dir=y --lr -1"), []);
        let same = twice("--t.cb+=A --t.cb.dir=x --t.cb.dir=z --t.cb+=B --t.cb.dir=y");
        assert_eq!(same, [("--t.cb.dir".to_string(), vec!["x".to_string(), "z".to_string()])]);
    }
}
