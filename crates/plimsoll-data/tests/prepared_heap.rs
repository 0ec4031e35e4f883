//! Prepared data: the loader's heap against its formula, no allocation in `next`, and no more heap for more rows while they are made.
//!
//! One test function, since the count is of the whole process. `cargo test --test prepared_heap -- --nocapture` also prints how many
//! rows a second are loaded, from the files and from what was prepared of them.

mod counting;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use plimsoll_data::*;
use plimsoll_plan::batch::{BatchShape, BatchSlot};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, ModelWrapper, Tokenizer};

use counting::{LIVE, MINE, PEAK, peak_of};

fn sentence(i: usize, words: usize) -> String {
    (0..words).map(|k| format!("word{} ", (i * 31 + k * 17) % 997)).collect()
}

fn tokenizer(dir: &Path) -> Arc<TextTokenizer> {
    let mut bytes = Tokenizer::new(ModelWrapper::BPE(BPE::default()));
    bytes.with_pre_tokenizer(Some(ByteLevel::default().add_prefix_space(false)));
    let trainer = BpeTrainer::builder()
        .vocab_size(600)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(["<pad>", "</s>", "<unk>"].map(|t| AddedToken::from(t, true)).to_vec())
        .show_progress(false)
        .build();
    bytes.train(&mut TrainerWrapper::BpeTrainer(trainer), (0..400).map(|i| sentence(i, 12))).unwrap();
    let path = dir.join("tokenizer.json");
    bytes.save(&path, false).unwrap();
    Arc::new(TextTokenizer::load(&path, 5000, 1, 0).unwrap())
}

struct Case {
    name: &'static str,
    path: PathBuf,
    recipe: Recipe,
    shape: BatchShape,
}

fn cases(dir: &Path, tokenizer: &TextTokenizer) -> Vec<Case> {
    let write = |name: &str, lines: Vec<serde_json::Value>| {
        let path = dir.join(name);
        fs_err::write(&path, lines.iter().map(|line| line.to_string() + "\n").collect::<String>()).unwrap();
        path
    };
    let pair = |i: usize| serde_json::json!({"source": sentence(i, 1 + i % 60), "target": sentence(i + 5, 1 + i % 7)});
    let text = |i: usize| serde_json::json!({"text": sentence(i, if i % 500 == 499 { 20_000 } else { 1 + i % 90 })});
    let talk = |i: usize| {
        let role = |k: usize| ["user", "assistant"][k % 2];
        let message = |k: usize| Message::new(role(k), &sentence(i + k, 3 + (i + k) % 40));
        serde_json::json!({"messages": (0..2 + i % 6).map(message).collect::<Vec<_>>()})
    };
    let shape = |len: usize, documents: usize| BatchShape { samples: 4, source_len: len, target_len: len, documents };
    let chat = Recipe::plain_chat(tokenizer, &Default::default()).unwrap();
    let split = Recipe::text(Long::Split, None);
    vec![
        Case {
            name: "pairs",
            path: write("pairs.jsonl", (0..20_000).map(pair).collect()),
            recipe: Recipe::pairs(),
            shape: BatchShape { samples: 4, source_len: 256, target_len: 128, documents: 1 },
        },
        Case {
            name: "pairs, left out and by length",
            path: dir.join("pairs.jsonl"),
            recipe: Recipe::pairs().dropping().by_length(),
            shape: BatchShape { samples: 4, source_len: 128, target_len: 64, documents: 1 },
        },
        Case {
            name: "texts, packed",
            path: write("texts.jsonl", (0..4_000).map(text).collect()),
            recipe: split,
            shape: shape(256, 8),
        },
        Case {
            name: "chats",
            path: write("chats.jsonl", (0..4_000).map(talk).collect()),
            recipe: chat,
            shape: shape(512, 1),
        },
    ]
}

fn open(path: &Path, kind: Kind) -> Arc<Sources> {
    Arc::new(Sources::open_kind(&[path.to_path_buf()], kind, Columns::default()).unwrap())
}

