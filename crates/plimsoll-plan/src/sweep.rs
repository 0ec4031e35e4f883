//! A sweep of budgets: what each amount of memory buys, from the least with which a job runs to where more buys nothing.

use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};

use crate::choose::{Terms, at_threads, thread_counts};
use crate::explain::{self, words};
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
/// each is faster than the one before it. Where the threads are not held, plans on fewer are among them.
pub fn sweep(job: &Job, terms: &Terms) -> Vec<SweepPoint> {
    let pins = terms.held.unwrap_or(terms.pins);
    let each: Vec<(Job, Terms)> =
        thread_counts(job, terms).into_iter().map(|threads| at_threads(job, terms, threads)).collect();
    let searches = Searches(each.iter().map(|(job, terms)| Search::new(job, terms, pins)).collect());
    let mut found: Vec<(Bytes, usize, Sized)> = Vec::new();
    for budget in budgets(&searches) {
        let Some((nth, plan)) = searches.within(budget) else { continue };
        if found.iter().all(|(_, n, f)| !same((*n, f), (nth, &plan))) {
            found.push((chosen_from(&searches, (nth, &plan), budget), nth, plan));
        }
    }
    found.sort_by_key(|(budget, ..)| *budget);
    let point = |(budget, nth, plan): &(Bytes, usize, Sized)| {
        let (job, _) = &each[*nth];
        SweepPoint {
            budget: *budget,
            peak: plan.peak,
            seconds_per_update: plan.seconds,
            tokens_per_second: searches.0[*nth].tokens() / plan.seconds,
            choices: format!("{}; {}", words(job, &plan.choices), explain::compute_threads(job.threads)),
        }
    };
    found.iter().map(point).collect()
}

/// A search for each number of threads, the most first.
struct Searches<'a>(Vec<Search<'a>>);

impl Searches<'_> {
    /// The plan of a budget: the fastest of those that are chosen on each number of threads; and which that is.
    fn within(&self, budget: Bytes) -> Option<(usize, Sized)> {
        let each = self.0.iter().enumerate().filter_map(|(nth, search)| Some((nth, search.within(budget)?)));
        each.reduce(|best, next| if next.1.seconds < best.1.seconds { next } else { best })
    }
}

/// Whether two plans are as good as each other: which of two with the same size and speed is found depends on the budget.
fn same(a: (usize, &Sized), b: (usize, &Sized)) -> bool {
    let of = |(threads, plan): (usize, &Sized)| (threads, plan.peak, plan.seconds);
    of(a) == of(b)
}

/// The least budget that a plan is chosen under, where it is under `budget`. Under a smaller one that it would fit into, a
/// slower and smaller one may be near enough to the fastest that fits.
fn chosen_from(searches: &Searches, (nth, plan): (usize, &Sized), budget: Bytes) -> Bytes {
    let chosen = |size: Bytes| searches.within(size).is_some_and(|(n, found)| same((n, &found), (nth, plan)));
    // From where on it is chosen, it is chosen up to here.
    let (mut low, mut high) = (plan.peak, budget);
    while low < high {
        let middle = Bytes(low.0 + (high.0 - low.0) / 2);
        match chosen(middle) {
            true => high = middle,
            false => low = middle + Bytes(1),
        }
    }
    high
}

/// Budgets in even steps of ratio between the smallest plan and the fastest.
fn budgets(searches: &Searches) -> Vec<Bytes> {
    let least = searches.0.iter().map(|search| search.least().peak).min().unwrap_or(Bytes::ZERO);
    let most = searches.0[0].fastest().peak.max(least);
    let ratio = most.0 as f64 / least.0.max(1) as f64;
    let between = |nth: usize| least.0 as f64 * ratio.powf(nth as f64 / (POINTS - 1) as f64);
    let mut list: Vec<Bytes> = (0..POINTS).map(|nth| Bytes(between(nth) as u64).max(least).min(most)).collect();
    list[POINTS - 1] = most;
    list.dedup();
    list
}
