//! How a row becomes a document: which kind, by which template, what happens to a long one.
//!
//! Invariant: a document is a function of recipe, tokenizer, length and row. The lengths themselves are those of the
//! batch shape. It knows no order, threads and batches.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{ChatTemplate, DataError, Kind, TextTokenizer};

/// What becomes of a text that is longer than a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Long {
    /// Consecutive pieces, each a document for itself.
    #[default]
    Split,
    /// Its end is left out.
    Cut,
    /// All of it is left out.
    Drop,
}

/// How rows become samples.
#[derive(Clone, Debug, Default)]
pub struct Recipe {
    kind: Kind,
    template: Option<Arc<ChatTemplate>>,
    long: Long,
    bos_id: Option<u32>,
    by_length: bool,
}

impl Recipe {
    /// Pairs, each side ended by the end-of-sequence token.
    pub fn pairs() -> Recipe {
        Recipe::default()
    }

    /// Texts, each ended by the end-of-sequence token. `bos_id` is put before a text unless the tokenizer does so.
    pub fn text(long: Long, bos_id: Option<u32>) -> Recipe {
        Recipe { kind: Kind::Text, template: None, long, bos_id, by_length: false }
    }

    /// Conversations, written by `template`. Long ones are cut.
    pub fn chat(template: Arc<ChatTemplate>) -> Recipe {
        Recipe { kind: Kind::Chat, template: Some(template), long: Long::Cut, bos_id: None, by_length: false }
    }

    /// Conversations, written by the plain template, for a model that has none.
    pub fn plain_chat(
        tokenizer: &TextTokenizer,
        special_tokens: &BTreeMap<String, String>,
    ) -> Result<Recipe, DataError> {
        let mut tokens = special_tokens.clone();
        if let Some(end) = tokenizer.token_text(tokenizer.eos_id()) {
            tokens.entry("eos_token".into()).or_insert(end);
        }
        Ok(Recipe::chat(Arc::new(ChatTemplate::plain(&tokens)?)))
    }

    /// The same, with samples of like length in a batch: groups of batches are sorted by length and cut into batches, which come in
    /// a random order. For batches that are padded; the stream depends on the batch size then. Not for packed samples.
    pub fn by_length(self) -> Recipe {
        Recipe { by_length: true, ..self }
    }

    /// The same, with rows that are too long left out.
    pub fn dropping(self) -> Recipe {
        Recipe { long: Long::Drop, ..self }
    }

    /// What a row is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What becomes of long texts.
    pub fn long(&self) -> Long {
        self.long
    }

    /// Samples of like length share a batch.
    pub fn is_by_length(&self) -> bool {
        self.by_length
    }

    /// Each row is one sample, in the order of the stream.
    pub(crate) fn is_row_by_row(&self) -> bool {
        !self.by_length && self.long != Long::Drop
    }

    /// The chat template.
    pub fn template(&self) -> Option<&Arc<ChatTemplate>> {
        self.template.as_ref()
    }

    /// The token to put before a text.
    pub(crate) fn bos_id(&self) -> Option<u32> {
        self.bos_id
    }

    /// A row may give more than one document.
    pub(crate) fn splits(&self) -> bool {
        self.kind == Kind::Text && self.long == Long::Split
    }

    /// The same, with long texts cut, in the order of the stream.
    pub(crate) fn cutting(&self) -> Recipe {
        Recipe { long: Long::Cut, by_length: false, ..self.clone() }
    }

    /// What a user should know of it.
    pub fn remark(&self) -> Option<String> {
        let built_in = self.template.as_ref().is_some_and(|t| t.is_built_in());
        built_in
            .then(|| "chat template: the model has none; a plain one is used (`User: ...`, `Assistant: ...`)".into())
    }
}