/// Loads `batches` batches; how many rows of the data that were, a second, and calls of the allocator in `next`.
fn load(
    sources: Arc<Sources>,
    tokenizer: &Arc<TextTokenizer>,
    case: &Case,
    threads: usize,
    batches: usize,
) -> (f64, u64) {
    let shape = case.shape;
    let rows = sources.rows();
    let settings = LoaderSettings {
        shape,
        effective_batch: shape.samples,
        threads,
        prefetch_batches: 4,
        cursor: Cursor::default(),
        limit: None,
        ranks: Ranks::ONE,
        on_thread_start: None,
    };
    let (mut source, mut target) = (vec![0; 4 * shape.source_len], vec![0; 4 * shape.target_len]);
    let (mut source_lens, mut target_lens) = (vec![0; shape.most_documents()], vec![0; 4]);
    // The caller's own buffers are no part of the loader.
    PEAK.store(LIVE.load(Relaxed), Relaxed);
    let start = Instant::now();
    let order = Order::new(1, true);
    let mut loader = Loader::start(sources, order, tokenizer.clone(), case.recipe.clone(), settings).unwrap();
    let mut calls = 0;
    for _ in 0..batches {
        let slot = BatchSlot {
            source: &mut source,
            target: &mut target,
            source_lens: &mut source_lens,
            target_lens: &mut target_lens,
        };
        let before = MINE.get();
        loader.next(slot).unwrap();
        calls += MINE.get() - before;
    }
    (loader.cursor().sample(rows) as f64 / start.elapsed().as_secs_f64(), calls)
}

#[test]
fn prepared_data_stay_below_the_formula_and_are_made_in_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer(dir.path());
    for case in cases(dir.path(), &tokenizer) {
        let Case { name, path, recipe, shape } = &case;
        let folder = dir.path().join(name);
        let settings = PrepareSettings {
            lengths: [shape.source_len, shape.target_len],
            threads: 2,
            shard_bytes: 200_000,
            on_thread_start: None,
        };
        let sources = open(path, recipe.kind());
        let start = Instant::now();
        let made = prepare(&sources, &tokenizer, recipe, &settings, &folder, &mut |_| ()).unwrap();
        let rate = made.rows as f64 / start.elapsed().as_secs_f64();
        println!(
            "{name}: {} rows prepared, {rate:.0} a second, {} bytes of {}",
            made.rows, made.bytes, made.text_bytes
        );
        for threads in [1, 3] {
            let buffers = 4 * (4 * (shape.source_len + shape.target_len) + shape.most_documents() + 4) as u64;
            let before = LIVE.load(Relaxed) + buffers;
            let prepared = open(&folder, recipe.kind());
            let facts = prepared.load_facts(Order::new(1, true)).with_recipe(recipe);
            let planned = loader_heap(&facts, *shape, threads, 4);
            let (rate, calls) = load(prepared, &tokenizer, &case, threads, 20_000);
            let (used, total) = (PEAK.load(Relaxed).saturating_sub(before), planned.total_bytes());
            let (plain, _) = load(sources.clone(), &tokenizer, &case, threads, 300);
            println!(
                "{name}, {threads} threads: {rate:.0} rows a second, from the file {plain:.0}; heap {used}, planned {total}"
            );
            assert!(used <= total, "{name}: used {used}, planned {total}: {planned:?}");
            assert_eq!(calls, 0, "`next` allocated");
        }
    }

    // Four times the rows take no more, but for what is kept of each block.
    let peak = |rows: usize| {
        let path = dir.path().join(format!("{rows}.jsonl"));
        let line = |i: usize| serde_json::json!({"text": sentence(i, 40)}).to_string() + "\n";
        fs_err::write(&path, (0..rows).map(line).collect::<String>()).unwrap();
        let (sources, folder) = (open(&path, Kind::Text), dir.path().join(format!("{rows}")));
        let settings = PrepareSettings { lengths: [64, 64], threads: 2, shard_bytes: 1 << 20, on_thread_start: None };
        let recipe = Recipe::text(Long::Cut, None);
        let (peak, _) = peak_of(|| prepare(&sources, &tokenizer, &recipe, &settings, &folder, &mut |_| ()).unwrap());
        println!("{rows} rows, {} blocks: {peak} bytes of heap to prepare them", sources.facts().blocks);
        (peak, sources.facts().blocks)
    };
    let ((small, few), (large, many)) = (peak(8_000), peak(32_000));
    assert!(many > 3 * few && small < 8 << 20, "{small} for {few} blocks");
    assert!(large <= small + 128 * (many - few) + small / 4, "{small} to {large} for {few} to {many} blocks");
}
