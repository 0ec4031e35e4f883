//! Captured tapes: the launches of one run as a graph that the card starts by itself.
//!
//! A graph serves every batch of about the same number of rows; rows are read from the card's memory. Few are kept.

use std::collections::HashMap;

use cudarc::driver::result;
use cudarc::driver::sys;

use super::card::{Card, said};
use super::error::CudaError;

/// What a graph was captured for: which tape, the rows and documents it is sized for, whether gradients are set or added to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GraphKey {
    pub tape: u8,
    pub rows: Vec<(usize, usize)>,
    /// Documents of a part that it is sized for.
    pub documents: usize,
    pub first_micro: bool,
    pub part: usize,
    /// There are exactly as many rows as it is sized for.
    pub exact: bool,
}

/// Graphs by what they were captured for.
#[derive(Debug)]
pub(crate) struct Graphs {
    made: HashMap<GraphKey, sys::CUgraphExec>,
    /// Ops of all of them, and at most.
    ops: usize,
    most_ops: usize,
    /// One could not be made: no more are tried.
    closed: bool,
}

// SAFETY: handles of the driver are good in every thread.
unsafe impl Send for Graphs {}

/// Graphs kept at most; batches of other sizes are launched op by op.
const MOST: usize = 24;

impl Graphs {
    /// None yet, and of no more ops than the plan has memory for.
    pub fn of_at_most(most_ops: usize) -> Graphs {
        Graphs { made: HashMap::new(), ops: 0, most_ops, closed: false }
    }

    /// Whether another graph, of so many ops, may be captured.
    pub fn has_room(&self, ops: usize) -> bool {
        !self.closed && self.made.len() < MOST && self.ops + ops <= self.most_ops
    }

    /// Starts the graph, if there is one.
    pub fn launch(&self, card: &Card, key: &GraphKey) -> Result<bool, CudaError> {
        let Some(graph) = self.made.get(key) else { return Ok(false) };
        // SAFETY: a graph of ours on our stream.
        said("cuGraphLaunch", unsafe { result::graph::launch(*graph, card.stream) })?;
        Ok(true)
    }

    /// Keeps a graph of everything that was launched since [`begin`], of so many ops. Where the card has no memory for it,
    /// nothing is kept, and the answer is no.
    pub fn keep(&mut self, card: &Card, key: GraphKey, ops: usize) -> Result<bool, CudaError> {
        // SAFETY: our stream, which captures.
        let graph = said("cuStreamEndCapture", unsafe { result::stream::end_capture(card.stream) })?;
        // SAFETY: a graph that was just made.
        let made = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: what it was instantiated from is needed no more.
        let _ = unsafe { result::graph::destroy(graph) };
        let Ok(made) = made else {
            self.closed = true;
            return Ok(false);
        };
        self.made.insert(key, made);
        self.ops += ops;
        Ok(true)
    }
}

/// From here on launches are recorded, not done.
pub(crate) fn begin(card: &Card) -> Result<(), CudaError> {
    let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: our stream.
    said("cuStreamBeginCapture", unsafe { result::stream::begin_capture(card.stream, mode) })
}

/// Drops what was recorded, after a fault.
pub(crate) fn abandon(card: &Card) {
    // SAFETY: our stream; a graph that comes out is ours.
    unsafe {
        if let Ok(graph) = result::stream::end_capture(card.stream) {
            let _ = result::graph::destroy(graph);
        }
    }
}

impl Drop for Graphs {
    fn drop(&mut self) {
        for graph in self.made.values() {
            // SAFETY: ours, and nothing runs any more.
            let _ = unsafe { result::graph::exec_destroy(*graph) };
        }
    }
}
