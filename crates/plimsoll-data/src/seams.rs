//! Places where a text may be cut so that the tokens of its parts, one behind the other, are the tokens of the text.
//!
//! Byte-level BPE looks at one word of a pattern at a time and sentencepiece's models at what lies between two blanks, so for the
//! pipelines that are known here such places can be told from two or three characters. Invariant: a pipeline that is not known to
//! have seams has none, and its texts are tokenised whole. It knows no tokens.

use aho_corasick::AhoCorasick;
use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

/// The patterns of Llama 3 and of Qwen 2. As GPT-2's, they look at nothing before a word, take no letter and other characters into one
/// word unless the others come first, and take a single blank only as the first character of a word.
const PATTERNS: [&str; 2] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// What becomes something else in NFC although it is ASCII then: the Kelvin sign, the Greek question mark, the Greek varia.
const BORN_BY_NFC: [char; 3] = ['K', ';', '`'];

/// Where the texts of a tokenizer may be cut.
#[derive(Debug)]
pub(crate) struct Seams {
    rule: Rule,
    /// Texts with one of these are split around it first, and have no seams that we know.
    added: Option<AhoCorasick>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Before a blank between two characters of ASCII that are none.
    AsciiBlank,
    /// Before a blank between two characters that are none.
    Blank,
    /// There, and between a letter and what is none, both of ASCII.
    BlankOrLetterEnd,
}

impl Seams {
    /// The seams of `tokenizer`, where its parts are known to have any.
    pub fn of(tokenizer: &Tokenizer) -> Option<Seams> {
        let rule = rule_of(tokenizer)?;
        let added = tokenizer.get_added_tokens_decoder();
        let plain = |token: &AddedToken| !token.content.is_empty() && unborn(tokenizer.get_normalizer(), token);
        if !added.values().all(plain) {
            return None;
        }
        let added = match added.is_empty() {
            true => None,
            false => Some(AhoCorasick::new(added.values().map(|token| token.content.as_bytes())).ok()?),
        };
        Some(Seams { rule, added })
    }

    /// Whether `text` may be cut at all.
    pub fn hold_in(&self, text: &str) -> bool {
        !self.added.as_ref().is_some_and(|added| added.is_match(text))
    }

    /// The end of the part of `text` that begins at byte `start`: the next seam, or the end.
    pub fn part_end(&self, text: &str, start: usize) -> usize {
        let bytes = text.as_bytes();
        let mut at = start + 1;
        while at < bytes.len() {
            if bytes[at].is_ascii() && self.cuts(text, at) {
                return at;
            }
            at += 1;
        }
        bytes.len()
    }

    /// Whether there is a seam before the character of ASCII at byte `at`, which is not the first.
    fn cuts(&self, text: &str, at: usize) -> bool {
        let (before, here) = (text.as_bytes()[at - 1], text.as_bytes()[at]);
        if here != b' ' {
            return self.rule == Rule::BlankOrLetterEnd && before.is_ascii_alphabetic() && !here.is_ascii_alphabetic();
        }
        match self.rule {
            Rule::BlankOrLetterEnd if before.is_ascii_alphabetic() => true,
            Rule::AsciiBlank => {
                before.is_ascii_graphic() && text.as_bytes().get(at + 1).is_some_and(u8::is_ascii_graphic)
            }
            Rule::Blank | Rule::BlankOrLetterEnd => {
                let no_blank = |c: Option<char>| c.is_some_and(|c| !c.is_whitespace());
                let last = || text[..at].chars().next_back();
                no_blank(text[at + 1..].chars().next())
                    && if before.is_ascii() { !char::from(before).is_whitespace() } else { no_blank(last()) }
            }
        }
    }
}

fn rule_of(tokenizer: &Tokenizer) -> Option<Rule> {
    let certain = match tokenizer.get_model() {
        ModelWrapper::BPE(bpe) => bpe.dropout.is_none_or(|dropout| dropout == 0.0),
        ModelWrapper::Unigram(unigram) => unigram.alpha.is_none_or(|alpha| alpha == 0.0),
        ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_) => false,
    };
    if !certain {
        return None;
    }
    let sequence = match tokenizer.get_pre_tokenizer()? {
        PreTokenizerWrapper::Sequence(sequence) => sequence.as_ref(),
        one => std::slice::from_ref(one),
    };
    let rule = match sequence {
        [PreTokenizerWrapper::ByteLevel(level)] if level.use_regex => match level.add_prefix_space {
            true => Rule::Blank,
            false => Rule::BlankOrLetterEnd,
        },
        [PreTokenizerWrapper::Split(split), PreTokenizerWrapper::ByteLevel(level)] => {
            let known = matches!(&split.pattern, SplitPattern::Regex(p) if PATTERNS.contains(&p.as_str()));
            let isolated = split.behavior == SplitDelimiterBehavior::Isolated && !split.invert;
            if !known || !isolated || level.use_regex || level.add_prefix_space {
                return None;
            }
            Rule::BlankOrLetterEnd
        }
        [PreTokenizerWrapper::Metaspace(space)] if space.split => Rule::AsciiBlank,
        [PreTokenizerWrapper::WhitespaceSplit(_), PreTokenizerWrapper::Metaspace(_)] => Rule::AsciiBlank,
        _ => return None,
    };
    let normalizers = match tokenizer.get_normalizer() {
        None => &[],
        Some(NormalizerWrapper::Sequence(sequence)) => sequence.as_ref(),
        Some(one) => std::slice::from_ref(one),
    };
    let cuts_too = |normalizer: &NormalizerWrapper| match (rule, normalizer) {
        (_, NormalizerWrapper::NFC(_)) => true,
        (
            Rule::AsciiBlank,
            NormalizerWrapper::NFKC(_) | NormalizerWrapper::Nmt(_) | NormalizerWrapper::Precompiled(_),
        ) => true,
        (Rule::AsciiBlank, NormalizerWrapper::StripNormalizer(strip)) => !strip.strip_left,
        (Rule::AsciiBlank, NormalizerWrapper::Replace(_)) => replaces_blanks(normalizer),
        _ => false,
    };
    normalizers.iter().all(cuts_too).then_some(rule)
}

/// Whether it is the `Replace` that only several blanks behind each other are something to, of which no seam is one.
fn replaces_blanks(normalizer: &NormalizerWrapper) -> bool {
    // Its pattern is shown to nobody but serde.
    let pattern =
        serde_json::to_value(normalizer).ok().and_then(|said| said["pattern"]["Regex"].as_str().map(String::from));
    pattern.as_deref() == Some(" {2,}")
}

/// Whether `token` is in a normalised text only where it is in the text itself.
fn unborn(normalizer: Option<&NormalizerWrapper>, token: &AddedToken) -> bool {
    match normalizer {
        None => true,
        Some(_) if !token.normalized => true,
        Some(NormalizerWrapper::NFC(_)) => token.content.is_ascii() && !token.content.contains(BORN_BY_NFC),
        Some(_) => false,
    }
}
