//! The stream of batches: complete, seeded, resumable anywhere, the same for any threads and prefetch.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_data::*;
use plimsoll_plan::batch::BatchShape;
use tempfile::{TempDir, tempdir};

use crate::fixture::*;

const WORDS: usize = 3000;

fn shape(samples: usize) -> BatchShape {
    BatchShape { samples, source_len: 8, target_len: 8, documents: 1 }
}

struct Data {
    _dir: TempDir,
    sources: Arc<Sources>,
    tokenizer: Arc<TextTokenizer>,
}

/// Rows whose source starts with their own number, padded by a column that makes blocks small.
fn data(rows: usize) -> Data {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let lines: String = numbered(rows, WORDS)
        .iter()
        .map(|(s, t)| serde_json::json!({"source": s, "target": t, "x": "y".repeat(5000)}).to_string() + "\n")
        .collect();
    fs_err::write(&path, lines).unwrap();
    let tokenizer = words_tokenizer(dir.path(), WORDS as u32);
    Data { sources: Arc::new(open(&path).unwrap()), tokenizer, _dir: dir }
}

fn stream(data: &Data, order: Order, settings: LoaderSettings, batches: usize) -> Vec<Batch> {
    let shape = settings.shape;
    let mut loader =
        Loader::start(data.sources.clone(), order, data.tokenizer.clone(), Recipe::pairs(), settings).unwrap();
    take(&mut loader, shape, batches)
}

fn samples(batches: &[Batch]) -> Vec<(Vec<u32>, Vec<u32>)> {
    batches.iter().flat_map(|b| b.samples.clone()).collect()
}

#[test]
fn each_epoch_visits_each_row_once_in_another_order() {
    let rows = 500;
    let data = data(rows);
    assert!(data.sources.facts().blocks > 30);
    let order = Order::new(1, true).with_window(4);
    let all = samples(&stream(&data, order, settings(shape(10), 2, 3, Cursor::default()), 150));
    let numbers: Vec<u32> = all.iter().map(|(s, _)| s[0] - 3).collect();
    let epochs: Vec<&[u32]> = numbers.chunks(rows).collect();
    for epoch in &epochs {
        assert_eq!(epoch.iter().collect::<HashSet<_>>().len(), rows);
    }
    assert_ne!(epochs[0], epochs[1]);
    assert_ne!(epochs[1], epochs[2]);
    // A window of 4 blocks of 12 rows or so: neighbours in the file are rarely neighbours in the stream.
    let neighbours = epochs[0].windows(2).filter(|w| w[1] == w[0] + 1).count();
    assert!(neighbours < rows / 10, "{neighbours}");
    let other =
        samples(&stream(&data, Order::new(2, true).with_window(4), settings(shape(10), 1, 1, Cursor::default()), 50));
    assert_ne!(&all[..rows], &other[..]);
}

#[test]
fn without_shuffle_the_rows_come_as_they_lie() {
    let data = data(97);
    let all = samples(&stream(&data, Order::new(1, false), settings(shape(3), 3, 2, Cursor::default()), 50));
    let numbers: Vec<u32> = all.iter().map(|(s, _)| s[0] - 3).collect();
    let expected: Vec<u32> = (0..150).map(|i| i % 97).collect();
    assert_eq!(numbers, expected);
}

#[test]
fn threads_prefetch_and_micro_batch_do_not_change_the_stream() {
    let data = data(101);
    let order = Order::new(5, true).with_window(3);
    let expected = stream(&data, order, settings(shape(4), 1, 1, Cursor::default()), 60);
    for threads in 1..=4 {
        for prefetch in [1, 2, 5, 9] {
            let got = stream(&data, order, settings(shape(4), threads, prefetch, Cursor::default()), 60);
            assert_eq!(got, expected, "{threads} threads, prefetch {prefetch}");
        }
    }
    for micro in [1, 2, 8] {
        let got = stream(&data, order, settings(shape(micro), 2, 3, Cursor::default()), 240 / micro);
        assert_eq!(samples(&got), samples(&expected), "micro-batch {micro}");
    }
}

