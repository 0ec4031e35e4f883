//! What loader processes cost in host memory.
//!
//! A forked worker starts with its parent's pages and pays for those that either of them writes to afterwards. A pool that
//! is forked before the first step (cold) ends up with the interpreter's heap and the weights of that moment; one that is
//! forked later (hot: validation without a sanity check, or a new epoch without persistent workers) keeps about half of all
//! that its parent had then. Workers of one pool share these old pages, so a pool costs about the same with one worker or
//! four. A spawned worker imports everything anew and has the dataset for itself.
//!
//! Shares come from two sets of runs: Piper by workers and batch, and 3.2 million small objects under Lightning.

use plimsoll_machine::Bytes;
use serde::Serialize;

use super::table::{Part, Source};
use super::zero::pinned;

/// How workers start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerStart {
    /// As copies of the rank: Linux's default.
    Fork,
    /// As new processes.
    Spawn,
}

/// A rank's loaders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Loader {
    /// Processes of each pool; 0: the rank loads itself.
    pub workers: u64,
    /// Batches that each holds ready.
    pub prefetch: u64,
    /// Whether batches are copied to page-locked memory.
    pub pin: bool,
    /// Whether pools live over epochs.
    pub persistent: bool,
    /// How workers start.
    pub start: WorkerStart,
    /// Whether there is a validation pool.
    pub validation: bool,
    /// Whether the validation pool is forked before the first step, as Lightning's sanity check does.
    pub sanity: bool,
    /// Whether training goes on into a second epoch, so that pools that do not persist are forked anew.
    pub epochs: bool,
    /// Bytes of one sample.
    pub sample: Bytes,
}

impl Default for Loader {
    fn default() -> Loader {
        Loader {
            workers: 0,
            prefetch: 2,
            pin: false,
            persistent: false,
            start: WorkerStart::Fork,
            validation: false,
            sanity: false,
            epochs: false,
            sample: Bytes::ZERO,
        }
    }
}

/// What a dataset is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// Python objects: reading one writes its reference count, and its page is copied.
    Objects,
    /// Arrays: reading writes nothing.
    Arrays,
    /// Files mapped or read row by row: nothing is held.
    Mapped,
}

/// A dataset as a rank holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Dataset {
    /// Bytes in memory.
    pub bytes: Bytes,
    /// Made of what.
    pub rows: Rows,
}

/// What a worker has of its own: buffers, what it touches of the interpreter.
const OWN: Bytes = Bytes::mib(60);
/// Share of the interpreter's heap that a cold pool ends up with, per cent.
const HEAP_SHARE: u64 = 60;
/// Share of the parent's memory that a hot pool ends up with, per cent.
const HOT_SHARE: u64 = 47;
/// Share of a dataset of objects that a worker copies, per cent.
const TOUCHED: u64 = 50;

/// What the parent has when a pool is forked.
#[derive(Clone, Copy, Debug)]
pub struct Parent {
    /// The interpreter's own memory.
    pub heap: Bytes,
    /// Weights in host memory that the rank will write to.
    pub weights: Bytes,
    /// All that it has of its own while it trains.
    pub resting: Bytes,
}

fn share(bytes: Bytes, per_cent: u64) -> Bytes {
    Bytes((u128::from(bytes.0) * u128::from(per_cent) / 100) as u64)
}

fn times(bytes: Bytes, n: u64) -> Bytes {
    Bytes(bytes.0.saturating_mul(n))
}

impl Loader {
    /// The training pool of each of `ranks`, from the first step on.
    pub fn train_pool(&self, parent: Parent, dataset: &Dataset, ranks: u64) -> Vec<Part> {
        if self.workers == 0 {
            return Vec::new();
        }
        let name = format!("loader workers ({} x {ranks})", self.workers);
        match self.start {
            WorkerStart::Spawn => vec![self.spawned(&name, parent, dataset, ranks)],
            WorkerStart::Fork => {
                let hot = self.epochs && !self.persistent;
                let pool = if hot { self.hot(&name, parent, ranks) } else { self.cold(&name, parent, true, ranks) };
                let copies = self.copies(dataset, ranks);
                vec![pool, copies]
            }
        }
    }

    /// The validation pool.
    pub fn validation_pool(&self, parent: Parent, dataset: &Dataset, ranks: u64) -> Vec<Part> {
        if self.workers == 0 || !self.validation {
            return Vec::new();
        }
        let name = format!("validation workers ({} x {ranks})", self.workers);
        vec![match (self.start, self.sanity) {
            (WorkerStart::Spawn, _) => self.spawned(&name, parent, dataset, ranks),
            // Forked in the same quiet minute as the training pool: the old weights are held once for both.
            (WorkerStart::Fork, true) => self.cold(&name, parent, false, ranks),
            (WorkerStart::Fork, false) => self.hot(&name, parent, ranks),
        }]
    }

