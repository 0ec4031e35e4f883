//! An outline of the training tapes: what they need and cost, with the loss chunk left open.
//!
//! `choose` weighs dozens of candidates, most of which differ only in the rows of logits that exist at a time. The logits
//! are touched by one op, so everything else about a tape is worked out once and kept as a few numbers.

use crate::choices::Choices;
use crate::cost::{Work, op_work};
use crate::family;
use crate::op::{MaxRows, Op};
use crate::place::{aligned, live};
use crate::program::{Job, op_workspace, rows_of, staging_words, store_places};
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
        let tape_job = job.tape_job(store, choices);
        let rows = rows_of(&tape_job.shape);
        let mut micro = family::micro_tape(&job.spec, &tape_job, choices);
        let update = (!choices.optimizer_in_backward).then(|| family::update_tape(store));
        let is_loss = |op: &Op| matches!(op, Op::Loss { .. });
        let logits: Vec<_> = micro
            .ops
            .iter()
            .filter_map(|op| if let Op::Loss { logits, .. } = op { micro.own(*logits) } else { None })
            .collect();
        logits.into_iter().for_each(|own| micro.tensors[own].words = 0);
        let live_now = live(&micro);
        let at_loss = micro.ops.iter().zip(&live_now).filter(|(op, _)| is_loss(op)).map(|(_, words)| *words);
        let live_at_loss = at_loss.max().unwrap_or(0);
        let loss = micro.ops.iter().find(|op| is_loss(op)).cloned().expect("training has a loss");
        micro.ops.retain(|op| !is_loss(op));
        let all = |tape: &Tape| {
            let mut total = Work::default();
            tape.ops.iter().for_each(|op| total.add(op_work(op, store, &rows)));
            total
        };
        let ops = micro.ops.iter().chain(update.iter().flat_map(|tape| &tape.ops));
        let shape = job.shape(job.staged(choices));
        Outline {
            held: store_places(store).1 + staging_words(&shape, None),
            live: live_now.iter().copied().max().unwrap_or(0),
            live_at_loss,
            workspace: ops.map(|op| op_workspace(op, job, store, &rows)).max().unwrap_or(0),
            micro: all(&micro).times(1.0 / tape_job.parts as f64),
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