#[test]
fn resuming_at_any_cursor_repeats_the_stream() {
    let data = data(41);
    for order in [Order::new(3, true).with_window(2), Order::new(3, true), Order::new(3, false)] {
        let whole = stream(&data, order, settings(shape(1), 1, 4, Cursor::default()), 130);
        for at in 0..90usize {
            let cursor = Cursor { epoch: at as u64 / 41, position: at as u64 % 41, ..Cursor::default() };
            assert!(at == 0 || whole[at - 1].facts.cursor_after == cursor);
            let rest = stream(&data, order, settings(shape(1), 1 + at % 3, 2, cursor), 40);
            assert_eq!(rest, whole[at..at + 40], "{cursor:?}");
        }
    }
}

#[test]
fn a_cursor_survives_serde_in_a_few_bytes() {
    let cursor = Cursor { epoch: 2, position: 77, ..Cursor::default() };
    let text = serde_json::to_string(&cursor).unwrap();
    assert_eq!(text, r#"{"epoch":2,"position":77}"#);
    assert_eq!(serde_json::from_str::<Cursor>(&text).unwrap(), cursor);
}

#[test]
fn data_smaller_than_a_batch_go_round() {
    let data = data(3);
    let batches = stream(&data, Order::new(1, true), settings(shape(8), 2, 2, Cursor::default()), 3);
    let numbers: Vec<u32> = samples(&batches).iter().map(|(s, _)| s[0] - 3).collect();
    for epoch in numbers.chunks(3) {
        assert_eq!(epoch.iter().collect::<HashSet<_>>().len(), epoch.len());
    }
    assert_eq!(batches[2].facts.cursor_after, Cursor { epoch: 8, position: 0, ..Cursor::default() });
}

#[test]
fn packed_tokens_lengths_and_truncation_are_right() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let rows = [("w1 w2 w3 w4 w5", ""), ("", "w1"), ("w9", "w1 w2 nope")].map(|(s, t)| (s.into(), t.into()));
    jsonl(&path, &rows);
    let tokenizer = words_tokenizer(dir.path(), 10);
    let shape = BatchShape { samples: 3, source_len: 4, target_len: 4, documents: 1 };
    let sources = Arc::new(open(&path).unwrap());
    let mut loader = Loader::start(
        sources,
        Order::new(0, false),
        tokenizer,
        Recipe::pairs(),
        settings(shape, 1, 1, Cursor::default()),
    )
    .unwrap();
    let batch = take(&mut loader, shape, 1).remove(0);
    assert_eq!(batch.samples, [(vec![4, 5, 6, 1], vec![1]), (vec![1], vec![4, 1]), (vec![12, 1], vec![4, 5, 2, 1])]);
    let facts = batch.facts;
    assert_eq!((facts.samples, facts.source_tokens, facts.target_tokens, facts.truncated), (3, 7, 7, 1));
    assert_eq!(loader.cursor(), Cursor { epoch: 1, position: 0, ..Cursor::default() });
}

#[test]
fn an_evaluation_is_one_pass_with_texts() {
    let data = data(10);
    let shape = shape(4);
    for _ in 0..2 {
        let mut pass =
            eval_batches(data.sources.clone(), data.tokenizer.clone(), Recipe::pairs(), shape, 2, 2, None).unwrap();
        let mut owned = Owned::new(shape);
        let mut seen = Vec::new();
        while let Some(facts) = pass.next(owned.slot()).unwrap() {
            seen.extend(owned.batch(facts).samples);
        }
        assert_eq!(seen.len(), 10);
        assert!(pass.next(owned.slot()).unwrap().is_none());
        for (row, (source, _)) in seen.iter().enumerate() {
            let (text, _) = pass.texts(row as u64).unwrap();
            assert!(text.starts_with(&format!("w{row}")) && source[0] == row as u32 + 3);
        }
        assert!(pass.texts(2).unwrap().0.starts_with("w2"));
        assert!(matches!(pass.texts(10), Err(DataError::NoSuchRow { row: 10, rows: 10 })));
    }
}

