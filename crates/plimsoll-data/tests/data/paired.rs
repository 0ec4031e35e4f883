//! Pairs that are left out, and batches of like length: the same rows, counted, whatever the threads and ranks, and entered anywhere
//! to the same bytes.

use std::sync::Arc;

use plimsoll_data::*;
use plimsoll_plan::batch::BatchShape;
use tempfile::tempdir;

use crate::equality::{Draws, Samples, Way};
use crate::fixture::*;

const WORDS: u32 = 900;
const ROWS: usize = 900;

/// Lengths as texts have them: many short, few long.
fn rows() -> Vec<(String, String)> {
    let mut draws = Draws(11);
    let mut text = |i: usize, most: usize| {
        let n = (1 + draws.below(most)) >> draws.below(4);
        (0..n.max(1)).map(|k| format!("w{}", (i + 31 * k) % WORDS as usize)).collect::<Vec<_>>().join(" ")
    };
    (0..ROWS).map(|i| (text(i, 90), text(i, 30))).collect()
}

fn tokens(text: &str) -> Vec<u32> {
    text.split(' ').map(|word| word[1..].parse::<u32>().unwrap() + 3).chain([EOS]).collect()
}

struct Made {
    _dir: tempfile::TempDir,
    sources: Arc<Sources>,
    texts: Arc<Sources>,
    tokenizer: Arc<TextTokenizer>,
}

fn made() -> Made {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    jsonl(&path, &rows());
    let source = Columns { source: Some("source".into()), target: None };
    Made {
        sources: Arc::new(open(&path).unwrap()),
        texts: Arc::new(Sources::open_kind(&[path], Kind::Text, source).unwrap()),
        tokenizer: words_tokenizer(dir.path(), WORDS),
        _dir: dir,
    }
}

const SHAPE: BatchShape = BatchShape { samples: 4, source_len: 48, target_len: 12, documents: 1 };

impl Made {
    fn way(&self, recipe: Recipe) -> Way<'_> {
        let texts = recipe.kind() == Kind::Text;
        let (sources, target_len) = if texts { (&self.texts, 48) } else { (&self.sources, SHAPE.target_len) };
        let order = Order::new(4, true).with_window(5);
        Way { sources, tokenizer: &self.tokenizer, recipe, order, shape: BatchShape { target_len, ..SHAPE } }
    }
}

/// The batches of one pass with the places behind them, and the facts of all of it.
fn pass(way: &Way<'_>, cursor: Cursor, threads: usize) -> (Vec<Samples>, Vec<Cursor>, BatchFacts) {
    let settings = settings(way.shape, threads, 3, cursor);
    let (sources, tokenizer) = (way.sources.clone(), way.tokenizer.clone());
    let mut loader = Loader::start_pass(sources, way.order, tokenizer, way.recipe.clone(), settings).unwrap();
    let (mut batches, mut cursors, mut sum) = (Vec::new(), Vec::new(), BatchFacts::default());
    let mut owned = Owned::new(way.shape);
    loop {
        let facts = loader.next(owned.slot()).unwrap();
        if facts.samples == 0 {
            return (batches, cursors, sum);
        }
        batches.push(match way.recipe.kind() {
            Kind::Pairs => owned.batch(facts).samples.into_iter().map(|sample| vec![sample]).collect(),
            _ => owned.documents(facts),
        });
        cursors.push(facts.cursor_after);
        sum.samples += facts.samples;
        sum.dropped += facts.dropped;
        sum.truncated += facts.truncated;
    }
}

fn sorted(batches: &[Samples]) -> Samples {
    let mut all = batches.concat();
    all.sort_unstable();
    all
}

/// The same stream by any threads and ranks, over the end of a pass, and from forty places.
fn is_one_stream(way: &Way<'_>, rounds: usize) {
    let (whole, cursors) = way.batches(1, 1, rounds);
    assert!(cursors.last().unwrap().epoch >= 1, "more than a pass");
    for (threads, ranks) in [(2, 1), (7, 1), (1, 2), (2, 5), (7, 5)] {
        let (other, _) = way.batches(threads, ranks, rounds / ranks);
        assert!(other[..] == whole[..other.len()], "{threads} threads, {ranks} ranks");
    }
    let mut draws = Draws(5);
    for _ in 0..40 {
        let at = draws.below(rounds - 6);
        let state = serde_json::to_vec(&cursors[at]).unwrap();
        assert!(state.len() < 100);
        let mut loader = way.start(1 + draws.below(7), serde_json::from_slice(&state).unwrap(), Ranks::ONE);
        for nth in 1..6 {
            assert!(way.next(&mut loader).0 == whole[at + nth], "batch {nth} behind {at}");
        }
    }
}

