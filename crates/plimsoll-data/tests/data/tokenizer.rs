//! The tokenizer: ends, cuts, checks; WordLevel, BPE and Unigram.

use plimsoll_data::*;
use tempfile::tempdir;

use crate::fixture::*;

#[test]
fn the_end_is_appended_where_the_tokenizer_does_not() {
    let dir = tempdir().unwrap();
    let mut tokens = Vec::new();
    for appends in [true, false] {
        let t = TextTokenizer::load(&word_level(dir.path(), 20, appends), 23, EOS, PAD).unwrap();
        assert_eq!(t.appends_eos(), appends);
        assert!(!t.encode("w1 w2", 8, &mut tokens).unwrap());
        assert_eq!(tokens, [4, 5, 1]);
        assert!(!t.encode("", 8, &mut tokens).unwrap());
        assert_eq!(tokens, [1]);
        assert!(!t.encode("w1 w2 w3", 4, &mut tokens).unwrap(), "fits exactly");
        assert!(t.encode("w1 w2 w3", 3, &mut tokens).unwrap());
        assert_eq!(tokens, [4, 5, 1]);
        assert!(t.encode("w1", 1, &mut tokens).unwrap());
        assert_eq!(tokens, [1]);
        assert_eq!(t.decode(&[4, 5, 1, 0, 0]).unwrap(), "w1 w2");
    }
}

#[test]
fn a_tokenizer_that_does_not_fit_the_vocabulary_is_refused() {
    let dir = tempdir().unwrap();
    let file = word_level(dir.path(), 20, true);
    let e = TextTokenizer::load(&file, 21, EOS, PAD).unwrap_err().to_string();
    assert!(e.ends_with("token `w18` has the id 21, but the model's vocabulary has 21 entries"), "{e}");
    let e = TextTokenizer::load(&file, 30, 25, PAD).unwrap_err().to_string();
    assert!(e.ends_with("the end-of-sequence id 25 is no token of this tokenizer"), "{e}");
    let e = TextTokenizer::load(&file, 30, EOS, 99).unwrap_err().to_string();
    assert!(e.contains("(padding)"), "{e}");
}

#[test]
fn a_broken_or_absent_tokenizer_file_is_named() {
    let dir = tempdir().unwrap();
    let file = dir.path().join("tokenizer.json");
    let e = TextTokenizer::load(&file, 30, EOS, PAD).unwrap_err().to_string();
    assert!(e.contains("tokenizer.json"), "{e}");
    fs_err::write(&file, "{\"model\":").unwrap();
    let e = TextTokenizer::load(&file, 30, EOS, PAD).unwrap_err().to_string();
    assert!(e.contains("tokenizer.json` is not a readable tokenizer"), "{e}");
}

#[test]
fn a_text_too_long_to_look_at_is_cut_and_says_so() {
    let dir = tempdir().unwrap();
    let t = TextTokenizer::load(&word_level(dir.path(), 20, true), 23, EOS, PAD).unwrap();
    let mut tokens = Vec::new();
    let text = format!("w1 {}w2", " ".repeat(10_000));
    assert!(t.encode(&text, 4, &mut tokens).unwrap());
    assert_eq!(tokens, [4, 1]);
    let long = "w3 ".repeat(100_000);
    assert!(t.encode(&long, 16, &mut tokens).unwrap());
    assert_eq!(tokens.len(), 16);
    assert_eq!(tokens.last(), Some(&EOS));
}
