//! `Count`: a whole number of things, as a job file or a flag gives it. How many are too few is for `settings` to say.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};

const FORM: &str = "a whole number of 0 or more";

/// A whole number that TOML can hold: 0 to 2^63 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Count, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Count;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(FORM)
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Count, E> {
                u64::try_from(n).map(Count).map_err(|_| E::invalid_value(Unexpected::Signed(n), &self))
            }
        }
        from.deserialize_i64(Whole)
    }
}

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Count, String> {
        match text.parse::<u64>() {
            Ok(n) if i64::try_from(n).is_ok() => Ok(Count(n)),
            _ => Err(format!("expected {FORM}")),
        }
    }
}
