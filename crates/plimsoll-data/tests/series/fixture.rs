//! Tables of numbers, as files of each format, and batches of what was opened.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use plimsoll_data::series::*;
use plimsoll_data::*;
use plimsoll_plan::series_batch::SeriesSlot;

/// Rows with a time, a series and some numbers.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub names: Vec<&'static str>,
    pub rows: Vec<(i64, String, Vec<Option<f64>>)>,
}

impl Table {
    /// Prices `a`, another number `b` and a class `label` of interleaved series.
    pub fn prices(rows: usize, series: usize) -> Table {
        let cells = |i: usize, which: usize| {
            let x = i as f64 * 0.37 + which as f64;
            vec![Some(100.0 + 10.0 * x.sin() + 0.1), Some(x.cos() / 3.0 + 1e6), Some((i % 3) as f64)]
        };
        let row = |i: usize| {
            let which = i % series;
            ((i / series) as i64 * 10, format!("s{which}"), cells(i / series, which))
        };
        Table { names: vec!["a", "b", "label"], rows: (0..rows).map(row).collect() }
    }

    pub fn csv(&self) -> Vec<u8> {
        let mut text = format!("time,symbol,{}\n", self.names.join(","));
        for (time, symbol, cells) in &self.rows {
            let cells: Vec<String> = cells.iter().map(|c| c.map_or(String::new(), |x| format!("{x:?}"))).collect();
            text += &format!("{time},{symbol},{}\n", cells.join(","));
        }
        text.into_bytes()
    }

    fn column(&self, which: usize) -> Vec<Option<f64>> {
        self.rows.iter().map(|(_, _, cells)| cells[which]).collect()
    }

    /// In row groups of `group` rows, with pages of few values.
    pub fn parquet(&self, codec: Compression, dictionary: bool, group: usize) -> Vec<u8> {
        let columns: String = self.names.iter().map(|name| format!("OPTIONAL DOUBLE {name}; ")).collect();
        let schema = format!("message m {{ REQUIRED INT64 time; REQUIRED BYTE_ARRAY symbol (UTF8); {columns} }}");
        let properties = WriterProperties::builder()
            .set_compression(codec)
            .set_dictionary_enabled(dictionary)
            .set_data_page_size_limit(300)
            .set_write_batch_size(8)
            .build();
        let schema = Arc::new(parse_message_type(&schema).unwrap());
        let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
        for rows in self.rows.chunks(group) {
            let part = Table { names: self.names.clone(), rows: rows.to_vec() };
            let mut group = writer.next_row_group().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let times: Vec<i64> = rows.iter().map(|row| row.0).collect();
            column.typed::<Int64Type>().write_batch(&times, None, None).unwrap();
            column.close().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let names: Vec<ByteArray> = rows.iter().map(|row| row.1.as_str().into()).collect();
            column.typed::<ByteArrayType>().write_batch(&names, None, None).unwrap();
            column.close().unwrap();
            for which in 0..self.names.len() {
                let cells = part.column(which);
                let defined: Vec<i16> = cells.iter().map(|cell| i16::from(cell.is_some())).collect();
                let values: Vec<f64> = cells.into_iter().flatten().collect();
                let mut column = group.next_column().unwrap().unwrap();
                column.typed::<DoubleType>().write_batch(&values, Some(&defined), None).unwrap();
                column.close().unwrap();
            }
            group.close().unwrap();
        }
        writer.into_inner().unwrap()
    }

    pub fn batch(&self) -> RecordBatch {
        let times: ArrayRef = Arc::new(self.rows.iter().map(|row| row.0).collect::<Int64Array>());
        let names: ArrayRef = Arc::new(self.rows.iter().map(|row| Some(row.1.as_str())).collect::<StringArray>());
        let mut columns = vec![("time", times), ("symbol", names)];
        for (which, name) in self.names.iter().enumerate() {
            columns.push((name, Arc::new(self.column(which).into_iter().collect::<Float64Array>())));
        }
        RecordBatch::try_from_iter(columns).unwrap()
    }

    pub fn arrow(&self, codec: Option<CompressionType>, stream: bool) -> Vec<u8> {
        arrow(&self.batch(), codec, stream)
    }
}

