//! `[data.series]`: rows of numbers in time, in place of texts.
//!
//! A pure reading of what was said; columns and rows are looked at by whoever opens the files.

use plimsoll_data::series::{SeriesError, SeriesSpec};

use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::program::Allow;
use plimsoll_plan::trained::TrainSpec;

use super::resolve::Resolver;
use super::{DataTable, Job};
use crate::args::JobFlags;
use crate::render::Fail;
use crate::settings::Pins;

/// What a job calls this kind of data.
pub const SERIES: &str = "series";

/// Keys that say something about texts.
const OF_TEXTS: [&str; 12] = [
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
    "data.unpack",
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

    /// Takes down where a job says what only texts have, for one who looks at its data alone.
    pub(super) fn note_texts(&mut self, data: &DataTable) {
        let DataTable { eval, packed, long, max_len, oversized, unpack, .. } = data;
        self.pick("data.eval", None, eval.clone());
        self.pick("data.packed", None, packed.clone());
        self.pick("data.long", None, long.clone());
        self.pick("data.max_len.source", None, max_len.source.clone());
        self.pick("data.max_len.target", None, max_len.target.clone());
        self.pick("data.max_len.tokens", None, max_len.tokens.clone());
        self.pick("data.oversized", None, oversized.clone());
        self.pick("data.unpack", None, unpack.clone());
    }

    /// Refuses choices that only models of texts leave.
    pub(super) fn no_choices_of_texts(
        &self,
        train: &TrainSpec,
        precision: Dtype,
        allow: &Allow,
        pins: &Pins,
    ) -> Result<(), Fail> {
        let said = [
            ("model.train", matches!(train, TrainSpec::Lora(_)), "= `lora` "),
            ("train.precision", precision != Dtype::F32, "= `bf16` "),
            ("allow.precision", allow.bf16_weights, ""),
            ("allow.lora", allow.lora.is_some(), ""),
            ("allow.base", allow.quantise.is_some(), ""),
            ("allow.length", allow.shorter.is_some(), ""),
            ("pin.loss_chunk", pins.loss_chunk.is_some(), ""),
            ("pin.optimizer_in_backward", pins.optimizer_in_backward == Some(true), "= `true` "),
        ];
        match said.into_iter().find(|(_, said, _)| *said) {
            None => Ok(()),
            Some((key, _, value)) => {
                Err(self.refuse(key, format!("{value}is for models of texts, and the data are series")))
            }
        }
    }
}
