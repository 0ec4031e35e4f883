//! Layers that all families share, written once as ops on a tape: forward (`pass`) and backward (`backward`).
//!
//! Each forward function emits ops and returns the tensors that a backward pass would read. A recomputed layer is the
//! same function called again: new tensors, the same ops, the same dropout places, and so the same bits. What turns out
//! not to be needed is removed at the end (`Tape::prune`).

mod backward;
mod pass;
mod projection;

pub(crate) use backward::{Backward, Sweep};
pub(crate) use pass::{Normed, Pass};
pub(crate) use projection::{Projected, Projection};
