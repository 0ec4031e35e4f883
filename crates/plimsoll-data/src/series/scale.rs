//! Normalisation: mean and spread of each column over the training part, and what becomes of a number by them.
//!
//! Invariant: fitted in one pass that loses nothing to large offsets (Welford 1962, of what numbers differ from the first by), in f64; a number is normalised in f64 and rounded once,
//! so `((x - mean) / std).astype(float32)` of numpy is the same. A column that does not change is moved, not stretched. Written as texts that
//! give the same bits back. It knows no files and no rows.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::SeriesError;
use super::spec::{Missing, Normalise, SeriesSpec, ValueTarget};
use crate::order::mix;

/// Mean and standard deviation (of the part itself, as numpy's `std` and sklearn's `StandardScaler` have it).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// The mean.
    #[serde(with = "exact")]
    pub mean: f64,
    /// The standard deviation; 1 where the column does not change.
    #[serde(with = "exact")]
    pub std: f64,
}

impl Scale {
    /// Changes nothing.
    pub const NONE: Scale = Scale { mean: 0.0, std: 1.0 };

    /// The number, normalised.
    pub fn apply(self, number: f64) -> f64 {
        (number - self.mean) / self.std
    }

    /// The number that was normalised.
    pub fn undo(self, number: f64) -> f64 {
        number * self.std + self.mean
    }
}

/// Mean and spread of numbers as they come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spread {
    count: u64,
    /// The first of them; what follows is of what they differ from it by, which has no offset that digits are lost to.
    first: f64,
    mean: f64,
    /// Sum of the squares of what they differ from the mean by.
    squares: f64,
}

impl Spread {
    pub fn add(&mut self, number: f64) {
        if self.count == 0 {
            self.first = number;
        }
        self.count += 1;
        let number = number - self.first;
        let off = number - self.mean;
        self.mean += off / self.count as f64;
        self.squares += off * (number - self.mean);
    }

    /// None where they are so large that it is not finite.
    pub fn scale(&self) -> Option<Scale> {
        if self.count == 0 {
            return Some(Scale::NONE);
        }
        let std = (self.squares / self.count as f64).sqrt();
        let std = if std == 0.0 { 1.0 } else { std };
        let mean = self.first + self.mean;
        (mean.is_finite() && std.is_finite()).then_some(Scale { mean, std })
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// All that was fitted on the training part: goes with the model, and is applied to what it is asked of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalisation {
    /// Columns of the features, in their order.
    pub features: Vec<String>,
    /// Over what they are normalised.
    pub over: Normalise,
    /// Whether means were found at all: without normalisation they are only for what is missing.
    pub means: bool,
    /// Of all series together, by feature.
    pub all: Vec<Scale>,
    /// Of single series.
    #[serde(default)]
    pub series: Vec<SeriesScales>,
    /// The values to be foretold.
    #[serde(default)]
    pub values: Vec<ValueTarget>,
    /// Of these, as they are foretold (their change, or return); none where they are given as they are.
    #[serde(default)]
    pub value_scales: Vec<Scale>,
    /// The latest time that the model was trained on, by this data or before; none where rows have no times.
    #[serde(default)]
    pub until: Option<i64>,
    /// That time is nanoseconds since 1970, else a number of the data's own.
    #[serde(default)]
    pub instants: bool,
}

/// What was fitted on one series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeriesScales {
    /// Its name.
    pub name: String,
    /// By feature.
    pub scales: Vec<Scale>,
}

impl Normalisation {
    /// Writes it as the text of a file, piece by piece.
    pub fn write_json(&self, mut out: &mut dyn Write) -> io::Result<()> {
        serde_json::to_writer(&mut out, self)?;
        out.write_all(b"\n")
    }

    /// That text.
    pub fn to_json(&self) -> String {
        let mut text = Vec::new();
        // A list in memory takes everything.
        let _ = self.write_json(&mut text);
        String::from_utf8(text).unwrap_or_default()
    }

    /// How long it is.
    pub fn json_bytes(&self) -> u64 {
        let mut count = Count(0);
        let _ = self.write_json(&mut count);
        count.0
    }

    /// From such a text, which was read from `path`.
    pub fn from_json(text: &str, path: &Path) -> Result<Normalisation, SeriesError> {
        let bad = |reason: String| SeriesError::BadNormalisation { path: path.into(), reason };
        let read: Normalisation = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
        let scales = read.series.iter().flat_map(|series| &series.scales).chain(&read.all).chain(&read.value_scales);
        let good = |scale: &Scale| scale.mean.is_finite() && scale.std.is_finite() && scale.std > 0.0;
        if !scales.into_iter().all(good) {
            return Err(bad("expected finite means and standard deviations above 0".into()));
        }
        let lengths = read.series.iter().map(|series| series.scales.len()).chain([read.all.len()]);
        if lengths.into_iter().any(|length| length != read.features.len()) {
            return Err(bad("expected as many scales as features".into()));
        }
        if !read.value_scales.is_empty() && read.values.len() != read.value_scales.len() {
            return Err(bad("expected as many scales as values".into()));
        }
        Ok(read)
    }

    /// Says whether it belongs to `spec`: the same features, normalised in the same way, and the same values, in the same unit.
    pub(crate) fn check(&self, spec: &SeriesSpec) -> Result<(), SeriesError> {
        let refuse = |expected: String, found: String| Err(SeriesError::OtherNormalisation { expected, found });
        let features = |names: &[String]| format!("features {}", names.join(", "));
        if self.features != spec.features {
            return refuse(features(&spec.features), features(&self.features));
        }
        let over = |over: Normalise| format!("`normalise = \"{}\"`", over.name());
        if self.over != spec.normalise {
            return refuse(over(spec.normalise), over(self.over));
        }
        if self.values != spec.values {
            return refuse(told(&spec.values), told(&self.values));
        }
        let scaled = !self.value_scales.is_empty();
        if !spec.values.is_empty() && scaled != spec.scale_values {
            let told = |scaled: bool| format!("`scale_values = {scaled}`");
            return refuse(told(spec.scale_values), told(scaled));
        }
        if spec.missing == Missing::Mean && !self.means {
            return refuse("`missing = \"mean\"`".into(), "data of which no means were taken".into());
        }
        Ok(())
    }

