//! Packed files: the same batches as unpacked ones, unpacked once, and what is refused.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use plimsoll_data::*;
use plimsoll_plan::batch::BatchShape;
use tempfile::tempdir;

use crate::fixture::{Batch, Owned, numbered, settings, words_tokenizer};
use crate::jsonl::all_rows;

pub fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn lines(rows: &[(String, String)]) -> Vec<u8> {
    let line = |(s, t): &(String, String)| serde_json::json!({"source": s, "target": t}).to_string() + "\n";
    rows.iter().map(line).collect::<String>().into_bytes()
}

fn open_in(path: &Path, folder: &Path) -> Result<Sources, DataError> {
    Sources::open_in(&[path.to_path_buf()], Kind::Pairs, Columns::default(), Some(folder))
}

/// Rows enough for several frames.
fn many() -> Vec<(String, String)> {
    let mut rows = numbered(6000, 50);
    rows.iter_mut().for_each(|(_, target)| *target = format!("{target} {}", "w1 ".repeat(40)));
    rows
}

#[test]
fn batches_are_those_of_the_unpacked_file_from_any_cursor_and_with_any_threads() {
    let dir = tempdir().unwrap();
    let (folder, tokenizer) = (dir.path().join("cache"), words_tokenizer(dir.path(), 50));
    let bytes = lines(&many());
    fs_err::write(dir.path().join("a.jsonl"), &bytes).unwrap();
    fs_err::write(dir.path().join("a.jsonl.gz"), gz(&bytes)).unwrap();
    fs_err::write(dir.path().join("a.jsonl.zst"), zstd::encode_all(&bytes[..], 3).unwrap()).unwrap();
    let shape = BatchShape { samples: 16, source_len: 8, target_len: 48, documents: 1 };
    let batches = |name: &str, threads: usize, cursor: Cursor| -> Vec<Batch> {
        let sources = Arc::new(open_in(&dir.path().join(name), &folder).unwrap());
        let settings = settings(shape, threads, 2, cursor);
        // In the order of the file: how it is cut into blocks depends on its length as it is stored.
        let order = Order::new(5, false);
        let mut loader = Loader::start(sources, order, tokenizer.clone(), Recipe::default(), settings).unwrap();
        let mut owned = Owned::new(shape);
        (0..380)
            .map(|_| {
                let facts = loader.next(owned.slot()).unwrap();
                owned.batch(facts)
            })
            .collect()
    };
    for cursor in [Cursor::default(), Cursor { epoch: 1, position: 4321, ..Cursor::default() }] {
        let want = batches("a.jsonl", 1, cursor);
        for (name, threads) in [("a.jsonl.gz", 1), ("a.jsonl.gz", 7), ("a.jsonl.zst", 2)] {
            assert!(batches(name, threads, cursor) == want, "{name} with {threads} threads at {cursor:?}");
        }
    }
}

#[test]
fn every_row_of_a_shuffled_pass_is_there_once() {
    let dir = tempdir().unwrap();
    let (path, rows) = (dir.path().join("a.csv.gz"), many());
    let text: String = rows.iter().map(|(s, t)| format!("{s},{t}\n")).collect();
    fs_err::write(&path, gz(("source,target\n".to_string() + &text).as_bytes())).unwrap();
    let sources = Arc::new(open_in(&path, dir.path()).unwrap());
    assert!(sources.unpacked_bytes() > 0 && sources.rows() == rows.len() as u64);
    let mut found = all_rows(sources);
    let mut want = rows;
    found.sort();
    want.sort();
    assert!(found == want);
}

#[test]
fn a_file_is_unpacked_once_and_again_when_it_changed() {
    let dir = tempdir().unwrap();
    let (path, folder) = (dir.path().join("a.jsonl.gz"), dir.path().join("cache"));
    let count = || fs_err::read_dir(&folder).unwrap().count();
    fs_err::write(&path, gz(&lines(&numbered(10, 9)))).unwrap();
    for _ in 0..3 {
        assert_eq!(open_in(&path, &folder).unwrap().rows(), 10);
        assert_eq!(count(), 1);
    }
    let sources = Arc::new(open_in(&path, &folder).unwrap());
    fs_err::write(&path, gz(&lines(&numbered(20, 9)))).unwrap();
    let e = RowTexts::new(sources).pair(0).unwrap_err().to_string();
    assert!(e.contains("changed after it was opened"), "{e}");
    assert_eq!(open_in(&path, &folder).unwrap().rows(), 20);
    assert_eq!(count(), 1, "what belonged to the earlier version is gone");
    fs_err::write(dir.path().join("b.jsonl.gz"), gz(&lines(&numbered(5, 9)))).unwrap();
    assert_eq!(open_in(&dir.path().join("b.jsonl.gz"), &folder).unwrap().rows(), 5);
    assert_eq!(count(), 2);
}

