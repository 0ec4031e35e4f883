//! Candidates for a model of series. They are few: a micro-batch, blocks whose convolutions are computed again, and how far
//! apart an LSTM keeps its cells. So each is placed, and none has an outline.

use super::{Candidate, Search};
use crate::choices::Choices;
use crate::cost::{Work, tape_work};
use crate::program::compile;
use crate::series::distances;
use crate::spec::SeriesSpec;

impl Search<'_> {
    /// The model, where it is one of series.
    pub(super) fn series(&self) -> Option<&SeriesSpec> {
        self.job.spec.series()
    }

    /// Work of one update.
    pub(super) fn series_work(&self, choices: &Choices) -> Work {
        let program = compile(self.job, choices);
        let sum = |placed| tape_work(&program, placed).into_iter().fold(Work::default(), |sum, work| sum + work);
        let micro = program.micro.as_ref().map_or(Work::default(), sum);
        let update = program.update.as_ref().map_or(Work::default(), sum);
        micro * (self.job.effective_batch / choices.micro_batch) as f64 + update
    }

    /// One candidate, placed.
    pub(super) fn series_candidate(&self, choices: Choices) -> Candidate {
        self.series_loaded(self.series_work(&choices).seconds(&self.terms.rates), choices)
    }

    fn series_loaded(&self, compute: f64, choices: Choices) -> Candidate {
        let seconds = self.with_loading(compute, choices.loader_threads);
        Candidate { choices, least: self.place(choices).ram.peak, seconds }
    }

    /// How far apart cells may be kept.
    fn distances(&self, spec: &SeriesSpec) -> Vec<usize> {
        self.pins.lstm_every.map_or_else(|| distances(spec, &[4, 8, 16]), |every| vec![every])
    }

    /// Every candidate that the pins leave. Where the micro-batch is part of the result, there is one: the whole batch.
    pub(super) fn series_candidates(&self, spec: &SeriesSpec) -> Vec<Candidate> {
        let micro_batches = match self.pins.micro_batch {
            None if spec.batch_matters() => vec![self.job.effective_batch],
            _ => self.micro_batches(),
        };
        let blocks = match self.pins.recompute {
            Some(held) => vec![held.min(self.blocks())],
            None => (0..=self.blocks()).collect(),
        };
        let mut list = Vec::new();
        for micro_batch in micro_batches {
            for recompute in &blocks {
                for lstm_every in self.distances(spec) {
                    let choices = Choices { recompute: *recompute, lstm_every, ..Choices::plain(micro_batch) };
                    let compute = self.series_work(&choices).seconds(&self.terms.rates);
                    for loader_threads in self.loaders(compute) {
                        list.push(self.series_loaded(compute, Choices { loader_threads, ..choices }));
                    }
                }
            }
        }
        list
    }
}
