//! Parquet as pyarrow writes it. Skipped where there is no Python with pyarrow.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use plimsoll_data::*;
use tempfile::tempdir;

use crate::jsonl::all_rows;

const SCRIPT: &str = r#"
import json, sys
import pyarrow as pa, pyarrow.parquet as pq
out = sys.argv[1]
rows = [{"prompt": f"question {i} " + "é" * (i % 50), "response": f"label {i % 7}"} for i in range(5000)]
rows[17]["prompt"] = "long " * 300000
rows[18]["response"] = ""
with open(out + "/rows.jsonl", "w", encoding="utf-8") as f:
    for r in rows:
        f.write(json.dumps(r, ensure_ascii=False) + "\n")
kinds = {"string": pa.string(), "large": pa.large_string(), "dict": pa.dictionary(pa.int32(), pa.string())}
for name, kind in kinds.items():
    table = pa.table({"id": list(range(5000)),
                      "tags": [[str(i)] for i in range(5000)],
                      "prompt": pa.array([r["prompt"] for r in rows]).cast(kind),
                      "response": pa.array([r["response"] for r in rows]).cast(kind)})
    for codec in ["none", "snappy", "zstd", "gzip", "lz4"]:
        for version in ["1.0", "2.0"]:
            for use_dict in [True, False]:
                pq.write_table(table, f"{out}/{name}-{codec}-{version}-{use_dict}.parquet", compression=codec,
                               data_page_version=version, use_dictionary=use_dict, row_group_size=1500,
                               data_page_size=4096, write_page_index=(codec == "zstd"))
pq.write_table(table, f"{out}/delta.parquet", use_dictionary=False,
               column_encoding={"prompt": "DELTA_BYTE_ARRAY", "response": "DELTA_LENGTH_BYTE_ARRAY"})
"#;

#[test]
fn files_written_by_pyarrow_give_the_rows_that_went_in() {
    let python = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    if !python.exists() {
        println!("skipped: no Python at .venv (scripts/test makes it)");
        return;
    }
    if !Command::new(&python).args(["-c", "import pyarrow"]).output().is_ok_and(|o| o.status.success()) {
        println!("skipped: the Python at .venv has no pyarrow");
        return;
    }
    let dir = tempdir().unwrap();
    let done = Command::new(&python).args(["-c", SCRIPT]).arg(dir.path()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let open = |path: PathBuf| Sources::open(&[path], Columns::default()).unwrap();
    let expected = all_rows(Arc::new(open(dir.path().join("rows.jsonl"))));
    let mut files = 0;
    for entry in fs_err::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "parquet") {
            let sources = open(path.clone());
            assert_eq!(sources.columns().source, "prompt");
            assert!(all_rows(Arc::new(sources)) == expected, "{}", path.display());
            files += 1;
        }
    }
    assert_eq!(files, 61);
}
