//! What is in the data: how long rows are, how many are there twice, and whether a shuffle window mixes them.
//!
//! Invariant: memory does not grow with the rows: lengths are counted in buckets, rows are recognised by a sample of their hashes, and
//! mixing is judged from at most [`MOST_BLOCKS`] blocks. It knows no model; tokens come in only where a tokenizer is given.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::order::Draws;
use crate::sources::ReadScratch;
use crate::window::Texts;
use crate::{DataError, Order, Sources, TextTokenizer};

/// Blocks that mixing is judged from.
const MOST_BLOCKS: usize = 256;
/// Hashes that are held at most.
const MOST_HASHES: usize = 1 << 20;
/// Rows that are tokenised at most.
const MOST_TOKENISED: u64 = 20_000;

/// What was found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Inspection {
    /// Rows.
    pub rows: u64,
    /// Files.
    pub files: u64,
    /// Bytes of source and target of a row together.
    pub bytes: Histogram,
    /// Tokens of a row's source, and of its target where there is one; of a sample of rows, where there is a tokenizer.
    pub tokens: Option<[Histogram; 2]>,
    /// Of those rows, how many have a source or a target of more tokens than was asked about.
    pub longer: u64,
    /// Rows that are there more than once.
    pub repeats: Repeats,
    /// How well a shuffle mixes.
    pub mixing: Mixing,
}

/// Lengths, counted one by one below 4096, and in buckets of 1/256 of a power of two above.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Histogram {
    /// How many.
    pub count: u64,
    /// All lengths together.
    pub sum: u64,
    /// The longest.
    pub longest: u64,
    /// From the first length of a bucket to how many are in it.
    #[serde(serialize_with = "as_pairs")]
    buckets: std::collections::BTreeMap<u64, u64>,
}

fn as_pairs<S: serde::Serializer>(buckets: &std::collections::BTreeMap<u64, u64>, s: S) -> Result<S::Ok, S::Error> {
    s.collect_seq(buckets.iter())
}

/// Lengths below this are counted one by one.
const EXACT: u64 = 4096;

/// How wide, as a power of two, the bucket of a length is.
fn width(length: u64) -> u32 {
    if length < EXACT { 0 } else { length.ilog2() - 8 }
}

/// The first length of the bucket of one.
fn bucket(length: u64) -> u64 {
    length >> width(length) << width(length)
}

impl Histogram {
    /// One more.
    pub fn add(&mut self, length: u64) {
        self.count += 1;
        self.sum += length;
        self.longest = self.longest.max(length);
        *self.buckets.entry(bucket(length)).or_default() += 1;
    }

    /// A length that this share of all does not exceed, to the bucket.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (share * self.count as f64).ceil() as u64;
        let mut seen = 0;
        for (first, count) in &self.buckets {
            seen += count;
            if seen >= wanted {
                return (first + (1 << width(*first)) - 1).min(self.longest);
            }
        }
        self.longest
    }

    /// Counts by powers of two: (first length, how many), none left out between the first and the last.
    pub fn by_powers(&self) -> Vec<(u64, u64)> {
        let power = |length: u64| if length == 0 { 0 } else { 1 << length.ilog2() };
        let mut list: Vec<(u64, u64)> = Vec::new();
        for (first, count) in &self.buckets {
            let of = power(*first);
            while list.last().is_some_and(|(last, _)| *last < of) {
                let last = list[list.len() - 1].0;
                list.push((if last == 0 { 1 } else { 2 * last }, 0));
            }
            match list.last_mut() {
                Some((last, sum)) if *last == of => *sum += count,
                _ => list.push((of, *count)),
            }
        }
        list
    }
}

/// Rows that are there more than once.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Repeats {
    /// The share of rows that a row before them equals.
    pub share: f64,
    /// One of how many rows was looked at; 1: all.
    pub one_of: u64,
}

/// Finds repeats among rows by their hashes: all, as long as they are few, else those whose hash ends in enough zeros.
struct Seen {
    hashes: HashMap<u64, u64>,
    /// Zeros that a hash must end in.
    zeros: u32,
    most: usize,
}

