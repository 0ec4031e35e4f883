//! Fitting a normalisation on the rows of the training part, and what a row becomes by one.
//!
//! Invariant: rows that are not before the cut are never added; a value that is missing and stands for the mean is none of the numbers that
//! the mean is of. It knows no files.

use super::error::SeriesError;
use super::scale::{Normalisation, Scale, SeriesScales, Spread};
use super::spec::{Missing, Normalise, SeriesSpec};

/// Means and spreads as rows come.
pub(crate) struct Fitting {
    all: Vec<Spread>,
    /// Of each series, one behind the other, where they are normalised by themselves.
    series: Vec<Spread>,
    by_series: bool,
}

impl Fitting {
    pub fn of(spec: &SeriesSpec) -> Fitting {
        let all = vec![Spread::default(); spec.features.len()];
        Fitting { all, series: Vec::new(), by_series: spec.normalise == Normalise::Series }
    }

    /// Whether anything is to be fitted.
    pub fn is_needed(spec: &SeriesSpec) -> bool {
        spec.normalise != Normalise::None || spec.missing == Missing::Mean
    }

    /// A row of the training part.
    pub fn add(&mut self, series: usize, features: &[f64]) {
        let width = features.len();
        if self.by_series && self.series.len() < (series + 1) * width {
            self.series.resize((series + 1) * width, Spread::default());
        }
        for (which, number) in features.iter().enumerate().filter(|(_, number)| !number.is_nan()) {
            self.all[which].add(*number);
            if self.by_series {
                self.series[series * width + which].add(*number);
            }
        }
    }

    pub fn finish(self, spec: &SeriesSpec, names: &[&str]) -> Result<Normalisation, SeriesError> {
        let scale = |(which, spread): (usize, &Spread)| {
            spread.scale().ok_or_else(|| SeriesError::NoSpread { column: spec.features[which].clone() })
        };
        let all: Vec<Scale> = self.all.iter().enumerate().map(scale).collect::<Result<_, _>>()?;
        let mut series = Vec::new();
        for (name, spreads) in names.iter().zip(self.series.chunks(all.len())) {
            // A series, or a column of it, that the training part has nothing of is normalised as all are.
            let own = |(which, spread): (usize, &Spread)| match spread.is_empty() {
                true => Ok(all[which]),
                false => scale((which, spread)),
            };
            if spreads.iter().any(|spread| !spread.is_empty()) {
                let scales = spreads.iter().enumerate().map(own).collect::<Result<_, _>>()?;
                series.push(SeriesScales { name: (*name).into(), scales });
            }
        }
        Ok(Normalisation {
            features: spec.features.clone(),
            over: spec.normalise,
            means: Fitting::is_needed(spec),
            all,
            series,
            values: spec.values.clone(),
            value_scales: Vec::new(),
            until: None,
            instants: false,
        })
    }
}

/// Makes rows of numbers that are stored.
pub(crate) struct Applying<'a> {
    normalisation: &'a Normalisation,
    /// Which of the normalisation's series each series is.
    own: Vec<Option<usize>>,
}

impl<'a> Applying<'a> {
    pub fn new(normalisation: &'a Normalisation, names: &[&str]) -> Applying<'a> {
        let own = match normalisation.series.is_empty() {
            true => Vec::new(),
            false => normalisation.own(names.iter().copied()),
        };
        Applying { normalisation, own }
    }

    /// Puts the features of a row into `out`; the first that f32 has no number for, where there is one.
    pub fn row(&self, series: usize, features: &[f64], out: &mut [f32]) -> Option<usize> {
        let own = self.own.get(series).copied().flatten();
        let scales = own.map_or(&self.normalisation.all, |own| &self.normalisation.series[own].scales);
        let mut bad = None;
        for (which, ((number, scale), out)) in features.iter().zip(scales).zip(out).enumerate() {
            let number = if number.is_nan() { scale.mean } else { *number };
            let number = if self.normalisation.over == Normalise::None { number } else { scale.apply(number) };
            *out = number as f32;
            if !out.is_finite() {
                bad = bad.or(Some(which));
            }
        }
        bad
    }
}
