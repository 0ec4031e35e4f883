//! One pass over the data from a given place, with the threads that make its batches.
//!
//! Batches are dealt to ranks in rounds: each rank makes every batch of a round, keeps the one of its number and ends the
//! round at the same place as all others. Invariant: the stream does not depend on the number of ranks. In another process
//! than the one that began it (after a fork) a pass is left alone, since its threads are not there to be joined.

use std::mem::ManuallyDrop;

use plimsoll_data::{Cursor, Loader, LoaderSettings, Order, Ranks, documents_of};
use plimsoll_plan::batch::{BatchShape, BatchSlot};
use pyo3::prelude::*;

use crate::batch::{Batch, Labels, Layout, Rows};
use crate::data::Data;
use crate::fault::data_fault;
use crate::wording::Wording;

/// Epoch, position, piece and sample of a cursor.
type Place = (u64, u64, u64, u64);

/// A running pass.
#[pyclass(module = "plimsoll._plimsoll")]
pub struct Pass {
    loader: ManuallyDrop<Loader>,
    process: u32,
    deal: Deal,
    layout: Layout,
    slot: Slot,
    /// The pass, and rows of the data.
    epoch: u64,
    rows: u64,
    over: bool,
}

/// Which batches of a round are handed out.
struct Deal {
    rank: usize,
    world: usize,
    drop_last: bool,
}

/// What the loader fills.
struct Slot {
    shape: BatchShape,
    source: Vec<u32>,
    target: Vec<u32>,
    source_lens: Vec<u32>,
    target_lens: Vec<u32>,
}

impl Slot {
    fn new(shape: BatchShape) -> Slot {
        Slot {
            shape,
            source: vec![0; shape.samples * shape.source_len],
            target: vec![0; shape.samples * shape.target_len],
            source_lens: vec![0; shape.most_documents()],
            target_lens: vec![0; shape.samples],
        }
    }

    fn lend(&mut self) -> BatchSlot<'_> {
        BatchSlot {
            source: &mut self.source,
            target: &mut self.target,
            source_lens: &mut self.source_lens,
            target_lens: &mut self.target_lens,
        }
    }
}

#[pymethods]
impl Pass {
    /// Starts the threads at `place`.
    #[new]
    #[pyo3(signature = (data, wording, *, place, seed, shuffle, window, batch_size, source_len, target_len, packed, hf_labels,
        multiple, threads, prefetch, rank, world_size, drop_last))]
    fn new(
        py: Python<'_>,
        data: &Data,
        wording: &Wording,
        place: Place,
        seed: u64,
        shuffle: bool,
        window: Option<usize>,
        batch_size: usize,
        source_len: usize,
        target_len: usize,
        packed: bool,
        hf_labels: bool,
        multiple: usize,
        threads: usize,
        prefetch: usize,
        rank: usize,
        world_size: usize,
        drop_last: bool,
    ) -> PyResult<Pass> {
        let documents = documents_of(packed, source_len);
        let shape = BatchShape { samples: batch_size, source_len, target_len, documents };
        let order = Order::new(seed, shuffle);
        let order = window.map_or(order, |blocks| order.with_window(blocks));
        let (epoch, position, piece, sample) = place;
        let settings = LoaderSettings {
            shape,
            effective_batch: batch_size,
            threads,
            prefetch_batches: prefetch,
            cursor: Cursor { epoch, position, piece, sample },
            limit: None,
            ranks: Ranks::ONE,
            on_thread_start: None,
        };
        let (sources, recipe) = (data.sources().clone(), wording.recipe().clone());
        let start = || Loader::start_pass(sources, order, wording.tokenizer().clone(), recipe, settings);
        let loader = py.detach(start).map_err(data_fault)?;
        let labels = if hf_labels { Labels::Unshifted } else { Labels::Shifted };
        Ok(Pass {
            loader: ManuallyDrop::new(loader),
            process: std::process::id(),
            deal: Deal { rank, world: world_size, drop_last },
            layout: Layout {
                kind: wording.recipe().kind(),
                packed,
                labels,
                multiple,
                pad_id: wording.tokenizer().pad_id(),
            },
            slot: Slot::new(shape),
            epoch,
            rows: data.sources().rows(),
            over: false,
        })
    }

    /// Waits for the next batch, and says where the stream is behind its round. `None`: the pass is over.
    fn next(&mut self, py: Python<'_>) -> PyResult<Option<(Batch, Place)>> {
        py.detach(|| self.round()).map_err(data_fault)
    }
}

impl Pass {
    fn round(&mut self) -> Result<Option<(Batch, Place)>, plimsoll_data::DataError> {
        let (mut own, mut place) = (None, (self.epoch, self.rows, 0, 0));
        for number in 0..self.deal.world {
            if self.over {
                break;
            }
            let facts = self.loader.next(self.slot.lend())?;
            if facts.samples == 0 || (self.deal.drop_last && facts.samples < self.slot.shape.samples) {
                self.over = true;
                // A round that not every rank has a batch of is left out as a batch that is not full is.
                own = own.filter(|_| !self.deal.drop_last);
                place = (self.epoch, self.rows, 0, 0);
                break;
            }
            place = self.place(facts.cursor_after);
            if number == self.deal.rank {
                let Slot { source, target, source_lens, target_lens, .. } = &self.slot;
                let rows = Rows {
                    source,
                    target,
                    source_lens: &source_lens[..facts.documents],
                    target_lens: &target_lens[..facts.samples],
                };
                own = Some(Batch::new(&self.layout, rows));
            }
        }
        Ok(own.map(|batch| (batch, place)))
    }

    /// Behind the last row is the end of this pass, not the beginning of the next: whoever resumes there must still see it end.
    fn place(&self, cursor: Cursor) -> Place {
        match cursor.epoch == self.epoch {
            true => (cursor.epoch, cursor.position, cursor.piece, cursor.sample),
            false => (self.epoch, self.rows, 0, 0),
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: the loader is dropped here only, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.loader) }
        }
    }
}
