//! The engine: takes the arena, runs the tapes of its program.
//!
//! Everything it does to memory was placed by the plan. It runs on the pool that it is started in (`with_cores`).

use plimsoll_plan::batch::BatchSlot;
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::op::{Answer, Op, SeriesOp};
use plimsoll_plan::program::{LOAD_WORDS, Placed, Program};
use plimsoll_plan::series_batch::SeriesSlot;
use plimsoll_plan::spec::ModelSpec;
use plimsoll_plan::train::OptimizerSpec;
use rayon::prelude::*;

use crate::arena::Arena;
use crate::cpu::Cores;
use crate::cpu::weights::{Weights, encode};
use crate::error::EngineError;
use crate::execute::Frame;
use crate::series_staging::SeriesStaging;
use crate::staging::Staging;
use crate::step::{Loss, MicroStep, Open, Updated};

/// Weights that one thread looks at in one go.
const PART: usize = 1 << 16;

/// How weights are updated.
#[derive(Clone, Debug, PartialEq)]
pub struct Updates {
    /// The optimizer.
    pub optimizer: OptimizerSpec,
    /// Gradients longer than this are shortened to it.
    pub clip_norm: Option<f64>,
    /// Key of every random number.
    pub seed: u64,
}

/// A head of a model of series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesHead {
    /// Which class.
    Classes,
    /// How sure it is of the class.
    Confidence,
    /// Which values.
    Values,
}

impl SeriesHead {
    /// Where the evaluation's tape leaves its answers: the loss, which is its last op, reads them.
    pub(crate) fn answer(self, placed: &Placed) -> Option<Answer> {
        let Some(Op::Series(SeriesOp::Loss { classes, confidence, values, .. })) = placed.tape.ops.last() else {
            return None;
        };
        match self {
            SeriesHead::Classes => *classes,
            SeriesHead::Confidence => *confidence,
            SeriesHead::Values => *values,
        }
    }
}

/// A running program.
#[derive(Debug)]
pub struct Engine {
    pub(crate) program: Program,
    pub(crate) arena: Arena,
    pub(crate) staging: Staging,
    /// The batch of a model of series.
    series: Option<SeriesStaging>,
    pub(crate) cores: Cores,
    updates: Option<Updates>,
    /// The update that is under way.
    open: Open,
}

