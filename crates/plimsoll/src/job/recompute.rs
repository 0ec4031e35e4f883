//! `Recompute`: how many blocks compute their activations twice instead of keeping them, where a job holds that choice.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};

const FORM: &str = "a number of blocks, `all` or `none`";

/// A held choice of recompute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// Every block.
    All,
    /// This many blocks; 0 is none.
    Blocks(u64),
}

impl Recompute {
    /// The number of blocks out of `blocks`; none if that many do not exist.
    pub fn of(self, blocks: usize) -> Option<usize> {
        match self {
            Recompute::All => Some(blocks),
            Recompute::Blocks(n) => usize::try_from(n).ok().filter(|&n| n <= blocks),
        }
    }
}

impl FromStr for Recompute {
    type Err = String;

    fn from_str(text: &str) -> Result<Recompute, String> {
        match text {
            "all" => Ok(Recompute::All),
            "none" => Ok(Recompute::Blocks(0)),
            number => number.parse().map(Recompute::Blocks).map_err(|_| format!("expected {FORM}")),
        }
    }
}

impl<'de> Deserialize<'de> for Recompute {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Recompute, D::Error> {
        struct Form;
        impl Visitor<'_> for Form {
            type Value = Recompute;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(FORM)
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Recompute, E> {
                u64::try_from(n).map(Recompute::Blocks).map_err(|_| E::invalid_value(Unexpected::Signed(n), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Recompute, E> {
                match text {
                    "all" => Ok(Recompute::All),
                    "none" => Ok(Recompute::Blocks(0)),
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
        }
        from.deserialize_any(Form)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_blocks_than_there_are_is_not_a_choice() {
        assert_eq!(Recompute::All.of(12), Some(12));
        assert_eq!(Recompute::Blocks(12).of(12), Some(12));
        assert_eq!(Recompute::Blocks(13).of(12), None);
    }
}
