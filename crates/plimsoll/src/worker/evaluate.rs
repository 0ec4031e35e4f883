//! Evaluation inside the same plan: the loss over a whole set, and answers generated for its first rows.
//!
//! It leaves no trace in the weights, so one that was given up half-way can be done again from the start.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use plimsoll_data::{Recipe, RowTexts, Sources, TextTokenizer, eval_batches, score};
use plimsoll_engine::{GenerateOptions, Loss, Stepper};
use plimsoll_plan::batch::BatchShape;
use plimsoll_watch::EvalScores;

use crate::heap::{self, Role};
use crate::prepare::{PREFETCH, loader_hook};
use crate::render::Fail;

/// Rows that answers are generated for during a run.
pub const ROWS_IN_A_RUN: u64 = 256;

/// What an evaluation found.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Evaluation {
    /// Mean loss over the target tokens.
    pub loss: f64,
    /// BLEU-4 of the generated answers.
    pub bleu: Option<f64>,
    /// Share of answers that are exactly right.
    pub exact: Option<f64>,
    /// What else is known, of series.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub scores: Option<EvalScores>,
    /// Rows that answers were generated for.
    pub generated: u64,
    /// Rows of the set.
    pub rows: u64,
    /// Wall time.
    pub seconds: f64,
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "eval loss {:.4}", self.loss)?;
        if let (Some(bleu), Some(exact)) = (self.bleu, self.exact) {
            write!(f, ", BLEU-4 {bleu:.1}, {:.1} % of {} answers exactly right", exact * 100.0, self.generated)?;
        }
        if let Some(scores) = &self.scores {
            write!(f, "{scores}")?;
        }
        write!(f, " ({:.1} s)", self.seconds)
    }
}

/// Evaluates on `sources`; answers are generated for its first `answers` rows, or all. None: `stop` was asked between
/// two batches, or two groups of answers, and said yes.
pub fn evaluate(
    engine: &mut Stepper,
    sources: &Arc<Sources>,
    tokenizer: &Arc<TextTokenizer>,
    recipe: &Recipe,
    answers: Option<u64>,
    stop: &dyn Fn() -> bool,
) -> Result<Option<Evaluation>, Fail> {
    let start = Instant::now();
    let program = engine.program();
    let shape = BatchShape { samples: program.part_samples, documents: 1, ..program.shape };
    let hook = Some(loader_hook());
    let (s, t, r) = (sources.clone(), tokenizer.clone(), recipe.clone());
    let mut batches = heap::on_behalf(Role::Loader, || eval_batches(s, t, r, shape, 1, PREFETCH, hook))?;
    let mut loss = Loss::default();
    let mut stopped = stop();
    while !stopped && let Some(facts) = batches.next(engine.slot())? {
        loss.add(engine.eval(facts.samples)?);
        stopped = stop();
    }
    heap::on_behalf(Role::Loader, || drop(batches));
    if stopped {
        return Ok(None);
    }
    let mut found = Evaluation {
        loss: loss.mean(),
        bleu: None,
        exact: None,
        scores: None,
        generated: 0,
        rows: sources.rows(),
        seconds: 0.0,
    };
    if let Some(planned) = engine.program().generation.as_ref().map(|g| g.shape) {
        let rows = answers.unwrap_or(u64::MAX).min(sources.rows());
        let options = GenerateOptions::greedy(planned.max_new);
        let mut texts = RowTexts::new(sources.clone());
        let (mut bleu, mut right) = (score::Bleu::default(), 0u64);
        for first in (0..rows).step_by(planned.prompts) {
            if stop() {
                return Ok(None);
            }
            let group = first..(first + planned.prompts as u64).min(rows);
            let mut prompts = Vec::with_capacity(planned.prompts);
            let mut references = Vec::with_capacity(planned.prompts);
            for row in group {
                let (prompt, reference) = question(&mut texts, row, tokenizer, recipe, planned.source_len)?;
                prompts.push(prompt);
                references.push(reference);
            }
            let answers = engine.generate(&prompts, &options)?;
            for (reference, answer) in references.iter().zip(&answers) {
                let answer = tokenizer.decode(answer)?;
                bleu.add(&answer, reference);
                right += u64::from(answer.trim() == reference.trim());
            }
        }
        found.bleu = Some(bleu.score());
        found.exact = Some(right as f64 / rows.max(1) as f64);
        found.generated = rows;
    }
    found.seconds = start.elapsed().as_secs_f64();
    Ok(Some(found))
}

/// A row's prompt as tokens, and the answer that is hoped for. A chat's prompt that is too long loses its beginning.
fn question(
    texts: &mut RowTexts,
    row: u64,
    tokenizer: &TextTokenizer,
    recipe: &Recipe,
    most: usize,
) -> Result<(Vec<u32>, String), Fail> {
    let mut tokens = Vec::new();
    match recipe.template() {
        None => {
            let (source, target) = texts.pair(row)?;
            tokenizer.encode(source, most, &mut tokens)?;
            Ok((tokens, target.to_string()))
        }
        Some(template) => {
            let conversation = texts.conversation(row)?;
            let text = template.render(&conversation.prompt, true)?;
            tokenizer.encode_prompt(&text, most, &mut tokens)?;
            Ok((tokens, conversation.answer))
        }
    }
}
