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
