//! Training and validation by time: nothing of one is seen by the other.

use plimsoll_data::series::*;

use crate::fixture::*;

#[test]
fn numbers_behind_the_cut_change_nothing_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let table = Table::prices(400, 4);
    let mut other = table.clone();
    let spec = SeriesSpec { validation: fraction(0.25, 3), ..spec() };
    let path = write(folder.path(), "a.csv", &table.csv());
    let series = open(&path, spec.clone()).unwrap();
    let cut = series.facts().cut.unwrap();
    assert_eq!(cut, 750);
    let mut changed = 0;
    for (time, _, cells) in &mut other.rows {
        if *time >= cut {
            cells.iter_mut().flatten().for_each(|x| *x = 5000.0 + *time as f64);
            changed += 1;
        }
    }
    assert_eq!(changed, 100);
    // A direction alone, since classes of a column must stay classes.
    let other_path = write(folder.path(), "b.csv", &other.csv());
    let other_series = open(&other_path, spec.clone()).unwrap();
    assert_eq!(other_series.normalisation(), series.normalisation());
    assert_eq!(other_series.facts().cut, Some(cut));
    let expected = in_order(series, Part::Training);
    assert_eq!(in_order(other_series, Part::Training), expected);
    // And what is before it changes nothing of the validation but by the normalisation.
    let raw = SeriesSpec { normalise: Normalise::None, scale_values: false, ..spec };
    let validation = in_order(open(&path, raw.clone()).unwrap(), Part::Validation);
    let mut early = table.clone();
    for (_, _, cells) in early.rows.iter_mut().filter(|row| row.0 < cut) {
        cells.iter_mut().flatten().for_each(|x| *x = 1.0);
    }
    let early_path = write(folder.path(), "c.csv", &early.csv());
    assert_eq!(in_order(open(&early_path, raw).unwrap(), Part::Validation), validation);
}

#[test]
fn an_instant_is_the_same_cut_in_every_series() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a.csv", &Table::prices(400, 4).csv());
    let from = |from: TimePoint| SeriesSpec {
        validation: Some(Validation { from: Some(from), ..Validation::default() }),
        ..spec()
    };
    let at = open(&path, from(TimePoint::Number(750))).unwrap();
    let by_part = open(&path, SeriesSpec { validation: fraction(0.25, 0), ..spec() }).unwrap();
    assert_eq!((at.facts(), at.normalisation()), (by_part.facts(), by_part.normalisation()));
    let wrong = open(&path, from(TimePoint::Text("2026-01-01".into()))).unwrap_err().to_string();
    assert!(wrong.contains("`data.series.validation.from` is an instant, expected a plain number"), "{wrong}");
    for time in [-1, 0, 30, 980, 5000] {
        let wrong = open(&path, from(TimePoint::Number(time))).unwrap_err().to_string();
        assert!(wrong.contains("no windows"), "{time}: {wrong}");
    }
}

#[test]
fn a_series_without_training_rows_is_normalised_as_all_are() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = Table::prices(60, 2);
    table.rows.extend((60..80).map(|i| (i * 10, "late".to_string(), vec![Some(i as f64); 3])));
    table.rows.iter_mut().for_each(|row| row.2[2] = Some(0.0));
    let path = write(folder.path(), "a.csv", &table.csv());
    let validation = Some(Validation { from: Some(TimePoint::Number(200)), ..Validation::default() });
    let spec = SeriesSpec { validation, normalise: Normalise::Series, ..spec() };
    let series = open(&path, spec).unwrap();
    let names: Vec<&str> = series.normalisation().series.iter().map(|own| own.name.as_str()).collect();
    assert_eq!(names, ["s0", "s1"]);
    let all = series.normalisation().all[1];
    let samples = in_order(series, Part::Validation);
    let first_late = &samples[samples.len() - (20 - 4 - 2 + 1)];
    assert_eq!(f32::from_bits(first_late.inputs[1]), all.apply(60.0) as f32);
}

