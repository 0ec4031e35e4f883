//! CSV, TSV and plain text: the same rows as JSONL has, and what is refused with its place.

use std::sync::Arc;

use plimsoll_data::*;
use proptest::prelude::*;
use tempfile::tempdir;

use crate::fixture::{Batch, Owned, jsonl, numbered, open, open_error, settings, words_tokenizer};
use crate::jsonl::all_rows;
use plimsoll_plan::batch::BatchShape;

fn error_of(name: &str, content: &[u8]) -> String {
    let dir = tempdir().unwrap();
    let path = dir.path().join(name);
    fs_err::write(&path, content).unwrap();
    open_error(&path).replace(&format!("{}/", dir.path().display()), "")
}

/// A cell, quoted where it must be or `always`.
fn cell(text: &str, delimiter: char, always: bool) -> String {
    match always || text.contains([delimiter, '"', '\n', '\r']) || text.is_empty() {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_string(),
    }
}

fn written(rows: &[(String, String)], delimiter: char, end: &str, always: bool) -> String {
    let line =
        |a: &str, b: &str| format!("{}{delimiter}{}{end}", cell(a, delimiter, always), cell(b, delimiter, always));
    let head = format!("id{delimiter}source{delimiter}target{end}");
    head + &rows.iter().map(|(s, t)| format!("7{delimiter}{}", line(s, t))).collect::<String>()
}

#[test]
fn a_broken_record_is_named_with_the_line_at_which_it_begins() {
    let e = error_of("a.csv", b"source,target\n\"two\nlines\",b\n\nalone\n");
    assert_eq!(e, "`a.csv`, line 5: expected 2 cells, as the header has, found 1");
    let e = error_of("a.csv", b"source,target\r\na,b\r\n\r\nalone\r\nc,d\r\n");
    assert_eq!(e, "`a.csv`, line 4: expected 2 cells, as the header has, found 1");
    let e = error_of("a.csv", b"source,target\na,b\nc,\"never closed\n");
    assert_eq!(e, "`a.csv`, line 3: expected the quotes of this record to be closed, found the end of the file");
    let e = error_of("a.tsv", b"source\ttarget\na\t\xff\n");
    assert_eq!(e, "`a.tsv`, line 2, column `target`: expected UTF-8, found other bytes");
    let e = error_of("a.csv", b"source,\xff\na,b\n");
    assert_eq!(e, "`a.csv`, line 1: expected UTF-8, found other bytes");
    let e = error_of("a.csv", b"source,target,source\na,b,c\n");
    assert_eq!(e, "`a.csv`, line 2: expected the key `source` once, found it twice");
    let e = error_of("a.csv", b"x,y\na,b\n");
    assert!(e.contains("cannot guess") && e.contains("`x, y`"), "{e}");
}

#[test]
fn files_without_rows_say_so() {
    for content in [&b""[..], b"source,target\n", b"\xef\xbb\xbfsource,target\r\n\r\n\n"] {
        assert_eq!(error_of("a.csv", content), "no rows in 1 file(s), the first is `a.csv`");
    }
}

#[test]
fn files_of_one_data_set_may_have_their_columns_in_any_order() {
    let dir = tempdir().unwrap();
    fs_err::write(dir.path().join("1.csv"), "source,target\na,b\n").unwrap();
    fs_err::write(dir.path().join("2.tsv"), "target\tmore\tsource\nd\t-\tc\n").unwrap();
    fs_err::write(dir.path().join("3.jsonl"), "{\"target\":\"f\",\"source\":\"e\"}\n").unwrap();
    let sources = Sources::open(&[dir.path().join("[0-9].*")], Columns::default()).unwrap();
    let want = [("a", "b"), ("c", "d"), ("e", "f")].map(|(s, t)| (s.to_string(), t.to_string()));
    assert_eq!(all_rows(Arc::new(sources)), want);
}

#[test]
fn a_file_that_changed_is_refused_and_a_row_is_found_again_by_its_line() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.csv");
    fs_err::write(&path, "source,target\n\"1\n\",b\nc,d\n").unwrap();
    let sources = Arc::new(open(&path).unwrap());
    fs_err::write(&path, "source,target\n\"1\n\",b\nc d\n").unwrap();
    let e = RowTexts::new(sources).pair(1).unwrap_err().to_string();
    assert!(e.contains("changed after it was opened") && e.contains("expected a row as it was"), "{e}");
}

