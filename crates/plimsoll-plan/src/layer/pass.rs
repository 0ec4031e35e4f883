//! A pass in the making: the tape, the tensors by name, and the small layers.

use std::collections::HashMap;

use crate::batch::BatchShape;
use crate::op::{Cols, Op, Place, Side};
use crate::tape::{Id, Role, Store, Tape};
use crate::trained::{LoraSpec, TrainSpec};

/// A pass in the making.
pub(crate) struct Pass<'a> {
    pub store: &'a Store,
    pub tape: Tape,
    /// The batch, or the part of it that the ops run over.
    pub shape: BatchShape,
    /// Width of the residual stream.
    width: usize,
    eps: f32,
    /// Dropout is on.
    train: bool,
    lora: Option<&'a LoraSpec>,
    names: HashMap<&'a str, Id>,
}

/// A norm's output and what its backward pass reads.
#[derive(Clone, Copy)]
pub(crate) struct Normed {
    pub x: Id,
    pub stats: Id,
}

impl<'a> Pass<'a> {
    pub fn new(
        store: &'a Store,
        train_spec: &'a TrainSpec,
        shape: BatchShape,
        (width, eps): (usize, f32),
        train: bool,
    ) -> Pass<'a> {
        let names = store.params.iter().map(|place| (place.param.name.as_str(), place.weight)).collect();
        let lora = match train_spec {
            TrainSpec::Lora(lora) => Some(lora),
            _ => None,
        };
        Pass { store, tape: Tape::over(store), shape, width, eps, train, lora, names }
    }

    pub fn rows(&self, side: Side) -> usize {
        match side {
            Side::Source => self.shape.samples * self.shape.source_len,
            Side::Target => self.shape.samples * self.shape.target_len,
            Side::Beam => self.shape.samples,
            Side::Steps(steps) => self.shape.samples * steps,
        }
    }

    /// Whether dropout is on.
    pub fn trains(&self) -> bool {
        self.train
    }

    /// Rank and scale of LoRA.
    pub(super) fn lora(&self) -> (usize, f32) {
        self.lora.map_or((0, 1.0), |lora| (lora.r, lora.scale()))
    }

    pub(super) fn lora_dropout(&self) -> f32 {
        self.lora.map_or(0.0, |lora| lora.dropout)
    }

    /// The tensor that holds a parameter.
    pub fn weight(&self, name: &str) -> Id {
        self.find(name).unwrap_or_else(|| panic!("the store declares `{name}`"))
    }

    /// The tensor that holds a parameter, where the model has it.
    pub fn find(&self, name: &str) -> Option<Id> {
        self.names.get(name).copied()
    }

    pub fn activation(&mut self, name: &str, words: usize) -> Id {
        self.tape.tensor(name, words, Role::Activation)
    }

    /// A place of dropout, where anything is dropped.
    pub fn place(&self, key: u32, rate: f32) -> Option<Place> {
        (self.train && rate > 0.0).then_some(Place { key, rate })
    }

    /// One product with a weight `[outputs, inputs]`.
    pub fn linear(&mut self, side: Side, x: Id, weight: Id, name: &str, inputs: usize, outputs: usize) -> Id {
        let id = self.activation(name, self.rows(side) * outputs);
        let out = Cols { id, start: 0, stride: outputs };
        let (bias, add, scale, in_out) = (None, false, 1.0, false);
        self.tape.push(Op::Linear { side, x, weight, bias, out, add, scale, inputs, outputs, in_out });
        id
    }

    /// The norm of module `name`; returns its output and what is kept.
    pub fn norm(&mut self, side: Side, x: Id, name: &str, drop: Option<Place>) -> (Id, Normed) {
        let (weight, bias) = self.norm_weights(name);
        let (width, eps) = (self.width, self.eps);
        let stats = self.activation("stats", self.rows(side) * if bias.is_some() { 2 } else { 1 });
        let out = self.activation("normed", self.rows(side) * width);
        self.tape.push(Op::Norm { side, x, weight, bias, stats, out, width, eps, drop });
        (out, Normed { x, stats })
    }

    /// The norm's output again.
    pub fn norm_again(&mut self, side: Side, normed: Normed, name: &str) -> Id {
        let (weight, bias) = self.norm_weights(name);
        let (Normed { x, stats }, width) = (normed, self.width);
        let out = self.activation("normed", self.rows(side) * width);
        self.tape.push(Op::NormApply { side, x, weight, bias, stats, out, width, drop: None });
        out
    }

    pub(super) fn norm_weights(&self, name: &str) -> (Id, Option<Id>) {
        (self.weight(&format!("{name}.weight")), self.find(&format!("{name}.bias")))
    }

    /// Width of the residual stream.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Added to the variance inside a norm.
    pub fn eps(&self) -> f32 {
        self.eps
    }

    /// `x + drop(y)`, in `y`'s place.
    pub fn residual(&mut self, side: Side, x: Id, y: Id, drop: Option<Place>) -> Id {
        let width = self.width;
        self.tape.push(Op::Residual { side, x, y, width, drop });
        y
    }

    /// The loss of hidden states, without gradients.
    pub fn loss_only(&mut self, hidden: Id, head: &str, scale: f32, vocab: usize, chunk: usize) {
        let (weight, width) = (self.weight(head), self.width);
        let logits = self.activation("logits", chunk * vocab);
        let losses = self.activation("losses", self.rows(Side::Target));
        self.tape.push(Op::LossOnly { hidden, weight, losses, logits, chunk, width, vocab, scale });
    }
}
