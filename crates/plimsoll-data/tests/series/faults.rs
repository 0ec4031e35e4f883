//! Each way in which rows can be wrong, with the file, the place, and what was expected.

use plimsoll_data::series::*;

use crate::fixture::*;

fn told(name: &str, bytes: &[u8], spec: SeriesSpec) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), name, bytes);
    let told = open(&path, spec).unwrap_err().to_string();
    // What is wrong with all files together names none of them.
    let of_all = ["data.series", "no windows", "values so large", "says nothing of what is to be foretold"];
    assert!(told.contains(name) || of_all.iter().any(|words| told.contains(words)), "{told}");
    told
}

fn csv(lines: &str) -> String {
    told("a.csv", format!("time,symbol,a,b\n{lines}").as_bytes(), spec())
}

#[test]
fn times_go_forward_in_each_series_by_itself() {
    let mut table = Table::prices(60, 2);
    table.rows[41].0 = 190;
    for (name, bytes) in all_formats(&table) {
        let wrong = told(name, &bytes, spec());
        let place = if name.contains("csv") || name.contains("tsv") { "line 43" } else { "row 41" };
        assert!(
            wrong.contains(place) && wrong.contains("in column `time` after 190") && wrong.contains("found 190"),
            "{wrong}"
        );
    }
    // The same time in two series is as it should be: the table has that in each pair of rows.
}

#[test]
fn cells_are_named_with_line_and_column() {
    assert!(csv("1,x,1,2\n2,x,1,oops\n").ends_with("line 3: expected a number in column `b`, found `oops`"));
    assert!(csv("1,x,1,2\n\n\n2,x,inf,1\n").ends_with("line 5: expected a finite number in column `a`, found inf"));
    assert!(
        csv("1,x,1,2\nsoon,x,1,1\n")
            .ends_with("line 3: expected a whole number, date or timestamp in column `time`, found `soon`")
    );
    assert!(csv("1,x,1,2\n2,,1,1\n").ends_with("line 3: expected the name of a series in column `symbol`, found ``"));
    assert!(csv("1,x,1,2\n2,x,1\n").ends_with("line 3: expected 4 cells, as the header has, found 3"));
    assert!(
        csv("1,x,1,2\n2026-01-01,x,1,1\n")
            .ends_with("line 3: expected a plain number in column `time`, as in all rows before, found an instant")
    );
    assert!(csv("1,x,1,2\n2,\"x,1,1\n").contains("line 3: expected the quotes of this record to be closed"));
    assert!(csv("").contains("no rows in 1 file(s)"));
    assert!(csv("1,x,1,2\n").contains(
        "no windows: a window of 4 steps that foretells 2 ahead needs 6 rows of one series, and the longest has 1 there"
    ));
    let long = format!("1,{},1,2\n", "x".repeat(2000));
    assert!(csv(&long).contains("names of at most 1024 bytes"));
    let twice = told("a.csv", b"time,symbol,a,b,a\n1,x,1,2,3\n", spec());
    assert!(twice.contains("expected the key `a` once"), "{twice}");
}

#[test]
fn numbers_that_single_precision_does_not_have_are_refused() {
    let mut table = Table::prices(60, 1);
    table.rows[50].2[1] = Some(1e300);
    let plain = SeriesSpec { normalise: Normalise::None, ..spec() };
    let wrong = told("a.csv", &table.csv(), plain);
    assert!(
        wrong.contains("line 52: expected a number that single precision has room for")
            && wrong.contains("`b`, found 1e300"),
        "{wrong}"
    );
    let wrong = told("a.csv", &table.csv(), spec());
    assert!(wrong.starts_with("column `b` has values so large"), "{wrong}");
}

