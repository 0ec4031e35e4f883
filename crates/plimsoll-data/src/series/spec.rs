//! What is asked of series: which columns, how long a window, how far ahead, what is foretold, and where validation begins.
//!
//! Invariant: pure; a spec that [`SeriesSpec::check`] takes has no meaning that depends on the data, but for the columns being there. It
//! reads no file.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::error::SeriesError;
use super::time::TimeForm;

/// The most features, and the longest window in steps.
const MOST: usize = 1 << 20;
/// The most classes: how well they are foretold is counted pair by pair, in 8 bytes each.
const MOST_CLASSES: usize = 4096;

/// How series become samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeriesSpec {
    /// Columns that the model reads, in this order.
    pub features: Vec<String>,
    /// The column of times; none: rows are steps as they come.
    #[serde(default)]
    pub time: Option<String>,
    /// What makes rows one series.
    #[serde(default)]
    pub by: SeriesBy,
    /// Steps of a window.
    pub window: usize,
    /// Steps from the last one of a window to the one that is foretold.
    pub horizon: usize,
    /// Steps from one window to the next.
    #[serde(default = "one")]
    pub stride: usize,
    /// The class of a sample.
    #[serde(default)]
    pub class: Option<ClassTarget>,
    /// Numbers to be foretold.
    #[serde(default)]
    pub values: Vec<ValueTarget>,
    /// Whether these are given as they are, or normalised as features are.
    #[serde(default = "yes")]
    pub scale_values: bool,
    /// What stands for a value that is missing.
    #[serde(default)]
    pub missing: Missing,
    /// Over what features are normalised.
    #[serde(default)]
    pub normalise: Normalise,
    /// What is kept for validation.
    #[serde(default)]
    pub validation: Option<Validation>,
}

fn one() -> usize {
    1
}

fn yes() -> bool {
    true
}

/// What makes rows one series.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeriesBy {
    /// All rows of all files are one, in the order of the files.
    #[default]
    One,
    /// Each file is one.
    File,
    /// Rows of the same text or whole number in this column are one, wherever they stand.
    Column(String),
}

/// What of a column's future is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Of {
    /// What it will be.
    Value,
    /// That less what it is at the last step of the window.
    Change,
    /// The change, as a part of what it is at the last step of the window.
    #[default]
    Return,
}

impl Of {
    /// As jobs have it.
    pub fn name(self) -> &'static str {
        match self {
            Of::Value => "value",
            Of::Change => "change",
            Of::Return => "return",
        }
    }
}

/// The class of a sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum ClassTarget {
    /// Where a column goes: 0 down, 1 about as it is, 2 up.
    Direction {
        /// The column.
        column: String,
        /// What of it.
        #[serde(default)]
        of: Of,
        /// The most, either way, that is about as it is.
        flat: f64,
    },
    /// How many of these numbers a column reaches.
    Thresholds {
        /// The column.
        column: String,
        /// What of it.
        #[serde(default)]
        of: Of,
        /// In rising order.
        at: Vec<f64>,
    },
    /// What a column says `horizon` steps ahead: whole numbers from 0.
    Column {
        /// The column.
        column: String,
        /// How many classes there are.
        classes: u32,
    },
}

impl ClassTarget {
    /// How many classes there are.
    pub fn classes(&self) -> u32 {
        match self {
            ClassTarget::Direction { .. } => 3,
            ClassTarget::Thresholds { at, .. } => at.len() as u32 + 1,
            ClassTarget::Column { classes, .. } => *classes,
        }
    }

    /// The column that it is made of.
    pub fn column(&self) -> &str {
        match self {
            ClassTarget::Direction { column, .. }
            | ClassTarget::Thresholds { column, .. }
            | ClassTarget::Column { column, .. } => column,
        }
    }
}

/// A number to be foretold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueTarget {
    /// The column.
    pub column: String,
    /// What of it.
    #[serde(default)]
    pub of: Of,
}

/// What stands for a feature that is missing (nothing, null, NaN). What is to be foretold is never filled: where it is missing, and that
/// is not refused, it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Missing {
    /// Nothing: such data are refused, with the place.
    #[default]
    Refuse,
    /// The last value of the same series.
    Forward,
    /// The number 0.
    Zero,
    /// The mean of the training part.
    Mean,
}

/// Over what features are normalised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Normalise {
    /// All series together.
    #[default]
    All,
    /// Each series by itself; one without rows in the training part, as all together.
    Series,
    /// They are not.
    None,
}

impl Normalise {
    /// As jobs have it.
    pub fn name(self) -> &'static str {
        match self {
            Normalise::All => "all",
            Normalise::Series => "series",
            Normalise::None => "none",
        }
    }
}

/// What is kept for validation: rows from one instant on, in all series. It is given as exactly one of a part or a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Validation {
    /// The part of all rows that are not earlier than it.
    #[serde(default)]
    pub fraction: Option<f64>,
    /// The instant.
    #[serde(default)]
    pub from: Option<TimePoint>,
    /// Rows of each series behind it that are left out too.
    #[serde(default)]
    pub gap: usize,
}