impl Engine {
    /// Takes the memory of the program, whole. `updates` may be none for a program without training.
    pub fn start(program: Program, updates: Option<Updates>) -> Result<Engine, EngineError> {
        let arena = Arena::take(program.parts.words())?;
        assert_eq!(rayon::current_num_threads(), program.threads, "the engine runs on the planned number of threads");
        let parts = program.parts;
        let at = parts.store + parts.transient + parts.workspace;
        // SAFETY: inside the arena.
        let base = unsafe { arena.base().add(at) }.cast();
        let windows = program.spec.series().map(|spec| spec.batch(program.shape.samples));
        // SAFETY: the staging part of our arena, which no tensor overlaps, is one or the other's.
        let (staging, series) = unsafe {
            let series = windows.map(|shape| SeriesStaging::new(base, parts.staging, shape));
            let tokens = if series.is_some() { 0 } else { parts.staging };
            (Staging::new(base, tokens, program.shape), series)
        };
        let cores = Cores { simd: program.simd, threads: program.threads };
        Ok(Engine { program, arena, staging, series, cores, updates, open: Open::default() })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// A parameter that is stored in f32, by its index.
    pub fn param(&self, index: usize) -> &[f32] {
        let place = &self.program.store.params[index];
        assert_eq!(self.dtype(index), Dtype::F32, "`{}` is plain numbers", place.param.name);
        self.persistent(place.weight.0 as usize, place.offset, place.param.elements())
    }

    /// A parameter that is stored in f32, to fill.
    pub fn param_mut(&mut self, index: usize) -> &mut [f32] {
        let place = &self.program.store.params[index];
        assert_eq!(self.dtype(index), Dtype::F32, "`{}` is plain numbers", place.param.name);
        let (id, offset, len) = (place.weight.0 as usize, place.offset, place.param.elements());
        self.persistent_mut(id, offset, len)
    }

    /// How a parameter is stored.
    pub fn dtype(&self, index: usize) -> Dtype {
        self.program.store.dtype(self.program.store.params[index].weight)
    }

    /// A parameter's bytes as they are stored, where its storage is exact.
    pub fn param_bytes(&self, index: usize) -> &[u8] {
        let store = &self.program.store;
        let place = &store.params[index];
        let width = match self.dtype(index) {
            Dtype::F32 => 4,
            Dtype::Bf16 | Dtype::F16 => 2,
            Dtype::Int8 | Dtype::Nf4 => panic!("a quantised parameter is never saved"),
        };
        let id = place.weight.0 as usize;
        let words = self.persistent(id, 0, store.tensors[id].words);
        // SAFETY: any four bytes of f32 are four bytes.
        let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 4) };
        &bytes[place.offset * width..][..place.param.elements() * width]
    }

    /// Elements of a parameter from `first` on, widened.
    pub fn read_param(&self, index: usize, first: usize, out: &mut [f32]) {
        let store = &self.program.store;
        let place = &store.params[index];
        let id = place.weight.0 as usize;
        let words = self.persistent(id, 0, store.tensors[id].words);
        let weights = Weights::new(words, self.dtype(index), store.elements[id]);
        weights.decode(self.cores.simd, place.offset + first, out);
    }

    /// Fills a parameter from `read(first element, numbers)`: at once where it is stored in f32, else a stretch at a time.
    pub fn fill_param<E>(
        &mut self,
        index: usize,
        mut read: impl FnMut(usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let dtype = self.dtype(index);
        if dtype == Dtype::F32 {
            return read(0, self.param_mut(index));
        }
        let (store, parts) = (&self.program.store, self.program.parts);
        let place = &store.params[index];
        let (id, offset, len) = (place.weight.0 as usize, place.offset, place.param.elements());
        let (elements, words) = (store.elements[id], store.tensors[id].words);
        let simd = self.cores.simd;
        // SAFETY: the workspace part of our arena, which no tensor overlaps; no op runs while `&mut self` is held.
        let stretch =
            unsafe { std::slice::from_raw_parts_mut(self.arena.base().add(parts.store + parts.transient), LOAD_WORDS) };
        let tensor = self.persistent_mut(id, 0, words);
        for first in (0..len).step_by(LOAD_WORDS) {
            let piece = &mut stretch[..LOAD_WORDS.min(len - first)];
            read(first, piece)?;
            encode(simd, dtype, elements, offset + first, piece, tensor);
        }
        Ok(())
    }

    /// Whether every trained weight is a finite number.
    pub fn weights_are_finite(&self) -> bool {
        // Branch-free inside a part, so that it runs at the speed of memory.
        let finite = |part: &[f32]| !part.iter().fold(false, |found, w| found | !w.is_finite());
        let finite_halves = |part: &[u8]| {
            !part.chunks_exact(2).fold(false, |found, b| found | (b[1] & 0x7f == 0x7f && b[0] & 0x80 != 0))
        };
        let trained = self.program.store.params.iter().enumerate().filter(|(_, place)| place.trained);
        trained.map(|(index, _)| index).all(|index| match self.dtype(index) {
            Dtype::F32 => self.param(index).par_chunks(PART).all(finite),
            _ => self.param_bytes(index).par_chunks(2 * PART).all(finite_halves),
        })
    }

    /// Optimizer state `nth` of a parameter.
    pub fn state(&self, index: usize, nth: usize) -> &[f32] {
        let id = self.program.store.params[index].state[nth].0 as usize;
        self.persistent(id, 0, self.program.store.tensors[id].words)
    }

    /// Optimizer state `nth` of a parameter, to fill.
    pub fn state_mut(&mut self, index: usize, nth: usize) -> &mut [f32] {
        let id = self.program.store.params[index].state[nth].0 as usize;
        let words = self.program.store.tensors[id].words;
        self.persistent_mut(id, 0, words)
    }

    /// The summed gradient of a parameter, where gradients are kept.
    pub fn gradient(&self, index: usize) -> Option<&[f32]> {
        let place = &self.program.store.params[index];
        let id = self.program.store.gradients[place.weight.0 as usize]?;
        Some(self.persistent(id.0 as usize, place.offset, place.param.elements()))
    }

    /// Weights, gradients, optimizer state.
    pub(crate) fn store(&self) -> &[f32] {
        // SAFETY: the first part of the arena; `&self` keeps every writer away.
        unsafe { std::slice::from_raw_parts(self.arena.base(), self.program.parts.store) }
    }

    fn persistent(&self, id: usize, offset: usize, len: usize) -> &[f32] {
        // SAFETY: the plan placed this tensor here; `&self` keeps every writer away.
        unsafe { std::slice::from_raw_parts(self.arena.base().add(self.program.store_offsets[id] + offset), len) }
    }

    fn persistent_mut(&mut self, id: usize, offset: usize, len: usize) -> &mut [f32] {
        // SAFETY: as above, and `&mut self` makes us the only one.
        unsafe { std::slice::from_raw_parts_mut(self.arena.base().add(self.program.store_offsets[id] + offset), len) }
    }

    /// Lends the batch to the loader.
    pub fn slot(&mut self) -> BatchSlot<'_> {
        self.staging.slot()
    }

    /// Lends the batch of a model of series to the loader.
    pub fn series_slot(&mut self) -> Result<SeriesSlot<'_>, EngineError> {
        self.series.as_mut().map(SeriesStaging::slot).ok_or(EngineError::NotPlanned { what: "series" })
    }

    /// Takes what the loader wrote; how many labels it has.
    fn take(&mut self, samples: usize, first: u32) -> Result<u64, EngineError> {
        match (&mut self.series, &self.program.spec) {
            (Some(series), ModelSpec::Series(spec)) => {
                series.take(samples, first, spec)?;
                Ok(series.label_count())
            }
            _ => {
                self.staging.take(samples, first, &self.program.spec)?;
                Ok(self.staging.label_count())
            }
        }
    }

    /// Forward and backward of the batch in the slot; with the optimizer in the backward pass, the update too. It stops
    /// behind a loss that is not finite, and before an update from a gradient that is not.
    pub fn micro_step(&mut self, step: MicroStep) -> Result<Loss, EngineError> {
        self.micro_step_seen(step, |_| {})
    }

    /// The same; `seen` is called behind each op. For benchmarks, which have a clock.
    pub fn micro_step_seen(&mut self, step: MicroStep, seen: impl FnMut(&Op)) -> Result<Loss, EngineError> {
        let tokens = self.take(step.samples, step.first_sample)?;
        let placed = self.program.micro.as_ref().ok_or(EngineError::NotPlanned { what: "training" })?;
        let updates = self.updates.as_ref().ok_or(EngineError::NotPlanned { what: "an optimizer" })?;
        let mut open = self.open;
        let mut frame = self.frame(placed);
        frame.first_micro = !open.begun;
        frame.spoiled = open.stopped;
        frame.seed = updates.seed;
        frame.update = step.update;
        frame.optimizer = Some(&updates.optimizer);
        frame.lr = step.lr;
        frame.mean = 1.0 / tokens.max(1) as f64;
        frame.grad_scale = frame.mean as f32;
        frame.clip_norm = updates.clip_norm;
        frame.run_seen(&placed.tape.ops, seen);
        let loss = Loss { sum: frame.loss_sum, tokens };
        open.loss.add(loss);
        (open.begun, open.stopped, open.norm) = (true, frame.stopped, frame.norm());
        open.changed |= frame.changed;
        self.open = open;
        Ok(loss)
    }

    /// Ends an update: from the summed gradients where they are kept. Whatever came of it, the next one begins afresh.
    pub fn finish_update(&mut self, step: MicroStep) -> Result<Updated, EngineError> {
        let mut open = std::mem::take(&mut self.open);
        let Some(placed) = self.program.update.as_ref().filter(|_| open.stopped.is_none()) else {
            return Ok(open.close());
        };
        let updates = self.updates.as_ref().ok_or(EngineError::NotPlanned { what: "an optimizer" })?;
        let mut frame = self.frame(placed);
        frame.seed = updates.seed;
        frame.update = step.update;
        frame.optimizer = Some(&updates.optimizer);
        frame.lr = step.lr;
        frame.mean = 1.0 / open.loss.tokens.max(1) as f64;
        frame.grad_scale = frame.mean as f32;
        frame.clip_norm = updates.clip_norm;
        frame.run(&placed.tape.ops);
        (open.stopped, open.changed, open.norm) = (frame.stopped, frame.changed, frame.norm());
        Ok(open.close())
    }

    /// The loss of the batch in the slot, without dropout and without a trace.
    pub fn eval(&mut self, samples: usize) -> Result<Loss, EngineError> {
        let tokens = self.take(samples, 0)?;
        let placed = self.program.eval.as_ref().ok_or(EngineError::NotPlanned { what: "evaluation" })?;
        let mut frame = self.frame(placed);
        if self.series.is_some() {
            frame.run(&placed.tape.ops);
            return Ok(Loss { sum: frame.loss_sum, tokens });
        }
        // The slot may hold more than the tape is planned for: with updates in the backward pass, the whole update.
        let each = self.program.part_samples;
        for first in (0..samples).step_by(each) {
            frame.span = self.staging.span(first..first + each);
            frame.run(&placed.tape.ops);
        }
        Ok(Loss { sum: frame.loss_sum, tokens })
    }

    /// Answers of one head to the batch that was evaluated last, sample by sample; none where the model has no such head.
    pub fn answers(&self, of: SeriesHead) -> Option<&[f32]> {
        let (placed, windows) = (self.program.eval.as_ref()?, self.series.as_ref()?);
        let Answer { out, outputs, .. } = of.answer(placed)?;
        Some(&self.frame(placed).get(out)[..windows.samples() * outputs])
    }

    pub(crate) fn frame<'a>(&'a self, placed: &'a Placed) -> Frame<'a> {
        Frame::new(&self.program, placed, &self.arena, &self.staging, self.series.as_ref(), self.cores)
    }
}

