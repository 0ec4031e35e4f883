//! Training tapes in which every block keeps the same, reduced to what outlines ask: the ops, their stages, and from where
//! to where each tensor lives.
//!
//! They are written once for all micro-batches: ops name no rows, and the words of a tensor either grow with the samples
//! or do not.

use std::cell::OnceCell;

use crate::choices::{Choices, KEEPS, Keep};
use crate::family;
use crate::op::{MaxRows, Op};
use crate::program::{Job, TapeJob, rows_of};
use crate::spec::ModelSpec;
use crate::tape::{Role, Store, Tape, Tensor};
use crate::tiles::Tiles;

/// Samples that tapes are written for: so many that what grows with them can be told from what does not. Gradients never
/// do; the only activations that do not (tables of positions) have fewer words than this.
pub(crate) const SAMPLES: usize = 1 << 26;

/// From where to where a tensor lives, and its words.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub first: usize,
    pub last: usize,
    fixed: usize,
    each: usize,
}

impl Span {
    /// Words for a micro-batch of so many samples.
    pub fn words(&self, samples: usize) -> usize {
        self.fixed + self.each * samples
    }
}

/// The ops of one part in one stage.
pub(crate) struct Segment {
    pub stage: usize,
    pub nth: usize,
    pub ops: std::ops::Range<usize>,
}

/// One such tape.
pub(crate) struct Uniform {
    pub ops: Vec<Op>,
    /// Stage of each op.
    pub stage: Vec<u32>,
    pub segments: Vec<Segment>,
    pub spans: Vec<Span>,
    pub parts: usize,
}

impl Uniform {
    /// Stages of the tape: the forward pass, and each step of the backward sweeps.
    pub fn stages(&self) -> usize {
        self.segments.last().map_or(0, |s| s.stage + 1)
    }

    fn of(job: &Job, store: &Store, parts: usize, keep: Keep) -> Uniform {
        let blocks = job.spec.blocks();
        let choices = Choices {
            micro_batch: SAMPLES,
            recompute: if keep == Keep::Input { blocks } else { 0 },
            recompute_attention: if keep == Keep::NoAttention { blocks } else { 0 },
            recompute_feed_forward: 0,
            loss_chunk: 0,
            optimizer_in_backward: store.gradients.iter().all(Option::is_none),
            loader_threads: 1,
            lean: false,
            keep_norms: false,
            lstm_every: 0,
        };
        let shape = job.shape(SAMPLES);
        let (clip, marked, by_block) = (job.clip, true, false);
        let tape_job = TapeJob { store, train: &job.train, shape, parts, clip, marked, by_block };
        let tape = family::micro_tape(&job.spec, &tape_job, &choices);
        Uniform::reduced(tape, parts)
    }

    fn reduced(tape: Tape, parts: usize) -> Uniform {
        let mut segments: Vec<Segment> = Vec::new();
        for (at, op) in tape.ops.iter().enumerate() {
            if let Op::Part { nth } = op {
                let stage = segments.last().map_or(0, |s| s.stage + usize::from(*nth == 0));
                // What stands before the first mark belongs to it.
                let begin = segments.last_mut().map_or(0, |s| {
                    s.ops.end = at;
                    at
                });
                segments.push(Segment { stage, nth: *nth, ops: begin..tape.ops.len() });
            }
        }
        let mut stage = vec![0; tape.ops.len()];
        for segment in &segments {
            stage[segment.ops.clone()].fill(segment.stage as u32);
        }
        Uniform { stage, segments, spans: spans(&tape), parts, ops: tape.ops }
    }
}

/// From where to where each tensor of a tape for `SAMPLES` lives.
pub(crate) fn spans(tape: &Tape) -> Vec<Span> {
    let lives = tape.lifetimes().into_iter().zip(&tape.tensors);
    let span = |(span, tensor): (Option<(usize, usize)>, &Tensor)| {
        let (first, last) = span?;
        let (fixed, each) = match tensor.role {
            Role::Gradient => (tensor.words, 0),
            _ => (tensor.words % SAMPLES, tensor.words / SAMPLES),
        };
        Some(Span { first, last, fixed, each })
    };
    lives.filter_map(span).collect()
}

/// The uniform tapes of one way to update, written when they are asked for.
pub(crate) struct Way {
    pub in_backward: bool,
    pub tiles: Tiles,
    /// Workspace that the update and what is stored in other forms need.
    pub workspace: usize,
    tapes: [[OnceCell<Uniform>; 3]; 4],
}

impl Way {
    pub fn new(in_backward: bool, tiles: Tiles, workspace: usize) -> Way {
        Way { in_backward, tiles, workspace, tapes: Default::default() }
    }

    /// The tape of one to four parts.
    pub fn uniform(&self, job: &Job, store: &Store, parts: usize, keep: Keep) -> &Uniform {
        let nth = KEEPS.iter().position(|k| *k == keep).unwrap_or(0);
        self.tapes[parts - 1][nth].get_or_init(|| Uniform::of(job, store, parts, keep))
    }

    /// Rows of a part.
    pub fn rows(&self, job: &Job, samples: usize) -> MaxRows {
        rows_of(&job.shape(samples))
    }
}

/// The block of each stage, where it has one: the forward pass, then the sweeps from the last block to the first.
pub(crate) fn stage_blocks(spec: &ModelSpec, two_sweeps: bool) -> Vec<Option<usize>> {
    let down = |from: usize, to: usize| (from..to).rev().map(Some);
    let mut stages = vec![None];
    for sweep in 0..=usize::from(two_sweeps) {
        match spec {
            ModelSpec::Decoder(spec) => {
                stages.push(None);
                stages.extend(down(0, spec.layers));
                // The embedding.
                stages.extend((sweep == 0).then_some(None));
            }
            ModelSpec::T5(spec) => {
                let encoders = spec.encoder_layers;
                for (from, to) in [(encoders, encoders + spec.decoder_layers), (0, encoders)] {
                    stages.push(None);
                    stages.extend(down(from, to));
                    stages.extend((sweep == 0).then_some(None));
                }
            }
            ModelSpec::Series(_) => unreachable!("series have no outlines: their few candidates are placed"),
        }
    }
    stages
}
