//! `[data.series]`: rows of numbers in time, in place of texts.
//!
//! A pure reading of what was said; columns and rows are looked at by whoever opens the files.

use plimsoll_data::series::{SeriesError, SeriesSpec};

use super::Job;
use super::resolve::Resolver;
use crate::args::JobFlags;
use crate::render::Fail;

/// What a job calls this kind of data.
pub const SERIES: &str = "series";

/// Keys that say something about texts.
const OF_TEXTS: [&str; 11] = [
    "data.mixture",
    "data.eval",
    "data.columns.source",
    "data.columns.target",
    "data.max_len.source",
    "data.max_len.target",
    "data.max_len.tokens",
    "data.packed",
    "data.long",
    "data.window",
    "data.oversized",
];

impl Resolver<'_> {
    /// How series become samples, where the data are series.
    pub(super) fn series(&mut self, job: &Job, flags: &JobFlags) -> Result<Option<SeriesSpec>, Fail> {
        let named = self.pick("data.kind", flags.kind.clone(), job.data.kind.clone());
        let Some(spec) = self.pick("data.series", None, job.data.series.clone()) else {
            return match named.as_deref() {
                Some(SERIES) => Err(self
                    .refuse("data.kind", "= `series` needs to know columns and window")
                    .hint("give the table `[data.series]`; docs/series.md has its keys")),
                _ => Ok(None),
            };
        };
        if let Some(other) = named.filter(|name| name != SERIES) {
            let fact = format!("is for `data.kind` = `series`, and the kind is `{other}`");
            return Err(self.refuse("data.series", fact));
        }
        match spec.check() {
            Ok(()) => Ok(Some(spec)),
            Err(SeriesError::BadSpec { key, found, expected }) => {
                let place = self.places.get("data.series").map(|place| format!("{place}: ")).unwrap_or_default();
                Err(Fail::usage(format!("{place}`data.series.{key}`: expected {expected}, found {found}")))
            }
            Err(other) => Err(self.refuse("data.series", format!("cannot be meant: {other}"))),
        }
    }

    /// Refuses what only texts have.
    pub(super) fn no_texts(&self) -> Result<(), Fail> {
        match OF_TEXTS.into_iter().find(|key| self.origins.contains_key(key)) {
            None => Ok(()),
            Some("data.eval") => Err(self
                .refuse("data.eval", "is for texts, and the data are series")
                .hint("say what is kept for validation: `validation = { fraction = 0.2 }` in `[data.series]`")),
            Some(key) => Err(self.refuse(key, "is for texts, and the data are series")),
        }
    }
}