#[test]
fn a_pass_ends_where_the_next_one_begins() {
    let data = data(10);
    let (shape, order) = (shape(4), Order::new(3, true));
    for position in [0, 3, 9] {
        let cursor = Cursor { epoch: 2, position, ..Cursor::default() };
        let start = |start: fn(_, _, _, _, _) -> _| {
            start(data.sources.clone(), order, data.tokenizer.clone(), Recipe::pairs(), settings(shape, 2, 2, cursor))
        };
        let (mut pass, mut endless) = (start(Loader::start_pass).unwrap(), start(Loader::start).unwrap());
        let left = 10 - position as usize;
        let found = samples(&take(&mut pass, shape, left.div_ceil(4)));
        assert_eq!(found, samples(&take(&mut endless, shape, 3))[..left]);
        assert_eq!(pass.next(Owned::new(shape).slot()).unwrap().samples, 0);
        assert_eq!(pass.cursor(), Cursor { epoch: 3, ..Cursor::default() });
    }
}

#[test]
fn a_fingerprint_is_of_the_rows_and_not_of_the_path() {
    let dir = tempdir().unwrap();
    let print_of = |name: &str, rows: &[(String, String)]| {
        let path = dir.path().join(name);
        jsonl(&path, rows);
        open(&path).unwrap().fingerprint()
    };
    let rows = numbered(20, 9);
    let print = print_of("a.jsonl", &rows);
    assert_eq!(print, print_of("b.jsonl", &rows));
    assert_ne!(print, print_of("c.jsonl", &rows[1..]));
    // Part of what a state of the Python loader means: it may never change.
    assert_eq!(print, 0x0aa1_4eac_351d_a421);
}

#[test]
fn an_error_in_a_thread_comes_out_after_the_good_batches() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let mut rows = numbered(20, 9);
    rows[9].1 = "not a word".into();
    jsonl(&path, &rows);
    // Without an unknown token in the vocabulary, an unknown word is an error.
    let file = word_level(dir.path(), 9, true);
    let text = fs_err::read_to_string(&file).unwrap().replace("\"unk_token\":\"<unk>\"", "\"unk_token\":\"<none>\"");
    fs_err::write(&file, text).unwrap();
    let tokenizer = Arc::new(TextTokenizer::load(&file, 12, EOS, PAD).unwrap());
    for threads in 1..=3 {
        let sources = Arc::new(open(&path).unwrap());
        let settings = settings(shape(4), threads, 4, Cursor::default());
        let mut loader =
            Loader::start(sources, Order::new(0, false), tokenizer.clone(), Recipe::pairs(), settings).unwrap();
        assert_eq!(take(&mut loader, shape(4), 2).len(), 2);
        let mut owned = Owned::new(shape(4));
        let e = loader.next(owned.slot()).unwrap_err();
        assert!(matches!(&e, DataError::NotTokenised { start, .. } if start == "not a word"), "{e}");
        assert!(matches!(loader.next(owned.slot()), Err(DataError::Stopped)));
    }
}

#[test]
fn a_panic_in_a_thread_is_an_error_and_not_a_hang() {
    let data = data(5);
    let mut settings = settings(shape(2), 2, 2, Cursor::default());
    settings.on_thread_start = Some(Arc::new(|| panic!("the hook fell over")));
    let mut loader =
        Loader::start(data.sources.clone(), Order::new(0, true), data.tokenizer.clone(), Recipe::pairs(), settings)
            .unwrap();
    let e = loader.next(Owned::new(shape(2)).slot()).unwrap_err().to_string();
    assert_eq!(e, "a loader thread panicked: the hook fell over");
}

