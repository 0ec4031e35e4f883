//! What ops take on a card: a roofline of products at the card's rate, as far as they fill it, and of the bytes that move.

use super::{CardTerms, series};
use crate::device::{CudaForm, panel_words, read_form, update_groups};
use crate::dtype::Dtype;
use crate::op::{Op, Side, Write};
use crate::program::{Job, Placed, Program};
use crate::tape::{Id, Tape};
use crate::train::OptimizerSpec;

/// Speed of products with little scratch: some algorithms are not to be had. A guess on the careful side, so that it is taken
/// where memory is short.
const LEAN_SPEED: f64 = 0.95;

/// Seconds in which a kernel begins and ends without filling the card, beside what an empty one takes. Measured on an H200, as
/// what a step of many small ops takes longer.
const ENDS: f64 = 2e-6;

/// Seconds of one update.
pub(super) fn seconds(job: &Job, program: &Program, card: &CardTerms) -> f64 {
    let of = |placed: &Placed| {
        let cost = Cost { placed, program, card };
        let launches = update_groups(&placed.tape).len() * kernels_of_update(&job.optimizer);
        placed.tape.ops.iter().map(|op| cost.seconds(op)).sum::<f64>() + launches as f64 * cost.launch()
    };
    let batches = job.effective_batch.div_ceil(program.shape.samples) as f64;
    batches * program.micro.as_ref().map_or(0.0, of) + program.update.as_ref().map_or(0.0, of)
}

/// Kernels that update the parameters of one group.
fn kernels_of_update(optimizer: &OptimizerSpec) -> usize {
    if matches!(optimizer, OptimizerSpec::Adafactor { .. }) { 6 } else { 1 }
}

/// A matrix product: rows, columns, what is summed over, and bytes of its result.
pub(super) struct Product {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub out: usize,
}

/// What ops take on a card: a roofline of products and bytes.
pub(super) struct Cost<'a> {
    pub placed: &'a Placed,
    pub program: &'a Program,
    pub card: &'a CardTerms,
}

