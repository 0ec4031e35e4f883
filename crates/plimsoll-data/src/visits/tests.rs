//! What the visits of a mixture promise, on layouts that are drawn.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::{ChosenColumns, Weight};

/// Sets of blocks with so many rows each, and weights.
fn laid_out(sets: &[(Vec<u32>, f64)]) -> (Vec<Block>, Vec<Set>) {
    let (mut blocks, mut list) = (Vec::new(), Vec::new());
    for (number, (rows, weight)) in sets.iter().enumerate() {
        let first = blocks.len();
        for rows in rows {
            blocks.push(Block { place: 0, raw_bytes: 0, text_bytes: rows * 7, rows: *rows, file: 0 });
        }
        let set = Set {
            columns: ChosenColumns::default(),
            path: "a".into(),
            files: 1,
            rows: rows.iter().map(|n| u64::from(*n)).sum(),
            weight: Weight::new(*weight).unwrap(),
            pass_rows: 0,
            blocks: first..blocks.len(),
        };
        list.push(set.weighed(number).unwrap());
    }
    (blocks, list)
}

/// The windows of a pass.
fn pass(laid: Laid<'_>, order: Order, epoch: u64) -> Vec<Vec<Visit>> {
    let mut visits = Visits::new(laid, order);
    (0..visits.windows(laid, epoch))
        .map(|window| {
            let mut out = Vec::new();
            visits.window(laid, epoch, window, &mut out);
            out
        })
        .collect()
}

/// How often each row came, by block and row.
fn count(counts: &mut HashMap<(u32, u32), u64>, windows: &[Vec<Visit>]) -> u64 {
    let mut rows = 0;
    for visit in windows.iter().flatten() {
        rows += u64::from(visit.rows);
        for row in visit.first..visit.first + visit.rows {
            *counts.entry((visit.block, row)).or_default() += 1;
        }
    }
    rows
}

fn some_sets() -> impl Strategy<Value = Vec<(Vec<u32>, f64)>> {
    let weight = prop_oneof![Just(1.0), Just(2.0), Just(0.5), Just(0.3), Just(1.7), 0.2..4.0];
    let blocks = prop_oneof![prop::collection::vec(4..20u32, 1..60), prop::collection::vec(1..600u32, 1..5)];
    let set = (blocks, weight).prop_map(|(blocks, weight)| {
        let rows: u32 = blocks.iter().sum();
        (blocks, f64::max(weight, 1.0 / f64::from(rows)))
    });
    prop::collection::vec(set, 1..4)
}

proptest! {
    #[test]
    fn every_row_comes_as_often_as_its_weight_says_and_no_window_holds_more_than_its_room(
        sets in some_sets(), seed: u64, window in 1..70usize, shuffle: bool, skipped in 0..5000u64,
    ) {
        let (blocks, sets) = laid_out(&sets);
        let laid = Laid { blocks: &blocks, sets: &sets };
        prop_assume!(laid.is_mixture());
        let order = Order::new(seed, shuffle).with_window(window);
        let deal = Deal::new(laid, order);
        let room = deal.room(laid);
        let expected: u64 = sets.iter().map(|set| set.pass_rows).sum();
        let passes = 7u64;
        let mut counts = HashMap::new();
        for epoch in skipped..skipped + passes {
            let windows = pass(laid, order, epoch);
            prop_assert_eq!(count(&mut counts, &windows), expected);
            for visits in windows.iter().filter(|_| shuffle) {
                let held: Vec<&Block> =
                    visits.chunk_by(|a, b| a.block == b.block).map(|v| &blocks[v[0].block as usize]).collect();
                prop_assert!(visits.is_sorted_by_key(|visit| visit.block), "visits of a block follow each other");
                prop_assert!(visits.len() as u64 <= room.visits);
                prop_assert!(held.iter().map(|b| u64::from(b.text_bytes)).sum::<u64>() <= room.text_bytes);
                prop_assert!(held.iter().map(|b| u64::from(b.rows)).sum::<u64>() <= room.rows);
                prop_assert!(visits.iter().map(|v| u64::from(v.rows)).sum::<u64>() <= room.rows);
            }
        }
        for set in &sets {
            // Since the beginning each row came the floor or the ceiling of what it should have, so in part of the time two at most
            // lie between the rarest and the most frequent; in whole rounds of the tape there is no difference.
            let of_set = set.blocks.clone().flat_map(|block| (0..blocks[block].rows).map(move |row| (block as u32, row)));
            let (fewest, most) = (passes * set.pass_rows / set.rows, (passes * set.pass_rows).div_ceil(set.rows));
            for row in of_set {
                let came = counts.get(&row).copied().unwrap_or(0);
                prop_assert!((fewest..=most).contains(&came), "{row:?} came {came} times, not {fewest} to {most}");
            }
        }
    }

    #[test]
    fn windows_share_each_set_evenly_and_copies_lie_in_different_ones(
        sets in some_sets(), seed: u64, window in 1..70usize, epoch in 0..50u64,
    ) {
        let (blocks, sets) = laid_out(&sets);
        let laid = Laid { blocks: &blocks, sets: &sets };
        prop_assume!(laid.is_mixture());
        let order = Order::new(seed, true).with_window(window);
        let deal = Deal::new(laid, order);
        let windows = pass(laid, order, epoch);
        prop_assert_eq!(windows.len(), deal.windows);
        for (set, deal) in sets.iter().zip(&deal.sets) {
            let inside = |visit: &&Visit| set.blocks.contains(&(visit.block as usize));
            let all = windows.iter().flatten().filter(inside).count();
            let (fewest, most) = (all / windows.len(), all.div_ceil(windows.len()));
            for visits in &windows {
                let here: Vec<&Visit> = visits.iter().filter(inside).collect();
                prop_assert!((fewest..=most).contains(&here.len()), "{} of {fewest} to {most}", here.len());
                if deal.apart {
                    prop_assert!(here.windows(2).all(|pair| pair[0].common(*pair[1]).is_none()), "twice in a window: {here:?}");
                }
            }
            // Where rows allow it, every window has some.
            if all >= windows.len() {
                prop_assert!(fewest >= 1);
            }
        }
    }
}

