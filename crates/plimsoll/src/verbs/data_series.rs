//! `plimsoll data inspect` of a job over series: rows, windows, where validation begins, how often each class occurs.

use std::fmt;

use plimsoll_data::series::{Normalisation, Part, Series, SeriesFacts};
use plimsoll_machine::Bytes;
use serde::Serialize;

use crate::job::mixture::JobData;
use crate::prepare::{SeriesReading, open_series_files, told_unknown};
use crate::render::{self, Fail, OrFail};

/// Names and features that are told one by one; of more there is a count.
const TOLD: usize = 12;

/// What is told of series.
#[derive(Serialize)]
struct Report {
    kind: &'static str,
    #[serde(flatten)]
    facts: SeriesFacts,
    window: usize,
    horizon: usize,
    /// Names of the series and their rows.
    names: Vec<(String, u64)>,
    /// How often each class occurs, and how often none is known.
    training_classes: Option<Counts>,
    validation_classes: Option<Counts>,
    normalisation: Normalisation,
}

#[derive(Serialize)]
struct Counts {
    counts: Vec<u64>,
    unknown: u64,
}

/// Looks at the series of a job and prints what is there.
pub(super) fn inspect(job: &JobData, reading: SeriesReading, json: bool) -> Result<(), Fail> {
    let Some(asked) = &job.series else { return Ok(()) };
    let series = open_series_files(reading, &job.files, asked, None)?;
    let facts = *series.facts();
    let report = Report {
        kind: crate::job::series::SERIES,
        facts,
        window: asked.window,
        horizon: asked.horizon,
        names: series.names().map(|(name, rows)| (name.to_string(), rows)).collect(),
        training_classes: counts(&series, Part::Training)?,
        validation_classes: counts(&series, Part::Validation)?,
        normalisation: series.normalisation().clone(),
    };
    if json { render::json(&report) } else { render::data(&report) }
}

fn counts(series: &Series, part: Part) -> Result<Option<Counts>, Fail> {
    if series.facts().classes.is_none() || series.samples(part) == 0 {
        return Ok(None);
    }
    let (counts, unknown) = series.class_counts(part).or_usage()?;
    Ok(Some(Counts { counts, unknown }))
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.counts.iter().sum::<u64>().max(1);
        for (class, count) in self.counts.iter().enumerate().take(TOLD) {
            let comma = if class == 0 { "" } else { ", " };
            write!(f, "{comma}{class}: {count} ({:.1} %)", 100.0 * *count as f64 / all as f64)?;
        }
        if self.counts.len() > TOLD {
            write!(f, ", and {} more", self.counts.len() - TOLD)?;
        }
        if self.unknown > 0 {
            write!(f, "; not known: {}", self.unknown)?;
        }
        // What weighs every class alike: the mean of all weights over samples is 1.
        let classes = self.counts.len() as f64;
        if self.counts.iter().all(|count| *count > 0) && self.counts.len() <= TOLD {
            let weight = |count: &u64| format!("{:.3}", all as f64 / (classes * *count as f64));
            write!(
                f,
                "; weights that balance them: [{}]",
                self.counts.iter().map(weight).collect::<Vec<_>>().join(", ")
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SeriesFacts {
            rows,
            series,
            features,
            values,
            training_samples,
            validation_samples,
            cut,
            row_bytes,
            held,
            ..
        } = self.facts;
        writeln!(f, "{rows} rows of {series} series, {features} features, {values} values to foretell")?;
        let place =
            if held { "in memory" } else { "in one file of the cache: they are more than half of `data.memory`" };
        writeln!(f, "rows take {}, {place}", Bytes(row_bytes))?;
        writeln!(
            f,
            "windows of {} steps, {} steps ahead: {training_samples} to train on, {validation_samples} for validation",
            self.window, self.horizon
        )?;
        if let Some(cut) = cut {
            writeln!(f, "validation begins at {}", self.facts.told(cut))?;
        }
        for (name, rows) in self.names.iter().take(TOLD).filter(|_| series > 1) {
            writeln!(f, "  {name}: {rows} rows")?;
        }
        if self.names.len() > TOLD {
            writeln!(f, "  and {} more", self.names.len() - TOLD)?;
        }
        if let Some(unknown) = told_unknown(&self.facts) {
            writeln!(f, "{unknown}")?;
        }
        if let Some(counts) = &self.training_classes {
            writeln!(f, "classes to train on: {counts}")?;
        }
        if let Some(counts) = &self.validation_classes {
            writeln!(f, "classes of validation: {counts}")?;
        }
        Ok(())
    }
}
