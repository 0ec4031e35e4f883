//! A run of a tape on the card: each op becomes the launches that its kernel's head comment asks for, or a product.
//!
//! How many rows there are stands in the card's memory; here only how many there may be at most counts, so that the same
//! launches serve every batch of about that size.

use plimsoll_plan::device::{
    CudaForm, HEAD_NORM_CHUNKS, norm_chunks, norm_in_one_pass, panel_words, read_form, row_chunks,
};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::op::{Cols, Gradient, Op, Place, Side, Write};
use plimsoll_plan::place::aligned;
use plimsoll_plan::program::{Placed, Program};
use plimsoll_plan::tape::Id;
use plimsoll_plan::train::OptimizerSpec;

use super::attention::Forward;
use super::call::{Call, Drop};
use super::card::{Address, Card};
use super::error::CudaError;
use super::kernels::{Kernel, Kernels};
use super::loss::Head;
use super::lt::{Each, Into, Number, Operand, Products};
use super::staged::{Array, Count, Fact, Layout, of_side};
use super::tables::{Addresses, Table};

/// Threads of a block, unless a kernel says otherwise.
pub(super) const BLOCK: usize = 256;

/// What launches go to.
#[derive(Debug)]
pub(crate) struct Machine {
    // Dropped in this order: what the context holds before the context.
    pub products: Products,
    pub kernels: Kernels,
    pub card: Card,
}

/// One run of a tape.
pub(crate) struct Run<'a> {
    pub machine: &'a mut Machine,
    pub program: &'a Program,
    pub placed: &'a Placed,
    pub tables: &'a [Table],
    pub maps: Address,
    pub layout: Layout,
    pub base: Address,
    pub form: CudaForm,
    pub optimizer: Option<&'a OptimizerSpec>,
    /// Rows of each part that launches are sized for: source, target.
    pub rows: &'a [(usize, usize)],
    /// Documents of a part that they are sized for.
    pub documents: usize,
    pub part: usize,
    pub first_micro: bool,
    /// There are exactly as many rows as launches are sized for: nothing lies behind them.
    pub exact: bool,
    /// An LSTM takes two launches a step, whatever the card could do.
    pub stepwise: bool,
    /// Everything is looked up, nothing is launched.
    pub rehearsal: bool,
}

/// A grid that walks over `elements`.
pub(super) fn walk(elements: usize) -> (usize, usize) {
    (elements.div_ceil(2048).clamp(1, 4096), 1)
}

