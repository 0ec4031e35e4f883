//! Whether steps became slower over a process's life, at equal work.

use super::measure::{StepTime, median};
use super::percent;
use crate::doctor::attempts::Attempt;
use crate::doctor::when::Span;

/// Quarters of fewer steps than this are noise.
const QUARTER: usize = 10;
/// How much slower the last quarter's middle must be. A CPU that leaves its turbo loses 20 to 40 %; the middles of
/// quarters of one calm run lie within a few percent of each other.
const SLOWER: f64 = 1.25;
/// Quarters whose tokens a step differ more than this did other work (attention grows faster than its tokens).
const EQUAL: f64 = 1.2;

/// That steps became slower, with the numbers; `None` where they did not.
pub(super) fn slower(attempt: &Attempt<'_>) -> Option<String> {
    let mut first = true;
    let steps: Vec<StepTime> = attempt
        .records
        .iter()
        .filter_map(|record| {
            let step = StepTime::of(&record.event, first)?;
            first = false;
            (!step.first && step.tokens > 0).then_some(step)
        })
        .collect();
    let quarter = steps.len() / 4;
    if quarter < QUARTER {
        return None;
    }
    let (early, late) = (&steps[..quarter], &steps[steps.len() - quarter..]);
    let tokens = |part: &[StepTime]| median(part.iter().map(|step| step.tokens as f64).collect());
    let per_token = |part: &[StepTime]| median(part.iter().map(|step| step.compute() / step.tokens as f64).collect());
    let work = tokens(early).max(tokens(late)) / tokens(early).min(tokens(late)).max(1.0);
    let (before, after) = (per_token(early), per_token(late));
    if work > EQUAL || before <= 0.0 || after / before < SLOWER {
        return None;
    }
    let seconds = |part: &[StepTime]| Span(median(part.iter().map(StepTime::compute).collect()));
    Some(format!(
        "steps became {} slower per token: {} in the first quarter of the last process, {} in the last one, at about \
         equal tokens",
        percent(after / before - 1.0),
        seconds(early),
        seconds(late)
    ))
}
