//! Errors of ours as Python's exceptions, their words unchanged.

use plimsoll_data::DataError;
use plimsoll_model::ModelError;
use pyo3::PyErr;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};

/// What the file system or a store said is an `OSError`, what our own threads did a `RuntimeError`, all else is wrong with what was given.
pub fn data_fault(error: DataError) -> PyErr {
    match error {
        DataError::Io(error) => error.into(),
        DataError::Remote { .. } => PyOSError::new_err(error.to_string()),
        DataError::ThreadPanicked { .. } | DataError::Stopped => PyRuntimeError::new_err(error.to_string()),
        _ => PyValueError::new_err(error.to_string()),
    }
}

/// As [`data_fault`], of a model folder.
pub fn model_fault(error: ModelError) -> PyErr {
    match error {
        ModelError::Io(error) => error.into(),
        _ => PyValueError::new_err(error.to_string()),
    }
}
