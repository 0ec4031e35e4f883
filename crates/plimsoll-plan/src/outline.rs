//! Outlines of training tapes: what a candidate needs and costs, without writing its tape.
//!
//! `choose` weighs thousands of candidates. They differ in what each block keeps, in the micro-batch, in the number of
//! parts and in the rows of logits that exist at a time; the ops of a block depend on what that block keeps alone. So a
//! few tapes are written in which all blocks keep the same (`uniform`), and every mixture is put together from their
//! stages: the forward pass, then each step of the backward sweep. Beyond four parts a tape is four parts and repetition.
//!
//! The bound is what is live at the busiest op, to the word; placing needs that or, seldom, a little more.

use crate::choices::{Choices, KEEPS, Keep};
use crate::cost::{Scale, Work};
use crate::op::Op;
use crate::place::aligned;
use crate::program::{Job, op_workspace, staging_of, store_places};
use crate::tape::Store;
use crate::uniform::{Uniform, Way, stage_blocks};

/// Parts that are written out; what is beyond repeats.
const WRITTEN: usize = 4;

/// What one way to keep makes of each stage.
#[derive(Clone, Default)]
struct Stages {
    /// Words at the busiest op of each stage, without what is kept for later ones.
    inner: Vec<usize>,
    /// Words that the forward pass left for each stage and none behind it.
    kept: Vec<usize>,
    work: Vec<Work>,
    /// Words that the last part's forward pass keeps beyond what it would if blocks kept their input alone: from which
    /// op on, for which stage, how many.
    extra: Vec<(usize, usize, isize)>,
}

/// The training tapes of one micro-batch size and number of parts, as numbers.
pub(crate) struct Outline {
    /// Words of the store and of the batch.
    held: usize,
    /// Workspace of the hungriest op, the loss aside.
    workspace: usize,
    /// By way to keep, as in `KEEPS`.
    ways: [Stages; 3],
    /// The block of each stage.
    blocks: Vec<Option<usize>>,
    parts: usize,
    /// Words live at each op of the last part's forward pass where blocks keep their input alone.
    forward: Vec<usize>,
    loss_at: usize,
    /// Of the first part, and of those behind it.
    losses: [Op; 2],
    /// The update's, where it is apart.
    update: Work,
    /// Micro-batches of an update that are not on the tape.
    repeats: usize,
    eval: Option<Evaluated>,
}

/// What evaluation needs of the same memory.
#[derive(Clone, Copy, Default)]
pub(crate) struct Evaluated {
    /// Words live at its busiest op, and at its loss without the logits.
    pub live: usize,
    pub live_at_loss: usize,
    /// Words that generation takes for a single prompt.
    pub generation: usize,
    pub workspace: usize,
}

/// What a candidate comes to.
#[derive(Clone, Copy)]
pub(crate) struct Judged {
    /// Words live, the loss aside; and at the loss, without the logits.
    live: usize,
    live_at_loss: usize,
    work: Work,
}

impl Outline {
    /// From the uniform tapes of one way to update. `job` and `store` are theirs.
    pub fn of(
        job: &Job,
        store: &Store,
        way: &Way,
        choices: &Choices,
        update: Work,
        eval: Option<Evaluated>,
    ) -> Outline {
        let samples = choices.micro_batch;
        let accumulation = job.effective_batch / samples;
        let (parts, repeats) = if choices.optimizer_in_backward { (accumulation, 1) } else { (1, accumulation) };
        let scale = Scale { store, rows: way.rows(job, samples), tiles: way.tiles, threads: job.threads };
        let few = |parts: usize| KEEPS.map(|keep| Few::of(way.uniform(job, store, parts, keep), samples, &scale));
        let ways = if parts <= WRITTEN {
            few(parts)
        } else {
            let (low, high) = (few(WRITTEN - 1), few(WRITTEN));
            let further = (parts - WRITTEN) as isize;
            std::array::from_fn(|i| Few::beyond(&low[i], &high[i], further))
        };
        let [_, _, least] = &ways;
        let (forward, loss_at, losses) = (least.forward.clone(), least.loss_at, least.losses.clone());
        let all = |i: usize| Stages {
            inner: ways[i].inner(),
            kept: ways[i].kept.iter().map(|k| *k as usize).collect(),
            work: ways[i].work.clone(),
            extra: extra(&ways[i], least),
        };
        let stages = [all(0), all(1), all(2)];
        let ops = way.uniform(job, store, 1.min(parts), Keep::All);
        let space = |op: &Op| op_workspace(op, job, store, &scale.rows);
        let workspace = ops.ops.iter().filter(|op| !is_loss(op)).map(space).max().unwrap_or(0).max(way.workspace);
        Outline {
            held: store_places(store).1 + staging_of(&job.spec, &job.shape(job.staged(choices)), None),
            workspace,
            ways: stages,
            blocks: stage_blocks(&job.spec, way.in_backward && job.clip),
            parts,
            forward: forward.into_iter().map(|w| w as usize).collect(),
            loss_at,
            losses,
            update,
            repeats,
            eval,
        }
    }

