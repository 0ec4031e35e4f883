//! Which kind of data set serves so many ranks.
//!
//! Guide 003's headline command streams from disk with two ranks, and its data set refuses that (C-003-1): ranks share
//! an epoch by index, and a stream has none. Rows on disk behind an index serve any number of ranks.

/// How rows are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dataset {
    /// All rows in RAM.
    InMemory,
    /// One row after the other from disk, without an index.
    Streamed,
    /// Rows on disk, found by index.
    IndexedOnDisk,
}

impl Dataset {
    /// Whether so many ranks can share an epoch of it.
    pub fn serves(self, ranks: u64) -> bool {
        ranks <= 1 || self != Dataset::Streamed
    }
}

/// The least costly kind that serves so many ranks.
pub fn dataset(ranks: u64, keep_in_memory: bool) -> Dataset {
    let kinds = [Dataset::Streamed, Dataset::IndexedOnDisk];
    let on_disk = kinds.into_iter().find(|kind| kind.serves(ranks)).unwrap_or(Dataset::IndexedOnDisk);
    if keep_in_memory { Dataset::InMemory } else { on_disk }
}

/// Upstream's rule: rows stay in RAM from 48 GiB available on, or with two cards.
pub fn upstream_keeps_in_memory(available_gib: f64, gpus: u64) -> bool {
    available_gib >= 48.0 || gpus >= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_serves_one_rank_and_an_index_any() {
        assert_eq!((dataset(1, false), dataset(2, false), dataset(2, true)), {
            (Dataset::Streamed, Dataset::IndexedOnDisk, Dataset::InMemory)
        });
        assert!(!Dataset::Streamed.serves(2));
        assert!((1..9).all(|ranks| dataset(ranks, false).serves(ranks)));
    }

    #[test]
    fn upstream_keeps_all_rows_for_two_cards_however_little_there_is() {
        assert!(upstream_keeps_in_memory(1.4, 2) && upstream_keeps_in_memory(48.0, 1));
        assert!(!upstream_keeps_in_memory(47.9, 1));
    }
}
