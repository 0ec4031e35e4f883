//! Damaged files of every format: they give samples or an error that names the file, never a panic, and take memory in proportion to
//! what they are.
//!
//! Allocations are counted for each thread by itself; opening starts none.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use plimsoll_data::series::*;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::fixture::*;
use crate::thread_heap::{LIVE, PEAK, SHORT_PANICS};

/// Room for the rows and the chunk; pages and frames of damaged headers may announce more.
const MEMORY: u64 = 4 << 20;

fn bound(name: &str, bytes: usize) -> i64 {
    let tables = [".parquet", ".arrow", ".arrows", ".feather", ".zst"];
    let announced = if tables.iter().any(|ending| name.ends_with(ending)) { 48 << 20 } else { 0 };
    opening_bytes(MEMORY) as i64 + announced + 64 * bytes as i64
}

static SAMPLES: LazyLock<Vec<(&'static str, Vec<u8>)>> = LazyLock::new(|| {
    let mut table = Table::prices(80, 2);
    table.rows[31].2[1] = None;
    all_formats(&table)
});

#[derive(Clone, Debug)]
enum Damage {
    Flip(Index, u8),
    Set(Index, u8),
    Cut(Index),
    Remove(Index, u8),
    Repeat(Index, u8),
    Word(Index, u64),
}

impl Damage {
    fn to(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        match self {
            Damage::Flip(at, bit) => {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << (bit % 8);
            }
            Damage::Set(at, to) => {
                let at = at.index(bytes.len());
                bytes[at] = *to;
            }
            Damage::Cut(at) => bytes.truncate(at.index(bytes.len())),
            Damage::Remove(at, count) => {
                let at = at.index(bytes.len());
                let end = (at + usize::from(*count)).min(bytes.len());
                bytes.drain(at..end);
            }
            Damage::Repeat(at, count) => {
                let at = at.index(bytes.len());
                let part = bytes[at..(at + usize::from(*count)).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
            Damage::Word(at, word) => {
                let at = at.index(bytes.len());
                for (byte, to) in bytes[at..].iter_mut().zip(word.to_le_bytes()) {
                    *byte = to;
                }
            }
        }
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    let word = prop_oneof![Just(u64::MAX), Just(1 << 63), Just(1 << 31), Just(0), any::<u64>()];
    prop_oneof![
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        3 => (any::<Index>(), any::<u8>()).prop_map(|(at, to)| Damage::Set(at, to)),
        1 => any::<Index>().prop_map(Damage::Cut),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, count)| Damage::Remove(at, count)),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, count)| Damage::Repeat(at, count)),
        2 => (any::<Index>(), word).prop_map(|(at, word)| Damage::Word(at, word)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn damaged_files_give_samples_or_an_error(which in any::<Index>(), damages in prop::collection::vec(damage(), 1..4)) {
        let (name, whole) = which.get(&SAMPLES);
        let mut bytes = whole.clone();
        damages.iter().for_each(|damage| damage.to(&mut bytes));
        LazyLock::force(&SHORT_PANICS);
        let folder = tempfile::tempdir().unwrap();
        let path = write(folder.path(), name, &bytes);
        let asked = SeriesSpec { missing: Missing::Mean, validation: fraction(0.3, 0), ..spec() };
        let before = LIVE.get();
        PEAK.set(before);
        let opening = SeriesOpening { memory: MEMORY, ..SeriesOpening::default() };
        let outcome = catch_unwind(AssertUnwindSafe(|| Series::open(std::slice::from_ref(&path), asked, opening)));
        let peak = PEAK.get() - before;
        prop_assert!(outcome.is_ok(), "{} panicked", name);
        prop_assert!(peak <= bound(name, bytes.len()), "{} of {} bytes took {}", name, bytes.len(), peak);
        match outcome.unwrap() {
            Ok(series) => {
                let (counts, unknown) = series.class_counts(Part::Training).unwrap();
                prop_assert_eq!(counts.iter().sum::<u64>() + unknown, series.samples(Part::Training));
                prop_assert!(series.normalisation().all.iter().all(|scale| scale.mean.is_finite() && scale.std > 0.0));
            }
            Err(error) => {
                let told = error.to_string();
                let of_all = ["no windows", "values so large", "says nothing of what is to be foretold"];
                prop_assert!(told.contains(name) || of_all.iter().any(|words| told.contains(words)), "{}: {}", name, told);
            }
        }
    }
}
