//! An outline of the training tapes: what they need and cost, with the loss chunk left open.
//!
//! `choose` weighs dozens of candidates, most of which differ only in the rows of logits that exist at a time. The logits
//! are touched by one op, so everything else about a tape is worked out once and kept as a few numbers.

use crate::batch::BatchShape;
use crate::cost::{Work, op_work};
use crate::op::{MaxRows, Op};
use crate::place::{aligned, live};
use crate::program::{Job, op_workspace, rows_of, staging_words, store_places};
use crate::t5::{self, Choices};
use crate::tape::{Store, Tape};

/// The training tapes of a job as numbers.
pub struct Outline {
    /// Words of the store and of the batch.
    held: usize,
    /// Words live at the busiest op, the logits aside.
    live: usize,
    /// Words live at the loss, the logits aside.
    live_at_loss: usize,
    /// Workspace of the hungriest op, the loss aside.
    workspace: usize,
    /// Work of a micro-batch, the loss aside, and of the update where it is apart.
    micro: Work,
    update: Work,
    loss: Op,
    rows: MaxRows,
}

impl Outline {
    /// Goes through the tapes of these choices once; `store` is theirs.
    pub fn of(job: &Job, store: &Store, choices: &Choices) -> Outline {
        let shape = BatchShape {
            samples: choices.micro_batch,
            source_len: job.source_len,
            target_len: job.target_len,
            documents: 1,
        };
        let rows = rows_of(&shape);
        let mut micro = t5::micro_tape(&job.spec, store, shape, choices);
        let update = (!choices.optimizer_in_backward).then(|| t5::update_tape(store));
        let at = micro.ops.iter().position(|op| matches!(op, Op::Loss { .. })).expect("training has a loss");
        if let Op::Loss { logits, .. } = micro.ops[at]
            && let Some(own) = micro.own(logits)
        {
            micro.tensors[own].words = 0;
        }
        let (live_now, loss) = (live(&micro), micro.ops.remove(at));
        let all = |tape: &Tape| {
            let mut total = Work::default();
            tape.ops.iter().for_each(|op| total.add(op_work(op, store, &rows)));
            total
        };
        let ops = micro.ops.iter().chain(update.iter().flat_map(|tape| &tape.ops));
        Outline {
            held: store_places(store).1 + staging_words(&shape, None),
            live: live_now.iter().copied().max().unwrap_or(0),
            live_at_loss: live_now[at],
            workspace: ops.map(|op| op_workspace(op, job, store, &rows)).max().unwrap_or(0),
            micro: all(&micro),
            update: update.as_ref().map_or(Work::default(), all),
            loss,
            rows,
        }
    }

    fn loss(&self, rows_at_a_time: usize) -> (Op, usize) {
        let mut op = self.loss.clone();
        let Op::Loss { chunk, vocab, .. } = &mut op else { unreachable!("an outline holds the loss") };
        *chunk = rows_at_a_time;
        let logits = aligned(rows_at_a_time * *vocab);
        (op, logits)
    }

    /// A lower bound of the arena, without placing: what is live at the busiest op.
    pub fn least(&self, job: &Job, store: &Store, loss_chunk: usize) -> usize {
        let (op, logits) = self.loss(loss_chunk);
        let workspace = self.workspace.max(op_workspace(&op, job, store, &self.rows));
        self.held + self.live.max(self.live_at_loss + logits) + aligned(workspace)
    }

    /// Work of one update: every micro-batch, and the update where it is apart.
    pub fn work(&self, store: &Store, loss_chunk: usize, accumulation: usize) -> Work {
        let mut total = self.micro;
        total.add(op_work(&self.loss(loss_chunk).0, store, &self.rows));
        let mut total = total.times(accumulation as f64);
        total.add(self.update);
        total
    }
}
