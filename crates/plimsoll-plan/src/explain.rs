//! Why a plan is as it is: what was turned away from the fastest plan, and what the next faster one lacks.
//!
//! Sizes at both ends are placed ones, those between them bounds; each step's saving is the difference of its neighbours, so
//! the steps add up to the whole way.

use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};

use crate::choices::Choices;
use crate::choose::Plan;
use crate::program::Job;
use crate::search::{Search, Sized};

/// One knob turned away from the fastest setting, with what it saved and cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cut {
    /// What was done.
    pub what: String,
    /// RAM saved.
    pub saved: i64,
    /// Time added, in percent.
    pub slower_percent: f64,
}

/// A plan with the same result that would be faster, and does not fit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NextFaster {
    /// What it would do otherwise.
    pub change: String,
    /// Seconds of one update by the cost model.
    pub seconds_per_update: f64,
    /// RAM that it needs.
    pub ram_peak: Bytes,
    /// How much of that the budget lacks.
    pub lacks: Bytes,
}

/// How an update goes through its micro-batches.
fn batches(job: &Job, choices: &Choices) -> String {
    let (size, count) = (choices.micro_batch, job.effective_batch / choices.micro_batch);
    match (choices.optimizer_in_backward, count) {
        (true, 1) => "update in the backward pass".into(),
        (false, 1) => "update after the backward pass".into(),
        (true, _) => format!("blocks swept over {count} micro-batches of {size}"),
        (false, _) => format!("micro-batch {size} x {count} accumulated"),
    }
}

fn recompute(choices: &Choices, blocks: usize) -> String {
    let of_blocks = recompute_blocks(choices, blocks);
    match choices.lstm_every {
        0 => of_blocks,
        every => format!("{of_blocks}; gates of the LSTM computed again, {every} steps at a time"),
    }
}

fn recompute_blocks(choices: &Choices, blocks: usize) -> String {
    match (choices.recompute, choices.recompute_attention) {
        (0, 0) => "nothing computed again".into(),
        (all, 0) => format!("recompute {all} of {blocks} blocks"),
        (0, attention) => format!("recompute attention of {attention} of {blocks} blocks"),
        (all, attention) => format!("recompute {all} of {blocks} blocks, attention of {attention} more"),
    }
}

/// Nothing for a model of series, whose loss has no rows of logits.
fn loss(job: &Job, choices: &Choices) -> Option<String> {
    job.spec.series().is_none().then(|| format!("loss {} rows at a time", choices.loss_chunk))
}

fn loaders(choices: &Choices) -> String {
    match choices.loader_threads {
        1 => "1 loader thread".into(),
        n => format!("{n} loader threads"),
    }
}

pub(crate) fn compute_threads(threads: usize) -> String {
    match threads {
        1 => "1 compute thread".into(),
        n => format!("{n} compute threads"),
    }
}

/// All choices in words.
pub(crate) fn words(job: &Job, choices: &Choices) -> String {
    all(job, choices).into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn all(job: &Job, choices: &Choices) -> [Option<String>; 4] {
    let recompute = recompute(choices, job.spec.blocks());
    [Some(batches(job, choices)), Some(recompute), loss(job, choices), Some(loaders(choices))]
}

/// In words, what `to` does otherwise than `from`.
fn difference(job: &Job, from: &Choices, to: &Choices) -> String {
    let changed = all(job, from).into_iter().zip(all(job, to)).filter(|(a, b)| a != b);
    changed.filter_map(|(_, b)| b).collect::<Vec<_>>().join("; ")
}

/// The knobs in which a choice differs from the fastest, one after the other.
pub(crate) fn cuts(search: &Search, fastest: Sized, chosen: Sized) -> Vec<Cut> {
    let (job, target) = (search.job, chosen.choices);
    let blocks = search.blocks();
    let mut step = fastest.choices;
    let mut way: Vec<(String, Choices)> = Vec::new();
    let mut turn = |what: String, step: Choices| {
        if way.last().map_or(fastest.choices, |(_, last)| *last) != step {
            way.push((what, step));
        }
    };
    // A smaller micro-batch brings its own largest chunk, and with too many of them gradients that are kept.
    step.micro_batch = target.micro_batch;
    step.optimizer_in_backward &= job.may_update_in_backward(target.micro_batch);
    // Of series there are no rows of logits, and nothing is said of them.
    let texts = job.spec.series().is_none();
    step.loss_chunk = match texts {
        true => step.loss_chunk.min(target.micro_batch * job.target_len),
        false => target.loss_chunk,
    };
    turn(batches(job, &step), step);
    step.optimizer_in_backward = target.optimizer_in_backward;
    turn(batches(job, &step), step);
    step.loss_chunk = target.loss_chunk;
    turn(loss(job, &step).unwrap_or_default(), step);
    // Blocks of convolutions have no attention that could be computed again by itself.
    if texts {
        step.recompute_attention = target.recompute_attention + target.recompute - step.recompute.min(target.recompute);
        step.recompute = step.recompute.min(target.recompute);
        turn(recompute(&step, blocks), step);
    }
    (step.recompute, step.recompute_attention) = (target.recompute, target.recompute_attention);
    turn(recompute(&step, blocks), step);
    step.lstm_every = target.lstm_every;
    turn(recompute(&step, blocks), step);
    step.loader_threads = target.loader_threads;
    turn(loaders(&step), step);
    let mut now = (fastest.peak, fastest.seconds);
    let count = way.len();
    let tell = |(nth, (what, choices)): (usize, (String, Choices))| {
        let next = match nth + 1 == count {
            true => (chosen.peak, chosen.seconds),
            false => {
                let judged = search.judge(choices);
                (judged.least, judged.seconds)
            }
        };
        let saved = now.0.0 as i64 - next.0.0 as i64;
        let slower_percent = (next.1 / now.1 - 1.0) * 100.0;
        now = next;
        Cut { what, saved, slower_percent }
    };
    way.into_iter().enumerate().map(tell).collect()
}

/// The last step of a way: from the smallest plan on more threads to one on fewer.
pub(crate) fn fewer_threads(job: &Job, from: &Plan, to: &Plan) -> Cut {
    let changes = difference(job, &from.choices, &to.choices);
    let and = if changes.is_empty() { String::new() } else { format!("; {changes}") };
    Cut {
        what: format!("{} instead of {}{and}", compute_threads(to.threads), from.threads),
        saved: from.ram.peak.0 as i64 - to.ram.peak.0 as i64,
        slower_percent: (to.seconds_per_update / from.seconds_per_update - 1.0) * 100.0,
    }
}

/// What the smallest noticeably faster plan lacks.
pub(crate) fn next_faster(search: &Search, chosen: Sized) -> Option<NextFaster> {
    let ram = search.terms.ram;
    let next = search.next_faster(ram, chosen.seconds)?;
    Some(NextFaster {
        change: difference(search.job, &chosen.choices, &next.choices),
        seconds_per_update: next.seconds,
        ram_peak: next.peak,
        lacks: next.peak - ram,
    })
}
