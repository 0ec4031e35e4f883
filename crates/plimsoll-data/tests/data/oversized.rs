//! Rows and pages that are too large: refused with their place, or left out and counted, in every format.

use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use plimsoll_data::*;
use tempfile::tempdir;

use crate::jsonl::all_rows;

const LIMIT: usize = 100_000;
const PAIRS: &str = "message m { REQUIRED BYTE_ARRAY source (UTF8); REQUIRED BYTE_ARRAY target (UTF8); }";

fn open(path: &Path, largest: Largest) -> Result<Arc<Sources>, DataError> {
    let opening = Opening { largest, ..Opening::default() };
    Sources::open_with(&[path.into()], Kind::Pairs, Columns::default(), opening).map(Arc::new)
}

fn skipping() -> Largest {
    Largest { row: LIMIT, page: u64::MAX, skip: true }
}

fn rows() -> Vec<(String, String)> {
    let mut rows: Vec<_> = (0..400).map(|n| (format!("row {n} {}", "x ".repeat(n)), format!("answer {n}"))).collect();
    // At the beginning, in the middle, two behind each other, at the end; one of exactly the limit is not too large.
    for (n, bytes) in [(0, LIMIT + 1), (7, 3 * LIMIT), (200, LIMIT * 2), (201, LIMIT * 2), (399, LIMIT + 7)] {
        rows[n].0 = "longer ".repeat(bytes.div_ceil(7));
    }
    rows
}

fn kept(rows: &[(String, String)]) -> Vec<(String, String)> {
    rows.iter().filter(|(source, _)| !source.starts_with("longer")).cloned().collect()
}

#[test]
fn long_rows_are_left_out_and_counted_or_named() {
    let dir = tempdir().unwrap();
    let rows = rows();
    let json = |(s, t): &(String, String)| serde_json::json!({"source": s, "target": t}).to_string() + "\n";
    // Line ends inside of quotes, also of those that are left out.
    let quoted = |text: &str| format!("\"{}\"", text.replace(' ', "\n").replace('"', "\"\""));
    let csv = |(s, t): &(String, String)| format!("{},{}\n", quoted(s), quoted(t));
    let files = [
        ("a.jsonl", rows.iter().map(json).collect::<String>()),
        ("b.jsonl", rows.iter().map(json).collect::<String>().trim_end().to_string()),
        ("c.csv", format!("source,target\n{}", rows.iter().map(csv).collect::<String>())),
    ];
    for (name, text) in files {
        let path = dir.path().join(name);
        fs_err::write(&path, text).unwrap();
        let sources = open(&path, skipping()).unwrap();
        let want: Vec<_> = match name.ends_with("csv") {
            true => kept(&rows).into_iter().map(|(s, t)| (s.replace(' ', "\n"), t.replace(' ', "\n"))).collect(),
            false => kept(&rows),
        };
        assert_eq!((sources.facts().oversized, sources.rows()), (5, 395), "{name}");
        assert!(all_rows(sources) == want, "{name}");
        let e = open(&path, Largest { skip: false, ..skipping() }).unwrap_err().to_string();
        let place = if name.ends_with("csv") { "line 2" } else { "line 1" };
        assert!(e.contains(&format!("{name}`, {place}: expected at most 100000 bytes, found more")), "{e}");
        assert!(e.contains("data.oversized"), "{e}");
    }
}

fn write_parquet(path: &Path, rows: &[(String, String)], page: usize) {
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_data_page_size_limit(page)
        .set_write_batch_size(4)
        .build();
    let schema = Arc::new(parse_message_type(PAIRS).unwrap());
    let file = std::fs::OpenOptions::new().create(true).truncate(true).write(true).open(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    for rows in rows.chunks(250) {
        let mut group = writer.next_row_group().unwrap();
        for which in 0..2 {
            let cell = |(s, t): &(String, String)| ByteArray::from(if which == 0 { s.as_str() } else { t.as_str() });
            let cells: Vec<ByteArray> = rows.iter().map(cell).collect();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&cells, None, None).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
}

#[test]
fn long_rows_and_large_pages_of_parquet_are_left_out_or_named() {
    let dir = tempdir().unwrap();
    let (path, rows) = (dir.path().join("a.parquet"), rows());
    write_parquet(&path, &rows, 5000);
    let sources = open(&path, skipping()).unwrap();
    assert_eq!((sources.facts().oversized, sources.rows()), (5, 395));
    assert!(all_rows(sources) == kept(&rows));

    // By pages: with each long row go the others of its page, which are few, and nothing else.
    let pages = Largest { row: MAX_ROW_BYTES, page: 50_000, skip: true };
    let sources = open(&path, pages).unwrap();
    let left = sources.facts().oversized;
    assert!((5..=20).contains(&left), "{left}");
    assert!(sources.facts().source_pages.largest_page <= 50_000, "none was unpacked");
    let found = all_rows(sources);
    assert_eq!(found.len() as u64, 400 - left);
    assert!(found.iter().all(|row| rows.contains(row)) && kept(&found) == found);
    let e = open(&path, Largest { skip: false, ..pages }).unwrap_err().to_string();
    assert!(
        e.contains("a.parquet`, row 0: expected pages of at most 50000 bytes in column `source`, found one of"),
        "{e}"
    );
    assert!(e.contains("data.memory") && e.contains("data.oversized"), "{e}");
}

#[test]
fn nothing_but_long_rows_is_no_data() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let row = serde_json::json!({"source": "x".repeat(2 * LIMIT), "target": "y"}).to_string() + "\n";
    fs_err::write(&path, row.repeat(3)).unwrap();
    assert!(open(&path, skipping()).is_err());
}
