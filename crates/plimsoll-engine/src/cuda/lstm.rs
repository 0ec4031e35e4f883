//! An LSTM on a card: the inputs' share of all gates is one product; then the steps are walked, by one launch whose blocks
//! wait for each other and which walks both directions of a layer, or, where the card is too small or the state too wide for that, by a product and a launch a step.
//!
//! Both ways add in an order that the shapes fix, but not in the same one.

use plimsoll_plan::device::{LSTM_COUNTER, LSTM_WALKED, gathered_rows, panel_words, row_chunks};
use plimsoll_plan::op::{Cols, Gradient, LstmShape, LstmWeights, Op, SeriesOp};
use plimsoll_plan::place::aligned;
use plimsoll_plan::tape::Id;

use super::call::Call;
use super::card::Address;
use super::error::CudaError;
use super::execute::{BLOCK, Run, walk};
use super::kernels::Kernel;
use super::lt::{Each, Into, Number, Operand};

/// Steps of an LSTM (`lstm.cuh`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Lstm {
    gates: Address,
    weight: Address,
    input_bias: Address,
    state_bias: Address,
    cells: Address,
    start: Address,
    end: Address,
    out: Address,
    counters: Address,
    of: Steps,
    groups: Groups,
}

/// And back (`lstm.cuh`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct LstmBack {
    gates: Address,
    weight: Address,
    cells: Address,
    start: Address,
    dout: Address,
    carry: Address,
    shares: Address,
    counters: Address,
    of: Steps,
    groups: Groups,
    last: u32,
    zero: u32,
}

/// How samples are cut into groups of blocks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Groups {
    /// Samples of a group.
    each: u32,
    count: u32,
}

/// Which steps of which rows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    stride: u32,
    samples: u32,
    steps: u32,
    from: u32,
    count: u32,
    hidden: u32,
    reverse: u32,
    begins: u32,
}

const _: () = assert!(size_of::<Lstm>() == 112 && size_of::<LstmBack>() == 112);

/// Samples that are worth a group of blocks.
const LEAST_GROUP: usize = 4;

/// A walk in one launch.
#[derive(Clone, Copy)]
struct Walk {
    kernel: Kernel,
    shared: usize,
    groups: Groups,
}

/// What one op of the forward walk is about.
#[derive(Clone, Copy)]
struct There {
    shape: LstmShape,
    x: Id,
    weights: LstmWeights,
    gates: Id,
    cells: Id,
    ends: [Option<Id>; 2],
    out: Cols,
}

/// What one op of the way back is about.
#[derive(Clone, Copy)]
struct Back {
    shape: LstmShape,
    gates: Id,
    cells: Id,
    start: Option<Id>,
    weight: Id,
    dout: Cols,
    carry: Id,
    last: bool,
}

fn there(op: &Op) -> Option<There> {
    let Op::Series(SeriesOp::Lstm { shape, x, weights, gates, cells, start, end, out }) = op else { return None };
    let (shape, x, weights, out) = (*shape, *x, *weights, *out);
    Some(There { shape, x, weights, gates: *gates, cells: *cells, ends: [*start, *end], out })
}

fn back(op: &Op) -> Option<Back> {
    let Op::Series(SeriesOp::LstmBackward { shape, gates, cells, start, state_weight, dout, carry, last }) = op else {
        return None;
    };
    let (shape, weight, dout, carry) = (*shape, *state_weight, *dout, *carry);
    Some(Back { shape, gates: *gates, cells: *cells, start: *start, weight, dout, carry, last: *last })
}

/// Two directions of one layer, both walked whole.
fn are_a_pair(one: &LstmShape, other: &LstmShape) -> bool {
    let whole = one.is_whole() && other.is_whole();
    whole && one.reverse != other.reverse && (one.hidden, one.steps) == (other.hidden, other.steps)
}

