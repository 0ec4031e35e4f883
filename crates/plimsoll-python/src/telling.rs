//! What is told meanwhile, by Python's logger `plimsoll`.

use pyo3::prelude::*;

/// Tells it. Not by a thread of a loader, which must not wait for Python's lock.
pub fn tell(news: String) {
    // Where nobody can be told any more there is nobody who would want to be.
    let _ = Python::try_attach(|py| -> PyResult<()> {
        let logger = py.import("logging")?.call_method1("getLogger", ("plimsoll",))?;
        logger.call_method1("warning", ("%s", news)).map(drop)
    });
}