impl Run<'_> {
    /// Runs all ops.
    pub fn run(&mut self) -> Result<(), CudaError> {
        let placed = self.placed;
        placed.tape.ops.iter().enumerate().try_for_each(|(at, op)| self.execute(at, op))
    }

    /// Runs all ops, each to its end before the next; `seen` gets the seconds that it took.
    pub fn run_seen(&mut self, mut seen: impl FnMut(&Op, f64)) -> Result<(), CudaError> {
        let placed = self.placed;
        self.machine.card.wait()?;
        for (at, op) in placed.tape.ops.iter().enumerate() {
            let begun = std::time::Instant::now();
            self.execute(at, op)?;
            self.machine.card.wait()?;
            seen(op, begun.elapsed().as_secs_f64());
        }
        Ok(())
    }

    pub(super) fn addresses(&self) -> Addresses<'_> {
        Addresses { program: self.program, placed: self.placed, base: self.base }
    }

    pub(super) fn at(&self, id: Id) -> Address {
        self.addresses().of(id)
    }

    pub(super) fn scratch(&self) -> Address {
        self.addresses().scratch()
    }

    pub(super) fn step(&self) -> Address {
        self.layout.step()
    }

    /// Number type of activations.
    pub(super) fn act(&self) -> Number {
        Number::of(self.form.activations)
    }

    /// The first of some columns of an activation.
    pub(super) fn columns(&self, cols: Cols) -> Address {
        self.at(cols.id) + (cols.start * self.act().bytes()) as u64
    }

    /// Rows that launches are sized for.
    pub(super) fn rows(&self, side: Side) -> usize {
        of_side(self.rows[self.part], side)
    }

    /// Where the number of rows stands.
    pub(super) fn rows_at(&self, side: Side) -> Address {
        if let Side::Steps(steps) = side {
            return self.layout.rows_of_steps(&self.program.spec, steps);
        }
        let count = if side == Side::Source { Count::SourceRows } else { Count::TargetRows };
        self.layout.count(self.part, count)
    }

    pub(super) fn array(&self, array: Array) -> Address {
        self.layout.at(self.part, array)
    }

    /// Tokens of a side.
    fn ids(&self, side: Side) -> Address {
        self.array(if side == Side::Source { Array::Source } else { Array::Inputs })
    }

    pub(super) fn drop(&self, side: Side, place: Option<Place>) -> Drop {
        if let Side::Steps(steps) = side {
            return Drop::of_steps(place, self.layout.fact(Fact::First), steps);
        }
        let (sample, position) = match side {
            Side::Source => (Array::SourceSample, Array::SourcePosition),
            _ => (Array::TargetSample, Array::TargetPosition),
        };
        Drop::of(place, self.array(sample), self.array(position))
    }

    /// A kernel whose weights, if it reads any, are plain f32.
    pub(super) fn kernel(&self, file: &'static str, name: &'static str) -> Kernel {
        Kernel { file, name, act: self.act(), wgt: Number::F32 }
    }

    pub(super) fn launch(
        &mut self,
        kernel: Kernel,
        grid: (usize, usize),
        block: usize,
        shared: usize,
        mut call: Call,
    ) -> Result<(), CudaError> {
        let function = self.machine.kernels.function(kernel, shared as u32)?;
        if self.rehearsal {
            return Ok(());
        }
        let (mut pointers, count) = call.pointers();
        let grid = (grid.0.max(1) as u32, grid.1.max(1) as u32, 1);
        let arguments = &mut pointers[..count];
        self.machine.card.launch(kernel.name, function, grid, (block as u32, 1, 1), shared as u32, arguments)
    }

    pub(super) fn product(
        &mut self,
        number: Number,
        size: (usize, usize, usize),
        a: Operand,
        b: Operand,
        into: Into,
    ) -> Result<(), CudaError> {
        self.products(number, size, (a, b, into), Each::ONE)
    }

    /// Products of one shape.
    pub(super) fn products(
        &mut self,
        number: Number,
        size: (usize, usize, usize),
        operands: (Operand, Operand, Into),
        each: Each,
    ) -> Result<(), CudaError> {
        let Machine { card, products, .. } = &mut *self.machine;
        match self.rehearsal {
            true => products.prepare(number, size, operands, each),
            false => products.product(card, number, size, operands, each),
        }
    }

    /// How a gradient is written, as kernels take it.
    pub(super) fn code(write: Write) -> usize {
        match write {
            Write::Set => 0,
            Write::SetFirst => 1,
            Write::Add => 2,
        }
    }

    pub(super) fn adds(&self, write: Write) -> bool {
        write == Write::Add || (write == Write::SetFirst && !self.first_micro)
    }

    /// A weight in the form of activations: itself, its copy, or written out into the scratch.
    pub(super) fn weight(&mut self, id: Id) -> Result<Address, CudaError> {
        self.weight_at(id, self.scratch())
    }

    /// The same; if it is written out, then to `panel`.
    pub(super) fn weight_at(&mut self, id: Id, panel: Address) -> Result<Address, CudaError> {
        let store = &self.program.store;
        let read = read_form(store, id);
        let (at, dtype, elements) = (self.at(read), store.dtype(read), store.elements[id.0 as usize]);
        if panel_words(store, id, &self.form) == 0 {
            return Ok(at);
        }
        let grid = walk(elements);
        let count = elements as u64;
        match dtype {
            Dtype::F32 => {
                let kernel = Kernel { wgt: self.act(), ..self.kernel("copy", "cast_weights") };
                self.launch(kernel, grid, BLOCK, 0, Call::new().at(at).at(panel).with(count))?;
            }
            Dtype::Bf16 | Dtype::F16 if self.act() == Number::F32 => {
                let kernel = Kernel { act: Number::of(dtype), ..self.kernel("copy", "cast_gradient") };
                let call = Call::new().at(at).at(panel).with(count).u32(0).at(self.step());
                self.launch(kernel, grid, BLOCK, 0, call)?;
            }
            Dtype::Bf16 | Dtype::F16 => return Err(CudaError::Unsupported { op: "a weight of the other 16-bit form" }),
            Dtype::Int8 | Dtype::Nf4 => {
                let Some(layout) = dtype.layout(elements) else { return Ok(at) };
                let (blocks, groups) = (at + layout.blocks as u64, at + layout.groups as u64);
                let call = Call::new().at(at).at(blocks);
                let (name, call) = match dtype {
                    Dtype::Int8 => ("dequantise_int8", call),
                    _ => ("dequantise_nf4", call.at(groups)),
                };
                let call = call.at(panel).with(0u64).with(count);
                self.launch(self.kernel("dequantise", name), grid, BLOCK, 0, call)?;
            }
        }
        Ok(panel)
    }

    /// Zeroes what lies behind the real rows of one tensor or two, each an address, a stride and a width, so that a sum over all
    /// rows has nothing of it.
    pub(super) fn clear_tails(
        &mut self,
        side: Side,
        first: (Address, usize, usize),
        second: Option<(Address, usize, usize)>,
    ) -> Result<(), CudaError> {
        if self.exact {
            return Ok(());
        }
        let (rows, other) = (self.rows(side), second.unwrap_or((0, 0, 0)));
        let call = [first, other].into_iter().fold(Call::new(), |call, of| call.at(of.0).u32(of.1).u32(of.2));
        let call = call.at(self.rows_at(side)).u32(rows);
        let blocks = walk(TAIL_ROWS.min(rows) * first.2.max(other.2)).0;
        let grid = (blocks, 1 + usize::from(second.is_some()));
        self.launch(self.kernel("copy", "clear_tails"), grid, BLOCK, 0, call)
    }

    /// The second pass of a sum over rows.
    pub(super) fn sum_partials(
        &mut self,
        partial: Address,
        chunks: usize,
        width: usize,
        (grad, write): (Id, Write),
    ) -> Result<(), CudaError> {
        let call =
            Call::new().at(partial).u32(chunks).u32(width).at(self.at(grad)).u32(Self::code(write)).at(self.step());
        self.launch(self.kernel("column_sum", "sum_partials"), (width.div_ceil(32), 1), BLOCK, 0, call)
    }

    fn execute(&mut self, index: usize, op: &Op) -> Result<(), CudaError> {
        let step = self.step();
        match op {
            Op::Part { nth } => self.part = *nth,
            Op::Hold { .. } => {}
            Op::Embed { side, table, positions, out, width, drop } => {
                let store = &self.program.store;
                let read = read_form(store, *table);
                let (wgt, mut call) =
                    (Number::of(store.dtype(read)), Call::new().at(self.ids(*side)).at(self.at(read)));
                match positions {
                    None => call = call.at(0).at(0),
                    Some(id) => {
                        let at = self.positions_as(*id, wgt)?;
                        call = call.at(self.array(Array::SourceAt)).at(at);
                    }
                }
                let call = call.at(self.at(*out)).u32(*width).at(self.rows_at(*side));
                let call = call.with(self.drop(*side, *drop)).at(step);
                let kernel = Kernel { wgt, ..self.kernel("embed", "embed_forward") };
                self.launch(kernel, walk(self.rows(*side) * width), BLOCK, 0, call)?;
            }
            Op::EmbedBackward { side, grad, table_grad, width, drop, by_position, skip } => {
                let ids = if *by_position { self.array(Array::SourceAt) } else { self.ids(*side) };
                let (rows, order) = (self.rows(*side), self.scratch());
                let spare = order + 4 * aligned(rows) as u64;
                let sort = Call::new().at(ids).at(order).at(spare).at(self.rows_at(*side));
                self.launch(self.kernel("embed", "embed_sort"), (1, 1), 1024, 0, sort)?;
                let call = Call::new().at(ids).at(order).at(self.at(*grad)).at(self.at(*table_grad)).u32(*width);
                // The token that is skipped is no position.
                let skip = skip.filter(|_| !by_position).unwrap_or(u32::MAX);
                let call = call.with(skip).at(self.rows_at(*side));
                let call = call.with(self.drop(*side, *drop)).at(step);
                let kernel = self.kernel("embed", "embed_backward");
                self.launch(kernel, (rows, width.div_ceil(BLOCK)), BLOCK, 0, call)?;
            }
            Op::Norm { .. } if index > 0 && self.is_residual_and_norm(index - 1) => {}
            Op::Residual { .. } if self.is_residual_and_norm(index) => self.residual_and_norm(index)?,
            Op::Norm { side, x, weight, bias, stats, out, width, eps, drop } => {
                let call = Call::new().at(self.at(*x)).at(self.at(*weight));
                let (kernel, call) = match bias {
                    None => (self.kernel("norm", "norm_forward"), call),
                    Some(bias) => (self.kernel("layer_norm", "layer_norm_forward"), call.at(self.at(*bias))),
                };
                let call = call.at(self.at(*stats)).at(self.at(*out)).u32(*width).with(*eps).at(self.rows_at(*side));
                let call = if bias.is_none() { call.with(self.drop(*side, *drop)).at(step) } else { call };
                self.launch(kernel, (self.rows(*side).div_ceil(8), 1), BLOCK, 0, call)?;
            }
            Op::NormApply { side, x, weight, bias, stats, out, width, drop } => {
                let call = Call::new().at(self.at(*x)).at(self.at(*weight));
                let (kernel, call) = match bias {
                    None => (self.kernel("norm", "norm_apply"), call),
                    Some(bias) => (self.kernel("layer_norm", "layer_norm_apply"), call.at(self.at(*bias))),
                };
                let call = call.at(self.at(*stats)).at(self.at(*out)).u32(*width).at(self.rows_at(*side));
                let call = if bias.is_none() { call.with(self.drop(*side, *drop)).at(step) } else { call };
                self.launch(kernel, (self.rows(*side).div_ceil(8), 1), BLOCK, 0, call)?;
            }
            Op::NormBackward {
                side,
                dy,
                x,
                weight,
                bias: None,
                stats,
                dx,
                add,
                weight_grad: Some(grad),
                width,
                ..
            } if norm_in_one_pass(*width) => {
                let (chunks, partial) = (norm_chunks(self.rows(*side)), self.scratch());
                let call = Call::new().at(self.at(*dy)).at(self.at(*x)).at(self.at(*weight)).at(self.at(*stats));
                let call = call.at(self.at(*dx)).u32(usize::from(*add)).at(partial).u32(*width);
                let call = call.at(self.rows_at(*side));
                self.launch(self.kernel("norm", "norm_backward_both"), (chunks, 1), BLOCK, 0, call)?;
                self.sum_partials(partial, chunks, *width, *grad)?;
            }
            Op::NormBackward { side, dy, x, weight, bias, stats, dx, add, weight_grad, bias_grad, width } => {
                self.norm_gradients(*side, (*dy, *x, *stats), bias.is_some(), *weight_grad, *bias_grad, *width)?;
                let kernel = match bias {
                    None => self.kernel("norm", "norm_backward"),
                    Some(_) => self.kernel("layer_norm", "layer_norm_backward"),
                };
                let call = Call::new().at(self.at(*dy)).at(self.at(*x)).at(self.at(*weight)).at(self.at(*stats));
                let call = call.at(self.at(*dx)).u32(usize::from(*add)).u32(*width).at(self.rows_at(*side));
                self.launch(kernel, (self.rows(*side).div_ceil(8), 1), BLOCK, 0, call)?;
            }
            Op::HeadNorm { side, x, weight, rstd, out, heads, width, eps } => {
                let call = Call::new().at(self.columns(*x)).u32(x.stride).at(self.at(*weight)).at(self.at(*rstd));
                let call = call.at(self.columns(*out)).u32(out.stride).u32(*heads).u32(*width).with(*eps);
                let call = call.at(self.rows_at(*side));
                let grid = ((self.rows(*side) * heads).div_ceil(8), 1);
                self.launch(self.kernel("head_norm", "head_norm_forward"), grid, BLOCK, 0, call)?;
            }
            Op::HeadNormBackward { side, dy, x, weight, rstd, dx, weight_grad, heads, width } => {
                let partial = if weight_grad.is_some() { self.scratch() } else { 0 };
                let call = Call::new().at(self.columns(*dy)).u32(dy.stride).at(self.columns(*x)).u32(x.stride);
                let call = call.at(self.at(*weight)).at(self.at(*rstd)).at(self.columns(*dx)).u32(dx.stride);
                let call = call.at(partial).u32(*heads).u32(*width).at(self.rows_at(*side));
                let kernel = self.kernel("head_norm", "head_norm_backward");
                self.launch(kernel, (HEAD_NORM_CHUNKS, 1), BLOCK, 0, call)?;
                if let Some(grad) = weight_grad {
                    self.sum_partials(partial, HEAD_NORM_CHUNKS, *width, *grad)?;
                }
            }
            Op::RopeTable { out, .. } => {
                if let Table::Words(from, words) = self.tables[index] {
                    self.copy(from, self.at(*out), words * 4)?;
                }
            }
            Op::Rope { .. } if index > 0 && self.is_biased_and_turned(index - 1) => self.add_bias_and_turn(index)?,
            Op::Rope { side, x, table, heads, width, back } => {
                let call = Call::new().at(self.array(Array::SourceAt)).at(self.at(*table)).at(self.columns(*x));
                let call = call.u32(x.stride).u32(*heads).u32(*width).u32(usize::from(*back)).at(self.rows_at(*side));
                let grid = walk(self.rows(*side) * heads * width / 2);
                self.launch(self.kernel("rope", "rope_turn"), grid, BLOCK, 0, call)?;
            }
            Op::Linear { side, x, weight, bias, out, add, scale, inputs, outputs, in_out } => {
                let at = self.weight(*weight)?;
                let a = Operand { at: self.at(*x), stride: *inputs, transposed: false };
                let b = match in_out {
                    true => Operand { at, stride: *outputs, transposed: false },
                    false => Operand { at, stride: *inputs, transposed: true },
                };
                let into = Into {
                    at: self.columns(*out),
                    stride: out.stride,
                    number: self.act(),
                    alpha: *scale,
                    add: *add,
                    bias: None,
                };
                self.product(self.act(), (self.rows(*side), *outputs, *inputs), a, b, into)?;
                if let Some(bias) = bias.filter(|_| !self.is_biased_and_turned(index)) {
                    let call = Call::new().at(self.at(bias)).at(self.columns(*out)).u32(out.stride).u32(*outputs);
                    let call = call.at(self.rows_at(*side));
                    let grid = walk(self.rows(*side) * outputs);
                    self.launch(self.kernel("column_sum", "bias_add"), grid, BLOCK, 0, call)?;
                }
            }
            Op::LinearInput { side, dy, weight, dx, add, scale, inputs, outputs, in_out } => {
                let at = self.weight(*weight)?;
                let a = Operand { at: self.columns(*dy), stride: dy.stride, transposed: false };
                let b = match in_out {
                    true => Operand { at, stride: *outputs, transposed: true },
                    false => Operand { at, stride: *inputs, transposed: false },
                };
                let (number, alpha) = (self.act(), *scale);
                let into = Into { at: self.at(*dx), stride: *inputs, number, alpha, add: *add, bias: None };
                self.product(number, (self.rows(*side), *inputs, *outputs), a, b, into)?;
            }
            Op::LinearWeight { side, dy, x, grad, write, scale, inputs, outputs, in_out } => {
                let (dy_at, x_at, rows) = (self.columns(*dy), self.at(*x), self.rows(*side));
                self.clear_tails(*side, (dy_at, dy.stride, *outputs), Some((x_at, *inputs, *inputs)))?;
                let dy = |transposed| Operand { at: dy_at, stride: dy.stride, transposed };
                let x = |transposed| Operand { at: x_at, stride: *inputs, transposed };
                let add = self.adds(*write);
                let stride = if *in_out { *outputs } else { *inputs };
                let into = Into { at: self.at(*grad), stride, number: Number::F32, alpha: *scale, add, bias: None };
                match in_out {
                    true => self.product(self.act(), (*inputs, *outputs, rows), x(true), dy(false), into)?,
                    false => self.product(self.act(), (*outputs, *inputs, rows), dy(true), x(false), into)?,
                }
            }
            Op::ColumnSum { side, dy, grad, write, width } => {
                let (chunks, partial) = (row_chunks(self.rows(*side)), self.scratch());
                let call = Call::new().at(self.columns(*dy)).u32(dy.stride).at(partial).u32(*width);
                let call = call.at(self.rows_at(*side));
                let grid = (width.div_ceil(64), chunks);
                self.launch(self.kernel("column_sum", "column_sum_partial"), grid, BLOCK, 0, call)?;
                self.sum_partials(partial, chunks, *width, (*grad, *write))?;
            }
            Op::Residual { side, x, y, width, drop } => {
                let call = Call::new().at(self.at(*x)).at(self.at(*y)).u32(*width).at(self.rows_at(*side));
                let call = call.with(self.drop(*side, *drop)).at(step);
                let kernel = self.kernel("residual", "residual_forward");
                self.launch(kernel, walk(self.rows(*side) * width), BLOCK, 0, call)?;
            }
            Op::Drop { side, g, out, width, drop } => {
                let call = Call::new().at(self.at(*g)).at(self.at(*out)).u32(*width).at(self.rows_at(*side));
                let call = call.with(self.drop(*side, Some(*drop))).at(step);
                let kernel = self.kernel("residual", "drop_forward");
                self.launch(kernel, walk(self.rows(*side) * width), BLOCK, 0, call)?;
            }
            Op::Copy { side, from, to, width } => {
                let call = Call::new().at(self.columns(*from)).u32(from.stride).at(self.columns(*to)).u32(to.stride);
                let call = call.u32(*width).at(self.rows_at(*side));
                self.launch(self.kernel("copy", "copy_columns"), walk(self.rows(*side) * width), BLOCK, 0, call)?;
            }
            Op::Relu { side, h, width, drop } => {
                let call = Call::new().at(self.at(*h)).u32(*width).at(self.rows_at(*side));
                let call = call.with(self.drop(*side, *drop)).at(step);
                self.launch(self.kernel("relu", "relu_forward"), walk(self.rows(*side) * width), BLOCK, 0, call)?;
            }
            Op::ReluBackward { side, dh, h, width, drop } => {
                let scale = self.drop(*side, *drop).scale;
                let call = Call::new().at(self.at(*dh)).at(self.at(*h)).u32(*width).with(scale).at(self.rows_at(*side));
                self.launch(self.kernel("relu", "relu_backward"), walk(self.rows(*side) * width), BLOCK, 0, call)?;
            }
            Op::Gelu { side, h, out: other, width } | Op::GeluBackward { side, dh: h, h: other, width } => {
                let name = if matches!(op, Op::Gelu { .. }) { "gelu_forward" } else { "gelu_backward" };
                let call = Call::new().at(self.at(*h)).at(self.at(*other)).u32(*width).at(self.rows_at(*side));
                self.launch(self.kernel("gelu", name), walk(self.rows(*side) * width), BLOCK, 0, call)?;
            }
            Op::GatedGelu { side, ab, out, width, drop } => {
                let call = Call::new().at(self.at(*ab)).at(self.at(*out)).u32(*width).at(self.rows_at(*side));
                let call = call.with(self.drop(*side, *drop)).at(step);
                let kernel = self.kernel("gated_gelu", "gated_gelu_forward");
                self.launch(kernel, walk(self.rows(*side) * width), BLOCK, 0, call)?;
            }
            Op::GatedGeluBackward { side, dh, ab, dab, width, drop } => {
                let call = Call::new().at(self.at(*dh)).at(self.at(*ab)).at(self.at(*dab)).u32(*width);
                let call = call.at(self.rows_at(*side)).with(self.drop(*side, *drop)).at(step);
                let kernel = self.kernel("gated_gelu", "gated_gelu_backward");
                self.launch(kernel, walk(self.rows(*side) * width), BLOCK, 0, call)?;
            }
            Op::GatedSilu { side, ab, out, width } => {
                let call = Call::new().at(self.at(*ab)).at(self.at(*out)).u32(*width).at(self.rows_at(*side));
                let kernel = self.kernel("gated_silu", "gated_silu_forward");
                self.launch(kernel, walk(self.rows(*side) * width), BLOCK, 0, call)?;
            }
            Op::GatedSiluBackward { side, dh, ab, width } => {
                let call = Call::new().at(self.at(*dh)).at(self.at(*ab)).u32(*width).at(self.rows_at(*side));
                let kernel = self.kernel("gated_silu", "gated_silu_backward");
                self.launch(kernel, walk(self.rows(*side) * width), BLOCK, 0, call)?;
            }
            Op::BiasExpand { table, delta, shape, .. } => {
                let Table::Words(buckets, _) = self.tables[index] else { return Ok(()) };
                let call = Call::new().at(self.at(*table)).at(buckets).at(self.at(*delta)).u32(shape.heads);
                let grid = ((shape.heads * shape.span()).div_ceil(BLOCK), 1);
                self.launch(self.kernel("bias", "bias_expand"), grid, BLOCK, 0, call.u32(shape.span()))?;
            }
            Op::BiasCollect { ddelta, table_grad, write, shape, buckets: count } => {
                let Table::Words(buckets, _) = self.tables[index] else { return Ok(()) };
                let call = Call::new().at(self.at(*ddelta)).at(buckets).at(self.at(*table_grad));
                let call = call.u32(Self::code(*write)).u32(shape.heads).u32(shape.span()).at(step);
                self.launch(self.kernel("bias", "bias_collect"), (count.count, shape.heads), BLOCK, 0, call)?;
            }
            Op::Attention { shape, q, k, v, bias, out, lse, drop } => {
                let forward = Forward { of: [*q, *k, *v], bias: *bias, out: *out, lse: *lse };
                self.attention(shape, forward, *drop)?;
            }
            Op::AttentionBackward { shape, q, k, v, bias, out, lse, dout, dq, dk, dv, dbias, drop } => {
                let forward = Forward { of: [*q, *k, *v], bias: *bias, out: *out, lse: *lse };
                self.attention_backward(shape, forward, *dout, [*dq, *dk, *dv], *dbias, *drop)?;
            }
            Op::Loss { hidden, weight, losses, dhidden, grad, logits, chunk, width, vocab, scale } => {
                let head = Head { weight: *weight, logits: *logits, chunk: *chunk, width: *width, vocab: *vocab };
                self.loss(*hidden, *losses, head, *scale, Some((*dhidden, *grad)))?;
            }
            Op::LossOnly { hidden, weight, losses, logits, chunk, width, vocab, scale } => {
                let head = Head { weight: *weight, logits: *logits, chunk: *chunk, width: *width, vocab: *vocab };
                self.loss(*hidden, *losses, head, *scale, None)?;
            }
            Op::Zero { tensor, write } => {
                let words = self.words(*tensor);
                let call = Call::new().at(self.at(*tensor)).with(words as u64).u32(Self::code(*write)).at(step);
                self.launch(self.kernel("copy", "clear"), walk(words), BLOCK, 0, call)?;
            }
            Op::GradientNorm { gradients } => self.gradient_norm(index, gradients)?,
            Op::Clip => self.launch(self.kernel("gradient_norm", "clip"), (1, 1), 1, 0, Call::new().at(step))?,
            Op::Update { .. } => {
                if let Table::Group(group) = self.tables[index] {
                    self.update(group)?;
                }
            }
            Op::CacheAppend { .. }
            | Op::AttentionStep { .. }
            | Op::DecodeStep { .. }
            | Op::CrossStep { .. }
            | Op::Logits { .. } => return Err(CudaError::Unsupported { op: "generation" }),
            Op::Series(op) => self.series(index, op)?,
        }
        Ok(())
    }

    /// Whether the op adds to what the next one takes the RMS norm of: both are one launch then, and give the same bits. What
    /// is added may end with its op, and what the norm writes may begin in its place: not then, unless each row lies where its
    /// own was, which is read before.
    fn is_residual_and_norm(&self, index: usize) -> bool {
        let ops = &self.placed.tape.ops;
        let (
            Op::Residual { side, x: added, y, width, .. },
            Some(Op::Norm { side: next, x, bias: None, width: wide, stats, out, .. }),
        ) = (&ops[index], ops.get(index + 1))
        else {
            return false;
        };
        let apart_or_same = self.is_apart(*added, *out) || self.at(*added) == self.at(*out);
        let safe = self.is_apart(*added, *stats) && apart_or_same;
        (side, y, width) == (next, x, wide) && safe
    }

    /// Whether two tensors have no word in common.
    pub(super) fn is_apart(&self, a: Id, b: Id) -> bool {
        let (first, second) = (self.at(a), self.at(b));
        first + 4 * self.words(a) as u64 <= second || second + 4 * self.words(b) as u64 <= first
    }

    fn residual_and_norm(&mut self, index: usize) -> Result<(), CudaError> {
        let placed = self.placed;
        let [Op::Residual { side, x, y, width, drop }, Op::Norm { weight, stats, out, eps, drop: of_out, .. }] =
            &placed.tape.ops[index..index + 2]
        else {
            return Ok(());
        };
        let call = Call::new().at(self.at(*x)).at(self.at(*y)).at(self.at(*weight)).at(self.at(*stats));
        let call = call.at(self.at(*out)).u32(*width).with(*eps).at(self.rows_at(*side));
        let call = call.with(self.drop(*side, *drop)).with(self.drop(*side, *of_out)).at(self.step());
        let kernel = self.kernel("norm", "norm_residual_forward");
        self.launch(kernel, (self.rows(*side).div_ceil(8), 1), BLOCK, 0, call)
    }

    /// Whether the op adds a bias to heads that the next one turns: that adds it then.
    fn is_biased_and_turned(&self, index: usize) -> bool {
        let ops = &self.placed.tape.ops;
        let (
            Op::Linear { side, bias: Some(_), out, outputs, .. },
            Some(Op::Rope { side: next, x, heads, width, back: false, .. }),
        ) = (&ops[index], ops.get(index + 1))
        else {
            return false;
        };
        (side, out) == (next, x) && heads * width <= *outputs
    }

    fn add_bias_and_turn(&mut self, index: usize) -> Result<(), CudaError> {
        let placed = self.placed;
        let [Op::Linear { bias: Some(bias), outputs, .. }, Op::Rope { side, x, table, heads, width, .. }] =
            &placed.tape.ops[index - 1..=index]
        else {
            return Ok(());
        };
        let more = outputs - heads * width;
        let call =
            Call::new().at(self.array(Array::SourceAt)).at(self.at(*table)).at(self.columns(*x)).at(self.at(*bias));
        let call = call.u32(x.stride).u32(*heads).u32(*width).u32(more).at(self.rows_at(*side));
        let grid = walk(self.rows(*side) * (heads * width / 2 + more));
        self.launch(self.kernel("rope", "rope_turn_biased"), grid, BLOCK, 0, call)
    }

    /// Words of a tensor.
    pub(super) fn words(&self, id: Id) -> usize {
        match self.placed.tape.own(id) {
            None => self.program.store.tensors[id.0 as usize].words,
            Some(own) => self.placed.tape.tensors[own].words,
        }
    }

    fn copy(&mut self, from: Address, to: Address, bytes: usize) -> Result<(), CudaError> {
        if self.rehearsal {
            return Ok(());
        }
        self.machine.card.copy(from, to, bytes)
    }

    /// The table of positions, which is f32, in the form of the table of tokens.
    fn positions_as(&mut self, id: Id, wgt: Number) -> Result<Address, CudaError> {
        let at = self.at(id);
        if wgt == Number::F32 {
            return Ok(at);
        }
        let (panel, count) = (self.scratch(), self.program.store.elements[id.0 as usize]);
        let kernel = Kernel { wgt, ..self.kernel("copy", "cast_weights") };
        self.launch(kernel, walk(count), BLOCK, 0, Call::new().at(at).at(panel).with(count as u64))?;
        Ok(panel)
    }

    fn norm_gradients(
        &mut self,
        side: Side,
        (dy, x, stats): (Id, Id, Id),
        layer_norm: bool,
        weight_grad: Gradient,
        bias_grad: Gradient,
        width: usize,
    ) -> Result<(), CudaError> {
        if weight_grad.is_none() && bias_grad.is_none() {
            return Ok(());
        }
        let (chunks, first) = (row_chunks(self.rows(side)), self.scratch());
        let second = first + 4 * aligned(chunks * width) as u64;
        let partial = |gradient: Gradient, at: Address| if gradient.is_some() { at } else { 0 };
        let call = Call::new().at(self.at(dy)).at(self.at(x)).at(self.at(stats)).at(partial(weight_grad, first));
        let (kernel, call) = match layer_norm {
            true => (self.kernel("layer_norm", "layer_norm_weight_partial"), call.at(partial(bias_grad, second))),
            false => (self.kernel("norm", "norm_weight_partial"), call),
        };
        let call = call.u32(width).at(self.rows_at(side));
        self.launch(kernel, (width.div_ceil(64), chunks), BLOCK, 0, call)?;
        for (gradient, at) in [(weight_grad, first), (bias_grad, second)] {
            if let Some(gradient) = gradient {
                self.sum_partials(at, chunks, width, gradient)?;
            }
        }
        Ok(())
    }
}

/// Rows that a tail has about at most.
const TAIL_ROWS: usize = 1024;
