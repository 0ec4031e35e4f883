//! Products that share an input: q, k and v; gate and up; or one alone. With LoRA's factors beside those that have them.

use super::pass::Pass;
use crate::op::{Cols, Op, Place, Side};
use crate::tape::Id;
use crate::trained::factor_names;

/// Modules that read the same rows; their outputs stand side by side.
pub(crate) struct Projection {
    /// Name and width of each.
    pub modules: Vec<(String, usize)>,
    /// Width of the input.
    pub inputs: usize,
    /// Weights are stored `[in, out]`.
    pub in_out: bool,
    /// Place of the first module's LoRA dropout; the others follow.
    pub place: u32,
}

/// One product of a projection.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub weight: Id,
    pub bias: Option<Id>,
    pub start: usize,
    pub outputs: usize,
}

/// LoRA's factors of one module.
#[derive(Clone, Copy)]
pub(super) struct Factors {
    pub a: Id,
    pub b: Id,
    pub start: usize,
    pub outputs: usize,
    pub drop: Option<Place>,
}

/// What the backward pass of a projection reads besides its input: the narrow products of LoRA.
#[derive(Clone, Default)]
pub(crate) struct Projected {
    pub narrow: Vec<Id>,
}

impl Projection {
    /// Width of all outputs.
    pub fn outputs(&self) -> usize {
        self.modules.iter().map(|(_, n)| n).sum()
    }

    /// The products that it takes: one where the weights are one tensor.
    pub(super) fn pieces(&self, pass: &Pass) -> Vec<Piece> {
        let mut list: Vec<Piece> = Vec::new();
        let mut start = 0;
        for (name, outputs) in &self.modules {
            let weight = pass.weight(&format!("{name}.weight"));
            let bias = pass.find(&format!("{name}.bias"));
            match list.last_mut().filter(|piece| piece.weight == weight) {
                Some(piece) => piece.outputs += outputs,
                None => list.push(Piece { weight, bias, start, outputs: *outputs }),
            }
            start += outputs;
        }
        list
    }

    pub(super) fn factors(&self, pass: &Pass) -> Vec<Factors> {
        let mut list = Vec::new();
        let mut start = 0;
        for (nth, (name, outputs)) in self.modules.iter().enumerate() {
            let [a, b] = factor_names(name);
            if let (Some(a), Some(b)) = (pass.find(&a), pass.find(&b)) {
                let drop = pass.place(self.place + nth as u32, pass.lora_dropout());
                list.push(Factors { a, b, start, outputs: *outputs, drop });
            }
            start += outputs;
        }
        list
    }
}

impl Pass<'_> {
    /// All products of a projection, into one tensor.
    pub fn project(&mut self, side: Side, x: Id, name: &str, projection: &Projection) -> (Id, Projected) {
        let (inputs, stride) = (projection.inputs, projection.outputs());
        let id = self.activation(name, self.rows(side) * stride);
        for Piece { weight, bias, start, outputs } in projection.pieces(self) {
            let out = Cols { id, start, stride };
            let in_out = projection.in_out;
            self.tape.push(Op::Linear { side, x, weight, bias, out, add: false, scale: 1.0, inputs, outputs, in_out });
        }
        let (r, scale) = self.lora();
        let mut kept = Projected::default();
        for Factors { a, b, start, outputs, drop } in projection.factors(self) {
            let x = self.dropped(side, x, inputs, drop);
            let narrow = self.linear(side, x, a, "lora", inputs, r);
            let (out, inputs) = (Cols { id, start, stride }, r);
            let (bias, add, in_out) = (None, true, false);
            self.tape.push(Op::Linear { side, x: narrow, weight: b, bias, out, add, scale, inputs, outputs, in_out });
            kept.narrow.push(narrow);
        }
        (id, kept)
    }

    /// `drop(x)` as a fresh tensor, or `x` itself where nothing is dropped.
    pub fn dropped(&mut self, side: Side, x: Id, width: usize, drop: Option<Place>) -> Id {
        let Some(drop) = drop else { return x };
        let out = self.activation("dropped", self.rows(side) * width);
        self.tape.push(Op::Drop { side, g: x, out, width, drop });
        out
    }
}