    /// Notes that a model is trained on rows up to `latest` as well. Instants and plain numbers cannot be compared: of both, the later
    /// training's is kept.
    pub fn trained_until(&mut self, latest: Option<i64>, instants: bool) {
        if latest.is_some() {
            let before = self.until.filter(|_| self.instants == instants);
            (self.until, self.instants) = (before.max(latest), instants);
        }
    }

    /// Which of its series each of these is; none is normalised as all together are.
    pub(crate) fn own<'a>(&self, names: impl Iterator<Item = &'a str>) -> Vec<Option<usize>> {
        let places: HashMap<&str, usize> =
            self.series.iter().enumerate().map(|(at, series)| (series.name.as_str(), at)).collect();
        names.map(|name| places.get(name).copied()).collect()
    }

    /// What series are normalised by, whatever they are called, and what stands for what is missing of them, as one number.
    pub(crate) fn digest(&self, missing: Missing, own: &[Option<usize>]) -> u64 {
        let of_series = |own: &Option<usize>| own.map_or(&self.all, |own| &self.series[own].scales);
        let scales = self.all.iter().chain(own.iter().flat_map(of_series)).chain(&self.value_scales);
        scales.fold(mix(self.over as u64) ^ missing as u64, |digest, Scale { mean, std }| {
            mix(mix(digest ^ mean.to_bits()) ^ std.to_bits())
        })
    }

    /// Heap of it, in bytes.
    pub(crate) fn heap_bytes(&self) -> u64 {
        let text = |text: &String| text.capacity() + size_of::<String>();
        let scales = |scales: &Vec<Scale>| scales.capacity() * size_of::<Scale>();
        let series = |series: &SeriesScales| series.name.capacity() + scales(&series.scales);
        let series = self.series.iter().map(series).sum::<usize>() + self.series.capacity() * size_of::<SeriesScales>();
        let features: usize = self.features.iter().map(text).sum();
        let values: usize = self.values.iter().map(|value| text(&value.column) + size_of::<ValueTarget>()).sum();
        (features + values + scales(&self.all) + scales(&self.value_scales) + series) as u64
    }
}

/// Counts what is written, and keeps nothing of it.
struct Count(u64);

impl Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Values as a message names them.
fn told(values: &[ValueTarget]) -> String {
    let each = |value: &ValueTarget| format!("the {} of `{}`", value.of.name(), value.column);
    let list: Vec<String> = values.iter().map(each).collect();
    if list.is_empty() { "no values".into() } else { format!("values {}", list.join(", ")) }
}

/// Numbers as texts that give the same bits back; a JSON number may lose the last one in some readers.
mod exact {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(number: &f64, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&format!("{number:?}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(|_| D::Error::custom(format!("expected a number as a text, found `{text}`")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::spec::Of;

    fn spread(numbers: &[f64]) -> Scale {
        let mut spread = Spread::default();
        numbers.iter().for_each(|number| spread.add(*number));
        spread.scale().unwrap()
    }

    #[test]
    fn a_large_offset_costs_nothing() {
        let scale = spread(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!((scale.mean, scale.std), (5.0, 2.0));
        let far = spread(&[1e9 + 2.0, 1e9 + 4.0, 1e9 + 4.0, 1e9 + 4.0, 1e9 + 5.0, 1e9 + 5.0, 1e9 + 7.0, 1e9 + 9.0]);
        assert_eq!((far.mean, far.std), (1e9 + 5.0, 2.0));
    }

    #[test]
    fn a_column_that_does_not_change_is_moved_alone() {
        let scale = spread(&[0.1; 1000]);
        assert_eq!((scale.mean, scale.std), (0.1, 1.0));
        assert_eq!(scale.apply(0.1), 0.0);
        assert_eq!(Spread::default().scale(), Some(Scale::NONE));
        let mut huge = Spread::default();
        [1e300, -1e300].iter().for_each(|number| huge.add(*number));
        assert_eq!(huge.scale(), None);
    }

    #[test]
    fn what_is_written_comes_back_to_the_bit() {
        let scale = Scale { mean: 0.1 + 0.2, std: 5e-324 };
        let whole = Normalisation {
            features: vec!["a".into()],
            over: Normalise::Series,
            means: true,
            all: vec![scale],
            series: vec![SeriesScales { name: "x".into(), scales: vec![Scale { mean: 1.0 / 3.0, std: 1e300 / 7.0 }] }],
            values: vec![ValueTarget { column: "a".into(), of: Of::Change }],
            value_scales: vec![Scale { mean: -f64::MIN_POSITIVE / 3.0, std: 1.0 }],
            until: Some(i64::MIN),
            instants: true,
        };
        let path = Path::new("normalisation.json");
        assert_eq!(Normalisation::from_json(&whole.to_json(), path).unwrap(), whole);
        assert_eq!(whole.json_bytes(), whole.to_json().len() as u64);
        let bad = whole.to_json().replace("5e-324", "0.0");
        assert!(Normalisation::from_json(&bad, path).unwrap_err().to_string().contains("above 0"));
        let short = Normalisation { all: Vec::new(), ..whole };
        assert!(Normalisation::from_json(&short.to_json(), path).unwrap_err().to_string().contains("as many scales"));
    }
}