#[test]
fn broken_packing_is_named_and_leaves_nothing_behind() {
    let dir = tempdir().unwrap();
    let folder = dir.path().join("cache");
    let bytes = lines(&many());
    let cut = |packed: Vec<u8>| packed[..packed.len() * 2 / 3].to_vec();
    let cases = [
        ("a.jsonl.gz", cut(gz(&bytes))),
        ("a.jsonl.zst", cut(zstd::encode_all(&bytes[..], 3).unwrap())),
        ("b.jsonl.gz", bytes.clone()),
        ("b.jsonl.zst", bytes.clone()),
    ];
    for (name, content) in cases {
        let path = dir.path().join(name);
        fs_err::write(&path, content).unwrap();
        let e = open_in(&path, &folder).unwrap_err().to_string();
        assert!(e.contains(name) && e.contains("line ") && e.contains("cannot be unpacked"), "{e}");
        assert_eq!(fs_err::read_dir(&folder).unwrap().count(), 0, "{name}");
    }
    let path = dir.path().join("c.jsonl.gz");
    fs_err::write(&path, gz(b"{\"source\":\"a\",\"target\":\"b\"}\nnot json\n")).unwrap();
    let e = open_in(&path, &folder).unwrap_err().to_string();
    assert!(e.contains("line 2") && e.contains("not JSON"), "{e}");
    assert_eq!(fs_err::read_dir(&folder).unwrap().count(), 0);
}

/// As seekable and parallel writers make them.
fn many_frames(bytes: &[u8], frame: usize) -> Vec<u8> {
    let mut out = vec![0x5e, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
    for (number, piece) in bytes.chunks(frame).enumerate() {
        let mut packer = zstd::bulk::Compressor::new(3).unwrap();
        packer.set_parameter(zstd::zstd_safe::CParameter::ChecksumFlag(number % 2 == 0)).unwrap();
        out.extend(packer.compress(piece).unwrap());
    }
    // A table for those who know it.
    out.extend([0x5e, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 9, 9, 9, 9]);
    out
}

#[test]
fn a_file_of_many_frames_is_read_where_it_lies() {
    let dir = tempdir().unwrap();
    let (path, rows) = (dir.path().join("a.jsonl.zst"), many());
    let bytes = lines(&rows);
    for frame in [200, 5_000, 100_000, 700_000, 3 << 20] {
        fs_err::write(&path, many_frames(&bytes, frame)).unwrap();
        // No folder is needed.
        let sources = Sources::open(std::slice::from_ref(&path), Columns::default()).unwrap();
        assert_eq!((sources.rows(), sources.unpacked_bytes()), (6000, 0), "{frame}");
        let sources = Arc::new(sources);
        assert!(all_rows(sources.clone()) == rows, "{frame}");
        // In any order.
        let mut texts = RowTexts::new(sources);
        for row in (0..6000).rev().step_by(611) {
            assert_eq!(texts.pair(row).unwrap().0, rows[row as usize].0);
        }
    }
    // A byte of a frame that is not what it was.
    let mut damaged = many_frames(&bytes, 5_000);
    let at = damaged.len() / 2;
    damaged[at] ^= 0x55;
    fs_err::write(&path, damaged).unwrap();
    let folder = dir.path().join("cache");
    match open_in(&path, &folder) {
        Ok(sources) => assert!(all_rows(Arc::new(sources)) != rows),
        Err(e) => assert!(e.to_string().contains("a.jsonl.zst"), "{e}"),
    }
}

#[test]
fn frames_that_are_long_or_do_not_say_how_long_are_packed_anew() {
    let dir = tempdir().unwrap();
    let (path, folder) = (dir.path().join("a.jsonl.zst"), dir.path().join("cache"));
    let bytes = lines(&many());
    let unsaid = zstd::encode_all(&bytes[..], 3).unwrap();
    let long = zstd::bulk::compress(&bytes.repeat(5), 1).unwrap();
    for (packed, rows) in [(unsaid, 6000), (long, 30_000)] {
        fs_err::write(&path, packed).unwrap();
        let sources = open_in(&path, &folder).unwrap();
        assert_eq!(sources.rows(), rows);
        assert!(sources.unpacked_bytes() > 0);
    }
    let e = Sources::open(&[path], Columns::default()).unwrap_err().to_string();
    assert!(e.contains("a.jsonl.zst"), "{e}");
}

#[test]
fn a_packed_file_can_be_read_in_its_own_order_without_a_copy() {
    let dir = tempdir().unwrap();
    let tokenizer = words_tokenizer(dir.path(), 50);
    let (rows, shape) = (many(), BatchShape { samples: 16, source_len: 8, target_len: 48, documents: 1 });
    let bytes = lines(&rows);
    let opening = Opening { in_order: true, ..Opening::default() };
    for (name, packed) in [("a.jsonl.gz", gz(&bytes)), ("a.jsonl.zst", zstd::encode_all(&bytes[..], 3).unwrap())] {
        let path = dir.path().join(name);
        fs_err::write(&path, packed).unwrap();
        let sources =
            Sources::open_with(std::slice::from_ref(&path), Kind::Pairs, Columns::default(), opening).unwrap();
        let sources = Arc::new(sources);
        assert_eq!(sources.unpacked_bytes(), 0);
        assert!(all_rows(sources.clone()) == rows, "{name}");
        // A resume, and the pass behind it.
        let mut texts = RowTexts::new(sources.clone());
        for row in [4000, 4001, 5999, 0, 77] {
            assert_eq!(texts.pair(row).unwrap().0, rows[row as usize].0, "{name}");
        }
        let start = |shuffle: bool| {
            let settings = settings(shape, 2, 2, Cursor::default());
            Loader::start(sources.clone(), Order::new(5, shuffle), tokenizer.clone(), Recipe::default(), settings)
        };
        assert!(start(false).is_ok());
        let e = start(true).err().unwrap().to_string();
        assert!(e.contains(name) && e.contains("data.unpack") && e.contains("data.shuffle"), "{e}");
    }
}