/// In two batches.
pub fn arrow(batch: &RecordBatch, codec: Option<CompressionType>, stream: bool) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(codec).unwrap();
    let half = batch.num_rows() / 2;
    let parts = [batch.slice(0, half), batch.slice(half, batch.num_rows() - half)];
    if stream {
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
        parts.iter().for_each(|part| writer.write(part).unwrap());
        writer.into_inner().unwrap()
    } else {
        let mut writer = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
        parts.iter().for_each(|part| writer.write(part).unwrap());
        writer.into_inner().unwrap()
    }
}

/// All formats of a table, by the name of a file.
pub fn all_formats(table: &Table) -> Vec<(&'static str, Vec<u8>)> {
    let tabs = String::from_utf8(table.csv()).unwrap().replace(',', "\t").into_bytes();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&table.csv()).unwrap();
    vec![
        ("a.csv", table.csv()),
        ("a.tsv", tabs),
        ("a.csv.gz", gzip.finish().unwrap()),
        ("a.csv.zst", zstd::encode_all(&table.csv()[..], 1).unwrap()),
        ("plain.parquet", table.parquet(Compression::UNCOMPRESSED, false, 1 << 20)),
        ("snappy.parquet", table.parquet(Compression::SNAPPY, true, 37)),
        ("zstd.parquet", table.parquet(Compression::ZSTD(parquet::basic::ZstdLevel::default()), true, 64)),
        ("file.arrow", table.arrow(None, false)),
        ("stream.arrows", table.arrow(None, true)),
        ("lz4.feather", table.arrow(Some(CompressionType::LZ4_FRAME), false)),
        ("zstd.arrow", table.arrow(Some(CompressionType::ZSTD), true)),
    ]
}

pub fn write(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs_err::write(&path, bytes).unwrap();
    path
}

/// Direction of `a`, with its return as a value, over series of `symbol`.
pub fn spec() -> SeriesSpec {
    SeriesSpec {
        features: vec!["b".into(), "a".into()],
        time: Some("time".into()),
        by: SeriesBy::Column("symbol".into()),
        window: 4,
        horizon: 2,
        stride: 1,
        class: Some(ClassTarget::Direction { column: "a".into(), of: Of::Return, flat: 0.02 }),
        values: vec![ValueTarget { column: "a".into(), of: Of::Return }],
        scale_values: true,
        missing: Missing::Refuse,
        normalise: Normalise::All,
        validation: None,
    }
}

pub fn fraction(fraction: f64, gap: usize) -> Option<Validation> {
    Some(Validation { fraction: Some(fraction), from: None, gap })
}

pub fn open(path: &Path, spec: SeriesSpec) -> Result<Series, DataError> {
    Series::open(&[path.to_path_buf()], spec, SeriesOpening::default())
}

pub fn settings(series: &Series, samples: usize) -> SeriesSettings {
    SeriesSettings {
        shape: series.shape(samples),
        threads: 2,
        prefetch_batches: 3,
        cursor: Cursor::default(),
        limit: None,
        ranks: Ranks::ONE,
        on_thread_start: None,
    }
}

/// A sample as bits, so that equal means equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    pub inputs: Vec<u32>,
    pub class: u32,
    pub values: Vec<u32>,
}

pub fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| if number.is_nan() { u32::MAX } else { number.to_bits() }).collect()
}

/// The next batch, as samples.
pub fn next(loader: &mut SeriesLoader, shape: plimsoll_plan::series_batch::SeriesShape) -> (SeriesBatch, Vec<Sample>) {
    let mut inputs = vec![7.0; shape.samples * shape.window * shape.features];
    let (mut classes, mut values) = (vec![7; shape.samples], vec![7.0; shape.samples * shape.values]);
    let slot = SeriesSlot { inputs: &mut inputs, classes: &mut classes, values: &mut values };
    let facts = loader.next(slot).unwrap();
    let sample = |at: usize| Sample {
        inputs: bits(&inputs[at * shape.window * shape.features..][..shape.window * shape.features]),
        class: classes[at],
        values: bits(&values[at * shape.values..][..shape.values]),
    };
    (facts, (0..facts.samples).map(sample).collect())
}

/// A pass over a part in the order of the rows.
pub fn in_order(series: Series, part: Part) -> Vec<Sample> {
    let settings = settings(&series, 5);
    let shape = settings.shape;
    let mut loader = SeriesLoader::start_pass(Arc::new(series), part, Order::new(0, false), settings).unwrap();
    let mut all = Vec::new();
    loop {
        let (facts, samples) = next(&mut loader, shape);
        if facts.samples == 0 {
            return all;
        }
        all.extend(samples);
    }
}
