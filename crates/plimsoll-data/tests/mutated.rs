//! Damaged files of every format: they give rows or an error that names the file, never a panic, and take memory in proportion to
//! what they are.
//!
//! Allocations are counted for each thread by itself; opening and reading rows in file order starts none.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use arrow_array::builder::{ListBuilder, StringBuilder, StringViewBuilder, StructBuilder};
use arrow_array::types::Int8Type;
use arrow_array::{ArrayRef, DictionaryArray, RecordBatch, StringArray};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field};
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use plimsoll_data::*;
use proptest::prelude::*;
use proptest::sample::Index;
use thread_heap::{LIVE, PEAK, SHORT_PANICS};

mod thread_heap;

/// Most heap of opening and reading a file of so many bytes: buffers of the readers, unpacked data, and what the headers of pages of
/// Parquet and of frames of lz4 can announce.
fn bound(name: &str, bytes: usize) -> i64 {
    let tables = [".parquet", ".arrow", ".arrows", ".feather"];
    let announced = if tables.iter().any(|ending| name.ends_with(ending)) { 48 << 20 } else { 0 };
    (4 << 20) + announced + 256 * bytes as i64
}

/// One format: a whole file of it.
struct Sample {
    name: &'static str,
    kind: Kind,
    bytes: Vec<u8>,
}

fn pairs() -> Vec<(String, String)> {
    (0..40).map(|i| (format!("question {i} é {}", "x".repeat(i % 13)), format!("answer {}", i % 7))).collect()
}