#[test]
fn the_hook_runs_once_in_each_thread_and_dropping_joins_them() {
    let data = data(50);
    let started = Arc::new(AtomicUsize::new(0));
    let mut settings = settings(shape(2), 3, 2, Cursor::default());
    let count = started.clone();
    settings.on_thread_start = Some(Arc::new(move || {
        assert!(std::thread::current().name().is_some_and(|n| n.starts_with("loader-")));
        count.fetch_add(1, Ordering::SeqCst);
    }));
    let loader =
        Loader::start(data.sources.clone(), Order::new(0, true), data.tokenizer.clone(), Recipe::pairs(), settings)
            .unwrap();
    drop(loader);
    assert_eq!(started.load(Ordering::SeqCst), 3);
    assert_eq!(Arc::strong_count(&data.sources), 1, "no thread holds the sources any more");
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let data = data(5);
    let start = |change: fn(&mut LoaderSettings)| {
        let mut settings = settings(shape(2), 1, 1, Cursor::default());
        change(&mut settings);
        let loader =
            Loader::start(data.sources.clone(), Order::new(0, true), data.tokenizer.clone(), Recipe::pairs(), settings);
        loader.err().map(|e| e.to_string()).unwrap()
    };
    assert!(start(|s| s.effective_batch = 3).contains("expected a multiple of the micro-batch of 2"));
    assert!(start(|s| s.threads = 0).contains("`threads` is 0"));
    assert!(start(|s| s.cursor.position = 5).contains("below the 5 rows"));
    let mut loader = Loader::start(
        data.sources.clone(),
        Order::new(0, true),
        data.tokenizer.clone(),
        Recipe::pairs(),
        settings(shape(2), 1, 1, Cursor::default()),
    )
    .unwrap();
    let e = loader.next(Owned::new(shape(1)).slot()).unwrap_err();
    assert!(matches!(e, DataError::SlotTooSmall { part: "source", expected: 16, found: 8 }), "{e}");
}

#[test]
fn a_file_that_vanishes_is_named() {
    let data = data(5);
    let path = data.sources.paths().next().map(Path::to_path_buf).unwrap();
    fs_err::remove_file(&path).unwrap();
    let settings = settings(shape(2), 2, 1, Cursor::default());
    let mut loader =
        Loader::start(data.sources.clone(), Order::new(0, true), data.tokenizer.clone(), Recipe::pairs(), settings)
            .unwrap();
    let e = loader.next(Owned::new(shape(2)).slot()).unwrap_err().to_string();
    assert!(e.contains("a.jsonl"), "{e}");
}

/// Entropy, in bits, of what a batch's samples begin with.
fn entropy(firsts: &[u32]) -> f64 {
    let mut counts = std::collections::BTreeMap::new();
    firsts.iter().for_each(|first| *counts.entry(first).or_insert(0.0) += 1.0);
    let all = firsts.len() as f64;
    counts.values().map(|n| -(n / all) * f64::log2(n / all)).sum()
}

#[test]
fn batches_of_a_file_sorted_by_label_are_nearly_as_mixed_as_independent_draws() {
    const LABELS: usize = 10;
    let dir = tempdir().unwrap();
    let tokenizer = words_tokenizer(dir.path(), LABELS as u32);
    let (rows, filler) = (24_000, "x".repeat(1000));
    let sorted: Vec<_> = (0..rows).map(|i| (format!("w{} {filler}", i * LABELS / rows), "w1".to_string())).collect();
    let path = dir.path().join("sorted.jsonl");
    jsonl(&path, &sorted);
    let sources = Arc::new(open(&path).unwrap());
    assert!(sources.facts().blocks > 4 * WINDOW_BLOCKS as u64, "one window is not all of it");
    let shape = shape(32);
    let mean = |order: Order| {
        let settings = settings(shape, 2, 4, Cursor::default());
        let mut loader = Loader::start(sources.clone(), order, tokenizer.clone(), Recipe::pairs(), settings).unwrap();
        let (mut owned, batches) = (Owned::new(shape), rows / 32);
        let mut sum = 0.0;
        for _ in 0..batches {
            let facts = loader.next(owned.slot()).unwrap();
            let firsts: Vec<u32> = owned.batch(facts).samples.iter().map(|(source, _)| source[0]).collect();
            sum += entropy(&firsts);
        }
        sum / batches as f64
    };
    // What as many batches of independent draws have; a generator of our own, so that it is the same each time.
    let mut state = 1u64;
    let mut draw = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 33) % LABELS as u64) as u32
    };
    let independent: f64 =
        (0..4000).map(|_| entropy(&(0..32).map(|_| draw()).collect::<Vec<_>>())).sum::<f64>() / 4000.0;
    let share = |order: Order| mean(order) / independent;
    let (usual, small) = (share(Order::new(11, true)), share(Order::new(11, true).with_window(WINDOW_BLOCKS / 4)));
    println!("entropy of a batch: {usual:.4} of that of independent draws, {small:.4} with a quarter of the window");
    assert!(usual >= 0.99 && small >= 0.96, "{usual}, {small}");
    assert!(share(Order::new(11, false)) < 0.1, "the file is sorted");
}
