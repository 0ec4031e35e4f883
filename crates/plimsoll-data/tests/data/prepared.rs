//! Prepared data give the very stream that the original files give, for every kind, length and tokenizer, and a run may change from
//! one to the other anywhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_data::*;
use plimsoll_plan::batch::BatchShape;
use tempfile::{TempDir, tempdir};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::models::unigram::{Unigram, UnigramTrainer};
use tokenizers::normalizers::NFKC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::Metaspace;
use tokenizers::{AddedToken, ModelWrapper, Tokenizer};

use crate::fixture::*;

/// Words of many lengths, some unknown, some with accents.
fn text(seed: usize, words: usize) -> String {
    let word = |k: usize| match (seed * 7 + k * 13) % 11 {
        0 => "naïve".to_string(),
        1 => format!("x{}", seed % 97),
        2 => "antidisestablishmentarianism".into(),
        _ => format!("w{}", (seed * 31 + k * 17) % 300),
    };
    (0..words).map(|k| word(k) + if k % 9 == 4 { ".\n" } else { " " }).collect()
}

/// Rows as they come, and such as make cutting hard: empty, blank, without a blank, of letters that grow, and far too long.
fn texts() -> Vec<String> {
    let mut rows: Vec<String> = (0..260).map(|i| text(i, 1 + i * 5 % 60)).collect();
    for i in (0..260).step_by(13) {
        rows[i] = text(i, 300 + 40 * (i % 7));
    }
    rows[3] = String::new();
    rows[5] = " ".repeat(3000);
    rows[8] = format!("a{}b c d e f g", " ".repeat(700));
    rows[21] = "x".repeat(5000);
    rows[34] = "ﷺ".repeat(400);
    rows[55] = "日本語".repeat(300);
    rows[89] = format!("{}{}", "one two ".repeat(40), "\u{3000}".repeat(300));
    rows
}

/// Enough of them for many blocks.
fn many_texts() -> Vec<String> {
    (0..6).flat_map(|_| texts()).collect()
}

/// The same, with one that is not looked at whole for any length.
fn long_texts() -> Vec<String> {
    let mut rows = texts();
    rows[144] = text(144, 30_000);
    rows
}

fn saved(dir: &Path, name: &str, mut tokenizer: Tokenizer, mut trainer: TrainerWrapper) -> Arc<TextTokenizer> {
    let corpus: Vec<String> = (0..400).map(|i| text(i, 12)).collect();
    tokenizer.train(&mut trainer, corpus.iter()).unwrap();
    let path = dir.join(format!("{name}.json"));
    tokenizer.save(&path, false).unwrap();
    Arc::new(TextTokenizer::load(&path, 5000, 1, 0).unwrap())
}

fn special() -> Vec<AddedToken> {
    ["<pad>", "</s>", "<unk>", "<user>", "<assistant>"].map(|t| AddedToken::from(t, true)).to_vec()
}

/// Words at blanks; bytes merged; pieces with a blank put before each text.
fn tokenizers(dir: &Path) -> Vec<Arc<TextTokenizer>> {
    let mut bytes = Tokenizer::new(ModelWrapper::BPE(BPE::default()));
    bytes.with_pre_tokenizer(Some(ByteLevel::default().add_prefix_space(false)));
    let trainer = BpeTrainer::builder()
        .vocab_size(600)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(special())
        .show_progress(false)
        .build();
    let bpe = saved(dir, "bpe", bytes, TrainerWrapper::BpeTrainer(trainer));
    let mut pieces = Tokenizer::new(ModelWrapper::Unigram(Unigram::default()));
    pieces.with_normalizer(Some(NFKC)).unwrap();
    pieces.with_pre_tokenizer(Some(Metaspace::default()));
    let trainer = UnigramTrainer::builder()
        .vocab_size(400)
        .unk_token(Some("<unk>".into()))
        .special_tokens(special())
        .show_progress(false)
        .build()
        .unwrap();
    let unigram = saved(dir, "unigram", pieces, TrainerWrapper::UnigramTrainer(trainer));
    vec![words_tokenizer(dir, 300), bpe, unigram]
}

struct Set {
    dir: TempDir,
    file: PathBuf,
    kind: Kind,
    sources: Arc<Sources>,
}

impl Set {
    fn of(kind: Kind, lines: impl Iterator<Item = serde_json::Value>) -> Set {
        let dir = tempdir().unwrap();
        let file = dir.path().join("rows.jsonl");
        fs_err::write(&file, lines.map(|line| line.to_string() + "\n").collect::<String>()).unwrap();
        let sources = Arc::new(Sources::open_kind(std::slice::from_ref(&file), kind, Columns::default()).unwrap());
        Set { dir, file, kind, sources }
    }

