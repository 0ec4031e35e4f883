//! Tokenizers trained on files: what they read, what they give back, what is refused; the same ids in transformers.

use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_data::*;
use serde_json::{Value, json};

use crate::fixture::python;

const MODELS: [VocabularyModel; 3] = [VocabularyModel::Bpe, VocabularyModel::Unigram, VocabularyModel::WordPiece];

fn settings(model: VocabularyModel, vocab: u64) -> VocabularySettings {
    VocabularySettings { model, vocab, special: Vec::new(), min_frequency: 1, memory: 64 << 20, rows: None, seed: 1 }
}

/// Sentences with common and rare words, accents, digits, punctuation, other scripts.
fn sentences(count: u64) -> Vec<String> {
    let stems = [
        "plan",
        "load",
        "ship",
        "water",
        "line",
        "mark",
        "deep",
        "sail",
        "harbour",
        "café",
        "naïve",
        "日本語",
        "Привет",
    ];
    let ends = ["", "s", "ed", "ing", "er", "", ""];
    let mut draws = (0u64..).map(|n| {
        let z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 32)) as usize
    });
    let mut draw = |n: usize| draws.next().unwrap_or(0) % n;
    (0..count)
        .map(|row| {
            let words: Vec<String> = (0..3 + draw(9))
                .map(|_| {
                    // The smaller of two draws: some stems are much commoner.
                    let stem = stems[draw(stems.len()).min(draw(stems.len()))];
                    format!("{stem}{}", ends[draw(ends.len())])
                })
                .collect();
            format!("The {}, {} of {}.", words.join(" "), row % 97, draw(1000))
        })
        .collect()
}

fn texts(dir: &Path, lines: &[String]) -> Sources {
    let path = dir.join("texts.txt");
    fs_err::write(&path, lines.join("\n") + "\n").unwrap();
    Sources::open_kind(&[path], Kind::Text, Columns::default()).unwrap()
}

fn trained(sources: &Sources, settings: &VocabularySettings) -> (TokenizerFiles, Vocabulary) {
    train_tokenizer(sources, settings, &mut |_| {}).unwrap()
}

fn refused(sources: &Sources, settings: &VocabularySettings) -> String {
    train_tokenizer(sources, settings, &mut |_| {}).unwrap_err().to_string()
}

fn written(dir: &Path, files: &TokenizerFiles) -> PathBuf {
    fs_err::create_dir_all(dir).unwrap();
    fs_err::write(dir.join("tokenizer.json"), &files.tokenizer).unwrap();
    fs_err::write(dir.join("tokenizer_config.json"), &files.config).unwrap();
    dir.join("tokenizer.json")
}

fn vocabulary_of(files: &TokenizerFiles) -> Vec<String> {
    let file: Value = serde_json::from_str(&files.tokenizer).unwrap();
    match &file["model"]["vocab"] {
        Value::Object(vocab) => vocab.keys().cloned().collect(),
        Value::Array(vocab) => vocab.iter().map(|piece| piece[0].as_str().unwrap().to_string()).collect(),
        other => panic!("{other}"),
    }
}

#[test]
fn what_was_trained_loads_and_gives_its_texts_back() {
    let dir = tempfile::tempdir().unwrap();
    let lines = sentences(2000);
    let sources = texts(dir.path(), &lines);
    for model in MODELS {
        let (files, found) = trained(&sources, &settings(model, 600));
        // Unigram finds no more pieces that are worth it in so few words.
        assert!((300..=600).contains(&found.tokens), "{model:?}: {}", found.tokens);
        assert!(found.tokens == 600 || model == VocabularyModel::Unigram, "{model:?}: {}", found.tokens);
        assert_eq!((found.fed.rows, found.fed.of_rows, found.pruned), (2000, 2000, Pruned::default()));
        assert_eq!(found.fed.text_bytes, lines.iter().map(|line| line.len() as u64).sum::<u64>());
        let path = written(dir.path(), &files);
        let tokenizer = TextTokenizer::load(&path, 600, files.eos_id, files.pad_id).unwrap();
        assert_eq!(tokenizer.appends_eos(), model != VocabularyModel::Bpe);
        let (mut tokens, mut bytes, mut count) = (Vec::new(), 0, 0);
        for line in &lines[..200] {
            tokenizer.encode(line, 1000, &mut tokens).unwrap();
            assert_eq!(tokens.last(), Some(&files.eos_id));
            (bytes, count) = (bytes + line.len(), count + tokens.len());
            let back = tokenizer.decode(&tokens).unwrap();
            // BERT's words are put together with blanks; what was between them is gone.
            let plain = |text: &str| text.split_whitespace().collect::<String>();
            if model == VocabularyModel::WordPiece {
                assert_eq!(plain(&back), plain(line));
            } else {
                assert_eq!(back, *line, "{model:?}");
            }
        }
        assert!(bytes > 3 * count, "{model:?}: {bytes} bytes in {count} tokens");
    }
}