#[test]
fn what_was_fitted_is_applied_to_other_files_as_it_was_saved() {
    let folder = tempfile::tempdir().unwrap();
    let (train, test) = (Table::prices(200, 2), Table::prices(120, 3));
    let train_path = write(folder.path(), "train.csv", &train.csv());
    let test_path = write(folder.path(), "test.parquet", &test.parquet(parquet::basic::Compression::SNAPPY, true, 50));
    let fitted = open(&train_path, spec()).unwrap();
    let saved = folder.path().join("normalisation.json");
    fs_err::write(&saved, fitted.normalisation().to_json()).unwrap();
    let read = read_normalisation(&saved).unwrap();
    assert_eq!(&read, fitted.normalisation());
    let opening = SeriesOpening { normalisation: Some(&read), ..SeriesOpening::default() };
    let series = Series::open(std::slice::from_ref(&test_path), spec(), opening).unwrap();
    assert_eq!(series.normalisation(), &read);
    let scale = read.all[0];
    let samples = in_order(series, Part::Training);
    assert_eq!(f32::from_bits(samples[0].inputs[0]), scale.apply(test.rows[0].2[1].unwrap()) as f32);
    let told = |other: SeriesSpec| {
        let opening = SeriesOpening { normalisation: Some(&read), ..SeriesOpening::default() };
        Series::open(std::slice::from_ref(&test_path), other, opening).unwrap_err().to_string()
    };
    let words = |found: &str, expected: &str| {
        format!("the normalisation was fitted on {found}, and is asked for with {expected}")
    };
    let features = SeriesSpec { features: vec!["a".into()], ..spec() };
    assert_eq!(told(features), words("features b, a", "features a"));
    let normalise = SeriesSpec { normalise: Normalise::Series, ..spec() };
    assert_eq!(told(normalise), words("`normalise = \"all\"`", "`normalise = \"series\"`"));
    let values = SeriesSpec { values: vec![ValueTarget { column: "a".into(), of: Of::Value }], ..spec() };
    assert_eq!(told(values), words("values the return of `a`", "values the value of `a`"));
    let scaled = SeriesSpec { scale_values: false, ..spec() };
    assert_eq!(told(scaled), words("`scale_values = true`", "`scale_values = false`"));
    fs_err::write(&saved, "{}").unwrap();
    assert!(read_normalisation(&saved).unwrap_err().to_string().contains("normalisation.json"));
}

#[test]
fn files_that_are_series_are_known_by_their_names_wherever_they_lie() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let table = Table::prices(300, 3);
    let write_all = |folder: &std::path::Path| -> Vec<_> {
        let of = |series: usize| {
            let rows = table.rows.iter().filter(|row| row.1 == format!("s{series}")).cloned().collect();
            let own = Table { names: table.names.clone(), rows };
            write(folder, &format!("{series}.csv"), &own.csv())
        };
        (0..3).map(of).collect()
    };
    let spec = SeriesSpec { by: SeriesBy::File, normalise: Normalise::Series, ..spec() };
    let (mut first, then) = (write_all(here.path()), write_all(there.path()));
    let fitted = Series::open(&first, spec.clone(), SeriesOpening::default()).unwrap();
    let known = fitted.normalisation().clone();
    let opened = |paths: &[std::path::PathBuf]| {
        let opening = SeriesOpening { normalisation: Some(&known), ..SeriesOpening::default() };
        Series::open(paths, spec.clone(), opening).unwrap()
    };
    let moved = opened(&then);
    assert_eq!(moved.facts(), fitted.facts());
    assert_eq!(moved.facts().unknown_series, 0);
    let samples = in_order(fitted, Part::Training);
    assert_eq!(in_order(moved, Part::Training), samples);
    // A file of another name is another series, and told as one.
    let other = here.path().join("other.csv");
    fs_err::rename(&first[1], &other).unwrap();
    first[1] = other;
    let renamed = opened(&first);
    assert_eq!(renamed.facts().unknown_series, 1);
    assert_ne!(renamed.facts().normalised, opened(&then).facts().normalised);
    assert_eq!(renamed.facts().digest, opened(&then).facts().digest);
    assert_ne!(in_order(renamed, Part::Training), samples);
    // What is fitted on it is what was fitted before: names have no part in numbers.
    let again = Series::open(&first, spec.clone(), SeriesOpening::default()).unwrap();
    assert_eq!(again.facts().normalised, opened(&then).facts().normalised);
}

