//! Samples against those of a version that anybody would write: windows cut out of lists, one after the other.

use std::collections::BTreeMap;

use plimsoll_data::series::*;
use plimsoll_plan::batch::IGNORE;
use proptest::prelude::*;

use crate::fixture::*;

/// A time and its numbers.
type Rows = Vec<(i64, Vec<f64>)>;

/// The rows of each series, in the order in which series first come.
fn by_series(table: &Table) -> Vec<(String, Rows)> {
    let mut list: Vec<(String, Rows)> = Vec::new();
    for (time, name, cells) in &table.rows {
        let row = (*time, cells.iter().map(|cell| cell.unwrap_or(f64::NAN)).collect());
        match list.iter_mut().find(|(other, _)| other == name) {
            Some((_, rows)) => rows.push(row),
            None => list.push((name.clone(), vec![row])),
        }
    }
    list
}

/// Mean and deviation in two passes.
fn scale(numbers: &[f64]) -> (f64, f64) {
    let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
    (mean, (numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / numbers.len() as f64).sqrt())
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-6)
}

fn samples(table: &Table, series: &Series, part: Part) -> Vec<Sample> {
    let spec = series.spec();
    let cut = series.facts().cut;
    let gap = spec.validation.as_ref().map_or(0, |v| v.gap);
    let mut list = Vec::new();
    for (name, rows) in by_series(table) {
        let before = rows.iter().filter(|row| cut.is_none_or(|cut| row.0 < cut)).count();
        let rows = match part {
            Part::Training => &rows[..before],
            Part::Validation => &rows[(before + gap).min(rows.len())..],
        };
        let own = series.normalisation().series.iter().find(|own| own.name == name);
        let scales = own.map_or(&series.normalisation().all, |own| &own.scales);
        let mut first = 0;
        while first + spec.window + spec.horizon <= rows.len() {
            let last = first + spec.window - 1;
            let mut inputs = Vec::new();
            for (_, cells) in &rows[first..=last] {
                for (which, cell) in [(0, cells[1]), (1, cells[0])] {
                    let x = if spec.normalise == Normalise::None {
                        cell
                    } else {
                        (cell - scales[which].mean) / scales[which].std
                    };
                    inputs.push(x as f32);
                }
            }
            let (now, then) = (rows[last].1[0], rows[last + spec.horizon].1[0]);
            let change = (then - now) / now;
            let class = if change < -0.02 {
                0
            } else if change > 0.02 {
                2
            } else {
                1
            };
            let scale = series.normalisation().value_scales[0];
            let value = ((change - scale.mean) / scale.std) as f32;
            list.push(Sample { inputs: bits(&inputs), class, values: bits(&[value]) });
            first += spec.stride;
        }
    }
    list
}

fn table(rows: Vec<(u8, u8, f64, f64)>) -> Table {
    let mut times: BTreeMap<u8, i64> = BTreeMap::new();
    let mut now = 0;
    let row = |(series, step, a, b): (u8, u8, f64, f64)| {
        now += i64::from(step);
        let time = times.entry(series % 3).or_insert(-1);
        *time = now.max(*time + 1);
        (*time, format!("s{}", series % 3), vec![Some(a), Some(b), Some(0.0)])
    };
    Table { names: vec!["a", "b", "label"], rows: rows.into_iter().map(row).collect() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn samples_are_those_of_lists(
        rows in prop::collection::vec((any::<u8>(), 0u8..4, 1.0f64..200.0, -1e7f64..1e7), 30..150),
        window in 1usize..6, horizon in 1usize..5, stride in 1usize..4, gap in 0usize..4,
        part in prop::option::of(0.05f64..0.6), over in 0..3,
    ) {
        let table = table(rows);
        let folder = tempfile::tempdir().unwrap();
        let path = write(folder.path(), "a.csv", &table.csv());
        let normalise = [Normalise::All, Normalise::Series, Normalise::None][over as usize];
        let validation = part.and_then(|part| fraction(part, gap));
        let spec = SeriesSpec { window, horizon, stride, normalise, validation, ..spec() };
        let series = match open(&path, spec.clone()) {
            Ok(series) => series,
            Err(error) => {
                // Only where nothing is long enough.
                prop_assert!(error.to_string().contains("no windows"), "{}", error);
                return Ok(());
            }
        };
        // The cut leaves no more behind it than was asked for, unless rows share its time; one time earlier would be more.
        if let (Some(cut), Some(part)) = (series.facts().cut, part) {
            let share = |cut: i64| table.rows.iter().filter(|row| row.0 > cut).count() as f64 / table.rows.len() as f64;
            prop_assert!(share(cut) <= part, "{} rows behind {}", share(cut), cut);
        }
        // What is normalised by is measured on rows before the cut alone.
        let cut = series.facts().cut;
        let before: Vec<_> = table.rows.iter().filter(|row| cut.is_none_or(|cut| row.0 < cut)).collect();
        if normalise != Normalise::None {
            for (which, cell) in [(0, 1), (1, 0)] {
                let numbers: Vec<f64> = before.iter().map(|row| row.2[cell].unwrap()).collect();
                let ((mean, std), own) = (scale(&numbers), series.normalisation().all[which]);
                prop_assert!(close(own.mean, mean) && (close(own.std, std) || own.std == 1.0), "{:?} {} {}", own, mean, std);
            }
        }
        prop_assert_eq!(series.normalisation().until, before.iter().map(|row| row.0).max());
        for part in [Part::Training, Part::Validation] {
            let expected = if part == Part::Validation && spec.validation.is_none() {
                Vec::new()
            } else {
                samples(&table, &series, part)
            };
            prop_assert_eq!(series.samples(part), expected.len() as u64);
            if expected.is_empty() {
                continue;
            }
            let (counts, unknown) = series.class_counts(part).unwrap();
            let of = |class: u32| expected.iter().filter(|sample| sample.class == class).count() as u64;
            prop_assert_eq!((counts, unknown), (vec![of(0), of(1), of(2)], of(IGNORE)));
            let again = open(&path, spec.clone()).unwrap();
            prop_assert_eq!(in_order(again, part), expected);
        }
        // Values of the training part are measured as they are foretold.
        let raw = SeriesSpec { scale_values: false, ..spec.clone() };
        let values: Vec<f64> = in_order(open(&path, raw).unwrap(), Part::Training)
            .iter().map(|sample| f64::from(f32::from_bits(sample.values[0]))).collect();
        let (mean, _) = scale(&values);
        prop_assert!((series.normalisation().value_scales[0].mean - mean).abs() < 1e-4 * mean.abs().max(1.0));
    }
}
