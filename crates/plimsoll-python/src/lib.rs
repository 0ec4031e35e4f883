//! The native half of the Python package `plimsoll`: opened data, recipes, meetings of ranks, passes and batches, each a class.
//!
//! The Python half (`python/plimsoll`) says what a user can ask for and keeps the place in the stream; this half runs one
//! pass from a given place. Invariant: nothing is started at import or when data are opened, threads belong to a `Pass`
//! and to the process that began it, and nobody holds the interpreter's lock while waiting. It knows no model and no torch.

mod batch;
mod crew;
mod data;
mod elsewhere;
mod fault;
mod held;
mod making;
mod node;
mod pass;
mod signals;
mod slot;
mod telling;
mod wording;

/// What Python imports.
#[pyo3::pymodule]
mod _plimsoll {
    #[pymodule_export]
    use super::batch::Batch;
    #[pymodule_export]
    use super::crew::Meeting;
    #[pymodule_export]
    use super::crew::RingLost;
    #[pymodule_export]
    use super::data::Data;
    #[pymodule_export]
    use super::pass::Pass;
    #[pymodule_export]
    use super::wording::{Wording, chat_template};
}
