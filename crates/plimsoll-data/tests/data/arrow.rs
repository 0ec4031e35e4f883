//! Arrow files and streams: what is read, and what is refused with its place.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, DictionaryArray, Int64Array, LargeStringArray, RecordBatch, StringArray, StringViewArray};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use plimsoll_data::*;
use proptest::prelude::*;
use tempfile::tempdir;

use crate::fixture::{numbered, open, open_error};
use crate::jsonl::all_rows;

type Rows = [(String, Option<String>)];

/// How a column of texts is stored.
#[derive(Clone, Copy, Debug)]
enum Texts {
    Utf8,
    Large,
    View,
    Coded,
}

fn column<'a>(texts: Texts, cells: impl Iterator<Item = Option<&'a str>>) -> ArrayRef {
    match texts {
        Texts::Utf8 => Arc::new(cells.collect::<StringArray>()),
        Texts::Large => Arc::new(cells.collect::<LargeStringArray>()),
        Texts::View => Arc::new(cells.collect::<StringViewArray>()),
        Texts::Coded => Arc::new(cells.collect::<DictionaryArray<Int32Type>>()),
    }
}

fn batch(texts: Texts, rows: &Rows) -> RecordBatch {
    let columns: [(&str, ArrayRef); 3] = [
        ("id", Arc::new((0..rows.len() as i64).collect::<Int64Array>())),
        ("source", column(texts, rows.iter().map(|(s, _)| Some(s.as_str())))),
        ("target", column(texts, rows.iter().map(|(_, t)| t.as_deref()))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
}

/// Writes batches by a name's ending: `.arrows` is a stream, all else a file.
fn write(path: &Path, codec: Option<CompressionType>, batches: &[RecordBatch]) {
    let options = IpcWriteOptions::default().try_with_compression(codec).unwrap();
    let (out, schema) = (Vec::new(), batches[0].schema());
    let bytes = if path.extension().is_some_and(|e| e == "arrows") {
        let mut writer = StreamWriter::try_new_with_options(out, &schema, options).unwrap();
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        writer.into_inner().unwrap()
    } else {
        let mut writer = FileWriter::try_new_with_options(out, &schema, options).unwrap();
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        writer.into_inner().unwrap()
    };
    fs_err::write(path, bytes).unwrap();
}

/// Pairs in batches of `each` rows.
pub fn write_pairs(path: &Path, rows: &[(String, String)], each: usize) {
    let batches: Vec<RecordBatch> = some(rows).chunks(each).map(|rows| batch(Texts::Utf8, rows)).collect();
    write(path, None, &batches);
}

fn some(rows: &[(String, String)]) -> Vec<(String, Option<String>)> {
    rows.iter().map(|(s, t)| (s.clone(), Some(t.clone()))).collect()
}

const CODECS: [Option<CompressionType>; 3] = [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)];
const ENDINGS: [&str; 2] = ["a.arrow", "a.arrows"];

#[test]
fn every_kind_of_text_codec_and_format_gives_the_same_rows_in_any_order() {
    let dir = tempdir().unwrap();
    let mut rows = numbered(3000, 50);
    rows[1234].0 = "höhe ".repeat(40_000);
    rows[77].1 = String::new();
    // A stretch that makes many blocks of one batch.
    rows[2000..2600].iter_mut().for_each(|row| row.1 = row.1.repeat(150));
    let whole = some(&rows);
    for texts in [Texts::Utf8, Texts::Large, Texts::View] {
        for codec in CODECS {
            for (ending, batches) in ENDINGS.into_iter().zip([&[700usize, 0, 1, 2299][..], &[3000]]) {
                let path = dir.path().join(ending);
                let mut at = 0;
                let batches: Vec<RecordBatch> = batches
                    .iter()
                    .map(|n| {
                        at += n;
                        batch(texts, &whole[at - n..at])
                    })
                    .collect();
                write(&path, codec, &batches);
                let sources = Arc::new(open(&path).unwrap());
                assert_eq!(sources.rows(), 3000);
                assert!(sources.facts().blocks >= 3, "{}", sources.facts().blocks);
                assert!(all_rows(sources.clone()) == rows, "{texts:?}, {codec:?}, {ending}");
                // Backwards, which begins packed buffers again.
                let mut texts = RowTexts::new(sources);
                for i in (0..3000).rev().step_by(97) {
                    assert_eq!(texts.pair(i as u64).unwrap(), (rows[i].0.as_str(), rows[i].1.as_str()));
                }
            }
        }
    }
}

#[test]
fn a_block_may_cross_batches_and_a_stream_of_many_small_ones_has_few_blocks() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.arrows");
    let rows = numbered(500, 50);
    let batches: Vec<RecordBatch> = some(&rows).chunks(1).map(|row| batch(Texts::Utf8, row)).collect();
    write(&path, None, &batches);
    let sources = open(&path).unwrap();
    assert_eq!(sources.facts().blocks, 1);
    assert_eq!(all_rows(Arc::new(sources)), rows);
}

