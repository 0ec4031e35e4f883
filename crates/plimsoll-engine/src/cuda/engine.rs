//! The engine on a card: the same surface as the CPU's, as far as that is natural. What is read or written from outside
//! is copied, so it is asked for piece by piece.

use plimsoll_plan::batch::BatchSlot;
use plimsoll_plan::device::{CudaForm, STEP_WORDS};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::op::Op;
use plimsoll_plan::program::{Placed, Program};
use plimsoll_plan::series_batch::SeriesSlot;

use super::call::{Step, words_of};
use super::card::{Address, Card, DeviceArena, Pinned, StreamEvent};
use super::error::CudaError;
use super::execute::{Machine, Run};
use super::graph::{self, GraphKey, Graphs};
use super::numbers::set_numbers;
use super::scale::{LossScale, Overflow};
use super::staged::Staged;
use super::start::CardUse;
use super::tables::{Addresses, Table};
use crate::engine::{SeriesHead, Updates};
use crate::error::EngineError;
use crate::step::{Loss, MicroStep, NotFinite, Open, Updated};

/// The tapes of a program, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Micro,
    Update,
    Eval,
}

pub(super) const ALL: [Which; 3] = [Which::Micro, Which::Update, Which::Eval];

/// What of an update is not on the card itself.
#[derive(Debug)]
pub(super) struct Way {
    /// Its numbers on their way to the card, and back from it.
    said: Pinned,
    /// When the card began it, and when its numbers are back.
    busy: [StreamEvent; 2],
    /// What the host counted, from its end until it is collected.
    ended: Option<Open>,
}

impl Way {
    pub fn new() -> Result<Way, CudaError> {
        let busy = [StreamEvent::new()?, StreamEvent::new()?];
        Ok(Way { said: Pinned::take(2 * STEP_WORDS)?, busy, ended: None })
    }
}

/// A running program on a card. Up to two updates are under way: the next may begin before the last is collected.
#[derive(Debug)]
pub struct CudaEngine {
    // Dropped in this order: what lies in the context before the context.
    pub(super) graphs: Graphs,
    pub(super) staged: Staged,
    /// For the update that is being launched and the one before it, in turn.
    pub(super) ways: [Way; 2],
    /// Which of them is the one that is being launched, or the next.
    pub(super) turn: usize,
    pub(super) arena: DeviceArena,
    pub(super) machine: Machine,
    pub(super) program: Program,
    pub(super) form: CudaForm,
    /// What the ops of each tape read besides tensors.
    pub(super) tables: [Vec<Table>; 3],
    pub(super) maps: Address,
    pub(super) updates: Option<Updates>,
    pub(super) open: Open,
    pub(super) scale: Option<LossScale>,
    pub(super) busy_seconds: f64,
    pub(super) eager: bool,
    pub(super) stepwise: bool,
    pub(super) used: CardUse,
}

impl Drop for CudaEngine {
    fn drop(&mut self) {
        // What is under way uses what goes now.
        let _ = self.machine.card.wait();
    }
}

pub(super) fn tape_of(program: &Program, which: Which) -> Option<&Placed> {
    match which {
        Which::Micro => program.micro.as_ref(),
        Which::Update => program.update.as_ref(),
        Which::Eval => program.eval.as_ref(),
    }
}

impl CudaEngine {
    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The card.
    pub fn card(&self) -> &Card {
        &self.machine.card
    }

    /// Memory of the card that is in use now, by us or anybody else.
    pub fn used_now(&self) -> Result<u64, EngineError> {
        Ok(self.machine.card.total() - self.machine.card.free()?)
    }

    /// Seconds that the card spent on updates so far.
    pub fn busy_seconds(&self) -> f64 {
        self.busy_seconds
    }

    /// Memory of the card, as it was measured at the start.
    pub fn used(&self) -> CardUse {
        self.used
    }

