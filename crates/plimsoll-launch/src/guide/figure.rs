//! Figures as guides write them, and the sums that they draw from them.
//!
//! `Gb` is not `Bytes`: a guide's "GB" is a thousand MiB on one page and a GiB on the next, so it is carried as written
//! and never mixed with what we measure.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Mul, Sub};

use serde::{Deserialize, Serialize};

/// GB as a guide writes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Gb(pub f64);

impl fmt::Display for Gb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GB", rounded(self.0, 2))
    }
}

impl Add for Gb {
    type Output = Gb;
    fn add(self, other: Gb) -> Gb {
        Gb(self.0 + other.0)
    }
}

impl Sub for Gb {
    type Output = Gb;
    fn sub(self, other: Gb) -> Gb {
        Gb(self.0 - other.0)
    }
}

impl Mul<u64> for Gb {
    type Output = Gb;
    fn mul(self, times: u64) -> Gb {
        Gb(self.0 * times as f64)
    }
}

impl Sum for Gb {
    fn sum<I: Iterator<Item = Gb>>(parts: I) -> Gb {
        parts.fold(Gb::default(), Add::add)
    }
}

/// From, to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "(f64, f64)", into = "(f64, f64)")]
pub struct Span {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Span {
    /// Both ends through a function that falls or rises all the way.
    pub fn map(self, through: impl Fn(f64) -> f64) -> Span {
        let (a, b) = (through(self.low), through(self.high));
        Span { low: a.min(b), high: a.max(b) }
    }
}

impl From<(f64, f64)> for Span {
    fn from((low, high): (f64, f64)) -> Span {
        Span { low, high }
    }
}

impl From<Span> for (f64, f64) {
    fn from(span: Span) -> (f64, f64) {
        (span.low, span.high)
    }
}

impl Sum for Span {
    fn sum<I: Iterator<Item = Span>>(parts: I) -> Span {
        parts.fold(Span::default(), |sum, part| Span { low: sum.low + part.low, high: sum.high + part.high })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", rounded(self.low, 2), rounded(self.high, 2))
    }
}

/// Rounded to so many places.
pub fn rounded(value: f64, places: i32) -> f64 {
    let factor = 10f64.powi(places);
    (value * factor).round() / factor
}

/// What is left of `used` after a saving.
pub fn less(used: f64, saving: Span) -> Span {
    saving.map(|saved| used - saved)
}

/// The share of `total` in percent, rounded to one place, as the trainer's log has it. Both in one unit.
pub fn percent(used: f64, total: f64) -> f64 {
    rounded(used / total * 100.0, 1)
}

/// The share of a card's memory in percent, cut after one place, as the monitor behind guide 001's snapshot shows it:
/// 9329 of 20480 MiB are 45.55 and stand there as 45.5.
pub fn card_percent(used_mib: u64, total_mib: u64) -> f64 {
    (used_mib * 1000 / total_mib.max(1)) as f64 / 10.0
}

/// What another time per step comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// How much longer a step takes, in percent; negative where it is shorter.
    pub step_percent: Span,
    /// The speed, as a share of that before.
    pub speed: Span,
}

/// Compares seconds per step.
pub fn pace(before: f64, after: Span) -> Pace {
    Pace {
        step_percent: after.map(|after| rounded((after / before - 1.0) * 100.0, 1)),
        speed: after.map(|after| rounded(before / after, 3)),
    }
}

/// Minutes that so many steps take.
pub fn minutes(steps: u64, seconds_per_step: Span) -> Span {
    seconds_per_step.map(|seconds| steps as f64 * seconds / 60.0)
}

/// Whether `now` is faster than `before` all the way.
pub fn faster(now: Span, before: Span) -> bool {
    now.high < before.low
}
