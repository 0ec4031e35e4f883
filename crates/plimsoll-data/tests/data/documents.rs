//! The stream of documents: rows and labels, split, cut and packed; complete, seeded, resumable anywhere, the same for any
//! threads.

use std::sync::Arc;

use plimsoll_data::*;
use plimsoll_plan::batch::{BatchShape, IGNORE};
use tempfile::{TempDir, tempdir};

use crate::fixture::*;

const WORDS: u32 = 4000;

struct Data {
    _dir: TempDir,
    sources: Arc<Sources>,
    tokenizer: Arc<TextTokenizer>,
}

fn data(texts: &[String]) -> Data {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    // The second column makes blocks small, so that there are many.
    let line = |text: &String| serde_json::json!({"text": text, "x": "y".repeat(4000)}).to_string() + "\n";
    fs_err::write(&path, texts.iter().map(line).collect::<String>()).unwrap();
    let sources = Sources::open_kind(&[path], Kind::Text, Columns::default()).unwrap();
    Data { sources: Arc::new(sources), tokenizer: words_tokenizer(dir.path(), WORDS), _dir: dir }
}

/// Row i has 0 to 24 words, most of them few, and tells its own number in the first.
fn numbered_texts(rows: usize) -> Vec<String> {
    let words = |i: usize| [3, 1, 7, 24, 2, 5, 11, 1, 0][(i * 7 + i / 9) % 9];
    (0..rows).map(|i| (0..words(i)).map(|k| format!("w{} ", (i * 13 + k) % WORDS as usize)).collect()).collect()
}

/// The tokens of a text of our words, with the end.
fn tokens(text: &str) -> Vec<u32> {
    text.split_whitespace().map(|w| w[1..].parse::<u32>().unwrap() + 3).chain([EOS]).collect()
}

fn shape(samples: usize, length: usize, documents: usize) -> BatchShape {
    BatchShape { samples, source_len: length, target_len: length, documents }
}

fn split() -> Recipe {
    Recipe::text(Long::Split, None)
}

fn start(data: &Data, order: Order, recipe: &Recipe, settings: LoaderSettings) -> Loader {
    Loader::start(data.sources.clone(), order, data.tokenizer.clone(), recipe.clone(), settings).unwrap()
}

type Sample = Vec<Rows>;

/// Batches until `stop` says so, with the facts of each.
fn stream(loader: &mut Loader, shape: BatchShape, batches: usize) -> Vec<(BatchFacts, Vec<Sample>)> {
    let mut owned = Owned::new(shape);
    let mut next = || {
        let facts = loader.next(owned.slot()).unwrap();
        (facts, owned.documents(facts))
    };
    (0..batches).map(|_| next()).collect()
}

fn samples(batches: &[(BatchFacts, Vec<Sample>)]) -> Vec<Sample> {
    batches.iter().flat_map(|b| b.1.clone()).collect()
}

/// The samples of the first pass.
fn one_pass(data: &Data, order: Order, recipe: &Recipe, shape: BatchShape) -> Vec<Sample> {
    let shape = BatchShape { samples: 1, ..shape };
    let mut loader = start(data, order, recipe, settings(shape, 2, 2, Cursor::default()));
    let mut all = Vec::new();
    while loader.cursor().epoch == 0 {
        all.extend(samples(&stream(&mut loader, shape, 1)));
    }
    assert_eq!(loader.cursor(), Cursor { epoch: 1, ..Cursor::default() }, "a pass ends with its own sample");
    all
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|t| t.to_string()).collect()
}

#[test]
fn a_label_is_the_next_token_and_a_document_of_one_token_has_none() {
    let data = data(&texts(&["w1 w2", "", "w5"]));
    let mut loader = start(&data, Order::new(0, false), &split(), settings(shape(3, 4, 1), 1, 1, Cursor::default()));
    let (facts, got) = stream(&mut loader, shape(3, 4, 1), 1).remove(0);
    assert_eq!(got, [vec![(vec![4, 5], vec![5, 1])], vec![(vec![1], vec![IGNORE])], vec![(vec![8], vec![1])]]);
    assert_eq!((facts.samples, facts.documents, facts.source_tokens, facts.target_tokens), (3, 3, 4, 4));
    assert_eq!((facts.labels, facts.unlabelled, facts.truncated), (3, 1, 0));
}

