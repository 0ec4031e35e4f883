//! Which rows of which blocks a window of the stream has.
//!
//! Of plain data these are the blocks of the [`Order`]. Of a mixture each set is dealt to the windows for itself, so that each window
//! has the same share of it as the pass. A pass lists the visits of a set in the order of its files: a whole weight lists each block so
//! many times, copies behind each other; of a fraction a pass takes the next rows of an endless tape of the set's blocks, which lie on
//! it in an order that leaps over the set evenly. So any stretch of the tape is a fair sample of the set, passes follow each other
//! without a gap, and each row comes as often as any other, but for one time. As in `order.rs`, the list is cut into stretches and
//! a window takes one visit of each; copies of a block lie in the same stretch and so in different windows. Small sets are listed in
//! parts of blocks, so that every window gets some.
//!
//! Invariant: rows, windows and room are the same in each pass. Memory is 12 bytes a visit; nothing is held per row. It knows no files.

use crate::Order;
use crate::layout::Block;
use crate::mixture::Set;
use crate::order::{Draws, permuted};
use crate::sources::WindowRoom;

/// Consecutive rows of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Visit {
    pub block: u32,
    pub first: u32,
    pub rows: u32,
}

impl Visit {
    /// The rows that are in both.
    fn common(self, other: Visit) -> Option<Visit> {
        let (first, end) = (self.first.max(other.first), (self.first + self.rows).min(other.first + other.rows));
        (self.block == other.block && first < end).then(|| Visit { first, rows: end - first, ..self })
    }
}

/// Where the rows of a mixture lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Laid<'a> {
    pub blocks: &'a [Block],
    pub sets: &'a [Set],
}

impl Laid<'_> {
    /// There are several sets, or one whose rows do not come once each.
    pub fn is_mixture(self) -> bool {
        self.sets.len() > 1 || !self.sets.iter().all(Set::is_plain)
    }
}

/// Bytes of a visit.
pub(crate) const VISIT_BYTES: u64 = size_of::<Visit>() as u64;

/// Visits of a set that a window has at least, where its rows allow: with n of them its share of a window is off by 1/n at most, as
/// far as visits are alike.
const LEAST_VISITS: usize = 8;

/// How the sets of a mixture are dealt; the same for all passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deal {
    /// Windows of a pass, where it is shuffled.
    pub windows: usize,
    sets: Vec<SetDeal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SetDeal {
    /// How often a pass has all rows, and how many rows it has besides.
    copies: usize,
    part: u64,
    /// Blocks that these rows lie in at most.
    touched: usize,
    /// Parts that blocks are listed in.
    cuts: u32,
    /// Stretches of the list.
    stretches: usize,
    /// Copies of a block do not cross a stretch.
    apart: bool,
}

impl SetDeal {
    /// Visits at most that have rows of one piece of a block: the copies, and both ends of the part.
    fn group(&self) -> usize {
        self.copies + if self.part > 0 { 2 } else { 0 }
    }

    /// Visits of a pass at most, uncut.
    fn most_blocks(&self, set: &Set) -> usize {
        self.copies * set.blocks.len() + self.touched
    }

    fn most_visits(&self, set: &Set) -> usize {
        self.most_blocks(set) * self.cuts as usize
    }
}

impl Deal {
    pub fn new(laid: Laid<'_>, order: Order) -> Deal {
        let Laid { blocks, sets: all } = laid;
        let uncut = |set: &Set| {
            let (copies, part) = ((set.pass_rows / set.rows) as usize, set.pass_rows % set.rows);
            let touched = if part > 0 { most_touched(&blocks[set.blocks.clone()], part) } else { 0 };
            SetDeal { copies, part, touched, cuts: 1, stretches: 1, apart: false }
        };
        let mut sets: Vec<SetDeal> = all.iter().map(uncut).collect();
        let listed: usize = sets.iter().zip(all).map(|(deal, set)| deal.most_blocks(set)).sum();
        let windows = order.windows(listed).max(1);
        if order.shuffles() {
            for (deal, set) in sets.iter_mut().zip(all) {
                let longest = blocks[set.blocks.clone()].iter().map(|b| b.rows).max().unwrap_or(1);
                let wanted = (LEAST_VISITS * windows).div_ceil(deal.most_blocks(set).max(1));
                deal.cuts = (wanted as u32).clamp(1, longest);
                // A stretch may be longer by what copies need to stay together, and must not be longer than there are windows; where
                // that would make it less than half as long, and a window's room twice as large, they need not stay together.
                deal.apart = windows + 2 >= 2 * deal.group();
                let each = if deal.apart { windows + 1 - deal.group() } else { windows };
                deal.stretches = deal.most_visits(set).div_ceil(each).max(1);
            }
        }
        Deal { windows, sets }
    }

