//! Weighted mixtures: each row as often as its weight says, in one pass and in ten, whatever the threads and ranks, and entered
//! anywhere to the same bytes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_data::*;
use plimsoll_plan::batch::BatchShape;
use tempfile::{TempDir, tempdir};

use crate::equality::{Draws, Way, ways, write};
use crate::fixture::*;

const WORDS: u32 = 900;

/// Row i begins with its own number.
fn row(i: usize) -> (String, String) {
    let text = |n: usize| (0..n).map(|k| format!("w{}", (i + 31 * k) % WORDS as usize)).collect::<Vec<_>>().join(" ");
    (text(1 + i * 7 % 40), text(1 + i % 5))
}

/// Files of one set: which rows, in which format, how many files.
struct Made {
    rows: std::ops::Range<usize>,
    paths: Vec<PathBuf>,
    columns: Columns,
}

/// Three sets of different formats; the third has columns of its own.
fn made(dir: &Path) -> [Made; 3] {
    let of = |rows: std::ops::Range<usize>, name: &str, files: usize| {
        let each = rows.len().div_ceil(files);
        let all: Vec<(String, String)> = rows.clone().map(row).collect();
        let paths = all.chunks(each).enumerate().map(|(nth, rows)| {
            let path = dir.join(format!("{}-{nth}.{name}", all.len()));
            write(&path, name, rows);
            path
        });
        Made { rows, paths: paths.collect(), columns: Columns::default() }
    };
    let mut other = of(500..620, "csv", 4);
    for path in &other.paths {
        let text = fs_err::read_to_string(path).unwrap().replacen("source,target", "question,answer", 1);
        fs_err::write(path, text).unwrap();
    }
    other.columns = Columns { source: Some("question".into()), target: Some("answer".into()) };
    [of(0..300, "jsonl", 10), of(300..500, "parquet", 5), other]
}

fn weighed(sets: &[&Made], weights: &[f64], kind: Kind) -> Vec<DataSet> {
    let set = |(made, weight): (&&Made, &f64)| {
        let columns = match kind {
            Kind::Pairs => made.columns.clone(),
            _ => Columns { source: made.columns.source.clone().or(Some("source".into())), target: None },
        };
        DataSet { files: made.paths.clone(), columns, weight: Weight::new(*weight).unwrap() }
    };
    sets.iter().zip(weights).map(set).collect()
}

struct Files {
    dir: TempDir,
    sets: [Made; 3],
    tokenizer: Arc<TextTokenizer>,
}

fn files() -> Files {
    let dir = tempdir().unwrap();
    let (sets, tokenizer) = (made(dir.path()), words_tokenizer(dir.path(), WORDS));
    Files { dir, sets, tokenizer }
}

impl Files {
    fn open(&self, numbers: &[usize], weights: &[f64], kind: Kind) -> Arc<Sources> {
        let sets: Vec<&Made> = numbers.iter().map(|n| &self.sets[*n]).collect();
        Arc::new(Sources::open_mixture(&weighed(&sets, weights, kind), kind, Opening::default()).unwrap())
    }
}

#[test]
fn every_row_comes_as_often_as_its_weight_says_in_one_pass_and_in_ten() {
    let files = files();
    let weights = [1.0, 2.0, 0.5, 0.3, 1.7];
    let two = weights.iter().flat_map(|a| weights.map(|b| (vec![0, 1], vec![*a, b])));
    let three = (0..weights.len()).map(|n| (vec![2, 0, 1], (0..3).map(|k| weights[(n + k * 2) % 5]).collect()));
    let alone = [(vec![2], vec![0.3])];
    for (numbers, weights) in two.chain(three).chain(alone) {
        let sources = files.open(&numbers, &weights, Kind::Pairs);
        if !sources.is_mixture() {
            continue;
        }
        let shape = BatchShape { samples: 2, source_len: 64, target_len: 8, documents: 1 };
        let order = Order::new(9, true).with_window(4);
        let way = Way { sources: &sources, tokenizer: &files.tokenizer, recipe: Recipe::pairs(), order, shape };
        let mut loader = way.start(2, Cursor::default(), Ranks::ONE);
        let mut all: BTreeMap<u32, u64> = BTreeMap::new();
        for pass in 0..10 {
            let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
            let mut samples = 0;
            while samples < sources.rows() {
                let (batch, cursor) = way.next(&mut loader);
                samples += batch.len() as u64;
                for sample in &batch {
                    *counts.entry(sample[0].0[0] - 3).or_default() += 1;
                }
                assert_eq!(cursor.sample(sources.rows()), pass * sources.rows() + samples);
            }
            assert_eq!(samples, sources.rows(), "batches of two end with the pass");
            for (number, weight) in numbers.iter().zip(&weights) {
                let rows = files.sets[*number].rows.clone();
                let here: Vec<u64> = rows.clone().map(|row| counts.get(&(row as u32)).copied().unwrap_or(0)).collect();
                let told = format!("pass {pass} of {numbers:?} with {weights:?}: {here:?}");
                assert_eq!(here.iter().sum::<u64>(), (weight * rows.len() as f64).round() as u64, "{told}");
                assert!(here.iter().all(|n| *n == weight.floor() as u64 || *n == weight.ceil() as u64), "{told}");
            }
            counts.into_iter().for_each(|(row, n)| *all.entry(row).or_default() += n);
        }
        for (number, weight) in numbers.iter().zip(&weights) {
            for row in files.sets[*number].rows.clone() {
                assert_eq!(all[&(row as u32)], (10.0 * weight).round() as u64, "row {row} of {numbers:?}, {weights:?}");
            }
        }
    }
}