/// A large set, one of a twentieth of it, one of a single block, and a part of one: each has its share in each window.
#[test]
fn the_share_of_a_set_in_each_window_is_that_of_the_pass() {
    let rows = |blocks: usize, rows: u32| (0..blocks).map(|nth| rows + nth as u32 % 7).collect::<Vec<u32>>();
    let drawn = [(rows(2000, 600), 1.0), (rows(100, 600), 1.7), (rows(1, 3000), 2.0), (rows(300, 200), 0.3)];
    let (blocks, sets) = laid_out(&drawn);
    let laid = Laid { blocks: &blocks, sets: &sets };
    let order = Order::new(3, true);
    let expected: u64 = sets.iter().map(|set| set.pass_rows).sum();
    let mut worst = [0.0f64; 4];
    for epoch in 0..10 {
        let windows = pass(laid, order, epoch);
        for (nth, set) in sets.iter().enumerate() {
            let inside = |visit: &&Visit| set.blocks.contains(&(visit.block as usize));
            let here = |visits: &[Visit]| visits.iter().filter(inside).map(|visit| u64::from(visit.rows)).sum::<u64>();
            let listed = windows.iter().flatten().filter(inside).count();
            let largest = windows.iter().flatten().filter(inside).map(|visit| u64::from(visit.rows)).max().unwrap();
            // A window has one visit more or less than the others, and up to two that an end of the tape made smaller; visits
            // of equal cuts of blocks differ by what blocks differ, here 7 rows in 200.
            let mean = set.pass_rows as f64 / windows.len() as f64;
            let bound = 3.0 * largest as f64 + 0.04 * mean;
            for visits in &windows {
                let off = (here(visits) as f64 - mean).abs();
                assert!(off <= bound, "epoch {epoch}, set {nth}: {off} rows off, at most {bound}");
                let all: u64 = visits.iter().map(|visit| u64::from(visit.rows)).sum();
                let share = set.pass_rows as f64 / expected as f64;
                worst[nth] = worst[nth].max((here(visits) as f64 / all as f64 / share - 1.0).abs());
            }
            assert!(listed >= LEAST_VISITS * windows.len() * 9 / 10, "set {nth}: {listed} visits");
        }
    }
    println!("shares are off by at most {worst:.3?} of themselves");
    assert!(worst[0] < 0.03 && worst.iter().all(|off| *off < 0.2), "{worst:?}");
}

/// Part of what a checkpoint means: these numbers may never change.
#[test]
fn the_order_of_a_mixture_is_the_same_for_ever() {
    let (blocks, sets) = laid_out(&[(vec![4, 3, 5, 4], 1.5), (vec![6, 2], 2.0)]);
    let laid = Laid { blocks: &blocks, sets: &sets };
    let windows = pass(laid, Order::new(7, true).with_window(3), 2);
    let list: Vec<Vec<[u32; 3]>> =
        windows.iter().map(|visits| visits.iter().map(|v| [v.block, v.first, v.rows]).collect()).collect();
    let pairs = [[4, 0, 1], [4, 2, 1], [4, 4, 1], [5, 0, 1]];
    let others = [[4, 1, 1], [4, 3, 1], [4, 5, 1], [5, 1, 1]];
    let expected = [
        [[0, 1, 1], [1, 2, 1], [2, 2, 1], [2, 4, 1], [3, 1, 1], [3, 3, 1]].iter().chain(&pairs),
        [[0, 0, 1], [0, 3, 1], [2, 0, 1], [2, 3, 1], [3, 0, 1], [3, 2, 1]].iter().chain(&pairs),
        [[0, 0, 1], [1, 0, 1], [2, 1, 1], [2, 3, 1], [3, 0, 1], [3, 2, 1]].iter().chain(&others),
        [[0, 2, 1], [1, 1, 1], [2, 2, 1], [2, 4, 1], [3, 1, 1], [3, 3, 1]].iter().chain(&others),
    ];
    assert_eq!(list, expected.map(|window| window.copied().collect::<Vec<[u32; 3]>>()));
}

/// What a pass takes of a sorted set is spread over all of it.
#[test]
fn a_part_of_a_set_is_a_fair_sample_of_it() {
    let (blocks, sets) = laid_out(&[(vec![10; 1000], 0.1), (vec![10; 1000], 1.0)]);
    let laid = Laid { blocks: &blocks, sets: &sets };
    for epoch in 0..30 {
        let windows = pass(laid, Order::new(5, true), epoch);
        let mut taken: Vec<u32> =
            windows.iter().flatten().map(|visit| visit.block).filter(|block| *block < 1000).collect();
        taken.sort_unstable();
        taken.dedup();
        let apart = taken.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!((100..=101).contains(&taken.len()) && apart <= 25, "{} blocks, {apart} apart", taken.len());
    }
}