#[test]
fn a_line_of_plain_text_is_a_text() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.txt");
    fs_err::write(&path, "\u{feff}first, \"line\"\r\n\n  \nnaïve 日本\nlast").unwrap();
    let sources = Sources::open_kind(std::slice::from_ref(&path), Kind::Text, Columns::default()).unwrap();
    assert_eq!(sources.columns().source, "text");
    let texts: Vec<String> = all_rows(Arc::new(sources)).into_iter().map(|(text, _)| text).collect();
    assert_eq!(texts, ["first, \"line\"", "naïve 日本", "last"]);
    let e = Sources::open_kind(std::slice::from_ref(&path), Kind::Pairs, Columns::default()).unwrap_err().to_string();
    assert!(e.contains("cannot guess") && e.contains("`text`"), "{e}");
    fs_err::write(&path, b"good\n\xffbad\n").unwrap();
    let e = Sources::open_kind(std::slice::from_ref(&path), Kind::Text, Columns::default()).unwrap_err().to_string();
    assert!(e.ends_with("line 2: expected UTF-8, found other bytes"), "{e}");
}

#[test]
fn batches_are_those_of_the_same_rows_in_jsonl() {
    let dir = tempdir().unwrap();
    let tokenizer = words_tokenizer(dir.path(), 50);
    let rows = numbered(300, 50);
    let shape = BatchShape { samples: 7, source_len: 8, target_len: 8, documents: 1 };
    let batches = |name: &str, threads: usize| -> Vec<Batch> {
        let sources = Arc::new(open(&dir.path().join(name)).unwrap());
        let settings = settings(shape, threads, 2, Cursor::default());
        let mut loader =
            Loader::start(sources, Order::new(5, true), tokenizer.clone(), Recipe::default(), settings).unwrap();
        let mut owned = Owned::new(shape);
        (0..60)
            .map(|_| {
                let facts = loader.next(owned.slot()).unwrap();
                owned.batch(facts)
            })
            .collect()
    };
    jsonl(&dir.path().join("a.jsonl"), &rows);
    fs_err::write(dir.path().join("a.csv"), written(&rows, ',', "\n", false)).unwrap();
    fs_err::write(dir.path().join("a.tsv"), written(&rows, '\t', "\r\n", true)).unwrap();
    let want = batches("a.jsonl", 1);
    for (name, threads) in [("a.csv", 1), ("a.csv", 7), ("a.tsv", 2)] {
        assert!(batches(name, threads) == want, "{name} with {threads} threads");
    }
}

fn any_text() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        prop_oneof![Just('"'), Just(','), Just('\n'), Just('\r'), Just('\t'), Just('é'), Just('x')],
        0..6,
    )
    .prop_map(|chars| chars.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever cells hold, they come back; block by block as well as in one go.
    #[test]
    fn what_was_written_is_read(rows in proptest::collection::vec((any_text(), any_text()), 1..40), tab: bool, crlf: bool, always: bool) {
        let dir = tempdir().unwrap();
        let (name, delimiter) = if tab { ("a.tsv", '\t') } else { ("a.csv", ',') };
        let path = dir.path().join(name);
        fs_err::write(&path, written(&rows, delimiter, if crlf { "\r\n" } else { "\n" }, always)).unwrap();
        prop_assert_eq!(all_rows(Arc::new(open(&path).unwrap())), rows);
    }

    /// A file with any bytes in it is read or refused, and what was accepted can be read again.
    #[test]
    fn mutated_files_are_read_or_refused(cut in 0usize..200, at in 0usize..200, byte: u8, twice: bool) {
        let dir = tempdir().unwrap();
        let mut bytes = written(&numbered(12, 9), ',', "\n", twice).into_bytes();
        let len = bytes.len();
        bytes[at % len] = byte;
        bytes.truncate(len - cut % len);
        for name in ["a.csv", "a.tsv"] {
            let path = dir.path().join(name);
            fs_err::write(&path, &bytes).unwrap();
            if let Ok(sources) = open(&path) {
                let rows = sources.rows();
                prop_assert_eq!(all_rows(Arc::new(sources)).len() as u64, rows);
            }
        }
        let path = dir.path().join("a.txt");
        fs_err::write(&path, &bytes).unwrap();
        if let Ok(sources) = Sources::open_kind(&[path], Kind::Text, Columns::default()) {
            let rows = sources.rows();
            prop_assert_eq!(all_rows(Arc::new(sources)).len() as u64, rows);
        }
    }
}
