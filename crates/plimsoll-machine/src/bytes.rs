//! `Bytes`: the one unit of memory and disk in this system.
//!
//! Printed in GiB or MiB and nothing else; read from `2GiB`, `512MiB`, `1.5GiB`. A bare number is bytes. Decimal units
//! (`GB`) are refused: half of the guides' confusion is between the two.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Nothing.
    pub const ZERO: Bytes = Bytes(0);

    /// `n` KiB.
    pub const fn kib(n: u64) -> Bytes {
        Bytes(n << 10)
    }

    /// `n` MiB.
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }

    /// `n` GiB.
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n << 30)
    }

    /// The difference, or zero where `other` is larger.
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// The sum, or the largest number of bytes there is where it would not fit.
    pub const fn saturating_add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }

    /// As a number of MiB, for rates and shares.
    pub fn as_mib(self) -> f64 {
        self.0 as f64 / (1u64 << 20) as f64
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = if self.0 >= 1 << 30 {
            format!("{:.2} GiB", self.0 as f64 / (1u64 << 30) as f64)
        } else if self.0 >= 100 << 20 {
            format!("{:.0} MiB", self.as_mib())
        } else {
            format!("{:.1} MiB", self.as_mib())
        };
        f.pad(&text)
    }
}

/// Why a text is not a number of bytes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{text}` is not a number of bytes; expected a form like `2GiB`, `512MiB` or a plain number")]
pub struct NotBytes {
    /// What was found.
    pub text: String,
}

impl FromStr for Bytes {
    type Err = NotBytes;

    fn from_str(text: &str) -> Result<Bytes, NotBytes> {
        let wrong = || NotBytes { text: text.to_string() };
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let factor = match unit.trim() {
            "" | "B" => 1u64,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "TiB" => 1 << 40,
            _ => return Err(wrong()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Bytes).ok_or_else(wrong);
        }
        let value: f64 = number.parse().map_err(|_| wrong())?;
        if factor == 1 || !value.is_finite() || value * factor as f64 >= u64::MAX as f64 {
            return Err(wrong());
        }
        Ok(Bytes((value * factor as f64) as u64))
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0 + other.0)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.0 += other.0;
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0 - other.0)
    }
}

impl Mul<u64> for Bytes {
    type Output = Bytes;
    fn mul(self, n: u64) -> Bytes {
        Bytes(self.0 * n)
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(parts: I) -> Bytes {
        parts.fold(Bytes::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_units_are_read_and_printed() {
        assert_eq!("2GiB".parse(), Ok(Bytes::gib(2)));
        assert_eq!("1.5 GiB".parse(), Ok(Bytes::mib(1536)));
        assert_eq!("4096".parse(), Ok(Bytes(4096)));
        assert_eq!(Bytes::mib(1536).to_string(), "1.50 GiB");
        assert_eq!(Bytes::mib(256).to_string(), "256 MiB");
        assert_eq!(Bytes::kib(1536).to_string(), "1.5 MiB");
    }

    #[test]
    fn decimal_units_signs_and_nonsense_are_refused() {
        for text in ["2GB", "-1GiB", "GiB", "", "1.2.3GiB", "1e3MiB", "99999999999GiB", "0.5"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }
}
