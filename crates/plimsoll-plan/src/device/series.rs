//! What a model of series takes on a card besides its tensors: the batch on its way there, and scratch of its ops.
//!
//! The engine cuts its work by the same functions, so scratch is what its kernels use.

use super::{CudaForm, STEP_WORDS, panel_words, row_chunks};
use crate::dtype::Dtype;
use crate::op::{AttentionShape, ConvShape, LstmShape, MaxRows, SeriesOp, Side};
use crate::place::aligned;
use crate::series_batch::SERIES_ARRAYS;
use crate::spec::SeriesSpec;
use crate::tape::Store;

/// Facts of a staged batch before its numbers of rows: share of a mixed sample, how far its partner is, first sample.
pub const SERIES_FACTS: usize = 3;

/// Steps of a sample on every side that ops of a model run over, those of the first block first, a single one last.
pub fn series_sides(spec: &SeriesSpec) -> impl Iterator<Item = usize> {
    (0..=spec.conv.len()).map(|nth| spec.at_block(nth).1).chain([1])
}

/// Arrays of a staged batch on a card, in words each: facts and the rows of each side, then those of the CPU's batch.
pub fn series_arrays(spec: &SeriesSpec, samples: usize) -> [usize; 1 + SERIES_ARRAYS] {
    let [inputs, classes, values, starts, sample, offset] = spec.batch(samples).arrays();
    [SERIES_FACTS + series_sides(spec).count(), inputs, classes, values, starts, sample, offset]
}

/// Words of the staging area on a card: the step's numbers, then the arrays.
pub fn series_staged_words(spec: &SeriesSpec, samples: usize) -> usize {
    STEP_WORDS + series_arrays(spec, samples).iter().map(|words| aligned(*words)).sum::<usize>()
}

/// Numbers that are gathered at a time for a product: enough to fill a card, and no more than a small one has to spare.
pub(crate) const GATHERED: usize = 16 << 20;
/// With little scratch.
const GATHERED_LEAN: usize = 2 << 20;

/// Rows of a width that are gathered at a time.
pub fn gathered_rows(rows: usize, width: usize, form: &CudaForm) -> usize {
    (gathered_numbers(form) / width.max(1)).clamp(1, rows.max(1))
}

fn gathered_numbers(form: &CudaForm) -> usize {
    if form.products < CudaForm::PRODUCTS { GATHERED_LEAN } else { GATHERED }
}

fn gathered_words(rows: usize, width: usize, form: &CudaForm) -> usize {
    aligned(form.activations.words(gathered_rows(rows, width, form) * width))
}

/// Chunks that the sums of a batch norm are cut into.
pub fn stats_chunks(rows: usize) -> usize {
    rows.div_ceil(256).clamp(1, 512)
}

/// Words of the doubles of a batch norm: two sums a column and chunk, and the two of all chunks.
pub fn stats_words(rows: usize, width: usize) -> usize {
    aligned(2 * 2 * (stats_chunks(rows) + 1) * width)
}

impl ConvShape {
    /// Numbers that a step's output is made of.
    pub fn depth(&self) -> usize {
        self.inputs * self.kernel
    }
}

/// Units of an LSTM's state that a block of a card holds the weights of.
pub const LSTM_UNITS: usize = 16;
/// The widest state that is walked by one launch; wider ones take two launches a step.
pub const LSTM_WALKED: usize = 512;
/// Words between the counters of two groups of blocks.
pub const LSTM_COUNTER: usize = 32;

impl LstmShape {
    /// Blocks that share the state of a group of samples.
    pub fn slices(&self) -> usize {
        self.hidden.div_ceil(LSTM_UNITS)
    }

    /// Words of the counters by which blocks wait for each other: a group has a sample at least.
    pub fn counter_words(&self, samples: usize) -> usize {
        samples.max(1) * LSTM_COUNTER
    }

    /// Words of the shares of a state's gradient, of this step and of the one before it.
    pub fn share_words(&self, samples: usize) -> usize {
        aligned(2 * self.slices() * samples * self.hidden)
    }
}

impl AttentionShape {
    /// Samples of one head whose scores are held at a time, where attention is products of the matrix library and what is
    /// between them: over samples of equal length in f32. `tables` of scores are held of each. None where it is not.
    pub fn samples_at_a_time(&self, samples: usize, form: &CudaForm, tables: usize) -> Option<usize> {
        let equal = matches!(self.queries, Side::Steps(_)) && self.keys == self.queries;
        let plain = !self.causal && self.window.is_none() && self.heads == self.kv_heads;
        let at_a_time = gathered_numbers(form) / (tables * self.max_queries * self.max_keys).max(1);
        (equal && plain && form.activations == Dtype::F32 && at_a_time > 0).then_some(at_a_time.min(samples.max(1)))
    }

