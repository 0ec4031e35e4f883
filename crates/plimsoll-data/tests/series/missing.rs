//! What stands for values that are missing, in every format.

use plimsoll_data::series::*;
use plimsoll_plan::batch::IGNORE;

use crate::fixture::*;

/// Two series in turn; `b` of each is missing at its steps 3 and 4, `a` of the second at step 6.
fn gaps() -> Table {
    let mut table = Table::prices(60, 2);
    for (number, (_, _, cells)) in table.rows.iter_mut().enumerate() {
        let (series, step) = (number % 2, number / 2);
        cells[1] = Some((10 * series + step) as f64);
        if (3..5).contains(&step) {
            cells[1] = None;
        }
        if step == 6 && series == 1 {
            cells[0] = None;
        }
    }
    table
}

fn of(missing: Missing) -> SeriesSpec {
    SeriesSpec { features: vec!["b".into()], missing, normalise: Normalise::None, window: 1, horizon: 1, ..spec() }
}

/// Feature `b` of each sample, series by series, in every format.
fn features(spec: &SeriesSpec) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    let mut all = None;
    for (name, bytes) in all_formats(&gaps()) {
        let path = write(folder.path(), name, &bytes);
        let samples = in_order(open(&path, spec.clone()).unwrap(), Part::Training);
        let own: Vec<f32> = samples.iter().map(|sample| f32::from_bits(sample.inputs[0])).collect();
        assert_eq!(all.get_or_insert_with(|| own.clone()), &own, "{name}");
    }
    all.unwrap()
}

#[test]
fn refused_with_their_place_unless_told_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in all_formats(&gaps()) {
        let path = write(folder.path(), name, &bytes);
        let wrong = open(&path, of(Missing::Refuse)).unwrap_err().to_string();
        // Row 6 of the data is line 8 of a file with a header.
        let place = if name.contains("csv") || name.contains("tsv") { "line 8" } else { "row 6" };
        assert!(
            wrong.contains(name) && wrong.contains(&format!("{place}: expected a number in column `b`")),
            "{wrong}"
        );
    }
}

#[test]
fn filled_from_before_by_nothing_or_by_the_mean() {
    assert_eq!(features(&of(Missing::Forward))[..7], [0.0, 1.0, 2.0, 2.0, 2.0, 5.0, 6.0]);
    // The second series has its own last value.
    assert_eq!(features(&of(Missing::Forward))[29..36], [10.0, 11.0, 12.0, 12.0, 12.0, 15.0, 16.0]);
    assert_eq!(features(&of(Missing::Zero))[29..36], [10.0, 11.0, 12.0, 0.0, 0.0, 15.0, 16.0]);
    // Of 0..30 and 10..40 without 3, 4, 13, 14, that is 1150 less 34, by 56... as numpy's nanmean has it.
    let mean = ((0..30).chain(10..40).sum::<i32>() - 34) as f64 / 56.0;
    assert_eq!(features(&of(Missing::Mean))[..6], [0.0, 1.0, 2.0, mean as f32, mean as f32, 5.0]);
    let normalised = SeriesSpec { normalise: Normalise::All, ..of(Missing::Mean) };
    assert_eq!(features(&normalised)[3..5], [0.0, 0.0]);
}

#[test]
fn the_mean_is_that_of_the_training_part() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a.csv", &gaps().csv());
    let spec = SeriesSpec { validation: fraction(0.5, 0), ..of(Missing::Mean) };
    let series = open(&path, spec).unwrap();
    assert_eq!(series.facts().cut, Some(150));
    let mean = ((0..15).chain(10..25).sum::<i32>() - 34) as f64 / 26.0;
    assert_eq!(series.normalisation().all[0].mean, mean);
}

#[test]
fn a_blank_line_is_a_missing_value_where_there_is_one_column() {
    let folder = tempfile::tempdir().unwrap();
    let value = ValueTarget { column: "x".into(), of: Of::Change };
    let spec = |missing: Missing| SeriesSpec {
        features: vec!["x".into()],
        time: None,
        by: SeriesBy::One,
        class: None,
        values: vec![value.clone()],
        scale_values: false,
        ..of(missing)
    };
    for (name, text) in [
        ("ends.csv", "x\n1\n\n3\n\n\n6\n7\n\n"),
        ("two.csv", "x\r\n1\r\n\r\n3\r\n\r\n\r\n6\r\n7\r\n"),
        ("none.csv", "x\n1\n\n3\n\n\n6\n7"),
        ("old.csv", "x\r1\r\r3\r\r\r6\r7\r"),
    ] {
        let path = write(folder.path(), name, text.as_bytes());
        let wrong = open(&path, spec(Missing::Refuse)).unwrap_err().to_string();
        assert!(wrong.contains("line 3: expected a number in column `x`, found none"), "{name}: {wrong}");
        let series = open(&path, spec(Missing::Zero)).unwrap();
        assert_eq!(series.facts().rows, 7, "{name}");
        let own: Vec<f32> =
            in_order(series, Part::Training).iter().map(|sample| f32::from_bits(sample.inputs[0])).collect();
        assert_eq!(own, [1.0, 0.0, 3.0, 0.0, 0.0, 6.0], "{name}");
        // A place behind blank lines is that of the line.
        let path = write(folder.path(), name, text.replace('7', "seven").as_bytes());
        let wrong = open(&path, spec(Missing::Zero)).unwrap_err().to_string();
        assert!(wrong.contains("line 8: expected a number in column `x`, found `seven`"), "{name}: {wrong}");
    }
    // Of several columns it is none.
    let path = write(folder.path(), "more.csv", b"x,y\n1,1\n\n3,1\n4,1\n");
    assert_eq!(open(&path, spec(Missing::Refuse)).unwrap().facts().rows, 3);
}

#[test]
fn nothing_earlier_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = gaps();
    table.rows[1].2[1] = None;
    let path = write(folder.path(), "a.csv", &table.csv());
    let wrong = open(&path, of(Missing::Forward)).unwrap_err().to_string();
    assert!(wrong.contains("line 3") && wrong.contains("first row of its series"), "{wrong}");
}

#[test]
fn what_is_foretold_is_never_made_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a.csv", &gaps().csv());
    for missing in [Missing::Forward, Missing::Zero, Missing::Mean] {
        let series = open(&path, of(missing)).unwrap();
        assert_eq!(series.class_counts(Part::Training).unwrap().1, 2);
        let samples = in_order(series, Part::Training);
        // `a` of the second series is missing at step 6: as what is foretold of step 5, and as the base of step 7.
        let unknown: Vec<usize> = (0..samples.len()).filter(|at| samples[*at].class == IGNORE).collect();
        assert_eq!(unknown, [29 + 5, 29 + 6]);
        assert!(unknown.iter().all(|at| samples[*at].values == [u32::MAX]));
    }
}