impl Seen {
    fn new(most: usize) -> Seen {
        Seen { hashes: HashMap::new(), zeros: 0, most }
    }

    fn row(&mut self, source: &str, target: &str) {
        let mut hasher = DefaultHasher::new();
        (source, target).hash(&mut hasher);
        let hash = hasher.finish();
        if hash.trailing_zeros() < self.zeros {
            return;
        }
        *self.hashes.entry(hash).or_default() += 1;
        while self.hashes.len() > self.most {
            self.zeros += 1;
            let zeros = self.zeros;
            self.hashes.retain(|hash, _| hash.trailing_zeros() >= zeros);
        }
    }

    fn repeats(&self) -> Repeats {
        let all: u64 = self.hashes.values().sum();
        Repeats { share: (all - self.hashes.len() as u64) as f64 / all.max(1) as f64, one_of: 1 << self.zeros }
    }
}

/// How well a window of so many blocks mixes the rows.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Mixing {
    /// Blocks of the data.
    pub blocks: u64,
    /// Blocks of a window.
    pub window: u64,
    /// By how much batches of the usual size differ more from the whole than independent draws would: 0.1 is a tenth more. Nothing
    /// where all is in one window.
    pub excess: f64,
    /// The window that would bring it down to [`Mixing::GOOD`], where this one does not.
    pub needed: Option<u64>,
}

impl Mixing {
    /// More than this is worth a word.
    pub const GOOD: f64 = 0.1;
}

/// Samples of a batch that mixing is judged for.
const BATCH: f64 = 32.0;
const LENGTHS: usize = 32;
const FEATURES: usize = 2 * 256 + LENGTHS;

/// What a row looks like: its bytes, of source and target, and its length.
#[derive(Clone)]
struct Look {
    counts: Vec<u32>,
    rows: u64,
}

impl Look {
    fn new() -> Look {
        Look { counts: vec![0; FEATURES], rows: 0 }
    }

    fn row(&mut self, source: &str, target: &str) {
        self.rows += 1;
        source.bytes().for_each(|byte| self.counts[usize::from(byte)] += 1);
        target.bytes().for_each(|byte| self.counts[256 + usize::from(byte)] += 1);
        let length = (source.len() + target.len()).max(1).ilog2() as usize;
        self.counts[512 + length.min(LENGTHS - 1)] += 1;
    }

    fn add(&mut self, other: &Look) {
        self.rows += other.rows;
        self.counts.iter_mut().zip(&other.counts).for_each(|(to, more)| *to = to.saturating_add(*more));
    }

    /// How far this is from another: Pearson's distance of shares, of source, target and length, by what the whole has.
    fn apart(&self, other: &Look, whole: &Look) -> f64 {
        let parts = [0..256, 256..512, 512..FEATURES];
        let of = |range: std::ops::Range<usize>| {
            let sum = |look: &Look| look.counts[range.clone()].iter().map(|n| f64::from(*n)).sum::<f64>();
            let (mine, theirs, all) = (sum(self), sum(other), sum(whole));
            if mine == 0.0 || theirs == 0.0 || all == 0.0 {
                return 0.0;
            }
            let share = |look: &Look, at: usize, of: f64| f64::from(look.counts[at]) / of;
            range.clone().filter(|at| whole.counts[*at] > 0).fold(0.0, |apart, at| {
                let differ = share(self, at, mine) - share(other, at, theirs);
                apart + differ * differ / share(whole, at, all)
            })
        };
        parts.into_iter().map(of).sum()
    }
}