fn parquet(codec: Compression, dictionary: bool) -> Vec<u8> {
    let schema = "message m { REQUIRED BYTE_ARRAY prompt (UTF8); REQUIRED BYTE_ARRAY response (UTF8); }";
    let properties = WriterProperties::builder()
        .set_compression(codec)
        .set_dictionary_enabled(dictionary)
        .set_data_page_size_limit(300)
        .set_write_batch_size(8)
        .build();
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
    for rows in pairs().chunks(25) {
        let mut group = writer.next_row_group().unwrap();
        let columns: [Vec<ByteArray>; 2] =
            [rows.iter().map(|r| r.0.as_str().into()).collect(), rows.iter().map(|r| r.1.as_str().into()).collect()];
        for values in columns {
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.into_inner().unwrap()
}

fn arrow(batch: &RecordBatch, codec: Option<CompressionType>, stream: bool) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(codec).unwrap();
    let half = batch.num_rows() / 2;
    let parts = [batch.slice(0, half), batch.slice(half, batch.num_rows() - half)];
    if stream {
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
        parts.iter().for_each(|part| writer.write(part).unwrap());
        writer.into_inner().unwrap()
    } else {
        let mut writer = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
        parts.iter().for_each(|part| writer.write(part).unwrap());
        writer.into_inner().unwrap()
    }
}

fn texts() -> RecordBatch {
    let cells = |which: fn(&(String, String)) -> &str| -> ArrayRef {
        Arc::new(pairs().iter().map(|row| Some(which(row))).collect::<StringArray>())
    };
    RecordBatch::try_from_iter([("prompt", cells(|row| &row.0)), ("response", cells(|row| &row.1))]).unwrap()
}

fn views_and_codes() -> RecordBatch {
    let mut views = StringViewBuilder::new();
    pairs().iter().for_each(|row| views.append_value(&row.0));
    let codes = pairs().iter().map(|row| Some(row.1.as_str())).collect::<DictionaryArray<Int8Type>>();
    let columns: [(&str, ArrayRef); 2] = [("prompt", Arc::new(views.finish())), ("response", Arc::new(codes))];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn chats() -> RecordBatch {
    let fields = ["role", "content"].map(|name| Field::new(name, DataType::Utf8, true)).to_vec();
    let mut lists = ListBuilder::new(StructBuilder::from_fields(fields, 4));
    for (question, answer) in pairs() {
        for (role, content) in [("user", question), ("assistant", answer)] {
            let message = lists.values();
            message.field_builder::<StringBuilder>(0).unwrap().append_value(role);
            message.field_builder::<StringBuilder>(1).unwrap().append_value(content);
            message.append(true);
        }
        lists.append(true);
    }
    let lists: ArrayRef = Arc::new(lists.finish());
    RecordBatch::try_from_iter([("messages", lists)]).unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

static SAMPLES: LazyLock<Vec<Sample>> = LazyLock::new(|| {
    let json = |(p, r): (String, String)| serde_json::json!({"prompt": p, "response": r}).to_string() + "\n";
    let talk = |(p, r): (String, String)| {
        let messages = [Message::new("user", &p), Message::new("assistant", &r)];
        serde_json::json!({"messages": messages}).to_string() + "\n"
    };
    let jsonl: String = pairs().into_iter().map(json).collect();
    let record = |between: &str| -> String {
        let rows = pairs().into_iter().map(|(p, r)| format!("\"{p}\"\"\n\"{between}{r}\n"));
        format!("prompt{between}response\n") + &rows.collect::<String>()
    };
    let lines: String = pairs().into_iter().map(|(p, _)| p + "\r\n").collect();
    let lz4 = Some(CompressionType::LZ4_FRAME);
    let zstd = Some(CompressionType::ZSTD);
    let samples = [
        ("a.jsonl", Kind::Pairs, jsonl.clone().into_bytes()),
        ("chat.jsonl", Kind::Chat, pairs().into_iter().map(talk).collect::<String>().into_bytes()),
        ("a.csv", Kind::Pairs, record(",").into_bytes()),
        ("a.tsv", Kind::Pairs, record("\t").into_bytes()),
        ("a.txt", Kind::Text, lines.clone().into_bytes()),
        ("a.jsonl.gz", Kind::Pairs, gzip(jsonl.as_bytes())),
        ("a.csv.zst", Kind::Pairs, zstd::encode_all(record(",").as_bytes(), 1).unwrap()),
        ("frames.csv.zst", Kind::Pairs, many_frames(record(",").as_bytes())),
        ("a.txt.gz", Kind::Text, gzip(lines.as_bytes())),
        ("plain.parquet", Kind::Pairs, parquet(Compression::UNCOMPRESSED, false)),
        ("dictionary.parquet", Kind::Pairs, parquet(Compression::SNAPPY, true)),
        ("zstd.parquet", Kind::Pairs, parquet(Compression::ZSTD(ZstdLevel::default()), false)),
        ("lz4.parquet", Kind::Pairs, parquet(Compression::LZ4_RAW, false)),
        ("gzip.parquet", Kind::Pairs, parquet(Compression::GZIP(Default::default()), true)),
        ("a.arrow", Kind::Pairs, arrow(&texts(), None, false)),
        ("a.arrows", Kind::Pairs, arrow(&texts(), None, true)),
        ("lz4.feather", Kind::Pairs, arrow(&texts(), lz4, false)),
        ("zstd.arrow", Kind::Pairs, arrow(&texts(), zstd, true)),
        ("views.arrow", Kind::Pairs, arrow(&views_and_codes(), None, false)),
        ("views.arrows", Kind::Pairs, arrow(&views_and_codes(), zstd, true)),
        ("chat.arrow", Kind::Chat, arrow(&chats(), None, true)),
        ("chat.feather", Kind::Chat, arrow(&chats(), lz4, false)),
    ];
    samples.map(|(name, kind, bytes)| Sample { name, kind, bytes }).into()
});

/// Opens `bytes` as a file called `name`, reads every row, and gives their number or what was said.
fn read_all(dir: &Path, name: &str, kind: Kind, bytes: &[u8]) -> Result<u64, DataError> {
    let path = dir.join(name);
    fs_err::write(&path, bytes).unwrap();
    let cache = dir.join("cache");
    fs_err::create_dir_all(&cache).unwrap();
    LazyLock::force(&SHORT_PANICS);
    let before = LIVE.get();
    PEAK.set(before);
    let work = || -> Result<u64, DataError> {
        let sources = Arc::new(Sources::open_in(std::slice::from_ref(&path), kind, Columns::default(), Some(&cache))?);
        let rows = sources.rows();
        let mut texts = RowTexts::new(sources);
        for row in 0..rows {
            texts.pair(row)?;
        }
        Ok(rows)
    };
    let read = catch_unwind(AssertUnwindSafe(work));
    let used = PEAK.get() - before;
    fs_err::remove_dir_all(&cache).unwrap();
    assert!(read.is_ok(), "{name}: a panic escaped");
    assert!(used <= bound(name, bytes.len()), "{name}: {used} bytes of heap for a file of {}", bytes.len());
    let read = read.unwrap_or(Ok(0));
    if let Err(e) = &read {
        assert!(e.to_string().contains(&*path.to_string_lossy()), "`{e}` does not name the file");
    }
    read
}

/// One thing that happens to a file.
#[derive(Clone, Debug)]
enum Harm {
    Flip(Index, u8),
    Write(Index, Vec<u8>),
    Cut(Index),
    Remove(Index, usize),
    Insert(Index, Vec<u8>),
    Duplicate(Index, usize),
    Swap(Index, Index, usize),
}

impl Harm {
    fn any() -> impl Strategy<Value = Harm> {
        let at = any::<Index>;
        let bytes = || prop_oneof![prop::collection::vec(any::<u8>(), 1..9), Just(vec![0xff; 8]), Just(vec![0; 8])];
        prop_oneof![
            4 => (at(), 1u8..).prop_map(|(at, flip)| Harm::Flip(at, flip)),
            3 => (at(), bytes()).prop_map(|(at, bytes)| Harm::Write(at, bytes)),
            1 => at().prop_map(Harm::Cut),
            1 => (at(), 1usize..200).prop_map(|(at, n)| Harm::Remove(at, n)),
            1 => (at(), bytes()).prop_map(|(at, bytes)| Harm::Insert(at, bytes)),
            1 => (at(), 1usize..500).prop_map(|(at, n)| Harm::Duplicate(at, n)),
            1 => (at(), at(), 1usize..100).prop_map(|(a, b, n)| Harm::Swap(a, b, n)),
        ]
    }

    fn hit(self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let end = |at: usize, n: usize, bytes: &[u8]| (at + n).min(bytes.len());
        match self {
            Harm::Flip(at, flip) => {
                let at = at.index(bytes.len());
                bytes[at] ^= flip;
            }
            Harm::Write(at, new) => {
                let at = at.index(bytes.len());
                let end = end(at, new.len(), bytes);
                bytes[at..end].copy_from_slice(&new[..end - at]);
            }
            Harm::Cut(at) => bytes.truncate(at.index(bytes.len())),
            Harm::Remove(at, n) => {
                let at = at.index(bytes.len());
                bytes.drain(at..end(at, n, bytes));
            }
            Harm::Insert(at, new) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, new);
            }
            Harm::Duplicate(at, n) => {
                let at = at.index(bytes.len());
                let twice = bytes[at..end(at, n, bytes)].to_vec();
                bytes.splice(at..at, twice);
            }
            Harm::Swap(a, b, n) => {
                let (a, b) = (a.index(bytes.len()), b.index(bytes.len()));
                let n = n.min(bytes.len() - a.max(b));
                for i in 0..n {
                    bytes.swap(a + i, b + i);
                }
            }
        }
    }
}

fn survives(names: &[&str], harms: Vec<Harm>) {
    let dir = tempfile::tempdir().unwrap();
    for sample in SAMPLES.iter().filter(|sample| names.iter().any(|name| sample.name.ends_with(name))) {
        let mut bytes = sample.bytes.clone();
        harms.iter().cloned().for_each(|harm| harm.hit(&mut bytes));
        // What was said is checked there.
        let _ = read_all(dir.path(), sample.name, sample.kind, &bytes);
    }
}

/// The files of a small prepared set, by name.
static PREPARED: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let vocab: serde_json::Map<_, _> = ["<pad>", "</s>", "<unk>", "a", "b"]
        .iter()
        .zip(0..)
        .map(|(token, id)| (token.to_string(), id.into()))
        .collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}
    });
    let (file, rows) = (dir.path().join("tokenizer.json"), dir.path().join("a.jsonl"));
    fs_err::write(&file, tokenizer.to_string()).unwrap();
    fs_err::write(&rows, "{\"prompt\":\"a b a\",\"response\":\"b\"}\n".repeat(5000)).unwrap();
    let tokenizer = TextTokenizer::load(&file, 5, 1, 0).unwrap();
    let sources = Sources::open(&[rows], Columns::default()).unwrap();
    let settings = PrepareSettings { lengths: [8, 8], threads: 1, shard_bytes: 40_000, on_thread_start: None };
    let folder = dir.path().join("prepared");
    prepare(&sources, &tokenizer, &Recipe::pairs(), &settings, &folder, &mut |_| ()).unwrap();
    let file = |path: PathBuf| (path.file_name().unwrap().to_string_lossy().into_owned(), fs_err::read(&path).unwrap());
    fs_err::read_dir(&folder).unwrap().map(|entry| file(entry.unwrap().path())).collect()
});