#[test]
fn without_shuffle_the_sets_follow_each_other() {
    let files = files();
    let sources = files.open(&[2, 0], &[2.0, 0.5], Kind::Pairs);
    let shape = BatchShape { samples: 10, source_len: 64, target_len: 8, documents: 1 };
    let order = Order::new(9, false);
    let way = Way { sources: &sources, tokenizer: &files.tokenizer, recipe: Recipe::pairs(), order, shape };
    let (batches, _) = way.batches(2, 1, 39);
    let firsts: Vec<u32> = batches.concat().iter().map(|sample| sample[0].0[0] - 3).collect();
    assert_eq!(firsts[..240], (500..620).chain(500..620).collect::<Vec<u32>>());
    assert!(firsts[240..].is_sorted() && firsts[240..].iter().all(|row| *row < 300), "{firsts:?}");
}

#[test]
fn threads_and_ranks_change_nothing_and_every_place_can_be_entered() {
    let files = files();
    let mut draws = Draws(3);
    for (kind, weights) in [(Kind::Pairs, [1.7, 0.3, 2.0]), (Kind::Text, [0.5, 1.0, 1.7])] {
        let sources = files.open(&[0, 1, 2], &weights, kind);
        for way in ways(&sources, &files.tokenizer) {
            let rounds = 3 * sources.rows() as usize / 3;
            let (whole, cursors) = way.batches(1, 1, rounds);
            assert!(cursors.last().unwrap().epoch >= 1, "more than a pass");
            for (threads, ranks) in [(2, 1), (7, 1), (1, 2), (2, 5), (7, 5)] {
                let (other, _) = way.batches(threads, ranks, rounds / ranks);
                assert!(other[..] == whole[..other.len()], "{threads} threads, {ranks} ranks");
            }
            for _ in 0..40 {
                let at = draws.below(rounds - 6);
                let cursor = serde_json::from_slice(&serde_json::to_vec(&cursors[at]).unwrap()).unwrap();
                let mut loader = way.start(1 + draws.below(7), cursor, Ranks::ONE);
                for nth in 1..6 {
                    assert!(way.next(&mut loader).0 == whole[at + nth], "batch {nth} behind {at}");
                }
            }
        }
    }
}

#[test]
fn other_weights_and_sets_have_other_fingerprints() {
    let files = files();
    let of = |numbers: &[usize], weights: &[f64]| files.open(numbers, weights, Kind::Pairs).fingerprint();
    let all = [
        of(&[0], &[1.0]),
        of(&[0], &[2.0]),
        of(&[0, 1], &[1.0, 1.0]),
        of(&[0, 1], &[1.0, 1.000_001]),
        of(&[0, 1], &[2.0, 1.0]),
        of(&[1, 0], &[1.0, 2.0]),
        of(&[0, 1, 2], &[1.0, 1.0, 1.0]),
    ];
    for (nth, one) in all.iter().enumerate() {
        assert!(!all[..nth].contains(one), "{nth}");
    }
    let plain = Sources::open(&files.sets[0].paths, Columns::default()).unwrap();
    assert_eq!(plain.fingerprint(), all[0], "one set of weight 1 is no mixture");
    assert_eq!(plain.facts().mixture, 0);
    let again = made(files.dir.path());
    let sets = weighed(&[&again[0], &again[1]], &[2.0, 1.0], Kind::Pairs);
    assert_eq!(Sources::open_mixture(&sets, Kind::Pairs, Opening::default()).unwrap().fingerprint(), all[4]);
}

#[test]
fn a_weight_that_leaves_nothing_and_a_set_without_rows_are_named() {
    let files = files();
    let error =
        |sets: &[DataSet]| Sources::open_mixture(sets, Kind::Pairs, Opening::default()).unwrap_err().to_string();
    let few = error(&weighed(&[&files.sets[0], &files.sets[2]], &[1.0, 0.001], Kind::Pairs));
    let path = files.sets[2].paths[0].display();
    let expected = format!(
        "set 2 of the mixture (`{path}` ...) has 120 rows, and a weight of 0.001 leaves none of them; give it a larger one"
    );
    assert_eq!(few, expected);
    let empty = files.dir.path().join("empty.csv");
    fs_err::write(&empty, "source,target\n").unwrap();
    let mut sets = weighed(&[&files.sets[0], &files.sets[1]], &[1.0, 1.0], Kind::Pairs);
    sets[1].files = vec![empty.clone()];
    assert_eq!(error(&sets), format!("no rows in 1 file(s), the first is `{}`", empty.display()));
}
