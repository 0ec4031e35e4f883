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
        list.extend(ram_peak.map(|ram_peak| Remedy { change, ram_peak }));
        ram_peak.is_some()
    };
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
    let budget = wanted.collect::<Vec<_>>().join(" and ");
    let larger = |now: Bytes, enough: Bytes, more: bool| if more { enough } else { now };
    offer(
        budget,
        job,
        &Terms { ram: larger(terms.ram, ram, more_ram), disk: larger(terms.disk, disk, more_disk), ..*terms },
    );
    if terms.disk_facts.keep > 1 && more_disk {
        offer("keep 1".into(), job, &Terms { disk_facts: DiskFacts { keep: 1, ..terms.disk_facts }, ..*terms });
    }
    if terms.saves && terms.pins.snapshot == Some(true) {
        let pins = Pins { snapshot: Some(false), ..terms.pins };
        offer("no snapshot: each checkpoint stops the steps".into(), job, &Terms { pins, held: None, ..*terms });
    }
    if terms.pins != Pins::default() {
        offer("no pinned choices".into(), job, &Terms { pins: Pins::default(), held: None, ..*terms });
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
    // The longest lengths, by halves, that fit.
    let (mut source, mut target) = (job.source_len, job.target_len);
    while source > 8 || target > 8 {
        (source, target) = ((source / 2).max(8.min(source)), (target / 2).max(8.min(target)));
        let shorter = Job { source_len: source, target_len: target, ..job.clone() };
        let lengths = match job.spec {
            ModelSpec::T5(_) => format!("source {source}, target {target}"),
            ModelSpec::Decoder(_) => format!("tokens {source}"),
        };
        if offer(format!("max_len {lengths} (another result)"), &shorter, terms) {
            break;
        }
    }
    list
}

/// A little more than what is needed, in whole MiB.
fn enough(bytes: Bytes) -> Bytes {
    Bytes((bytes + SPARE).0.next_multiple_of(1 << 20))
}

/// In full, so that what is printed is enough: two decimals of a GiB can hide 5 MiB.
fn in_mib(bytes: Bytes) -> String {
    format!("{} MiB", bytes.0 >> 20)
}
