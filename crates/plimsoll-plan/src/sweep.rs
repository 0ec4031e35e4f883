//! A sweep of budgets: what each amount of memory buys, from the least with which a job runs to where more buys nothing.

use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};

use crate::choose::Terms;
use crate::explain::words;
use crate::program::Job;
use crate::search::{Search, Sized};

/// Points of a sweep, at most.
const POINTS: usize = 14;

/// The plan of one budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepPoint {
    /// RAM from which on this plan is chosen.
    pub budget: Bytes,
    /// RAM that it needs.
    pub peak: Bytes,
    /// Seconds of one update by the cost model.
    pub seconds_per_update: f64,
    /// Tokens a second, with full lengths.
    pub tokens_per_second: f64,
    /// Its choices in words.
    pub choices: String,
}

/// The plans of a job from the smallest budget up; the terms' own budget does not matter. No two have the same plan, and
/// each is faster than the one before it.
pub fn sweep(job: &Job, terms: &Terms) -> Vec<SweepPoint> {
    let search = Search::new(job, terms, terms.held.unwrap_or(terms.pins));
    let mut found: Vec<(Bytes, Sized)> = Vec::new();
    for budget in budgets(&search) {
        let Some(plan) = search.within(budget) else { continue };
        if found.iter().all(|(_, f)| f.choices != plan.choices) {
            found.push((chosen_from(&search, &plan, budget), plan));
        }
    }
    found.sort_by_key(|(budget, _)| *budget);
    let tokens = search.tokens();
    let point = |(budget, plan): &(Bytes, Sized)| SweepPoint {
        budget: *budget,
        peak: plan.peak,
        seconds_per_update: plan.seconds,
        tokens_per_second: tokens / plan.seconds,
        choices: words(job, &plan.choices),
    };
    found.iter().map(point).collect()
}

/// The least budget that a plan is chosen under, where it is under `budget`. Under a smaller one that it would fit into, a
/// slower and smaller one may be near enough to the fastest that fits.
fn chosen_from(search: &Search, plan: &Sized, budget: Bytes) -> Bytes {
    let sizes = search.sizes_between(plan.peak, budget);
    let (mut low, mut high) = (0, sizes.len());
    while low < high {
        let middle = (low + high) / 2;
        match search.within(sizes[middle]).is_some_and(|found| found.choices == plan.choices) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    sizes.get(low).copied().unwrap_or(budget)
}

/// Budgets in even steps of ratio between the smallest plan and the fastest.
fn budgets(search: &Search) -> Vec<Bytes> {
    let least = search.least().peak;
    let most = search.fastest().peak.max(least);
    let ratio = most.0 as f64 / least.0.max(1) as f64;
    let between = |nth: usize| least.0 as f64 * ratio.powf(nth as f64 / (POINTS - 1) as f64);
    let mut list: Vec<Bytes> = (0..POINTS).map(|nth| Bytes(between(nth) as u64).max(least).min(most)).collect();
    list[POINTS - 1] = most;
    list.dedup();
    list
}
