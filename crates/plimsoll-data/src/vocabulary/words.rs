//! Words and how often they occur, in memory that is decided before the first word comes.
//!
//! Records (count, length, bytes) lie end to end in one buffer, in the order in which words first came; a table of
//! offsets finds them. Where the buffer is full the rarest words go, in place. Invariant: the heap never exceeds the
//! ceiling; counts are exact while nothing was pruned, and then none is short by more than [`Pruned::most_short`]. What
//! is kept depends on the words and their order, never on a hash. It knows no text and no trainer.

/// Bytes of a record before its word: a count and a length.
const HEAD: usize = 8 + 2;
/// Most bytes of a word.
pub(crate) const MOST_WORD_BYTES: usize = 1024;
/// Least bytes of a ceiling: a few of the longest words.
pub(crate) const LEAST_CEILING: u64 = 16 << 10;

/// What was lost to the ceiling while words were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Pruned {
    /// Times that a word was taken out. One that comes back and goes again counts twice.
    pub words: u64,
    /// Occurrences that went with them.
    pub occurrences: u64,
    /// No word's count is short by more than this.
    pub most_short: u64,
}

/// What was taken out at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Dropped {
    /// Words.
    pub words: u64,
    /// Their occurrences.
    pub occurrences: u64,
    /// The count of the commonest of them.
    pub commonest: u64,
}

impl Dropped {
    /// Both together.
    pub(crate) fn and(self, more: Dropped) -> Dropped {
        Dropped {
            words: self.words + more.words,
            occurrences: self.occurrences + more.occurrences,
            commonest: self.commonest.max(more.commonest),
        }
    }
}

/// Counts of words, within a ceiling.
pub(crate) struct WordCounts {
    records: Vec<u8>,
    /// Bytes that the records may take.
    room: usize,
    /// Where records begin, plus 1; 0 is free. More than there can be records, so that there is always a free one.
    slots: Vec<u32>,
    hasher: ahash::RandomState,
    words: u64,
    occurrences: u64,
    pruned: Pruned,
}

impl WordCounts {
    /// Counts in at most `ceiling` bytes, from [`LEAST_CEILING`] to `u32::MAX`.
    pub fn within(ceiling: u64) -> WordCounts {
        assert!((LEAST_CEILING..=u64::from(u32::MAX)).contains(&ceiling), "a ceiling of {ceiling} bytes");
        // The shortest record has HEAD + 1 bytes; of its slots at most 7/8 are taken: room + 4 * slots is the ceiling.
        let shortest = HEAD as u64 + 1;
        let room = (ceiling - 8) * 7 * shortest / (7 * shortest + 4 * 8);
        let slots = room / shortest * 8 / 7 + 1;
        WordCounts {
            records: Vec::with_capacity(room as usize),
            room: room as usize,
            slots: vec![0; slots as usize],
            hasher: ahash::RandomState::new(),
            words: 0,
            occurrences: 0,
            pruned: Pruned::default(),
        }
    }

    /// Heap, in bytes.
    #[cfg(test)]
    pub fn heap_bytes(&self) -> u64 {
        (self.records.capacity() + self.slots.capacity() * size_of::<u32>()) as u64
    }

    /// Different words that are held.
    pub fn words(&self) -> u64 {
        self.words
    }

    /// All words that came, pruned ones included.
    pub fn occurrences(&self) -> u64 {
        self.occurrences
    }

    /// What was lost so far.
    pub fn pruned(&self) -> Pruned {
        self.pruned
    }

