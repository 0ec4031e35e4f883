//! The files of series: found, wherever they lie, with their format by the end of their name.
//!
//! Invariant: files come in the order given, those of a pattern sorted. Nothing is read here.

use std::collections::HashMap;
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

/// What files are called as series: by their own names, with those of as many folders above as tell them from each other. Where the files
/// lie together has no part in it, so that what was learnt of them is known of the same files elsewhere; of some of them, where all have
/// names of their own.
pub(crate) fn told_apart(paths: &[&Path]) -> Vec<String> {
    let mut names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let mut alike: Vec<usize> = (0..paths.len()).collect();
    let mut parts = 1;
    while !alike.is_empty() {
        let tail = |at: usize| {
            let all: Vec<_> = paths[at].components().map(|part| part.as_os_str().to_string_lossy()).collect();
            match all.len().checked_sub(parts)? {
                0 => Some(paths[at].display().to_string()),
                above => Some(all[above..].join("/")),
            }
        };
        let mut count: HashMap<String, usize> = HashMap::new();
        for tail in alike.iter().filter_map(|at| tail(*at)) {
            *count.entry(tail).or_default() += 1;
        }
        alike.retain(|at| match tail(*at) {
            // It is used up, and its name is all of it.
            None => false,
            Some(tail) if count[&tail] == 1 => {
                names[*at] = tail;
                false
            }
            Some(_) => true,
        });
        parts += 1;
    }
    names
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_shortest_name_that_tells_it_from_the_others() {
        let names = |paths: &[&str]| told_apart(&paths.iter().map(Path::new).collect::<Vec<_>>());
        assert_eq!(names(&["/data/a/x.csv", "/data/b/y.csv"]), ["x.csv", "y.csv"]);
        assert_eq!(names(&["/data/a/x.csv", "/data/b/x.csv", "/data/b/y.csv"]), ["a/x.csv", "b/x.csv", "y.csv"]);
        assert_eq!(names(&["p/a/x.csv", "q/a/x.csv", "q/b/x.csv"]), ["p/a/x.csv", "q/a/x.csv", "b/x.csv"]);
        assert_eq!(names(&["s3://one/x.csv", "s3://two/x.csv"]), ["one/x.csv", "two/x.csv"]);
        // One is the end of the other, and the same one twice.
        assert_eq!(names(&["x.csv", "a/x.csv"]), ["x.csv", "a/x.csv"]);
        assert_eq!(names(&["a/x.csv", "a/x.csv"]), ["a/x.csv", "a/x.csv"]);
        assert_eq!(names(&["/a/x.csv", "a/x.csv"]), ["/a/x.csv", "a/x.csv"]);
        // The same files elsewhere have the same names.
        assert_eq!(names(&["/elsewhere/far/a/x.csv", "/elsewhere/far/b/x.csv"]), names(&["a/x.csv", "b/x.csv"]));
    }
}