/// Kernels of a width of the state, there and back, and the words of shared memory of the first.
fn kernels(hidden: usize) -> Option<([&'static str; 2], usize)> {
    let (names, rows) = match hidden {
        0..=128 => (["lstm_walk_16", "lstm_walk_back_16"], 16),
        129..=256 => (["lstm_walk_32", "lstm_walk_back_32"], 32),
        257..=LSTM_WALKED => (["lstm_walk_64", "lstm_walk_back_64"], 64),
        _ => return None,
    };
    Some((names, 16 * 8 * rows + 8 * 16 * 64))
}

fn steps(shape: &LstmShape, samples: usize, stride: usize) -> Steps {
    let LstmShape { steps, hidden, reverse, from, .. } = *shape;
    let word = |n: usize| n as u32;
    Steps {
        stride: word(stride),
        samples: word(samples),
        steps: word(steps),
        from: word(from),
        count: word(shape.count()),
        hidden: word(hidden),
        reverse: u32::from(reverse),
        begins: u32::from(shape.is_first()),
    }
}

impl Run<'_> {
    /// How the steps of one direction or two are walked in one launch; none where they are not. `back` says which way.
    fn walk_of(&mut self, shape: &LstmShape, back: bool, directions: usize) -> Result<Option<Walk>, CudaError> {
        let Some((names, words)) = kernels(shape.hidden).filter(|_| !self.stepwise) else { return Ok(None) };
        let kernel = self.kernel("lstm_walk", names[usize::from(back)]);
        let shared = 4 * if back { 16 * 80 } else { words };
        let machine = &mut *self.machine;
        if shared > machine.card.shared_most() as usize {
            return Ok(None);
        }
        let each = machine.kernels.at_a_time(kernel, BLOCK as u32, shared as u32)?;
        let most = each * machine.card.processors() as usize / (shape.slices() * directions);
        if most == 0 {
            return Ok(None);
        }
        let samples = self.samples();
        let each = samples.div_ceil(most).max(LEAST_GROUP);
        let groups = Groups { each: each as u32, count: samples.div_ceil(each) as u32 };
        Ok(Some(Walk { kernel, shared, groups }))
    }

    /// Launches beside those of a walk, where there is none.
    pub(super) fn steps_apart(&mut self, shape: &LstmShape) -> usize {
        let walks = [false, true].map(|back| matches!(self.walk_of(shape, back, 1), Ok(Some(_))));
        if walks == [true, true] { 0 } else { 2 * shape.count() }
    }

    /// Launches a walk of some directions, of which `call` has the arguments; `counters` of each are cleared before.
    fn walk_together(
        &mut self,
        shape: &LstmShape,
        walk: Walk,
        counters: &[Address],
        mut call: Call,
    ) -> Result<(), CudaError> {
        let function = self.machine.kernels.function(walk.kernel, walk.shared as u32)?;
        if self.rehearsal {
            return Ok(());
        }
        let (card, groups) = (&self.machine.card, walk.groups.count);
        for at in counters {
            card.zero(*at, 4 * groups as usize * LSTM_COUNTER)?;
        }
        let (mut pointers, count) = call.pointers();
        let grid = (shape.slices() as u32, groups * counters.len() as u32, 1);
        let block = (BLOCK as u32, 1, 1);
        card.launch_together(walk.kernel.name, function, grid, block, walk.shared as u32, &mut pointers[..count])
    }

    pub(super) fn recurrent(&mut self, index: usize, op: &SeriesOp) -> Result<(), CudaError> {
        match op {
            SeriesOp::Lstm { .. } => self.lstm(index),
            SeriesOp::LstmBackward { .. } => self.lstm_backward(index),
            SeriesOp::LstmInput { shape, dgates, input_weight, dx, add } => {
                let b = Operand { at: self.weight(*input_weight)?, stride: shape.inputs, transposed: false };
                let (dgates, dx) = (self.at(*dgates), self.at(*dx));
                let a = Operand { at: dgates, stride: 4 * shape.hidden, transposed: false };
                let at = self.past(dx, shape.from * shape.inputs);
                let into = Into { at, stride: shape.inputs, number: self.act(), alpha: 1.0, add: *add, bias: None };
                let apart = Each { count: 0, a: shape.gate_words(), b: 0, out: shape.steps * shape.inputs };
                self.of_stretch(shape, (shape.inputs, 4 * shape.hidden), (a, b, into), apart)
            }
            SeriesOp::LstmWeight { shape, dgates, x, out, grads } => self.lstm_weight(shape, *dgates, *x, *out, grads),
            _ => Ok(()),
        }
    }

    /// A product over the rows of some steps: one where they are all, else one a sample.
    fn of_stretch(
        &mut self,
        shape: &LstmShape,
        (columns, depth): (usize, usize),
        operands: (Operand, Operand, Into),
        apart: Each,
    ) -> Result<(), CudaError> {
        let (number, samples) = (self.act(), self.samples());
        match shape.is_whole() {
            true => self.products(number, (samples * shape.steps, columns, depth), operands, Each::ONE),
            false => {
                let each = Each { count: samples, ..apart };
                self.products(number, (shape.count(), columns, depth), operands, each)
            }
        }
    }

    /// The op of the other direction that is walked along with this one, where there is one: the next. What it writes must
    /// lie apart from all that this one uses, since it is written earlier than planned.
    fn walked_along(&mut self, index: usize) -> Option<There> {
        let ops = &self.placed.tape.ops;
        let (one, other) = (there(&ops[index])?, there(ops.get(index + 1)?)?);
        let is_pair = are_a_pair(&one.shape, &other.shape) && one.x == other.x && one.out.id == other.out.id;
        let used = [one.gates, one.cells, one.x, one.out.id];
        let apart = used.iter().all(|id| self.is_apart(*id, other.gates) && self.is_apart(*id, other.cells));
        let fits = is_pair && apart && matches!(self.walk_of(&one.shape, false, 2), Ok(Some(_)));
        fits.then_some(other)
    }

    /// The same on the way back: the next but for the products of this direction's gradients. Its gates and cells live all
    /// the time, and its carry is of no use to others.
    fn walked_back_along(&mut self, index: usize) -> Option<(usize, Back)> {
        let ops = &self.placed.tape.ops;
        let one = back(&ops[index])?;
        let is_product = |op: &Op| matches!(op, Op::Series(SeriesOp::LstmInput { .. } | SeriesOp::LstmWeight { .. }));
        let next = index + 1 + ops[index + 1..].iter().take_while(|op| is_product(op)).count();
        let other = back(ops.get(next)?)?;
        let is_pair = are_a_pair(&one.shape, &other.shape) && one.dout.id == other.dout.id && one.last && other.last;
        let fits = is_pair && matches!(self.walk_of(&one.shape, true, 2), Ok(Some(_)));
        fits.then_some((next, other))
    }

    /// Whether the op of the way back was walked along with an earlier one.
    fn was_walked_back(&mut self, index: usize) -> bool {
        let ops = &self.placed.tape.ops;
        let Some(earlier) = (0..index).rev().find(|at| back(&ops[*at]).is_some()) else { return false };
        // Of three in a row the first two are a pair. Stretches have none, however many they are.
        self.walked_back_along(earlier).is_some_and(|(at, _)| at == index) && !self.was_walked_back(earlier)
    }

    /// The inputs' share of all gates.
    fn input_share(&mut self, of: &There) -> Result<(), CudaError> {
        let LstmShape { steps: all, inputs, hidden, from, .. } = of.shape;
        let b = Operand { at: self.weight(of.weights.input)?, stride: inputs, transposed: true };
        let a = Operand { at: self.past(self.at(of.x), from * inputs), stride: inputs, transposed: false };
        let into =
            Into { at: self.at(of.gates), stride: 4 * hidden, number: self.act(), alpha: 1.0, add: false, bias: None };
        let apart = Each { count: 0, a: all * inputs, b: 0, out: of.shape.gate_words() };
        self.of_stretch(&of.shape, (4 * hidden, inputs), (a, b, into), apart)
    }

    /// Arguments of a walk whose weight and counters lie at `space` and behind it.
    fn forward_arguments(&mut self, of: &There, space: Address) -> Result<Lstm, CudaError> {
        let panel = panel_words(&self.program.store, of.weights.state, &self.form);
        let weight = self.weight_at(of.weights.state, space)?;
        let end = |id: Option<Id>| id.map_or(0, |id| self.at(id));
        Ok(Lstm {
            gates: self.at(of.gates),
            weight,
            input_bias: self.at(of.weights.input_bias),
            state_bias: self.at(of.weights.state_bias),
            cells: self.at(of.cells),
            start: end(of.ends[0]),
            end: end(of.ends[1]),
            out: self.columns(of.out),
            counters: space + 4 * panel as u64,
            of: steps(&of.shape, self.samples(), of.out.stride),
            groups: Groups::default(),
        })
    }

    fn lstm(&mut self, index: usize) -> Result<(), CudaError> {
        let placed = self.placed;
        let Some(of) = there(&placed.tape.ops[index]) else { return Ok(()) };
        if index > 0 && self.walked_along(index - 1).is_some() {
            return Ok(());
        }
        let other = self.walked_along(index);
        self.input_share(&of)?;
        other.iter().try_for_each(|other| self.input_share(other))?;
        let samples = self.samples();
        let (space, counted) = (self.scratch(), 4 * aligned(of.shape.counter_words(samples)) as u64);
        let one = self.forward_arguments(&of, space)?;
        if let Some(walk) = self.walk_of(&of.shape, false, 1 + usize::from(other.is_some()))? {
            let groups = walk.groups;
            let call = Call::new().with(Lstm { groups, ..one });
            let Some(other) = other else {
                return self.walk_together(&of.shape, walk, &[one.counters], call.with(Lstm::default()));
            };
            let two = self.forward_arguments(&other, one.counters + counted)?;
            let call = call.with(Lstm { groups, ..two });
            return self.walk_together(&of.shape, walk, &[one.counters, two.counters], call);
        }
        self.lstm_by_steps(&of, one)
    }

    fn lstm_by_steps(&mut self, of: &There, arguments: Lstm) -> Result<(), CudaError> {
        let There { shape, gates, out, .. } = of;
        let (wide, samples, number) = (4 * shape.hidden, self.samples(), self.act());
        let b = Operand { at: arguments.weight, stride: shape.hidden, transposed: true };
        for nth in 0..shape.count() {
            let step = if shape.reverse { shape.to - 1 - nth } else { shape.from + nth };
            if nth > 0 || !shape.is_first() {
                let before = if shape.reverse { step + 1 } else { step - 1 };
                let at = self.past(self.columns(*out), before * out.stride);
                let a = Operand { at, stride: shape.steps * out.stride, transposed: false };
                let at = self.past(self.at(*gates), (step - shape.from) * wide);
                let into = Into { at, stride: shape.gate_words(), number, alpha: 1.0, add: true, bias: None };
                self.product(number, (samples, wide, shape.hidden), a, b, into)?;
            }
            let call = Call::new().with(arguments).u32(nth);
            self.launch(self.kernel("lstm", "lstm_step"), walk(8 * samples * shape.hidden), BLOCK, 0, call)?;
        }
        Ok(())
    }

    /// Arguments of a walk back whose weight, counters, shares and perhaps carry lie at `space` and behind it; and where that
    /// ends.
    fn back_arguments(&mut self, of: &Back, space: Address, own_carry: bool) -> Result<(LstmBack, Address), CudaError> {
        let (shape, samples) = (&of.shape, self.samples());
        let counters = space + 4 * panel_words(&self.program.store, of.weight, &self.form) as u64;
        let shares = counters + 4 * aligned(shape.counter_words(samples)) as u64;
        let behind = shares + 4 * shape.share_words(samples) as u64;
        let arguments = LstmBack {
            gates: self.at(of.gates),
            weight: self.weight_at(of.weight, space)?,
            cells: self.at(of.cells),
            start: of.start.map_or(0, |id| self.at(id)),
            dout: self.columns(of.dout),
            carry: if own_carry { behind } else { self.at(of.carry) },
            shares,
            counters,
            of: steps(shape, samples, of.dout.stride),
            groups: Groups::default(),
            last: u32::from(of.last),
            zero: 0,
        };
        Ok((arguments, behind + 4 * aligned(2 * samples * shape.hidden) as u64))
    }

    fn lstm_backward(&mut self, index: usize) -> Result<(), CudaError> {
        let placed = self.placed;
        let Some(of) = back(&placed.tape.ops[index]) else { return Ok(()) };
        if self.was_walked_back(index) {
            return Ok(());
        }
        let other = self.walked_back_along(index);
        let (one, behind) = self.back_arguments(&of, self.scratch(), false)?;
        if let Some(walk) = self.walk_of(&of.shape, true, 1 + usize::from(other.is_some()))? {
            let groups = walk.groups;
            let call = Call::new().with(LstmBack { groups, ..one });
            let Some((_, other)) = other else {
                return self.walk_together(&of.shape, walk, &[one.counters], call.with(LstmBack::default()));
            };
            // The other's carry does not live yet.
            let (two, _) = self.back_arguments(&other, behind, true)?;
            let call = call.with(LstmBack { groups, ..two });
            return self.walk_together(&of.shape, walk, &[one.counters, two.counters], call);
        }
        let (shape, number, samples) = (&of.shape, self.act(), self.samples());
        let b = Operand { at: one.weight, stride: shape.hidden, transposed: false };
        for nth in (0..shape.count()).rev() {
            let call = Call::new().with(one).u32(nth);
            self.launch(self.kernel("lstm", "lstm_step_back"), walk(8 * samples * shape.hidden), BLOCK, 0, call)?;
            if nth > 0 || !shape.is_first() {
                let local = if shape.reverse { shape.count() - 1 - nth } else { nth };
                let at = self.past(self.at(of.gates), local * 4 * shape.hidden);
                let a = Operand { at, stride: shape.gate_words(), transposed: false };
                let (at, stride) = (self.at(of.carry), 2 * shape.hidden);
                let into = Into { at, stride, number: Number::F32, alpha: 1.0, add: false, bias: None };
                self.product(number, (samples, shape.hidden, 4 * shape.hidden), a, b, into)?;
            }
        }
        Ok(())
    }

    /// Gradients of the four weights: from rows of the inputs, and from rows of the outputs one step earlier.
    fn lstm_weight(
        &mut self,
        shape: &LstmShape,
        dgates: Id,
        x: Id,
        out: Cols,
        [of_input, of_state, of_input_bias, of_state_bias]: &[Gradient; 4],
    ) -> Result<(), CudaError> {
        let LstmShape { inputs, hidden, .. } = *shape;
        let (wide, rows, dgates) = (4 * hidden, self.samples() * shape.count(), self.at(dgates));
        let earlier = if shape.reverse { 1 } else { -1 };
        let of_x = (self.at(x), inputs, inputs, 0i32);
        for (gradient, from) in [(of_input, of_x), (of_state, (self.columns(out), out.stride, hidden, earlier))] {
            let (Some((grad, write)), (at, stride, width, shift)) = (gradient, from) else { continue };
            let as_it_is = shift == 0 && shape.is_whole();
            let each = if as_it_is { rows } else { gathered_rows(rows, width, &self.form) };
            for first in (0..rows).step_by(each.max(1)) {
                let limit = each.min(rows - first);
                let b = match as_it_is {
                    true => at,
                    false => {
                        let to = self.scratch();
                        let call = Call::new().at(at).u32(stride).at(to).u32(width).u32(shape.steps).u32(shape.from);
                        let call = call.u32(shape.count()).with(shift).u32(first).u32(limit);
                        self.launch(self.kernel("lstm", "lstm_gather"), walk(limit * width), BLOCK, 0, call)?;
                        to
                    }
                };
                let a = Operand { at: self.past(dgates, first * wide), stride: wide, transposed: true };
                let b = Operand { at: b, stride: width, transposed: false };
                let (number, add) = (Number::F32, first > 0 || self.adds(*write));
                let into = Into { at: self.at(*grad), stride: width, number, alpha: 1.0, add, bias: None };
                self.product(self.act(), (wide, width, limit), a, b, into)?;
            }
        }
        let biases = [of_input_bias, of_state_bias];
        if biases.iter().all(|gradient| gradient.is_none()) {
            return Ok(());
        }
        let (chunks, partial) = (row_chunks(rows), self.scratch());
        let call = Call::new().at(dgates).at(partial).u32(wide).u32(rows);
        let grid = (wide.div_ceil(64), chunks);
        self.launch(self.kernel("lstm", "lstm_bias_partial"), grid, BLOCK, 0, call)?;
        biases.into_iter().flatten().try_for_each(|grad| self.sum_partials(partial, chunks, wide, *grad))
    }
}
