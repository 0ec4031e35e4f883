//! A random job, over texts or over series, as the contract asks about it.

use std::path::Path;

use super::flags::Flags;
use super::job::{Budget, Job};
use super::series_job::SeriesJob;

/// A job.
#[derive(Clone, Debug)]
pub enum Drawn {
    Texts(Box<Job>),
    Series(Box<SeriesJob>),
}

impl From<Job> for Drawn {
    fn from(job: Job) -> Drawn {
        Drawn::Texts(Box::new(job))
    }
}

impl From<SeriesJob> for Drawn {
    fn from(job: SeriesJob) -> Drawn {
        Drawn::Series(Box::new(job))
    }
}

impl Drawn {
    pub fn number(&self) -> u64 {
        match self {
            Drawn::Texts(job) => job.number,
            Drawn::Series(job) => job.number,
        }
    }

    pub fn steps(&self) -> usize {
        match self {
            Drawn::Texts(job) => job.steps,
            Drawn::Series(job) => job.steps,
        }
    }

    pub fn budget(&self) -> Budget {
        match self {
            Drawn::Texts(job) => job.budget,
            Drawn::Series(job) => job.budget,
        }
    }

    /// Evaluations of the whole run.
    pub fn evaluations(&self) -> usize {
        match self {
            Drawn::Texts(job) => job.evaluations(),
            Drawn::Series(job) => job.evaluations(),
        }
    }

    /// The file of weights that the run leaves.
    pub fn result(&self) -> &'static str {
        match self {
            Drawn::Texts(job) => job.result(),
            Drawn::Series(_) => "model/model.safetensors",
        }
    }

    /// Writes model and data into `dir`.
    pub fn write(&self, dir: &Path) {
        match self {
            Drawn::Texts(job) => job.write(dir),
            Drawn::Series(job) => job.write(dir),
        }
    }

    /// The flags of `plan` and `train`, without a budget.
    pub fn flags(&self, dir: &Path) -> Flags {
        match self {
            Drawn::Texts(job) => job.flags(dir),
            Drawn::Series(job) => job.flags(dir),
        }
    }

    pub fn is_series(&self) -> bool {
        matches!(self, Drawn::Series(_))
    }
}