    /// One more of `word`, which has 1 to [`MOST_WORD_BYTES`] bytes.
    pub fn add(&mut self, word: &str) {
        assert!((1..=MOST_WORD_BYTES).contains(&word.len()), "a word of {} bytes", word.len());
        self.occurrences += 1;
        if let Ok(at) = self.find(word) {
            let count = self.count_at(at) + 1;
            self.records[at..at + 8].copy_from_slice(&count.to_le_bytes());
            return;
        }
        if self.records.len() + HEAD + word.len() > self.room {
            let kept = self.room as u64 / 4 * 3;
            let dropped = self.keep_commonest(kept, |word| (HEAD + word.len()) as u64);
            self.pruned.words += dropped.words;
            self.pruned.occurrences += dropped.occurrences;
            self.pruned.most_short += dropped.commonest;
        }
        let Err(slot) = self.find(word) else { unreachable!("pruning adds no word") };
        self.slots[slot] = self.records.len() as u32 + 1;
        self.records.extend_from_slice(&1u64.to_le_bytes());
        self.records.extend_from_slice(&(word.len() as u16).to_le_bytes());
        self.records.extend_from_slice(word.as_bytes());
        self.words += 1;
    }

    /// Words with their counts, in the order in which they first came.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        Starts { records: &self.records, at: 0 }.map(|at| (self.word_at(at), self.count_at(at)))
    }

    /// Takes the rarest words out until the `cost` of the others comes to at most `budget`. Of equally rare ones those
    /// that came first stay, while there is room.
    pub fn keep_commonest(&mut self, budget: u64, cost: impl Fn(&str) -> u64) -> Dropped {
        let above = |most: u64| self.iter().filter(|(_, count)| *count > most).map(|(word, _)| cost(word)).sum::<u64>();
        if above(0) <= budget {
            return Dropped::default();
        }
        // The least count such that all above it fit: most often 1, so look there first.
        let mut high = 1;
        while above(high) > budget {
            high *= 2;
        }
        let mut low = high / 2;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            *(if above(middle) > budget { &mut low } else { &mut high }) = middle;
        }
        let mut left = budget - above(high);
        self.retain(|word, count| {
            let stays = count > high || (count == high && cost(word) <= left);
            if stays && count == high {
                left -= cost(word);
            }
            stays
        })
    }

    /// Keeps the words for which `stays` is true.
    pub fn retain(&mut self, mut stays: impl FnMut(&str, u64) -> bool) -> Dropped {
        let mut dropped = Dropped::default();
        let (mut from, mut to) = (0, 0);
        while from < self.records.len() {
            let (count, end) = (self.count_at(from), self.end_at(from));
            if stays(self.word_at(from), count) {
                self.records.copy_within(from..end, to);
                to += end - from;
            } else {
                dropped.words += 1;
                dropped.occurrences += count;
                dropped.commonest = dropped.commonest.max(count);
            }
            from = end;
        }
        self.records.truncate(to);
        self.words -= dropped.words;
        self.slots.fill(0);
        let mut at = 0;
        while at < self.records.len() {
            let Err(slot) = self.find(self.word_at(at)) else { unreachable!("each word has one record") };
            self.slots[slot] = at as u32 + 1;
            at = self.end_at(at);
        }
        dropped
    }

    /// The record of `word`, or the slot for it.
    fn find(&self, word: &str) -> Result<usize, usize> {
        let hash = self.hasher.hash_one(word);
        let mut slot = ((u128::from(hash) * self.slots.len() as u128) >> 64) as usize;
        loop {
            match self.slots[slot] {
                0 => return Err(slot),
                taken if self.bytes_at(taken as usize - 1) == word.as_bytes() => return Ok(taken as usize - 1),
                _ => slot = if slot + 1 == self.slots.len() { 0 } else { slot + 1 },
            }
        }
    }

    fn count_at(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.records[at..at + 8].try_into().expect("eight bytes"))
    }

    fn end_at(&self, at: usize) -> usize {
        end_of(&self.records, at)
    }

    fn bytes_at(&self, at: usize) -> &[u8] {
        &self.records[at + HEAD..self.end_at(at)]
    }

    fn word_at(&self, at: usize) -> &str {
        str::from_utf8(self.bytes_at(at)).expect("a word went in")
    }
}

fn end_of(records: &[u8], at: usize) -> usize {
    let length = u16::from_le_bytes([records[at + 8], records[at + 9]]);
    at + HEAD + usize::from(length)
}

