//! Parquet: what is read, and what is refused with its place.

use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use plimsoll_data::*;
use tempfile::tempdir;

use crate::fixture::{numbered, open, open_error};
use crate::jsonl::all_rows;

const PAIRS: &str = "message m { REQUIRED BYTE_ARRAY source (UTF8); OPTIONAL BYTE_ARRAY target (UTF8); }";

/// Writes rows in groups of `group` rows; `None` is a null target.
fn write(path: &Path, properties: WriterProperties, rows: &[(String, Option<String>)], group: usize) {
    let schema = Arc::new(parse_message_type(PAIRS).unwrap());
    let file = std::fs::OpenOptions::new().create(true).truncate(true).write(true).open(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    for rows in rows.chunks(group) {
        let mut group = writer.next_row_group().unwrap();
        let sources: Vec<ByteArray> = rows.iter().map(|(s, _)| s.as_str().into()).collect();
        let targets: Vec<ByteArray> = rows.iter().filter_map(|(_, t)| t.as_deref()).map(Into::into).collect();
        let levels: Vec<i16> = rows.iter().map(|(_, t)| i16::from(t.is_some())).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&sources, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&targets, Some(&levels), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

/// Pairs with small pages, in groups of `group` rows.
pub fn write_pairs(path: &Path, rows: &[(String, String)], group: usize) {
    write(path, small_pages().build(), &some(rows), group);
}

/// As most writers do: pages of a megabyte.
pub fn write_large_pages(path: &Path, rows: &[(String, String)], group: usize) {
    write(path, WriterProperties::builder().build(), &some(rows), group);
}

fn some(rows: &[(String, String)]) -> Vec<(String, Option<String>)> {
    rows.iter().map(|(s, t)| (s.clone(), Some(t.clone()))).collect()
}

fn small_pages() -> WriterPropertiesBuilder {
    WriterProperties::builder().set_data_page_size_limit(700).set_write_batch_size(16)
}

#[test]
fn every_codec_encoding_and_page_version_gives_the_same_rows() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let mut rows = numbered(3000, 50);
    rows[1234].0 = "höhe ".repeat(40_000);
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::ZSTD(ZstdLevel::default()),
        Compression::GZIP(Default::default()),
        Compression::LZ4_RAW,
    ];
    for (n, codec) in codecs.into_iter().enumerate() {
        for dictionary in [false, true] {
            let version = if n % 2 == 0 { WriterVersion::PARQUET_1_0 } else { WriterVersion::PARQUET_2_0 };
            let properties =
                small_pages().set_compression(codec).set_dictionary_enabled(dictionary).set_writer_version(version);
            write(&path, properties.build(), &some(&rows), 700);
            let sources = open(&path).unwrap();
            assert_eq!(sources.rows(), 3000);
            assert!(sources.facts().blocks >= 5, "a block never crosses a row group");
            assert!(all_rows(Arc::new(sources)) == rows, "{codec:?}, dictionary {dictionary}");
        }
    }
}

#[test]
fn the_largest_page_is_known_and_not_the_row_group() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let rows: Vec<_> = (0..4000).map(|i| (format!("row {i} {}", "x".repeat(500)), format!("{i}"))).collect();
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_data_page_size_limit(20_000)
        .set_write_batch_size(10)
        .build();
    write(&path, properties, &some(&rows), 4000);
    let sources = open(&path).unwrap();
    let page = sources.facts().source_pages.largest_page;
    assert!((15_000..40_000).contains(&page), "{page}");
    assert_eq!(all_rows(Arc::new(sources)), rows);
}

#[test]
fn rows_behind_many_pages_are_those_that_were_written() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    // Pages of several entries of the table; in the first of them a dictionary, which soon becomes too large.
    let rows: Vec<_> =
        (0..6000).map(|i| (format!("row {i} {}", "xy ".repeat(i % 300)), format!("{} {i}", i % 7))).collect();
    for (dictionary, compression) in [(4_000, Compression::SNAPPY), (1 << 20, Compression::UNCOMPRESSED)] {
        let properties = WriterProperties::builder()
            .set_dictionary_page_size_limit(dictionary)
            .set_data_page_size_limit(30_000)
            .set_write_batch_size(10)
            .set_compression(compression);
        write(&path, properties.build(), &some(&rows), 4000);
        let sources = Arc::new(open(&path).unwrap());
        assert_eq!(all_rows(sources.clone()), rows);
        // A block is entered at its page, whatever was read before.
        let mut texts = RowTexts::new(sources.clone());
        for i in (0..rows.len()).rev().step_by(97) {
            let (source, target) = texts.pair(i as u64).unwrap();
            assert_eq!(
                (source, target),
                (rows[i].0.as_str(), rows[i].1.as_str()),
                "row {i}, dictionary of {dictionary}"
            );
        }
        assert!(sources.facts().blocks > 10);
    }
}

#[test]
fn a_null_is_named_with_its_row() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let mut rows = some(&numbered(100, 50));
    rows[57].1 = None;
    write(&path, small_pages().build(), &rows, 40);
    let e = open_error(&path);
    assert!(e.ends_with("a.parquet`, row 57: expected a string in column `target`, found null"), "{e}");
}

#[test]
fn a_missing_column_and_one_of_another_type_are_named() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    write(&path, small_pages().build(), &some(&numbered(10, 50)), 40);
    let wanted = Columns { source: Some("text".into()), target: None };
    let e = Sources::open(std::slice::from_ref(&path), wanted).unwrap_err().to_string();
    assert!(e.ends_with("schema: expected the column `text`, found `source, target`"), "{e}");

    let schema = "message m { REQUIRED BYTE_ARRAY source (UTF8); REQUIRED INT64 target; }";
    let file = std::fs::OpenOptions::new().create(true).truncate(true).write(true).open(&path).unwrap();
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(file, schema, Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<ByteArrayType>().write_batch(&["a".into()], None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int64Type>().write_batch(&[1], None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    let e = open_error(&path);
    assert!(e.ends_with("expected a column of strings in `target`, found INT64"), "{e}");
}

#[test]
fn a_file_cut_at_any_byte_is_an_error_that_names_it() {
    let dir = tempdir().unwrap();
    let (path, cut) = (dir.path().join("a.parquet"), dir.path().join("cut.parquet"));
    let codec = Compression::SNAPPY;
    write(&path, small_pages().set_compression(codec).build(), &some(&numbered(60, 50)), 25);
    let whole = fs_err::read(&path).unwrap();
    for length in 0..whole.len() {
        fs_err::write(&cut, &whole[..length]).unwrap();
        let e = open_error(&cut);
        assert!(e.contains("cut.parquet`, ") && e.contains("not a readable Parquet file"), "{length}: {e}");
    }
}

#[test]
fn a_damaged_byte_gives_rows_or_an_error_and_never_a_panic() {
    let dir = tempdir().unwrap();
    let (path, damaged) = (dir.path().join("a.parquet"), dir.path().join("damaged.parquet"));
    write(&path, small_pages().set_compression(Compression::SNAPPY).build(), &some(&numbered(60, 50)), 25);
    let whole = fs_err::read(&path).unwrap();
    let mut refused = 0;
    for place in 0..whole.len() {
        for flip in [0x01, 0xff] {
            let mut bytes = whole.clone();
            bytes[place] ^= flip;
            fs_err::write(&damaged, bytes).unwrap();
            refused += u32::from(open(&damaged).is_err());
        }
    }
    assert!(refused > 100, "{refused}");
}