/// A time, as columns have them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum TimePoint {
    /// A number.
    Number(i64),
    /// A date, or a date and a time of day, as in `2026-01-31T12:00:00Z`.
    Text(String),
}

impl<'de> Deserialize<'de> for TimePoint {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<TimePoint, D::Error> {
        from.deserialize_any(Point)
    }
}

/// Reads a [`TimePoint`]; what it is not is told with what it may be, a date of TOML without quotes too.
struct Point;

impl Visitor<'_> for Point {
    type Value = TimePoint;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, or a date in quotes, as \"2026-01-31T12:00:00Z\"")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<TimePoint, E> {
        Ok(TimePoint::Number(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<TimePoint, E> {
        i64::try_from(number).map(TimePoint::Number).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<TimePoint, E> {
        Ok(TimePoint::Text(text.into()))
    }
}

impl SeriesSpec {
    /// Says whether it can be meant.
    pub fn check(&self) -> Result<(), SeriesError> {
        let bad = |key: &str, found: String, expected: &str| {
            Err(SeriesError::BadSpec { key: key.into(), found, expected: expected.into() })
        };
        let between = |key: &str, found: usize, least: usize| match (least..=MOST).contains(&found) {
            true => Ok(()),
            false => bad(key, found.to_string(), &format!("from {least} to {MOST}")),
        };
        between("features", self.features.len(), 1)?;
        between("window", self.window, 1)?;
        between("stride", self.stride, 1)?;
        let labels = matches!(self.class, None | Some(ClassTarget::Column { .. })) && self.values.is_empty();
        between("horizon", self.horizon, if labels { 0 } else { 1 })?;
        if self.window.saturating_mul(self.features.len()) > MOST << 8 {
            let found = format!("{} steps of {} features", self.window, self.features.len());
            return bad("window", found, "at most 2^28 numbers");
        }
        for (at, name) in self.features.iter().enumerate() {
            if self.features[..at].contains(name) {
                return bad("features", format!("`{name}` twice"), "each column once");
            }
        }
        let answer = self.class.as_ref().map(ClassTarget::column).filter(|_| self.horizon == 0);
        if let Some(column) = answer.filter(|column| self.features.iter().any(|feature| feature == column)) {
            let found = format!("`{column}`, which is the class of the same step (`horizon` is 0)");
            return bad("features", found, "columns that do not say the answer");
        }
        if self.class.is_none() && self.values.is_empty() {
            return bad("class", "nothing, as `values` is".into(), "one of them");
        }
        match &self.class {
            Some(ClassTarget::Direction { flat, .. }) if !(flat.is_finite() && *flat >= 0.0) => {
                return bad("class.direction.flat", flat.to_string(), "a finite number not below 0");
            }
            Some(ClassTarget::Thresholds { at, .. }) => {
                let rises = at.windows(2).all(|pair| pair[0] < pair[1]) && at.iter().all(|t| t.is_finite());
                if at.len() >= MOST_CLASSES {
                    let found = format!("a list of {} numbers", at.len());
                    return bad("class.thresholds.at", found, &format!("at most {}", MOST_CLASSES - 1));
                }
                if at.is_empty() || !rises {
                    return bad("class.thresholds.at", format!("{at:?}"), "finite numbers, each above the last");
                }
            }
            Some(ClassTarget::Column { classes, .. }) if !(2..=MOST_CLASSES as u32).contains(classes) => {
                return bad("class.column.classes", classes.to_string(), &format!("2 to {MOST_CLASSES}"));
            }
            _ => {}
        }
        match &self.validation {
            Some(Validation { fraction: Some(fraction), from: None, .. }) if *fraction > 0.0 && *fraction < 1.0 => {
                Ok(())
            }
            Some(Validation { fraction: Some(fraction), from: None, .. }) => {
                bad("validation.fraction", fraction.to_string(), "above 0 and below 1")
            }
            Some(Validation { fraction: None, from: Some(from), .. }) => match from.as_time() {
                Some((TimeForm::Instant, _)) if self.time.is_none() => {
                    let found = "a date, which needs `time`".into();
                    bad("validation.from", found, "a number of rows where no column has times")
                }
                Some(_) => Ok(()),
                None => bad("validation.from", format!("{from:?}"), "a number, or a date as `2026-01-31T12:00:00Z`"),
            },
            Some(_) => bad("validation", "not one of `fraction` and `from`".into(), "exactly one"),
            None => Ok(()),
        }
    }

    /// Columns that are foretold from, each once.
    pub(crate) fn cells(&self) -> Vec<&str> {
        let mut names = Vec::new();
        let columns = self.values.iter().map(|value| value.column.as_str());
        for name in self.class.iter().map(ClassTarget::column).chain(columns) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}