    /// Lends the batch to the loader.
    pub fn slot(&mut self) -> BatchSlot<'_> {
        self.staged.slot()
    }

    /// Lends the batch of a model of series to the loader.
    pub fn series_slot(&mut self) -> Result<SeriesSlot<'_>, EngineError> {
        self.staged.series_slot().ok_or(EngineError::NotPlanned { what: "series" })
    }

    /// What samples of an update are mixed by.
    fn mixed_by(&self, step: MicroStep) -> Option<(u64, u64)> {
        self.updates.as_ref().map(|updates| (updates.seed, step.update))
    }

    /// Launches forward and backward of the batch in the slot; with the optimizer in the backward pass, the update too. Does
    /// not wait for it: the slot may be filled again at once.
    pub fn micro_step(&mut self, step: MicroStep) -> Result<(), EngineError> {
        if self.program.micro.is_none() {
            return Err(EngineError::NotPlanned { what: "training" });
        }
        self.staged.lay_out(step.samples, step.first_sample, &self.program.spec, self.mixed_by(step))?;
        let tokens = self.staged.label_count();
        let first_micro = !self.open.begun;
        if first_micro {
            let words = self.numbers(step, tokens)?;
            self.ways[self.turn].busy[0].record(&self.machine.card)?;
            self.staged.send(&self.machine.card, &words)?;
        } else {
            self.staged.send_further(&self.machine.card)?;
        }
        self.run(Which::Micro, 0, first_micro)?;
        self.open.loss.tokens += tokens;
        self.open.begun = true;
        Ok(())
    }

    /// The loss over the micro-batches of the update that is under way; waits for them.
    pub fn loss_so_far(&self) -> Result<Loss, EngineError> {
        Ok(Loss { sum: self.after()?.loss_sum, ..self.open.loss })
    }

    /// Whether the tape of a micro-batch updates weights while gradients may still turn out not to be finite.
    fn updates_before_the_last_judgement(&self) -> bool {
        let Some(placed) = &self.program.micro else { return false };
        let ops = &placed.tape.ops;
        let update = ops.iter().position(|op| matches!(op, Op::Update { .. }));
        let judged = ops.iter().rposition(|op| matches!(op, Op::GradientNorm { .. }));
        matches!((update, judged), (Some(update), Some(judged)) if update < judged)
    }

    /// Launches the end of an update, from the summed gradients where they are kept. Does not wait for it: the next update may
    /// be begun at once, and ended once this one is collected.
    pub fn end_update(&mut self, step: MicroStep) -> Result<(), EngineError> {
        let at = self.staged.layout().step();
        assert!(self.ways[1 - self.turn].ended.is_none(), "the update before this one was collected");
        if self.program.update.is_some() {
            let words = self.numbers(step, self.open.loss.tokens)?;
            let said = &mut self.ways[self.turn].said;
            said.words_mut()[..STEP_WORDS].copy_from_slice(words_of(std::slice::from_ref(&words)));
            // What the card counted over the micro-batches stays.
            self.machine.card.send(at + 4 * MEAN as u64, &said.words()[MEAN..STEP_WORDS])?;
            self.run(Which::Update, 0, true)?;
        }
        let way = &mut self.ways[self.turn];
        self.machine.card.fetch(at, &mut way.said.words_mut()[STEP_WORDS..])?;
        way.busy[1].record(&self.machine.card)?;
        way.ended = Some(std::mem::take(&mut self.open));
        self.turn = 1 - self.turn;
        Ok(())
    }

    /// Whether the next update may begin before the last is collected: not where its loss scale comes of that.
    pub fn may_run_ahead(&self) -> bool {
        self.scale.is_none()
    }

    /// What came of the update that was ended; waits for it, not for one that was begun since.
    pub fn collect(&mut self) -> Result<Updated, EngineError> {
        let way = &mut self.ways[1 - self.turn];
        let mut open = way.ended.take().expect("an update was ended");
        way.busy[1].wait()?;
        self.busy_seconds += f64::from(way.busy[1].since(&way.busy[0])?);
        let after = step_of(&way.said.words()[STEP_WORDS..]);
        open.loss.sum = after.loss_sum;
        open.norm = after.squares.sqrt() * after.mean / f64::from(after.loss_scale);
        open.stopped = what(after.stopped);
        open.changed = match open.stopped {
            None => true,
            Some(NotFinite::Loss) => false,
            // A gradient that was found to be good was used before the next was looked at.
            Some(_) => self.program.update.is_none() && after.judged > 0 && self.updates_before_the_last_judgement(),
        };
        if let Some(scale) = &mut self.scale {
            match open.stopped {
                None => scale.went_well(),
                Some(NotFinite::Loss) => {}
                Some(_) => {
                    let of_scale = scale.overflowed() == Overflow::OfScale;
                    open.stopped = Some(if of_scale { NotFinite::ScaledGradient } else { NotFinite::Gradient });
                }
            }
        }
        Ok(open.close())
    }

    /// Ends an update and waits for it.
    pub fn finish_update(&mut self, step: MicroStep) -> Result<Updated, EngineError> {
        self.end_update(step)?;
        self.collect()
    }

    /// The loss scale of the next update; none where nothing is scaled.
    pub fn loss_scale(&self) -> Option<LossScale> {
        self.scale
    }

    /// Sets the loss scale, where there is one.
    pub fn set_loss_scale(&mut self, scale: LossScale) {
        self.scale = self.scale.map(|_| scale);
    }

    /// The loss of the batch in the slot, without dropout and without a trace.
    pub fn eval(&mut self, samples: usize) -> Result<Loss, EngineError> {
        if self.program.eval.is_none() {
            return Err(EngineError::NotPlanned { what: "evaluation" });
        }
        self.staged.lay_out(samples, 0, &self.program.spec, None)?;
        let tokens = self.staged.label_count();
        self.staged.send(&self.machine.card, &empty())?;
        for part in 0..samples.div_ceil(self.program.part_samples) {
            self.run(Which::Eval, part, true)?;
        }
        Ok(Loss { sum: self.after()?.loss_sum, tokens })
    }

    /// Answers of a head to the batch that was evaluated last, into `out`: as many as it has room for.
    pub fn read_answers(&self, of: SeriesHead, out: &mut [f32]) -> Result<(), EngineError> {
        let none = EngineError::NotPlanned { what: "such a head" };
        let placed = self.program.eval.as_ref();
        let Some((placed, answer)) = placed.and_then(|placed| Some((placed, of.answer(placed)?))) else {
            return Err(none);
        };
        if out.len() > self.program.part_samples * answer.outputs {
            return Err(none);
        }
        let from = Addresses { program: &self.program, placed, base: self.arena.base() }.of(answer.out);
        let dtype = placed.tape.own(answer.out).map_or(Dtype::F32, |own| placed.tape.tensors[own].dtype);
        self.read_numbers(dtype, from, out)
    }

    /// What all ops of an update read.
    fn numbers(&self, step: MicroStep, tokens: u64) -> Result<Step, EngineError> {
        let updates = self.updates.as_ref().ok_or(EngineError::NotPlanned { what: "an optimizer" })?;
        let mut words = empty();
        words.seed = updates.seed;
        words.update = step.update;
        words.mean = 1.0 / tokens.max(1) as f64;
        words.clip_norm = updates.clip_norm.unwrap_or(0.0);
        words.loss_scale = self.scale.map_or(1.0, |scale| scale.scale);
        words.grad_scale = (words.mean / f64::from(words.loss_scale)) as f32;
        set_numbers(&mut words, &updates.optimizer, step.update, step.lr);
        Ok(words)
    }

    /// The step's numbers as the card left them; waits for it.
    fn after(&self) -> Result<Step, EngineError> {
        let mut step = [empty()];
        self.machine.card.read(self.staged.layout().step(), &mut step)?;
        Ok(step[0])
    }

    /// One update on one micro-batch, op by op; `seen` gets the seconds of each. For benchmarks: it waits all the time.
    pub fn step_by_op(&mut self, step: MicroStep, mut seen: impl FnMut(&Op, f64)) -> Result<(), EngineError> {
        self.staged.lay_out(step.samples, step.first_sample, &self.program.spec, self.mixed_by(step))?;
        let words = self.numbers(step, self.staged.label_count())?;
        self.staged.send(&self.machine.card, &words)?;
        for which in [Which::Micro, Which::Update] {
            let key = self.key(which, 0, true);
            if let Some(mut run) = self.prepared(which, &key) {
                run.run_seen(&mut seen)?;
            }
        }
        Ok(())
    }

    /// What a run of a tape over the batch is launched, or captured, for.
    fn key(&self, which: Which, part: usize, first_micro: bool) -> GraphKey {
        let most = tape_of(&self.program, which).map_or((0, 0), |placed| most_rows(&self.program, placed));
        let rows = match which {
            Which::Update => vec![most],
            // Batches of series are whole but for the last one.
            _ if self.program.spec.series().is_some() => self.staged.rows().to_vec(),
            _ => self.staged.rows().iter().map(|r| (sized(r.0, most.0), sized(r.1, most.1))).collect(),
        };
        let exact = which != Which::Update && rows == self.staged.rows();
        // To the next power of two, so that few sizes come up.
        let documents = match which {
            Which::Update => 0,
            _ => self.staged.documents().next_power_of_two().min(most_documents(&self.program)),
        };
        GraphKey { tape: which as u8, rows, documents, first_micro, part, exact }
    }

    fn prepared<'a>(&'a mut self, which: Which, key: &'a GraphKey) -> Option<Run<'a>> {
        Some(Run {
            machine: &mut self.machine,
            program: &self.program,
            placed: tape_of(&self.program, which)?,
            tables: &self.tables[which as usize],
            maps: self.maps,
            layout: self.staged.layout(),
            base: self.arena.base(),
            form: self.form,
            optimizer: self.updates.as_ref().map(|updates| &updates.optimizer),
            rows: &key.rows,
            documents: key.documents,
            part: key.part,
            first_micro: key.first_micro,
            exact: key.exact,
            stepwise: self.stepwise,
            rehearsal: false,
        })
    }

    fn run(&mut self, which: Which, part: usize, first_micro: bool) -> Result<(), EngineError> {
        let key = self.key(which, part, first_micro);
        if self.graphs.launch(&self.machine.card, &key)? {
            return Ok(());
        }
        let Some(mut run) = self.prepared(which, &key) else { return Ok(()) };
        let ops = run.launches();
        let eager = self.eager || !self.graphs.has_room(ops);
        let Some(mut run) = self.prepared(which, &key) else { return Ok(()) };
        if eager {
            return Ok(run.run()?);
        }
        graph::begin(&run.machine.card)?;
        if let Err(e) = run.run() {
            graph::abandon(&self.machine.card);
            return Err(e.into());
        }
        if self.graphs.keep(&self.machine.card, key.clone(), ops)? {
            self.graphs.launch(&self.machine.card, &key)?;
        } else if let Some(mut run) = self.prepared(which, &key) {
            run.run()?;
        }
        Ok(())
    }
}

