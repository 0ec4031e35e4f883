//! The heads: hidden layers and outputs, from one row a sample.

use super::places;
use crate::layer::{Backward, Pass, Projected, Projection};
use crate::op::{Answer, Op, Place, SeriesOp, Side};
use crate::spec::{Activation, HeadSpec, SeriesSpec};
use crate::tape::Id;

const SIDE: Side = Side::Steps(1);

/// What the backward pass of a hidden layer reads.
struct Hidden {
    /// Its input.
    x: Id,
    /// Before its activation; with ReLU behind it, in the same place.
    h: Id,
    lora: Projected,
}

/// What the backward pass of a head reads.
pub(super) struct HeadKept {
    hidden: Vec<Hidden>,
    x: Id,
    lora: Projected,
}

/// Head `nth` of a model.
pub(super) struct Head<'a> {
    pub spec: &'a SeriesSpec,
    pub head: &'a HeadSpec,
    pub nth: u32,
}

impl Head<'_> {
    fn projection(&self, layer: usize) -> Projection {
        let width = |at: usize| self.head.hidden.get(at).map_or(self.head.outputs, |hidden| hidden.width);
        let inputs = layer.checked_sub(1).map_or(self.spec.width(), width);
        let modules = vec![(format!("{}.{}", self.head.name, 3 * layer), width(layer))];
        Projection { modules, inputs, in_out: false, place: 0 }
    }

    fn drop(&self, pass: &Pass, layer: usize) -> Option<Place> {
        pass.place(places::HEADS + self.nth * places::PER_HEAD + layer as u32, self.head.hidden[layer].dropout)
    }

    /// The answers of all samples.
    pub fn forward(&self, pass: &mut Pass, x: Id) -> (HeadKept, Answer) {
        let (mut x, mut hidden) = (x, Vec::new());
        for (layer, of) in self.head.hidden.iter().enumerate() {
            let (h, lora) = pass.project(SIDE, x, "hidden", &self.projection(layer));
            let (drop, width) = (self.drop(pass, layer), of.width);
            let out = match self.spec.activation {
                Activation::Relu => {
                    pass.tape.push(Op::Relu { side: SIDE, h, width, drop });
                    h
                }
                Activation::Gelu => {
                    let out = pass.activation("bent", pass.rows(SIDE) * width);
                    pass.tape.push(Op::Series(SeriesOp::GeluErf { side: SIDE, h, out, width, drop }));
                    out
                }
            };
            hidden.push(Hidden { x, h, lora });
            x = out;
        }
        let (out, lora) = pass.project(SIDE, x, "answers", &self.projection(self.head.hidden.len()));
        (HeadKept { hidden, x, lora }, Answer { out, grad: None, outputs: self.head.outputs })
    }

    /// Adds what reaches the row to `onto`, or begins it.
    pub fn backward(&self, back: &mut Backward, kept: &HeadKept, dout: Id, onto: Option<Id>) -> Id {
        let last = kept.hidden.len();
        let onto_of = |layer: usize| onto.filter(|_| layer == 0);
        let mut dx = back.project(SIDE, dout, kept.x, &self.projection(last), &kept.lora, onto_of(last));
        for (layer, Hidden { x, h, lora }) in kept.hidden.iter().enumerate().rev() {
            let (drop, width) = (self.drop(&back.pass, layer), self.head.hidden[layer].width);
            back.push(match self.spec.activation {
                Activation::Relu => Op::ReluBackward { side: SIDE, dh: dx, h: *h, width, drop },
                Activation::Gelu => Op::Series(SeriesOp::GeluErfBackward { side: SIDE, dh: dx, h: *h, width, drop }),
            });
            dx = back.project(SIDE, dx, *x, &self.projection(layer), lora, onto_of(layer));
        }
        dx
    }
}
