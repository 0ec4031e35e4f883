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
    let mut found: Vec<Sized> = Vec::new();
    for budget in budgets(&search) {
        let Some(plan) = search.within(budget) else { continue };
        if found.iter().all(|f| f.choices != plan.choices) {
            found.push(plan);
        }
    }
    found.sort_by_key(|f| f.peak);
    let tokens = search.tokens();
    let point = |plan: &Sized| SweepPoint {
        budget: plan.peak,
        peak: plan.peak,
        seconds_per_update: plan.seconds,
        tokens_per_second: tokens / plan.seconds,
        choices: words(job, &plan.choices),
    };
    found.iter().map(point).collect()
}

/// Budgets in even steps of ratio between the smallest plan and the one that is chosen without a budget.
fn budgets(search: &Search) -> Vec<Bytes> {
    let least = search.least().peak;
    let most = search.within(Bytes(u64::MAX)).map_or(least, |found| found.peak);
    let ratio = most.0 as f64 / least.0.max(1) as f64;
    let between = |nth: usize| least.0 as f64 * ratio.powf(nth as f64 / (POINTS - 1) as f64);
    let mut list: Vec<Bytes> = (0..POINTS).map(|nth| Bytes(between(nth) as u64).max(least).min(most)).collect();
    list[POINTS - 1] = most;
    list.dedup();
    list
}