    fn pairs() -> Set {
        let rows = long_texts().into_iter().zip(texts().into_iter().rev());
        Set::of(Kind::Pairs, rows.map(|(s, t)| serde_json::json!({"source": s, "target": t})))
    }

    fn texts(rows: Vec<String>) -> Set {
        Set::of(Kind::Text, rows.into_iter().map(|text| serde_json::json!({ "text": text })))
    }

    fn chats(rows: Vec<String>) -> Set {
        let talk = |(i, text): (usize, String)| {
            let mut messages = Vec::new();
            for turn in 0..1 + i % 4 {
                messages.push(Message::new("user", &format!("q{turn} {}", self::text(i + turn, i % 9))));
                let part = text.chars().skip(turn * 40).take(if turn == i % 4 { usize::MAX } else { 40 });
                messages.push(Message::new("assistant", &part.collect::<String>()));
            }
            serde_json::json!({ "messages": messages })
        };
        Set::of(Kind::Chat, rows.into_iter().enumerate().map(talk))
    }

    /// Prepares it for a length and opens what was made.
    fn prepared(
        &self,
        tokenizer: &TextTokenizer,
        recipe: &Recipe,
        lengths: [usize; 2],
    ) -> (Arc<Sources>, PreparedReport) {
        let folder = self.dir.path().join(format!("prepared-{:?}", lengths));
        forget_prepared(&folder).unwrap();
        let settings = settings_for(lengths);
        let report = prepare(&self.sources, tokenizer, recipe, &settings, &folder, &mut |_| ()).unwrap();
        let opened = Sources::open_kind(std::slice::from_ref(&folder), self.kind, Columns::default()).unwrap();
        assert!(opened.is_prepared() && is_prepared(&folder) && !unfinished(&folder));
        assert_eq!(verify_prepared(&folder, u64::MAX, &mut |_| ()).unwrap(), report);
        (Arc::new(opened), report)
    }
}

fn settings_for(lengths: [usize; 2]) -> PrepareSettings {
    PrepareSettings { lengths, threads: 3, shard_bytes: 8_000, on_thread_start: None }
}

/// A way of loading.
#[derive(Clone)]
struct Way {
    tokenizer: Arc<TextTokenizer>,
    recipe: Recipe,
    order: Order,
    shape: BatchShape,
}

type Found = (Vec<Vec<Rows>>, BatchFacts);

impl Way {
    fn start(&self, sources: &Arc<Sources>, threads: usize, cursor: Cursor) -> Result<Loader, DataError> {
        let settings = settings(self.shape, threads, 3, cursor);
        Loader::start(sources.clone(), self.order, self.tokenizer.clone(), self.recipe.clone(), settings)
    }

    fn batches(&self, sources: &Arc<Sources>, threads: usize, cursor: Cursor, count: usize) -> Vec<Found> {
        let mut loader = self.start(sources, threads, cursor).unwrap();
        let mut owned = Owned::new(self.shape);
        let mut next = || {
            let facts = loader.next(owned.slot()).unwrap();
            let samples = match self.recipe.kind() {
                Kind::Pairs => owned.batch(facts).samples.into_iter().map(|sample| vec![sample]).collect(),
                _ => owned.documents(facts),
            };
            (samples, facts)
        };
        (0..count).map(|_| next()).collect()
    }

    /// Batches of about a pass and a quarter.
    fn enough(&self, sources: &Arc<Sources>) -> usize {
        let shape = self.shape;
        let count = count_samples(sources, self.order, &self.tokenizer, &self.recipe, shape, 0, 2, None).unwrap();
        (count.samples as usize * 5 / 4).div_ceil(self.shape.samples)
    }
}

/// The stream of both, whole and from places in it, with the work dealt to any number of threads.
fn assert_same(what: &str, way: &Way, original: &Arc<Sources>, prepared: &Arc<Sources>, threads: &[usize]) {
    let count = way.enough(original);
    assert_eq!(count, way.enough(prepared), "{what}: samples of a pass");
    let want = way.batches(original, 2, Cursor::default(), count);
    for &threads in threads {
        let found = way.batches(prepared, threads, Cursor::default(), count);
        for (at, (want, found)) in want.iter().zip(&found).enumerate() {
            assert_eq!(want, found, "{what}, {threads} threads: batch {at}");
        }
    }
    // From either to the other, in the middle of rows and groups.
    for at in [0, count / 7, count / 2, count.saturating_sub(2)] {
        let cursor = want[at].1.cursor_after;
        let rest = &want[want.len().min(at + 1)..want.len().min(at + 4)];
        assert_eq!(way.batches(prepared, 2, cursor, rest.len()), rest, "{what}: from batch {at} on, prepared");
        assert_eq!(way.batches(original, 2, cursor, rest.len()), rest, "{what}: from batch {at} on, original");
    }
}