#[test]
fn classes_are_whole_numbers_below_their_count() {
    let mut table = Table::prices(60, 1);
    let class = Some(ClassTarget::Column { column: "label".into(), classes: 3 });
    let spec = SeriesSpec { class, values: Vec::new(), horizon: 0, ..spec() };
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a.csv", &table.csv());
    // The class of a window's own last step.
    let samples = in_order(open(&path, spec.clone()).unwrap(), Part::Training);
    assert_eq!(samples.len(), 57);
    assert!(samples.iter().enumerate().all(|(at, sample)| sample.class as usize == (at + 3) % 3));
    for bad in [3.0, -1.0, 0.5] {
        table.rows[7].2[2] = Some(bad);
        let wrong = told("a.csv", &table.csv(), spec.clone());
        assert!(
            wrong.ends_with(&format!("line 9: expected a class from 0 to 2 in column `label`, found {bad}")),
            "{wrong}"
        );
    }
}

#[test]
fn what_is_asked_is_looked_at_before_any_file_is() {
    let plain = spec();
    let told = |spec: SeriesSpec| {
        let checked = spec.check().unwrap_err().to_string();
        assert_eq!(told("none.csv", b"", spec), checked);
        checked
    };
    assert!(told(SeriesSpec { window: 0, ..plain.clone() }).starts_with("`data.series.window` is 0"));
    assert!(told(SeriesSpec { stride: 0, ..plain.clone() }).starts_with("`data.series.stride` is 0"));
    assert!(told(SeriesSpec { horizon: 0, ..plain.clone() }).starts_with("`data.series.horizon` is 0"));
    assert!(told(SeriesSpec { features: Vec::new(), ..plain.clone() }).starts_with("`data.series.features` is 0"));
    assert!(told(SeriesSpec { features: vec!["a".into(); 2], ..plain.clone() }).contains("`a` twice"));
    assert!(told(SeriesSpec { class: None, values: Vec::new(), ..plain.clone() }).contains("one of them"));
    assert!(
        told(SeriesSpec { window: 1 << 20, features: (0..300).map(|i| i.to_string()).collect(), ..plain.clone() })
            .contains("2^28")
    );
    for fraction_of in [0.0, 1.0, -0.5, f64::NAN] {
        let validation = fraction(fraction_of, 0);
        assert!(told(SeriesSpec { validation, ..plain.clone() }).contains("above 0 and below 1"));
    }
    assert!(told(SeriesSpec { validation: Some(Validation::default()), ..plain.clone() }).contains("exactly one"));
    let soon = Some(Validation { from: Some(TimePoint::Text("soon".into())), ..Validation::default() });
    assert!(told(SeriesSpec { validation: soon, ..plain.clone() }).contains("a date as"));
    let date = Some(Validation { from: Some(TimePoint::Text("2026-01-31".into())), ..Validation::default() });
    let dateless = told(SeriesSpec { validation: date, time: None, ..plain.clone() });
    assert!(
        dateless.starts_with("`data.series.validation.from` is a date, which needs `time`, expected"),
        "{dateless}"
    );
    // Without times rows are steps, and a number is one of them.
    let row = Some(Validation { from: Some(TimePoint::Number(7)), ..Validation::default() });
    assert!(SeriesSpec { validation: row, time: None, ..plain.clone() }.check().is_ok());
    let class = |class: ClassTarget| SeriesSpec { class: Some(class), ..plain.clone() };
    let column = || "a".to_string();
    assert!(
        told(class(ClassTarget::Direction { column: column(), of: Of::Return, flat: -1.0 })).contains("not below 0")
    );
    for at in [vec![], vec![1.0, 1.0], vec![f64::NAN]] {
        assert!(
            told(class(ClassTarget::Thresholds { column: column(), of: Of::Value, at }))
                .contains("each above the last")
        );
    }
    for classes in [1, 4097] {
        assert!(told(class(ClassTarget::Column { column: column(), classes })).contains("2 to 4096"));
    }
    let many = (0..4096).map(f64::from).collect();
    let many = told(class(ClassTarget::Thresholds { column: column(), of: Of::Value, at: many }));
    assert!(many.ends_with("is a list of 4096 numbers, expected at most 4095"), "{many}");
    let labels = class(ClassTarget::Column { column: column(), classes: 3 });
    let now = SeriesSpec { horizon: 0, values: Vec::new(), ..labels };
    let wrong = "`data.series.features` is `a`, which is the class of the same step (`horizon` is 0), expected columns";
    assert!(told(now.clone()).starts_with(wrong));
    assert!(SeriesSpec { features: vec!["b".into()], ..now.clone() }.check().is_ok());
    assert!(SeriesSpec { horizon: 1, ..now }.check().is_ok());
}