#[test]
fn pairs_that_are_too_long_are_left_out_and_counted() {
    let made = made();
    let fits =
        |(source, target): &(Vec<u32>, Vec<u32>)| source.len() <= SHAPE.source_len && target.len() <= SHAPE.target_len;
    let all = rows().iter().map(|(s, t)| (tokens(s), tokens(t))).collect::<Vec<_>>();
    let mut expected: Samples = all.iter().filter(|pair| fits(pair)).map(|pair| vec![pair.clone()]).collect();
    expected.sort_unstable();
    let left_out = (ROWS - expected.len()) as u64;
    assert!(left_out > 50, "{left_out}");
    for recipe in [Recipe::pairs().dropping(), Recipe::pairs().dropping().by_length()] {
        let way = made.way(recipe.clone());
        let (batches, cursors, sum) = pass(&way, Cursor::default(), 3);
        assert!(sorted(&batches) == expected);
        assert_eq!((sum.samples, sum.truncated), (expected.len(), 0));
        // Those behind the last sample count with the next pass, which a run goes on to.
        let behind =
            ROWS as u64 - cursors.last().filter(|cursor| cursor.epoch == 0).map_or(ROWS as u64, |c| c.position);
        assert_eq!(sum.dropped, left_out - behind);
        let count = count_samples(way.sources, way.order, way.tokenizer, &recipe, way.shape, 0, 2, None).unwrap();
        assert_eq!(count.samples, expected.len() as u64);
        is_one_stream(&way, 2 * batches.len());
    }
    // Three passes of an endless stream have all of them, thrice.
    let way = made.way(Recipe::pairs().dropping());
    let mut loader = way.start(2, Cursor::default(), Ranks::ONE);
    let mut owned = Owned::new(way.shape);
    let (mut samples, mut dropped) = (0, 0);
    while samples < 3 * expected.len() + 8 {
        let facts = loader.next(owned.slot()).unwrap();
        (samples, dropped) = (samples + facts.samples, dropped + facts.dropped);
    }
    assert!((3 * left_out..3 * left_out + 8).contains(&dropped), "{dropped} of {left_out}");
}

#[test]
fn a_run_that_stops_and_goes_on_counts_what_it_left_out_once() {
    let made = made();
    for recipe in [Recipe::pairs().dropping(), Recipe::pairs().dropping().by_length()] {
        let way = made.way(recipe);
        let count = |loader: &mut Loader| loader.next(Owned::new(way.shape).slot()).unwrap();
        let mut whole = way.start(3, Cursor::default(), Ranks::ONE);
        let expected: u64 = (0..300).map(|_| count(&mut whole).dropped).sum();
        let (mut cursor, mut dropped, mut seen, mut draws) = (Cursor::default(), 0, 0, Draws(8));
        while seen < 300 {
            let mut loader = way.start(2, cursor, Ranks::ONE);
            for _ in 0..(1 + draws.below(9)).min(300 - seen) {
                let facts = count(&mut loader);
                (cursor, dropped, seen) = (facts.cursor_after, dropped + facts.dropped, seen + 1);
            }
        }
        assert_eq!((dropped, cursor), (expected, whole.cursor()));
        assert!(cursor.epoch > 0 && expected > 300, "{expected}");
    }
}

#[test]
fn pairs_that_are_all_too_long_are_an_error_that_says_so() {
    let made = made();
    let mut way = made.way(Recipe::pairs().dropping());
    way.shape = BatchShape { source_len: 1, target_len: 1, ..SHAPE };
    let mut loader = way.start(2, Cursor::default(), Ranks::ONE);
    let error = loader.next(Owned::new(way.shape).slot()).unwrap_err().to_string();
    let expected =
        "all 900 rows have a source of more than 1 or a target of more than 1 tokens, and such rows are dropped";
    assert_eq!(error, expected);
}

/// Places of padded batches that hold nothing, as a share of all.
fn padding(batches: &[Samples]) -> f64 {
    let (mut places, mut filled) = (0, 0);
    for batch in batches {
        let sides: [fn(&Rows) -> usize; 2] = [|sample| sample.0.len(), |sample| sample.1.len()];
        for side in sides {
            let lens: Vec<usize> = batch.iter().map(|sample| side(&sample[0])).collect();
            places += lens.len() * lens.iter().max().unwrap();
            filled += lens.iter().sum::<usize>();
        }
    }
    1.0 - filled as f64 / places as f64
}

#[test]
fn batches_of_like_length_have_the_same_samples_and_less_padding() {
    let made = made();
    let texts = |long: Long| Recipe::text(long, None);
    for plain in [Recipe::pairs(), texts(Long::Cut), texts(Long::Split), texts(Long::Drop)] {
        let (before, ..) = pass(&made.way(plain.clone()), Cursor::default(), 2);
        let way = made.way(plain.clone().by_length());
        let (after, cursors, _) = pass(&way, Cursor::default(), 2);
        assert!(sorted(&before) == sorted(&after), "{plain:?}");
        assert_eq!(before.len(), after.len(), "only the last batch is not full");
        let (less, more) = (padding(&after), padding(&before));
        println!(
            "{:?}, long texts {:?}: padding {:.1} %, by length {:.1} %",
            plain.kind(),
            plain.long(),
            100.0 * more,
            100.0 * less
        );
        // Of pairs both sides are drawn for themselves here, which is the hardest for sorting.
        let most = if plain.kind() == Kind::Pairs { 0.5 } else { 0.25 };
        assert!(less < most * more, "{less} {more}");
        // Not from the longest to the shortest.
        let lengths: Vec<usize> = after.iter().map(|batch| batch[0][0].0.len()).collect();
        let falls = lengths.windows(2).filter(|pair| pair[0] >= pair[1]).count();
        assert!(falls < 3 * lengths.len() / 4, "{lengths:?}");
        // A pass is entered anywhere.
        for at in (0..cursors.len() - 1).step_by(7).filter(|at| cursors[*at].epoch == 0) {
            let (rest, ..) = pass(&way, cursors[at], 3);
            assert!(rest[..] == after[at + 1..], "{plain:?} behind batch {at}");
        }
        is_one_stream(&way, 2 * after.len());
    }
}

#[test]
fn packed_samples_are_not_sorted_by_length() {
    let made = made();
    let way = made.way(Recipe::text(Long::Split, None).by_length());
    let shape = BatchShape { documents: 8, ..way.shape };
    let (sources, tokenizer) = (made.texts.clone(), made.tokenizer.clone());
    let settings = settings(shape, 1, 2, Cursor::default());
    let error = Loader::start(sources, way.order, tokenizer, way.recipe.clone(), settings).err().unwrap().to_string();
    assert_eq!(error, "the loader's `documents` is 8, expected 1 where samples of like length share a batch");
}
