//! Signals of Python while a thread of it waits: Ctrl-C ends the waiting, and other handlers run.
//!
//! Invariant: Python's lock is taken only for the moment of looking. In threads other than the main one there is nothing to see.

use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_data::GiveUp;
use pyo3::prelude::*;

/// What a handler raised, until it is raised again.
#[derive(Clone, Default)]
pub struct Signals(Arc<Mutex<Option<PyErr>>>);

impl Signals {
    /// Runs the handlers of signals that came; true where one of them raised.
    pub fn came(&self) -> bool {
        // Without an interpreter, at its end, there is nobody to wait for a batch.
        let raised = Python::try_attach(|py| py.check_signals().err());
        let stop = raised.as_ref().is_none_or(Option::is_some);
        if let Some(Some(error)) = raised {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
        stop
    }

    /// What a handler raised.
    pub fn raised(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// For a loader.
    pub fn give_up(&self) -> GiveUp {
        let signals = self.clone();
        Arc::new(move || signals.came())
    }
}
