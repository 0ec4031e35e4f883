//! One stream, whatever the format, the threads and the number of consumers: each row of the files exactly once a pass, in the same
//! order, and entered anywhere to the same bytes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_data::*;
use plimsoll_plan::batch::BatchShape;
use tempfile::{TempDir, tempdir};

use crate::arrow;
use crate::fixture::*;
use crate::packed::gz;
use crate::parquet::write_pairs;

pub const WORDS: u32 = 900;
const ROWS: usize = 900;

/// Where it is drawn at random: splitmix64, so that a failure repeats.
pub struct Draws(pub u64);

impl Draws {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((z ^ (z >> 27)) % n as u64) as usize
    }
}

/// Row i begins with its own number; some are far longer than a sample.
fn rows() -> Vec<(String, String)> {
    let text = |i: usize, n: usize| {
        (0..n).map(|k| format!("w{}", (i + 31 * k) % WORDS as usize)).collect::<Vec<_>>().join(" ")
    };
    (0..ROWS).map(|i| (text(i, 1 + i * 7 % 40 + if i % 50 == 0 { 300 } else { 0 }), text(i, 1 + i % 5))).collect()
}

/// The rows in every format, each cut into several files.
pub struct Files {
    dir: TempDir,
    formats: Vec<(&'static str, Vec<PathBuf>)>,
}

pub fn files() -> Files {
    let dir = tempdir().unwrap();
    let rows = rows();
    let mut formats = Vec::new();
    for name in
        ["jsonl", "csv", "tsv", "txt", "parquet", "arrow", "arrows", "jsonl.gz", "jsonl.zst", "csv.gz", "txt.zst"]
    {
        let mut paths = Vec::new();
        for (nth, rows) in rows.chunks(ROWS / 3).enumerate() {
            let path = dir.path().join(format!("{nth}.{name}"));
            write(&path, name, rows);
            paths.push(path);
        }
        formats.push((name, paths));
    }
    Files { dir, formats }
}

pub fn write(path: &Path, name: &str, rows: &[(String, String)]) {
    let (form, packing) = name.split_once('.').map_or((name, None), |(form, packing)| (form, Some(packing)));
    let cells = |between: &str| -> String {
        let line = |(s, t): &(String, String)| format!("{s}{between}{t}\n");
        format!("source{between}target\n") + &rows.iter().map(line).collect::<String>()
    };
    let bytes = match form {
        "parquet" => return write_pairs(path, rows, rows.len() / 2),
        "arrow" | "arrows" => return arrow::write_pairs(path, rows, rows.len() / 2),
        "jsonl" => {
            let line = |(s, t): &(String, String)| serde_json::json!({"source": s, "target": t}).to_string() + "\n";
            rows.iter().map(line).collect::<String>()
        }
        "csv" => cells(","),
        "tsv" => cells("\t"),
        _ => rows.iter().map(|(s, _)| format!("{s}\n")).collect(),
    };
    let bytes = match packing {
        None => bytes.into_bytes(),
        Some("gz") => gz(bytes.as_bytes()),
        Some(_) => zstd::encode_all(bytes.as_bytes(), 3).unwrap(),
    };
    fs_err::write(path, bytes).unwrap();
}

impl Files {
    pub fn paths(&self, name: &str) -> &[PathBuf] {
        &self.formats.iter().find(|(format, _)| *format == name).unwrap().1
    }

    pub fn columns(&self, name: &str, kind: Kind) -> Columns {
        let source = (kind == Kind::Text && name.split('.').next() != Some("txt")).then(|| "source".to_string());
        Columns { source, target: None }
    }

    pub fn open(&self, name: &str, kind: Kind) -> Arc<Sources> {
        let (paths, columns) = (self.paths(name), self.columns(name, kind));
        Arc::new(Sources::open_in(paths, kind, columns, Some(&self.dir.path().join("cache"))).unwrap())
    }

    /// The formats that have rows of this kind.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &'static str> {
        let names: Vec<_> = self.formats.iter().map(|(name, _)| *name).collect();
        names.into_iter().filter(move |name| kind == Kind::Text || !name.starts_with("txt"))
    }
}

