//! The same numbers are the same samples, whatever they are written in, and wherever times and names come from.

use std::sync::Arc;

use arrow_array::types::Int8Type;
use arrow_array::{
    ArrayRef, BooleanArray, Date32Array, DictionaryArray, Float32Array, Float64Array, Int16Array, RecordBatch,
    StringArray, TimestampMillisecondArray, UInt8Array,
};
use plimsoll_data::series::*;
use plimsoll_data::{Elsewhere, LEAST_CACHE};

use crate::fixture::*;
use crate::other_folder::{OtherFolder, url};

#[test]
fn every_format_gives_the_same_bits() {
    let table = Table::prices(300, 3);
    let folder = tempfile::tempdir().unwrap();
    let spec = SeriesSpec { validation: fraction(0.3, 2), ..spec() };
    let mut expected = None;
    for (name, bytes) in all_formats(&table) {
        let path = write(folder.path(), name, &bytes);
        let series = open(&path, spec.clone()).unwrap();
        let (facts, normalisation) = (*series.facts(), series.normalisation().clone());
        let training = in_order(series, Part::Training);
        let validation = in_order(open(&path, spec.clone()).unwrap(), Part::Validation);
        let all = (facts, normalisation, training, validation);
        assert!(all.2.len() > 100 && all.3.len() > 20, "{} {}", all.2.len(), all.3.len());
        assert_eq!(expected.get_or_insert_with(|| all.clone()), &all, "{name}");
    }
}

#[test]
fn blanks_around_the_name_of_a_series_are_no_part_of_it_in_any_format() {
    let (table, folder) = (Table::prices(90, 3), tempfile::tempdir().unwrap());
    let expected = in_order(open(&write(folder.path(), "a.csv", &table.csv()), spec()).unwrap(), Part::Training);
    let mut blanks = table;
    for (nth, (_, name, _)) in blanks.rows.iter_mut().enumerate() {
        *name = [format!(" {name}"), format!("{name}  "), name.clone()][nth % 7 % 3].clone();
    }
    for (name, bytes) in all_formats(&blanks) {
        let series = open(&write(folder.path(), name, &bytes), spec()).unwrap();
        assert_eq!(series.names().map(|(name, _)| name).collect::<Vec<_>>(), ["s0", "s1", "s2"], "{name}");
        assert_eq!(in_order(series, Part::Training), expected, "{name}");
    }
}

#[test]
fn what_lies_elsewhere_gives_the_bits_of_local_files() {
    let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_, store) = OtherFolder::shared();
    for (name, bytes) in all_formats(&Table::prices(300, 3)) {
        let path = write(folder.path(), name, &bytes);
        let elsewhere = Some(Elsewhere { files: &store, cache: LEAST_CACHE });
        let opening = SeriesOpening { folder: Some(cache.path()), elsewhere, ..SeriesOpening::default() };
        let there = Series::open(&[url(&path)], spec(), opening).unwrap();
        assert_eq!(there.facts().remote_bytes, bytes.len() as u64);
        assert_eq!(in_order(there, Part::Training), in_order(open(&path, spec()).unwrap(), Part::Training), "{name}");
    }
}

#[test]
fn one_file_a_series_is_the_same_as_a_column_of_names() {
    let table = Table::prices(90, 3);
    let folder = tempfile::tempdir().unwrap();
    let together = write(folder.path(), "all.csv", &table.csv());
    let mut paths = Vec::new();
    for series in 0..3 {
        let rows = table.rows.iter().filter(|row| row.1 == format!("s{series}")).cloned().collect();
        let own = Table { names: table.names.clone(), rows };
        paths.push(write(
            folder.path(),
            &format!("{series}.parquet"),
            &own.parquet(parquet::basic::Compression::SNAPPY, true, 16),
        ));
    }
    let apart = SeriesSpec { by: SeriesBy::File, ..spec() };
    let by_pattern = Series::open(&[folder.path().join("?.parquet")], apart.clone(), SeriesOpening::default()).unwrap();
    assert_eq!(by_pattern.names().map(|(_, rows)| rows).collect::<Vec<_>>(), [30; 3]);
    let listed = Series::open(&paths, apart, SeriesOpening::default()).unwrap();
    // Sums are taken in another order, so features may differ in their last bit; classes do not.
    let classes = |series: Series| in_order(series, Part::Training).iter().map(|s| s.class).collect::<Vec<_>>();
    let expected = classes(open(&together, spec()).unwrap());
    assert_eq!((classes(by_pattern), classes(listed)), (expected.clone(), expected));
}

#[test]
fn files_of_one_series_go_on_behind_each_other() {
    let table = Table::prices(60, 1);
    let folder = tempfile::tempdir().unwrap();
    let part = |rows: std::ops::Range<usize>| Table { names: table.names.clone(), rows: table.rows[rows].to_vec() };
    let first = write(folder.path(), "1.csv", &part(0..25).csv());
    let second = write(folder.path(), "2.arrow", &part(25..60).arrow(None, false));
    let whole = write(folder.path(), "whole.csv", &table.csv());
    let spec = SeriesSpec { by: SeriesBy::One, ..spec() };
    let joined = Series::open(&[first.clone(), second.clone()], spec.clone(), SeriesOpening::default()).unwrap();
    assert_eq!(in_order(joined, Part::Training), in_order(open(&whole, spec.clone()).unwrap(), Part::Training));
    let wrong = Series::open(&[second, first], spec, SeriesOpening::default()).unwrap_err().to_string();
    assert!(wrong.contains("1.csv") && wrong.contains("line 2") && wrong.contains("after 590"), "{wrong}");
}