/// Reads all of a prepared set of which the files named `*ending` were harmed.
fn prepared_survives(ending: &str, harms: Vec<Harm>) {
    LazyLock::force(&PREPARED);
    let dir = tempfile::tempdir().unwrap();
    let (mut total, mut harmed) = (0i64, false);
    for (name, bytes) in PREPARED.iter() {
        let mut bytes = bytes.clone();
        if name.ends_with(ending) {
            let whole = bytes.clone();
            harms.iter().cloned().for_each(|harm| harm.hit(&mut bytes));
            harmed |= bytes != whole;
        }
        total += bytes.len() as i64;
        fs_err::write(dir.path().join(name), bytes).unwrap();
    }
    LazyLock::force(&SHORT_PANICS);
    let before = LIVE.get();
    PEAK.set(before);
    let read = catch_unwind(AssertUnwindSafe(|| verify_prepared(dir.path(), u64::MAX, &mut |_| ())));
    let used = PEAK.get() - before;
    assert!(used <= (1 << 20) + 8 * total, "{used} bytes of heap for {total}");
    match read.expect("a panic escaped") {
        Ok(found) => assert!(found.rows == 5000 && (!harmed || ending == ".json"), "{ending}: harm that nobody saw"),
        Err(e) => assert!(e.to_string().contains(&*dir.path().to_string_lossy()), "`{e}` does not name the folder"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_prepared_data_give_an_error(harms in prop::collection::vec(Harm::any(), 1..4)) {
        prepared_survives("00001.tokens", harms.clone());
        // A manifest may differ in its blanks.
        prepared_survives(".json", harms);
    }

    #[test]
    fn damaged_text_gives_rows_or_an_error(harms in prop::collection::vec(Harm::any(), 1..4)) {
        survives(&[".jsonl", ".csv", ".tsv", ".txt"], harms);
    }

    #[test]
    fn damaged_packed_text_gives_rows_or_an_error(harms in prop::collection::vec(Harm::any(), 1..4)) {
        survives(&[".gz", ".zst"], harms);
    }

    #[test]
    fn damaged_parquet_gives_rows_or_an_error(harms in prop::collection::vec(Harm::any(), 1..4)) {
        survives(&[".parquet"], harms);
    }

    #[test]
    fn damaged_arrow_gives_rows_or_an_error(harms in prop::collection::vec(Harm::any(), 1..4)) {
        survives(&[".arrow", ".arrows", ".feather"], harms);
    }
}

#[test]
fn whole_samples_give_all_rows() {
    let dir = tempfile::tempdir().unwrap();
    for sample in SAMPLES.iter() {
        let rows = read_all(dir.path(), sample.name, sample.kind, &sample.bytes);
        assert_eq!(rows.unwrap(), 40, "{}", sample.name);
    }
}

/// What is said of `bytes`.
fn refused(name: &str, kind: Kind, bytes: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    read_all(dir.path(), name, kind, bytes).unwrap_err().to_string()
}

#[test]
fn a_page_that_announces_two_gigabytes_takes_no_room_for_them() {
    for sample in SAMPLES.iter().filter(|s| s.name.ends_with(".parquet") && s.name != "plain.parquet") {
        // Behind the magic, a header: its type, then what the page unpacks to.
        let mut bytes = sample.bytes.clone();
        assert_eq!((&bytes[..5], bytes[6]), (&b"PAR1\x15"[..], 0x15), "{}", sample.name);
        let length = bytes[7..].iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        bytes.splice(7..7 + length, [0xfe, 0xff, 0xff, 0xff, 0x0f]);
        let e = refused(sample.name, sample.kind, &bytes);
        assert!(e.contains("expected a page of at most 16777216 bytes when unpacked, found one of 2147483647"), "{e}");
    }
}

#[test]
fn a_dictionary_that_announces_more_values_than_bytes_takes_no_room_for_them() {
    let sample = SAMPLES.iter().find(|s| s.name == "dictionary.parquet").unwrap();
    let number = |at: usize| sample.bytes[at..].iter().position(|byte| byte & 0x80 == 0).unwrap() + at + 1;
    // Sizes unpacked and stored, then the header of a dictionary page, whose first field is the number of its values.
    let header = number(number(7) + 1);
    let header = if sample.bytes[header] == 0x15 { number(header + 1) } else { header };
    assert_eq!((sample.bytes[5], sample.bytes[header + 1]), (0x04, 0x15));
    let mut bytes = sample.bytes.clone();
    bytes.splice(header + 2..number(header + 2), [0xfe, 0xff, 0xff, 0xff, 0x0f]);
    let e = refused(sample.name, sample.kind, &bytes);
    assert!(e.contains("values, found one of 2147483647"), "{e}");
}

#[test]
fn text_that_is_empty_cut_or_marked_is_read_or_named() {
    let dir = tempfile::tempdir().unwrap();
    let read = |name: &str, kind: Kind, bytes: &[u8]| read_all(dir.path(), name, kind, bytes);
    let (pairs, text) = (Kind::Pairs, Kind::Text);
    let row = "{\"prompt\":\"a\",\"response\":\"b\"}";
    let bom = "\u{feff}";
    for name in ["a.jsonl", "a.csv", "a.txt"] {
        let kind = if name == "a.txt" { text } else { pairs };
        for nothing in ["", "\n\r\n", bom] {
            assert!(refused(name, kind, nothing.as_bytes()).contains("no rows"), "{name}: {nothing:?}");
        }
    }
    assert_eq!(read("a.jsonl", pairs, format!("{bom}{row}\r\n\r\n{row}").as_bytes()).unwrap(), 2);
    assert_eq!(read("a.csv", pairs, format!("{bom}prompt,response\r\n1,2\r\n\r\n3,4").as_bytes()).unwrap(), 2);
    assert_eq!(read("a.txt", text, format!("{bom}one\r\n\r\ntwo").as_bytes()).unwrap(), 2);

    let said = |name: &str, kind: Kind, bytes: &[u8], why: &str| {
        let e = refused(name, kind, bytes);
        assert!(e.contains(why), "{e}");
    };
    said("a.jsonl", pairs, format!("{row}\n{}", &row[..20]).as_bytes(), "a.jsonl`, line 2");
    said("a.jsonl", pairs, b"{\"prompt\":\"\xff\",\"response\":\"b\"}", "a.jsonl`, line 1");
    said("a.csv", pairs, b"prompt,response\n1,2\n1,\"2", "a.csv`, line 3");
    said("a.csv", pairs, b"prompt,response\n1,2\n\xff,2\n", "a.csv`, line 3");
    said("a.tsv", pairs, b"prompt\tresponse\n1\t2\n1\n", "a.tsv`, line 3: expected 2 cells");
    said("a.txt", text, b"one\ntwo\n\xff\xfe\n", "a.txt`, line 3");
    let packed = gzip(format!("{row}\n").repeat(50).as_bytes());
    said("a.jsonl.gz", pairs, &packed[..packed.len() - 9], "a.jsonl.gz`");
    said("a.jsonl.gz", pairs, b"", "a.jsonl.gz`");
    said("a.jsonl.zst", pairs, row.as_bytes(), "a.jsonl.zst`");
}

#[test]
fn files_with_other_columns_or_types_than_the_first_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let first = dir.path().join("first.jsonl");
    fs_err::write(&first, "{\"prompt\":\"a\",\"response\":\"b\"}\n").unwrap();
    let number: ArrayRef = Arc::new(arrow_array::Int64Array::from(vec![1]));
    let word: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
    let other = |columns: [(&str, ArrayRef); 2]| arrow(&RecordBatch::try_from_iter(columns).unwrap(), None, true);
    let cases: [(&str, Vec<u8>, &str); 6] = [
        ("a.jsonl", b"{\"text\":\"a\"}".to_vec(), "a.jsonl`, line 1: expected the column `prompt`, found `text`"),
        (
            "b.jsonl",
            b"{\"prompt\":1,\"response\":\"b\"}".to_vec(),
            "b.jsonl`, line 1: expected a string in column `prompt`",
        ),
        (
            "a.csv",
            b"prompt,answer\n1,2\n".to_vec(),
            "a.csv`, line 2: expected the column `response`, found `prompt, answer`",
        ),
        ("a.txt", b"one\n".to_vec(), "a.txt`, line 1: expected the column `prompt`, found `text`"),
        (
            "a.arrow",
            other([("prompt", word.clone()), ("label", word.clone())]),
            "a.arrow`, schema: expected the column `response`, found `prompt, label`",
        ),
        (
            "b.arrow",
            other([("prompt", word), ("response", number)]),
            "b.arrow`: expected a column of strings in `response`, found Int",
        ),
    ];
    for (name, bytes, why) in cases {
        let second = dir.path().join(name);
        fs_err::write(&second, bytes).unwrap();
        let e = Sources::open(&[first.clone(), second], Columns::default()).unwrap_err().to_string();
        assert!(e.contains(why), "{e}");
    }
}

#[test]
fn a_file_that_changes_between_opening_and_reading_is_named() {
    let dir = tempfile::tempdir().unwrap();
    // What is packed is read from its frames, which are ours.
    for sample in SAMPLES.iter().filter(|s| !s.name.ends_with(".gz") && !s.name.ends_with(".zst")) {
        let path = dir.path().join(sample.name);
        let after = |bytes: &[u8]| {
            fs_err::write(&path, &sample.bytes).unwrap();
            let sources = Sources::open_kind(std::slice::from_ref(&path), sample.kind, Columns::default()).unwrap();
            fs_err::write(&path, bytes).unwrap();
            RowTexts::new(Arc::new(sources)).pair(0).map(|_| ()).unwrap_err().to_string()
        };
        let named = |e: String| {
            assert!(e.contains(&*path.to_string_lossy()) && ["row 0", "byte "].iter().any(|at| e.contains(at)), "{e}");
        };
        let longer = [&sample.bytes[..], b"\n"].concat();
        for bytes in [&longer[..], &sample.bytes[..sample.bytes.len() - 1], b""] {
            let e = after(bytes);
            assert!(e.contains("changed after it was opened"), "{e}");
            named(e);
        }
        named(after(&vec![0xff; sample.bytes.len()]));
    }
}

/// Frames that say how long they are, which is what makes a file be read where it lies.
fn many_frames(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(bytes.len().div_ceil(3)).flat_map(|piece| zstd::bulk::compress(piece, 1).unwrap()).collect()
}
