//! Files, opened: every row checked once, no text kept.

use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_data::{
    Columns, DataSet, Elsewhere, Kind, LOADER_CEILING, Largest, Opening, Order, RemoteFiles, Sources, Weight,
    cache_ceiling,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::elsewhere::Stores;
use crate::fault::data_fault;
use crate::signals::Signals;

/// A set of files: paths or globs, source and target column, and weight.
type Files = (Vec<PathBuf>, Option<String>, Option<String>, f64);

/// Opened files. Holds no file open, no thread and no lock that a fork would share, so it may be used on both sides of one.
#[pyclass(frozen, module = "plimsoll._plimsoll")]
pub struct Data {
    sources: Arc<Sources>,
    stores: Arc<Stores>,
}

impl Data {
    pub fn sources(&self) -> &Arc<Sources> {
        &self.sources
    }

    /// Who reads what lies elsewhere.
    pub fn stores(&self) -> &Arc<Stores> {
        &self.stores
    }
}

#[pymethods]
impl Data {
    /// Opens `sets` of files (paths, URLs or globs) as rows of `kind`. Packed files are unpacked once into `cache`, where parts of what
    /// lies elsewhere are kept too, up to `cache_bytes` or the usual number. Of files that have more than `cached` bytes hardly any pages stay in memory. Rows too large for a loader with so much `memory` are refused, or left out where
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
        cache_bytes: Option<u64>,
    ) -> PyResult<Data> {
        let kind = kind_of(kind)?;
        let set = |(files, source, target, weight): Files| {
            let wrong = || format!("a weight is {weight}, expected more than 0 and at most {}", Weight::MOST);
            let weight = Weight::new(weight).ok_or_else(|| PyValueError::new_err(wrong()))?;
            Ok(DataSet { files, columns: Columns { source, target }, weight })
        };
        let sets: Vec<DataSet> = sets.into_iter().map(set).collect::<PyResult<_>>()?;
        let largest = memory.map_or(Largest { skip, ..Largest::default() }, |memory| Largest::within(memory, skip));
        let (stores, signals) = (Arc::new(Stores::default()), Signals::default());
        let files: Arc<dyn RemoteFiles> = stores.clone();
        let folder = cache.as_deref();
        let elsewhere = folder.map(|folder| Elsewhere { files: &files, cache: cache_ceiling(cache_bytes, folder) });
        let opening = Opening { folder, cached, elsewhere, largest, ..Opening::default() };
        let open = || stores.opening(&signals, || Sources::open_mixture(&sets, kind, opening));
        let opened = py.detach(open);
        if let Some(raised) = signals.raised() {
            return Err(raised);
        }
        Ok(Data { sources: Arc::new(opened.map_err(data_fault)?), stores })
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