/// Every length of `lengths` that is served gives the same stream; the one that the set was made for is among them.
fn assert_served(what: &str, set: &Set, way: &Way, made: [usize; 2], lengths: &[[usize; 2]]) -> usize {
    let (prepared, report) = set.prepared(&way.tokenizer, &way.recipe, made);
    assert_eq!(prepared.fingerprint(), set.sources.fingerprint());
    assert_eq!((prepared.rows(), report.rows), (set.sources.rows(), set.sources.rows()));
    let mut served = 0;
    for (nth, &[source_len, target_len]) in lengths.iter().enumerate() {
        let (what, documents) =
            (format!("{what}, made for {made:?}, {source_len} and {target_len}"), way.shape.documents);
        let documents = if documents > 1 { documents_of(true, source_len) } else { 1 };
        let way = Way { shape: BatchShape { samples: 4, source_len, target_len, documents }, ..way.clone() };
        match prepared.check_fit(&way.tokenizer, &way.recipe, [source_len, target_len]) {
            Ok(()) => {
                let threads: &[usize] = if nth == 0 { &[1, 2, 7] } else { &[2] };
                assert_same(&what, &way, &set.sources, &prepared, threads);
                served += 1;
            }
            Err(error) => {
                assert!([source_len, target_len] != made, "{what}: {error}");
                assert!(matches!(error, DataError::PreparedLength { .. }), "{what}: {error}");
                let started = way.start(&prepared, 1, Cursor::default()).err().unwrap();
                assert_eq!(started.to_string(), error.to_string());
            }
        }
    }
    served
}

fn shuffled() -> Order {
    Order::new(5, true).with_window(3)
}

#[test]
fn pairs_are_the_same_from_prepared_data() {
    let set = Set::pairs();
    assert!(set.sources.facts().blocks > 4);
    let dir = tempdir().unwrap();
    for tokenizer in tokenizers(dir.path()) {
        for order in [shuffled(), Order::new(0, false)] {
            let shape = BatchShape { samples: 4, source_len: 1, target_len: 1, documents: 1 };
            let way = Way { tokenizer: tokenizer.clone(), recipe: Recipe::pairs(), order, shape };
            let lengths = [[24, 16], [24, 300], [1, 16], [200, 4096], [4096, 16], [5000, 7], [512, 2000]];
            let served = assert_served("pairs", &set, &way, lengths[0], &lengths);
            assert!(served >= 1, "{served}");
        }
    }
}

#[test]
fn texts_are_the_same_from_prepared_data_split_cut_or_dropped() {
    let dir = tempdir().unwrap();
    // The long ones packed.
    let sets = [("short", Set::texts(texts())), ("long", Set::texts(long_texts()))];
    let (mut served, mut cases) = (0, 0);
    for (nth, tokenizer) in tokenizers(dir.path()).into_iter().enumerate() {
        for long in [Long::Split, Long::Cut, Long::Drop] {
            for ((name, set), documents) in sets.iter().zip([1, 2]) {
                let shape = BatchShape { samples: 4, source_len: 1, target_len: 1, documents };
                let recipe = Recipe::text(long, Some(2));
                let way = Way { tokenizer: tokenizer.clone(), recipe, order: shuffled(), shape };
                let lengths = [40, 8, 100, 300, 4096, 6000].map(|n| [n, n]);
                let what = format!("texts, {name}, tokenizer {nth}, {long:?}, {documents} documents");
                served += assert_served(&what, set, &way, lengths[0], &lengths);
                cases += 1;
            }
        }
    }
    // Many serve other lengths too, and some none but their own.
    assert!(served > cases + 15 && served < 5 * cases, "{served} lengths of {cases} sets");
}

const UNMARKED: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}\
                        {% if add_generation_prompt %}<assistant>{% endif %}";

