//! What a pass holds, in bytes: the loader that it runs, and beside that slots, the ring of a node and the batch that is laid out.
//!
//! Invariant: sizes are those of who allocates them, so that a ceiling is one for all of it. The tokenizer's own tables, and batches that
//! were handed out, are not in it.

use plimsoll_data::{LoadFacts, loader_heap, stacks, threads_within};
use plimsoll_plan::batch::BatchShape;

use crate::batch::{Batch, Layout};
use crate::node::RingShape;
use crate::slot::Slot;

/// Rounds that lie in a ring at least: one that is taken while another is made.
const LEAST_ROUNDS: usize = 2;

/// The ranks of a node, of which one makes the rounds of all: to its loader they are one that takes larger batches.
#[derive(Clone, Copy)]
pub struct NodeShape {
    /// Of a round, in the leader's loader.
    pub round: BatchShape,
    /// Rounds that the loader makes ahead.
    pub prefetch: usize,
    pub ring: RingShape,
}

impl NodeShape {
    /// For batches of `shape`, of which `prefetch` are made ahead for all seats together.
    pub fn new(shape: BatchShape, seats: usize, prefetch: usize) -> NodeShape {
        let rounds = prefetch / seats;
        NodeShape {
            round: BatchShape { samples: shape.samples * seats, ..shape },
            prefetch: rounds.max(1),
            ring: RingShape::new(seats, rounds.max(LEAST_ROUNDS), shape),
        }
    }
}

/// Who makes the batches of a pass.
#[derive(Clone, Copy)]
pub enum Maker {
    /// This process, for itself.
    Own { prefetch: usize },
    /// This process, for all ranks of its node.
    Leader(NodeShape),
    /// Another one.
    Other(NodeShape),
}

impl Maker {
    /// Threads, of at most `most`, with which a pass stays below `memory`; an error says how many bytes it takes with one, or with none
    /// where it needs none.
    pub fn threads_below(
        self,
        memory: u64,
        facts: &LoadFacts,
        layout: &Layout,
        shape: BatchShape,
        most: usize,
    ) -> Result<usize, u64> {
        let ring = |node: NodeShape| node.ring.bytes().map_or(u64::MAX, |bytes| bytes as u64);
        let (round, prefetch, beside) = match self {
            Maker::Own { prefetch } => (shape, prefetch, 0),
            Maker::Leader(node) => (node.round, node.prefetch, Slot::heap_bytes(node.round).saturating_add(ring(node))),
            Maker::Other(node) => {
                let held = [facts.index_bytes, ring(node), Slot::heap_bytes(shape), Batch::heap_bytes(layout, shape)];
                let held = held.into_iter().fold(0, u64::saturating_add);
                return if held <= memory { Ok(most) } else { Err(held) };
            }
        };
        let beside =
            [Slot::heap_bytes(shape), Batch::heap_bytes(layout, shape)].into_iter().fold(beside, u64::saturating_add);
        let heap_of =
            |threads: usize| loader_heap(facts, round, threads, prefetch).total_bytes().saturating_add(beside);
        threads_within(memory, &heap_of, most).ok_or_else(|| heap_of(1).saturating_add(stacks(1)))
    }
}