#[test]
fn bytes_lose_nothing_whatever_comes() {
    let dir = tempfile::tempdir().unwrap();
    let (files, _) = trained(&texts(dir.path(), &sentences(300)), &settings(VocabularyModel::Bpe, 400));
    let tokenizer = TextTokenizer::load(&written(dir.path(), &files), 400, files.eos_id, files.pad_id).unwrap();
    let mut tokens = Vec::new();
    for text in ["a\t b\n\n  c ", "e\u{301}", "🙂👩‍🚀", "\u{0}\u{feff}", "ﷺ", "｡｡", "<|endo", "ß ẞ İ"]
    {
        tokenizer.encode(text, 1000, &mut tokens).unwrap();
        assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
    }
}

#[test]
fn pairs_are_read_with_both_sides_and_chats_with_what_was_said() {
    let dir = tempfile::tempdir().unwrap();
    let pairs = dir.path().join("pairs.jsonl");
    let chats = dir.path().join("chats.jsonl");
    let pair = json!({"prompt": "questionable", "response": "answering"}).to_string() + "\n";
    let said = [("user", "questionable"), ("assistant", "answering <|im_end|>")];
    let messages = said.map(|(role, content)| json!({"role": role, "content": content}));
    let chat = json!({"messages": messages}).to_string() + "\n";
    fs_err::write(&pairs, pair.repeat(50)).unwrap();
    fs_err::write(&chats, chat.repeat(50)).unwrap();
    for (path, kind) in [(pairs, Kind::Pairs), (chats, Kind::Chat)] {
        let sources = Sources::open_kind(&[path], kind, Columns::default()).unwrap();
        let special = vec!["eos=<|im_end|>".into(), "<|im_start|>".into()];
        let (files, found) = trained(&sources, &VocabularySettings { special, ..settings(VocabularyModel::Bpe, 1000) });
        let vocabulary = vocabulary_of(&files);
        for token in ["questionable", "answering"] {
            assert!(vocabulary.iter().any(|t| t == token), "{kind:?}: no `{token}`");
        }
        // Neither roles nor JSON nor a special token's letters are words.
        for token in ["user", "assistant", "role", "content", "im", "end"] {
            assert!(!vocabulary.iter().any(|t| t.trim_start_matches('Ġ') == token), "{kind:?}: `{token}`");
        }
        assert!(found.tokens < 1000, "the data have no more");
        let config: Value = serde_json::from_str(&files.config).unwrap();
        assert_eq!((&config["eos_token"], files.eos_id), (&"<|im_end|>".into(), 0));
    }
}

#[test]
fn rows_are_drawn_by_the_seed_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let sources = texts(dir.path(), &sentences(3000));
    let with = |seed: u64| {
        trained(&sources, &VocabularySettings { rows: Some(200), seed, ..settings(VocabularyModel::Bpe, 500) })
    };
    let ((first, found), (again, _), (other, _)) = (with(1), with(1), with(2));
    assert_eq!((found.fed.rows, found.fed.of_rows), (200, 3000));
    assert_eq!(first, again);
    assert_ne!(first, other);
}

