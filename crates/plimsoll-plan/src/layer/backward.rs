//! The backward pass of the shared layers, and what becomes of gradients.
//!
//! One gradient of the residual stream flows down through the blocks and is added to in place. A weight's input gradient
//! is emitted before its own gradient and its update, so an update on the way never changes what is still read.
//!
//! Where gradients are not kept, the whole effective batch is on the tape, in parts, and its blocks are swept one after
//! the other over all parts: a block's gradients are complete after its last part, are used, and are gone. With a norm
//! to clip by there are two sweeps: one that only measures, one that updates.

use std::collections::{HashMap, HashSet};

use super::pass::{Normed, Pass};
use super::projection::{Factors, Piece, Projected, Projection};
use crate::op::{Cols, Gradient, Op, Place, Side, Write};
use crate::tape::{Id, Role, Tape};

/// What a complete gradient is for, where it is not kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sweep {
    /// Its squares alone.
    Measure,
    /// The update, by a norm that is known.
    Update,
    /// Both, where nothing is clipped.
    Both,
}

pub(crate) struct Backward<'a> {
    pub pass: Pass<'a>,
    pub sweep: Sweep,
    /// Every part is marked, the only one too: for outlines, which read a tape by its marks.
    pub marked: bool,
    /// The part at work is the last that adds to gradients.
    pub last_part: bool,
    /// Complete gradients wait for the end of their block.
    pub by_block: bool,
    waiting: Vec<(Id, Id)>,
    /// Gradients that live on this tape only, by weight.
    transient: HashMap<Id, Id>,
    /// Weights whose gradient was written on this tape.
    written: HashSet<Id>,
}