    fn cold(&self, name: &str, parent: Parent, weights: bool, ranks: u64) -> Part {
        let weights = if weights { parent.weights } else { Bytes::ZERO };
        let own = times(OWN, self.workers);
        let bytes = share(parent.heap, HEAP_SHARE).saturating_add(weights).saturating_add(own);
        // At most all that was there at the fork, and the pages touched since by each.
        let most = parent.heap.saturating_add(parent.weights).saturating_add(times(own, 2));
        Part::bounded(name, times(bytes, ranks), times(most, ranks), Source::Default)
    }

    fn hot(&self, name: &str, parent: Parent, ranks: u64) -> Part {
        let own = times(OWN, self.workers);
        let bytes = share(parent.resting, HOT_SHARE).saturating_add(own);
        let most = share(parent.resting, 65).saturating_add(times(own, 2));
        Part::bounded(
            format!("{name}, forked while training"),
            times(bytes, ranks),
            times(most, ranks),
            Source::Default,
        )
    }

    fn spawned(&self, name: &str, parent: Parent, dataset: &Dataset, ranks: u64) -> Part {
        let each = parent.heap.saturating_add(dataset.bytes);
        // A new pool starts before the old one has gone.
        let pools = if self.epochs && !self.persistent { 2 } else { 1 };
        let bytes = times(each, self.workers * ranks * pools);
        Part::bounded(name, bytes, share(bytes, 110), Source::Default)
    }

    fn copies(&self, dataset: &Dataset, ranks: u64) -> Part {
        if dataset.rows != Rows::Objects {
            return Part::computed("dataset copies", Bytes::ZERO);
        }
        let most = times(dataset.bytes, self.workers * ranks);
        Part::bounded("dataset copies", share(most, TOUCHED), most, Source::Default)
    }

    /// Batches on their way, in shared memory, of all ranks.
    pub fn in_flight(&self, batch: u64, ranks: u64) -> Bytes {
        times(self.sample, batch.saturating_mul(self.workers * self.prefetch * ranks))
    }

    /// Page-locked batches, each block rounded to a power of two.
    pub fn pinned(&self, batch: u64, ranks: u64) -> Bytes {
        if !self.pin {
            return Bytes::ZERO;
        }
        times(pinned(times(self.sample, batch)), (self.workers * self.prefetch + 1) * ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: Parent = Parent { heap: Bytes::mib(480), weights: Bytes::mib(270), resting: Bytes::gib(4) };

    fn total(parts: &[Part]) -> Bytes {
        parts.iter().map(|part| part.bytes).sum()
    }

    #[test]
    fn a_pool_forked_while_training_costs_far_more_than_one_forked_before() {
        let dataset = Dataset { bytes: Bytes::ZERO, rows: Rows::Arrays };
        let hot = Loader { workers: 1, validation: true, ..Loader::default() };
        let cold = Loader { sanity: true, ..hot };
        assert!(total(&hot.validation_pool(PARENT, &dataset, 1)) > Bytes::gib(1));
        assert!(total(&cold.validation_pool(PARENT, &dataset, 1)) < Bytes::mib(400));
    }

    #[test]
    fn a_second_worker_of_a_pool_costs_little() {
        let dataset = Dataset { bytes: Bytes::ZERO, rows: Rows::Arrays };
        let pool = |workers| total(&Loader { workers, ..Loader::default() }.train_pool(PARENT, &dataset, 1));
        assert_eq!(pool(2) - pool(1), OWN);
        assert_eq!(pool(0), Bytes::ZERO);
    }

    #[test]
    fn objects_are_copied_up_to_once_a_worker_and_arrays_never() {
        let loader = Loader { workers: 3, ..Loader::default() };
        let most = |rows| {
            let parts = loader.train_pool(PARENT, &Dataset { bytes: Bytes::gib(1), rows }, 2);
            parts.iter().find(|part| part.name == "dataset copies").map_or(Bytes::ZERO, |part| part.most)
        };
        assert_eq!(most(Rows::Objects), Bytes::gib(6));
        assert_eq!(most(Rows::Arrays), Bytes::ZERO);
    }

    #[test]
    fn pinned_batches_are_rounded_one_by_one() {
        let loader = Loader { workers: 2, prefetch: 2, pin: true, sample: Bytes::mib(3), ..Loader::default() };
        assert_eq!(loader.pinned(3, 1), Bytes::mib(16 * 5));
        assert_eq!(loader.in_flight(3, 1), Bytes::mib(36));
    }
}