#[test]
fn instants_are_the_same_in_every_format_and_types_of_numbers_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let days = 40;
    let column = |array: ArrayRef| array;
    let a: Vec<f32> = (0..days).map(|i| 1.0 + (i as f32 / 4.0)).collect();
    let codes =
        (0..days).map(|i| if i % 2 == 0 { Some("x") } else { Some("y") }).collect::<DictionaryArray<Int8Type>>();
    let batch = |time: ArrayRef| {
        RecordBatch::try_from_iter([
            ("time", time),
            ("symbol", column(Arc::new(codes.clone()))),
            ("a", column(Arc::new(Float32Array::from(a.clone())))),
            ("b", column(Arc::new((0..days).map(|i| Some(i as i16 - 20)).collect::<Int16Array>()))),
            ("c", column(Arc::new((0..days).map(|i| Some(i as u8 * 6)).collect::<UInt8Array>()))),
            ("d", column(Arc::new((0..days).map(|i| Some(i % 5 == 0)).collect::<BooleanArray>()))),
        ])
        .unwrap()
    };
    let dates: ArrayRef = Arc::new((0..days).map(|i| Some(i as i32 + 20_000)).collect::<Date32Array>());
    let milliseconds = (0..days).map(|i| Some((i as i64 + 20_000) * 86_400_000)).collect::<TimestampMillisecondArray>();
    let mut csv = String::from("time,symbol,a,b,c,d\n");
    for i in 0..days {
        let day = chrono_free_day(20_000 + i as i64);
        let name = if i % 2 == 0 { "x" } else { "y" };
        csv += &format!("{day},{name},{:?},{},{},{}\n", a[i], i as i16 - 20, i * 6, i % 5 == 0);
    }
    let paths = [
        write(folder.path(), "dates.arrow", &arrow(&batch(dates), None, false)),
        write(folder.path(), "milliseconds.arrows", &arrow(&batch(Arc::new(milliseconds)), None, true)),
        write(folder.path(), "texts.csv", csv.as_bytes()),
    ];
    let spec = SeriesSpec {
        features: ["a", "b", "c", "d"].map(String::from).to_vec(),
        validation: Some(Validation { from: Some(TimePoint::Text("2024-10-31".into())), ..Validation::default() }),
        ..spec()
    };
    let mut expected = None;
    for path in paths {
        let series = open(&path, spec.clone()).unwrap();
        assert_eq!(series.facts().cut, Some(20_027 * 86_400_000_000_000));
        let all = (*series.facts(), in_order(series, Part::Training));
        assert_eq!(expected.get_or_insert_with(|| all.clone()), &all, "{}", path.display());
    }
}

/// The date of a day of 2024, by its number since 1970.
fn chrono_free_day(day: i64) -> String {
    // 20000 is 2024-10-04.
    let day = day - 20_000 + 3;
    let (month, day) = if day < 31 { (10, day + 1) } else { (11, day - 31 + 1) };
    format!("2024-{month:02}-{day:02}")
}

#[test]
fn columns_of_other_types_are_refused_with_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let column = |array: ArrayRef| array;
    let texts = || column(Arc::new(StringArray::from(vec!["x"; 20])));
    let numbers = || column(Arc::new(Float64Array::from(vec![1.0; 20])));
    let whole = || column(Arc::new((0..20).map(Some).collect::<arrow_array::Int64Array>()));
    let told = |batch: RecordBatch, spec: SeriesSpec| {
        let path = write(folder.path(), "a.arrow", &arrow(&batch, None, false));
        open(&path, spec).unwrap_err().to_string()
    };
    let batch = |time: ArrayRef, a: ArrayRef, b: ArrayRef| {
        RecordBatch::try_from_iter([("time", time), ("symbol", texts()), ("a", a), ("b", b)]).unwrap()
    };
    let wrong = told(batch(whole(), numbers(), texts()), spec());
    assert!(wrong.ends_with("expected numbers in column `b`, found Utf8"), "{wrong}");
    let wrong = told(batch(numbers(), numbers(), numbers()), spec());
    assert!(
        wrong.ends_with("expected whole numbers, dates or timestamps in column `time`, found FloatingPoint"),
        "{wrong}"
    );
    let by = SeriesSpec { by: SeriesBy::Column("a".into()), ..spec() };
    let wrong = told(batch(whole(), numbers(), numbers()), by);
    assert!(wrong.ends_with("expected a column of strings in `a`, found FloatingPoint"), "{wrong}");
    let none = SeriesSpec { features: vec!["c".into()], ..spec() };
    let wrong = told(batch(whole(), numbers(), numbers()), none.clone());
    assert!(wrong.ends_with("expected the column `c`, found `time, symbol, a, b`"), "{wrong}");
    let path = write(folder.path(), "a.csv", &Table::prices(20, 1).csv());
    let wrong = open(&path, none).unwrap_err().to_string();
    assert!(wrong.ends_with("line 1: expected the column `c`, found `time, symbol, a, b, label`"), "{wrong}");
    let path = write(folder.path(), "a.json", b"{}");
    assert!(open(&path, spec()).unwrap_err().to_string().contains("expected `.csv`"));
}
