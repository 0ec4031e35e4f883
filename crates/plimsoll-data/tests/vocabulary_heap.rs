//! What counting and training hold, with every allocation counted, against the ceiling that was given.
//!
//! One test function, since the count is of the whole process. `cargo test --test vocabulary_heap -- --nocapture` prints the
//! measurements that the constants in `vocabulary/cost.rs` rest on.

mod counting;

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use plimsoll_data::*;

use counting::{LIVE, PEAK};

/// splitmix64.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Words that are hard in one way each.
fn corpora() -> Vec<(&'static str, Vec<String>)> {
    let mut state = 1;
    let mut text = |letters: &str, syllables: usize, most: u64, least: u64| -> String {
        let letters: Vec<char> = letters.chars().collect();
        let length = least + draw(&mut state) % (most - least + 1);
        (0..length)
            .map(|_| {
                // Few syllables: as in a language, most neighbours are usual ones.
                let at = draw(&mut state) as usize % syllables;
                [letters[at % letters.len()], letters[at * 7 % letters.len()]].iter().collect::<String>()
            })
            .collect()
    };
    let latin = "etaoinshrdlucmfwypvbgk";
    let han: String = (0x4e00u32..0x5200).filter_map(char::from_u32).collect();
    let many = |n: usize, make: &mut dyn FnMut() -> String| (0..n).map(|_| make()).collect::<Vec<String>>();
    vec![
        ("usual words", many(200_000, &mut || text(latin, 300, 6, 1))),
        ("words without pattern", many(60_000, &mut || text(latin, 100_000, 6, 1))),
        ("long words", many(1_500, &mut || text(latin, 300, 120, 60))),
        ("one long run of letters each", many(100, &mut || text(latin, 300, 1000, 500))),
        ("han", many(30_000, &mut || text(&han, 5_000, 6, 1))),
    ]
}

/// A block with its texts, their parts and words, and what cutting holds in each thread.
const READING: u64 = 8 << 20;

fn write(path: &Path, words: &[String]) {
    let lines: Vec<String> = words.chunks(20).map(|row| row.join(" ")).collect();
    fs_err::write(path, lines.join("\n") + "\n").unwrap();
}

#[test]
fn counting_and_training_stay_below_the_ceiling() {
    let dir = tempfile::tempdir().unwrap();
    let mut pruned = 0;
    for (name, words) in corpora() {
        let path = dir.path().join("words.txt");
        write(&path, &words);
        let sources = Sources::open_kind(&[path], Kind::Text, Columns::default()).unwrap();
        for (model, vocab, memory) in [
            (VocabularyModel::Bpe, 2000, 6 << 20),
            (VocabularyModel::WordPiece, 6000, 12 << 20),
            (VocabularyModel::Unigram, 2600, 36 << 20),
        ] {
            let settings =
                VocabularySettings { model, vocab, special: Vec::new(), min_frequency: 1, memory, rows: None, seed: 1 };
            let before = LIVE.load(Relaxed);
            let mut counting = 0;
            PEAK.store(before, Relaxed);
            let trained = train_tokenizer(&sources, &settings, &mut |phase| {
                if let Phase::Training(_) = phase {
                    counting = PEAK.load(Relaxed) - before;
                    PEAK.store(LIVE.load(Relaxed), Relaxed);
                }
            });
            let training = PEAK.load(Relaxed) - before;
            let (_, found) = trained.unwrap();
            println!(
                "{name}, {model:?}: {} words, {} left out, {} pruned; counting {counting}, training {training} of {memory}",
                found.words, found.left_out.words, found.pruned.words,
            );
            // Beside the counts, a block is held, and its words.
            assert!(counting <= memory / 2 + READING, "{name}, {model:?}: counting {counting} of {memory}");
            assert!(training <= memory, "{name}, {model:?}: training {training} of {memory}");
            pruned += found.pruned.words;
        }
    }
    assert!(pruned > 0, "no corpus was more than a ceiling holds");
}
