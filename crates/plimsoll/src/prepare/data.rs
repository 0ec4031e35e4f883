//! What a run is trained on: texts, or windows of series.

use std::sync::Arc;

use plimsoll_data::series::Series;
use plimsoll_data::{Kind, Order, Recipe, Sources, TextTokenizer};
use plimsoll_plan::program::Job;

use crate::render::{Fail, OrFail};

/// What a run is trained on.
pub enum RunData {
    /// Rows of texts.
    Texts(Texts),
    /// Rows of numbers in time.
    Series(Windows),
}

/// Rows of texts.
pub struct Texts {
    /// Training data.
    pub sources: Arc<Sources>,
    /// Evaluation data.
    pub eval: Option<Arc<Sources>>,
    /// The tokenizer.
    pub tokenizer: Arc<TextTokenizer>,
    /// How rows become samples.
    pub recipe: Recipe,
    /// Order of the training data.
    pub order: Order,
    /// Lengths of source and target that the job or the data ask for; a plan may have taken shorter ones.
    pub lens: (usize, usize),
}

/// Rows of numbers in time.
pub struct Windows {
    /// Training and validation data.
    pub series: Arc<Series>,
    /// Order of the training data.
    pub order: Order,
}

impl RunData {
    /// Whether there is something to evaluate on.
    pub fn evaluates(&self) -> bool {
        match self {
            RunData::Texts(texts) => texts.eval.is_some(),
            RunData::Series(windows) => windows.series.spec().validation.is_some(),
        }
    }

    /// Whether rows are chats, which a template makes texts of.
    pub fn has_templates(&self) -> bool {
        matches!(self, RunData::Texts(texts) if texts.recipe.kind() == Kind::Chat)
    }

    /// Whether samples have a source and a target of their own.
    pub fn has_pairs(&self) -> bool {
        matches!(self, RunData::Texts(texts) if texts.recipe.kind() == Kind::Pairs)
    }

    /// What a run counts, in short: tokens, or rows of windows.
    pub fn unit(&self) -> &'static str {
        match self {
            RunData::Texts(_) => "tok",
            RunData::Series(_) => "rows",
        }
    }

    /// Order of the training data.
    pub fn order(&self) -> Order {
        match self {
            RunData::Texts(texts) => texts.order,
            RunData::Series(windows) => windows.order,
        }
    }

    /// Whether every row has a sample of the job's lengths.
    pub(super) fn check_fit(&self, job: &Job) -> Result<(), Fail> {
        match self {
            RunData::Texts(Texts { sources, tokenizer, recipe, .. }) => {
                sources.check_fit(tokenizer, recipe, [job.source_len, job.target_len]).or_usage()
            }
            RunData::Series(_) => Ok(()),
        }
    }
}