    /// Words of those tables.
    pub(super) fn score_words(&self, samples: usize, form: &CudaForm, tables: usize) -> usize {
        let at_a_time = self.samples_at_a_time(samples, form, tables).unwrap_or(0);
        tables * aligned(at_a_time * self.max_queries * self.max_keys)
    }

    /// Launches of a pass in which a head of some samples takes `each`.
    pub(super) fn launches(&self, samples: usize, form: &CudaForm, tables: usize, each: usize) -> usize {
        let parts = self.samples_at_a_time(samples, form, tables).map_or(0, |at_a_time| samples.div_ceil(at_a_time));
        1 + each * self.heads * parts
    }
}

/// Scratch of one op beside the matrix library's, in words.
pub(super) fn series_scratch(op: &SeriesOp, store: &Store, rows: &MaxRows, form: &CudaForm) -> usize {
    let samples = rows.samples;
    let panel = |id| panel_words(store, id, form);
    match op {
        SeriesOp::Conv { shape, weight, .. } => {
            panel(*weight) + gathered_words(samples * shape.steps, shape.depth(), form)
        }
        SeriesOp::ConvInput { shape, weight, .. } => {
            let turned = aligned(form.activations.words(shape.weights()));
            panel(*weight) + turned + gathered_words(samples * shape.steps, shape.back().depth(), form)
        }
        SeriesOp::ConvWeight { shape, .. } => gathered_words(samples * shape.steps, shape.depth(), form),
        SeriesOp::BatchStats { side, width, .. } => stats_words(rows.of(*side), *width),
        SeriesOp::NormPoolBackward { shape, .. } => {
            stats_words(samples * (shape.steps / shape.pool.max(1)), shape.width)
        }
        // Both directions of a layer are walked at once.
        SeriesOp::Lstm { shape, weights, .. } => {
            panel(weights.input).max(2 * (panel(weights.state) + aligned(shape.counter_words(samples))))
        }
        SeriesOp::LstmBackward { shape, state_weight, .. } => {
            let carry = aligned(2 * samples * shape.hidden);
            2 * (panel(*state_weight) + aligned(shape.counter_words(samples)) + shape.share_words(samples) + carry)
        }
        SeriesOp::LstmInput { input_weight, .. } => panel(*input_weight),
        SeriesOp::LstmWeight { shape, .. } => {
            let count = samples * shape.count();
            let gathered = gathered_words(count, shape.inputs, form).max(gathered_words(count, shape.hidden, form));
            gathered.max(aligned(row_chunks(count) * 4 * shape.hidden))
        }
        SeriesOp::AdditivePool { weight, .. } => panel(*weight),
        SeriesOp::AdditivePoolBackward { steps, units, weight, .. } => {
            let count = samples * steps;
            panel(*weight) + 2 * aligned(count) + aligned(samples) + aligned(row_chunks(count) * units)
        }
        _ => 0,
    }
}

/// Launches of one op, as a captured step counts them.
pub(super) fn series_launches(op: &SeriesOp, rows: &MaxRows, form: &CudaForm) -> usize {
    let samples = rows.samples;
    let parts = |count: usize, width: usize| 2 * count.div_ceil(gathered_rows(count, width, form));
    match op {
        SeriesOp::Conv { shape, .. } | SeriesOp::ConvWeight { shape, .. } => {
            2 + parts(samples * shape.steps, shape.depth())
        }
        SeriesOp::ConvInput { shape, .. } => 2 + parts(samples * shape.steps, shape.back().depth()),
        SeriesOp::LstmWeight { shape, .. } => {
            let count = samples * shape.count();
            3 + parts(count, shape.inputs) + parts(count, shape.hidden)
        }
        SeriesOp::AdditivePoolBackward { .. } => 6,
        SeriesOp::Lstm { .. } | SeriesOp::LstmBackward { .. } | SeriesOp::AdditivePool { .. } => 4,
        SeriesOp::NormPoolBackward { .. } => 3,
        SeriesOp::BatchStats { .. } | SeriesOp::Loss { .. } => 2,
        _ => 1,
    }
}
