//! One ceiling for everything that a loader holds, with every allocation counted: small rows, large rows, large pages.
//!
//! One test function, since the count is of the whole process. `cargo test --test ceiling -- --nocapture` prints what was used.
#![allow(missing_docs, clippy::print_stdout)]

mod counting;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use plimsoll_data::*;
use plimsoll_plan::batch::{BatchShape, BatchSlot};
use tokenizers::Tokenizer;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::models::{ModelWrapper, TrainerWrapper};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use counting::{LIVE, PEAK};

const MIB: u64 = 1 << 20;
const PASSES: u64 = 5;

fn words(row: usize, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 16);
    let mut k = row;
    while text.len() < bytes {
        k = (k * 1_103_515_245 + 12_345) % (1 << 31);
        text += &format!("word{} ", k % 9_973);
    }
    text
}

fn jsonl(path: &Path, rows: usize, bytes: usize) {
    let lines: String =
        (0..rows).map(|row| serde_json::json!({"text": words(row, bytes)}).to_string() + "\n").collect();
    fs_err::write(path, lines).unwrap();
}

/// One row group, pages of `page` bytes.
fn parquet(path: &Path, rows: usize, bytes: usize, page: usize) {
    let schema = Arc::new(parse_message_type("message m { REQUIRED BYTE_ARRAY text (UTF8); }").unwrap());
    let properties = WriterProperties::builder().set_data_page_size_limit(page).set_dictionary_enabled(false);
    let properties = properties.set_data_page_row_count_limit(usize::MAX).set_write_batch_size(16);
    let file = std::fs::OpenOptions::new().create(true).truncate(true).write(true).open(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties.build())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    for first in (0..rows).step_by(256) {
        let texts: Vec<ByteArray> =
            (first..rows.min(first + 256)).map(|row| words(row, bytes).as_str().into()).collect();
        column.typed::<ByteArrayType>().write_batch(&texts, None, None).unwrap();
    }
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

fn tokenizer(folder: &Path) -> PathBuf {
    let mut tokenizer = Tokenizer::new(ModelWrapper::BPE(BPE::default()));
    tokenizer.with_pre_tokenizer(Some(ByteLevel::default().add_prefix_space(false)));
    let alphabet = ByteLevel::alphabet().into_iter().collect();
    let trainer = BpeTrainer::builder().vocab_size(600).initial_alphabet(alphabet).show_progress(false).build();
    let corpus: Vec<String> = (0..50).map(|row| words(row, 300)).collect();
    tokenizer.train(&mut TrainerWrapper::BpeTrainer(trainer), corpus.iter()).unwrap();
    let path = folder.join("tokenizer.json");
    tokenizer.save(&path, false).unwrap();
    path
}

/// Peak above `before`, and what was held at the end of each pass.
fn run(file: &Path, tokenizer: &Path, ceiling: u64) -> Option<(u64, Vec<u64>, Order, usize)> {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let shape = BatchShape { samples: 8, source_len: 128, target_len: 128, documents: 1 };
    let recipe = Recipe::text(Long::Cut, None);
    let tokenizer = Arc::new(TextTokenizer::load(tokenizer, 1000, 1, 0).unwrap());
    let tables = LIVE.load(Relaxed) - before;
    let sources = Arc::new(Sources::open_kind(&[file.into()], Kind::Text, Columns::default()).unwrap());
    let order = Order::new(1, true).within(&sources, ceiling);
    let facts = sources.load_facts(order).with_recipe(&recipe).with_memo(tokenizer.memo_bytes());
    let heap = |threads: usize| tables + loader_heap(&facts, shape, threads, 2).total_bytes();
    let threads = threads_within(ceiling, &heap, 7)?;
    let settings = LoaderSettings {
        shape,
        effective_batch: 8,
        threads,
        prefetch_batches: 2,
        cursor: Cursor::default(),
        limit: Some(sources.rows() * PASSES),
        ranks: Ranks::ONE,
        on_thread_start: None,
    };
    let mut loader = Loader::start(sources, order, tokenizer, recipe, settings).unwrap();
    let mut buffers = [vec![0; 8 * 128], vec![0; 8 * 128], vec![0; 8], vec![0; 8]];
    let [source, target, source_lens, target_lens] = &mut buffers;
    let mut held = Vec::with_capacity(PASSES as usize);
    loop {
        let facts = loader.next(BatchSlot { source, target, source_lens, target_lens }).unwrap();
        if facts.cursor_after.epoch > held.len() as u64 {
            held.push(PEAK.load(Relaxed) - before);
        }
        if facts.samples == 0 {
            break;
        }
    }
    Some((PEAK.load(Relaxed) - before, held, order, threads))
}

#[test]
fn a_loader_stays_below_its_ceiling_in_every_pass() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let tokenizer = tokenizer(dir.path());
    jsonl(&at("small.jsonl"), 20_000, 700);
    jsonl(&at("large.jsonl"), 60, 1 << 20);
    parquet(&at("pages.parquet"), 30_000, 700, 1 << 20);
    parquet(&at("large_pages.parquet"), 15_000, 700, 8 << 20);
    for name in ["small.jsonl", "large.jsonl", "pages.parquet", "large_pages.parquet"] {
        for ceiling in [64, 256] {
            let (peak, held, order, threads) = run(&at(name), &tokenizer, ceiling * MIB).unwrap();
            let window = order.window_blocks();
            println!("{name}, {ceiling} MiB: {:.1} MiB, window {window}, {threads} threads", peak as f64 / MIB as f64);
            assert!(peak as f64 <= 1.05 * (ceiling * MIB) as f64, "{name}: {peak} of {ceiling} MiB");
            assert_eq!(held.len() as u64, PASSES);
            let (first, last) = (held[0], held[held.len() - 1]);
            assert!(last <= first + first / 20, "{name} grows: {held:?}");
        }
    }
    // Rows of a megabyte: half of the ceiling is not room for 64 of them.
    let order = |ceiling: u64| run(&at("large.jsonl"), &tokenizer, ceiling * MIB).unwrap().2.window_blocks();
    assert!(order(64) < 40 && order(64) >= 16 && order(256) == 64, "{} and {}", order(64), order(256));
    assert!(run(&at("large_pages.parquet"), &tokenizer, 16 * MIB).is_none(), "a page of 8 MiB in 16");
}
