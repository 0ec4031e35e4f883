//! The tape: the ops of one pass in order, each naming the tensors it reads and writes.
//!
//! The tape is the program. The planner takes lifetimes and scratch from it, the engine executes it; there is no second
//! description of what a step does. Tensor ids below `Store::tensors.len()` are persistent (weights, gradients,
//! optimizer state) and shared by all tapes of a program; the others belong to one tape and live from their first touch
//! to their last.

use crate::op::Op;
use crate::spec::Param;

/// A tensor of a program: persistent ones first, then those of one tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(pub u32);

/// What a tensor is for; the plan's table adds up by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Trained parameters.
    Weight,
    /// Gradients of parameters.
    Gradient,
    /// Optimizer state.
    Optimizer,
    /// Kept from the forward to the backward pass, or passed between ops.
    Activation,
}

/// One tensor: elements of four bytes each (f32 or u32).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// For people and tests; Hugging Face's name where it has one.
    pub name: String,
    /// Elements.
    pub words: usize,
    /// What it is for.
    pub role: Role,
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
    /// Optimizer state tensors of this parameter, in the optimizer's own order.
    pub state: Vec<Id>,
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
}

impl Store {
    /// Adds a persistent tensor.
    pub fn add(&mut self, name: impl Into<String>, words: usize, role: Role) -> Id {
        self.tensors.push(Tensor { name: name.into(), words, role });
        Id(self.tensors.len() as u32 - 1)
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
        self.tensors.push(Tensor { name: name.into(), words, role });
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
