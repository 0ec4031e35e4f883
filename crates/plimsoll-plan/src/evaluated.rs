//! What evaluation asks of the memory that training has anyway: the loss alone, and generation of a single prompt.

use crate::family;
use crate::op::Op;
use crate::outline::{Evaluated, is_loss};
use crate::place::aligned;
use crate::program::{Job, TapeJob, generation_floor, op_workspace, rows_of, store_of};
use crate::tape::Store;
use crate::uniform::{SAMPLES, Span, spans};

/// The tape of an evaluation, for any micro-batch.
pub(crate) struct Evaluation {
    store: Store,
    ops: Vec<Op>,
    spans: Vec<Span>,
    /// Words and workspace of generation.
    generation: (usize, usize),
}

impl Evaluation {
    /// None where nothing is evaluated during the run.
    pub fn of(job: &Job) -> Option<Evaluation> {
        let eval = job.eval?;
        let store = store_of(job, true);
        let shape = job.shape(SAMPLES);
        let tape_job =
            TapeJob { store: &store, train: &job.train, shape, parts: 1, clip: false, marked: false, by_block: false };
        let tape = family::eval_tape(&job.spec, &tape_job, 0);
        let generation = if eval.max_new > 0 { generation_floor(job, &store, eval) } else { (0, 0) };
        Some(Evaluation { spans: spans(&tape), ops: tape.ops, generation, store })
    }

    /// What it needs for a micro-batch.
    pub fn at(&self, job: &Job, samples: usize) -> Evaluated {
        let mut change = vec![0isize; self.ops.len() + 1];
        for span in &self.spans {
            let words = aligned(span.words(samples)) as isize;
            change[span.first] += words;
            change[span.last + 1] -= words;
        }
        let rows = rows_of(&job.shape(samples));
        let mut out = Evaluated { generation: self.generation.0, workspace: self.generation.1, ..Default::default() };
        let mut now = 0;
        for (op, change) in self.ops.iter().zip(change) {
            now += change;
            out.live = out.live.max(now as usize);
            if is_loss(op) {
                out.live_at_loss = now as usize;
            } else {
                out.workspace = out.workspace.max(op_workspace(op, job, &self.store, &rows));
            }
        }
        out
    }
}
