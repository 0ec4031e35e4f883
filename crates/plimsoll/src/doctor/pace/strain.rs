//! What swap and stalls cost: steps in strained stretches against steps in calm ones.
//!
//! A sample speaks of the time just before it (rates since the one before, PSI over the last ten seconds), so it labels
//! the steps since the last sample. The cost is measured in this run, never assumed.

use plimsoll_machine::Bytes;
use plimsoll_watch::{Event, Seen};

use super::measure::StepTime;
use super::{Found, percent};
use crate::doctor::advice::{as_budget, say, set};
use crate::doctor::attempts::Attempt;
use crate::doctor::diagnosis::Slow;
use crate::doctor::when::Span;

/// PSI `some`, percent, from which a stretch is strained: a tenth of the time some thread waited for memory.
const STALL: f64 = 10.0;
/// Swapping per second from which a stretch is strained; below it, it is idle pages of others that move.
const SWAPPING: Bytes = Bytes::mib(1);
/// Fewer steps than this on either side are no comparison.
const ENOUGH: usize = 3;

/// Steps of one label.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    steps: usize,
    seconds: f64,
    tokens: u64,
}

impl Stretch {
    fn add(&mut self, step: &StepTime) {
        self.steps += 1;
        self.seconds += step.compute();
        self.tokens += step.tokens;
    }

    fn per_token(&self) -> f64 {
        self.seconds / self.tokens.max(1) as f64
    }
}

/// Says so where memory was strained; whether it was.
pub(super) fn judge(attempts: &[Attempt<'_>], planned: Option<Bytes>, found: &mut Found) -> bool {
    let (mut calm, mut strained) = (Stretch::default(), Stretch::default());
    let (mut swap, mut stall) = (Bytes::ZERO, 0.0_f64);
    for attempt in attempts {
        let mut since: Vec<StepTime> = Vec::new();
        let mut first = true;
        for record in attempt.records {
            match &record.event {
                step @ Event::Step { .. } => {
                    since.extend(StepTime::of(step, first).filter(|step| !step.first));
                    first = false;
                }
                Event::Sample { seen, .. } => {
                    let Some(is_strained) = label(seen) else { continue };
                    let side = if is_strained { &mut strained } else { &mut calm };
                    since.drain(..).for_each(|step| side.add(&step));
                    swap = swap.max(seen.swap_bytes.unwrap_or_default());
                    stall = stall.max(seen.stall_some.filter(|stall| stall.is_finite()).unwrap_or(0.0));
                }
                _ => {}
            }
        }
    }
    if strained.steps < ENOUGH {
        return false;
    }
    let what = match (swap > Bytes::ZERO, stall >= STALL) {
        (true, true) => {
            format!("up to {swap} of it lay in swap, and up to {stall:.0} % of the time something waited for memory")
        }
        (true, false) => format!("up to {swap} of it lay in swap"),
        (false, _) => format!("up to {stall:.0} % of the time something waited for memory"),
    };
    let cost = cost(&calm, &strained);
    found.say(Slow::Swapping, format!("memory was short for {} steps: {what}; {cost}", strained.steps));
    found.advice.push(say("end what else uses memory on this machine"));
    if let Some(planned) = planned.filter(|planned| swap > Bytes::ZERO && *planned > swap) {
        let text = format!("or plan for what stays resident: {planned} less the {swap} that lay in swap");
        found.advice.push(set(text, "budget.ram", as_budget(planned.saturating_sub(swap))));
    }
    true
}

/// What the strain cost, in the run's own steps.
fn cost(calm: &Stretch, strained: &Stretch) -> String {
    if calm.steps < ENOUGH {
        return "there is no calm stretch to measure the cost against".to_string();
    }
    let usual = calm.per_token();
    let ratio = strained.per_token() / usual.max(1e-12);
    let extra = strained.seconds - usual * strained.tokens as f64;
    if extra <= 0.0 {
        return format!("its steps were no slower for it than the {} calm ones", calm.steps);
    }
    let more = percent(ratio - 1.0);
    format!("its steps took {more} longer than the {} calm ones, {} in all", calm.steps, Span(extra))
}

/// Whether a sample tells of strain; `None` where it says nothing of it.
fn label(seen: &Seen) -> Option<bool> {
    if seen.swapping_bytes_per_second.is_none() && seen.stall_some.is_none() && seen.stall_full.is_none() {
        return None;
    }
    let swapped = seen.swap_bytes.unwrap_or_default() > Bytes::ZERO;
    let moving = seen.swapping_bytes_per_second.unwrap_or_default() >= SWAPPING;
    let stalled = seen.stall_some.is_some_and(|stall| stall >= STALL);
    Some((swapped && moving) || stalled)
}
