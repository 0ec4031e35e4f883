//! What is around the model in each form of a tokenizer: how text is made ready, cut, closed and put together again.
//!
//! Invariant: words are counted with the same normalizer and pre-tokenizer that the file says, or the vocabulary would be
//! for other words than those that come. It knows no counts.

use serde_json::json;
use tokenizers::decoders::wordpiece::WordPiece as WordPieceDecoder;
use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{BertNormalizer, NFKC, Nmt, Replace, Sequence};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::Metaspace;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, Tokenizer};

use super::feed::Cutter;
use super::specials::{Role, SpecialTokens};
use crate::{DataError, VocabularyModel};

/// How subwords inside a word begin, in WordPiece.
pub(crate) const CONTINUING: &str = "##";

impl Cutter {
    /// The words of a form.
    pub fn of(model: VocabularyModel, specials: SpecialTokens) -> Result<Cutter, DataError> {
        let (normalizer, pre_tokenizer): (Option<NormalizerWrapper>, PreTokenizerWrapper) = match model {
            // Bytes lose nothing, so nothing is changed before.
            VocabularyModel::Bpe => (None, byte_level().into()),
            VocabularyModel::Unigram => {
                let blanks = Replace::new(ReplacePattern::Regex(" {2,}".into()), " ").map_err(not_trained)?;
                let steps = vec![Nmt.into(), NFKC.into(), blanks.into()];
                (Some(Sequence::new(steps).into()), Metaspace::default().into())
            }
            // Upper case and accents stay.
            VocabularyModel::WordPiece => {
                (Some(BertNormalizer::new(true, true, Some(false), false).into()), BertPreTokenizer.into())
            }
        };
        Ok(Cutter { specials, normalizer, pre_tokenizer })
    }
}

fn byte_level() -> ByteLevel {
    ByteLevel::default().add_prefix_space(false).trim_offsets(false)
}

/// The whole tokenizer around a trained model.
pub(crate) fn assemble(model: VocabularyModel, trained: ModelWrapper, cutter: Cutter) -> Result<Tokenizer, DataError> {
    let Cutter { specials, normalizer, pre_tokenizer } = cutter;
    let decoder: DecoderWrapper = match model {
        VocabularyModel::Bpe => byte_level().into(),
        VocabularyModel::Unigram => Metaspace::default().into(),
        VocabularyModel::WordPiece => WordPieceDecoder::new(CONTINUING.into(), false).into(),
    };
    let mut tokenizer = Tokenizer::new(trained);
    tokenizer.with_normalizer(normalizer).map_err(not_trained)?;
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer)).with_decoder(Some(decoder));
    match model {
        VocabularyModel::Bpe => tokenizer.with_post_processor(Some(byte_level())),
        VocabularyModel::Unigram | VocabularyModel::WordPiece => {
            tokenizer.with_post_processor(Some(closing(&specials)?))
        }
    };
    let added = specials.tokens().map(|token| AddedToken::from(token, true));
    tokenizer.add_special_tokens(added).map_err(not_trained)?;
    Ok(tokenizer)
}

/// Ends a sequence with its last token, and begins it with the class where there is one.
fn closing(specials: &SpecialTokens) -> Result<TemplateProcessing, DataError> {
    let cls = specials.get(Role::Cls);
    let (eos, eos_id) = specials.eos().expect("each form has an end");
    let special = |token: &str, sequence: u32| json!({"SpecialToken": {"id": token, "type_id": sequence}});
    let text = |name: &str, sequence: u32| json!({"Sequence": {"id": name, "type_id": sequence}});
    let first: Vec<_> =
        cls.map(|(token, _)| special(token, 0)).into_iter().chain([text("A", 0), special(eos, 0)]).collect();
    // BERT tells the second sequence by its type, T5 has no types.
    let second = u32::from(cls.is_some());
    let pair: Vec<_> = first.iter().cloned().chain([text("B", second), special(eos, second)]).collect();
    let tokens: serde_json::Map<_, _> = cls
        .into_iter()
        .chain([(eos, eos_id)])
        .map(|(token, id)| (token.to_string(), json!({"id": token, "ids": [id], "tokens": [token]})))
        .collect();
    let all = json!({"type": "TemplateProcessing", "single": first, "pair": pair, "special_tokens": tokens});
    serde_json::from_value(all).map_err(|e| DataError::NotTrained { reason: e.to_string() })
}

pub(crate) fn not_trained(error: tokenizers::Error) -> DataError {
    DataError::NotTrained { reason: error.to_string() }
}
