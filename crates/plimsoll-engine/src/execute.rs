//! A frame: one run of a tape. Each op is looked up once and becomes one kernel call.
//!
//! The slices handed to a kernel come from places that the plan proved disjoint for as long as both tensors live.

mod series;

use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::op::{Cols, Gradient, Op, Place, Side, Write};
use plimsoll_plan::program::{Placed, Program};
use plimsoll_plan::tape::Id;
use plimsoll_plan::train::OptimizerSpec;

use crate::arena::Arena;
use crate::cpu::attention::{Columns, Samples, attention_forward};
use crate::cpu::attention_backward::{Forward, attention_backward};
use crate::cpu::bias::{BiasSpec, bias_collect, bias_expand};
use crate::cpu::cache::{Cache, Prompt, attention_step, cache_append, cross_step, decode_step};
use crate::cpu::column_sum::column_sum;
use crate::cpu::copy::copy_columns;
use crate::cpu::drop::drop_rows;
use crate::cpu::embed::{Positions, embed_backward, embed_forward, positions_backward};
use crate::cpu::gated_gelu::{gated_gelu_backward, gated_gelu_forward};
use crate::cpu::gated_silu::{gated_silu_backward, gated_silu_forward};
use crate::cpu::gelu::{gelu_backward, gelu_forward};
use crate::cpu::gradient_norm::sum_of_squares;
use crate::cpu::head_norm::{head_norm_backward, head_norm_forward};
use crate::cpu::layer_norm::{layer_norm_apply, layer_norm_backward, layer_norm_forward};
use crate::cpu::loss::{Head, loss_backward, loss_forward};
use crate::cpu::matmul::{Matrix, Output, Right, matmul};
use crate::cpu::norm::{norm_apply, norm_backward, norm_forward};
use crate::cpu::relu::{relu_backward, relu_forward};
use crate::cpu::residual::residual_forward;
use crate::cpu::rope::{rope, rope_table};
use crate::cpu::series_loss::Mix;
use crate::cpu::weight::WeightMut;
use crate::cpu::weights::Weights;
use crate::cpu::{Cores, Rows};
use crate::optimize;
use crate::philox::Dropper;
use crate::pool::Shared;
use crate::series_staging::SeriesStaging;
use crate::staging::{Span, Staging};
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
    /// Which new token this step makes, from 0.
    pub position: usize,
    /// Position of each hypothesis' token in its text (decoders).
    pub at: &'a [u32],
    /// Hypotheses per prompt.
    pub beams: usize,
    /// First row of each prompt, and the end.
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
    /// The batch, where it is one of series.
    series: Option<&'a SeriesStaging>,
    /// How its samples are mixed.
    mix: Option<Mix>,
    cores: Cores,
    /// The part of the batch that ops run over.
    pub span: Span,
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
        series: Option<&'a SeriesStaging>,
        cores: Cores,
    ) -> Frame<'a> {
        Frame {
            program,
            placed,
            arena,
            staging,
            series,
            mix: None,
            cores,
            span: staging.all(),
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
        self.run_seen(ops, |_| {});
    }

    /// The same; `seen` is called behind each op.
    pub fn run_seen(&mut self, ops: &[Op], mut seen: impl FnMut(&Op)) {
        for op in ops {
            self.execute(op);
            seen(op);
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
    pub(crate) fn get(&self, id: Id) -> &'a [f32] {
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

    /// A weight in its storage.
    fn weights(&self, id: Id) -> Weights<'a> {
        let store = &self.program.store;
        Weights::new(self.get(id), store.dtype(id), store.elements[id.0 as usize])
    }

    /// A gradient to write, where there is one.
    fn gradient(&self, gradient: Gradient) -> Option<(&'a mut [f32], Write)> {
        gradient.map(|(id, write)| (self.get_mut(id), self.write(write)))
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
            (Side::Steps(steps), ..) => {
                let windows = self.windows();
                Rows::Even { first: windows.first(), samples: windows.samples(), steps }
            }
            (Side::Beam, Some(beam), _) => Rows::Listed { sample: beam.map, position: beam.map },
            (Side::Source, _, Some(prompts)) => Rows::Listed { sample: prompts.sample, position: prompts.position },
            (Side::Source, ..) => self.staging.source_map(&self.span),
            _ => self.staging.target_map(&self.span),
        }
    }

    fn count(&self, side: Side) -> usize {
        self.rows(side).len()
    }

    /// Tokens of a side.
    fn ids(&self, side: Side) -> &'a [u32] {
        match (side, &self.beam, &self.prompts) {
            (Side::Beam, Some(beam), _) => beam.tokens,
            (Side::Source, _, Some(prompts)) => prompts.tokens,
            (Side::Source, ..) => self.staging.source(&self.span),
            _ => self.staging.inputs(&self.span),
        }
    }

    /// Position of each row in its text.
    fn positions(&self, side: Side) -> &'a [u32] {
        match (side, &self.beam, &self.prompts) {
            (Side::Beam, Some(beam), _) => beam.at,
            (_, _, Some(prompts)) => prompts.position,
            _ => self.staging.source_at(&self.span),
        }
    }

    fn samples(&self, queries: Side, keys: Side) -> Samples<'a> {
        if let Some(prompts) = &self.prompts {
            // Without dropout, nobody asks whose rows they are.
            return Samples {
                queries: prompts.starts,
                keys: prompts.starts,
                sample: prompts.starts,
                offset: prompts.starts,
            };
        }
        if let (Side::Steps(_), Some(windows)) = (queries, self.series) {
            let [starts, sample, offset] = windows.documents();
            return Samples { queries: starts, keys: starts, sample, offset };
        }
        let starts = |side| match side {
            Side::Source => self.staging.source_starts(&self.span),
            _ => self.staging.target_starts(&self.span),
        };
        let (sample, offset) = self.staging.documents(&self.span);
        Samples { queries: starts(queries), keys: starts(keys), sample, offset }
    }

    fn dropper(&self, place: Option<Place>) -> Option<Dropper> {
        place.map(|p| Dropper::new(self.seed, self.update as u32, p.key, p.rate))
    }

    /// Whether a gradient is overwritten now.
    fn write(&self, write: Write) -> Write {
        match write {
            Write::SetFirst if self.first_micro => Write::Set,
            Write::SetFirst => Write::Add,
            other => other,
        }
    }

    fn product<'b>(&self, (m, n, k): (usize, usize, usize), a: Matrix, b: impl Into<Right<'b>>, out: Output) {
        // SAFETY: the plan gave these tensors these shapes, apart from each other.
        unsafe { matmul(self.cores.simd, self.cores.threads, m, n, k, a, b, out, self.workspace()) };
    }

    /// Columns of a tensor to read, as a matrix.
    fn matrix(&self, cols: Cols) -> Matrix {
        Matrix::rows(&self.get(cols.id)[cols.start..], cols.stride)
    }

    /// Columns of a tensor to write.
    fn output(&self, cols: Cols, add: bool, scale: f32) -> Output {
        let data = self.at(cols.id).0.wrapping_add(cols.start);
        Output { add, scale, ..Output::rows(data, cols.stride) }
    }

    fn execute(&mut self, op: &Op) {
        let cores = self.cores;
        match op {
            Op::Part { nth } => {
                let each = self.program.part_samples;
                self.span = self.staging.span(nth * each..(nth + 1) * each);
            }
            Op::Embed { side, table, positions, out, width, drop } => {
                let positions = positions.map(|id| Positions { table: self.weights(id), at: self.positions(*side) });
                embed_forward(
                    cores,
                    self.rows(*side),
                    *width,
                    self.ids(*side),
                    self.weights(*table),
                    positions,
                    self.get_mut(*out),
                    self.dropper(*drop).as_ref(),
                );
            }
            Op::EmbedBackward { side, grad, table_grad, width, drop, by_position, skip } => {
                let (grad, table_grad, drop) = (self.get(*grad), self.get_mut(*table_grad), self.dropper(*drop));
                let rows = self.rows(*side);
                match by_position {
                    true => {
                        let at = self.positions(*side);
                        positions_backward(cores, rows, *width, at, grad, table_grad, drop.as_ref());
                    }
                    false => {
                        embed_backward(cores, rows, *width, self.ids(*side), grad, table_grad, drop.as_ref(), *skip)
                    }
                }
            }
            Op::Norm { side, x, weight, bias, stats, out, width, eps, drop } => {
                let (x, weight, stats, out) =
                    (self.get(*x), self.get(*weight), self.get_mut(*stats), self.get_mut(*out));
                match bias {
                    None => {
                        let (rows, drop) = (self.rows(*side), self.dropper(*drop));
                        norm_forward(cores, rows, *width, *eps, x, weight, stats, out, drop.as_ref());
                    }
                    Some(bias) => {
                        let count = self.count(*side);
                        layer_norm_forward(cores, count, *width, *eps, x, weight, self.get(*bias), stats, out);
                    }
                }
            }
            Op::NormApply { side, x, weight, bias, stats, out, width, drop } => {
                let (x, weight, stats, out) = (self.get(*x), self.get(*weight), self.get(*stats), self.get_mut(*out));
                match bias {
                    None => {
                        let (rows, drop) = (self.rows(*side), self.dropper(*drop));
                        norm_apply(cores, rows, *width, x, weight, stats, out, drop.as_ref());
                    }
                    Some(bias) => {
                        layer_norm_apply(cores, self.count(*side), *width, x, weight, self.get(*bias), stats, out);
                    }
                }
            }
            Op::NormBackward { side, dy, x, weight, bias, stats, dx, add, weight_grad, bias_grad, width } => {
                let (dy, x, weight, stats) = (self.get(*dy), self.get(*x), self.get(*weight), self.get(*stats));
                let (dx, weight_grad, count) = (self.get_mut(*dx), self.gradient(*weight_grad), self.count(*side));
                let (width, space) = (*width, self.workspace());
                match bias {
                    None => norm_backward(cores, count, width, dy, x, weight, stats, dx, *add, weight_grad, space),
                    Some(_) => {
                        let bias_grad = self.gradient(*bias_grad);
                        layer_norm_backward(
                            cores,
                            count,
                            width,
                            dy,
                            x,
                            weight,
                            stats,
                            dx,
                            *add,
                            weight_grad,
                            bias_grad,
                            space,
                        );
                    }
                }
            }
            Op::HeadNorm { side, x, weight, rstd, out, heads, eps, .. } => {
                let (x, out, count) = (self.columns(*x), self.columns(*out), self.count(*side));
                head_norm_forward(cores, count, *heads, *eps, x, self.get(*weight), self.get_mut(*rstd), out);
            }
            Op::HeadNormBackward { side, dy, x, weight, rstd, dx, weight_grad, heads, .. } => {
                head_norm_backward(
                    cores,
                    self.count(*side),
                    *heads,
                    self.columns(*dy),
                    self.columns(*x),
                    self.get(*weight),
                    self.get(*rstd),
                    self.columns(*dx),
                    self.gradient(*weight_grad),
                    self.workspace(),
                );
            }
            Op::RopeTable { out, rope, width, len } => rope_table(rope, *width, *len, self.get_mut(*out)),
            Op::Rope { side, x, table, heads, width, back } => {
                let (at, columns) = (self.positions(*side), self.columns(*x));
                rope(cores, at, *heads, *width, columns, self.get(*table), *back);
            }
            Op::Linear { side, x, weight, bias, out, add, scale, inputs, outputs, in_out } => {
                let a = Matrix::rows(self.get(*x), *inputs);
                let b = match in_out {
                    true => Right::weights(self.weights(*weight), 0, *outputs),
                    false => Right::weights(self.weights(*weight), 0, *inputs).transposed(),
                };
                let out = Output { bias: bias.map(|id| self.get(id).as_ptr()), ..self.output(*out, *add, *scale) };
                self.product((self.count(*side), *outputs, *inputs), a, b, out);
            }
            Op::LinearInput { side, dy, weight, dx, add, scale, inputs, outputs, in_out } => {
                let b = match in_out {
                    true => Right::weights(self.weights(*weight), 0, *outputs).transposed(),
                    false => Right::weights(self.weights(*weight), 0, *inputs),
                };
                let out = self.output(Cols { id: *dx, start: 0, stride: *inputs }, *add, *scale);
                self.product((self.count(*side), *inputs, *outputs), self.matrix(*dy), b, out);
            }
            Op::LinearWeight { side, dy, x, grad, write, scale, inputs, outputs, in_out } => {
                let (dy, x) = (self.matrix(*dy), Matrix::rows(self.get(*x), *inputs));
                let (rows, add) = (self.count(*side), self.write(*write) == Write::Add);
                let stride = if *in_out { *outputs } else { *inputs };
                let out = self.output(Cols { id: *grad, start: 0, stride }, add, *scale);
                match in_out {
                    true => self.product((*inputs, *outputs, rows), x.transposed(), dy, out),
                    false => self.product((*outputs, *inputs, rows), dy.transposed(), x, out),
                }
            }
            Op::ColumnSum { side, dy, grad, write, width } => {
                let (x, write) = (self.columns(*dy), self.write(*write));
                let grad = &mut self.get_mut(*grad)[..*width];
                column_sum(cores, self.count(*side), x, grad, write, self.workspace());
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
            Op::Drop { side, g, out, width, drop } => {
                let dropper = Dropper::new(self.seed, self.update as u32, drop.key, drop.rate);
                drop_rows(cores, self.rows(*side), *width, self.get(*g), self.get_mut(*out), &dropper);
            }
            Op::Copy { side, from, to, width } => {
                copy_columns(self.count(*side), *width, self.columns(*from), self.columns(*to));
            }
            Op::Gelu { side, h, out, width } => {
                gelu_forward(cores, self.count(*side), *width, self.get(*h), self.get_mut(*out));
            }
            Op::GeluBackward { side, dh, h, width } => {
                gelu_backward(cores, self.count(*side), *width, self.get_mut(*dh), self.get(*h));
            }
            Op::GatedSilu { side, ab, out, width } => {
                gated_silu_forward(cores, self.count(*side), *width, self.get(*ab), self.get_mut(*out));
            }
            Op::GatedSiluBackward { side, dh, ab, width } => {
                gated_silu_backward(cores, self.count(*side), *width, self.get_mut(*dh), self.get_mut(*ab));
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
            Op::BiasExpand { table, delta, shape, buckets } => {
                let spec = BiasSpec { buckets: buckets.count, max_distance: buckets.max_distance };
                bias_expand(shape, spec, self.get(*table), self.get_mut(*delta));
            }
            Op::BiasCollect { ddelta, table_grad, write, shape, buckets } => {
                let spec = BiasSpec { buckets: buckets.count, max_distance: buckets.max_distance };
                bias_collect(shape, spec, self.get(*ddelta), self.get_mut(*table_grad), self.write(*write));
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
            Op::Loss { hidden, weight, losses, dhidden, grad, logits, chunk, width, vocab, scale } => {
                let head =
                    Head { weight: self.weights(*weight), width: *width, vocab: *vocab, scale: *scale, chunk: *chunk };
                let (labels, losses) = (self.staging.labels(&self.span), self.get_mut(*losses));
                loss_backward(
                    cores,
                    head,
                    labels,
                    self.get(*hidden),
                    losses,
                    self.get_mut(*dhidden),
                    self.gradient(*grad),
                    self.get_mut(*logits),
                    self.workspace(),
                );
                self.loss_sum += losses[..labels.len()].iter().map(|l| f64::from(*l)).sum::<f64>();
                self.stopped = if self.loss_sum.is_finite() { self.spoiled } else { Some(NotFinite::Loss) };
            }
            Op::LossOnly { hidden, weight, losses, logits, chunk, width, vocab, scale } => {
                let head =
                    Head { weight: self.weights(*weight), width: *width, vocab: *vocab, scale: *scale, chunk: *chunk };
                let (labels, losses) = (self.staging.labels(&self.span), self.get_mut(*losses));
                loss_forward(cores, head, labels, self.get(*hidden), losses, self.get_mut(*logits), self.workspace());
                self.loss_sum += losses[..labels.len()].iter().map(|l| f64::from(*l)).sum::<f64>();
            }
            Op::Series(op) => self.execute_series(op),
            Op::Zero { tensor, write } => {
                if self.write(*write) == Write::Set {
                    self.get_mut(*tensor).fill(0.0);
                }
            }
            Op::GradientNorm { gradients } => {
                let _ = gradients.iter().all(|id| self.judge(self.get(*id)));
            }
            Op::Clip => {
                // As torch.nn.utils.clip_grad_norm_.
                let clip = self.clip_norm.map_or(1.0, |most| (most / (self.norm() + 1e-6)).min(1.0));
                self.grad_scale = (self.mean * clip) as f32;
            }
            Op::Hold { .. } => {}
            Op::Update { param, weight, grad, state } => self.update_param(*param, *weight, *grad, state),
            Op::CacheAppend { kv, cache, start, width, stride, max_len } => {
                let beam = self.beam();
                cache_append(
                    beam.tokens.len(),
                    self.columns(*kv),
                    *width,
                    Columns { data: Shared(self.at(*cache).0), start: *start, stride: *stride },
                    *max_len,
                    beam.position,
                );
            }
            Op::DecodeStep { shape, q, prompt, cache, out } => {
                let beam = self.beam();
                decode_step(
                    cores,
                    shape,
                    beam.tokens.len(),
                    self.columns(*q),
                    Prompt { kv: self.columns(*prompt), starts: beam.source_starts, beams: beam.beams },
                    Cache {
                        data: self.get(*cache),
                        origin: beam.origin,
                        max_len: shape.max_queries,
                        position: beam.position,
                    },
                    None,
                    self.get_mut(*out),
                    self.workspace(),
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
                let head =
                    Head { weight: self.weights(*weight), width: *width, vocab: *vocab, scale: *scale, chunk: 0 };
                head.logits(cores, self.get(*hidden), self.beam().tokens.len(), self.get_mut(*out), self.workspace());
            }
        }
    }

    fn beam(&self) -> Beam<'a> {
        self.beam.expect("a decoding step is run with hypotheses")
    }

    fn update_param(&mut self, param: usize, weight: Id, grad: Id, state: &[Id]) {
        let place = &self.program.store.params[param];
        self.changed = true;
        let range = place.offset..place.offset + place.param.elements();
        let grad = &self.get(grad)[range.clone()];
        let words = self.get_mut(weight);
        let weight = match self.program.store.dtype(weight) {
            Dtype::Bf16 => {
                // SAFETY: the tensor holds halves; two of them fill each word.
                let bits = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u16>(), words.len() * 2) };
                WeightMut::Bf16 { bits: &mut bits[range], seed: self.seed, update: self.update, param: param as u32 }
            }
            _ => WeightMut::F32(&mut words[range]),
        };
        let mut state = state.iter().map(|id| self.get_mut(*id));
        let (seed, update, lr, grad_scale) = (self.seed, self.update, self.lr, self.grad_scale);
        let step = optimize::Step { update, lr, grad_scale, seed, param: param as u32 };
        let optimizer = self.optimizer.expect("a tape with updates is run with an optimizer");
        let matrix = place.param.shape.len() == 2;
        optimize::update(self.cores, optimizer, step, weight, grad, matrix, &mut state, self.workspace());
    }

    /// The tensor's numbers, for the host to read after a run.
    pub fn read(&self, id: Id) -> &'a [f32] {
        self.get(id)
    }
}
