//! The two files of a tokenizer, as text.
//!
//! Invariant: `tokenizer.json` is what the library itself would save, and `tokenizer_config.json` has what `transformers`
//! cannot read there: which special token is for what. It opens no file.

use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::pipeline::not_trained;
use super::specials::SpecialTokens;
use crate::{DataError, VocabularyModel};

/// A tokenizer's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerFiles {
    /// `tokenizer.json`.
    pub tokenizer: String,
    /// `tokenizer_config.json`.
    pub config: String,
    /// The id of the token that ends a sequence.
    pub eos_id: u32,
    /// The id of the token that fills up a batch.
    pub pad_id: u32,
}

impl TokenizerFiles {
    pub(crate) fn of(
        model: VocabularyModel,
        tokenizer: &Tokenizer,
        specials: &SpecialTokens,
    ) -> Result<TokenizerFiles, DataError> {
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": false,
            "model_input_names": if model == VocabularyModel::WordPiece {
                vec!["input_ids", "token_type_ids", "attention_mask"]
            } else {
                vec!["input_ids", "attention_mask"]
            },
        });
        for (name, token) in specials.named() {
            config[name] = token.into();
        }
        let others: Vec<Value> = specials.others().map(Value::from).collect();
        if !others.is_empty() {
            config["additional_special_tokens"] = others.into();
        }
        let text = serde_json::to_string_pretty(&config).map_err(|e| not_trained(e.into()))?;
        let id = |found: Option<(&str, u32)>| found.map_or(0, |(_, id)| id);
        Ok(TokenizerFiles {
            tokenizer: tokenizer.to_string(true).map_err(not_trained)? + "\n",
            config: text + "\n",
            eos_id: id(specials.eos()),
            pad_id: id(specials.get(super::specials::Role::Pad)),
        })
    }
}