impl Cost<'_> {
    fn rows(&self, side: Side) -> usize {
        self.placed.rows.of(side)
    }

    /// Bytes of a number of an activation.
    pub(super) fn width(&self) -> usize {
        match self.program.device.cuda().map(|form| form.activations) {
            Some(Dtype::Bf16 | Dtype::F16) => 2,
            _ => 4,
        }
    }

    pub(super) fn moved(&self, bytes: usize) -> f64 {
        bytes as f64 / self.card.rates.bandwidth
    }

    /// How much of the card a product keeps busy: tiles of 128 x 128 in rounds over all processors; or smaller ones, or cut
    /// along the sum, which are less efficient.
    fn busy(&self, of: &Product) -> f64 {
        let processors = self.card.processors.max(1) as f64;
        let share = |tiles: f64| tiles / processors / (tiles / processors).ceil().max(1.0);
        let tiles = |side: usize| (of.m.div_ceil(side) * of.n.div_ceil(side)) as f64;
        let cut = share((tiles(128) * (of.k / 512).max(1) as f64).min(processors));
        let scratch = self.program.device.cuda().map_or(0, |form| form.products);
        let with_scratch = if scratch < CudaForm::PRODUCTS { LEAN_SPEED } else { 1.0 };
        with_scratch * share(tiles(128)).max(0.6 * share(tiles(64))).max(0.75 * cut)
    }

    pub(super) fn product(&self, of: Product) -> f64 {
        let flops = 2.0 * of.m as f64 * of.n as f64 * of.k as f64;
        let bytes = (of.m + of.n) * of.k * self.width() + of.out;
        (flops / self.card.rates.flops / self.busy(&of)).max(self.moved(bytes)) + self.launch()
    }

    pub(super) fn launch(&self) -> f64 {
        1.0 / self.card.rates.launches + ENDS
    }

    /// A weight written out for a product, where it has no form that products read.
    fn written_out(&self, weight: Id) -> f64 {
        let store = &self.program.store;
        let Some(form) = self.program.device.cuda().filter(|form| panel_words(store, weight, form) > 0) else {
            return 0.0;
        };
        let stored = store.tensors[read_form(store, weight).0 as usize].words;
        self.moved(4 * (stored + panel_words(store, weight, form))) + self.launch()
    }

    fn seconds(&self, op: &Op) -> f64 {
        let width = self.width();
        match op {
            Op::Linear { side, inputs, outputs, weight, add, .. } => {
                let (m, twice) = (self.rows(*side), 1 + usize::from(*add));
                let of = Product { m, n: *outputs, k: *inputs, out: m * outputs * width * twice };
                self.product(of) + self.written_out(*weight)
            }
            Op::LinearInput { side, inputs, outputs, weight, add, .. } => {
                let (m, twice) = (self.rows(*side), 1 + usize::from(*add));
                let of = Product { m, n: *inputs, k: *outputs, out: m * inputs * width * twice };
                self.product(of) + self.written_out(*weight)
            }
            Op::LinearWeight { side, inputs, outputs, write, .. } => {
                let twice = 1 + usize::from(*write != Write::Set);
                self.product(Product {
                    m: *outputs,
                    n: *inputs,
                    k: self.rows(*side),
                    out: outputs * inputs * 4 * twice,
                })
            }
            Op::Loss { width: wide, vocab, grad, chunk, weight, .. } => {
                let (rows, grads) = (self.rows(Side::Target), grad.is_some());
                let of_chunk = |rows: usize| self.loss_chunk(rows, *wide, *vocab, grads);
                let (whole, rest) = (rows / chunk.max(&1), rows % chunk.max(&1));
                // What a chunk adds its weights' gradient to is read and written at the end of its product, hidden behind nothing.
                let again = if grads { rows.div_ceil(*chunk.max(&1)).saturating_sub(1) } else { 0 };
                let added = again as f64 * self.moved(8 * vocab * wide);
                whole as f64 * of_chunk(*chunk) + of_chunk(rest) + added + self.written_out(*weight)
            }
            Op::Attention { shape, .. } | Op::AttentionBackward { shape, .. } => {
                let seen = if shape.causal { 0.5 } else { 1.0 };
                let passes = if matches!(op, Op::Attention { .. }) { 4.0 } else { 10.0 };
                let pairs = self.rows(shape.queries) as f64 * (shape.max_keys * shape.heads * shape.d_kv) as f64;
                // Attention's tiles reach about a third of what large products do.
                3.0 * seen * passes * pairs / self.card.rates.flops + 2.0 * self.launch()
            }
            // One for the gradients, and one that adds up.
            Op::GradientNorm { .. } => self.moved(4 * self.touched(op)) + 2.0 * self.launch(),
            Op::Series(op) => self.series(op),
            // Launched together.
            Op::Update { .. } => self.moved(4 * self.touched(op)),
            _ => self.moved(4 * self.touched(op)) + self.launch(),
        }
    }

    /// Words that an op reads and writes.
    pub(super) fn touched(&self, op: &Op) -> usize {
        let mut words = 0;
        op.touches(&mut |id| words += words_of(&self.placed.tape, self.program, id));
        words
    }

    /// Logits, their gradient, and what it is multiplied into, for some rows.
    fn loss_chunk(&self, rows: usize, wide: usize, vocab: usize, grads: bool) -> f64 {
        if rows == 0 {
            return 0.0;
        }
        let width = self.width();
        let logits = rows * vocab * width;
        let forward = self.product(Product { m: rows, n: vocab, k: wide, out: logits });
        let back = self.product(Product { m: rows, n: wide, k: vocab, out: rows * wide * width });
        let grad = || self.product(Product { m: vocab, n: wide, k: rows, out: 4 * vocab * wide });
        forward + self.moved(2 * logits) + self.launch() + back + if grads { grad() } else { 0.0 }
    }
}

/// Floating-point operations of an op.
fn op_flops(op: &Op, placed: &Placed) -> f64 {
    let rows = |side| placed.rows.of(side) as f64;
    match op {
        Op::Linear { side, inputs, outputs, .. }
        | Op::LinearInput { side, inputs, outputs, .. }
        | Op::LinearWeight { side, inputs, outputs, .. } => 2.0 * rows(*side) * (inputs * outputs) as f64,
        Op::Loss { width, vocab, grad, .. } => {
            let products = if grad.is_some() { 3.0 } else { 2.0 };
            2.0 * products * rows(Side::Target) * (width * vocab) as f64
        }
        Op::Attention { shape, .. } | Op::AttentionBackward { shape, .. } => {
            let seen = if shape.causal { 0.5 } else { 1.0 };
            let passes = if matches!(op, Op::Attention { .. }) { 4.0 } else { 10.0 };
            seen * passes * rows(shape.queries) * (shape.max_keys * shape.heads * shape.d_kv) as f64
        }
        Op::Series(op) => series::flops(op, placed.rows.samples),
        _ => 0.0,
    }
}

fn words_of(tape: &Tape, program: &Program, id: Id) -> usize {
    match tape.own(id) {
        Some(own) => tape.tensors[own].words,
        None => program.store.tensors[id.0 as usize].words,
    }
}

pub(super) fn flops_per_update(job: &Job, program: &Program) -> f64 {
    let micro = program.micro.as_ref();
    let each = micro.map_or(0.0, |placed| placed.tape.ops.iter().map(|op| op_flops(op, placed)).sum());
    each * job.effective_batch.div_ceil(program.shape.samples) as f64
}
