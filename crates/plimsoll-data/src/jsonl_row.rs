//! One JSONL line: takes the two wanted strings out of an object without building the rest of it.
//!
//! Invariant: what a line may be wrong in is a value ([`Row`]), not a text; only broken JSON is the parser's error. It
//! knows no file and no line number.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What a line turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Row {
    /// Both columns are strings; they lie in the buffers.
    Pair,
    /// JSON, but not an object.
    NotAnObject(&'static str),
    /// A wanted column (0 source, 1 target) is missing.
    Missing(usize),
    /// A wanted column is there twice.
    Twice(usize),
    /// A wanted column holds something else.
    NotAString(usize, &'static str),
}

/// Parses `line` and puts the columns named `names` into `texts`.
pub(crate) fn parse(line: &[u8], names: [&str; 2], texts: [&mut String; 2]) -> Result<Row, serde_json::Error> {
    let mut parser = serde_json::Deserializer::from_slice(line);
    let row = Object { names, texts }.deserialize(&mut parser)?;
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
    names: [&'a str; 2],
    texts: [&'a mut String; 2],
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = Row;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Row, D::Error> {
        d.deserialize_any(self)
    }
}

/// The visits that both visitors answer with the name of what they met.
macro_rules! name_what_is_met {
    ($value:ty, $wrap:expr) => {
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
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<$value, A::Error> {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            Ok($wrap("an array"))
        }
    };
}

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
        let mut seen = [false; 2];
        let mut fault = None;
        while let Some(which) = map.next_key_seed(Key(self.names))? {
            let Some(i) = which else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if seen[i] {
                fault = fault.or(Some(Row::Twice(i)));
            }
            seen[i] = true;
            if let Some(found) = map.next_value_seed(Cell(self.texts[i]))? {
                fault = fault.or(Some(Row::NotAString(i, found)));
            }
        }
        let missing = seen.iter().position(|s| !s).map(Row::Missing);
        Ok(fault.or(missing).unwrap_or(Row::Pair))
    }
}

/// A key: which of the wanted columns it is.
struct Key<'a>([&'a str; 2]);

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
        Ok(self.0.iter().position(|name| *name == key))
    }
}

/// A cell: its text goes into the buffer; anything else is named.
struct Cell<'a>(&'a mut String);

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

    fn row(line: &str) -> (Row, String, String) {
        let (mut s, mut t) = (String::new(), String::new());
        let row = parse(line.as_bytes(), ["a", "b"], [&mut s, &mut t]).unwrap();
        (row, s, t)
    }

    #[test]
    fn the_two_strings_come_out_in_any_order_and_unescaped() {
        let got = row(r#" {"x":[1,{"a":2}],"b":"2\n","\u0061":"caf\u00e9 \ud83d\ude00"} "#);
        assert_eq!(got, (Row::Pair, "café 😀".into(), "2\n".into()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(row("[1,2]").0, Row::NotAnObject("an array"));
        assert_eq!(row("\"a\"").0, Row::NotAnObject("a string"));
        assert_eq!(row("3.5").0, Row::NotAnObject("a number"));
        assert_eq!(row(r#"{"b":"x"}"#).0, Row::Missing(0));
        assert_eq!(row(r#"{"a":"x","b":null}"#).0, Row::NotAString(1, "null"));
        assert_eq!(row(r#"{"a":{"b":"y"},"b":"x"}"#).0, Row::NotAString(0, "an object"));
        assert_eq!(row(r#"{"a":"x","b":"x","a":"y"}"#).0, Row::Twice(0));
        assert_eq!(keys(br#"{"a":1,"c":2}"#).unwrap(), ["a", "c"]);
        let (mut s, mut t) = (String::new(), String::new());
        for broken in ["{", r#"{"a":"x"}{}"#, "nul", r#"{"a":"\ud800","b":""}"#, "{\"a\":\"\u{1}\",\"b\":\"\"}"] {
            assert!(parse(broken.as_bytes(), ["a", "b"], [&mut s, &mut t]).is_err(), "{broken}");
        }
    }
}