#[test]
fn parts_of_which_nothing_is_known_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = Table::prices(120, 2);
    // What is foretold lies behind the cut; `a` is a feature as well, so the label stands for it.
    let label = ClassTarget::Column { column: "label".into(), classes: 3 };
    let spec = SeriesSpec { class: Some(label), missing: Missing::Zero, validation: fraction(0.25, 0), ..spec() };
    let blank = |table: &mut Table, cell: usize, rows: std::ops::Range<usize>, with: Option<f64>| {
        table.rows[rows].iter_mut().for_each(|row| row.2[cell] = with);
        write(folder.path(), "a.csv", &table.csv())
    };
    let told = |path: &std::path::Path, spec: &SeriesSpec| open(path, spec.clone()).unwrap_err().to_string();
    let path = blank(&mut table.clone(), 2, 90..120, None);
    let words = "column `label` says nothing of what is to be foretold in any of the 20 windows of validation: its class is missing";
    assert!(told(&path, &spec).starts_with(words), "{}", told(&path, &spec));
    let path = blank(&mut table.clone(), 2, 0..90, None);
    assert!(told(&path, &spec).contains("in any of the 80 windows of training: its class"));
    // One row that is known is something to learn.
    assert!(open(&blank(&mut table.clone(), 2, 0..80, None), spec.clone()).is_ok());
    // A return on nothing cannot be said.
    let path = blank(&mut table, 0, 0..120, Some(0.0));
    assert!(told(&path, &spec).starts_with("column `a` says nothing"));
    let all = SeriesSpec { validation: None, ..spec };
    assert!(told(&path, &all).contains("in any of the 110 windows: its value is missing, or cannot be said"));
}

#[test]
fn a_spec_is_read_from_the_words_of_a_job() {
    let text = r#"{
        "features": ["b", "a"], "time": "time", "by": {"column": "symbol"}, "window": 4, "horizon": 2,
        "class": {"direction": {"column": "a", "flat": 0.02}}, "values": [{"column": "a"}]
    }"#;
    assert_eq!(serde_json::from_str::<SeriesSpec>(text).unwrap(), spec());
    assert!(serde_json::from_str::<SeriesSpec>(&text.replace("\"window\"", "\"windows\"")).is_err());
    let rest = r#"{"features": ["a"], "time": "t", "by": "file", "window": 1, "horizon": 1, "stride": 3, "missing": "forward", "normalise": "series",
        "class": {"thresholds": {"column": "a", "of": "change", "at": [0.0]}}, "scale_values": false,
        "validation": {"from": "2026-01-31", "gap": 5}}"#;
    let read: SeriesSpec = serde_json::from_str(rest).unwrap();
    assert_eq!((read.stride, read.missing, read.normalise), (3, Missing::Forward, Normalise::Series));
    assert_eq!(read.check().map_err(|error| error.to_string()), Ok(()));
    assert_eq!(serde_json::from_str::<SeriesSpec>(&serde_json::to_string(&read).unwrap()).unwrap(), read);
    let from = |from: &str| serde_json::from_str::<SeriesSpec>(&rest.replace("\"2026-01-31\"", from));
    assert!(from("-7").is_ok_and(|spec| spec.check().is_ok()));
    let wrong = from("0.5").unwrap_err().to_string();
    assert!(wrong.contains("expected a whole number, or a date in quotes"), "{wrong}");
}