/// How well windows of `window` blocks mix: blocks as they are, beside as many groups of rows drawn at random.
///
/// Rows drawn independently lie 1/m as far from the whole as one row does, where m are drawn (c/m). Blocks lie further apart by
/// what is alike in neighbours. A window takes one block of each of n stretches, so what counts is only how blocks of the same stretch
/// differ (V): it brings that down to V/n, and a batch of b rows out of it lies V/n + c/b from the whole instead of c/b.
fn mixing(looks: &[Look], drawn: &[Look], blocks: u64, window: u64) -> Mixing {
    let quiet = Mixing { blocks, window, excess: 0.0, needed: None };
    let mut whole = Look::new();
    looks.iter().for_each(|look| whole.add(look));
    if blocks <= window || looks.len() < 2 {
        return quiet;
    }
    let of_row =
        mean(drawn.iter().filter(|look| look.rows > 0).map(|look| look.apart(&whole, &whole) * look.rows as f64));
    if of_row <= 0.0 {
        return quiet;
    }
    let noise = |look: &Look| of_row / look.rows.max(1) as f64;
    let excess = |window: u64| {
        // Looks of one stretch; at least two, or there is nothing to compare.
        let each = (looks.len() as u64).div_ceil(window).max(2) as usize;
        let pairs = looks.chunks(each).flat_map(|stretch| {
            stretch.iter().enumerate().flat_map(|(at, a)| stretch[at + 1..].iter().map(move |b| (a, b)))
        });
        let alike = mean(pairs.map(|(a, b)| (a.apart(b, &whole) - noise(a) - noise(b)) / 2.0)).max(0.0);
        alike / window as f64 * BATCH / of_row
    };
    let here = excess(window);
    let wider = std::iter::successors(Some(window), |n| (*n < blocks).then(|| (2 * n).min(blocks)));
    let needed = || wider.skip(1).find(|n| *n == blocks || excess(*n) <= Mixing::GOOD);
    Mixing { excess: here, needed: (here > Mixing::GOOD).then(needed).flatten(), ..quiet }
}