#[test]
fn texts_by_dictionary_are_read_by_their_numbers() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.arrow");
    let rows: Vec<_> = (0..900).map(|i| (format!("long text {} ", i % 90).repeat(60), format!("{}", i % 3))).collect();
    for codec in CODECS {
        write(&path, codec, &[batch(Texts::Coded, &some(&rows))]);
        assert!(all_rows(Arc::new(open(&path).unwrap())) == rows, "{codec:?}");
    }
}

#[test]
fn a_null_is_named_with_its_row() {
    let dir = tempdir().unwrap();
    let mut rows = some(&numbered(100, 50));
    rows[57].1 = None;
    for texts in [Texts::Utf8, Texts::Large, Texts::View, Texts::Coded] {
        for codec in CODECS {
            for ending in ENDINGS {
                let path = dir.path().join(ending);
                // A file has one dictionary for all of its batches.
                let parts = if matches!(texts, Texts::Coded) { 100 } else { 40 };
                let batches: Vec<RecordBatch> = rows.chunks(parts).map(|rows| batch(texts, rows)).collect();
                write(&path, codec, &batches);
                let e = open_error(&path);
                let expected = format!("{ending}`, row 57: expected a string in column `target`, found null");
                assert!(e.ends_with(&expected), "{e}");
            }
        }
    }
}

#[test]
fn a_missing_column_one_of_another_type_and_one_that_is_there_twice_are_named() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.arrow");
    write(&path, None, &[batch(Texts::Utf8, &some(&numbered(3, 9)))]);
    let wanted = |source: &str, target: &str| Columns { source: Some(source.into()), target: Some(target.into()) };
    let refused = |path: &PathBuf, columns| Sources::open(std::slice::from_ref(path), columns).unwrap_err().to_string();
    let e = refused(&path, wanted("text", "target"));
    assert!(e.ends_with("a.arrow`, schema: expected the column `text`, found `id, source, target`"), "{e}");
    let e = refused(&path, wanted("source", "id"));
    assert!(e.ends_with("a.arrow`: expected a column of strings in `id`, found Int"), "{e}");
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
    let twice = [("source", texts.clone()), ("target", texts.clone()), ("source", texts)];
    write(&path, None, &[RecordBatch::try_from_iter(twice).unwrap()]);
    let e = refused(&path, Columns::default());
    assert!(e.ends_with("expected a column of strings in `source`, found two of that name"), "{e}");
}

