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
fn jobs_that_differ_in_windows_and_targets_alone_share_a_file() {
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = write(data.path(), "a.csv", &Table::prices(3000, 3).csv());
    let first = SeriesSpec { normalise: Normalise::All, ..asked() };
    let opened = |spec: &SeriesSpec, memory: u64| {
        let opening = SeriesOpening { folder: Some(cache.path()), memory, ..SeriesOpening::default() };
        Series::open(std::slice::from_ref(&path), spec.clone(), opening).unwrap()
    };
    let of = |class: ClassTarget| Some(class);
    let other_value = vec![ValueTarget { column: "a".into(), of: Of::Change }];
    let thresholds = ClassTarget::Thresholds { column: "a".into(), of: Of::Value, at: vec![90.0, 105.0] };
    let share = [
        first.clone(),
        SeriesSpec { window: 7, horizon: 3, stride: 2, ..first.clone() },
        SeriesSpec {
            class: of(ClassTarget::Direction { column: "a".into(), of: Of::Change, flat: 3.0 }),
            ..first.clone()
        },
        SeriesSpec { class: of(thresholds), values: Vec::new(), ..first.clone() },
        SeriesSpec { class: None, ..first.clone() },
        SeriesSpec { values: other_value, ..first.clone() },
        SeriesSpec { scale_values: false, ..first.clone() },
        SeriesSpec { validation: fraction(0.2, 9), ..first.clone() },
    ];
    for spec in &share {
        // As they are where each is read for itself.
        let apart = open(&path, spec.clone()).unwrap();
        let filed = opened(spec, 16 << 10);
        assert!(!filed.facts().held && apart.facts().held);
        assert_eq!(filed.normalisation(), apart.normalisation());
        for part in [Part::Training, Part::Validation] {
            assert_eq!(filed.class_counts(part).unwrap(), apart.class_counts(part).unwrap());
        }
        assert_eq!(in_order(filed, Part::Validation), in_order(apart, Part::Validation));
        assert_eq!(files(cache.path()).len(), 1, "{spec:?}");
    }
    let column = ClassTarget::Column { column: "label".into(), classes: 3 };
    let apart = [
        SeriesSpec { features: vec!["a".into()], ..first.clone() },
        SeriesSpec { class: of(column.clone()), ..first.clone() },
        SeriesSpec { missing: Missing::Zero, ..first.clone() },
        SeriesSpec { normalise: Normalise::None, ..first.clone() },
        SeriesSpec { validation: fraction(0.3, 1), ..first.clone() },
        SeriesSpec { validation: None, ..first.clone() },
    ];
    for (nth, spec) in apart.iter().enumerate() {
        opened(spec, 16 << 10);
        assert_eq!(files(cache.path()).len(), nth + 2, "{spec:?}");
    }
    // Fewer classes than the column has are found out, whatever lies there.
    let fewer = SeriesSpec { class: of(ClassTarget::Column { column: "label".into(), classes: 2 }), ..first };
    let opening = SeriesOpening { folder: Some(cache.path()), memory: 16 << 10, ..SeriesOpening::default() };
    let wrong = Series::open(&[path], fewer, opening).unwrap_err().to_string();
    assert!(wrong.contains("a class from 0 to 1"), "{wrong}");
}

#[test]
fn a_file_says_nothing_of_series_that_a_model_knows_besides() {
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = write(data.path(), "a.csv", &Table::prices(3000, 3).csv());
    let learnt = open(&path, asked()).unwrap().normalisation().clone();
    let known = |more: usize| {
        let mut known = learnt.clone();
        let scales = known.series[0].scales.clone();
        known
            .series
            .extend((0..more).map(|nth| SeriesScales { name: format!("elsewhere {nth}"), scales: scales.clone() }));
        known
    };
    let opened = |known: &Normalisation| {
        let opening = SeriesOpening { folder: Some(cache.path()), memory: 32 << 10, ..SeriesOpening::default() };
        let opening = SeriesOpening { normalisation: Some(known), ..opening };
        Series::open(std::slice::from_ref(&path), asked(), opening).unwrap()
    };
    // More than the file's description may be, several times.
    let known = known(2000);
    let first = opened(&known);
    assert!(!first.facts().held && first.facts().unknown_series == 0);
    let made = files(cache.path());
    let again = opened(&known);
    assert_eq!(files(cache.path()), made);
    assert_eq!((again.facts(), again.normalisation()), (first.facts(), first.normalisation()));
    assert_eq!(again.normalisation().series.len(), known.series.len());
    assert_eq!(in_order(again, Part::Validation), in_order(first, Part::Validation));
}

#[test]
fn rows_of_an_earlier_version_are_read_to_their_end_though_their_file_is_gone() {
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // So many windows that pages are let go on the way.
    let table = Table::prices(4000, 2);
    let path = write(data.path(), "a.csv", &table.csv());
    let spec = SeriesSpec { normalise: Normalise::All, ..asked() };
    let opening = SeriesOpening { folder: Some(cache.path()), memory: 16 << 10, cached: 0, ..SeriesOpening::default() };
    let opened = || Series::open(std::slice::from_ref(&path), spec.clone(), opening).unwrap();
    let expected = in_order(opened(), Part::Training);
    // One that made the file, and one that found it.
    fs_err::remove_file(&files(cache.path())[0].0).unwrap();
    let (made, found) = (opened(), opened());
    assert!(!made.facts().held && !found.facts().held);
    fs_err::write(&path, Table::prices(4400, 2).csv()).unwrap();
    drop(opened());
    assert_eq!(files(cache.path()).len(), 1, "the earlier version is still there");
    assert_eq!(in_order(made, Part::Training), expected);
    assert_eq!(in_order(found, Part::Training), expected);
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
