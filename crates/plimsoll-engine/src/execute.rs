//! A frame: one run of a tape. Each op is looked up once and becomes one kernel call.
//!
//! The slices handed to a kernel come from places that the plan proved disjoint for as long as both tensors live.

use plimsoll_plan::op::{Cols, Op, Place, Side, Write};
use plimsoll_plan::program::{Placed, Program};
use plimsoll_plan::tape::Id;
use plimsoll_plan::train::OptimizerSpec;

use crate::arena::Arena;
use crate::cpu::attention::{Columns, Samples, attention_forward};
use crate::cpu::attention_backward::{Forward, attention_backward};
use crate::cpu::bias::{BiasSpec, bias_collect, bias_expand};
use crate::cpu::cache::{attention_step, cache_append, cross_step};
use crate::cpu::drop::drop_backward;
use crate::cpu::embed::{embed_backward, embed_forward};
use crate::cpu::gated_gelu::{gated_gelu_backward, gated_gelu_forward};
use crate::cpu::gradient_norm::sum_of_squares;
use crate::cpu::loss::{Head, loss_backward, loss_forward};
use crate::cpu::matmul::{Matrix, Output, matmul};
use crate::cpu::norm::{norm_apply, norm_backward, norm_forward};
use crate::cpu::relu::{relu_backward, relu_forward};
use crate::cpu::residual::residual_forward;
use crate::cpu::{Cores, Rows};
use crate::optimize;
use crate::philox::Dropper;
use crate::pool::Shared;
use crate::staging::Staging;
use crate::step::NotFinite;

/// The hypotheses of a generation, as the decoding step sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beam<'a> {
    /// The last token of each.
    pub tokens: &'a [u32],
    /// Zeros, one per hypothesis: rows of the step have no dropout, so no place either.
    pub map: &'a [u32],
    /// Which cache row holds each position of each hypothesis.
    pub origin: &'a [u32],
    /// Position of this step.
    pub position: usize,
    /// Hypotheses per prompt.
    pub beams: usize,
    /// First source row of each prompt, and the end.
    pub source_starts: &'a [u32],
}

/// The sources of a generation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prompts<'a> {
    pub tokens: &'a [u32],
    pub starts: &'a [u32],
    pub sample: &'a [u32],
    pub position: &'a [u32],
}

/// One run of a tape.
pub(crate) struct Frame<'a> {
    program: &'a Program,
    placed: &'a Placed,
    arena: &'a Arena,
    staging: &'a Staging,
    cores: Cores,
    pub first_micro: bool,
    pub seed: u64,
    pub update: u64,
    pub optimizer: Option<&'a OptimizerSpec>,
    pub lr: Option<f64>,
    pub grad_scale: f32,
    pub loss_sum: f64,
    /// One over the target tokens of the update.
    pub mean: f64,
    /// Gradients longer than this are shortened to it.
    pub clip_norm: Option<f64>,
    /// Sum of squares of the gradients that the tape has judged.
    squares: f64,
    /// Nothing will come of this update: the pass is for its loss alone.
    pub spoiled: Option<NotFinite>,
    /// Why the tape was left.
    pub stopped: Option<NotFinite>,
    /// A weight was updated.
    pub changed: bool,
    pub beam: Option<Beam<'a>>,
    pub prompts: Option<Prompts<'a>>,
}

