//! Where a run's time went, and whether that is as it should be. Pure.
//!
//! Every verdict has its numbers, and every line that a number has to cross is a named constant with its reason.

mod measure;
mod strain;
mod trend;

use plimsoll_machine::Bytes;
use plimsoll_watch::Event;

use super::advice::{say, set};
use super::attempts::Attempt;
use super::case::{Case, Life};
use super::diagnosis::{Advice, Pace, Slow, Split, Verdict};
use super::when::Span;
use measure::{Measured, measure, median};

/// With fewer steps the first ones, which are always slow, are all there is.
const FEW_STEPS: u64 = 10;
/// Nobody waits for a run of fewer seconds, and one sync of a disk weighs too much in it.
const FEW_SECONDS: f64 = 5.0;
/// Share of the steps' time spent waiting for data. The planner keeps the loader twice ahead, so that any steady wait
/// means it is not; a tenth is well above what one slow read costs.
const DATA_SHARE: f64 = 0.10;
/// Share of the wall time that saves may cost, and what a change aims at.
const SAVE_SHARE: f64 = 0.05;
const SAVE_AIM: f64 = 0.02;
/// Share of the wall time that evaluations may cost; they are asked for, so the line is high.
const EVAL_SHARE: f64 = 0.25;
const EVAL_AIM: f64 = 0.10;
/// Share of CPU periods that were cut short.
const THROTTLED_SHARE: f64 = 0.10;
/// A measured peak below this share of the plan, and this much below it, is far below. Small runs lie at 80 %: their
/// fixed lines weigh more.
const FAR_BELOW: f64 = 0.7;
const FAR_BELOW_BYTES: Bytes = Bytes::mib(64);
/// A live run that records nothing for this many median steps, and at least for [`SHORT_SILENCE`], is silent.
const SILENT_STEPS: f64 = 20.0;
const SHORT_SILENCE: f64 = 120.0;

