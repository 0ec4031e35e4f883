//! The LSTM. Each direction of each layer walks the steps in stretches: one, whose gates are kept, or several, of which the
//! cells before them are kept and the gates computed again. Outputs stay in any case, since the next layer reads them.

use super::places;
use crate::layer::{Backward, Pass};
use crate::op::{Cols, LSTM_BLOCK, LstmShape, LstmWeights, Op, Place, SeriesOp, Side};
use crate::spec::SeriesSpec;
use crate::tape::Id;

/// How far apart cells may be kept where the steps are cut into so many parts: in whole blocks, the farthest first, and 0 (everything is
/// kept) before them. What would keep everything all the same is left out.
pub(crate) fn distances(spec: &SeriesSpec, parts: &[usize]) -> Vec<usize> {
    let steps = spec.lstm_steps();
    let of = |parts: &usize| steps.div_ceil(*parts).next_multiple_of(LSTM_BLOCK);
    let mut list: Vec<usize> = [0].into_iter().chain(parts.iter().map(of).filter(|each| *each < steps)).collect();
    list.dedup();
    list
}

/// Some steps of one direction.
struct Stretch {
    shape: LstmShape,
    /// Cells before them.
    start: Option<Id>,
    /// Gates and cells; none where they are computed again.
    kept: Option<[Id; 2]>,
}

/// What the backward pass of a layer reads.
struct Layer {
    /// What it reads, before its dropout.
    x: Id,
    out: Id,
    directions: Vec<Vec<Stretch>>,
}

/// What the backward pass reads.
pub(super) struct LstmKept {
    layers: Vec<Layer>,
}

/// The LSTM of a spec; `every` so many steps its cells are kept (in whole blocks of them), 0: always, with the gates.
pub(super) struct Recurrent<'a> {
    pub spec: &'a SeriesSpec,
    pub every: usize,
}