    /// Heap of the lists of a pass, in bytes.
    pub fn list_bytes(&self, laid: Laid<'_>) -> u64 {
        let of = |(deal, set): (&SetDeal, &Set)| (deal.most_visits(set) + deal.touched) as u64 * VISIT_BYTES;
        let lists: u64 = self.sets.iter().zip(laid.sets).map(of).sum();
        lists + self.sets.len() as u64 * (size_of::<SetDeal>() + size_of::<Vec<Visit>>()) as u64
    }

    /// The most that any window holds: of each set its largest blocks, one for each stretch. A block is held once, however
    /// many of its visits are in a window.
    pub fn room(&self, laid: Laid<'_>) -> WindowRoom {
        let mut room = WindowRoom { text_bytes: 0, rows: 0, visits: 0 };
        for (deal, set) in self.sets.iter().zip(laid.sets) {
            let blocks = &laid.blocks[set.blocks.clone()];
            let rows = largest(blocks.iter(), deal.stretches, |b| b.rows);
            room.text_bytes +=
                largest(blocks.iter(), deal.stretches, |b| b.text_bytes).iter().map(|n| u64::from(*n)).sum::<u64>();
            let held: u64 = rows.iter().map(|n| u64::from(*n)).sum();
            let mut left = deal.stretches;
            let mut listed = 0;
            for rows in rows {
                let cuts = deal.cuts.min(rows).max(1);
                let visits = left.min(deal.group() * cuts as usize);
                listed += visits as u64 * u64::from(rows.div_ceil(cuts));
                left -= visits;
            }
            room.rows += held.max(listed);
            room.visits += deal.stretches as u64;
        }
        room
    }
}

/// The `n` largest of blocks by `of`, largest first.
pub(crate) fn largest<B>(blocks: impl ExactSizeIterator<Item = B>, n: usize, of: impl Fn(B) -> u32) -> Vec<u32> {
    let n = n.min(blocks.len());
    // A heap of the n largest, smallest on top: no copy of the index.
    let mut top = std::collections::BinaryHeap::with_capacity(n + 1);
    for block in blocks {
        top.push(std::cmp::Reverse(of(block)));
        if top.len() > n {
            top.pop();
        }
    }
    top.into_sorted_vec().into_iter().map(|v| v.0).collect()
}

/// The order of a set's blocks on its tape: by leaps of about 0.618 of the set, so that any stretch of the tape is spread over it.
#[derive(Clone, Copy, Debug)]
struct Tape {
    blocks: u64,
    leap: u64,
}

impl Tape {
    /// The leap of which the tape is spread best: near the golden section, with the smallest quotients in its continued fraction.
    fn new(blocks: usize) -> Tape {
        let blocks = blocks as u64;
        let golden = (u128::from(blocks) * 618_033_989 / 1_000_000_000) as u64;
        let near = (golden.saturating_sub(LEAPS)..=golden + LEAPS).filter(|leap| (1..blocks).contains(leap));
        let leap = near.filter_map(|leap| Some((largest_quotient(blocks, leap)?, leap.abs_diff(golden), leap))).min();
        Tape { blocks, leap: leap.map_or(1, |(.., leap)| leap) }
    }

    /// The block at a place.
    fn at(self, place: usize) -> usize {
        (u128::from(place as u64) * u128::from(self.leap) % u128::from(self.blocks)) as usize
    }
}

/// Leaps to try on each side of the golden section.
const LEAPS: u64 = 32;

