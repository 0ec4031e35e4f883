//! Which documents share a sample: best fit, longest first, within a group of documents.
//!
//! Invariant: a sample has at most so many rows and documents, each document lies in one sample, and the result is a function of the
//! lengths and a key alone. Longest first leaves the least over (Ding et al. 2024, "Fewer Truncations Improve Language Modeling");
//! samples are put in a random order afterwards, so that short documents do not come last. Nothing is allocated on the way.

use std::cmp::Reverse;

use crate::buckets::{Buckets, GROUP_BATCHES};
use crate::order::{Draws, shuffle};

/// Samples that a group has documents for: enough that nearly all are full, few enough to be made again when a run goes on inside it.
const GROUP_SAMPLES: usize = 64;
/// Documents of a group at most.
const GROUP_DOCUMENTS: usize = 4096;

/// Rows that a document of a packed sample has on average, or the sample ends before it is full.
const LEAST_DOCUMENT: usize = 8;

/// Documents that a sample of so many tokens has room for.
pub fn documents_of(packed: bool, tokens: usize) -> usize {
    if packed { tokens.div_ceil(LEAST_DOCUMENT).max(2) } else { 1 }
}

/// How much a sample may hold, and so a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackRoom {
    /// Rows of a sample.
    pub rows: usize,
    /// Documents of a sample; where it is one, nothing is packed and each document is a group.
    pub documents: usize,
    /// Samples of a batch, where those of one are to be of like length; then nothing is packed.
    pub batch: Option<usize>,
}

impl PackRoom {
    /// Rows and documents that end a group when it has them.
    pub fn group(self) -> (usize, usize) {
        let rows = GROUP_SAMPLES * self.rows;
        if let Some(batch) = self.batch {
            return (GROUP_BATCHES * batch * self.rows, GROUP_BATCHES * batch);
        }
        if self.documents == 1 { (self.rows, 1) } else { (rows, GROUP_DOCUMENTS.min(rows)) }
    }

    /// Heap of a packer, in bytes.
    pub fn heap_bytes(self) -> u64 {
        let (_, documents) = self.group();
        let sorting = self.batch.map_or(0, Buckets::heap_bytes);
        (documents * (size_of::<Member>() + size_of::<Sample>() + size_of::<u32>())) as u64 + sorting
    }
}

/// A document of a group, and the sample that it lies in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub sample: u32,
    pub document: u32,
    rows: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    rows: usize,
    documents: usize,
}

/// Packs groups.
pub(crate) struct Packer {
    room: PackRoom,
    members: Vec<Member>,
    samples: Vec<Sample>,
    places: Vec<u32>,
    /// Of batches of like length: each document is a sample, with its length.
    buckets: Option<Buckets>,
}

impl Packer {
    pub fn new(room: PackRoom) -> Packer {
        let (_, most) = room.group();
        Packer {
            room,
            members: Vec::with_capacity(most),
            samples: Vec::with_capacity(most),
            places: Vec::with_capacity(most),
            buckets: room.batch.map(Buckets::new),
        }
    }

    pub fn room(&self) -> PackRoom {
        self.room
    }

    /// Packs documents of so many rows each, none longer than a sample.
    pub fn pack(&mut self, rows: impl Iterator<Item = usize>, key: [u64; 3]) {
        let Packer { room, members, samples, places, buckets } = self;
        members.clear();
        samples.clear();
        members.extend((0..).zip(rows).map(|(document, rows)| Member { sample: 0, document, rows: rows as u32 }));
        if let Some(buckets) = buckets {
            let order = buckets.order(members.len(), |nth| [members[nth].rows as usize, 0], key);
            order.iter().zip(0..).for_each(|(document, sample)| members[*document as usize].sample = sample);
            return members.sort_unstable_by_key(|m| m.sample);
        }
        members.sort_unstable_by_key(|m| (Reverse(m.rows), m.document));
        for member in members.iter_mut() {
            let rows = member.rows as usize;
            let fits = |s: &Sample| s.rows + rows <= room.rows && s.documents < room.documents;
            let fullest = |(nth, s): &(usize, &Sample)| (s.rows, Reverse(*nth));
            let best = samples.iter().enumerate().filter(|(_, s)| fits(s)).max_by_key(fullest).map(|(nth, _)| nth);
            let nth = best.unwrap_or(samples.len());
            if best.is_none() {
                samples.push(Sample::default());
            }
            samples[nth].rows += rows;
            samples[nth].documents += 1;
            member.sample = nth as u32;
        }
        places.clear();
        places.extend(0..samples.len() as u32);
        shuffle(places, &mut Draws::new(key));
        members.iter_mut().for_each(|m| m.sample = places[m.sample as usize]);
        members.sort_unstable_by_key(|m| (m.sample, m.document));
    }

    /// The documents sample by sample, those of one in the order in which they came.
    pub fn members(&self) -> &[Member] {
        &self.members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    /// The documents of each sample.
    fn packed(rows: &[usize], room: PackRoom, key: u64) -> Vec<Vec<u32>> {
        let mut packer = Packer::new(room);
        packer.pack(rows.iter().copied(), [key, 0, 0]);
        let samples = packer.members().last().map_or(0, |m| m.sample as usize + 1);
        let mut list = vec![Vec::new(); samples];
        packer.members().iter().for_each(|m| list[m.sample as usize].push(m.document));
        list
    }

    #[test]
    fn the_longest_goes_where_it_leaves_the_least() {
        let mut list = packed(&[2, 3, 1, 5, 1, 4, 6, 2], PackRoom { rows: 8, documents: 8, batch: None }, 1);
        list.sort();
        assert_eq!(list, [vec![0, 6], vec![1, 3], vec![2, 4, 5, 7]]);
        let room = PackRoom { rows: 8, documents: 2, batch: None };
        assert!(packed(&[1; 9], room, 1).iter().all(|sample| sample.len() <= 2));
    }

    #[test]
    fn a_group_is_nearly_full_and_its_samples_come_in_any_order() {
        let mut draws = Draws::new([1, 2, 3]);
        // As documents are: many short ones, few long ones.
        let mut length = || 1usize << draws.below(10) | draws.below(1 << 9) as usize >> draws.below(9);
        let room = PackRoom { rows: 1024, documents: 128, batch: None };
        let mut rows = Vec::new();
        while rows.iter().sum::<usize>() < room.group().0 {
            rows.push(length().min(1024));
        }
        let list = packed(&rows, room, 5);
        let filled = rows.iter().sum::<usize>() as f64 / (list.len() * room.rows) as f64;
        assert!(filled > 0.98, "{filled}");
        assert_ne!(list, packed(&rows, room, 6));
        let longest = |half: &[Vec<u32>]| half.iter().flatten().filter(|d| rows[**d as usize] > 512).count();
        let (first, last) = list.split_at(list.len() / 2);
        assert!(longest(first) > 0 && longest(last) > 0);
    }

    proptest! {
        #[test]
        fn every_document_lies_in_one_sample_within_its_room(
            rows in prop::collection::vec(1..40usize, 0..300), documents in 2..9usize, key: u64,
        ) {
            let room = PackRoom { rows: 40, documents, batch: None };
            let list = packed(&rows, room, key);
            for sample in &list {
                prop_assert!(!sample.is_empty() && sample.len() <= documents && sample.is_sorted());
                prop_assert!(sample.iter().map(|d| rows[*d as usize]).sum::<usize>() <= room.rows);
            }
            let mut all = list.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..rows.len() as u32).collect::<Vec<_>>());
        }
    }
}
