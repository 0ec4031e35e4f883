//! Words that are remembered: the tokens are those of the library for the whole text, whatever the text.

use std::path::Path;

use plimsoll_data::TextTokenizer;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tempfile::tempdir;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::models::unigram::{Unigram, UnigramTrainer};
use tokenizers::normalizers::{NFC, NFKC, Nmt, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer};

const LLAMA: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn byte_level(prefix: bool, regex: bool) -> ByteLevel {
    ByteLevel::default().add_prefix_space(prefix).trim_offsets(false).use_regex(regex)
}

fn split_by(pattern: &str) -> PreTokenizerWrapper {
    let split = Split::new(SplitPattern::Regex(pattern.into()), SplitDelimiterBehavior::Isolated, false).unwrap();
    Sequence::new(vec![split.into(), byte_level(false, false).into()]).into()
}

/// A tokenizer of these parts, trained on some sentences.
fn trained(unigram: bool, normalizer: Option<NormalizerWrapper>, words: PreTokenizerWrapper) -> Tokenizer {
    let corpus = [
        "The quick brown fox doesn't jump, it's 1999 and we'll see: they've 12345 foxes!",
        "Il était une fois, naïve café; straße über alles. «Quoi?» (rien) [x] {y} a-b_c",
        "the the the a a and and of of to to in in is is it it\n\n\tindented text\r\nline",
    ];
    let mut tokenizer = match unigram {
        true => Tokenizer::new(ModelWrapper::Unigram(Unigram::default())),
        false => Tokenizer::new(ModelWrapper::BPE(BPE::default())),
    };
    tokenizer.with_normalizer(normalizer).unwrap();
    tokenizer.with_pre_tokenizer(Some(words));
    let mut trainer = match unigram {
        true => {
            let builder = UnigramTrainer::builder().show_progress(false).vocab_size(200).clone();
            let specials = vec![AddedToken::from("<unk>", true)];
            let trainer = builder.clone().special_tokens(specials).unk_token(Some("<unk>".into())).build().unwrap();
            TrainerWrapper::UnigramTrainer(trainer)
        }
        false => {
            let alphabet = ByteLevel::alphabet().into_iter().collect();
            TrainerWrapper::BpeTrainer(
                BpeTrainer::builder().show_progress(false).vocab_size(500).initial_alphabet(alphabet).build(),
            )
        }
    };
    tokenizer.train(&mut trainer, corpus.iter()).unwrap();
    tokenizer.add_special_tokens([AddedToken::from("<|end|>", true), AddedToken::from("<pad>", true)]).unwrap();
    tokenizer.add_tokens([AddedToken::from("two words", false).normalized(false)]).unwrap();
    tokenizer
}

/// Each form that is known to have seams.
fn forms() -> Vec<(&'static str, Tokenizer)> {
    let meta = |scheme| Metaspace::new('▁', scheme, true);
    let spaces = || Sequence::new(vec![WhitespaceSplit.into(), meta(PrependScheme::Always).into()]);
    let nmt = || NormalizerWrapper::from(Normalizers::new(vec![Nmt.into(), NFKC.into()]));
    let mut closed = trained(false, None, byte_level(false, true).into());
    let id = closed.token_to_id("<|end|>").unwrap();
    let template = TemplateProcessing::builder()
        .try_single("<pad> $A <|end|>")
        .unwrap()
        .special_tokens(vec![("<pad>", closed.token_to_id("<pad>").unwrap()), ("<|end|>", id)])
        .build()
        .unwrap();
    closed.with_post_processor(Some(template));
    vec![
        ("GPT-2", trained(false, None, byte_level(false, true).into())),
        ("GPT-2 with a blank before", trained(false, None, byte_level(true, true).into())),
        ("GPT-2 between two tokens", closed),
        ("Llama 3", trained(false, None, split_by(LLAMA))),
        ("Qwen 2", trained(false, Some(NFC.into()), split_by(QWEN))),
        ("Metaspace, always", trained(true, None, meta(PrependScheme::Always).into())),
        ("Metaspace, first", trained(true, None, meta(PrependScheme::First).into())),
        ("Metaspace, never", trained(true, Some(nmt()), meta(PrependScheme::Never).into())),
        ("T5", trained(true, Some(nmt()), spaces().into())),
    ]
}

fn loaded(folder: &Path, tokenizer: &Tokenizer) -> TextTokenizer {
    let path = folder.join("tokenizer.json");
    tokenizer.save(&path, false).unwrap();
    let id = |token: &str| tokenizer.token_to_id(token).unwrap();
    TextTokenizer::load(&path, 1000, id("<|end|>"), id("<pad>")).unwrap()
}