    /// What these choices come to, whatever their loss chunk.
    pub fn judge(&self, choices: &Choices) -> Judged {
        let way = |stage: usize| self.blocks[stage].map_or(0, |block| choices.keep(block) as usize);
        let mut later = 0;
        let (mut live, mut work) = (0, Work::default());
        for stage in (0..self.blocks.len()).rev() {
            let of = &self.ways[way(stage)];
            work += of.work[stage];
            if stage > 0 {
                live = live.max(of.inner[stage] + later);
                later += of.kept[stage];
            }
        }
        // The earlier parts keep all of theirs, the last one op by op.
        let mut kept = 0;
        for (nth, stages) in self.ways[..2].iter().enumerate() {
            let mine = stages.extra.iter().filter(|(_, stage, _)| way(*stage) == nth);
            kept += mine.map(|(.., words)| words).sum::<isize>() * (self.parts as isize - 1);
        }
        let mut at = [0usize; 2];
        let mut live_at_loss = 0;
        for (op, words) in self.forward.iter().enumerate() {
            for (nth, at) in at.iter_mut().enumerate() {
                while let Some((from, stage, words)) = self.ways[nth].extra.get(*at).filter(|e| e.0 <= op) {
                    debug_assert!(*from <= op);
                    kept += if way(*stage) == nth { *words } else { 0 };
                    *at += 1;
                }
            }
            let now = (*words as isize + kept) as usize;
            live = live.max(now);
            if op == self.loss_at {
                live_at_loss = now;
            }
        }
        Judged { live, live_at_loss, work }
    }

    /// The loss of the first part, and of those behind it, so many rows at a time; and the words of their logits.
    fn losses(&self, rows_at_a_time: usize) -> ([Op; 2], usize) {
        let mut logits = 0;
        let ops = self.losses.clone().map(|mut op| {
            let Op::Loss { chunk, vocab, .. } = &mut op else { unreachable!("an outline holds the loss") };
            *chunk = rows_at_a_time;
            logits = aligned(rows_at_a_time * *vocab);
            op
        });
        (ops, logits)
    }

    /// A lower bound of the arena, without placing: what is live at the busiest op.
    pub fn least(&self, judged: &Judged, job: &Job, scale: &Scale, loss_chunk: usize) -> usize {
        let ([op, _], logits) = self.losses(loss_chunk);
        let mut workspace = self.workspace.max(op_workspace(&op, job, scale.store, &scale.rows));
        let mut live = judged.live.max(judged.live_at_loss + logits);
        if let Some(eval) = &self.eval {
            live = live.max(eval.live).max(eval.live_at_loss + logits).max(eval.generation);
            workspace = workspace.max(eval.workspace);
        }
        self.held + aligned(live) + aligned(workspace)
    }

    /// Work of one update: every micro-batch, and the update where it is apart.
    pub fn work(&self, judged: &Judged, scale: &Scale, loss_chunk: usize) -> Work {
        let ([first, later], _) = self.losses(loss_chunk);
        let loss = scale.work(&first) + scale.work(&later) * (self.parts - 1) as f64;
        (judged.work + loss) * self.repeats as f64 + self.update
    }
}

pub(crate) fn is_loss(op: &Op) -> bool {
    matches!(op, Op::Loss { .. } | Op::LossOnly { .. })
}

/// Where a tape keeps more than the one of least memory does.
fn extra(more: &Few, least: &Few) -> Vec<(usize, usize, isize)> {
    let mut list = Vec::new();
    for (a, b) in more.ends.iter().zip(&least.ends) {
        match (a.stage, b.stage) {
            // It is kept here, and dead behind its last touch of the forward pass there.
            (stage, 0) if stage > 0 => list.push((b.op + 1, stage, a.words as isize)),
            (0, stage) if stage > 0 => list.push((a.op + 1, stage, -(a.words as isize))),
            _ => {}
        }
    }
    list.sort_unstable_by_key(|(from, ..)| *from);
    list
}