#[test]
fn what_is_no_arrow_file_is_told_apart() {
    let dir = tempdir().unwrap();
    let refused = |name: &str, bytes: &[u8]| {
        fs_err::write(dir.path().join(name), bytes).unwrap();
        let e = open_error(&dir.path().join(name));
        assert!(e.contains(&format!("{name}`")), "{e}");
        e
    };
    assert!(
        refused("empty.arrow", b"").ends_with("start: not a readable Arrow file: expected a schema, found the end")
    );
    let e = refused("old.feather", b"FEA1 and more");
    assert!(e.contains("expected version 2 of Feather, found version 1"), "{e}");
    let e = refused("short.arrow", b"ARROW1\0\0");
    assert!(e.contains("expected a footer, found none"), "{e}");
    let e = refused("other.arrow", &[b'x'; 100]);
    assert!(e.contains("expected a description of at most"), "{e}");
    let e = refused("a.arrow.gz", b"");
    assert!(e.contains("is packed") && e.contains("`.gz`"), "{e}");

    let path = dir.path().join("a.arrows");
    write(&path, None, &[batch(Texts::Utf8, &some(&numbered(3, 9)))]);
    let stream = fs_err::read(&path).unwrap();
    let e = refused("two.arrows", &[&stream[..], &stream].concat());
    assert!(e.contains("expected the end of the file behind the end of the stream"), "{e}");
    // Without its end mark a stream is whole too.
    fs_err::write(&path, &stream[..stream.len() - 8]).unwrap();
    assert_eq!(open(&path).unwrap().rows(), 3);
}

#[test]
fn a_file_cut_at_any_byte_is_refused_and_a_stream_keeps_no_half_batch() {
    let dir = tempdir().unwrap();
    let rows = numbered(60, 50);
    for codec in [None, Some(CompressionType::LZ4_FRAME)] {
        let batches: Vec<RecordBatch> = some(&rows).chunks(25).map(|rows| batch(Texts::Utf8, rows)).collect();
        for ending in ENDINGS {
            let (path, cut) = (dir.path().join(ending), dir.path().join(format!("cut-{ending}")));
            write(&path, codec, &batches);
            let whole = fs_err::read(&path).unwrap();
            let mut opened = 0;
            for length in 0..whole.len() {
                fs_err::write(&cut, &whole[..length]).unwrap();
                match open(&cut) {
                    Ok(sources) => {
                        assert!(ending == "a.arrows" && [25, 50, 60].contains(&sources.rows()), "{length}");
                        assert_eq!(all_rows(Arc::new(sources)), rows[..rows.len().min(25 * (opened + 1))]);
                        opened += 1;
                    }
                    Err(e) => assert!(e.to_string().contains(&format!("cut-{ending}`")), "{length}: {e}"),
                }
            }
            // Behind each batch.
            assert_eq!(opened, if ending == "a.arrows" { 3 } else { 0 });
        }
    }
}

#[test]
fn a_file_that_changed_is_noticed() {
    let dir = tempdir().unwrap();
    let rows = some(&numbered(60, 50));
    for codec in CODECS {
        for ending in ENDINGS {
            let path = dir.path().join(ending);
            write(&path, codec, &[batch(Texts::Utf8, &rows)]);
            let whole = fs_err::read(&path).unwrap();
            let again = |bytes: &[u8]| {
                fs_err::write(&path, &whole).unwrap();
                let sources = Arc::new(open(&path).unwrap());
                fs_err::write(&path, bytes).unwrap();
                RowTexts::new(sources).pair(0).map(|_| ()).unwrap_err().to_string()
            };
            let e = again(&whole[..whole.len() - 1]);
            assert!(e.contains(ending) && e.contains("changed after it was opened: at row 0"), "{e}");
            assert!(again(&[&whole[..], b"x"].concat()).contains("changed after it was opened"));
            let e = again(&vec![0xff; whole.len()]);
            assert!(e.contains(&format!("{ending}`, row 0")), "{e}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bytes_give_rows_or_an_error_that_names_the_file(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..4),
        texts in prop::sample::select(vec![Texts::Utf8, Texts::Large, Texts::View, Texts::Coded]),
        codec in prop::sample::select(CODECS.to_vec()),
        ending in prop::sample::select(ENDINGS.to_vec()),
    ) {
        let dir = tempdir().unwrap();
        let path = dir.path().join(ending);
        write(&path, codec, &[batch(texts, &some(&numbered(40, 50)))]);
        let mut bytes = fs_err::read(&path).unwrap();
        for (at, flip) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
        }
        fs_err::write(&path, bytes).unwrap();
        match open(&path) {
            Ok(sources) => {
                let rows = sources.rows();
                prop_assert_eq!(all_rows(Arc::new(sources)).len() as u64, rows);
            }
            Err(e) => prop_assert!(e.to_string().contains(ending), "{}", e),
        }
    }
}