#[test]
fn chats_are_the_same_from_prepared_data_by_marked_and_unmarked_templates() {
    let dir = tempdir().unwrap();
    let tokens: BTreeMap<String, String> = [("eos_token".to_string(), "</s>".to_string())].into();
    let sets = [Set::chats(texts()), Set::chats(long_texts())];
    for (nth, tokenizer) in tokenizers(dir.path()).into_iter().enumerate() {
        let plain = Recipe::plain_chat(&tokenizer, &tokens).unwrap();
        let unmarked = Recipe::chat(Arc::new(ChatTemplate::new(UNMARKED, &tokens).unwrap()));
        for (name, recipe) in [("plain", plain), ("unmarked", unmarked.clone()), ("dropped", unmarked.dropping())] {
            for (packed, set) in [(false, &sets[0]), (true, &sets[1])] {
                let shape =
                    BatchShape { samples: 4, source_len: 1, target_len: 1, documents: if packed { 2 } else { 1 } };
                let way = Way { tokenizer: tokenizer.clone(), recipe: recipe.clone(), order: shuffled(), shape };
                let lengths = [48, 9, 64, 200, 4096, 6000].map(|n| [n, n]);
                let what = format!("chats, {name}, tokenizer {nth}, packed {packed}");
                assert_served(&what, set, &way, lengths[0], &lengths);
            }
        }
    }
}

#[test]
fn pairs_left_out_and_batches_of_like_length_are_the_same_from_prepared_data() {
    let dir = tempdir().unwrap();
    let (pairs, texts) = (Set::pairs(), Set::texts(texts()));
    let mut served = 0;
    for tokenizer in tokenizers(dir.path()) {
        let dropping = Recipe::pairs().dropping();
        for recipe in [dropping.clone(), Recipe::pairs().by_length(), dropping.by_length()] {
            let shape = BatchShape { samples: 4, source_len: 1, target_len: 1, documents: 1 };
            let what = format!("pairs, {recipe:?}");
            let way = Way { tokenizer: tokenizer.clone(), recipe, order: shuffled(), shape };
            let lengths = [[60, 70], [24, 300], [4096, 16], [5000, 7]];
            served += assert_served(&what, &pairs, &way, lengths[0], &lengths);
            let recipe = Recipe::text(Long::Cut, None).by_length();
            let way = Way { recipe, ..way };
            served += assert_served("texts by length", &texts, &way, [40, 40], &[[40, 40], [4096, 4096]]);
        }
    }
    assert!(served > 18, "{served}");
}

#[test]
fn a_ceiling_gives_prepared_data_the_windows_of_the_files() {
    let set = Set::texts((0..90).flat_map(|_| texts()).collect());
    let dir = tempdir().unwrap();
    let tokenizer = words_tokenizer(dir.path(), 300);
    let (prepared, _) = set.prepared(&tokenizer, &Recipe::text(Long::Cut, None), [40, 40]);
    let asked = Order::new(5, true).with_window(64);
    let mut windows = Vec::new();
    for ceiling in [256 << 10, 1 << 20, 4 << 20, 1 << 40] {
        let order = asked.within(&set.sources, ceiling);
        assert_eq!(asked.within(&prepared, ceiling), order, "below {ceiling}");
        windows.push(order.window_blocks());
    }
    assert!(windows.is_sorted() && windows[0] < windows[2] && windows[3] == 64, "{windows:?}");
}

#[test]
fn rows_that_are_short_serve_every_length() {
    let dir = tempdir().unwrap();
    let rows: Vec<String> = (0..300).map(|i| text(i, 1 + i % 30)).collect();
    let [_, bpe, _] = <[_; 3]>::try_from(tokenizers(dir.path())).unwrap();
    let shape = BatchShape { samples: 4, source_len: 1, target_len: 1, documents: 1 };
    let way = |recipe: Recipe| Way { tokenizer: bpe.clone(), recipe, order: shuffled(), shape };
    let lengths = [64, 12, 20, 33, 512, 5000].map(|n| [n, n]);
    let set = Set::texts(rows.clone());
    for long in [Long::Split, Long::Cut] {
        assert_eq!(assert_served("texts", &set, &way(Recipe::text(long, None)), lengths[0], &lengths), lengths.len());
    }
    let (prepared, report) = set.prepared(&bpe, &Recipe::text(Long::Split, None), [64, 64]);
    assert!(report.lengths[0].serves.ends_with("tokens and more"), "{report:?}");
    assert_eq!((report.word_bytes, report.shards), (2, 1));
    // The lengths that nobody gave are those it was made for.
    let found = suggest_length(&prepared, &bpe, &Recipe::text(Long::Split, None), SAMPLE_ROWS, 1024).unwrap();
    assert_eq!((found.source, found.target, found.sampled), (64, 64, 300));
    let chats = Set::chats(rows);
    let recipe = Recipe::plain_chat(&bpe, &BTreeMap::new()).unwrap();
    assert_eq!(assert_served("chats", &chats, &way(recipe), [64, 64], &lengths), 5, "all but 12");
}

