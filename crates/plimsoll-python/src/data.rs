//! Files, opened: every row checked once, no text kept.

use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_data::{Columns, DataSet, Kind, LOADER_CEILING, Largest, Opening, Order, Sources, Weight};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::fault::data_fault;

/// A set of files: paths or globs, source and target column, and weight.
type Files = (Vec<PathBuf>, Option<String>, Option<String>, f64);

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
    /// Opens `sets` of files (paths or globs) as rows of `kind`. Packed files are unpacked once into `cache`. Of files that have more than
    /// `cached` bytes hardly any pages stay in memory. Rows too large for a loader with so much `memory` are refused, or left out where
    /// `skip` says so.
    #[new]
    fn new(
        py: Python<'_>,
        sets: Vec<Files>,
        kind: &str,
        cache: Option<PathBuf>,
        cached: u64,
        memory: Option<u64>,
        skip: bool,
    ) -> PyResult<Data> {
        let kind = kind_of(kind)?;
        let set = |(files, source, target, weight): Files| {
            let wrong = || format!("a weight is {weight}, expected more than 0 and at most {}", Weight::MOST);
            let weight = Weight::new(weight).ok_or_else(|| PyValueError::new_err(wrong()))?;
            Ok(DataSet { files, columns: Columns { source, target }, weight })
        };
        let sets: Vec<DataSet> = sets.into_iter().map(set).collect::<PyResult<_>>()?;
        let largest = memory.map_or(Largest { skip, ..Largest::default() }, |memory| Largest::within(memory, skip));
        let opening = Opening { folder: cache.as_deref(), cached, largest, ..Opening::default() };
        let open = || Sources::open_mixture(&sets, kind, opening);
        let sources = Arc::new(py.detach(open).map_err(data_fault)?);
        Ok(Data { sources })
    }

    /// Blocks of a window, of `window` or the usual number, that half of `memory` has room for; `None`: the usual number.
    fn window(&self, window: Option<usize>, memory: Option<u64>) -> Option<usize> {
        let usual = Order::new(0, true);
        let asked = window.map_or(usual, |blocks| usual.with_window(blocks));
        let within = asked.within(&self.sources, memory.unwrap_or(LOADER_CEILING));
        if within == asked { window } else { Some(within.window_blocks()) }
    }

    /// Rows that were left out because they are too large.
    #[getter]
    fn oversized(&self) -> u64 {
        self.sources.facts().oversized
    }

    /// Rows of one pass.
    #[getter]
    fn rows(&self) -> u64 {
        self.sources.rows()
    }

    /// Tells these rows from others.
    #[getter]
    fn fingerprint(&self) -> u64 {
        self.sources.fingerprint()
    }

    /// The columns that are read, of the first set: the first, and the second where there is one.
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
