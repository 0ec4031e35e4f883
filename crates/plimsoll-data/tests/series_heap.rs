//! What series take against their formulas, with every allocation counted; and no allocation in `next`.
//!
//! One test function, since the count is of the whole process. `cargo test --test series_heap -- --nocapture` prints what was measured.

mod counting;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parquet::basic::Compression;
use parquet::data_type::{DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use plimsoll_data::series::*;
use plimsoll_data::*;
use plimsoll_plan::series_batch::SeriesSlot;

use counting::{LIVE, MINE, peak_of};

const ROWS: usize = 150_000;
const COLUMNS: usize = 24;

fn cell(row: usize, column: usize) -> f64 {
    100.0 + (row as f64 * 0.01 + column as f64).sin()
}

/// Columns of more than a page each.
fn write_parquet(path: &Path) {
    let columns: String = (0..COLUMNS).map(|column| format!("REQUIRED DOUBLE f{column}; ")).collect();
    let schema = format!("message m {{ REQUIRED INT64 time; {columns} }}");
    let schema = Arc::new(parse_message_type(&schema).unwrap());
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let file = std::fs::OpenOptions::new().create(true).truncate(true).write(true).open(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let times: Vec<i64> = (0..ROWS as i64).collect();
    column.typed::<Int64Type>().write_batch(&times, None, None).unwrap();
    column.close().unwrap();
    for number in 0..COLUMNS {
        let values: Vec<f64> = (0..ROWS).map(|row| cell(row, number)).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<DoubleType>().write_batch(&values, None, None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

fn write_csv(path: &Path, rows: usize) {
    let names: Vec<String> = (0..COLUMNS).map(|column| format!("f{column}")).collect();
    let mut text = format!("time,symbol,{}\n", names.join(","));
    for row in 0..rows {
        write!(text, "{},name of series {}", row / 100, row % 100).unwrap();
        (0..COLUMNS).for_each(|column| write!(text, ",{:?}", cell(row, column)).unwrap());
        text.push('\n');
    }
    fs_err::write(path, text).unwrap();
}

fn spec(by: SeriesBy) -> SeriesSpec {
    SeriesSpec {
        features: (0..COLUMNS).map(|column| format!("f{column}")).collect(),
        time: Some("time".into()),
        by,
        window: 20,
        horizon: 3,
        stride: 1,
        class: Some(ClassTarget::Direction { column: "f0".into(), of: Of::Return, flat: 1e-4 }),
        values: vec![ValueTarget { column: "f1".into(), of: Of::Change }],
        scale_values: true,
        missing: Missing::Forward,
        normalise: Normalise::Series,
        validation: Some(Validation { fraction: Some(0.2), from: None, gap: 0 }),
    }
}

/// Opens, loads some batches, and holds both against their formulas.
fn measure(told: &mut String, path: &PathBuf, asked: SeriesSpec, memory: u64, cache: &Path) -> bool {
    let opening = SeriesOpening { folder: Some(cache), memory, ..SeriesOpening::default() };
    let before = LIVE.load(Relaxed);
    let (peak, series) = peak_of(|| Series::open(std::slice::from_ref(path), asked, opening).unwrap());
    let name = path.file_name().unwrap().to_string_lossy();
    let held = series.facts().held;
    assert!(peak <= opening_bytes(memory), "{name}: opening took {peak}, expected {}", opening_bytes(memory));
    let settings = SeriesSettings {
        shape: series.shape(32),
        threads: 3,
        prefetch_batches: 4,
        cursor: Cursor::default(),
        limit: None,
        ranks: Ranks::ONE,
        on_thread_start: None,
    };
    let heap = series.heap(&settings);
    let shape = settings.shape;
    let mut inputs = vec![0.0; shape.samples * shape.window * shape.features];
    let (mut classes, mut values) = (vec![0; shape.samples], vec![0.0; shape.samples]);
    let own = (inputs.len() + classes.len() + values.len()) as u64 * 4;
    let (above, _) = peak_of(|| {
        let mut loader = SeriesLoader::start(Arc::new(series), Part::Training, Order::new(1, true), settings).unwrap();
        let mut next = || {
            let slot = SeriesSlot { inputs: &mut inputs, classes: &mut classes, values: &mut values };
            loader.next(slot).unwrap()
        };
        next();
        let calls = MINE.get();
        (0..40).for_each(|_| assert_eq!(next().samples, 32));
        assert_eq!(MINE.get(), calls, "next allocates");
        // All that is there with the loader, less what this test holds itself.
        let live = LIVE.load(Relaxed) - before - own;
        assert!(live <= heap.total(), "{name}: {live} of {heap:?}");
        assert!(heap.total() <= live + live / 4 + (64 << 10), "{name}: {live} of {heap:?}");
        writeln!(
            told,
            "{name}, memory {memory}: opening {peak} of {}, loading {live} of {} {heap:?}",
            opening_bytes(memory),
            heap.total()
        )
        .unwrap();
    });
    assert!(above <= heap.ring + heap.threads + heap.index);
    held
}

#[test]
fn series_stay_below_their_formulas() {
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (parquet, csv) = (data.path().join("a.parquet"), data.path().join("a.csv"));
    write_parquet(&parquet);
    write_csv(&csv, 30_000);
    let mut told = String::new();
    // 16.8 MB of rows: in memory, and in a file.
    assert!(measure(&mut told, &parquet, spec(SeriesBy::One), 64 << 20, cache.path()));
    assert!(!measure(&mut told, &parquet, spec(SeriesBy::One), 28 << 20, cache.path()));
    // And found there again.
    assert!(!measure(&mut told, &parquet, spec(SeriesBy::One), 28 << 20, cache.path()));
    let by = SeriesBy::Column("symbol".into());
    assert!(measure(&mut told, &csv, spec(by.clone()), 32 << 20, cache.path()));
    assert!(!measure(&mut told, &csv, spec(by), 6 << 20, cache.path()));
    println!("{told}");

    let small = SeriesOpening { memory: 4 << 20, ..SeriesOpening::default() };
    let (peak, wrong) = peak_of(|| Series::open(&[parquet], spec(SeriesBy::One), small).unwrap_err().to_string());
    assert!(wrong.contains("expected pages of at most 262144 bytes in column `f0`"), "{wrong}");
    assert!(peak <= opening_bytes(4 << 20));
}
