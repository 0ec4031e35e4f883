//! Rows in memory and rows in a file are the same rows; a file of them is found again, or made anew where it is not right.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use plimsoll_data::series::*;

use crate::fixture::*;

fn asked() -> SeriesSpec {
    SeriesSpec { validation: fraction(0.2, 1), normalise: Normalise::Series, ..spec() }
}

/// So little memory that rows go into a file.
fn filed<'a>(folder: &'a Path, path: &Path) -> Series {
    let opening: SeriesOpening<'a> =
        SeriesOpening { folder: Some(folder), memory: 4 << 10, ..SeriesOpening::default() };
    // Names of series have a share, too.
    let spec = SeriesSpec { normalise: Normalise::All, ..asked() };
    Series::open(&[path.to_path_buf()], spec, SeriesOpening { memory: 16 << 10, ..opening }).unwrap()
}

fn files(folder: &Path) -> Vec<(PathBuf, SystemTime)> {
    let entries = fs_err::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut list: Vec<_> =
        entries.map(|path| (path.clone(), fs_err::metadata(&path).unwrap().modified().unwrap())).collect();
    list.sort();
    list
}

#[test]
fn a_file_of_rows_gives_the_bits_that_memory_gives() {
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let table = Table::prices(3000, 3);
    for (name, bytes) in all_formats(&table) {
        let path = write(data.path(), name, &bytes);
        let held = open(&path, SeriesSpec { normalise: Normalise::All, ..asked() }).unwrap();
        let kept = filed(cache.path(), &path);
        assert!(held.facts().held && !kept.facts().held);
        assert_eq!(held.normalisation(), kept.normalisation());
        assert_eq!(in_order(held, Part::Training), in_order(kept, Part::Training), "{name}");
    }
    assert_eq!(files(cache.path()).len(), all_formats(&table).len());
}

#[test]
fn it_is_made_once_for_a_version_and_damage_is_mended() {
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = write(data.path(), "a.csv", &Table::prices(3000, 3).csv());
    let first = filed(cache.path(), &path);
    let (facts, normalisation) = (*first.facts(), first.normalisation().clone());
    let samples = in_order(first, Part::Validation);
    let made = files(cache.path());
    let again = filed(cache.path(), &path);
    assert_eq!((again.facts(), again.normalisation()), (&facts, &normalisation));
    assert_eq!(in_order(again, Part::Validation), samples);
    assert_eq!(files(cache.path()), made);
    // With more memory, what is there is taken into it.
    let spec = SeriesSpec { normalise: Normalise::All, ..asked() };
    let opening = SeriesOpening { folder: Some(cache.path()), ..SeriesOpening::default() };
    let held = Series::open(std::slice::from_ref(&path), spec, opening).unwrap();
    assert!(held.facts().held && held.facts().digest == facts.digest);
    assert_eq!(in_order(held, Part::Validation), samples);
    // Damaged in its rows, its description and its length.
    let whole = fs_err::read(&made[0].0).unwrap();
    for at in [5000, whole.len() - 20] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs_err::write(&made[0].0, bytes).unwrap();
        assert_eq!(in_order(filed(cache.path(), &path), Part::Validation), samples);
        assert_eq!(fs_err::read(&made[0].0).unwrap(), whole);
    }
    fs_err::write(&made[0].0, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(in_order(filed(cache.path(), &path), Part::Validation), samples);
    // What a process that is gone had begun goes too.
    fs_err::write(cache.path().join("x.4194303.part"), "begun").unwrap();
    // Another version of the file has another file of rows, and the earlier one goes.
    let longer = write(data.path(), "a.csv", &Table::prices(3300, 3).csv());
    assert_eq!(filed(cache.path(), &longer).facts().rows, 3300);
    let now = files(cache.path());
    assert!(now.len() == 1 && now[0].0 != made[0].0, "{now:?}");
}

#[test]
fn without_a_folder_rows_that_do_not_fit_are_refused() {
    let data = tempfile::tempdir().unwrap();
    let path = write(data.path(), "a.csv", &Table::prices(3000, 3).csv());
    let spec = SeriesSpec { normalise: Normalise::All, ..asked() };
    let opening = SeriesOpening { memory: 16 << 10, ..SeriesOpening::default() };
    let wrong = Series::open(std::slice::from_ref(&path), spec, opening).unwrap_err().to_string();
    // Two features and one cell.
    assert!(wrong.contains("the series take 48000 bytes, and 8192 of `data.memory` are theirs"), "{wrong}");
    let wrong = Series::open(&[path], asked(), SeriesOpening { memory: 1 << 10, ..opening }).unwrap_err().to_string();
    assert!(wrong.contains("line 2") && wrong.contains("as many as `data.memory` has room for"), "{wrong}");
}