/// What is loaded, and how.
pub struct Way<'a> {
    pub sources: &'a Arc<Sources>,
    pub tokenizer: &'a Arc<TextTokenizer>,
    pub recipe: Recipe,
    pub order: Order,
    pub shape: BatchShape,
}

pub type Samples = Vec<Vec<Rows>>;

impl Way<'_> {
    pub fn start(&self, threads: usize, cursor: Cursor, ranks: Ranks) -> Loader {
        let settings = LoaderSettings { ranks, ..settings(self.shape, threads, 3, cursor) };
        let (sources, tokenizer) = (self.sources.clone(), self.tokenizer.clone());
        Loader::start(sources, self.order, tokenizer, self.recipe.clone(), settings).unwrap()
    }

    pub fn next(&self, loader: &mut Loader) -> (Samples, Cursor) {
        let mut owned = Owned::new(self.shape);
        let facts = loader.next(owned.slot()).unwrap();
        let samples = match self.recipe.kind() {
            Kind::Pairs => owned.batch(facts).samples.into_iter().map(|sample| vec![sample]).collect(),
            _ => owned.documents(facts),
        };
        (samples, facts.cursor_after)
    }

    /// Batches of all ranks, in the order of the stream, and the cursors behind the rounds.
    pub fn batches(&self, threads: usize, ranks: usize, rounds: usize) -> (Vec<Samples>, Vec<Cursor>) {
        let mut loaders: Vec<Loader> =
            (0..ranks).map(|rank| self.start(threads, Cursor::default(), Ranks { rank, of: ranks })).collect();
        let (mut all, mut cursors) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let round: Vec<_> = loaders.iter_mut().map(|loader| self.next(loader)).collect();
            assert!(round.iter().all(|(_, cursor)| *cursor == round[0].1), "all ranks are at the same place");
            cursors.push(round[0].1);
            all.extend(round.into_iter().map(|(samples, _)| samples));
        }
        (all, cursors)
    }
}

/// The three ways of making samples.
pub fn ways<'a>(sources: &'a Arc<Sources>, tokenizer: &'a Arc<TextTokenizer>) -> Vec<Way<'a>> {
    let order = Order::new(4, true).with_window(5);
    let of = |recipe: Recipe, documents: usize| {
        let (source_len, target_len) = if recipe.kind() == Kind::Pairs { (352, 8) } else { (64, 64) };
        let shape = BatchShape { samples: 3, source_len, target_len, documents };
        Way { sources, tokenizer, recipe, order, shape }
    };
    match sources.kind() {
        Kind::Pairs => vec![of(Recipe::pairs(), 1)],
        _ => vec![of(Recipe::text(Long::Split, None), 1), of(Recipe::text(Long::Split, None), 8)],
    }
}

/// The tokens of what a row says, without the end.
fn spoken(text: &str) -> Vec<u32> {
    text.split(' ').map(|word| word[1..].parse::<u32>().unwrap() + 3).collect()
}

/// Every input token but the last of each row, counted: pieces of a row have all of them, whichever samples they lie in.
fn inputs(samples: impl Iterator<Item = Rows>) -> Vec<Vec<u32>> {
    let mut list: Vec<Vec<u32>> = samples.map(|(source, _)| source).collect();
    list.sort_unstable();
    list
}

#[test]
fn a_pass_is_the_files_for_every_format_any_threads_and_any_number_of_ranks() {
    let files = files();
    let tokenizer = words_tokenizer(files.dir.path(), WORDS);
    for kind in [Kind::Pairs, Kind::Text] {
        for name in files.of(kind) {
            let sources = files.open(name, kind);
            assert_eq!(sources.rows(), ROWS as u64, "{name}");
            for way in ways(&sources, &tokenizer) {
                check_pass(&way, name);
            }
        }
    }
}

