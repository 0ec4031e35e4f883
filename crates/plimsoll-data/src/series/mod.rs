//! Data of the kind `series`: rows of numbers in time, as windows and what comes behind them.
//!
//! Files are CSV, Parquet or Arrow, here or elsewhere; rows are of one series or of several. [`Series::open`] looks at every row, finds the
//! instant at which validation begins, fits a [`Normalisation`] on what is before it and stores each row once; a [`SeriesLoader`] computes
//! windows of them as they are asked for. Invariants: windows are never stored; nothing behind the cut has a part in training, which is checked;
//! the stream of samples is a function of files, spec, seed and [`Cursor`](crate::Cursor); memory stays below a formula
//! ([`SeriesHeap`]). It knows no model and no engine.
//!
//! Read in this order: `spec` (what is asked), `windows` (which rows a sample is made of), `walk` and `read` (rows of files), `open` (the passes),
//! `store`, `loader`, `score`.

mod arrow;
mod csv;
mod cut;
mod error;
mod file_of_rows;
mod files;
mod fit;
mod heap;
mod loader;
mod names;
mod open;
mod parquet;
mod read;
mod scale;
mod score;
mod spec;
mod store;
mod target;
mod time;
mod walk;
mod windows;

use std::path::Path;

use plimsoll_plan::batch::IGNORE;
use plimsoll_plan::series_batch::SeriesShape;

pub use error::SeriesError;
pub use heap::{SeriesHeap, opening_bytes};
pub use loader::{SeriesBatch, SeriesLoader, SeriesSettings};
pub use open::SeriesOpening;
pub use scale::{Normalisation, Scale, SeriesScales};
pub use score::{Confusion, Score, Scores};
pub use spec::{ClassTarget, Missing, Normalise, Of, SeriesBy, SeriesSpec, TimePoint, Validation, ValueTarget};
pub use windows::Part;

use store::Store;
use target::Targets;
use time::TimeForm;
use windows::{Samples, Stretch};

use crate::DataError;

/// Series that were opened.
#[derive(Debug)]
pub struct Series {
    spec: SeriesSpec,
    stretches: Box<[Stretch]>,
    normalisation: Normalisation,
    store: Store,
    parts: [Samples; 2],
    targets: Targets,
    facts: SeriesFacts,
}

/// What was found out about series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SeriesFacts {
    /// Rows of all of them.
    pub rows: u64,
    /// How many there are.
    pub series: u64,
    /// Numbers of a step.
    pub features: usize,
    /// Numbers to be foretold.
    pub values: usize,
    /// Classes, where there are some.
    pub classes: Option<u32>,
    /// Windows of the training part.
    pub training_samples: u64,
    /// Windows of the validation.
    pub validation_samples: u64,
    /// The time at which validation begins.
    pub cut: Option<i64>,
    /// The latest time of the training part, where rows have one.
    #[serde(default)]
    pub latest: Option<i64>,
    /// Times are nanoseconds since 1970, else numbers of the data's own.
    #[serde(default)]
    pub instants: bool,
    /// What all rows take, in memory or in a file.
    pub row_bytes: u64,
    /// They are in memory.
    pub held: bool,
    /// Bytes of the files that lie elsewhere.
    #[serde(default)]
    pub remote_bytes: u64,
    /// Rows, times and numbers, as one number: tells these data from others.
    pub digest: u64,
    /// What they are normalised by, series by series, as one number.
    #[serde(default)]
    pub normalised: u64,
    /// Where each series is normalised by itself: those of which nothing is known, which are normalised as all together are.
    #[serde(default)]
    pub unknown_series: u64,
}

impl SeriesFacts {
    /// A time of these data, as people write it.
    pub fn told(&self, time: i64) -> String {
        TimeForm::of(self.instants).told(time)
    }
}

/// The cells of two rows.
#[derive(Debug)]
struct Cells {
    now: Box<[f64]>,
    then: Box<[f64]>,
}

