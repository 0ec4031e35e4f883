//! What would make a job fit that is too big: each change is planned before it is offered.

use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};

use crate::choose::{Pins, Plan, Terms};
use crate::footprint::{self, DiskFacts};
use crate::program::Job;
use crate::search::Search;
use crate::spec::ModelSpec;
use crate::train::OptimizerSpec;

/// A change that would make the job fit; the planner tried it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// What to change.
    pub change: String,
    /// RAM that the job would need then.
    pub ram_peak: Bytes,
    /// VRAM that it would need, on a card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vram_peak: Option<Bytes>,
}

/// What a remedy must leave over: the next planning measures program and heap anew, and some 200 KiB apart.
const SPARE: Bytes = Bytes::mib(1);

/// RAM that a job would need if it fits.
fn fits(job: &Job, terms: &Terms) -> Option<Bytes> {
    let search = Search::new(job, terms, terms.held.unwrap_or(terms.pins));
    let found = search.within(terms.ram.saturating_sub(SPARE))?;
    let disk = footprint::disk(&search.place(found.choices).program, &terms.disk_facts, terms.disk);
    (disk.peak <= terms.disk).then_some(found.peak)
}

/// Changes that would make the job fit, each tried.
pub(crate) fn remedies(job: &Job, terms: &Terms, plan: &Plan) -> Vec<Remedy> {
    let mut list = Vec::new();
    let mut offer = |change: String, job: &Job, terms: &Terms| {
        let ram_peak = fits(job, terms);
        list.extend(ram_peak.map(|ram_peak| Remedy { change, ram_peak, vram_peak: None }));
        ram_peak.is_some()
    };
    let (budgets, larger) = larger_budgets(terms, plan);
    offer(budgets.join(" and "), job, &larger);
    for (change, terms) in kept_otherwise(terms, plan) {
        offer(change, job, &terms);
    }
    if matches!(job.optimizer, OptimizerSpec::AdamW { .. }) {
        let other = Job { optimizer: OptimizerSpec::adafactor(1e-3), ..job.clone() };
        offer("optimizer adafactor (another result)".into(), &other, terms);
    }
    if job.clip {
        offer("no clip_norm (another result)".into(), &Job { clip: false, ..job.clone() }, terms);
    }
    if job.eval.is_some() {
        offer("no evaluation during the run".into(), &Job { eval: None, ..job.clone() }, terms);
    }
    if job.spec.series().is_some() {
        smaller_batches(job).for_each(|(change, job)| {
            offer(change, &job, terms);
        });
        return list;
    }
    // The longest that fit.
    let _ = shorter(job).any(|(change, job)| offer(change, &job, terms));
    list
}

/// Half of the samples an update, then half of those.
pub(crate) fn smaller_batches(job: &Job) -> impl Iterator<Item = (String, Job)> {
    let halves = std::iter::successors(Some(job.effective_batch), |n| (*n > 1).then_some(n / 2)).skip(1).take(3);
    halves.map(|n| (format!("effective batch {n} (another result)"), Job { effective_batch: n, ..job.clone() }))
}

/// The budgets of RAM and disk that the plan misses, in words and as terms.
pub(crate) fn larger_budgets<'a>(terms: &Terms<'a>, plan: &Plan) -> (Vec<String>, Terms<'a>) {
    let (ram, disk) = (enough(plan.ram.peak), enough(plan.disk.peak));
    let (more_ram, more_disk) = (plan.ram.peak > terms.ram, plan.disk.peak > terms.disk);
    let wanted = [("RAM", more_ram, ram, terms.ram_there), ("disk", more_disk, disk, terms.disk_there)];
    let wanted = wanted.into_iter().filter(|(_, more, ..)| *more).map(|(what, _, enough, there)| {
        if enough <= there {
            format!("a {what} budget of {}", in_mib(enough))
        } else {
            format!("{} of free {what} (there are {} now)", in_mib(enough), in_mib(there))
        }
    });
    let larger = |now: Bytes, enough: Bytes, more: bool| if more { enough } else { now };
    let larger = Terms { ram: larger(terms.ram, ram, more_ram), disk: larger(terms.disk, disk, more_disk), ..*terms };
    (wanted.collect(), larger)
}

/// Fewer checkpoints, no snapshot, nothing held: the same steps otherwise kept or found.
pub(crate) fn kept_otherwise<'a>(terms: &Terms<'a>, plan: &Plan) -> Vec<(String, Terms<'a>)> {
    let mut list = Vec::new();
    if terms.disk_facts.keep > 1 && plan.disk.peak > terms.disk {
        list.push(("keep 1".into(), Terms { disk_facts: DiskFacts { keep: 1, ..terms.disk_facts }, ..*terms }));
    }
    if terms.saves && terms.pins.snapshot == Some(true) {
        let pins = Pins { snapshot: Some(false), ..terms.pins };
        let change = "no snapshot: each checkpoint stops the steps".into();
        list.push((change, Terms { pins, held: None, ..*terms }));
    }
    if terms.pins != Pins::default() {
        list.push(("no pinned choices".into(), Terms { pins: Pins::default(), held: None, ..*terms }));
    }
    list
}

/// The job with lengths by halves.
pub(crate) fn shorter(job: &Job) -> impl Iterator<Item = (String, Job)> {
    let halved = |(source, target): &(usize, usize)| {
        let half = |n: usize| (n / 2).max(8.min(n));
        (*source > 8 || *target > 8).then(|| (half(*source), half(*target)))
    };
    std::iter::successors(Some((job.source_len, job.target_len)), halved).skip(1).map(|(source_len, target_len)| {
        let lengths = match job.spec {
            ModelSpec::T5(_) => format!("source {source_len}, target {target_len}"),
            ModelSpec::Decoder(_) | ModelSpec::Series(_) => format!("tokens {source_len}"),
        };
        (format!("max_len {lengths} (another result)"), Job { source_len, target_len, ..job.clone() })
    })
}

/// A little more than what is needed, in whole MiB.
pub(crate) fn enough(bytes: Bytes) -> Bytes {
    Bytes((bytes + SPARE).0.next_multiple_of(1 << 20))
}

/// In full, so that what is printed is enough: two decimals of a GiB can hide 5 MiB.
pub(crate) fn in_mib(bytes: Bytes) -> String {
    format!("{} MiB", bytes.0 >> 20)
}
