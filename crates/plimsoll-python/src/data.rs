//! Files, opened: every row checked once, no text kept.

use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_data::{Columns, Kind, Sources};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::fault::data_fault;

/// Opened files. Holds no file open, no thread and no lock, so it may be used on both sides of a fork.
#[pyclass(frozen, module = "plimsoll._plimsoll")]
pub struct Data {
    sources: Arc<Sources>,
}

impl Data {
    pub fn sources(&self) -> &Arc<Sources> {
        &self.sources
    }
}

#[pymethods]
impl Data {
    /// Opens `files` (paths or globs) as rows of `kind`. Packed files are unpacked once into `cache`.
    #[new]
    fn new(
        py: Python<'_>,
        files: Vec<PathBuf>,
        kind: &str,
        source: Option<String>,
        target: Option<String>,
        cache: Option<PathBuf>,
    ) -> PyResult<Data> {
        let kind = kind_of(kind)?;
        let open = || Sources::open_in(&files, kind, Columns { source, target }, cache.as_deref());
        let sources = Arc::new(py.detach(open).map_err(data_fault)?);
        Ok(Data { sources })
    }

    /// Rows in all files.
    #[getter]
    fn rows(&self) -> u64 {
        self.sources.rows()
    }

    /// Tells these rows from others.
    #[getter]
    fn fingerprint(&self) -> u64 {
        self.sources.fingerprint()
    }

    /// The columns that are read: the first, and the second where there is one.
    #[getter]
    fn columns(&self) -> (String, Option<String>) {
        let chosen = self.sources.columns();
        (chosen.source.clone(), Some(chosen.target.clone()).filter(|name| !name.is_empty()))
    }
}

/// What rows are, by their name.
pub fn kind_of(name: &str) -> PyResult<Kind> {
    match name {
        "pairs" => Ok(Kind::Pairs),
        "chat" => Ok(Kind::Chat),
        "text" => Ok(Kind::Text),
        _ => Err(PyValueError::new_err(format!("`kind` is `{name}`, expected `text`, `chat` or `pairs`"))),
    }
}
