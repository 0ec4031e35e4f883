//! JSONL: what is read, and what is refused with its place.

use std::sync::Arc;

use plimsoll_data::*;
use proptest::prelude::*;
use tempfile::tempdir;

use crate::fixture::{open, open_error};

fn error_of(content: &[u8]) -> String {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    fs_err::write(&path, content).unwrap();
    open_error(&path).replace(&format!("{}/", dir.path().display()), "")
}

fn rows_of(content: &[u8]) -> Vec<(String, String)> {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    fs_err::write(&path, content).unwrap();
    all_rows(Arc::new(open(&path).unwrap()))
}

pub fn all_rows(sources: Arc<Sources>) -> Vec<(String, String)> {
    let rows = sources.rows();
    let mut texts = RowTexts::new(sources);
    (0..rows).map(|i| texts.pair(i).map(|(s, t)| (s.to_string(), t.to_string())).unwrap()).collect()
}

fn pair(s: &str, t: &str) -> (String, String) {
    (s.into(), t.into())
}

#[test]
fn a_line_that_is_not_json_is_named_with_its_line() {
    let e = error_of(b"{\"source\":\"a\",\"target\":\"b\"}\n\n{\"source\":\"a\",\"target\":b}\n");
    assert_eq!(
        e,
        "`a.jsonl`, line 3: expected a JSON object, found text that is not JSON: expected value at column 24"
    );
}

#[test]
fn a_missing_column_is_named_with_those_that_are_there() {
    let e = error_of(b"{\"source\":\"a\",\"target\":\"b\"}\n{\"source\":\"a\",\"id\":1}\n");
    assert_eq!(e, "`a.jsonl`, line 2: expected the column `target`, found `source, id`");
    let e = error_of(b"{\"x\":\"a\",\"y\":\"b\"}\n");
    assert!(e.contains("cannot guess") && e.contains("`x, y`"), "{e}");
}

#[test]
fn other_values_and_other_lines_are_named() {
    let e = error_of(b"{\"source\":\"a\",\"target\":3}\n");
    assert_eq!(e, "`a.jsonl`, line 1: expected a string in column `target`, found a number");
    let e = error_of(b"{\"source\":\"a\",\"target\":\"b\"}\n[1]\n");
    assert_eq!(e, "`a.jsonl`, line 2: expected a JSON object, found an array");
    let e = error_of(b"[{\"source\":\"a\",\"target\":\"b\"}]\n");
    assert_eq!(e, "`a.jsonl`, line 1: expected a JSON object, found an array");
    let e = error_of(b"{\"source\":\"a\",\"target\":\"b\",\"source\":\"c\"}\n");
    assert_eq!(e, "`a.jsonl`, line 1: expected the key `source` once, found it twice");
    let e = error_of(b"{\"source\":\"\xff\",\"target\":\"b\"}\n");
    assert!(e.contains("line 1") && e.contains("not JSON"), "{e}");
}

#[test]
fn an_empty_file_and_one_of_blank_lines_have_no_rows() {
    for content in [&b""[..], b"\n\r\n  \n", b"\xef\xbb\xbf"] {
        let e = error_of(content);
        assert_eq!(e, "no rows in 1 file(s), the first is `a.jsonl`");
    }
}

#[test]
fn crlf_bom_unicode_blank_lines_and_a_last_line_without_newline_are_read() {
    let content = "\u{feff}{\"source\":\"naïve 日本\",\"target\":\"\\ud83d\\ude00\\n\"}\r\n\r\n   \n{\"target\":\"\",\"source\":\"😀\"}";
    assert_eq!(rows_of(content.as_bytes()), [pair("naïve 日本", "😀\n"), pair("😀", "")]);
}

#[test]
fn a_line_over_the_limit_is_refused_loudly() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let file = fs_err::File::create(&path).unwrap();
    file.set_len(MAX_ROW_BYTES as u64 + 10).unwrap();
    let e = open_error(&path);
    assert!(e.contains("line 1: expected at most 67108864 bytes"), "{e}");
}

#[test]
fn a_file_that_changes_under_the_run_is_an_error() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let line = "{\"source\":\"a\",\"target\":\"b\"}\n";
    fs_err::write(&path, line.repeat(3)).unwrap();
    let sources = Arc::new(open(&path).unwrap());
    fs_err::write(&path, line.repeat(2)).unwrap();
    let e = RowTexts::new(sources.clone()).pair(0).unwrap_err().to_string();
    assert!(e.contains("changed after it was opened") && e.contains("84 bytes"), "{e}");
    fs_err::write(&path, line.replace("\"b\"", "333").repeat(3)).unwrap();
    let e = RowTexts::new(sources).pair(0).unwrap_err().to_string();
    assert!(e.contains("changed after it was opened"), "{e}");
}

#[test]
fn patterns_find_files_in_order_and_say_when_they_find_none() {
    let dir = tempdir().unwrap();
    for (name, text) in [("b.jsonl", "2"), ("a.jsonl", "1"), ("c.ndjson", "3")] {
        let line = format!("{{\"source\":\"{text}\",\"target\":\"t\"}}\n");
        fs_err::write(dir.path().join(name), line).unwrap();
    }
    let sources =
        Sources::open(&[dir.path().join("*.jsonl"), dir.path().join("c.ndjson")], Columns::default()).unwrap();
    assert!(sources.columns().guessed);
    let firsts: Vec<String> = all_rows(Arc::new(sources)).into_iter().map(|(s, _)| s).collect();
    assert_eq!(firsts, ["1", "2", "3"]);
    let none = Sources::open(&[dir.path().join("*.parquet")], Columns::default());
    assert!(matches!(none, Err(DataError::NoFiles { .. })));
    for (name, part) in [
        ("x.jsonl.gz", "no folder"),
        ("x.parquet.gz", "is packed"),
        ("x.csv.xz", "is packed"),
        ("x.xlsx", "unknown extension"),
        ("x.jsonl", "x.jsonl"),
    ] {
        let e = open_error(&dir.path().join(name));
        assert!(e.contains(part), "{e}");
    }
}

/// Text with everything that could trip a line index: newlines, quotes, long and short, many scripts.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-z \"\\\\\n\r\t]{0,40}",
        2 => any::<String>(),
        1 => (0usize..9000).prop_map(|n| "lång ".repeat(n / 5)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_row_of_any_file_is_found_at_its_place(
        rows in prop::collection::vec((text(), text(), 0usize..4, any::<bool>()), 1..120),
        last_newline in any::<bool>(),
    ) {
        let mut content = String::new();
        for (source, target, blanks, crlf) in &rows {
            content += &serde_json::json!({"source": source, "target": target, "n": [1, {"source": 2}]}).to_string();
            content += if *crlf { "\r\n" } else { "\n" };
            content += &["\n", "  \r\n", "\t\n"][..*blanks % 4].concat();
        }
        if !last_newline {
            let end = content.trim_end().len();
            content.truncate(end);
        }
        let got = rows_of(content.as_bytes());
        let expected: Vec<_> = rows.into_iter().map(|(s, t, ..)| (s, t)).collect();
        prop_assert_eq!(got, expected);
    }

    #[test]
    fn any_bytes_give_rows_or_an_error_and_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let dir = tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        fs_err::write(&path, &bytes).unwrap();
        let _ = open(&path);
    }
}
