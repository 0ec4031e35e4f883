//! Parquet as pyarrow writes it. Skipped where there is no Python with pyarrow.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use plimsoll_data::*;
use tempfile::tempdir;

use crate::fixture::{CHAT_ROWS, python};
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
    let python = match python("pyarrow") {
        Ok(python) => python,
        Err(why) => return println!("skipped: {why}"),
    };
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

const CHATS: &str = r#"
import pyarrow as pa, pyarrow.parquet as pq
share = [[{"value": m["content"], "weight": 1, "from": names[m["role"]]} for m in r] for r in rows]
with open(out + "/share.jsonl", "w") as f:
    for r in share:
        f.write(json.dumps({"conversations": r}) + "\n")
for version in ["1.0", "2.0"]:
    for codec in ["none", "zstd"]:
        how = dict(compression=codec, data_page_version=version, row_group_size=300, data_page_size=4096)
        name = f"{codec}-{version}"
        pq.write_table(pa.table({"id": list(range(700)), "messages": rows}), f"{out}/messages-{name}.parquet", **how)
        pq.write_table(pa.table({"conversations": share}), f"{out}/share-{name}.parquet", use_dictionary=False, **how)
        pq.write_table(pa.table({"messages": [json.dumps(r) for r in rows]}), f"{out}/json-{name}.parquet", **how)
empty = pa.array([rows[0], [], rows[1]], type=pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])))
null = pa.array([rows[0], [rows[0][0], {"role": "user", "content": None}]], type=empty.type)
none = pa.array([rows[0], None], type=empty.type)
for name, table in [("empty", empty), ("null", null), ("none", none)]:
    pq.write_table(pa.table({"messages": table}), f"{out}/bad-{name}.parquet")
pq.write_table(pa.table({"instruction": ["a", "b"], "input": ["c", None], "output": ["d", "e"]}), f"{out}/alpaca.parquet")
"#;

#[test]
fn chats_written_by_pyarrow_are_those_of_the_json_lines() {
    let python = match python("pyarrow") {
        Ok(python) => python,
        Err(why) => return println!("skipped: {why}"),
    };
    let dir = tempdir().unwrap();
    let done = Command::new(&python).args(["-c", &format!("{CHAT_ROWS}{CHATS}")]).arg(dir.path()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let open = |name: &str| Sources::open_kind(&[dir.path().join(name)], Kind::Chat, Columns::default());
    let expected = all_rows(Arc::new(open("rows.jsonl").unwrap()));
    assert_eq!(expected.len(), 700);
    assert!(all_rows(Arc::new(open("share.jsonl").unwrap())) == expected);
    for name in ["messages", "share", "json"] {
        for how in ["none-1.0", "none-2.0", "zstd-1.0", "zstd-2.0"] {
            let sources = open(&format!("{name}-{how}.parquet")).unwrap();
            assert!(all_rows(Arc::new(sources)) == expected, "{name}, {how}");
        }
    }
    let refused = |name: &str| open(name).unwrap_err().to_string();
    let e = refused("bad-empty.parquet");
    assert!(e.ends_with("row 1 of column `messages`: expected at least one message, found none"), "{e}");
    let e = refused("bad-none.parquet");
    assert!(e.ends_with("row 1 of column `messages`: expected at least one message, found none"), "{e}");
    let e = refused("bad-null.parquet");
    assert!(e.ends_with("row 1, message 2 of column `messages`: expected a string as its content, found null"), "{e}");
    let rows = all_rows(Arc::new(open("alpaca.parquet").unwrap()));
    assert_eq!(rows[0].0, r#"[{"role":"user","content":"a\n\nc"},{"role":"assistant","content":"d"}]"#);
    assert_eq!(rows[1].0, r#"[{"role":"user","content":"b"},{"role":"assistant","content":"e"}]"#);
}