#[test]
fn what_is_prepared_depends_on_nothing_but_data_and_recipe() {
    let set = Set::texts(many_texts());
    let dir = tempdir().unwrap();
    let tokenizer = words_tokenizer(dir.path(), 300);
    let bytes = |threads: usize| {
        let folder = set.dir.path().join(format!("by-{threads}"));
        let settings = PrepareSettings { threads, ..settings_for([40, 40]) };
        let recipe = Recipe::text(Long::Cut, None);
        let mut told = Vec::new();
        prepare(&set.sources, &tokenizer, &recipe, &settings, &folder, &mut |rows| told.push(rows)).unwrap();
        assert!(told.is_sorted() && told.last() == Some(&set.sources.rows()));
        let estimate = estimate_prepared(&set.sources, &tokenizer, &recipe, [40, 40]).unwrap();
        let files = folder_bytes(&folder);
        let stored: usize = files.iter().filter(|(name, _)| name.ends_with(".tokens")).map(|(_, b)| b.len()).sum();
        assert!((estimate as f64 / stored as f64 - 1.0).abs() < 0.2, "{estimate} for {stored}");
        files
    };
    let one = bytes(1);
    assert!(one.len() > 3);
    assert!(one == bytes(2) && one == bytes(7));
}

/// Names and bytes of all files of a folder.
pub fn folder_bytes(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let file = |path: PathBuf| (path.file_name().unwrap().to_string_lossy().into_owned(), fs_err::read(&path).unwrap());
    fs_err::read_dir(folder).unwrap().map(|entry| file(entry.unwrap().path())).collect()
}

const KILL: &str = "PLIMSOLL_TEST_KILL";

/// Runs only as a process of its own: prepares, and is killed by itself at the given call.
#[test]
fn child_that_is_killed() {
    let Ok(said) = std::env::var(KILL) else { return };
    let [file, folder, calls] = <[&str; 3]>::try_from(said.split('\n').collect::<Vec<_>>()).unwrap();
    let (file, folder) = (Path::new(file), Path::new(folder));
    let sources = Sources::open_kind(&[file.to_path_buf()], Kind::Text, Columns::default()).unwrap();
    let tokenizer = words_tokenizer(file.parent().unwrap(), 300);
    let mut left: usize = calls.parse().unwrap();
    let recipe = Recipe::text(Long::Split, None);
    let _ = prepare(&sources, &tokenizer, &recipe, &settings_for([40, 40]), folder, &mut |_| {
        left -= 1;
        if left == 0 {
            let us = rustix::process::getpid();
            rustix::process::kill_process(us, rustix::process::Signal::KILL).unwrap();
        }
    });
}

#[test]
fn a_process_that_is_killed_leaves_whole_shards_and_the_next_goes_on_from_them() {
    let set = Set::texts(many_texts());
    let tokenizer = words_tokenizer(set.dir.path(), 300);
    let recipe = Recipe::text(Long::Split, None);
    let run = |folder: &Path, tell: &mut dyn FnMut(u64)| {
        prepare(&set.sources, &tokenizer, &recipe, &settings_for([40, 40]), folder, tell)
    };
    let whole = set.dir.path().join("whole");
    run(&whole, &mut |_| ()).unwrap();
    let want = folder_bytes(&whole);
    assert!(want.len() > 4, "{:?}", want.keys());
    let blocks = set.sources.facts().blocks as usize;
    let mut went_on = 0;
    for calls in [1, 2, blocks / 2, blocks] {
        let folder = set.dir.path().join(format!("killed-{calls}"));
        // Killed twice at the same call: the second is further on, where a shard was whole.
        for _ in 0..2 {
            let status = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "prepared::child_that_is_killed", "--test-threads", "1"])
                .env(KILL, format!("{}\n{}\n{calls}", set.file.display(), folder.display()))
                .output()
                .unwrap()
                .status;
            let signal = std::os::unix::process::ExitStatusExt::signal(&status);
            assert!(signal == Some(9) || status.success(), "{status}");
            let there = folder_bytes(&folder);
            for (name, bytes) in &there {
                assert!(name.ends_with(".part") || want.get(name) == Some(bytes), "{calls}: {name} is not whole");
            }
            if signal == Some(9) {
                assert!(!is_prepared(&folder));
            }
        }
        assert!(is_prepared(&folder) || unfinished(&folder) || folder_bytes(&folder).is_empty());
        let mut first = None;
        run(&folder, &mut |rows| first = first.or(Some(rows))).unwrap();
        went_on += u64::from(first > Some(0));
        assert!(folder_bytes(&folder) == want, "{calls}: {:?}", folder_bytes(&folder).keys());
    }
    assert!(went_on >= 2, "{went_on}");
}