impl<'a> Backward<'a> {
    pub fn new(pass: Pass<'a>, sweep: Sweep) -> Backward<'a> {
        Backward {
            pass,
            sweep,
            marked: false,
            last_part: true,
            by_block: false,
            waiting: Vec::new(),
            transient: HashMap::new(),
            written: HashSet::new(),
        }
    }

    /// The tape, without what nobody reads.
    pub fn finish(mut self) -> Tape {
        self.use_gradients();
        self.pass.tape.prune();
        self.pass.tape
    }

    pub fn push(&mut self, op: Op) {
        self.pass.tape.push(op);
    }

    pub fn temporary(&mut self, name: &str, side: Side, width: usize) -> Id {
        let words = self.pass.rows(side) * width;
        self.pass.activation(name, words)
    }

    /// Begins part `nth` of `parts`.
    pub fn part(&mut self, nth: usize, parts: usize) {
        self.last_part = nth + 1 == parts;
        if parts > 1 || self.marked {
            self.push(Op::Part { nth });
        }
    }

    pub fn is_trained(&self, weight: Id) -> bool {
        self.pass.store.tensors[weight.0 as usize].role == Role::Weight
    }

    /// The gradient of a weight, and how its next writer writes it; none where it is frozen.
    pub fn gradient(&mut self, weight: Id) -> Gradient {
        if !self.is_trained(weight) {
            return None;
        }
        let first = self.written.insert(weight);
        if let Some(id) = self.pass.store.gradients[weight.0 as usize] {
            return Some((id, if first { Write::SetFirst } else { Write::Add }));
        }
        let name = format!("{}.grad", self.pass.store.tensors[weight.0 as usize].name);
        let words = self.pass.store.elements[weight.0 as usize];
        let tape = &mut self.pass.tape;
        let id = *self.transient.entry(weight).or_insert_with(|| tape.tensor(name, words, Role::Gradient));
        Some((id, if first { Write::Set } else { Write::Add }))
    }

    /// A gradient that is only ever added to; zeroed first.
    pub fn gradient_of_table(&mut self, weight: Id) -> Option<Id> {
        let (id, write) = self.gradient(weight)?;
        if write != Write::Add {
            self.push(Op::Zero { tensor: id, write });
        }
        Some(id)
    }

    /// Behind the last part, the weight's gradient is complete: where it is not kept, it is used now.
    pub fn complete(&mut self, weight: Id) {
        if !self.last_part {
            return;
        }
        let Some(grad) = self.transient.remove(&weight) else { return };
        self.written.remove(&weight);
        self.waiting.push((weight, grad));
        if !self.by_block {
            self.use_gradients();
        }
    }

    /// Uses the gradients that wait for it.
    pub fn use_gradients(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        if self.sweep != Sweep::Update && !waiting.is_empty() {
            self.push(Op::GradientNorm { gradients: waiting.iter().map(|(_, grad)| *grad).collect() });
        }
        if self.sweep != Sweep::Measure {
            waiting.into_iter().for_each(|(weight, grad)| self.update(weight, grad));
        }
    }

    /// Keeps a measured gradient for the second sweep, which computes it no more.
    pub fn measured(&mut self, weight: Id) -> Option<(Id, Id)> {
        let grad = self.transient.remove(&weight)?;
        self.written.remove(&weight);
        self.push(Op::GradientNorm { gradients: vec![grad] });
        Some((weight, grad))
    }

    pub fn update(&mut self, weight: Id, grad: Id) {
        for (param, place) in self.pass.store.params.iter().enumerate().filter(|(_, p)| p.weight == weight) {
            self.pass.tape.push(Op::Update { param, weight, grad, state: place.state.clone() });
        }
    }

    /// `drop'(g)`: a fresh tensor, or `g` itself where nothing is dropped.
    pub fn dropped(&mut self, side: Side, g: Id, drop: Option<Place>) -> Id {
        let width = self.pass.width();
        self.pass.dropped(side, g, width, drop)
    }

    /// Adds the input gradient of module `name`'s norm to `g`, or sets it.
    pub fn norm_onto(&mut self, side: Side, dy: Id, normed: Normed, name: &str, g: Id, add: bool) {
        let width = self.pass.width();
        let (weight, bias) = self.pass.norm_weights(name);
        let (weight_grad, bias_grad) = (self.gradient(weight), bias.and_then(|b| self.gradient(b)));
        let Normed { x, stats } = normed;
        self.push(Op::NormBackward { side, dy, x, weight, bias, stats, dx: g, add, weight_grad, bias_grad, width });
        self.complete(weight);
        bias.into_iter().for_each(|bias| self.complete(bias));
    }

    /// Gradients of a projection: of its input (set, or added to the given tensor), weights, biases, factors.
    pub fn project(
        &mut self,
        side: Side,
        dy: Id,
        x: Id,
        projection: &Projection,
        kept: &Projected,
        onto: Option<Id>,
    ) -> Id {
        let (dx, narrow) = self.project_input(side, dy, projection, onto);
        self.project_weights(side, dy, x, projection, kept, narrow);
        dx
    }

    /// The gradient of a projection's input, and of what its factors pass between them.
    pub fn project_input(&mut self, side: Side, dy: Id, projection: &Projection, onto: Option<Id>) -> (Id, Vec<Id>) {
        let Projection { inputs, in_out, .. } = *projection;
        let stride = projection.outputs();
        let cols = |start: usize| Cols { id: dy, start, stride };
        let mut dx = onto.unwrap_or_else(|| self.temporary("dx", side, inputs));
        let mut add = onto.is_some();
        let (pieces, factors) = (projection.pieces(&self.pass), projection.factors(&self.pass));
        for Piece { weight, start, outputs, .. } in &pieces {
            let (dy, weight, outputs) = (cols(*start), *weight, *outputs);
            self.push(Op::LinearInput { side, dy, weight, dx, add, scale: 1.0, inputs, outputs, in_out });
            add = true;
        }
        let (r, scale) = self.pass.lora();
        let mut narrow = Vec::new();
        for Factors { a, b, start, outputs, drop } in &factors {
            let dt = self.temporary("dlora", side, r);
            let (dy, weight, outputs) = (cols(*start), *b, *outputs);
            let (add, in_out) = (false, false);
            self.push(Op::LinearInput { side, dy, weight, dx: dt, add, scale, inputs: r, outputs, in_out });
            let dy = Cols { id: dt, start: 0, stride: r };
            // Through the factor's own dropout: its input gradient is dropped before it joins the others.
            let into = if drop.is_some() { self.temporary("dx", side, inputs) } else { dx };
            let add = drop.is_none();
            self.push(Op::LinearInput { side, dy, weight: *a, dx: into, add, scale: 1.0, inputs, outputs: r, in_out });
            if drop.is_some() {
                self.push(Op::Residual { side, x: dx, y: into, width: inputs, drop: *drop });
                dx = into;
            }
            narrow.push(dt);
        }
        (dx, narrow)
    }

    /// The gradients of a projection's weights, biases and factors. `narrow` came with that of its input.
    pub fn project_weights(
        &mut self,
        side: Side,
        dy: Id,
        x: Id,
        projection: &Projection,
        kept: &Projected,
        narrow: Vec<Id>,
    ) {
        let Projection { inputs, in_out, .. } = *projection;
        let stride = projection.outputs();
        let cols = |start: usize| Cols { id: dy, start, stride };
        let (pieces, factors) = (projection.pieces(&self.pass), projection.factors(&self.pass));
        let (r, scale) = self.pass.lora();
        for Piece { weight, bias, start, outputs } in pieces {
            let (dy, scale) = (cols(start), 1.0);
            if let Some((grad, write)) = self.gradient(weight) {
                self.push(Op::LinearWeight { side, dy, x, grad, write, scale, inputs, outputs, in_out });
                self.complete(weight);
            }
            if let Some((bias, (grad, write))) = bias.and_then(|b| Some((b, self.gradient(b)?))) {
                self.push(Op::ColumnSum { side, dy, grad, write, width: outputs });
                self.complete(bias);
            }
        }
        for ((Factors { a, b, start, outputs, drop }, t), dt) in factors.into_iter().zip(&kept.narrow).zip(narrow) {
            let in_out = false;
            if let Some((grad, write)) = self.gradient(b) {
                let dy = cols(start);
                self.push(Op::LinearWeight { side, dy, x: *t, grad, write, scale, inputs: r, outputs, in_out });
                self.complete(b);
            }
            if let Some((grad, write)) = self.gradient(a) {
                let x = self.pass.dropped(side, x, inputs, drop);
                let dy = Cols { id: dt, start: 0, stride: r };
                self.push(Op::LinearWeight { side, dy, x, grad, write, scale: 1.0, inputs, outputs: r, in_out });
                self.complete(a);
            }
        }
    }

    /// The loss with its gradients; returns the gradient of the hidden states.
    pub fn loss(&mut self, hidden: Id, head: &str, scale: f32, vocab: usize, chunk: usize) -> Id {
        let (weight, width) = (self.pass.weight(head), self.pass.width());
        let logits = self.pass.activation("logits", chunk * vocab);
        let losses = self.temporary("losses", Side::Target, 1);
        let dhidden = self.temporary("dhidden", Side::Target, width);
        let grad = self.gradient(weight);
        self.push(Op::Loss { hidden, weight, losses, dhidden, grad, logits, chunk, width, vocab, scale });
        dhidden
    }
}