#[test]
fn a_ceiling_leaves_rare_words_out_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let common: Vec<String> = (0..400).map(|n| format!("common{}", n % 7)).collect();
    let line = |n: u64| {
        let rare: Vec<String> =
            (0..40).map(|k| format!("{:x}", (n * 40 + k).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
        format!("{} {}", common[n as usize % common.len()], rare.join(" "))
    };
    let sources = texts(dir.path(), &(0..4000).map(line).collect::<Vec<_>>());
    let (files, found) =
        trained(&sources, &VocabularySettings { memory: 4 << 20, ..settings(VocabularyModel::Bpe, 600) });
    assert!(found.pruned.words > 0 && found.pruned.most_short > 0, "{found:?}");
    assert!(found.left_out.words > 0 && found.words < 40_000, "{found:?}");
    assert!(found.pruned.occurrences + found.left_out.occurrences + found.words <= found.occurrences);
    let vocabulary = vocabulary_of(&files);
    assert!(vocabulary.iter().any(|token| token.ends_with("common")), "what is common is learnt all the same");
}

#[test]
fn what_cannot_be_is_refused_with_what_was_expected() {
    let dir = tempfile::tempdir().unwrap();
    let sources = texts(dir.path(), &sentences(50));
    let bpe = settings(VocabularyModel::Bpe, 600);
    for (settings, words) in [
        (
            VocabularySettings { vocab: 257, ..bpe.clone() },
            "257 tokens is too small: expected at least 258 (2 special tokens and the 256 bytes)",
        ),
        (settings(VocabularyModel::Unigram, 4), "expected at least 5"),
        (settings(VocabularyModel::WordPiece, 40), "characters in half of the rest"),
        (VocabularySettings { memory: 1 << 20, ..bpe.clone() }, "`memory` is 1048576, expected at least"),
        (VocabularySettings { rows: Some(0), ..bpe.clone() }, "`rows` is 0, expected at least 1"),
        (VocabularySettings { special: vec!["<|pad|>".into()], ..bpe.clone() }, "expected each special token once"),
        (
            VocabularySettings { min_frequency: 1000, ..settings(VocabularyModel::Unigram, 600) },
            "expected words to train on",
        ),
    ] {
        let error = refused(&sources, &settings);
        assert!(error.contains(words), "`{words}` is not in: {error}");
    }
    let blank = dir.path().join("blank.jsonl");
    fs_err::write(&blank, "{\"text\": \"\"}\n").unwrap();
    let sources = Sources::open_kind(&[blank], Kind::Text, Columns::default()).unwrap();
    assert!(refused(&sources, &bpe).contains("found none in 1 rows"));
}

#[test]
fn a_vocabulary_that_characters_fill_exactly_is_not_exceeded() {
    let dir = tempfile::tempdir().unwrap();
    let sources = texts(dir.path(), &sentences(500));
    for model in [VocabularyModel::Unigram, VocabularyModel::WordPiece] {
        let least = refused(&sources, &settings(model, 40));
        let least: u64 = least.split("at least ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        for vocab in [least, least + 1] {
            let (_, found) = trained(&sources, &settings(model, vocab));
            assert!(found.tokens <= vocab, "{model:?}: {} of {vocab}", found.tokens);
        }
    }
}

const SCRIPT: &str = r#"
import json, sys
from transformers import AutoTokenizer, PreTrainedTokenizerFast
out = sys.argv[1]
texts = json.load(open(out + "/texts.json"))
auto = AutoTokenizer.from_pretrained(out)
fast = PreTrainedTokenizerFast.from_pretrained(out)
found = {
    "ids": [fast(t)["input_ids"] for t in texts],
    "auto": [auto(t)["input_ids"] for t in texts],
    "plain": [fast(t, add_special_tokens=False)["input_ids"] for t in texts],
    "back": [fast.decode(fast(t)["input_ids"], skip_special_tokens=True) for t in texts],
    "pad_id": fast.pad_token_id, "eos_id": fast.eos_token_id, "size": len(fast),
    "special": sorted(fast.all_special_tokens),
}
json.dump(found, open(out + "/found.json", "w"))
"#;

#[test]
fn transformers_gives_the_same_ids() {
    let python = match python("transformers") {
        Ok(python) => python,
        Err(why) => return println!("skipped: {why}"),
    };
    let dir = tempfile::tempdir().unwrap();
    let lines = sentences(2000);
    let sources = texts(dir.path(), &lines);
    let mut asked: Vec<String> = lines[..100].to_vec();
    asked.extend(
        ["", " ", "a  b\n\nc\t", "unseen ☃ 🙂 e\u{301}", "<x>The <x>", "</s>", "[SEP] [MASK]"].map(String::from),
    );
    for model in MODELS {
        let special = vec!["<x>".to_string()];
        let (files, found) = trained(&sources, &VocabularySettings { special, ..settings(model, 600) });
        let folder = dir.path().join(format!("{model:?}"));
        let path = written(&folder, &files);
        fs_err::write(folder.join("texts.json"), json!(asked).to_string()).unwrap();
        let done = Command::new(&python).args(["-c", SCRIPT]).arg(&folder).env("HF_HUB_OFFLINE", "1").output().unwrap();
        assert!(done.status.success(), "{model:?}: {}", String::from_utf8_lossy(&done.stderr));
        let theirs: Value = serde_json::from_slice(&fs_err::read(folder.join("found.json")).unwrap()).unwrap();
        assert_eq!((&theirs["eos_id"], &theirs["pad_id"]), (&files.eos_id.into(), &files.pad_id.into()), "{model:?}");
        assert_eq!(theirs["size"], found.tokens);
        assert!(theirs["special"].as_array().unwrap().contains(&"<x>".into()), "{}", theirs["special"]);
        let tokenizer = TextTokenizer::load(&path, 600, files.eos_id, files.pad_id).unwrap();
        let mut tokens = Vec::new();
        for (at, text) in asked.iter().enumerate() {
            tokenizer.encode(text, 1000, &mut tokens).unwrap();
            let ids = |key: &str| -> Vec<u32> { serde_json::from_value(theirs[key][at].clone()).unwrap() };
            let mut whole = ids("ids");
            assert_eq!(whole, ids("auto"), "{model:?}: {text:?}");
            if !tokenizer.appends_eos() {
                whole.push(files.eos_id);
            }
            assert_eq!(tokens, whole, "{model:?}: {text:?}");
            tokenizer.encode_prompt(text, 1000, &mut tokens).unwrap();
            assert_eq!(tokens, ids("plain"), "{model:?}: {text:?}");
            assert_eq!(tokenizer.decode(&tokens).unwrap(), theirs["back"][at], "{model:?}: {text:?}");
        }
    }
}

/// Sentences with more rare characters than half of a small vocabulary has room for.
fn with_rare_characters(count: u32) -> Vec<String> {
    let rare = |n: u32| char::from_u32(0x4e00 + n).unwrap_or('?');
    let line = |(n, text): (u32, String)| if n % 4 == 0 { format!("{text} x{}y", rare(n)) } else { text };
    (0..count).zip(sentences(u64::from(count))).map(line).collect()
}

#[test]
fn characters_without_room_are_told_and_read_as_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let sources = texts(dir.path(), &with_rare_characters(1600));
    for (model, unknown) in [(VocabularyModel::Unigram, "<unk>"), (VocabularyModel::WordPiece, "[UNK]")] {
        let (files, found) = trained(&sources, &settings(model, 500));
        let characters = found.characters.unwrap();
        assert!(characters.left_out > 100 && characters.left_out_share < 0.01, "{model:?}: {characters:?}");
        let tokenizer = TextTokenizer::load(&written(dir.path(), &files), 500, files.eos_id, files.pad_id).unwrap();
        let mut tokens = Vec::new();
        tokenizer.encode_prompt("plan \u{4e00} \u{518c}", 100, &mut tokens).unwrap();
        let texts: Vec<String> = tokens.iter().filter_map(|id| tokenizer.token_text(*id)).collect();
        assert!(texts.iter().any(|text| text == unknown), "{model:?}: {texts:?}");
    }
}

/// Every hash map of the library has its own order, even within one process.
#[test]
fn the_same_data_give_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let sources = texts(dir.path(), &with_rare_characters(1200));
    for model in MODELS {
        for vocab in [500, 1000] {
            let (first, _) = trained(&sources, &settings(model, vocab));
            for _ in 0..4 {
                assert!(trained(&sources, &settings(model, vocab)).0 == first, "{model:?}, {vocab}");
            }
        }
    }
}
