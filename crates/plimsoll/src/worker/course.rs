//! Whether a run goes on under the plan that it began with.
//!
//! That plan is the run's contract: program and heap are measured anew at every start, some 100 KiB apart, and such a
//! difference neither changes the choices nor the figures that the run is held against. A pure decision; it refuses to
//! know how a plan is made.

use plimsoll_machine::Bytes;
use plimsoll_plan::choose::{Pins, Plan};
use plimsoll_plan::footprint::Footprint;

/// How far two measurements of one plan may lie apart.
const APART: Bytes = Bytes::mib(1);

/// What is done with a plan that was just made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// It becomes the run's plan.
    Take,
    /// The earlier plan stays.
    GoOn,
    /// The earlier choices are given up, and others looked for.
    PlanAnew,
    /// It does not fit, and no other choice would.
    Refuse,
}

/// Decides on `now`, which was made with the choices of `earlier` where there is one.
pub fn course(earlier: Option<&Plan>, now: &Plan) -> Course {
    // Of a card's memory there is no more than its budget, whatever was promised before. On the CPU both are nothing.
    if now.vram.peak > now.vram.budget {
        return if earlier.is_some() { Course::PlanAnew } else { Course::Refuse };
    }
    // What others hold of the card is measured anew each time, and is no matter of the run's own work.
    let on_card = |plan: &Plan| {
        plan.vram.parts.iter().filter(|part| part.name != "context").map(|part| part.bytes).sum::<Bytes>()
    };
    let same = |then: &Plan| {
        on_card(then) == on_card(now)
            && (
                then.choices,
                then.snapshot,
                then.effective_batch,
                then.source_len,
                then.target_len,
                then.threads,
                then.simd,
            ) == (
                now.choices,
                now.snapshot,
                now.effective_batch,
                now.source_len,
                now.target_len,
                now.threads,
                now.simd,
            )
    };
    judge(earlier.map(|then| (&then.ram, same(then))), &now.ram, &now.disk)
}

/// `then`: the RAM of the earlier plan, and whether it does the same work.
fn judge(then: Option<(&Footprint, bool)>, ram: &Footprint, disk: &Footprint) -> Course {
    let fits = ram.peak <= ram.budget;
    let Some((then, same_work)) = then else {
        return if fits && disk.peak <= disk.budget { Course::Take } else { Course::Refuse };
    };
    let same = same_work && ram.peak.0.abs_diff(then.peak.0) <= APART.0;
    let held = same && ram.budget == then.budget;
    if (fits || held) && disk.peak > disk.budget {
        // No choice of the search makes a checkpoint smaller.
        return Course::Refuse;
    }
    match (fits, same) {
        (true, false) => Course::Take,
        (true, true) => Course::GoOn,
        (false, _) if held => Course::GoOn,
        (false, _) => Course::PlanAnew,
    }
}

/// The earlier plan, under the budget of today.
pub fn contract(earlier: Plan, now: &Plan) -> Plan {
    let ram = Footprint { budget: now.ram.budget, ..earlier.ram };
    Plan { ram, smallest: now.smallest, disk: now.disk.clone(), vram: now.vram.clone(), ..earlier }
}

/// An earlier plan's choices: a run that goes on does exactly what it did.
pub fn pins_of(plan: &Plan) -> Pins {
    let c = &plan.choices;
    Pins {
        micro_batch: Some(c.micro_batch),
        recompute: Some(c.recompute),
        recompute_attention: Some(c.recompute_attention),
        recompute_feed_forward: Some(c.recompute_feed_forward),
        loss_chunk: Some(c.loss_chunk),
        optimizer_in_backward: Some(c.optimizer_in_backward),
        loader_threads: Some(c.loader_threads),
        snapshot: Some(plan.snapshot),
        threads: Some(plan.threads),
        lean: Some(c.lean),
        keep_norms: Some(c.keep_norms),
        lstm_every: Some(c.lstm_every),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(peak: u64, budget: u64) -> Footprint {
        Footprint { budget: Bytes(budget), peak: Bytes(peak), ..Footprint::default() }
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_plan_measured_a_little_higher_under_the_same_budget_is_kept() {
        let (then, room) = (of(100 * MIB, 100 * MIB), of(1, 2));
        for (peak, wanted) in [
            (99 * MIB, Course::GoOn),
            (100 * MIB + 300_000, Course::GoOn),
            (101 * MIB, Course::GoOn),
            (101 * MIB + 1, Course::PlanAnew),
        ] {
            assert_eq!(judge(Some((&then, true)), &of(peak, 100 * MIB), &room), wanted, "{peak}");
        }
        // Other work, or a smaller budget, is another matter.
        assert_eq!(judge(Some((&then, false)), &of(100 * MIB + 1, 100 * MIB), &room), Course::PlanAnew);
        assert_eq!(judge(Some((&then, true)), &of(100 * MIB, 100 * MIB - 1), &room), Course::PlanAnew);
    }

    #[test]
    fn a_plan_that_changed_and_fits_is_taken() {
        let (then, room) = (of(100 * MIB, 200 * MIB), of(1, 2));
        assert_eq!(judge(Some((&then, true)), &of(103 * MIB, 200 * MIB), &room), Course::Take);
        assert_eq!(judge(Some((&then, false)), &of(100 * MIB, 200 * MIB), &room), Course::Take);
        assert_eq!(judge(None, &of(103 * MIB, 200 * MIB), &room), Course::Take);
    }

    #[test]
    fn where_only_the_disk_is_short_no_other_plan_is_looked_for() {
        let (then, short) = (of(100 * MIB, 100 * MIB), of(3, 2));
        assert_eq!(judge(Some((&then, true)), &of(100 * MIB, 100 * MIB), &short), Course::Refuse);
        assert_eq!(judge(Some((&then, true)), &of(100 * MIB + 9, 100 * MIB), &short), Course::Refuse);
        assert_eq!(judge(Some((&then, true)), &of(200 * MIB, 100 * MIB), &short), Course::PlanAnew);
        assert_eq!(judge(None, &of(1, 2), &short), Course::Refuse);
        assert_eq!(judge(None, &of(3, 2), &of(1, 2)), Course::Refuse);
    }
}