impl<'a> Frame<'a> {
    pub fn new(
        program: &'a Program,
        placed: &'a Placed,
        arena: &'a Arena,
        staging: &'a Staging,
        cores: Cores,
    ) -> Frame<'a> {
        Frame {
            program,
            placed,
            arena,
            staging,
            cores,
            first_micro: true,
            seed: 0,
            update: 0,
            optimizer: None,
            lr: None,
            grad_scale: 1.0,
            loss_sum: 0.0,
            mean: 1.0,
            clip_norm: None,
            squares: 0.0,
            spoiled: None,
            stopped: None,
            changed: false,
            beam: None,
            prompts: None,
        }
    }

    /// Runs the ops in order, up to one that finds a number not finite.
    pub fn run(&mut self, ops: &[Op]) {
        for op in ops {
            self.execute(op);
            if self.stopped.is_some() {
                return;
            }
        }
    }

    /// Norm of the mean gradient, as far as the tape has judged it.
    pub fn norm(&self) -> f64 {
        self.squares.sqrt() * self.mean
    }

    /// Adds up a gradient's squares; whether they are finite. If not, the tape stops here.
    fn judge(&mut self, gradient: &[f32]) -> bool {
        self.squares += sum_of_squares(self.cores, gradient);
        if !self.squares.is_finite() {
            self.stopped = Some(NotFinite::Gradient);
        }
        self.stopped.is_none()
    }

    fn at(&self, id: Id) -> (*mut f32, usize) {
        let (offset, words) = match self.placed.tape.own(id) {
            None => (self.program.store_offsets[id.0 as usize], self.program.store.tensors[id.0 as usize].words),
            Some(own) => {
                (self.program.parts.store + self.placed.places.offsets[own], self.placed.tape.tensors[own].words)
            }
        };
        assert!(offset + words <= self.arena.words());
        // SAFETY: inside the arena.
        (unsafe { self.arena.base().add(offset) }, words)
    }

    /// A tensor to read.
    fn get(&self, id: Id) -> &'a [f32] {
        let (data, words) = self.at(id);
        // SAFETY: the plan keeps every tensor that this op writes apart from it.
        unsafe { std::slice::from_raw_parts(data, words) }
    }

    /// A tensor to write. An op asks for each tensor it writes once.
    fn get_mut(&self, id: Id) -> &'a mut [f32] {
        let (data, words) = self.at(id);
        // SAFETY: the plan keeps it apart from every other tensor that lives now.
        unsafe { std::slice::from_raw_parts_mut(data, words) }
    }

    fn workspace(&self) -> &'a mut [f32] {
        let parts = self.program.parts;
        // SAFETY: the workspace part of the arena; one op runs at a time.
        unsafe { std::slice::from_raw_parts_mut(self.arena.base().add(parts.store + parts.transient), parts.workspace) }
    }

    fn columns(&self, cols: Cols) -> Columns {
        Columns { data: Shared(self.at(cols.id).0), start: cols.start, stride: cols.stride }
    }

    fn rows(&self, side: Side) -> Rows<'a> {
        match (side, &self.beam, &self.prompts) {
            (Side::Beam, Some(beam), _) => Rows { sample: beam.map, position: beam.map },
            (Side::Source, _, Some(prompts)) => Rows { sample: prompts.sample, position: prompts.position },
            (Side::Source, ..) => self.staging.source_map(),
            _ => self.staging.target_map(),
        }
    }

    fn samples(&self, queries: Side, keys: Side) -> Samples<'a> {
        let starts = |side| match (side, &self.prompts) {
            (Side::Source, Some(prompts)) => prompts.starts,
            (Side::Source, None) => self.staging.source_starts(),
            _ => self.staging.target_starts(),
        };
        let (sample, offset) = self.staging.samples();
        Samples { queries: starts(queries), keys: starts(keys), sample, offset }
    }

    fn dropper(&self, place: Option<Place>) -> Option<Dropper> {
        place.map(|p| Dropper::new(self.seed, self.update as u32, p.0, self.program.spec.dropout))
    }

    /// Whether a gradient is overwritten now.
    fn write(&self, write: Write) -> Write {
        match write {
            Write::SetFirst if self.first_micro => Write::Set,
            Write::SetFirst => Write::Add,
            other => other,
        }
    }

    fn product(&self, m: usize, n: usize, k: usize, a: Matrix, b: Matrix, out: Id, add: bool) {
        let out = Output { data: self.at(out).0, stride: n, add, scale: 1.0 };
        // SAFETY: the plan gave these tensors these shapes, apart from each other.
        unsafe { matmul(self.cores.simd, self.cores.threads, m, n, k, a, b, out, self.workspace()) };
    }

    fn execute(&mut self, op: &Op) {
        let cores = self.cores;
        match op {
            Op::Embed { side, table, out, width, drop } => {
                let ids = match (side, &self.beam, &self.prompts) {
                    (Side::Beam, Some(beam), _) => beam.tokens,
                    (Side::Source, _, Some(prompts)) => prompts.tokens,
                    (Side::Source, ..) => self.staging.source(),
                    _ => self.staging.inputs(),
                };
                embed_forward(
                    cores,
                    self.rows(*side),
                    *width,
                    ids,
                    self.get(*table),
                    self.get_mut(*out),
                    self.dropper(*drop).as_ref(),
                );
            }
            Op::EmbedBackward { side, grad, table_grad, width, drop } => {
                let ids = if *side == Side::Source { self.staging.source() } else { self.staging.inputs() };
                embed_backward(
                    cores,
                    self.rows(*side),
                    *width,
                    ids,
                    self.get(*grad),
                    self.get_mut(*table_grad),
                    self.dropper(*drop).as_ref(),
                );
            }
            Op::Norm { side, x, weight, rstd, out, width, drop } => {
                let eps = self.program.spec.norm_eps;
                let drop = self.dropper(*drop);
                norm_forward(
                    cores,
                    self.rows(*side),
                    *width,
                    eps,
                    self.get(*x),
                    self.get(*weight),
                    self.get_mut(*rstd),
                    self.get_mut(*out),
                    drop.as_ref(),
                );
            }
            Op::NormApply { side, x, weight, rstd, out, width, drop } => {
                let drop = self.dropper(*drop);
                norm_apply(
                    cores,
                    self.rows(*side),
                    *width,
                    self.get(*x),
                    self.get(*weight),
                    self.get(*rstd),
                    self.get_mut(*out),
                    drop.as_ref(),
                );
            }
            Op::NormBackward { side, dy, x, weight, rstd, dx, add, weight_grad, write, width } => {
                let (count, write) = (self.rows(*side).len(), self.write(*write));
                norm_backward(
                    cores,
                    count,
                    *width,
                    self.get(*dy),
                    self.get(*x),
                    self.get(*weight),
                    self.get(*rstd),
                    self.get_mut(*dx),
                    *add,
                    Some((self.get_mut(*weight_grad), write)),
                    self.workspace(),
                );
            }
            Op::Linear { side, x, weight, out, inputs, outputs } => {
                let (a, b) =
                    (Matrix::rows(self.get(*x), *inputs), Matrix::rows(self.get(*weight), *inputs).transposed());
                self.product(self.rows(*side).len(), *outputs, *inputs, a, b, *out, false);
            }
            Op::LinearInput { side, dy, weight, dx, add, inputs, outputs } => {
                let (a, b) = (Matrix::rows(self.get(*dy), *outputs), Matrix::rows(self.get(*weight), *inputs));
                self.product(self.rows(*side).len(), *inputs, *outputs, a, b, *dx, *add);
            }
            Op::LinearWeight { side, dy, x, grad, write, inputs, outputs } => {
                let (a, b) = (Matrix::rows(self.get(*dy), *outputs).transposed(), Matrix::rows(self.get(*x), *inputs));
                let add = self.write(*write) == Write::Add;
                self.product(*outputs, *inputs, self.rows(*side).len(), a, b, *grad, add);
            }
            Op::Residual { side, x, y, width, drop } => {
                residual_forward(
                    cores,
                    self.rows(*side),
                    *width,
                    self.get(*x),
                    self.get_mut(*y),
                    self.dropper(*drop).as_ref(),
                );
            }
            Op::DropBackward { side, g, out, width, drop } => {
                let dropper = Dropper::new(self.seed, self.update as u32, drop.0, self.program.spec.dropout);
                drop_backward(cores, self.rows(*side), *width, self.get(*g), self.get_mut(*out), &dropper);
            }
            Op::Relu { side, h, width, drop } => {
                relu_forward(cores, self.rows(*side), *width, self.get_mut(*h), self.dropper(*drop).as_ref());
            }
            Op::ReluBackward { side, dh, h, width, drop } => {
                let scale = self.dropper(*drop).map_or(1.0, |d| d.scale);
                relu_backward(cores, self.rows(*side).len(), *width, self.get_mut(*dh), self.get(*h), scale);
            }
            Op::GatedGelu { side, ab, out, width, drop } => {
                gated_gelu_forward(
                    cores,
                    self.rows(*side),
                    *width,
                    self.get(*ab),
                    self.get_mut(*out),
                    self.dropper(*drop).as_ref(),
                );
            }
            Op::GatedGeluBackward { side, dh, ab, dab, width, drop } => {
                let drop = self.dropper(*drop);
                gated_gelu_backward(
                    cores,
                    self.rows(*side),
                    *width,
                    self.get(*dh),
                    self.get(*ab),
                    self.get_mut(*dab),
                    drop.as_ref(),
                );
            }
            Op::BiasExpand { table, delta, shape } => {
                bias_expand(shape, self.bias_spec(), self.get(*table), self.get_mut(*delta))
            }
            Op::BiasCollect { ddelta, table_grad, write, shape } => {
                bias_collect(shape, self.bias_spec(), self.get(*ddelta), self.get_mut(*table_grad), self.write(*write));
            }
            Op::Attention { shape, q, k, v, bias, out, lse, drop } => {
                let (q, k, v) = (self.columns(*q), self.columns(*k), self.columns(*v));
                let samples = self.samples(shape.queries, shape.keys);
                let bias = bias.map(|b| self.get(b));
                let drop = self.dropper(*drop);
                attention_forward(
                    cores,
                    shape,
                    samples,
                    q,
                    k,
                    v,
                    bias,
                    self.get_mut(*out),
                    self.get_mut(*lse),
                    drop.as_ref(),
                    self.workspace(),
                );
            }
            Op::AttentionBackward { shape, q, k, v, bias, out, lse, dout, dq, dk, dv, dbias, drop } => {
                let forward = Forward {
                    q: self.columns(*q),
                    k: self.columns(*k),
                    v: self.columns(*v),
                    bias: bias.map(|b| self.get(b)),
                    out: self.get(*out),
                    lse: self.get(*lse),
                    dout: self.get(*dout),
                };
                let (dq, dk, dv) = (self.columns(*dq), self.columns(*dk), self.columns(*dv));
                let samples = self.samples(shape.queries, shape.keys);
                let dbias = dbias.map(|d| self.get_mut(d));
                let drop = self.dropper(*drop);
                attention_backward(cores, shape, samples, forward, dq, dk, dv, dbias, drop.as_ref(), self.workspace());
            }
            Op::Loss { hidden, weight, losses, dhidden, grad, write, logits, chunk, width, vocab, scale } => {
                let head =
                    Head { weight: self.get(*weight), width: *width, vocab: *vocab, scale: *scale, chunk: *chunk };
                let (labels, losses) = (self.staging.labels(), self.get_mut(*losses));
                let write = self.write(*write);
                loss_backward(
                    cores,
                    head,
                    labels,
                    self.get(*hidden),
                    losses,
                    self.get_mut(*dhidden),
                    self.get_mut(*grad),
                    write,
                    self.get_mut(*logits),
                    self.workspace(),
                );
                self.loss_sum += losses[..labels.len()].iter().map(|l| f64::from(*l)).sum::<f64>();
                self.stopped = if self.loss_sum.is_finite() { self.spoiled } else { Some(NotFinite::Loss) };
            }
            Op::LossOnly { hidden, weight, losses, logits, chunk, width, vocab, scale } => {
                let head =
                    Head { weight: self.get(*weight), width: *width, vocab: *vocab, scale: *scale, chunk: *chunk };
                let (labels, losses) = (self.staging.labels(), self.get_mut(*losses));
                loss_forward(cores, head, labels, self.get(*hidden), losses, self.get_mut(*logits), self.workspace());
                self.loss_sum += losses[..labels.len()].iter().map(|l| f64::from(*l)).sum::<f64>();
            }
            Op::Zero { tensor, write } => {
                if self.write(*write) == Write::Set {
                    self.get_mut(*tensor).fill(0.0);
                }
            }
            Op::GradientNorm { gradients } => {
                if gradients.iter().all(|id| self.judge(self.get(*id))) {
                    // As torch.nn.utils.clip_grad_norm_.
                    let clip = self.clip_norm.map_or(1.0, |most| (most / (self.norm() + 1e-6)).min(1.0));
                    self.grad_scale = (self.mean * clip) as f32;
                }
            }
            Op::Hold { .. } => {}
            Op::Update { param, weight, grad, state } => {
                let place = &self.program.store.params[*param];
                // A gradient of this tape alone is complete only now: it is judged whole, before the first parameter in it.
                let fresh = self.placed.tape.own(*grad).is_some() && place.offset == 0;
                if fresh && !self.judge(self.get(*grad)) {
                    return;
                }
                self.changed = true;
                let range = place.offset..place.offset + place.param.elements();
                let (weight, grad) = (&mut self.get_mut(*weight)[range.clone()], &self.get(*grad)[range]);
                let mut state = state.iter().map(|id| self.get_mut(*id));
                let step = optimize::Step { update: self.update, lr: self.lr, grad_scale: self.grad_scale };
                let optimizer = self.optimizer.expect("a tape with updates is run with an optimizer");
                let matrix = place.param.shape.len() == 2;
                optimize::update(cores, optimizer, step, weight.into(), grad, matrix, &mut state, self.workspace());
            }
            Op::CacheAppend { kv, cache, width, max_len } => {
                let beam = self.beam();
                cache_append(
                    beam.tokens.len(),
                    self.columns(*kv),
                    *width,
                    *max_len,
                    beam.position,
                    self.get_mut(*cache),
                );
            }
            Op::AttentionStep { shape, q, cache, bias, out } => {
                let beam = self.beam();
                attention_step(
                    cores,
                    shape,
                    beam.tokens.len(),
                    self.columns(*q),
                    self.get(*cache),
                    beam.origin,
                    beam.position,
                    self.get(*bias),
                    self.get_mut(*out),
                    self.workspace(),
                );
            }
            Op::CrossStep { shape, q, kv, out } => {
                let beam = self.beam();
                let (q, kv) = (self.columns(*q), self.columns(*kv));
                cross_step(
                    cores,
                    shape,
                    beam.tokens.len(),
                    beam.beams,
                    q,
                    kv,
                    beam.source_starts,
                    self.get_mut(*out),
                    self.workspace(),
                );
            }
            Op::Logits { hidden, weight, out, width, vocab, scale } => {
                let head = Head { weight: self.get(*weight), width: *width, vocab: *vocab, scale: *scale, chunk: 0 };
                head.logits(cores, self.get(*hidden), self.beam().tokens.len(), self.get_mut(*out), self.workspace());
            }
        }
    }

    fn beam(&self) -> Beam<'a> {
        self.beam.expect("a decoding step is run with hypotheses")
    }

    fn bias_spec(&self) -> BiasSpec {
        BiasSpec { buckets: self.program.spec.buckets, max_distance: self.program.spec.max_distance }
    }

    /// The tensor's numbers, for the host to read after a run.
    pub fn read(&self, id: Id) -> &'a [f32] {
        self.get(id)
    }
}