/// The largest quotient in the continued fraction of `a / b`, behind the first two; none where they have a common divisor, so that leaps
/// would not come to every block.
fn largest_quotient(mut a: u64, mut b: u64) -> Option<u64> {
    let (mut most, mut steps) = (0, 0);
    while b > 0 {
        if steps > 1 {
            most = most.max(a / b);
        }
        (a, b, steps) = (b, a % b, steps + 1);
    }
    (a == 1).then_some(most)
}

/// Blocks that `rows` consecutive rows of a tape lie in at most.
fn most_touched(blocks: &[Block], rows: u64) -> usize {
    let tape = Tape::new(blocks.len());
    let of = |place: usize| u64::from(blocks[tape.at(place % blocks.len())].rows);
    // One row at the end of a block, and as many blocks behind it as the others need.
    let (mut end, mut behind, mut most) = (1, 0, 1);
    for first in 0..blocks.len() {
        while behind < rows - 1 {
            behind += of(end);
            end += 1;
        }
        most = most.max(end - first);
        if end > first + 1 {
            behind -= of(first + 1);
        } else {
            end = first + 2;
        }
    }
    most
}

/// The visits of each window.
pub(crate) struct Visits {
    order: Order,
    deal: Option<Deal>,
    /// Of plain data: blocks of a window.
    blocks: Vec<u32>,
    /// Of a mixture: the lists of the pass that was entered last, and what they are made in.
    epoch: Option<u64>,
    lists: Box<[Vec<Visit>]>,
    part: Vec<Visit>,
}

impl Visits {
    pub fn new(laid: Laid<'_>, order: Order) -> Visits {
        let deal = laid.is_mixture().then(|| Deal::new(laid, order));
        let blocks = order.window_blocks().min(laid.blocks.len());
        let (mut lists, mut touched) = (Vec::new(), 0);
        for (deal, set) in deal.iter().flat_map(|deal| &deal.sets).zip(laid.sets) {
            lists.push(Vec::with_capacity(deal.most_visits(set)));
            touched = touched.max(deal.touched);
        }
        Visits {
            order,
            blocks: Vec::with_capacity(if deal.is_some() { 0 } else { blocks }),
            deal,
            epoch: None,
            lists: lists.into(),
            part: Vec::with_capacity(touched),
        }
    }

    /// Windows of pass number `epoch`.
    pub fn windows(&mut self, laid: Laid<'_>, epoch: u64) -> usize {
        if self.deal.is_none() {
            return self.order.windows(laid.blocks.len());
        }
        self.list(laid, epoch);
        match &self.deal {
            Some(deal) if self.order.shuffles() => deal.windows,
            _ => self.lists.iter().map(Vec::len).sum(),
        }
    }

    /// Writes the visits of a window into `out`; those of one block follow each other.
    pub fn window(&mut self, laid: Laid<'_>, epoch: u64, window: usize, out: &mut Vec<Visit>) {
        out.clear();
        self.list(laid, epoch);
        let Some(deal) = &self.deal else {
            self.order.blocks(epoch, window, laid.blocks.len(), &mut self.blocks);
            let whole = |&block: &u32| Visit { block, first: 0, rows: laid.blocks[block as usize].rows };
            return out.extend(self.blocks.iter().map(whole));
        };
        if !self.order.shuffles() {
            return out.extend(self.lists.iter().flatten().nth(window));
        }
        let windows = deal.windows as u64;
        for (nth, (set, list)) in deal.sets.iter().zip(&self.lists).enumerate() {
            let key = |stretch: usize| {
                let salt = (stretch as u64).rotate_left(32) ^ (nth as u64).rotate_left(48);
                Draws::new([self.order.seed() ^ salt, epoch, MIXTURE]).key()
            };
            // Where a set has no visit for every window, which go without is another draw for each set.
            let here = permuted(key(usize::MAX), window as u64, windows);
            let begins = |stretch: usize| {
                let mut at = (stretch as u128 * list.len() as u128 / set.stretches as u128) as usize;
                let common = |at: usize, back: usize| back <= at && list[at].common(list[at - back]).is_some();
                // Both ends of a part may have rows of a copy and none of each other.
                while set.apart && at < list.len() && (common(at, 1) || common(at, 2)) {
                    at -= 1;
                }
                at
            };
            for stretch in 0..set.stretches {
                let (first, end) = (begins(stretch), begins(stretch + 1));
                let size = (end - first) as u64;
                // A stretch lacks visits for some windows: these are counted on from stretch to stretch, so that no window lacks
                // more than others.
                let lacked = (stretch as u64 * windows - first as u64) % windows;
                let place = (here + size + windows - lacked) % windows;
                if place < size {
                    out.push(list[first + permuted(key(stretch), place, size) as usize]);
                }
            }
        }
    }