#[test]
fn long_texts_are_split_between_rows_or_cut() {
    let data = data(&texts(&["w0 w1 w2 w3 w4 w5 w6", "w9"]));
    let order = Order::new(0, false);
    let got: Vec<Rows> = one_pass(&data, order, &split(), shape(1, 3, 1)).concat();
    assert_eq!(
        got,
        [(vec![3, 4, 5], vec![4, 5, 6]), (vec![6, 7, 8], vec![7, 8, 9]), (vec![9], vec![1]), (vec![12], vec![1])]
    );
    let cut = Recipe::text(Long::Cut, None);
    let mut loader = start(&data, order, &cut, settings(shape(2, 3, 1), 1, 1, Cursor::default()));
    let (facts, got) = stream(&mut loader, shape(2, 3, 1), 1).remove(0);
    assert_eq!(got.concat(), [(vec![3, 4, 5], vec![4, 5, 6]), (vec![12], vec![1])]);
    assert_eq!(facts.truncated, 1);
    // Seven rows and a length of seven: neither split nor cut.
    assert_eq!(one_pass(&data, order, &split(), shape(1, 7, 1)).len(), 2);
}

#[test]
fn packing_is_by_best_fit_and_at_most_so_many_documents() {
    // 2, 3, 1, 5, 1, 1 rows.
    let data = data(&texts(&["w0 w1", "w2 w3 w4", "w5", "w6 w7 w8 w9 w10", "w11", "w12"]));
    let lengths = |documents: usize| -> Vec<Vec<usize>> {
        let pass = one_pass(&data, Order::new(0, false), &split(), shape(1, 6, documents));
        let mut list: Vec<Vec<usize>> = pass.iter().map(|sample| sample.iter().map(|d| d.0.len()).collect()).collect();
        list.sort();
        list
    };
    assert_eq!(lengths(8), [vec![1], vec![1, 5], vec![2, 3, 1]]);
    assert_eq!(lengths(2), [vec![1, 1], vec![1, 5], vec![2, 3]]);
    assert_eq!(lengths(1).len(), 6);
}

#[test]
fn long_texts_are_dropped_and_counted_where_that_is_asked() {
    let data = data(&texts(&["w0 w1 w2 w3", "w9", "w1 w2 w3 w4 w5 w6", "w7 w8 w9", "w5 w6 w7 w8 w9"]));
    let drop = Recipe::text(Long::Drop, None);
    for documents in [1, 4] {
        let shape = shape(2, 3, documents);
        let mut loader = start(&data, Order::new(0, false), &drop, settings(shape, 2, 2, Cursor::default()));
        let got = stream(&mut loader, shape, 3);
        let mut pass: Vec<Rows> = got[0].1.concat();
        pass.sort();
        assert_eq!(pass, [(vec![10, 11, 12], vec![11, 12, 1]), (vec![12], vec![1])], "{documents}");
        // Unpacked, the last row of the third pass is not yet known to be too long.
        let dropped: Vec<u64> = got.iter().map(|b| b.0.dropped).collect();
        assert_eq!(dropped, if documents == 1 { [2, 3, 3] } else { [3, 3, 3] });
        assert_eq!(got[0].0.truncated, 0);
    }
    let none = self::data(&texts(&["w0 w1 w2 w3", "w1 w2 w3 w4 w5 w6"]));
    let mut loader = start(&none, Order::new(0, false), &drop, settings(shape(1, 3, 1), 1, 1, Cursor::default()));
    let e = loader.next(Owned::new(shape(1, 3, 1)).slot()).unwrap_err().to_string();
    assert_eq!(e, "all 2 rows are longer than 3 tokens, and such rows are dropped");
}

#[test]
fn a_beginning_token_is_added_once() {
    let data = data(&texts(&["w1"]));
    let bos = Recipe::text(Long::Split, Some(2));
    assert_eq!(one_pass(&data, Order::new(0, false), &bos, shape(1, 8, 1)), [[(vec![2, 4], vec![4, 1])]]);
}

#[test]
fn an_epoch_has_the_tokens_of_the_file_and_no_document_sees_another() {
    let rows = numbered_texts(300);
    let data = data(&rows);
    assert!(data.sources.facts().blocks > 15);
    let length = 9;
    // A row as pieces: inputs, and the token behind each.
    let pieces = |row: &String| -> Vec<Rows> {
        let tokens = tokens(row);
        match tokens.len() {
            1 => vec![(tokens, vec![IGNORE])],
            n => (0..n - 1)
                .step_by(length)
                .map(|at| (at, (at + length).min(n - 1)))
                .map(|(at, end)| (tokens[at..end].to_vec(), tokens[at + 1..end + 1].to_vec()))
                .collect(),
        }
    };
    let mut expected: Vec<Rows> = rows.iter().flat_map(pieces).collect();
    expected.sort();
    for documents in [1, 3, 20] {
        for order in [Order::new(0, false), Order::new(3, true).with_window(4)] {
            let pass = one_pass(&data, order, &split(), shape(4, length, documents));
            for sample in &pass {
                assert!(sample.len() <= documents && sample.iter().map(|d| d.0.len()).sum::<usize>() <= length);
            }
            let mut found = pass.concat();
            found.sort();
            assert_eq!(found, expected, "{documents} documents, {order:?}");
            if documents == 20 {
                let filled =
                    pass.iter().flatten().map(|d| d.0.len()).sum::<usize>() as f64 / (pass.len() * length) as f64;
                assert!(filled > 0.97, "{filled}");
            }
        }
    }
}

