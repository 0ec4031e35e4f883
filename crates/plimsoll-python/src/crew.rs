//! The ranks of a node, as Python sees them: a meeting, and what came of it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use plimsoll_data::documents_of;
use plimsoll_plan::batch::BatchShape;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::node;
use crate::signals::Signals;

create_exception!(
    _plimsoll,
    RingLost,
    PyException,
    "The shared ring is of no use any more: the ranks that are gone (None: go on alone), and why if it is worth a word."
);

/// What came of a meeting.
#[pyclass(frozen, module = "plimsoll._plimsoll")]
pub struct Meeting {
    role: Mutex<Option<node::Role>>,
    pub seat: usize,
    pub seats: usize,
    /// Seats whose ranks are not to be waited for.
    pub gone: Vec<usize>,
    /// Who had the seats before, where that is known.
    pub processes: Vec<Option<node::Process>>,
    pub patience: Duration,
}

impl Meeting {
    /// The role, for the pass that plays it.
    pub fn take_role(&self) -> Option<node::Role> {
        self.role.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl Meeting {
    /// Meets the other ranks of the node that have the same `key`. Waits for a leader that is there to let this one in. Nobody will
    /// wait for the seats of `gone`, nor for those whose `processes` (0: not known) have ended.
    #[new]
    #[pyo3(signature = (key, *, seat, seats, gone, processes, patience_s, batch_size, source_len, target_len, packed))]
    fn new(
        py: Python<'_>,
        key: &str,
        seat: usize,
        seats: usize,
        gone: Vec<usize>,
        processes: Vec<u64>,
        patience_s: f64,
        batch_size: usize,
        source_len: usize,
        target_len: usize,
        packed: bool,
    ) -> PyResult<Meeting> {
        let documents = documents_of(packed, source_len);
        let shape = BatchShape { samples: batch_size, source_len, target_len, documents };
        let signals = Signals::default();
        let meeting = node::Meeting { key, seat, seats, shape };
        let role = py.detach(|| meeting.meet(&|| signals.came()))?;
        if let Some(raised) = signals.raised() {
            return Err(raised);
        }
        let patience = Duration::try_from_secs_f64(patience_s).unwrap_or(Duration::MAX);
        let processes = processes.into_iter().map(node::Process::from_number).collect();
        Ok(Meeting { role: Mutex::new(role), seat, seats, gone, processes, patience })
    }

    /// Whether this rank is to make the rounds.
    #[getter]
    fn leads(&self) -> bool {
        matches!(&*self.role.lock().unwrap_or_else(PoisonError::into_inner), Some(node::Role::Lead(_)))
    }
}
