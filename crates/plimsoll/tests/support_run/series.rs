//! Jobs over series, made small: a market whose next step can be foretold, files of it, descriptions of models, and jobs.
//!
//! Invariant: everything follows from a seed. The same numbers are written to every kind of file.

use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use serde_json::Value;

use super::draw::Draw;
use super::{Result, Workshop};

/// Series of the market.
pub const SYMBOLS: usize = 3;
/// Rows of each of them.
pub const TIMES: usize = 240;

/// One row of the market.
#[derive(Clone, Debug)]
pub struct Row {
    pub time: i64,
    pub symbol: String,
    pub close: f64,
    pub signal: f64,
    pub noise: f64,
    /// Which third of its range the signal is in.
    pub label: i64,
}

/// Rows of all series, interleaved: prices go where the signal of the step before points.
pub fn market(seed: u64) -> Vec<Row> {
    market_of(seed, TIMES)
}

/// The same, of so many rows of each series.
pub fn market_of(seed: u64, times: usize) -> Vec<Row> {
    let mut draw = Draw::new(seed);
    // In -1 .. 1.
    let mut unit = move || draw.within(0..=1 << 20) as f64 / f64::from(1 << 19) - 1.0;
    let mut states = [(100.0, 0.0); SYMBOLS];
    let mut rows = Vec::new();
    for time in 0..times {
        for (nth, (close, signal)) in states.iter_mut().enumerate() {
            *close *= 1.0 + 0.01 * *signal + 0.001 * unit();
            *signal = 0.5 * *signal + 0.5 * unit();
            let label = if *signal < -0.2 { 0 } else { 1 + i64::from(*signal > 0.2) };
            let symbol = format!("s{nth}");
            rows.push(Row { time: time as i64, symbol, close: *close, signal: *signal, noise: unit(), label });
        }
    }
    rows
}

/// Writes CSV; the signal is left out of rows where `missing` says so.
pub fn write_csv(path: &Path, rows: &[Row], missing: impl Fn(usize) -> bool) {
    let line = |(nth, row): (usize, &Row)| {
        let signal = if missing(nth) { String::new() } else { row.signal.to_string() };
        let Row { time, symbol, close, noise, label, .. } = row;
        format!("{time},{symbol},{close},{signal},{noise},{label}\n")
    };
    let lines: String = rows.iter().enumerate().map(line).collect();
    fs_err::write(path, "time,symbol,close,signal,noise,label\n".to_string() + &lines).unwrap();
}

/// Writes Parquet, in two row groups.
pub fn write_parquet(path: &Path, rows: &[Row]) {
    let schema = "message m { REQUIRED INT64 time; REQUIRED BYTE_ARRAY symbol (UTF8); REQUIRED DOUBLE close; \
                  REQUIRED DOUBLE signal; REQUIRED DOUBLE noise; REQUIRED INT64 label; }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = fs_err::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Default::default()).unwrap();
    for part in rows.chunks(rows.len().div_ceil(2)) {
        let mut group = writer.next_row_group().unwrap();
        column::<Int64Type>(&mut group, part.iter().map(|row| row.time));
        column::<ByteArrayType>(&mut group, part.iter().map(|row| ByteArray::from(row.symbol.as_str())));
        for of in [|row: &Row| row.close, |row: &Row| row.signal, |row: &Row| row.noise] {
            column::<DoubleType>(&mut group, part.iter().map(of));
        }
        column::<Int64Type>(&mut group, part.iter().map(|row| row.label));
        group.close().unwrap();
    }
    writer.close().unwrap();
}

fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, fs_err::File>,
    cells: impl Iterator<Item = <T as DataType>::T>,
) {
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<T>().write_batch(&cells.collect::<Vec<_>>(), None, None).unwrap();
    column.close().unwrap();
}

/// The first build with small widths; no width is a multiple of a vector register.
pub const V1: &str = r#"family = "cnn-lstm"
preset = "hybrid-v1"
layout = "channels"
conv = [{ channels = 9, kernel = 3 }, { channels = 14, kernel = 5 }]
attention = { kind = "additive", units = 7 }
lstm = { hidden = 13 }
classes = { hidden = [{ width = 17, dropout = 0.1 }] }
confidence = { hidden = [{ width = 6 }] }
values = { hidden = [{ width = 5, dropout = 0.1 }] }
"#;