#[test]
fn threads_prefetch_and_micro_batch_do_not_change_the_samples() {
    let data = data(&numbered_texts(120));
    let order = Order::new(5, true).with_window(3);
    for documents in [1, 4] {
        let one = shape(1, 9, documents);
        let expected = stream(&mut start(&data, order, &split(), settings(one, 1, 1, Cursor::default())), one, 480);
        for threads in [1, 2, 7] {
            for (micro, prefetch) in [(1, 3), (4, 1), (8, 2)] {
                let shape = shape(micro, 9, documents);
                let mut loader = start(&data, order, &split(), settings(shape, threads, prefetch, Cursor::default()));
                let got = stream(&mut loader, shape, 480 / micro);
                assert_eq!(samples(&got), samples(&expected), "{threads} threads, micro-batch {micro}");
                for (i, (facts, _)) in got.iter().enumerate() {
                    assert_eq!(facts.cursor_after, expected[(i + 1) * micro - 1].0.cursor_after);
                }
            }
        }
    }
}

#[test]
fn resuming_at_any_cursor_repeats_the_stream() {
    let data = data(&numbered_texts(41));
    for (order, documents) in [(Order::new(3, true).with_window(2), 4), (Order::new(3, false), 1)] {
        let shape = shape(1, 9, documents);
        let whole = stream(&mut start(&data, order, &split(), settings(shape, 1, 4, Cursor::default())), shape, 160);
        let inside = |c: Cursor| if documents == 1 { c.piece > 0 } else { c.sample > 0 };
        assert!(whole.iter().any(|b| inside(b.0.cursor_after)), "some cursor is inside a text, or a group");
        assert!(whole[119].0.cursor_after.epoch >= 1);
        for at in 1..120 {
            let cursor = whole[at - 1].0.cursor_after;
            let text = serde_json::to_string(&cursor).unwrap();
            let cursor = serde_json::from_str(&text).unwrap();
            let mut loader = start(&data, order, &split(), settings(shape, 1 + at % 3, 2, cursor));
            assert_eq!(loader.cursor(), cursor);
            assert_eq!(stream(&mut loader, shape, 40), whole[at..at + 40], "{cursor:?}");
        }
    }
}

