//! How rows become tokens: the tokenizer and the recipe together.
//!
//! A tokenizer may hold locks inside, so a process makes its own and never uses one from before a fork.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_data::{ChatTemplate, Kind, Long, Recipe, TextTokenizer};
use plimsoll_model::ChatTemplate as FoundTemplate;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::data::kind_of;
use crate::fault::{data_fault, model_fault};

/// A chat template's text, and the special tokens that it may name.
type Template = (String, BTreeMap<String, String>);

/// The chat template of a model folder, with the special tokens that it may name; `None` where there is none.
#[pyfunction]
pub fn chat_template(folder: PathBuf) -> PyResult<Option<Template>> {
    let found = FoundTemplate::in_folder(&folder).map_err(model_fault)?;
    Ok(found.map(|found| (found.text, found.tokens)))
}

/// Tokenizer and recipe.
#[pyclass(frozen, module = "plimsoll._plimsoll")]
pub struct Wording {
    tokenizer: Arc<TextTokenizer>,
    recipe: Recipe,
}

impl Wording {
    pub fn tokenizer(&self) -> &Arc<TextTokenizer> {
        &self.tokenizer
    }

    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }
}

#[pymethods]
impl Wording {
    /// Reads the tokenizer. A chat without `template` is written in a plain way. `by_length`: batches are of samples of like length.
    #[new]
    fn new(
        py: Python<'_>,
        tokenizer: PathBuf,
        vocab: Option<usize>,
        eos_id: u32,
        pad_id: u32,
        bos_id: Option<u32>,
        kind: &str,
        long: &str,
        template: Option<Template>,
        by_length: bool,
    ) -> PyResult<Wording> {
        let (kind, long) = (kind_of(kind)?, long_of(long)?);
        py.detach(|| read(&tokenizer, vocab, eos_id, pad_id, bos_id, kind, long, template, by_length))
    }
}

fn read(
    path: &Path,
    vocab: Option<usize>,
    eos_id: u32,
    pad_id: u32,
    bos_id: Option<u32>,
    kind: Kind,
    long: Long,
    template: Option<Template>,
    by_length: bool,
) -> PyResult<Wording> {
    let tokenizer = TextTokenizer::load(path, vocab.unwrap_or(usize::MAX), eos_id, pad_id).map_err(data_fault)?;
    let recipe = match (kind, template) {
        (Kind::Pairs, _) => Recipe::pairs(),
        (Kind::Text, _) => Recipe::text(long, bos_id),
        (Kind::Chat, Some((text, tokens))) => {
            Recipe::chat(Arc::new(ChatTemplate::new(&text, &tokens).map_err(data_fault)?))
        }
        (Kind::Chat, None) => Recipe::plain_chat(&tokenizer, &BTreeMap::new()).map_err(data_fault)?,
    };
    let recipe = if long == Long::Drop { recipe.dropping() } else { recipe };
    let recipe = if by_length { recipe.by_length() } else { recipe };
    Ok(Wording { tokenizer: Arc::new(tokenizer), recipe })
}

fn long_of(name: &str) -> PyResult<Long> {
    match name {
        "split" => Ok(Long::Split),
        "cut" => Ok(Long::Cut),
        "drop" => Ok(Long::Drop),
        _ => Err(PyValueError::new_err(format!("`long` is `{name}`, expected `split`, `cut` or `drop`"))),
    }
}
