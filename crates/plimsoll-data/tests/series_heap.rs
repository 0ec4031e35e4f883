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

/// Few rows in many groups, so that there is little but a footer.
fn write_footer(path: &Path, columns: usize, groups: usize) {
    let schema: String = (0..columns).map(|column| format!("REQUIRED DOUBLE f{column}; ")).collect();
    let schema = Arc::new(parse_message_type(&format!("message m {{ {schema} }}")).unwrap());
    let none = parquet::file::properties::EnabledStatistics::None;
    let properties = WriterProperties::builder().set_statistics_enabled(none).set_offset_index_disabled(true).build();
    let file = std::fs::OpenOptions::new().create(true).truncate(true).write(true).open(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    for number in 0..groups {
        let mut group = writer.next_row_group().unwrap();
        for column in 0..columns {
            let mut of = group.next_column().unwrap().unwrap();
            of.typed::<DoubleType>().write_batch(&[cell(number, column); 4], None, None).unwrap();
            of.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
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

fn write_csv(path: &Path, rows: usize, series: usize) {
    let names: Vec<String> = (0..COLUMNS).map(|column| format!("f{column}")).collect();
    let mut text = format!("time,symbol,{}\n", names.join(","));
    for row in 0..rows {
        write!(text, "{},name of series {}", row / series, row % series).unwrap();
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
    write_csv(&csv, 30_000, 100);
    let mut told = String::new();
    // 16.8 MB of rows: in memory, and in a file.
    assert!(measure(&mut told, &parquet, spec(SeriesBy::One), 64 << 20, cache.path()));
    assert!(!measure(&mut told, &parquet, spec(SeriesBy::One), 28 << 20, cache.path()));
    // And found there again.
    assert!(!measure(&mut told, &parquet, spec(SeriesBy::One), 28 << 20, cache.path()));
    let by = SeriesBy::Column("symbol".into());
    assert!(measure(&mut told, &csv, spec(by.clone()), 32 << 20, cache.path()));
    assert!(!measure(&mut told, &csv, spec(by.clone()), 6 << 20, cache.path()));
    // Nearly as many series as there is room for, and more.
    let many = data.path().join("many.csv");
    write_csv(&many, 1000 * 30, 1000);
    let whole = || SeriesSpec { validation: None, ..spec(by.clone()) };
    assert!(measure(&mut told, &many, whole(), 32 << 20, cache.path()));
    write_csv(&many, 1100 * 30, 1100);
    let opening = SeriesOpening { memory: 32 << 20, ..SeriesOpening::default() };
    let wrong = Series::open(&[many], whole(), opening).map(drop).unwrap_err().to_string();
    assert!(wrong.contains("as many as `data.memory` has room for, found one behind 103"), "{wrong}");

    // A footer that is most of what is held; a longer one is refused before it is unpacked, one of more wanted columns before it is kept.
    let wide = data.path().join("wide.parquet");
    write_footer(&wide, 400, 60);
    let few = |columns: usize| SeriesSpec {
        features: (0..columns).map(|column| format!("f{column}")).collect(),
        time: None,
        missing: Missing::Refuse,
        normalise: Normalise::All,
        validation: None,
        ..spec(SeriesBy::One)
    };
    let (peak, opened) = peak_of(|| {
        let opening = SeriesOpening { memory: 128 << 20, ..SeriesOpening::default() };
        Series::open(std::slice::from_ref(&wide), few(100), opening).map(|series| series.facts().rows).unwrap()
    });
    let file = fs_err::read(&wide).unwrap();
    let footer = u32::from_le_bytes(file[file.len() - 8..file.len() - 4].try_into().unwrap());
    writeln!(told, "wide.parquet: opening {peak} of {}, a footer of {footer}", opening_bytes(128 << 20)).unwrap();
    // Ten times its length, what is kept of it, and rows that are read at a time.
    let most = 10 * u64::from(footer) + 102 * 60 * 1024 + (128 << 20) / 16;
    assert!(opened == 240 && peak <= most && most < opening_bytes(128 << 20), "{peak} of {most}");
    for (columns, memory, what) in [(3, 16 << 20, "unpacked"), (399, 96 << 20, "kept")] {
        let opening = SeriesOpening { memory, ..SeriesOpening::default() };
        let (peak, wrong) = peak_of(|| {
            Series::open(std::slice::from_ref(&wide), few(columns), opening).map(drop).unwrap_err().to_string()
        });
        let words = format!("when it is {what}, found");
        assert!(
            wrong.contains("wide.parquet`: expected a footer that takes at most") && wrong.contains(&words),
            "{wrong}"
        );
        assert!(peak <= opening_bytes(memory));
    }
    println!("{told}");

    let small = SeriesOpening { memory: 4 << 20, ..SeriesOpening::default() };
    let (peak, wrong) = peak_of(|| Series::open(&[parquet], spec(SeriesBy::One), small).unwrap_err().to_string());
    assert!(wrong.contains("expected pages of at most 262144 bytes in column `f0`"), "{wrong}");
    assert!(peak <= opening_bytes(4 << 20));
}