fn mean(of: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = of.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// Looks at all rows of `sources`; `seen` is called now and then with how many were.
pub fn inspect(
    sources: &Sources,
    tokenizer: Option<&TextTokenizer>,
    max_len: Option<u64>,
    order: Order,
    seen: &mut dyn FnMut(u64),
) -> Result<Inspection, DataError> {
    let blocks = sources.blocks().len();
    let room = sources.window_room(Order::new(0, false));
    let mut texts = Texts::with_room(room.text_bytes as usize, room.rows as usize);
    let mut scratch = ReadScratch::for_sources(sources);
    let looked_at = blocks.min(MOST_BLOCKS);
    let (mut looks, mut drawn) = (Vec::with_capacity(looked_at), vec![Look::new(); looked_at]);
    let mut draws = Draws::new([7, 7, 7]);
    let mut bytes = Histogram::default();
    let mut tokens = tokenizer.map(|_| [Histogram::default(), Histogram::default()]);
    let mut repeats = Seen::new(MOST_HASHES);
    let every = sources.facts().rows.div_ceil(MOST_TOKENISED).max(1);
    let (mut row, mut longer) = (0, 0);
    for block in 0..blocks {
        texts.clear();
        sources.read_block(block, &mut scratch, &mut texts)?;
        // Spread evenly over all blocks.
        let looks_here = looks.len() * blocks / looked_at == block && looks.len() < looked_at;
        let mut look = Look::new();
        for nth in 0..texts.len() {
            let (source, target) = texts.pair(nth);
            bytes.add((source.len() + target.len()) as u64);
            repeats.row(source, target);
            if looks_here {
                look.row(source, target);
                drawn[draws.below(looked_at as u64) as usize].row(source, target);
            }
            if let (Some(tokenizer), Some(tokens)) = (tokenizer, &mut tokens)
                && row % every == 0
            {
                let length = |text: &str| tokenizer.encode_ids(text, true).map(|ids| ids.len() as u64);
                let (source, target) = (length(source)?, length(target)?);
                tokens[0].add(source);
                tokens[1].add(target);
                longer += u64::from(max_len.is_some_and(|most| source.max(target) > most));
            }
            row += 1;
        }
        if looks_here {
            looks.push(look);
        }
        seen(row);
    }
    let facts = sources.facts();
    let mixing = mixing(&looks, &drawn, blocks as u64, order.window_blocks() as u64);
    Ok(Inspection { rows: facts.rows, files: facts.files, bytes, tokens, longer, repeats: repeats.repeats(), mixing })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_counted_one_by_one_and_long_ones_in_buckets() {
        let mut of = Histogram::default();
        (1..=1000).for_each(|n| of.add(n));
        assert_eq!((of.count, of.longest, of.sum), (1000, 1000, 500_500));
        for (share, want) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0)] {
            assert_eq!(of.quantile(share) as f64, want, "{share}");
        }
        assert_eq!(of.quantile(1.0), 1000);
        let powers = of.by_powers();
        assert_eq!(powers.iter().map(|(_, n)| n).sum::<u64>(), 1000);
        assert_eq!((powers[0], powers[3], powers[9]), ((1, 1), (8, 8), (512, 489)));
        let mut long = Histogram::default();
        (0..1000).for_each(|n| long.add(1_000_000 + 1000 * n));
        let found = long.quantile(0.5) as f64;
        assert!((1_499_000.0..1_499_000.0 * (1.0 + 1.0 / 256.0)).contains(&found), "{found}");
        assert!(long.buckets.len() < 300);
        let mut gap = Histogram::default();
        [0, 1, 9].into_iter().for_each(|n| gap.add(n));
        assert_eq!(gap.by_powers(), [(0, 1), (1, 1), (2, 0), (4, 0), (8, 1)]);
    }

    #[test]
    fn repeats_are_found_also_from_a_sample() {
        for most in [1 << 20, 500] {
            let mut seen = Seen::new(most);
            for row in 0..40_000 {
                // Every row of the second half is one of the first.
                seen.row(&format!("row {}", row % 20_000), "t");
            }
            let found = seen.repeats();
            assert!((found.share - 0.5).abs() < 1e-9, "{found:?}");
            assert_eq!(found.one_of == 1, most > 20_000);
            assert!(seen.hashes.len() <= most);
        }
    }

    /// Looks of `blocks` blocks of 50 rows, with letters by `letter(block, row)`.
    fn judged(blocks: usize, window: u64, letter: impl Fn(usize, usize) -> u8) -> Mixing {
        let mut draws = Draws::new([1, 2, 3]);
        let (mut looks, mut drawn) = (Vec::new(), vec![Look::new(); blocks]);
        for block in 0..blocks {
            let mut look = Look::new();
            for row in 0..50 {
                let text = String::from_utf8(vec![letter(block, row); 20]).unwrap();
                look.row(&text, "");
                drawn[draws.below(blocks as u64) as usize].row(&text, "");
            }
            looks.push(look);
        }
        mixing(&looks, &drawn, blocks as u64, window)
    }

    #[test]
    fn groups_of_rows_need_a_larger_window_and_mixed_or_sorted_ones_do_not() {
        let mixed = judged(200, 64, |block, row| b'a' + ((block * 50 + row) * 7919 % 26) as u8);
        assert!(mixed.excess < Mixing::GOOD && mixed.needed.is_none(), "{mixed:?}");
        // Blocks all of one kind, in no order: a window of n has about n rows' worth of variety.
        let groups = judged(200, 64, |block, _| b'a' + (block * 7919 % 26) as u8);
        assert!(groups.excess > 3.0 * Mixing::GOOD && groups.needed == Some(200), "{groups:?}");
        // By letter: every window has some of each.
        let sorted = judged(200, 64, |block, _| b'a' + (block * 26 / 200) as u8);
        assert!(sorted.excess < groups.excess / 2.0, "{sorted:?}");
        assert!(judged(256, 64, |block, _| b'a' + (block / 32) as u8).needed.is_none());
        let one = judged(60, 64, |block, _| b'a' + (block * 26 / 60) as u8);
        assert_eq!((one.excess, one.needed), (0.0, None));
        assert!(judged(200, 64, |_, _| b'a').needed.is_none(), "all alike");
    }
}
