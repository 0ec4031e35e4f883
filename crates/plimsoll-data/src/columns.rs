//! Which columns of the data a row is made from.
//!
//! Invariant: a guess is only ever one of the usual names below, all present, and it says that it was guessed. Languages
//! (`en`, `fr`) are not guessed, since nothing says which way to translate.

use std::path::Path;

use crate::jsonl_row::{Want, WantedCell};
use crate::{DataError, Kind};

/// The columns asked for; `None` means "guess". For chats a source alone is the column of messages, and source and target
/// together are a question and its answer; for texts the source is the text, and there is no target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// The column that the model reads.
    pub source: Option<String>,
    /// The column that the model learns to write.
    pub target: Option<String>,
}

/// How columns make a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Style {
    /// Two columns of text.
    #[default]
    Pair,
    /// One column with a list of messages.
    Messages,
    /// A task, more of it (which may be empty), and the answer.
    Instruction,
    /// One column of text.
    Text,
}

/// The columns that will be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ChosenColumns {
    /// The column that the model reads; that of the messages, of the task, of the text.
    pub source: String,
    /// The column that the model learns to write; empty where there is one column alone.
    pub target: String,
    /// The column with more of the task.
    pub input: Option<String>,
    /// How they make a row.
    pub style: Style,
    /// What a row is.
    pub kind: Kind,
    /// At least one of them was guessed from its name.
    pub guessed: bool,
}

impl ChosenColumns {
    /// What to ask of another file, to read the same columns.
    pub fn again(&self) -> Columns {
        let source = Some(self.source.clone());
        match self.style {
            Style::Pair => Columns { source, target: Some(self.target.clone()) },
            Style::Messages | Style::Text => Columns { source, target: None },
            Style::Instruction => Columns::default(),
        }
    }

    /// The cells to read, in the order in which [`crate::row_text::RowText`] has them.
    pub(crate) fn wants(&self) -> Vec<Want<'_>> {
        let text = |name| Want { name, cell: WantedCell::Text };
        match self.style {
            Style::Pair => vec![text(&self.source), text(&self.target)],
            Style::Text => vec![text(&self.source)],
            Style::Messages => vec![Want { name: &self.source, cell: WantedCell::Messages }],
            Style::Instruction => {
                let mut wants = vec![text(&self.source), text(&self.target)];
                wants.extend(self.input.as_deref().map(|name| Want { name, cell: WantedCell::TextOrNothing }));
                wants
            }
        }
    }
}

/// Usual names of a column of messages.
const MESSAGES: &[&str] = &["messages", "conversations", "conversation", "dialog", "chat"];

/// Usual names of a task and its answer, which may have a column `input` beside them.
const INSTRUCTIONS: &[(&str, &str)] = &[("instruction", "output"), ("instruction", "response")];

/// Usual names of a column of text.
const TEXTS: &[&str] = &["text", "content", "document"];

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
    /// Decides on columns of those `present` in `path`; `place` says where they were seen.
    pub fn choose(&self, kind: Kind, path: &Path, place: &str, present: &[String]) -> Result<ChosenColumns, DataError> {
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
        let one = |names: &[&str], style: Style| {
            let guess = || names.iter().copied().find(|name| has(name));
            let name = self.source.as_deref().or_else(guess)?;
            let source = name.to_string();
            Some(ChosenColumns { source, style, kind, guessed: self.source.is_none(), ..ChosenColumns::default() })
        };
        let not_guessed = |wanted: &'static str| DataError::ColumnNotGuessed {
            path: path.into(),
            wanted,
            present: present.join(", "),
        };
        match kind {
            Kind::Pairs => self.choose_pair(kind, path, present),
            Kind::Text => one(TEXTS, Style::Text).ok_or_else(|| not_guessed("the text")),
            Kind::Chat if self.target.is_some() => self.choose_pair(kind, path, present),
            Kind::Chat => {
                if let Some(chosen) = one(MESSAGES, Style::Messages) {
                    return Ok(chosen);
                }
                if let Some(&(source, target)) = INSTRUCTIONS.iter().find(|(s, t)| has(s) && has(t)) {
                    return Ok(ChosenColumns {
                        source: source.into(),
                        target: target.into(),
                        input: has("input").then(|| "input".into()),
                        style: Style::Instruction,
                        kind,
                        guessed: true,
                    });
                }
                self.choose_pair(kind, path, present).map_err(|_| not_guessed("the messages"))
            }
        }
    }

    fn choose_pair(&self, kind: Kind, path: &Path, present: &[String]) -> Result<ChosenColumns, DataError> {
        let has = |name: &str| present.iter().any(|p| p == name);
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
            input: None,
            style: Style::Pair,
            kind,
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
            Kind::Pairs,
            Path::new("a.jsonl"),
            "line 1",
            &present,
        )
    }

    fn guess(kind: Kind, present: &[&str]) -> Result<ChosenColumns, DataError> {
        let present: Vec<String> = present.iter().map(|s| s.to_string()).collect();
        Columns::default().choose(kind, Path::new("a.jsonl"), "line 1", &present)
    }

    #[test]
    fn chats_and_texts_are_found_by_their_usual_names() {
        let c = guess(Kind::Chat, &["id", "conversations", "prompt", "response"]).unwrap();
        assert_eq!((c.source.as_str(), c.style), ("conversations", Style::Messages));
        let c = guess(Kind::Chat, &["instruction", "input", "output"]).unwrap();
        assert_eq!((c.style, c.input.as_deref()), (Style::Instruction, Some("input")));
        let c = guess(Kind::Chat, &["prompt", "response"]).unwrap();
        assert_eq!((c.style, c.target.as_str()), (Style::Pair, "response"));
        let c = guess(Kind::Text, &["text", "meta"]).unwrap();
        assert_eq!((c.source.as_str(), c.style), ("text", Style::Text));
        for kind in [Kind::Chat, Kind::Text] {
            let e = guess(kind, &["a", "b"]).unwrap_err().to_string();
            assert!(e.contains("`a, b`"), "{e}");
        }
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