fn check_pass(way: &Way<'_>, name: &str) {
    // What a pass should have: pairs whole, texts in pieces of a sample's length.
    let length = way.shape.source_len;
    let expected = inputs(rows().into_iter().flat_map(|(source, _)| {
        let mut tokens = spoken(&source);
        if way.recipe.kind() == Kind::Pairs {
            tokens.push(EOS);
        }
        tokens.chunks(length).map(|piece| (piece.to_vec(), Vec::new())).collect::<Vec<_>>()
    }));
    let (first, cursors) = way.batches(1, 1, ROWS);
    let passes = cursors.iter().position(|cursor| cursor.epoch == 1).expect("a pass is over") + 1;
    // Batches are of three; a pass that ends within one goes on in the next.
    let whole: Vec<Rows> = first.concat().concat();
    let pass: Vec<Rows> = whole[..expected.len()].to_vec();
    assert_eq!(inputs(pass.into_iter()), expected, "{name}");
    for (threads, ranks) in [(2, 1), (7, 1), (1, 2), (2, 5), (7, 5)] {
        let (other, _) = way.batches(threads, ranks, passes.div_ceil(ranks));
        assert!(other[..] == first[..other.len()], "{name}, {threads} threads, {ranks} ranks");
    }
}

#[test]
fn two_hundred_random_places_are_entered_to_the_same_bytes() {
    let files = files();
    let tokenizer = words_tokenizer(files.dir.path(), WORDS);
    let mut draws = Draws(1);
    let (rounds, following, mut entered) = (160, 12, 0);
    let all: Vec<_> =
        [Kind::Pairs, Kind::Text].into_iter().flat_map(|kind| files.of(kind).map(move |f| (f, kind))).collect();
    for (name, kind) in all {
        let sources = files.open(name, kind);
        for way in ways(&sources, &tokenizer) {
            let (whole, cursors) = way.batches(2, 1, rounds + following);
            for _ in 0..10 {
                let at = draws.below(rounds);
                let (threads, of) = (1 + draws.below(7), [1, 2, 3, 4][draws.below(4)]);
                let state = serde_json::to_vec(&cursors[at]).unwrap();
                assert!(state.len() < 100);
                let cursor = serde_json::from_slice(&state).unwrap();
                let rank = draws.below(of);
                let mut loader = way.start(threads, cursor, Ranks { rank, of });
                for nth in (rank..following).step_by(of) {
                    let (samples, _) = way.next(&mut loader);
                    assert!(samples == whole[at + 1 + nth], "{name}: batch {nth} behind {at}, rank {rank} of {of}");
                }
                entered += 1;
            }
        }
    }
    assert!(entered >= 200, "{entered}");
}

#[test]
fn a_limit_is_of_the_whole_stream() {
    let files = files();
    let tokenizer = words_tokenizer(files.dir.path(), WORDS);
    for kind in [Kind::Pairs, Kind::Text] {
        let sources = files.open("jsonl", kind);
        for way in ways(&sources, &tokenizer) {
            let of = 2;
            // In a round of one batch and less, a rank has none; it stands behind it all the same.
            let ends = [3, 8, 10].map(|limit| {
                let end = |rank| {
                    let ranks = Ranks { rank, of };
                    let settings =
                        LoaderSettings { ranks, limit: Some(limit), ..settings(way.shape, 2, 2, Cursor::default()) };
                    let (sources, tokenizer) = (sources.clone(), tokenizer.clone());
                    let mut loader =
                        Loader::start(sources, way.order, tokenizer, way.recipe.clone(), settings).unwrap();
                    (0..4).for_each(|_| drop(way.next(&mut loader)));
                    loader.cursor()
                };
                [end(0), end(1)]
            });
            ends.iter().for_each(|[one, other]| assert_eq!(one, other));
            let counts: Vec<Vec<usize>> = (0..of)
                .map(|rank| {
                    let ranks = Ranks { rank, of };
                    let settings =
                        LoaderSettings { ranks, limit: Some(10), ..settings(way.shape, 2, 2, Cursor::default()) };
                    let (sources, tokenizer) = (sources.clone(), tokenizer.clone());
                    let mut loader =
                        Loader::start(sources, way.order, tokenizer, way.recipe.clone(), settings).unwrap();
                    (0..3).map(|_| way.next(&mut loader).0.len()).collect()
                })
                .collect();
            assert_eq!(counts, [[3, 3, 0], [3, 1, 0]]);
        }
    }
}