    /// Makes the lists of a pass, where they are those of another.
    fn list(&mut self, laid: Laid<'_>, epoch: u64) {
        let Some(deal) = self.deal.as_ref().filter(|_| self.epoch != Some(epoch)) else { return };
        self.epoch = Some(epoch);
        for (nth, set) in laid.sets.iter().enumerate() {
            let (deal, list) = (&deal.sets[nth], &mut self.lists[nth]);
            self.part.clear();
            if deal.part > 0 {
                let first = Draws::new([self.order.seed(), nth as u64, TAPE]).below(set.rows);
                let start = (u128::from(first) + u128::from(epoch) * u128::from(deal.part)) % u128::from(set.rows);
                tape_rows(laid.blocks, set, start as u64, deal.part, &mut self.part);
                self.part.sort_unstable();
            }
            list.clear();
            if self.order.shuffles() {
                list_shuffled(laid.blocks, set, deal, &self.part, list);
            } else {
                let whole = |block: usize| Visit { block: block as u32, first: 0, rows: laid.blocks[block].rows };
                (0..deal.copies).for_each(|_| list.extend(set.blocks.clone().map(whole)));
                list.extend(&self.part);
            }
        }
    }
}

/// What keys of mixtures are for.
const MIXTURE: u64 = u64::MAX - 1;
const TAPE: u64 = u64::MAX - 2;

/// The visits of `rows` rows of the set's tape, from row `start` on.
fn tape_rows(blocks: &[Block], set: &Set, start: u64, rows: u64, out: &mut Vec<Visit>) {
    let tape = Tape::new(set.blocks.len());
    let at = |place: usize| set.blocks.start + tape.at(place % set.blocks.len());
    let (mut place, mut skipped, mut left) = (0, start, rows);
    while skipped >= u64::from(blocks[at(place)].rows) {
        skipped -= u64::from(blocks[at(place)].rows);
        place += 1;
    }
    while left > 0 {
        let block = at(place);
        let rows = (u64::from(blocks[block].rows) - skipped).min(left);
        out.push(Visit { block: block as u32, first: skipped as u32, rows: rows as u32 });
        (left, skipped, place) = (left - rows, 0, place + 1);
    }
}

/// The visits of a pass in the order of the files: whole copies of each block, and what `part` has of it, sorted. What has the same
/// rows stands together.
fn list_shuffled(blocks: &[Block], set: &Set, deal: &SetDeal, part: &[Visit], list: &mut Vec<Visit>) {
    let mut part = part.iter().peekable();
    for block in set.blocks.clone() {
        let whole = Visit { block: block as u32, first: 0, rows: blocks[block].rows };
        let mut copies = deal.copies;
        while part.next_if(|visit| **visit == whole).is_some() {
            copies += 1;
        }
        // The first and the last block of a part are not whole, and may be the same.
        let mut more = || part.next_if(|visit| visit.block == whole.block);
        let more = [more(), more()];
        if copies == 0 && more == [None, None] {
            continue;
        }
        let cuts = deal.cuts.min(whole.rows);
        let end = |nth: u32| (u64::from(whole.rows) * u64::from(nth) / u64::from(cuts)) as u32;
        for nth in 0..cuts {
            let piece = Visit { first: end(nth), rows: end(nth + 1) - end(nth), ..whole };
            list.extend(std::iter::repeat_n(piece, copies));
            list.extend(more.iter().flatten().filter_map(|visit| piece.common(**visit)));
        }
    }
}

#[cfg(test)]
mod tests;