impl Series {
    /// What was asked.
    pub fn spec(&self) -> &SeriesSpec {
        &self.spec
    }

    /// What features are normalised by: goes with the model.
    pub fn normalisation(&self) -> &Normalisation {
        &self.normalisation
    }

    /// What was found out.
    pub fn facts(&self) -> &SeriesFacts {
        &self.facts
    }

    /// By which each value is normalised.
    pub fn value_scales(&self) -> Vec<Scale> {
        let of = |which: usize| self.targets.scales.get(which).copied().unwrap_or(Scale::NONE);
        (0..self.targets.values()).map(of).collect()
    }

    /// The earliest time of a part that has windows, where rows have one.
    pub fn begin(&self, part: Part) -> Option<i64> {
        self.part(part).begin(part, &self.stretches).filter(|_| self.spec.time.is_some())
    }

    /// Windows of a part.
    pub fn samples(&self, part: Part) -> u64 {
        self.part(part).count()
    }

    /// Names of the series and their rows, in the order in which they first came.
    pub fn names(&self) -> impl Iterator<Item = (&str, u64)> {
        self.stretches.iter().map(|stretch| (&*stretch.name, stretch.rows))
    }

    /// A micro-batch of so many windows.
    pub fn shape(&self, samples: usize) -> SeriesShape {
        let SeriesFacts { features, values, .. } = self.facts;
        SeriesShape { samples, window: self.spec.window, features, values }
    }

    /// How often each class occurs in a part, and how often none is known.
    pub fn class_counts(&self, part: Part) -> Result<(Vec<u64>, u64), DataError> {
        let mut counts = vec![0; self.facts.classes.unwrap_or(0) as usize];
        let mut unknown = 0;
        self.each_sample(part, &mut |now, then| match self.targets.class(now, then) {
            IGNORE => unknown += 1,
            class => counts[class as usize] += 1,
        })?;
        Ok((counts, unknown))
    }

    /// Hands the cells of all samples of a part to `visit`, in their order.
    fn each_sample(&self, part: Part, visit: &mut dyn FnMut(&[f64], &[f64])) -> Result<(), DataError> {
        let mut now = self.store.in_order(self.facts.rows);
        let mut then = self.store.in_order(self.facts.rows);
        for number in 0..self.samples(part) {
            let rows = self.part(part).rows(number);
            visit(now.row(rows.last)?, then.row(rows.target)?);
        }
        Ok(())
    }

    fn part(&self, part: Part) -> &Samples {
        match part {
            Part::Training => &self.parts[0],
            Part::Validation => &self.parts[1],
        }
    }

    fn scratch(&self) -> Cells {
        let cells = || vec![0.0; self.spec.cells().len()].into();
        Cells { now: cells(), then: cells() }
    }

    fn read_cells(&self, part: Part, number: u64, cells: &mut Cells) -> Result<(), DataError> {
        let rows = self.part(part).rows(number);
        self.store.cells(rows.last, &mut cells.now)?;
        self.store.cells(rows.target, &mut cells.then)
    }

    /// Fills the window and the values of a sample; its class.
    fn fill(
        &self,
        part: Part,
        number: u64,
        cells: &mut Cells,
        inputs: &mut [f32],
        values: &mut [f32],
    ) -> Result<u32, DataError> {
        self.store.features(self.part(part).rows(number).first, inputs)?;
        self.read_cells(part, number, cells)?;
        for (which, value) in values.iter_mut().enumerate() {
            *value = self.targets.scaled(which, &cells.now, &cells.then);
        }
        Ok(self.targets.class(&cells.now, &cells.then))
    }
}

/// Reads a normalisation that was saved with a model.
pub fn read_normalisation(path: &Path) -> Result<Normalisation, DataError> {
    Ok(Normalisation::from_json(&fs_err::read_to_string(path)?, path)?)
}
