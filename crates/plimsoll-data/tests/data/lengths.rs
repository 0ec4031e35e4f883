//! Default lengths.

use plimsoll_data::*;
use tempfile::tempdir;

use crate::fixture::*;

fn lengths(rows: &[(String, String)], sample: usize) -> Lengths {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    jsonl(&path, rows);
    suggest_lengths(&open(&path).unwrap(), &words_tokenizer(dir.path(), 20), sample).unwrap()
}

fn row(source: usize, target: usize) -> (String, String) {
    ("w1 ".repeat(source), "w2 ".repeat(target))
}

#[test]
fn the_longest_row_is_rounded_up_to_eight() {
    let got = lengths(&[row(3, 1), row(7, 8), row(1, 1)], SAMPLE_ROWS);
    assert_eq!(got, Lengths { source: 8, target: 16, sampled: 3, truncated: 0 });
}

#[test]
fn lengths_stop_at_512_and_say_what_is_cut() {
    let got = lengths(&[row(511, 1), row(512, 1), row(5000, 600)], SAMPLE_ROWS);
    assert_eq!(got, Lengths { source: 512, target: 512, sampled: 3, truncated: 2 });
}

#[test]
fn a_sample_is_spread_over_the_file() {
    let mut rows = vec![row(2, 2); 30_000];
    rows.extend(vec![row(30, 2); 30_000]);
    let got = lengths(&rows, 200);
    assert_eq!(got.source, 32);
    assert!((150..=300).contains(&got.sampled), "{got:?}");
}