/// Where records begin.
struct Starts<'a> {
    records: &'a [u8],
    at: usize,
}

impl Iterator for Starts<'_> {
    type Item = usize;
    fn next(&mut self) -> Option<usize> {
        let at = self.at;
        (at < self.records.len()).then(|| {
            self.at = end_of(self.records, at);
            at
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn count(words: &[String], ceiling: u64) -> (WordCounts, HashMap<String, u64>) {
        let (mut counts, mut exact) = (WordCounts::within(ceiling), HashMap::new());
        for word in words {
            counts.add(word);
            *exact.entry(word.clone()).or_default() += 1;
            assert!(counts.heap_bytes() <= ceiling);
        }
        (counts, exact)
    }

    /// Words of which some are much commoner than others, from few to many more than a small ceiling holds.
    fn corpus() -> impl Strategy<Value = Vec<String>> {
        let word = (0.0f64..1.0, 1usize..60).prop_map(|(draw, pad)| {
            let number = (draw.powi(4) * 3000.0) as u64;
            format!("{number}{}", "é".repeat((number as usize * pad) % 40))
        });
        proptest::collection::vec(word, 1..4000)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn below_the_ceiling_counts_are_exact(words in corpus()) {
            let (counts, exact) = count(&words, 4 << 20);
            prop_assert_eq!(counts.pruned(), Pruned::default());
            let got: HashMap<String, u64> = counts.iter().map(|(word, n)| (word.to_string(), n)).collect();
            prop_assert_eq!(counts.words(), exact.len() as u64);
            prop_assert_eq!(got, exact);
        }

        #[test]
        fn above_it_no_count_is_too_large_and_none_short_by_more_than_is_said(words in corpus()) {
            let (counts, exact) = count(&words, LEAST_CEILING);
            let got: HashMap<&str, u64> = counts.iter().collect();
            let Pruned { words: _, occurrences, most_short } = counts.pruned();
            for (word, n) in &exact {
                let found = got.get(word.as_str()).copied().unwrap_or(0);
                prop_assert!(found <= *n && n - found <= most_short, "{word}: {found} of {n}, most short {most_short}");
            }
            prop_assert_eq!(got.values().sum::<u64>() + occurrences, words.len() as u64);
            prop_assert_eq!(counts.occurrences(), words.len() as u64);
            prop_assert_eq!(counts.words(), got.len() as u64);
        }

        #[test]
        fn what_is_kept_is_the_commonest_and_fits(words in corpus(), budget in 0u64..2000) {
            let (mut counts, exact) = count(&words, 4 << 20);
            let dropped = counts.keep_commonest(budget, |_| 1);
            prop_assert_eq!(counts.words(), budget.min(exact.len() as u64));
            prop_assert_eq!(counts.words() + dropped.words, exact.len() as u64);
            prop_assert!(counts.iter().all(|(word, n)| exact[word] == n && n >= dropped.commonest));
            for word in &words {
                counts.add(word);
            }
            prop_assert_eq!(counts.words(), exact.len() as u64);
        }
    }

    #[test]
    fn the_same_words_in_the_same_order_leave_the_same_records() {
        let words: Vec<String> = (0..40_000u64).map(|n| format!("w{}", n * n % 7919)).collect();
        let [(first, _), (second, _)] = [(); 2].map(|()| count(&words, LEAST_CEILING));
        assert!(first.pruned().words > 0);
        assert_eq!(first.records, second.records);
    }

    #[test]
    fn the_shortest_and_the_longest_words_fit() {
        let longest = "x".repeat(MOST_WORD_BYTES);
        let short: Vec<String> = (0u32..0xd000).filter_map(char::from_u32).map(String::from).collect();
        let (counts, _) = count(&[short, vec![longest.clone(); 3]].concat(), LEAST_CEILING);
        assert_eq!(counts.iter().find(|(word, _)| *word == longest), Some((longest.as_str(), 3)));
    }
}
