//! The tape: the ops of one pass in order, each naming the tensors it reads and writes.
//!
//! The tape is the program. The planner takes lifetimes and scratch from it, the engine executes it; there is no second
//! description of what a step does. Tensor ids below `Store::tensors.len()` are persistent (weights, gradients,
//! optimizer state) and shared by all tapes of a program; the others belong to one tape and live from their first touch
//! to their last.

use crate::dtype::Dtype;
use crate::op::{Op, ParamShape};
use crate::spec::Param;

/// A tensor of a program: persistent ones first, then those of one tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(pub u32);

/// What a tensor is for; the plan's table adds up by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Parameters that are trained.
    Weight,
    /// Parameters that are only read.
    Frozen,
    /// Gradients of parameters.
    Gradient,
    /// Optimizer state.
    Optimizer,
    /// Copies of trained parameters in the form that products read.
    Copy,
    /// Running statistics: saved with the weights, never trained.
    Running,
    /// Kept from the forward to the backward pass, or passed between ops.
    Activation,
}

/// One tensor, in words of four bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// For people and tests; Hugging Face's name where it has one.
    pub name: String,
    /// Words that it takes.
    pub words: usize,
    /// What it is for.
    pub role: Role,
    /// How its numbers are stored; other than f32 for weights and, on a card, activations.
    pub dtype: Dtype,
}

/// Where one parameter lies: a range of a weight tensor, and its gradient at the same range of another.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamPlace {
    /// Name, shape, initialisation.
    pub param: Param,
    /// Tensor that holds it, alone or with its neighbours.
    pub weight: Id,
    /// Elements before it in that tensor.
    pub offset: usize,
    /// It gets gradients and updates.
    pub trained: bool,
    /// It is a factor of LoRA.
    pub adapter: bool,
    /// It is a running statistic: what it will be lies where others have their gradient.
    pub running: bool,
    /// Optimizer state tensors of this parameter, in the optimizer's own order.
    pub state: Vec<Id>,
}

impl ParamPlace {
    /// Whether a run changes it: what checkpoints hold.
    pub fn changes(&self) -> bool {
        self.trained || self.running
    }
}

/// Everything that outlives a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Store {
    /// Persistent tensors; their ids are their indices.
    pub tensors: Vec<Tensor>,
    /// Every parameter, in the model's order.
    pub params: Vec<ParamPlace>,
    /// Gradient of each weight tensor, where gradients are persistent (index: the weight's id).
    pub gradients: Vec<Option<Id>>,
    /// Numbers in each weight tensor (index: the weight's id).
    pub elements: Vec<usize>,
    /// Copy of each weight tensor that products read in its place (index: the weight's id).
    pub copies: Vec<Option<Id>>,
}

impl Store {
    /// Adds a persistent tensor.
    pub fn add(&mut self, name: impl Into<String>, words: usize, role: Role) -> Id {
        self.tensors.push(Tensor { name: name.into(), words, role, dtype: Dtype::F32 });
        Id(self.tensors.len() as u32 - 1)
    }

    /// Whether a weight of f32 lies in two tensors of 16 bits: the upper halves, rounded to nearest, are its copy, which
    /// products read; the weight's own tensor has the lower ones.
    pub fn is_split(&self, weight: Id) -> bool {
        let copy = self.copies.get(weight.0 as usize).copied().flatten();
        self.dtype(weight) == Dtype::F32 && copy.is_some_and(|copy| self.dtype(copy) == Dtype::Bf16)
    }

    /// Words of copies that are the upper halves of their weights.
    pub fn upper_half_words(&self) -> usize {
        let split = (0..self.copies.len()).filter(|at| self.is_split(Id(*at as u32)));
        split.filter_map(|at| self.copies[at]).map(|copy| self.tensors[copy.0 as usize].words).sum()
    }

    /// How a tensor's numbers are stored.
    pub fn dtype(&self, id: Id) -> Dtype {
        self.tensors.get(id.0 as usize).map_or(Dtype::F32, |t| t.dtype)
    }

    /// A parameter as the optimizers see it.
    pub fn param(&self, index: usize) -> ParamShape {
        let param = &self.params[index].param;
        match param.shape.as_slice() {
            [rows, cols] => ParamShape { rows: *rows, cols: *cols },
            _ => ParamShape { rows: 1, cols: param.elements() },
        }
    }

    /// Elements of all persistent tensors of a role.
    pub fn words(&self, role: Role) -> usize {
        self.tensors.iter().filter(|t| t.role == role).map(|t| t.words).sum()
    }
}

/// One pass: its own tensors and its ops.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tape {
    /// How many ids are persistent; the tape's own tensors follow.
    pub persistent: usize,
    /// Tensors of this tape alone.
    pub tensors: Vec<Tensor>,
    /// The ops, in order.
    pub ops: Vec<Op>,
}

impl Tape {
    /// An empty tape over a store.
    pub fn over(store: &Store) -> Tape {
        Tape { persistent: store.tensors.len(), tensors: Vec::new(), ops: Vec::new() }
    }

    /// Adds a tensor that lives from its first touch to its last.
    pub fn tensor(&mut self, name: impl Into<String>, words: usize, role: Role) -> Id {
        self.tensors.push(Tensor { name: name.into(), words, role, dtype: Dtype::F32 });
        Id((self.persistent + self.tensors.len()) as u32 - 1)
    }

    /// Adds an op.
    pub fn push(&mut self, op: Op) {
        self.ops.push(op);
    }

    /// Index of a tensor among the tape's own, or none if it is persistent.
    pub fn own(&self, id: Id) -> Option<usize> {
        (id.0 as usize).checked_sub(self.persistent)
    }

    /// Removes every op that nothing comes of: whose tensors no later op reads. What a frozen part would have kept for a
    /// backward pass that it does not have goes with it.
    pub fn prune(&mut self) {
        let mut wanted: std::collections::HashSet<Id> = Default::default();
        let mut keep = vec![false; self.ops.len()];
        for (at, op) in self.ops.iter().enumerate().rev() {
            let mut useful = op.is_deed();
            // What is persistent outlives the tape.
            op.writes(&mut |id| useful |= wanted.contains(&id) || self.own(id).is_none());
            if useful {
                op.reads(&mut |id| {
                    wanted.insert(id);
                });
                keep[at] = true;
            }
        }
        let mut keep = keep.into_iter();
        self.ops.retain(|_| keep.next().unwrap_or(true));
    }

    /// First and last op that touches each of the tape's own tensors; none for a tensor that no op touches.
    pub fn lifetimes(&self) -> Vec<Option<(usize, usize)>> {
        let mut spans: Vec<Option<(usize, usize)>> = vec![None; self.tensors.len()];
        for (at, op) in self.ops.iter().enumerate() {
            op.touches(&mut |id| {
                if let Some(index) = self.own(id) {
                    spans[index] = Some((spans[index].map_or(at, |(first, _)| first), at));
                }
            });
        }
        spans
    }
}
