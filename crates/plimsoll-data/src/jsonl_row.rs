//! One JSONL line: takes the wanted cells out of an object without building the rest of it.
//!
//! Invariant: what a line may be wrong in is a value ([`Row`]), not a text; only broken JSON is the parser's error. It
//! knows no file and no line number.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::messages::{MessageFault, MessagesCell, NotMessages};

/// A column to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want<'a> {
    pub name: &'a str,
    pub cell: WantedCell,
}

/// What its cells hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WantedCell {
    Text,
    /// Text; null and absence are read as the empty text.
    TextOrNothing,
    /// A list of messages, or text with such a list.
    Messages,
}

/// What a line turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Row {
    /// All columns are as wanted; they lie in the buffers.
    Whole,
    /// JSON, but not an object.
    NotAnObject(&'static str),
    /// A wanted column (by its index) is missing.
    Missing(usize),
    /// A wanted column is there twice.
    Twice(usize),
    /// A wanted column holds something else.
    Other(usize, &'static str),
    /// A wanted column holds messages, and one of them is wrong.
    BadMessage(usize, MessageFault),
}

/// Most columns that make a row.
pub(crate) const MOST_COLUMNS: usize = 3;

/// Parses `line` and puts the columns `wants` into `texts`.
pub(crate) fn parse(line: &[u8], wants: &[Want<'_>], texts: &mut [String]) -> Result<Row, serde_json::Error> {
    let mut parser = serde_json::Deserializer::from_slice(line);
    let row = Object { wants, texts }.deserialize(&mut parser)?;
    parser.end()?;
    Ok(row)
}

/// The keys of the object on `line`, or `None` where it is no object.
pub(crate) fn keys(line: &[u8]) -> Option<Vec<String>> {
    struct Keys;
    impl<'de> Visitor<'de> for Keys {
        type Value = Vec<String>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<String>, A::Error> {
            let mut keys = Vec::new();
            while let Some((key, _)) = map.next_entry::<String, IgnoredAny>()? {
                keys.push(key);
            }
            Ok(keys)
        }
    }
    serde_json::Deserializer::from_slice(line).deserialize_map(Keys).ok()
}

struct Object<'a> {
    wants: &'a [Want<'a>],
    texts: &'a mut [String],
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = Row;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Row, D::Error> {
        d.deserialize_any(self)
    }
}

/// The visits that visitors answer with the name of what they met; with `no_list`, all but that of a list.
macro_rules! name_what_is_met {
    ($value:ty, $wrap:expr) => {
        name_what_is_met!($value, $wrap, no_list);
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<$value, A::Error> {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            Ok($wrap("an array"))
        }
    };
    ($value:ty, $wrap:expr, no_list) => {
        fn visit_bool<E>(self, _: bool) -> Result<$value, E> {
            Ok($wrap("a boolean"))
        }
        fn visit_i64<E>(self, _: i64) -> Result<$value, E> {
            Ok($wrap("a number"))
        }
        fn visit_u64<E>(self, _: u64) -> Result<$value, E> {
            Ok($wrap("a number"))
        }
        fn visit_f64<E>(self, _: f64) -> Result<$value, E> {
            Ok($wrap("a number"))
        }
        fn visit_unit<E>(self) -> Result<$value, E> {
            Ok($wrap("null"))
        }
    };
}
pub(crate) use name_what_is_met;

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Row;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    name_what_is_met!(Row, Row::NotAnObject);

    fn visit_str<E>(self, _: &str) -> Result<Row, E> {
        Ok(Row::NotAnObject("a string"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Row, A::Error> {
        let mut seen = [false; MOST_COLUMNS];
        let mut fault = None;
        while let Some(which) = map.next_key_seed(Key(self.wants))? {
            let Some(i) = which else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if seen[i] {
                fault = fault.or(Some(Row::Twice(i)));
            }
            seen[i] = true;
            let text = &mut self.texts[i];
            fault = fault.or(match self.wants[i].cell {
                WantedCell::Text => map.next_value_seed(Cell(text))?.map(|found| Row::Other(i, found)),
                WantedCell::TextOrNothing => match map.next_value_seed(Cell(text))? {
                    Some("null") => {
                        text.clear();
                        None
                    }
                    found => found.map(|found| Row::Other(i, found)),
                },
                WantedCell::Messages => map.next_value_seed(MessagesCell(text))?.map(|found| match found {
                    NotMessages::Other(found) => Row::Other(i, found),
                    NotMessages::Fault(fault) => Row::BadMessage(i, fault),
                }),
            });
        }
        let mut missing = None;
        for (i, want) in self.wants.iter().enumerate().filter(|(i, _)| !seen[*i]) {
            match want.cell {
                WantedCell::TextOrNothing => self.texts[i].clear(),
                _ => missing = missing.or(Some(Row::Missing(i))),
            }
        }
        Ok(fault.or(missing).unwrap_or(Row::Whole))
    }
}

/// A key: which of the wanted columns it is.
struct Key<'a>(&'a [Want<'a>]);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Option<usize>;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Option<usize>, D::Error> {
        d.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = Option<usize>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }
    fn visit_str<E>(self, key: &str) -> Result<Option<usize>, E> {
        Ok(self.0.iter().position(|want| want.name == key))
    }
}

/// A cell: its text goes into the buffer; anything else is named.
pub(crate) struct Cell<'a>(pub &'a mut String);

