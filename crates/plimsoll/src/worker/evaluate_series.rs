//! Evaluation of series inside the same plan: loss, accuracy, macro F1, the confusion matrix and errors over a whole part.
//!
//! Invariant: batch by batch, in memory that classes, values and the micro-batch decide. It leaves no trace in the weights.

use std::sync::Arc;
use std::time::Instant;

use plimsoll_data::Order;
use plimsoll_data::series::{Part, Score, Scores, Series, SeriesLoader};
use plimsoll_engine::{Loss, SeriesHead, Stepper};
use plimsoll_watch::EvalScores;

use super::evaluate::Evaluation;
use crate::heap::{self, Role};
use crate::prepare::loading;
use crate::render::Fail;

/// Classes of which the confusion matrix is told; of more it would be most of the journal.
const MATRIX_CLASSES: u32 = 32;

/// Evaluates on every window of a part. None: `stop` was asked between two batches and said yes.
pub fn evaluate_series(
    engine: &mut Stepper,
    series: &Arc<Series>,
    part: Part,
    stop: &dyn Fn() -> bool,
) -> Result<Option<Evaluation>, Fail> {
    let start = Instant::now();
    let program = engine.program();
    let each = program.part_samples;
    let outputs = |head: fn(&plimsoll_plan::spec::SeriesSpec) -> usize| program.spec.series().map_or(0, head);
    let classes = outputs(|spec| spec.classes.as_ref().map_or(0, |head| head.outputs));
    let values = outputs(|spec| spec.values.as_ref().map_or(0, |head| head.outputs));
    let (of, settings) = (series.clone(), loading(series, each, 1));
    let begin = || SeriesLoader::start_pass(of, part, Order::new(0, false), settings);
    let mut batches = heap::on_behalf(Role::Loader, begin)?;
    let (mut class_answers, mut value_answers) = (vec![0.0; each * classes], vec![0.0; each * values]);
    let facts = series.facts();
    let mut scores = Scores::new(facts.classes, &series.value_scales());
    let mut loss = Loss::default();
    let mut stopped = stop();
    while !stopped {
        let samples = batches.next(engine.series_slot()?)?.samples;
        if samples == 0 {
            break;
        }
        let of_batch = engine.eval(samples)?;
        loss.add(of_batch);
        let (class_answers, value_answers) =
            (&mut class_answers[..samples * classes], &mut value_answers[..samples * values]);
        if classes > 0 {
            engine.read_answers(SeriesHead::Classes, class_answers)?;
        }
        if values > 0 {
            engine.read_answers(SeriesHead::Values, value_answers)?;
        }
        let slot = engine.series_slot()?;
        scores.add_classes(&slot.classes[..samples], class_answers)?;
        scores.add_values(&slot.values[..samples * values], value_answers)?;
        stopped = stop();
    }
    heap::on_behalf(Role::Loader, || drop(batches));
    if stopped {
        return Ok(None);
    }
    Ok(Some(Evaluation {
        loss: loss.mean(),
        bleu: None,
        exact: None,
        scores: Some(told(scores.into_score(), facts.classes)),
        generated: 0,
        rows: series.samples(part),
        seconds: start.elapsed().as_secs_f64(),
    }))
}

/// Of so many classes, those whose matrix is told: all, or none.
pub fn told_classes(classes: u32) -> usize {
    if classes <= MATRIX_CLASSES { classes as usize } else { 0 }
}

/// Scores as they are told.
fn told(score: Score, classes: Option<u32>) -> EvalScores {
    let Score { accuracy, macro_f1, confusion, mae, rmse, not_numbers, .. } = score;
    let classes = classes.map_or(0, told_classes);
    let row = |truth: usize| {
        let of = |answer: usize| confusion.as_ref().map_or(0, |confusion| confusion.count(truth, answer));
        (0..classes).map(of).collect()
    };
    EvalScores { accuracy, macro_f1, confusion: (0..classes).map(row).collect(), mae, rmse, not_numbers }
}
