//! A regular expression in a trainer file, compiled when the file is read.

use std::fmt;

use regex::Regex;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A pattern.
#[derive(Clone)]
pub struct Pattern(Regex);

impl Pattern {
    /// Of a text.
    pub fn new(text: &str) -> Result<Pattern, regex::Error> {
        Ok(Pattern(Regex::new(text)?))
    }

    /// Whether a line has it.
    pub fn is_in(&self, line: &str) -> bool {
        self.0.is_match(line)
    }

    /// The number in a named group of its last place in a line.
    pub fn number(&self, line: &str, group: &str) -> Option<f64> {
        self.0.captures_iter(line).last()?.name(group)?.as_str().replace(',', "").parse().ok()
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.0.as_str())
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.0.as_str())
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Pattern, D::Error> {
        let text = String::deserialize(from)?;
        Pattern::new(&text).map_err(|error| serde::de::Error::custom(format!("`{text}` is no pattern: {error}")))
    }
}