impl<'de> DeserializeSeed<'de> for Cell<'_> {
    type Value = Option<&'static str>;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Cell<'_> {
    type Value = Option<&'static str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    name_what_is_met!(Option<&'static str>, Some);

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        self.0.clear();
        self.0.push_str(text);
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Some("an object"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIR: [Want<'static>; 2] =
        [Want { name: "a", cell: WantedCell::Text }, Want { name: "b", cell: WantedCell::Text }];

    fn row(line: &str) -> (Row, String, String) {
        let mut texts = [String::new(), String::new()];
        let row = parse(line.as_bytes(), &PAIR, &mut texts).unwrap();
        let [s, t] = texts;
        (row, s, t)
    }

    #[test]
    fn the_two_strings_come_out_in_any_order_and_unescaped() {
        let got = row(r#" {"x":[1,{"a":2}],"b":"2\n","\u0061":"caf\u00e9 \ud83d\ude00"} "#);
        assert_eq!(got, (Row::Whole, "café 😀".into(), "2\n".into()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(row("[1,2]").0, Row::NotAnObject("an array"));
        assert_eq!(row("\"a\"").0, Row::NotAnObject("a string"));
        assert_eq!(row("3.5").0, Row::NotAnObject("a number"));
        assert_eq!(row(r#"{"b":"x"}"#).0, Row::Missing(0));
        assert_eq!(row(r#"{"a":"x","b":null}"#).0, Row::Other(1, "null"));
        assert_eq!(row(r#"{"a":{"b":"y"},"b":"x"}"#).0, Row::Other(0, "an object"));
        assert_eq!(row(r#"{"a":"x","b":"x","a":"y"}"#).0, Row::Twice(0));
        assert_eq!(keys(br#"{"a":1,"c":2}"#).unwrap(), ["a", "c"]);
        let mut texts = [String::new(), String::new()];
        for broken in ["{", r#"{"a":"x"}{}"#, "nul", r#"{"a":"\ud800","b":""}"#, "{\"a\":\"\u{1}\",\"b\":\"\"}"] {
            assert!(parse(broken.as_bytes(), &PAIR, &mut texts).is_err(), "{broken}");
        }
    }

    #[test]
    fn a_column_that_may_lack_is_empty_then() {
        let wants = [PAIR[0], Want { name: "b", cell: WantedCell::TextOrNothing }];
        let mut texts = ["old".to_string(), "old".to_string()];
        for line in [r#"{"a":"x","b":null}"#, r#"{"a":"x"}"#, r#"{"a":"x","b":""}"#] {
            texts[1] = "old".into();
            assert_eq!(parse(line.as_bytes(), &wants, &mut texts).unwrap(), Row::Whole);
            assert_eq!(texts, ["x", ""]);
        }
        assert_eq!(parse(br#"{"a":"x","b":1}"#, &wants, &mut texts).unwrap(), Row::Other(1, "a number"));
    }
}
