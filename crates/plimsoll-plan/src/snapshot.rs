//! Where everything that a checkpoint holds lies in a copy of it: trained weights and optimizer state, without gradients
//! and without what is only read.
//!
//! The copy has the store's order and alignment, so it is filled by a few long runs. Pure: the engine takes the memory
//! and moves the numbers.

use std::ops::Range;

use plimsoll_machine::Bytes;

use crate::dtype::Dtype;
use crate::place::aligned;
use crate::program::store_places;
use crate::tape::{Id, Role, Store, Tensor};

/// A stretch of the store, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First element in the store.
    pub from: usize,
    /// First element in the copy.
    pub to: usize,
    /// Elements.
    pub words: usize,
}

/// The places of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotLayout {
    /// Elements of the copy.
    pub words: usize,
    /// What is copied as it is, in order; with `split` it covers the copy without gaps.
    pub runs: Vec<Run>,
    /// Weights that lie in two halves, and where they go whole.
    pub split: Vec<(Id, Range<usize>)>,
    /// Place of each parameter, in bytes; empty where it is only read.
    pub params: Vec<Range<usize>>,
    /// Places of each parameter's optimizer state, in the optimizer's own order.
    pub state: Vec<Vec<Range<usize>>>,
}

impl SnapshotLayout {
    /// The layout of a copy of this store.
    pub fn of(store: &Store) -> SnapshotLayout {
        let (offsets, _) = store_places(store);
        let mut runs: Vec<Run> = Vec::new();
        let mut places = vec![0; store.tensors.len()];
        let (mut words, mut split) = (0, Vec::new());
        for id in (0..store.tensors.len()).filter(|id| is_saved(&store.tensors[*id])) {
            let (from, len) = (offsets[id], saved_words(store, id));
            let follows = |run: &&mut Run| run.from + run.words == from && run.to + run.words == words;
            match runs.last_mut().filter(follows) {
                _ if store.is_split(Id(id as u32)) => split.push((Id(id as u32), words..words + store.elements[id])),
                Some(run) => run.words += len,
                None => runs.push(Run { from, to: words, words: len }),
            }
            places[id] = words;
            words += len;
        }
        let params = store.params.iter().map(|place| match place.changes() {
            true => {
                let width = if store.dtype(place.weight) == Dtype::F32 { 4 } else { 2 };
                let start = places[place.weight.0 as usize] * 4 + place.offset * width;
                start..start + place.param.elements() * width
            }
            false => 0..0,
        });
        let state = store.params.iter().map(|place| {
            let range = |id: usize| places[id]..places[id] + store.tensors[id].words;
            place.state.iter().map(|id| range(id.0 as usize)).collect()
        });
        SnapshotLayout { words, runs, split, params: params.collect(), state: state.collect() }
    }
}

fn is_saved(tensor: &Tensor) -> bool {
    matches!(tensor.role, Role::Weight | Role::Running | Role::Optimizer)
}

/// Words of a tensor in the copy, where a weight in two halves is whole.
fn saved_words(store: &Store, id: usize) -> usize {
    aligned(if store.is_split(Id(id as u32)) { store.elements[id] } else { store.tensors[id].words })
}

/// Memory of a copy, in whole pages.
pub fn snapshot_bytes(store: &Store) -> Bytes {
    let kept = (0..store.tensors.len()).filter(|id| is_saved(&store.tensors[*id]));
    Bytes((kept.map(|id| saved_words(store, id) as u64 * 4).sum::<u64>()).max(1).next_multiple_of(4096))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::T5Spec;
    use crate::store::store;
    use crate::train::OptimizerSpec;
    use crate::trained::{Storage, TrainSpec};

    #[test]
    fn every_parameter_and_state_has_a_place_of_its_own_and_gradients_have_none() {
        for (keep_gradients, optimizer) in [
            (true, OptimizerSpec::adamw(1e-3)),
            (false, OptimizerSpec::adafactor(1e-3)),
            (true, OptimizerSpec::adafactor(1e-3)),
            (true, OptimizerSpec::sgd(1e-3)),
        ] {
            let (train, storage) = (TrainSpec::All, Storage::default());
            let store = store(&T5Spec::small().into(), &train, &storage, Some(&optimizer), keep_gradients);
            let layout = SnapshotLayout::of(&store);
            let words = layout.params.iter().map(|bytes| bytes.start / 4..bytes.end / 4);
            let mut ranges: Vec<_> = words.chain(layout.state.iter().flatten().cloned()).collect();
            ranges.sort_by_key(|range| range.start);
            assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "no two overlap");
            assert!(ranges.iter().all(|range| range.end <= layout.words));
            let held: usize = ranges.iter().map(|range| range.len()).sum();
            assert_eq!(held, store.words(Role::Weight) + store.words(Role::Optimizer));
            let mut end = 0;
            for run in &layout.runs {
                assert_eq!(run.to, end, "no gap");
                end += run.words;
            }
            assert_eq!(end, layout.words);
            // Weights stand together, and so do states: gradients can lie only between them.
            assert!(layout.runs.len() <= 2, "{:?}", layout.runs);
            assert_eq!(snapshot_bytes(&store), Bytes((layout.words as u64 * 4).next_multiple_of(4096)));
        }
    }
}