#[test]
fn means_that_were_never_taken_fill_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a.csv", &Table::prices(200, 2).csv());
    let raw = SeriesSpec { normalise: Normalise::None, ..spec() };
    let fitted = open(&path, raw.clone()).unwrap().normalisation().clone();
    let opening = SeriesOpening { normalisation: Some(&fitted), ..SeriesOpening::default() };
    let filled = SeriesSpec { missing: Missing::Mean, ..raw };
    let wrong = Series::open(std::slice::from_ref(&path), filled.clone(), opening).unwrap_err().to_string();
    assert!(wrong.contains("data of which no means were taken"), "{wrong}");
    let own = open(&path, filled.clone()).unwrap().normalisation().clone();
    let opening = SeriesOpening { normalisation: Some(&own), ..SeriesOpening::default() };
    assert_eq!(Series::open(&[path], filled, opening).unwrap().normalisation(), &own);
}

#[test]
fn what_is_trained_on_further_was_trained_until_the_later_time() {
    let first = open_prices(200, None);
    assert_eq!(first.until, Some(990));
    assert_eq!(open_prices(300, Some(&first)), Normalisation { until: Some(1490), ..first.clone() });
    assert_eq!(open_prices(100, Some(&first)), first);
}

#[test]
fn numbers_and_instants_are_never_compared() {
    let mut known = open_prices(200, None);
    assert_eq!((known.until, known.instants), (Some(990), false));
    known.trained_until(Some(5), true);
    assert_eq!((known.until, known.instants), (Some(5), true));
    known.trained_until(None, false);
    assert_eq!((known.until, known.instants), (Some(5), true));
    known.trained_until(Some(7), true);
    known.trained_until(Some(6), true);
    assert_eq!(known.until, Some(7));
    // Plain numbers behind instants: those of the training that was last.
    let last = open_prices(100, Some(&known));
    assert_eq!((last.until, last.instants), (Some(490), false));
}

fn open_prices(rows: usize, before: Option<&Normalisation>) -> Normalisation {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a.csv", &Table::prices(rows, 2).csv());
    let opening = SeriesOpening { normalisation: before, ..SeriesOpening::default() };
    Series::open(&[path], spec(), opening).unwrap().normalisation().clone()
}

#[test]
fn a_part_begins_with_its_earliest_row_of_a_series_that_has_windows() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = Table::prices(200, 2);
    // A third series that is too short for a window, and earlier than all.
    table.rows.insert(0, (-500, "short".into(), vec![Some(1.0); 3]));
    let path = write(folder.path(), "a.csv", &table.csv());
    let series = open(&path, SeriesSpec { validation: fraction(0.2, 3), ..spec() }).unwrap();
    let cut = series.facts().cut;
    assert_eq!((series.begin(Part::Training), series.begin(Part::Validation)), (Some(0), cut));
    assert_eq!(series.facts().latest, cut.map(|cut| cut - 10));
    let timeless = open(&path, SeriesSpec { time: None, ..spec() }).unwrap();
    assert_eq!((timeless.begin(Part::Training), timeless.facts().latest), (None, None));
}

#[test]
fn without_times_rows_are_steps() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a.csv", &Table::prices(200, 2).csv());
    let timed = SeriesSpec { validation: fraction(0.2, 0), ..spec() };
    let series = open(&path, SeriesSpec { time: None, ..timed.clone() }).unwrap();
    assert_eq!((series.facts().cut, series.normalisation().until), (Some(80), None));
    assert_eq!(in_order(series, Part::Validation), in_order(open(&path, timed).unwrap(), Part::Validation));
}
