//! Which two columns of the data are the source and the target.
//!
//! Invariant: a guess is only ever one of the usual pairs below, both present, and it says that it was guessed. Languages
//! (`en`, `fr`) are not guessed, since nothing says which way to translate.

use std::path::Path;

use crate::DataError;

/// The columns asked for; `None` means "guess".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// The column that the model reads.
    pub source: Option<String>,
    /// The column that the model learns to write.
    pub target: Option<String>,
}

/// The columns that will be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenColumns {
    /// The column that the model reads.
    pub source: String,
    /// The column that the model learns to write.
    pub target: String,
    /// At least one of them was guessed from its name.
    pub guessed: bool,
}

/// Usual pairs of names, most telling first. `instruction` goes before `input`, because where all three of instruction,
/// input and output exist, `input` is empty in most rows.
const USUAL: &[(&str, &str)] = &[
    ("prompt", "response"),
    ("prompt", "completion"),
    ("prompt", "answer"),
    ("source", "target"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("input", "output"),
    ("input", "target"),
    ("inputs", "targets"),
    ("input_text", "target_text"),
    ("input_text", "output_text"),
    ("question", "answer"),
    ("query", "response"),
    ("query", "answer"),
    ("article", "summary"),
    ("article", "highlights"),
    ("document", "summary"),
    ("dialogue", "summary"),
    ("text", "summary"),
    ("text", "label_text"),
    ("src", "tgt"),
    ("src", "trg"),
];

impl Columns {
    /// Decides on two of the columns `present` in `path`; `place` says where they were seen.
    pub fn choose(&self, path: &Path, place: &str, present: &[String]) -> Result<ChosenColumns, DataError> {
        let has = |name: &str| present.iter().any(|p| p == name);
        for name in [&self.source, &self.target].into_iter().flatten() {
            if !has(name) {
                return Err(DataError::MissingColumn {
                    path: path.into(),
                    place: place.into(),
                    column: name.clone(),
                    present: present.join(", "),
                });
            }
        }
        let (source, target) = match (&self.source, &self.target) {
            (Some(source), Some(target)) => (source.as_str(), target.as_str()),
            (source, target) => {
                let fits = |s: &str, t: &str| s != t && has(s) && has(t);
                let told = |s: &str, t: &str| {
                    source.as_deref().is_none_or(|given| given == s) && target.as_deref().is_none_or(|given| given == t)
                };
                let usual = USUAL.iter().copied().find(|&(s, t)| told(s, t) && fits(s, t));
                let half = || {
                    USUAL
                        .iter()
                        .map(|&(s, t)| (source.as_deref().unwrap_or(s), target.as_deref().unwrap_or(t)))
                        .find(|&(s, t)| fits(s, t))
                };
                usual
                    .or_else(half)
                    .ok_or_else(|| DataError::ColumnsNotGuessed { path: path.into(), present: present.join(", ") })?
            }
        };
        if source == target {
            return Err(DataError::SameColumn { column: source.into() });
        }
        Ok(ChosenColumns {
            source: source.into(),
            target: target.into(),
            guessed: self.source.is_none() || self.target.is_none(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(source: Option<&str>, target: Option<&str>, present: &[&str]) -> Result<ChosenColumns, DataError> {
        let present: Vec<String> = present.iter().map(|s| s.to_string()).collect();
        Columns { source: source.map(Into::into), target: target.map(Into::into) }.choose(
            Path::new("a.jsonl"),
            "line 1",
            &present,
        )
    }

    #[test]
    fn usual_pairs_are_guessed_and_say_so() {
        let c = choose(None, None, &["id", "response", "prompt"]).unwrap();
        assert_eq!((c.source.as_str(), c.target.as_str(), c.guessed), ("prompt", "response", true));
        let c = choose(None, None, &["instruction", "input", "output"]).unwrap();
        assert_eq!((c.source.as_str(), c.target.as_str()), ("instruction", "output"));
    }

    #[test]
    fn one_given_column_finds_its_partner() {
        let c = choose(Some("input"), None, &["instruction", "input", "output"]).unwrap();
        assert_eq!((c.source.as_str(), c.target.as_str(), c.guessed), ("input", "output", true));
        let c = choose(Some("body"), None, &["body", "summary"]).unwrap();
        assert_eq!((c.source.as_str(), c.target.as_str()), ("body", "summary"));
        let c = choose(None, Some("prompt"), &["prompt", "source"]).unwrap();
        assert_eq!((c.source.as_str(), c.target.as_str()), ("source", "prompt"));
    }

    #[test]
    fn given_columns_are_taken_as_given() {
        let c = choose(Some("en"), Some("fr"), &["en", "fr", "prompt", "response"]).unwrap();
        assert_eq!((c.source.as_str(), c.target.as_str(), c.guessed), ("en", "fr", false));
    }

    #[test]
    fn languages_are_not_guessed_and_wrong_names_list_what_is_there() {
        let e = choose(None, None, &["en", "fr"]).unwrap_err().to_string();
        assert!(e.contains("`en, fr`"), "{e}");
        let e = choose(Some("promt"), None, &["prompt", "response"]).unwrap_err().to_string();
        assert_eq!(e, "`a.jsonl`, line 1: expected the column `promt`, found `prompt, response`");
        assert!(matches!(choose(Some("a"), Some("a"), &["a"]), Err(DataError::SameColumn { .. })));
    }
}
