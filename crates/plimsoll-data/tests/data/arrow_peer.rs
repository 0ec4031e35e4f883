//! Arrow files and streams as pyarrow writes them. Skipped where there is no Python with pyarrow.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use plimsoll_data::*;
use tempfile::tempdir;

use crate::fixture::{CHAT_ROWS, python};
use crate::jsonl::all_rows;

/// Runs a script; where there is nothing to run it with, why.
fn run(script: &str, dir: &Path) -> Result<(), String> {
    let python = python("pyarrow")?;
    let done = Command::new(&python).args(["-c", script]).arg(dir).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

const PAIRS: &str = r#"
import decimal, json, sys
import pyarrow as pa, pyarrow.ipc as ipc, pyarrow.feather as feather
out = sys.argv[1]
n = 5000
rows = [{"prompt": f"question {i} " + "é" * (i % 50), "response": f"label {i % 7}"} for i in range(n)]
rows[17]["prompt"] = "long " * 300000
rows[18]["response"] = ""
with open(out + "/rows.jsonl", "w", encoding="utf-8") as f:
    for r in rows:
        f.write(json.dumps(r, ensure_ascii=False) + "\n")
# Columns of every layout before the wanted ones: their nodes and buffers must be passed over.
odd = {
    "number": pa.array(range(n)), "truth": pa.array([i % 2 == 0 for i in range(n)]), "none": pa.nulls(n),
    "fixed": pa.array([b"abcd"] * n, pa.binary(4)), "views": pa.array(["some text longer than twelve"] * n, pa.string_view()),
    "half": pa.array([i if i % 3 else None for i in range(n)]), "list": pa.array([[str(i)] * (i % 3) for i in range(n)]),
    "large": pa.array([[i] for i in range(n)], pa.large_list(pa.int32())), "three": pa.array([[1, 2, 3]] * n, pa.list_(pa.int8(), 3)),
    "list view": pa.array([[1], [2]] * (n // 2), pa.list_view(pa.int8())),
    "struct": pa.array([{"a": 1, "b": "x", "c": ["y"]}] * n), "map": pa.array([[("k", 1)]] * n, pa.map_(pa.string(), pa.int32())),
    "sparse": pa.UnionArray.from_sparse(pa.array([0] * n, pa.int8()), [pa.array(range(n))]),
    "dense": pa.UnionArray.from_dense(pa.array([0] * n, pa.int8()), pa.array(range(n), pa.int32()), [pa.array(range(n))]),
    "ends": pa.RunEndEncodedArray.from_arrays(pa.array([n], pa.int32()), pa.array(["r"])),
    "decimal": pa.array([decimal.Decimal(1)] * n), "coded": pa.array(["a", "b"] * (n // 2)).dictionary_encode(),
    "time": pa.array([0] * n, pa.timestamp("us")), "duration": pa.array([0] * n, pa.duration("s")),
}
kinds = {"string": pa.string(), "large": pa.large_string(), "view": pa.string_view(),
         "dict8": pa.dictionary(pa.int8(), pa.string()), "dict16": pa.dictionary(pa.uint16(), pa.string()),
         "dict32": pa.dictionary(pa.int32(), pa.large_string()), "dict64": pa.dictionary(pa.int64(), pa.string())}
def column(key, kind):
    values = pa.array([r[key] for r in rows])
    if not pa.types.is_dictionary(kind):
        return values.cast(kind)
    coded = values.dictionary_encode()
    if key == "prompt" and kind.index_type == pa.int8():
        return values
    return pa.DictionaryArray.from_arrays(coded.indices.cast(kind.index_type), coded.dictionary.cast(kind.value_type))
def write(name, table, chunk, **how):
    options = ipc.IpcWriteOptions(**how)
    with ipc.new_file(f"{out}/{name}.arrow", table.schema, options=options) as w:
        w.write_table(table, max_chunksize=chunk)
    with ipc.new_stream(f"{out}/{name}.arrows", table.schema, options=options) as w:
        w.write_table(table, max_chunksize=chunk)
for name, kind in kinds.items():
    table = pa.table({**odd, "prompt": column("prompt", kind), "response": column("response", kind), "behind": range(n)})
    for codec in [None, "lz4", "zstd"]:
        for chunk in [700, n]:
            write(f"{name}-{codec}-{chunk}", table, chunk, compression=codec)
plain = pa.table({"prompt": column("prompt", pa.string()), "response": column("response", pa.string())})
write("old-framing", plain, 900, use_legacy_format=True, metadata_version=ipc.MetadataVersion.V4)
write("zstd-19", plain, n, compression=pa.Codec("zstd", compression_level=19))
# Slices share buffers with what is left out, and chunks that are empty.
front = pa.table({"prompt": ["no"] * 9, "response": ["no"] * 9})
write("sliced", pa.concat_tables([front, plain.slice(0, 3000), front.slice(0, 0), plain.slice(3000)]).slice(9), 4999)
with ipc.new_stream(f"{out}/empty-batches.arrow", plain.schema) as w:
    nothing = plain.slice(0, 0).to_batches() or [pa.record_batch([pa.array([], f.type) for f in plain.schema], schema=plain.schema)]
    for at in range(0, n, 50):
        w.write_batch(nothing[0])
        w.write_table(plain.slice(at, 50))
    w.write_batch(nothing[0])
for codec in ["lz4", "zstd", "uncompressed"]:
    feather.write_feather(plain, f"{out}/{codec}.feather", compression=codec, chunksize=1100)
# A dictionary that grows, and one that is replaced, in a stream.
for name, deltas in [("deltas", True), ("replaced", False)]:
    kind = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([("prompt", kind), ("response", kind)])
    options = ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
    with ipc.new_stream(f"{out}/{name}.arrows", schema, options=options) as w:
        prompts, responses = [], []
        for at in range(0, n, 1000):
            part = rows[at:at + 1000]
            prompts = (prompts if deltas else []) + [r["prompt"] for r in part]
            first = len(prompts) - len(part)
            labels = [r["response"] for r in part]
            responses = responses + sorted(set(labels) - set(responses)) if deltas else sorted(set(labels))
            w.write_batch(pa.record_batch([
                pa.DictionaryArray.from_arrays(pa.array(range(first, first + len(part)), pa.int32()), pa.array(prompts)),
                pa.DictionaryArray.from_arrays(pa.array([responses.index(l) for l in labels], pa.int32()), pa.array(responses))], schema=schema))
"#;

#[test]
fn files_and_streams_written_by_pyarrow_give_the_rows_that_went_in() {
    let dir = tempdir().unwrap();
    if let Err(why) = run(PAIRS, dir.path()) {
        return println!("skipped: {why}");
    }
    let open = |path: &Path| Sources::open(&[path.to_path_buf()], Columns::default());
    let expected = all_rows(Arc::new(open(&dir.path().join("rows.jsonl")).unwrap()));
    let mut files = 0;
    for entry in fs_err::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e != "jsonl") {
            let sources = open(&path).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((sources.columns().source.as_str(), sources.rows()), ("prompt", 5000));
            assert!(all_rows(Arc::new(sources)) == expected, "{}", path.display());
            files += 1;
        }
    }
    assert_eq!(files, 7 * 3 * 2 * 2 + 2 * 3 + 1 + 3 + 2);
}

const CHATS: &str = r#"
import pyarrow as pa, pyarrow.ipc as ipc
def write(name, columns, codec=None, chunk=300):
    table, options = pa.table(columns), ipc.IpcWriteOptions(compression=codec)
    with ipc.new_file(f"{out}/{name}.feather", table.schema, options=options) as w:
        w.write_table(table, max_chunksize=chunk)
    with ipc.new_stream(f"{out}/{name}.arrow", table.schema, options=options) as w:
        w.write_table(table, max_chunksize=chunk)
share = [[{"value": m["content"], "weight": 1, "from": names[m["role"]]} for m in r] for r in rows]
plain = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
large = pa.large_list(pa.struct([("role", pa.large_string()), ("x", pa.int8()), ("content", pa.string_view())]))
coded = pa.list_(pa.struct([("role", pa.dictionary(pa.int8(), pa.string())), ("content", pa.string())]))
lists = pa.struct([("role", pa.list_(pa.string())), ("content", pa.list_(pa.string()))])
for codec in [None, "lz4", "zstd"]:
    write(f"messages-{codec}", {"id": range(700), "messages": rows}, codec)
    write(f"share-{codec}", {"conversations": share, "id": range(700)}, codec)
    write(f"json-{codec}", {"messages": [json.dumps(r) for r in rows]}, codec)
    write(f"large-{codec}", {"messages": pa.array(rows, large)}, codec)
    write(f"coded-{codec}", {"messages": pa.array(rows, coded)}, codec)
    as_lists = [{k: [m[k] for m in r] for k in ["role", "content"]} for r in rows]
    write(f"lists-{codec}", {"messages": pa.array(as_lists, lists)}, codec)
good = rows[0]
write("bad-empty", {"messages": pa.array([good, [], rows[1]], plain)})
write("bad-none", {"messages": pa.array([good, None], plain)})
write("bad-null", {"messages": pa.array([good, [good[0], {"role": "user", "content": None}]], plain)})
write("bad-item", {"messages": pa.array([good, [good[0], None]], plain)})
write("bad-role", {"messages": pa.array([good, [{"role": "wizard", "content": "x"}]], plain)})
write("bad-type", {"messages": pa.array([[1]], pa.list_(pa.int32()))})
write("bad-uneven", {"messages": pa.array([{"role": ["user"], "content": []}], lists)})
write("alpaca", {"instruction": ["a", "b"], "input": ["c", None], "output": ["d", "e"]})
"#;

#[test]
fn chats_written_by_pyarrow_are_those_of_the_json_lines() {
    let dir = tempdir().unwrap();
    if let Err(why) = run(&format!("{CHAT_ROWS}{CHATS}"), dir.path()) {
        return println!("skipped: {why}");
    }
    let open = |name: &str| Sources::open_kind(&[dir.path().join(name)], Kind::Chat, Columns::default());
    let expected = all_rows(Arc::new(open("rows.jsonl").unwrap()));
    for name in ["messages", "share", "json", "large", "coded", "lists"] {
        for codec in ["None", "lz4", "zstd"] {
            for ending in ["arrow", "feather"] {
                let name = format!("{name}-{codec}.{ending}");
                let sources = open(&name).unwrap_or_else(|e| panic!("{e}"));
                assert!(all_rows(Arc::new(sources)) == expected, "{name}");
            }
        }
    }
    for ending in ["arrow", "feather"] {
        let refused = |name: &str, why: &str| {
            let e = open(&format!("bad-{name}.{ending}")).unwrap_err().to_string();
            assert!(e.contains(&format!("bad-{name}.{ending}`")) && e.ends_with(why), "{e}");
        };
        refused("empty", "row 1 of column `messages`: expected at least one message, found none");
        refused("none", "row 1 of column `messages`: expected at least one message, found none");
        refused("null", "row 1, message 2 of column `messages`: expected a string as its content, found null");
        refused("item", "row 1, message 2 of column `messages`: expected a string as its role, found null");
        refused("role", "(system, developer, user, assistant, tool), found `wizard`");
        refused("uneven", "row 0 of column `messages`: expected as many roles as contents, found 1 and 0");
        refused(
            "type",
            "expected a column of strings in `messages`, found List without lists of texts `role` and `content`",
        );
        let rows = all_rows(Arc::new(open(&format!("alpaca.{ending}")).unwrap()));
        assert_eq!(rows[0].0, r#"[{"role":"user","content":"a\n\nc"},{"role":"assistant","content":"d"}]"#);
        assert_eq!(rows[1].0, r#"[{"role":"user","content":"b"},{"role":"assistant","content":"e"}]"#);
    }
}