impl Recurrent<'_> {
    fn side(&self) -> Side {
        Side::Steps(self.spec.lstm_steps())
    }

    fn inputs(&self, layer: usize) -> usize {
        if layer == 0 { self.spec.at_block(self.spec.conv.len()).0 } else { self.spec.width() }
    }

    fn weights(&self, pass: &Pass, layer: usize, direction: usize) -> LstmWeights {
        let end = if direction == 1 { "_reverse" } else { "" };
        let of = |kind: &str| pass.weight(&format!("{}.{kind}_l{layer}{end}", self.spec.lstm_stem()));
        LstmWeights {
            input: of("weight_ih"),
            state: of("weight_hh"),
            input_bias: of("bias_ih"),
            state_bias: of("bias_hh"),
        }
    }

    /// Dropout of what a layer reads.
    fn drop(&self, pass: &Pass, layer: usize) -> Option<Place> {
        if layer == 0 { None } else { pass.place(places::LSTM + layer as u32 - 1, self.spec.lstm.dropout) }
    }

    fn cols(&self, out: Id, direction: usize) -> Cols {
        Cols { id: out, start: direction * self.spec.lstm.hidden, stride: self.spec.width() }
    }

    /// The stretches of a direction, in the order that it walks them.
    fn stretches(&self, layer: usize, direction: usize) -> Vec<LstmShape> {
        let (steps, hidden, reverse) = (self.spec.lstm_steps(), self.spec.lstm.hidden, direction == 1);
        // Whole blocks of steps, by which weight gradients are summed.
        let each = if self.every == 0 { steps } else { self.every.next_multiple_of(LSTM_BLOCK).min(steps) };
        let inputs = self.inputs(layer);
        let walked = (0..steps).step_by(each).map(|from| (from, (from + each).min(steps)));
        let in_time = |(from, to): (usize, usize)| if reverse { (steps - to, steps - from) } else { (from, to) };
        let shape = |(from, to)| LstmShape { steps, inputs, hidden, reverse, from, to };
        walked.map(in_time).map(shape).collect()
    }

    fn walk(
        &self,
        pass: &mut Pass,
        x: Id,
        weights: LstmWeights,
        shape: LstmShape,
        ends: [Option<Id>; 2],
        out: Cols,
    ) -> [Id; 2] {
        let (samples, [start, end]) = (pass.shape.samples, ends);
        let gates = pass.activation("gates", samples * shape.gate_words());
        let cells = pass.activation("cells", samples * shape.count() * shape.hidden);
        pass.tape.push(Op::Series(SeriesOp::Lstm { shape, x, weights, gates, cells, start, end, out }));
        [gates, cells]
    }

    /// The last layer's output.
    pub fn forward(&self, pass: &mut Pass, x: Id) -> (LstmKept, Id) {
        let (mut x, mut layers) = (x, Vec::new());
        for layer in 0..self.spec.lstm.layers {
            let drop = self.drop(pass, layer);
            let dropped = pass.dropped(self.side(), x, self.inputs(layer), drop);
            let out = pass.activation("lstm", pass.rows(self.side()) * self.spec.width());
            let mut directions = Vec::new();
            for direction in 0..self.spec.directions() {
                let (weights, cols) = (self.weights(pass, layer, direction), self.cols(out, direction));
                let (mut start, mut walked) = (None, Vec::new());
                let stretches = self.stretches(layer, direction);
                for (nth, shape) in stretches.iter().enumerate() {
                    let goes_on = nth + 1 < stretches.len();
                    let end = goes_on.then(|| pass.activation("cells", pass.shape.samples * shape.hidden));
                    let made = self.walk(pass, dropped, weights, *shape, [start, end], cols);
                    let kept = (stretches.len() == 1).then_some(made);
                    walked.push(Stretch { shape: *shape, start, kept });
                    start = end;
                }
                directions.push(walked);
            }
            layers.push(Layer { x, out, directions });
            x = out;
        }
        (LstmKept { layers }, x)
    }

    /// The gradient of the LSTM's input.
    pub fn backward(&self, back: &mut Backward, kept: &LstmKept, dout: Id) -> Id {
        let mut dout = dout;
        for (layer, held) in kept.layers.iter().enumerate().rev() {
            let (side, inputs, hidden) = (self.side(), self.inputs(layer), self.spec.lstm.hidden);
            let drop = self.drop(&back.pass, layer);
            let x = back.pass.dropped(side, held.x, inputs, drop);
            let dx = back.temporary("dx", side, inputs);
            for (direction, stretches) in held.directions.iter().enumerate() {
                let weights = self.weights(&back.pass, layer, direction);
                let (out, dout) = (self.cols(held.out, direction), self.cols(dout, direction));
                let carry = back.temporary("carry", Side::Steps(1), 2 * hidden);
                for (nth, Stretch { shape, start, kept }) in stretches.iter().rev().enumerate() {
                    let shape = *shape;
                    let [gates, cells] =
                        kept.unwrap_or_else(|| self.walk(&mut back.pass, x, weights, shape, [*start, None], out));
                    let (start, state_weight, last) = (*start, weights.state, nth == 0);
                    back.push(Op::Series(SeriesOp::LstmBackward {
                        shape,
                        gates,
                        cells,
                        start,
                        state_weight,
                        dout,
                        carry,
                        last,
                    }));
                    let (dgates, input_weight, add) = (gates, weights.input, direction > 0);
                    back.push(Op::Series(SeriesOp::LstmInput { shape, dgates, input_weight, dx, add }));
                    let LstmWeights { input, state, input_bias, state_bias } = weights;
                    let grads = [input, state, input_bias, state_bias].map(|weight| back.gradient(weight));
                    if grads.iter().any(Option::is_some) {
                        back.push(Op::Series(SeriesOp::LstmWeight { shape, dgates, x, out, grads }));
                    }
                }
            }
            dout = back.pass.dropped(side, dx, inputs, drop);
        }
        dout
    }
}