/// Runs `f` on a fresh thread that is itself one of `threads` workers; `on_start` is called first in each of them.
pub fn with_cores<R: Send>(
    threads: usize,
    on_start: impl Fn() + Send + Sync + 'static,
    f: impl FnOnce() -> R + Send,
) -> Result<R, EngineError> {
    let refused = |reason: String| EngineError::Threads { threads, reason };
    let on_start = std::sync::Arc::new(on_start);
    let here = on_start.clone();
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("engine-0".into()).stack_size(ENGINE_STACK);
        let handle = thread.spawn_scoped(scope, move || {
            here();
            warm();
            let builder = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .use_current_thread()
                .stack_size(WORKER_STACK)
                .thread_name(|i| format!("engine-{i}"))
                .start_handler(move |_| {
                    on_start();
                    warm();
                });
            let pool = builder.build().map_err(|e| refused(e.to_string()))?;
            // Wait until every worker runs, so that none starts, and allocates, in the middle of a step.
            pool.broadcast(|_| ());
            Ok(pool.install(f))
        });
        match handle.map_err(|e| EngineError::Threads { threads, reason: e.to_string() })?.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Registers the thread with the collector that rayon's queues use. Left alone, a thread does it when it first steals
/// work, and that allocation would fall into whatever step it happens in.
fn warm() {
    drop(crossbeam_epoch::pin());
}

/// Stack of the thread that runs the tape, and everything that the caller does there.
pub const ENGINE_STACK: usize = 1 << 20;
/// Stack of the other compute threads.
pub const WORKER_STACK: usize = 256 << 10;