/// Words, marks, numbers and blanks as they come in texts, and what is made to break rules: blanks of other scripts, marks that compose,
/// characters that become ASCII, added tokens and their beginnings.
fn texts() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "the",
        "fox",
        "don't",
        "it's",
        "I'LL",
        "'s",
        "'",
        "''s",
        "a",
        "Ab",
        "1999",
        "12",
        "3.5",
        ",",
        ".",
        "...",
        "!?",
        "(",
        ")",
        "\"",
        "-",
        "_",
        " ",
        " ",
        " ",
        " ",
        "  ",
        "   ",
        "\n",
        "\n\n",
        "\r\n",
        "\t",
        "\u{b}",
        "\u{c}",
        "\u{1c}",
        "\u{0}",
        "\u{7f}",
        "é",
        "e\u{301}",
        "\u{301}",
        "ß",
        "И",
        "мир",
        "日本",
        "。",
        "\u{a0}",
        "\u{3000}",
        "\u{2003}",
        "\u{85}",
        "\u{200b}",
        "\u{200d}",
        "\u{feff}",
        "\u{212a}",
        "\u{37e}",
        "\u{1fef}",
        "ﬁ",
        "ﷺ",
        "½",
        "²",
        "٣",
        "▁",
        "👩‍👩",
        "🇩🇪",
        "<|end|>",
        "<|end",
        "<pad>",
        "two words",
        "two",
        "words",
        "Ġ",
        "ĠThe",
    ]);
    prop::collection::vec(pieces, 0..24).prop_map(|pieces| pieces.concat())
}

#[test]
fn remembered_words_have_the_tokens_of_the_whole_text() {
    let dir = tempdir().unwrap();
    for (name, tokenizer) in forms() {
        let tokenizer = loaded(dir.path(), &tokenizer);
        let mut memo = tokenizer.memo();
        assert!(memo.is_some(), "{name}: has no seams");
        let (mut want, mut got) = (Vec::new(), Vec::new());
        let mut runner =
            TestRunner::new(ProptestConfig { cases: 3000, failure_persistence: None, ..Default::default() });
        let lengths = prop::sample::select(vec![1, 2, 3, 8, 400]);
        let agreed = runner.run(&(texts(), lengths), |(text, most)| {
            let (mut want, mut got) = (Vec::new(), Vec::new());
            // The memo must be one that has seen things.
            let mut memo = tokenizer.memo();
            for _ in 0..2 {
                let cut = tokenizer.encode(&text, most, &mut want).unwrap();
                prop_assert_eq!(tokenizer.encode_by(&mut memo, &text, most, &mut got).unwrap(), cut, "{}", name);
                prop_assert_eq!(&got, &want, "{}: {:?}", name, text);
            }
            Ok(())
        });
        agreed.unwrap_or_else(|e| panic!("{name}: {e}"));
        for text in texts_of_words() {
            tokenizer.encode(&text, 4000, &mut want).unwrap();
            tokenizer.encode_by(&mut memo, &text, 4000, &mut got).unwrap();
            assert_eq!(got, want, "{name}");
        }
    }
}

/// Many words, so that places of the memo are used more than once.
fn texts_of_words() -> Vec<String> {
    (0..40).map(|text| (0..1000).map(|word| format!("w{} ", (text * 977 + word * 31) % 25_013)).collect()).collect()
}

#[test]
fn a_pipeline_that_is_not_known_has_no_memo() {
    let dir = tempdir().unwrap();
    let meta = Metaspace::new('▁', PrependScheme::Always, false);
    let cuts_else = Sequence::new(vec![split_by(QWEN), WhitespaceSplit.into()]);
    let mut born = trained(false, Some(NFC.into()), split_by(QWEN));
    born.add_tokens([AddedToken::from("K9", false)]).unwrap();
    let unknown = [
        ("no split at blanks", trained(true, None, meta.into())),
        ("another sequence", trained(false, None, cuts_else.into())),
        ("another pattern", trained(false, None, split_by(r"\w+|\W+"))),
        ("a normaliser for all", trained(false, Some(NFKC.into()), byte_level(false, true).into())),
        ("a token that NFC can make", born),
    ];
    for (name, tokenizer) in unknown {
        let tokenizer = loaded(dir.path(), &tokenizer);
        assert!(tokenizer.memo().is_none() && tokenizer.memo_bytes() == 0, "{name}");
    }
}