/// The second build with small widths, and everything that its loss may have.
pub const V2: &str = r#"family = "cnn-lstm"
preset = "hybrid-v2"
conv = [{ channels = 6, kernel = 3 }, { channels = 10, kernel = 5 }]
lstm = { hidden = 10 }
attention = { kind = "multi-head", heads = 4, dropout = 0.1, positions = 24 }
classes = { hidden = [{ width = 11, dropout = 0.2 }] }
confidence = { hidden = [{ width = 6 }] }
values = { hidden = [{ width = 5 }] }
loss = { focal_gamma = 1.5, label_smoothing = 0.05, mixup = { alpha = 0.4, probability = 0.5 } }
"#;

/// The table `[data.series]` of most jobs.
pub const SERIES: &str = r#"features = ["close", "signal", "noise"]
time = "time"
by = { column = "symbol" }
window = 12
horizon = 1
class = { direction = { column = "close", flat = 0.001 } }
values = [{ column = "close", of = "return" }]
validation = { fraction = 0.2 }
"#;

/// Every choice is held, as two plans need not be the same. A model with batch norm sees each batch whole.
pub const PINS: &str = "[pin]\nrecompute = 1\noptimizer_in_backward = false\nloader_threads = 2\n";

/// A job, as its parts.
#[derive(Clone, Copy, Debug)]
pub struct SeriesJob<'a> {
    /// What `model.toml` says.
    pub model: &'a str,
    /// `[data.series]`.
    pub series: &'a str,
    /// What stands in `[train]`, and below it.
    pub train: &'a str,
}

impl Workshop {
    /// A folder with `market.csv`, and nothing else.
    pub fn of_series() -> Workshop {
        let workshop = Workshop { dir: tempfile::tempdir().unwrap(), cache: None };
        write_csv(&workshop.path("market.csv"), &market(1), |_| false);
        workshop
    }

    /// Writes `model.toml`, and `job.toml` over `market.csv`.
    pub fn series_job(&self, job: SeriesJob<'_>) {
        let SeriesJob { model, series, train } = job;
        fs_err::write(self.path("model.toml"), model).unwrap();
        let text = format!(
            "[model]\npath = \"model.toml\"\ninit = \"random\"\n[data]\nkind = \"series\"\ntrain = [\"market.csv\"]\n\
             [data.series]\n{series}[train]\nthreads = 2\n{train}\n[budget]\nram = \"256MiB\"\n"
        );
        fs_err::write(self.path("job.toml"), text).unwrap();
    }

    /// Changes `job.toml` by replacing a text that it must hold.
    #[track_caller]
    pub fn edit_job(&self, from: &str, to: &str) {
        let text = fs_err::read_to_string(self.path("job.toml")).unwrap();
        assert!(text.contains(from), "`{from}` is not in {text}");
        fs_err::write(self.path("job.toml"), text.replace(from, to)).unwrap();
    }

    /// Trains `job.toml` to its end; what came of it.
    #[track_caller]
    pub fn trained(&self, out: &str, flags: &[&str]) -> Result {
        self.plimsoll(&[&["train", "job.toml", "--out", out], flags].concat()).must(0, &["done: "]);
        Result::of(&self.path(out))
    }

    /// A JSON file of the workshop.
    #[track_caller]
    pub fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&fs_err::read(self.path(name)).unwrap()).unwrap()
    }
}

/// The header of a file of weights: names, with dtype, shape and place of each tensor.
pub fn header(weights: &[u8]) -> Value {
    let length = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    serde_json::from_slice(&weights[8..8 + length]).unwrap()
}

/// The bytes of a tensor in a file of weights.
#[track_caller]
pub fn tensor<'a>(weights: &'a [u8], name: &str) -> &'a [u8] {
    let header = header(weights);
    let length = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let place = |nth: usize| {
        let at = header[name]["data_offsets"][nth].as_u64().unwrap_or_else(|| panic!("no `{name}` in {header:#}"));
        8 + length + at as usize
    };
    &weights[place(0)..place(1)]
}
