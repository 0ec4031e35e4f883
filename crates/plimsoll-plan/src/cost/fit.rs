//! Rates from measurements: those by which the seconds of many ops are explained best.
//!
//! A least-squares fit over seconds per unit, none of them negative, by going through the units one after the other. A
//! unit that no op tells apart from others stays near what was expected of it.

use super::{Rates, UNITS, Unit, Work};

/// How much a unit is held to what was expected of it, against all measurements together.
const HOLD: f64 = 1e-4;
/// Passes over the units.
const PASSES: usize = 400;
/// A unit is at most so much faster than expected: what costs nothing here may cost something elsewhere.
const FASTEST: f64 = 20.0;

/// The rates that explain these ops' seconds; `expected` is what is known before.
pub fn fit(measured: &[(Work, f64)], expected: Rates) -> Rates {
    let expected = expected.each();
    let measured: Vec<_> = measured.iter().filter(|(_, seconds)| *seconds > 0.0).collect();
    let total: f64 = measured.iter().map(|(_, seconds)| seconds).sum();
    // Each unit as a multiple of its expected cost, so that all are of one size.
    let mut cost = [1.0; UNITS];
    let parts = |work: &Work| -> [f64; UNITS] { std::array::from_fn(|u| work.units[u] / expected[u]) };
    let rows: Vec<([f64; UNITS], f64, f64)> =
        measured.iter().map(|(work, seconds)| (parts(work), *seconds, 1.0 / seconds)).collect();
    let mut rest: Vec<f64> = rows.iter().map(|(row, seconds, _)| seconds - row.iter().sum::<f64>()).collect();
    for _ in 0..PASSES {
        for unit in 0..UNITS {
            let (mut slope, mut square) = (HOLD * total * (1.0 - cost[unit]), HOLD * total);
            for ((row, _, weight), rest) in rows.iter().zip(&rest) {
                slope += weight * row[unit] * rest;
                square += weight * row[unit] * row[unit];
            }
            let next = (cost[unit] + slope / square.max(f64::MIN_POSITIVE)).max(1.0 / FASTEST);
            let change = next - cost[unit];
            cost[unit] = next;
            rows.iter().zip(&mut rest).for_each(|((row, ..), rest)| *rest -= change * row[unit]);
        }
    }
    Rates::of_each(std::array::from_fn(|u| expected[u] / cost[u]))
}

/// The same rates, with calls as slow as whole tapes show them: an op alone finds the other threads awake, one of many has
/// them to wait for. `whole` are tapes with their seconds; the median of what a call takes in each counts.
pub fn with_calls_of(rates: Rates, whole: &[(Work, f64)]) -> Rates {
    let calls = |work: &Work| work.units[Unit::Calls as usize];
    let all = whole.iter().filter(|(work, _)| calls(work) > 0.0);
    let mut each: Vec<f64> =
        all.map(|(work, seconds)| 1.0 / rates.calls + (seconds - work.seconds(&rates)) / calls(work)).collect();
    each.sort_by(f64::total_cmp);
    let seconds = each.get(each.len() / 2).copied().unwrap_or_default().max(1.0 / rates.calls);
    Rates { calls: 1.0 / seconds, ..rates }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rates_that_made_the_seconds_are_found_again() {
        let mut truth = Rates::of(300e9, 12e9);
        (truth.drops, truth.calls) = (1e9, 5e5);
        let mut seed = 1u64;
        let mut next = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as f64 / (1u64 << 31) as f64
        };
        let each = truth.each();
        let measured: Vec<_> = (0..200)
            .map(|_| {
                let units = std::array::from_fn(|u| if next() < 0.4 { next() * each[u] * 1e-3 } else { 0.0 });
                let work = Work { flops: 0.0, units };
                (work, work.seconds(&truth))
            })
            .collect();
        let found = fit(&measured, Rates::default());
        for (work, seconds) in &measured {
            assert!((work.seconds(&found) / seconds.max(1e-12) - 1.0).abs() < 0.05 || *seconds == 0.0);
        }
    }

    #[test]
    fn calls_are_as_slow_as_whole_tapes_show_and_never_faster_than_alone() {
        let rates = Rates { calls: 1e6, ..Rates::default() };
        let tape = |calls: usize, seconds: f64| {
            let work = (0..calls).fold(Work::default(), |work, _| work + Work::call());
            (work.with(Unit::Products, rates.flops), 1.0 + seconds)
        };
        let slow = with_calls_of(rates, &[tape(10, 90e-6), tape(20, 200e-6), tape(10, 0.5)]);
        assert!((slow.calls / 1e5 - 1.0).abs() < 1e-3, "{slow:?}");
        assert_eq!(with_calls_of(rates, &[tape(10, -1.0)]), rates);
        assert_eq!(with_calls_of(rates, &[]), rates);
    }

    #[test]
    fn what_was_not_measured_stays_as_expected() {
        assert_eq!(fit(&[], Rates::default()), Rates::default());
    }
}