/// The last touch of a tensor of the last part's forward pass.
#[derive(Clone, Copy)]
struct End {
    stage: usize,
    /// Within the last part's forward pass, where it is its last.
    op: usize,
    words: usize,
}

/// A uniform tape at one micro-batch size.
#[derive(Clone)]
struct Few {
    /// Words live at each op of each stage, but of the forward pass: of the first two parts and of the last two.
    live: Vec<Vec<isize>>,
    forward: Vec<isize>,
    loss_at: usize,
    losses: [Op; 2],
    /// Words that the forward pass left for each stage.
    kept: Vec<isize>,
    work: Vec<Work>,
    ends: Vec<End>,
}

impl Few {
    fn of(tape: &Uniform, samples: usize, scale: &Scale) -> Few {
        let stages = tape.stages();
        let mut change = vec![0isize; tape.ops.len() + 1];
        let mut kept = vec![0isize; stages];
        let mut ends = Vec::new();
        let last = tape.segments.iter().rfind(|s| s.stage == 0).expect("a tape has a forward pass").ops.clone();
        for span in &tape.spans {
            let words = aligned(span.words(samples));
            change[span.first] += words as isize;
            change[span.last + 1] -= words as isize;
            let (born, dies) = (tape.stage[span.first] as usize, tape.stage[span.last] as usize);
            if born == 0 {
                kept[dies] += words as isize;
                if last.contains(&span.first) {
                    ends.push(End { stage: dies, op: span.last.saturating_sub(last.start), words });
                }
            }
        }
        kept[0] = 0;
        let mut now = 0;
        let live: Vec<isize> = change[..tape.ops.len()]
            .iter()
            .map(|c| {
                now += c;
                now
            })
            .collect();
        let mut by_stage = vec![Vec::new(); stages];
        // What is live changes evenly from part to part, but for the first and the last: the second and the last but one are
        // the ends between which it does.
        let parts = tape.parts;
        for nth in [0, 1.min(parts - 1), parts.saturating_sub(2), parts - 1] {
            for segment in tape.segments.iter().filter(|s| s.stage > 0 && s.nth == nth) {
                by_stage[segment.stage].extend_from_slice(&live[segment.ops.clone()]);
            }
        }
        let mut work = vec![Work::default(); stages];
        for (op, stage) in tape.ops.iter().zip(&tape.stage).filter(|(op, _)| !is_loss(op)) {
            work[*stage as usize] += scale.work(op);
        }
        let loss_at = tape.ops[last.clone()].iter().position(is_loss).expect("training has a loss");
        let first = tape.ops.iter().find(|op| is_loss(op)).expect("training has a loss");
        let losses = [first.clone(), tape.ops[last.start + loss_at].clone()];
        Few { live: by_stage, forward: live[last].to_vec(), loss_at, losses, kept, work, ends }
    }

    /// The same with so many more parts than the higher of two has.
    fn beyond(low: &Few, high: &Few, further: isize) -> Few {
        let line = |low: &[isize], high: &[isize]| -> Vec<isize> {
            debug_assert_eq!(low.len(), high.len());
            low.iter().zip(high).map(|(l, h)| h + (h - l) * further).collect()
        };
        let work = low.work.iter().zip(&high.work).map(|(l, h)| *h + (*h - *l) * further as f64);
        Few {
            live: low.live.iter().zip(&high.live).map(|(l, h)| line(l, h)).collect(),
            forward: line(&low.forward, &high.forward),
            kept: line(&low.kept, &high.kept),
            work: work.collect(),
            ..high.clone()
        }
    }

    /// The busiest op of each stage, without what is kept for later stages.
    fn inner(&self) -> Vec<usize> {
        let mut later = 0;
        let mut inner = vec![0; self.live.len()];
        for stage in (1..self.live.len()).rev() {
            let most = self.live[stage].iter().copied().max().unwrap_or(0);
            inner[stage] = (most - later).max(0) as usize;
            later += self.kept[stage];
        }
        inner
    }
}

#[cfg(test)]
mod outline_test;