/// Rows of a part at most, source and target; of series, samples.
pub(super) fn most_rows(program: &Program, placed: &Placed) -> (usize, usize) {
    match program.spec.series() {
        Some(_) => (placed.rows.samples, placed.rows.samples),
        None => (placed.rows.source, placed.rows.target),
    }
}

/// Documents of a part at most.
pub(super) fn most_documents(program: &Program) -> usize {
    program.part_samples * program.shape.documents
}

/// Rows that launches are sized for: in eight steps up to the most, so that few sizes come up.
fn sized(rows: usize, most: usize) -> usize {
    let grain = most.div_ceil(8).next_multiple_of(64);
    rows.max(1).next_multiple_of(grain).min(most)
}

/// No numbers.
fn empty() -> Step {
    Step {
        seed: 0,
        update: 0,
        first_micro: 1,
        stopped: 0,
        loss_sum: 0.0,
        squares: 0.0,
        mean: 1.0,
        clip_norm: 0.0,
        norm: 0.0,
        grad_scale: 1.0,
        loss_scale: 1.0,
        numbers: [0.0; 16],
        rates: [0.0; 8],
        judged: 0,
        unused: [0; 13],
    }
}

/// The first of a step's words that an update's end says anew: what is before it the card has counted.
const MEAN: usize = std::mem::offset_of!(Step, mean) / 4;

/// A step out of its words.
fn step_of(words: &[u32]) -> Step {
    assert_eq!(words.len(), STEP_WORDS);
    // SAFETY: as many words as a step has, all of whose bits are numbers.
    unsafe { words.as_ptr().cast::<Step>().read_unaligned() }
}

fn what(code: u32) -> Option<NotFinite> {
    match code {
        0 => None,
        1 => Some(NotFinite::Loss),
        _ => Some(NotFinite::Gradient),
    }
}