/// Where the time went, with what to change; `None` where no step was measured.
pub fn pace(case: &Case, attempts: &[Attempt<'_>]) -> Option<(Pace, Vec<Advice>)> {
    let measured = measure(attempts);
    if measured.steps.is_empty() {
        return None;
    }
    let mut found = Found { verdicts: Vec::new(), advice: Vec::new() };
    let planned = planned(case, attempts);
    silence(case, &mut found);
    if measured.steps.len() as u64 >= FEW_STEPS && measured.wall >= FEW_SECONDS {
        loader(case, &measured, &mut found);
        saves(case, attempts, &measured, &mut found);
        evals(case, &measured, &mut found);
        let strained = strain::judge(attempts, planned, &mut found);
        throttle(case, attempts, strained, &mut found);
        memory(&measured, planned, &mut found);
        if found.verdicts.is_empty() {
            found.say(Slow::Fine, "nothing is wrong with its pace".to_string());
        }
    } else {
        found.say(Slow::TooShort, "that is too short to judge its pace by".to_string());
    }
    let step_seconds: f64 = measured.split.data + measured.split.compute;
    let tokens: u64 = measured.steps.iter().map(|step| step.tokens).sum();
    let pace = Pace {
        steps: measured.steps.len() as u64,
        wall_seconds: measured.wall,
        seconds: measured.split,
        shares: shares(measured.split, measured.wall),
        median_step_seconds: median(measured.steps.iter().map(|step| step.seconds).collect()),
        tokens_per_second: if step_seconds > 0.0 { tokens as f64 / step_seconds } else { 0.0 },
        ram_seen_bytes: measured.ram,
        ram_planned_bytes: planned,
        verdicts: found.verdicts,
    };
    Some((pace, found.advice))
}

/// Verdicts so far, and what to change.
struct Found {
    verdicts: Vec<Verdict>,
    advice: Vec<Advice>,
}

impl Found {
    fn say(&mut self, name: Slow, text: String) {
        self.verdicts.push(Verdict { name, text });
    }
}

fn shares(seconds: Split, wall: f64) -> Split {
    let of = |part: f64| if wall > 0.0 { part / wall } else { 0.0 };
    Split {
        start: of(seconds.start),
        data: of(seconds.data),
        compute: of(seconds.compute),
        save: of(seconds.save),
        eval: of(seconds.eval),
        between: of(seconds.between),
    }
}

fn planned(case: &Case, attempts: &[Attempt<'_>]) -> Option<Bytes> {
    let told = attempts.iter().rev().find_map(|attempt| match attempt.planned() {
        Some(Event::Planned { ram_bytes, .. }) => Some(*ram_bytes),
        _ => match attempt.find(|event| matches!(event, Event::RunStarted { .. })) {
            Some(Event::RunStarted { planned_ram_bytes, .. }) => Some(*planned_ram_bytes),
            _ => None,
        },
    });
    told.or(case.plan.as_ref().map(|plan| plan.ram_peak)).filter(|bytes| *bytes > Bytes::ZERO)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn loader(case: &Case, measured: &Measured, found: &mut Found) {
    // The first step of a process waits for the loader to start; that is no rate.
    let warm = measured.steps.iter().filter(|step| !step.first);
    let (data, all, steps) = warm.fold((0.0, 0.0, 0_u64), |(data, all, n), s| (data + s.data, all + s.seconds, n + 1));
    if all <= 0.0 || data / all < DATA_SHARE {
        return;
    }
    let share = data / all;
    let mean = Span(data / steps as f64);
    found.say(Slow::LoaderBound, format!("steps wait {} of their time for data, {mean} a step", percent(share)));
    let Some(plan) = &case.plan else {
        found
            .advice
            .push(say("give the loader more threads (`pin.loader_threads`), or keep the data on a faster disk"));
        return;
    };
    let (threads, cores) = (plan.loader_threads.max(1), plan.threads.max(1));
    // Enough of them to make in the time of the computing what is made now in the time of the whole step.
    let wanted = ((threads as f64 / (1.0 - share).max(0.05)).ceil() as u64).max(threads + 1).min(cores.max(threads));
    if wanted > threads {
        let text = format!("the loader has {threads} threads and is too slow; the machine computes with {cores}");
        found.advice.push(set(text, "pin.loader_threads", wanted.to_string()));
    } else {
        found.advice.push(say(format!(
            "the loader has {threads} threads already, as many as compute: keep the data on a faster disk, or shorten \
             what is tokenised (`data.max_len`)"
        )));
    }
}

fn saves(case: &Case, attempts: &[Attempt<'_>], measured: &Measured, found: &mut Found) {
    let share = measured.split.save / measured.wall.max(1e-9);
    if share < SAVE_SHARE || measured.saves < 2 {
        return;
    }
    let each = Span(measured.split.save / measured.saves as f64);
    let text = format!(
        "saves take {} of the time: {} of them, the steps stand still for {each} each",
        percent(share),
        measured.saves
    );
    found.say(Slow::SaveBound, text);
    let planned = attempts.iter().rev().find_map(|attempt| attempt.planned());
    if let Some(Event::Planned { snapshot: false, .. }) = planned {
        found.advice.push(set(
            "let checkpoints be written in the background; it takes RAM for a second copy of weights and optimizer",
            "pin.snapshot",
            "true".to_string(),
        ));
    }
    if let Some(every) = case.job.as_ref().and_then(|job| job.save_every) {
        let wanted = (every as f64 * share / SAVE_AIM).ceil() as u64;
        let text = format!("save less often than every {every} steps");
        found.advice.push(set(text, "train.save_every", wanted.to_string()));
    }
}

fn evals(case: &Case, measured: &Measured, found: &mut Found) {
    let share = measured.split.eval / measured.wall.max(1e-9);
    if share < EVAL_SHARE || measured.evals < 2 {
        return;
    }
    let each = Span(measured.split.eval / measured.evals as f64);
    let text = format!("evaluations take {} of the time: {} of them, {each} each", percent(share), measured.evals);
    found.say(Slow::EvalBound, text);
    if let Some(every) = case.job.as_ref().and_then(|job| job.eval_every) {
        let wanted = (every as f64 * share / EVAL_AIM).ceil() as u64;
        let text = format!("evaluate less often than every {every} steps, or on a smaller file");
        found.advice.push(set(text, "train.eval_every", wanted.to_string()));
    }
}

fn throttle(case: &Case, attempts: &[Attempt<'_>], strained: bool, found: &mut Found) {
    let quota = case.now.throttle.filter(|throttle| throttle.periods > 0);
    let share = quota.map_or(0.0, |throttle| throttle.throttled as f64 / throttle.periods as f64);
    if share >= THROTTLED_SHARE {
        let throttle = quota.unwrap_or(super::case::Throttle { periods: 0, throttled: 0 });
        let text = format!(
            "the CPU quota of its cgroup ran out in {} of {} periods ({})",
            throttle.throttled,
            throttle.periods,
            percent(share)
        );
        found.say(Slow::Throttled, text);
        found.advice.push(say("raise the CPU quota of the cgroup, or compute with fewer threads (`train.threads`)"));
        return;
    }
    // Where memory stalled, the steps are slower for that reason.
    if strained {
        return;
    }
    if let Some(slower) = attempts.last().and_then(trend::slower) {
        found.say(Slow::Throttled, slower);
        found.advice.push(say(
            "look for what slows the CPU over time: heat or a power limit (`turbostat`, `sensors`), or a neighbour \
             on its cores (`top`)",
        ));
    }
}

fn memory(measured: &Measured, planned: Option<Bytes>, found: &mut Found) {
    let (Some(planned), seen) = (planned, measured.ram) else { return };
    if seen == Bytes::ZERO {
        return;
    }
    let share = seen.0 as f64 / planned.0.max(1) as f64;
    if seen > planned {
        let text = format!("it used {seen} of RAM where {planned} were planned");
        found.say(Slow::AbovePlan, text);
        found.advice.push(say("a run should never use more than its plan: please report it"));
    } else if share < FAR_BELOW && planned.saturating_sub(seen) > FAR_BELOW_BYTES {
        let text = format!("it used {seen} of RAM, {} of the {planned} that were planned", percent(share));
        found.say(Slow::FarBelowPlan, text);
        found.advice.push(say(
            "memory that was planned and is not resident has been swapped out, or the plan is too careful: if no swap \
             was in use, please report it",
        ));
    }
}

/// A live run that says nothing for much longer than a step takes.
fn silence(case: &Case, found: &mut Found) {
    let Some(last) = case.records.last().filter(|_| case.now.life != Life::Dead) else { return };
    let newest = case.records.iter().rev().filter_map(|record| match record.event {
        Event::Step { seconds, .. } if seconds.is_finite() => Some(seconds),
        _ => None,
    });
    let (usual, since) = (median(newest.take(100).collect()), Span::between(last.unix_ms, case.now.unix_ms));
    if since.0 > SHORT_SILENCE && since.0 > usual * SILENT_STEPS {
        let text = format!("nothing was recorded for {since}, where a step takes {}", Span(usual));
        found.say(Slow::Silent, text);
        found.advice.push(say("look whether its processes still compute (`top`); a long evaluation is silent too"));
    }
}

#[cfg(test)]
#[path = "pace/pace_test.rs"]
mod tests;
