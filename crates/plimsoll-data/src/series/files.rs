//! The files of series: found, wherever they lie, with their format by the end of their name.
//!
//! Invariant: files come in the order given, those of a pattern sorted. Nothing is read here.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::SeriesError;
use crate::block_cache::BlockCache;
use crate::input::{Origin, Reach};
use crate::packed::Packing;
use crate::patterns::expand;
use crate::remote::remote_url;
use crate::{DataError, Elsewhere};

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Csv { delimiter: u8, packing: Option<Packing> },
    Parquet,
    Arrow,
}

/// A file, and how to read it.
#[derive(Debug)]
pub(crate) struct SeriesFile {
    pub origin: Origin,
    pub format: Format,
}

/// The files of `patterns`.
pub(crate) fn find(
    patterns: &[PathBuf],
    folder: Option<&Path>,
    elsewhere: Option<Elsewhere<'_>>,
) -> Result<Vec<SeriesFile>, DataError> {
    let paths = expand(patterns, elsewhere.map(|elsewhere| &**elsewhere.files))?;
    let remote = paths.iter().any(|path| remote_url(path).is_some());
    let reach = match (elsewhere, folder) {
        (Some(Elsewhere { files, cache }), Some(folder)) if remote => {
            Some(Reach { files: files.clone(), cache: Arc::new(BlockCache::open(folder, cache)?) })
        }
        _ => None,
    };
    let file = |path: &PathBuf| {
        let format = format(path).ok_or_else(|| SeriesError::Format { path: path.clone() })?;
        Ok(SeriesFile { origin: Origin::find(path, reach.as_ref())?, format })
    };
    paths.iter().map(file).collect()
}

fn format(path: &Path) -> Option<Format> {
    let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
    let (packing, name) = Packing::of(&name).map_or((None, name.as_str()), |(packing, inner)| (Some(packing), inner));
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    if ends(&[".csv"]) {
        Some(Format::Csv { delimiter: b',', packing })
    } else if ends(&[".tsv", ".tab"]) {
        Some(Format::Csv { delimiter: b'\t', packing })
    } else if packing.is_some() {
        None
    } else if ends(&[".parquet"]) {
        Some(Format::Parquet)
    } else {
        ends(&[".arrow", ".arrows", ".feather"]).then_some(Format::Arrow)
    }
}