#[test]
fn a_cursor_of_before_there_were_pieces_is_still_read() {
    let cursor: Cursor = serde_json::from_str(r#"{"epoch":2,"position":77}"#).unwrap();
    assert_eq!(cursor, Cursor { epoch: 2, position: 77, ..Cursor::default() });
    let inside = Cursor { epoch: 2, position: 77, piece: 3, ..Cursor::default() };
    assert_eq!(serde_json::to_string(&inside).unwrap(), r#"{"epoch":2,"position":77,"piece":3}"#);
}

#[test]
fn a_text_longer_than_is_tokenised_at_a_time_has_the_tokens_of_the_whole() {
    // 20,000 words in parts of 288 bytes.
    let long: String = (0..20_000).map(|i| format!("w{} ", i * 7 % WORDS)).collect();
    let data = data(&[long.clone(), "w1".into()]);
    let pass = one_pass(&data, Order::new(0, false), &split(), shape(3, 8, 1));
    let mut found: Vec<u32> = pass[..2500].iter().flat_map(|s| s[0].0.clone()).collect();
    found.push(*pass[2499][0].1.last().unwrap());
    assert_eq!(found, tokens(&long));
    assert_eq!(pass.len(), 2501);
}

#[test]
fn counting_a_pass_gives_what_the_loader_gives() {
    let data = data(&numbered_texts(200));
    for order in [Order::new(0, false), Order::new(9, true).with_window(3)] {
        for documents in [1, 5] {
            let shape = shape(4, 9, documents);
            let pass = one_pass(&data, order, &split(), shape);
            for threads in [1, 3] {
                let count =
                    count_samples(&data.sources, order, &data.tokenizer, &split(), shape, 0, threads, None).unwrap();
                assert_eq!(count.samples, pass.len() as u64);
                assert_eq!(count.documents, pass.iter().map(Vec::len).sum::<usize>() as u64);
                assert_eq!(count.rows, pass.iter().flatten().map(|d| d.0.len() as u64).sum::<u64>());
            }
        }
    }
}

#[test]
fn a_limit_ends_the_stream_and_an_evaluation_ends_by_itself() {
    let data = data(&numbered_texts(30));
    let shape = shape(4, 9, 3);
    let mut limited = settings(shape, 2, 2, Cursor::default());
    limited.limit = Some(6);
    let mut loader = start(&data, Order::new(0, false), &split(), limited);
    let counts: Vec<usize> = stream(&mut loader, shape, 4).iter().map(|b| b.0.samples).collect();
    assert_eq!(counts, [4, 2, 0, 0]);

    let one = BatchShape { documents: 1, ..shape };
    let expected = one_pass(&data, Order::new(0, false), &split(), one);
    for _ in 0..2 {
        let mut pass = eval_batches(data.sources.clone(), data.tokenizer.clone(), split(), shape, 2, 2, None).unwrap();
        let mut owned = Owned::new(shape);
        let mut seen = Vec::new();
        while let Some(facts) = pass.next(owned.slot()).unwrap() {
            assert_eq!(facts.documents, facts.samples, "an evaluation is not packed");
            seen.extend(owned.documents(facts));
        }
        assert!(pass.next(owned.slot()).unwrap().is_none());
        assert_eq!(seen, expected);
    }
}

#[test]
fn an_error_comes_out_after_the_good_batches_with_file_and_line() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let lines: String = (0..20)
        .map(|i| if i == 9 { "\n{\"text\":\"not a word\"}\n".into() } else { format!("{{\"text\":\"w{i} w1\"}}\n") })
        .collect();
    fs_err::write(&path, lines).unwrap();
    let file = word_level(dir.path(), 30, true);
    let text = fs_err::read_to_string(&file).unwrap().replace("\"unk_token\":\"<unk>\"", "\"unk_token\":\"<none>\"");
    fs_err::write(&file, text).unwrap();
    let tokenizer = Arc::new(TextTokenizer::load(&file, 33, EOS, PAD).unwrap());
    for threads in [1, 2, 7] {
        let sources =
            Arc::new(Sources::open_kind(std::slice::from_ref(&path), Kind::Text, Columns::default()).unwrap());
        let shape = shape(4, 8, 1);
        let settings = settings(shape, threads, 4, Cursor::default());
        let mut loader = Loader::start(sources, Order::new(0, false), tokenizer.clone(), split(), settings).unwrap();
        assert_eq!(samples(&stream(&mut loader, shape, 2)).len(), 8);
        let mut owned = Owned::new(shape);
        let e = loader.next(owned.slot()).unwrap_err().to_string();
        assert!(e.contains("a.jsonl`, line 11: the tokenizer failed on `not a word`"), "{e}");
        assert!(matches!(loader.next(owned.slot()), Err(DataError::Stopped)));
    }
}

#[test]
fn panics_hooks_and_settings_are_as_for_pairs() {
    let data = data(&numbered_texts(5));
    let shape = shape(2, 8, 2);
    let with = |change: &dyn Fn(&mut LoaderSettings)| {
        let mut settings = settings(shape, 2, 2, Cursor::default());
        change(&mut settings);
        Loader::start(data.sources.clone(), Order::new(0, true), data.tokenizer.clone(), split(), settings)
    };
    let mut loader = with(&|s| s.on_thread_start = Some(Arc::new(|| panic!("the hook fell over")))).unwrap();
    let e = loader.next(Owned::new(shape).slot()).unwrap_err().to_string();
    assert_eq!(e, "a loader thread panicked: the hook fell over");
    drop(loader);
    drop(with(&|_| {}).unwrap());
    assert_eq!(Arc::strong_count(&data.sources), 1, "no thread holds the sources any more");
    let refused = |change: &dyn Fn(&mut LoaderSettings)| with(change).err().unwrap().to_string();
    assert!(refused(&|s| s.shape.target_len = 4).contains("each row has one label"));
    assert!(refused(&|s| s.shape.documents = 0).contains("`documents` is 0"));
    let e = Loader::start(
        data.sources.clone(),
        Order::new(0, true),
        data.tokenizer.clone(),
        Recipe::pairs(),
        settings(shape, 1, 1, Cursor::default()),
    );
    assert!(matches!(e.err(), Some(DataError::OtherKind { opened: Kind::Text, asked: Kind::Pairs })));
}

#[test]
fn one_length_is_suggested_for_documents() {
    let data = data(&texts(&["w1 w2 w3 w4 w5 w6 w7 w8 w9", "w1"]));
    let suggest = |most| suggest_length(&data.sources, &data.tokenizer, &split(), SAMPLE_ROWS, most).unwrap();
    assert_eq!(suggest(512), Lengths { source: 16, target: 16, sampled: 2, truncated: 0 });
    assert_eq!(suggest(8), Lengths { source: 8, target: 8, sampled: 2, truncated: 1 });
    assert_eq!(suggest(9).truncated, 0, "nine rows fit nine");
}
