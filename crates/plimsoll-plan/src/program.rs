//! A program: every tape of a run with the place of every tensor. The engine executes exactly this.
//!
//! The arena has four parts, in this order: the store (weights, gradients, optimizer state), one transient region that
//! all tapes share because only one runs at a time, the workspace of the running op, and the staging area of the batch.

use crate::batch::BatchShape;
use crate::choices::Choices;
use crate::device::{Device, MAP_WORDS, add_copies, narrow, scratch, staged_of, table_words};
use crate::dtype::{Dtype, GROUP};
use crate::family;
use crate::generation::{GenerateShape, Generation};
use crate::op::{MaxRows, Op};
use crate::place::{Places, aligned, place};
use crate::spec::ModelSpec;
use crate::store::store;
use crate::tape::{Id, Role, Store, Tape};
use crate::tiles::{Simd, Tiles};
use crate::train::OptimizerSpec;
use crate::trained::{LoraSpec, Storage, TrainSpec};

/// What evaluation runs besides the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvalJob {
    /// Hypotheses per prompt.
    pub beams: usize,
    /// Most new tokens; 0: no generation.
    pub max_new: usize,
}

/// What is to be trained, apart from the choices that leave the result alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The model.
    pub spec: ModelSpec,
    /// What of it is trained.
    pub train: TrainSpec,
    /// How its weights are stored.
    pub storage: Storage,
    /// Longest source, in tokens; of a decoder the longest sample.
    pub source_len: usize,
    /// Longest target, in tokens; of a decoder the same.
    pub target_len: usize,
    /// Most documents in one sample.
    pub documents: usize,
    /// Samples per update.
    pub effective_batch: usize,
    /// The optimizer.
    pub optimizer: OptimizerSpec,
    /// Gradients are clipped by their global norm.
    pub clip: bool,
    /// Evaluation during the run.
    pub eval: Option<EvalJob>,
    /// What else may be changed where it does not fit.
    pub allow: Allow,
    /// Compute threads.
    pub threads: usize,
    /// Instruction set level.
    pub simd: Simd,
    /// Where the step runs.
    pub device: Device,
}

/// Changes of the result that the user allows where nothing with the same result fits; none unless said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allow {
    /// Trained matrices in bf16, with stochastic rounding.
    pub bf16_weights: bool,
    /// AdamW's moments in 8 bits.
    pub adamw8bit: bool,
    /// LoRA in place of training every weight.
    pub lora: Option<LoraSpec>,
    /// Frozen matrices of blocks in this form, under LoRA.
    pub quantise: Option<Dtype>,
    /// Shorter samples, down to so many tokens.
    pub shorter: Option<usize>,
}

impl Job {
    /// Training of a whole model in f32, without clipping and evaluation.
    pub fn new(
        spec: impl Into<ModelSpec>,
        (source_len, target_len): (usize, usize),
        effective_batch: usize,
        optimizer: OptimizerSpec,
        (threads, simd): (usize, Simd),
    ) -> Job {
        Job {
            spec: spec.into(),
            train: TrainSpec::All,
            storage: Storage::default(),
            source_len,
            target_len,
            documents: 1,
            effective_batch,
            optimizer,
            clip: false,
            eval: None,
            allow: Allow::default(),
            threads,
            simd,
            device: Device::Cpu,
        }
    }

    /// Training of a model of series in f32, without clipping and evaluation.
    pub fn of_series(
        spec: crate::spec::SeriesSpec,
        effective_batch: usize,
        optimizer: OptimizerSpec,
        cores: (usize, Simd),
    ) -> Job {
        let window = spec.window;
        Job::new(spec, (window, 1), effective_batch, optimizer, cores)
    }

    /// The optimizer may run inside the backward pass: all micro-batches of an update are on one tape then.
    pub fn may_update_in_backward(&self, micro_batch: usize) -> bool {
        // Gradients of series are as small as the model: nothing would be won.
        self.spec.series().is_none() && self.effective_batch / micro_batch.max(1) <= MOST_PARTS
    }

    /// A batch of so many samples.
    pub fn shape(&self, samples: usize) -> BatchShape {
        let Job { source_len, target_len, documents, .. } = *self;
        BatchShape { samples, source_len, target_len, documents }
    }

    /// The job of one training tape.
    pub(crate) fn tape_job<'a>(&'a self, store: &'a Store, choices: &Choices) -> TapeJob<'a> {
        let (all, each) = (self.effective_batch, choices.micro_batch);
        let swept = choices.optimizer_in_backward;
        assert!(!swept || all.is_multiple_of(each), "a sweep is over whole parts of the effective batch");
        let parts = if swept { all / each } else { 1 };
        TapeJob {
            store,
            train: &self.train,
            shape: self.shape(choices.micro_batch),
            parts,
            clip: self.clip,
            marked: false,
            by_block: self.device.cuda().is_some(),
        }
    }

    /// Samples that the loader fills in at a time.
    pub fn staged(&self, choices: &Choices) -> usize {
        if choices.optimizer_in_backward { self.effective_batch } else { choices.micro_batch }
    }
}

/// Micro-batches on one tape, at most: a longer tape takes its own memory and time to plan.
const MOST_PARTS: usize = 32;

/// What a family writes a tape from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TapeJob<'a> {
    /// What outlives the tape.
    pub store: &'a Store,
    /// What is trained.
    pub train: &'a TrainSpec,
    /// The batch, or each part of it.
    pub shape: BatchShape,
    /// Parts of the batch on one tape.
    pub parts: usize,
    /// Gradients are clipped by their global norm.
    pub clip: bool,
    /// Every part is marked, the only one too.
    pub marked: bool,
    /// Gradients that are not kept are used block by block, not one by one: few large launches.
    pub by_block: bool,
}

/// A tape with the place of each of its tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// The ops.
    pub tape: Tape,
    /// The places.
    pub places: Places,
    /// Rows it is planned for.
    pub rows: MaxRows,
}

/// Generation with its places.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedGeneration {
    /// Both passes.
    pub placed: Placed,
    /// First op of the decoding step.
    pub split: usize,
    /// Where the step leaves its logits.
    pub logits: Id,
    /// What it is planned for.
    pub shape: GenerateShape,
}

/// Every tape of a run, placed.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// The model.
    pub spec: ModelSpec,
    /// What outlives a step.
    pub store: Store,
    /// Offset of each persistent tensor.
    pub store_offsets: Vec<usize>,
    /// Forward and backward of one micro-batch; none in a program that only generates or evaluates.
    pub micro: Option<Placed>,
    /// The update, where it is not part of the backward pass.
    pub update: Option<Placed>,
    /// Forward pass and loss.
    pub eval: Option<Placed>,
    /// Generation.
    pub generation: Option<PlacedGeneration>,
    /// Batch that the staging area holds.
    pub shape: BatchShape,
    /// Samples of it that the ops run over at a time.
    pub part_samples: usize,
    /// Compute threads that the workspace is for.
    pub threads: usize,
    /// Instruction set level that the workspace is for.
    pub simd: Simd,
    /// Where the tapes run.
    pub device: Device,
    /// Sizes of the arena's parts, in elements.
    pub parts: ArenaParts,
}

/// Sizes of the arena's parts, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaParts {
    /// Weights, gradients, optimizer state.
    pub store: usize,
    /// Shared by all tapes.
    pub transient: usize,
    /// Scratch of the running op.
    pub workspace: usize,
    /// The batch: tokens, lengths, row maps.
    pub staging: usize,
    /// What ops on a card read besides tensors; none on the CPU.
    pub tables: usize,
}

impl ArenaParts {
    /// The whole arena.
    pub fn words(&self) -> usize {
        self.store + self.transient + self.workspace + self.staging + self.tables
    }
}

/// The staging area: each array's name and length in words, in order. Of a decoder, source and target have the same rows.
pub fn staging_arrays(shape: &BatchShape) -> [usize; STAGING_ARRAYS] {
    let (source, target) = (shape.samples * shape.source_len, shape.samples * shape.target_len);
    let (samples, documents) = (shape.samples + 1, shape.samples * shape.documents + 1);
    [
        source, target, target, documents, samples, documents, documents, documents, samples, samples, source, source,
        source, target, target,
    ]
}

/// Arrays of the staging area: tokens of both sides and the decoder's inputs; lengths and first rows of each document and
/// of each sample; first documents of samples; of each document its sample and its first row there; of each row its sample,
/// its position there and in its document.
pub const STAGING_ARRAYS: usize = 15;

/// Words of the staging area: a batch, or, for generation, the prompts and what is known of each hypothesis.
pub fn staging_words(shape: &BatchShape, generate: Option<&GenerateShape>) -> usize {
    let batch = staging_arrays(shape).iter().map(|n| aligned(*n)).sum::<usize>();
    let generation = generate.map_or(0, |g| {
        let (source, rows) = (g.prompts * g.source_len, g.prompts * g.beams);
        3 * aligned(source) + 3 * aligned(g.prompts + 1) + 3 * aligned(rows) + 2 * aligned(rows * g.max_new)
    });
    batch.max(generation)
}

/// Words of the staging area of a model.
pub fn staging_of(spec: &ModelSpec, shape: &BatchShape, generate: Option<&GenerateShape>) -> usize {
    match spec {
        ModelSpec::Series(spec) => spec.batch(shape.samples).words(),
        ModelSpec::T5(_) | ModelSpec::Decoder(_) => staging_words(shape, generate),
    }
}

/// Offsets of the persistent tensors, and their total.
pub(crate) fn store_places(store: &Store) -> (Vec<usize>, usize) {
    let mut at = 0;
    let offsets = store
        .tensors
        .iter()
        .map(|t| {
            let here = at;
            at += aligned(t.words);
            here
        })
        .collect();
    (offsets, at)
}

pub(crate) fn rows_of(shape: &BatchShape) -> MaxRows {
    MaxRows {
        source: shape.samples * shape.source_len,
        target: shape.samples * shape.target_len,
        beam: 0,
        samples: shape.samples,
    }
}

fn workspace(tape: &Tape, store: &Store, rows: &MaxRows, simd: Simd, threads: usize) -> usize {
    let tiles = Tiles::of(simd);
    aligned(tape.ops.iter().map(|op| op.workspace(rows, &tiles, threads, store)).max().unwrap_or(0))
}

/// Workspace of one op of a job.
pub(crate) fn op_workspace(op: &Op, job: &Job, store: &Store, rows: &MaxRows) -> usize {
    op.workspace(rows, &Tiles::of(job.simd), job.threads, store)
}

/// Workspace of updates behind the backward pass.
pub(crate) fn update_workspace(job: &Job, store: &Store) -> usize {
    workspace(&family::update_tape(store), store, &rows_of(&job.shape(1)), job.simd, job.threads)
}

/// What is stored in another form than f32 is written through a stretch of it.
pub(crate) fn other_forms_workspace(store: &Store) -> usize {
    if store.tensors.iter().any(|t| t.dtype != Dtype::F32) { LOAD_WORDS } else { 0 }
}

/// Words and workspace that generation needs at the least: for a single prompt.
pub(crate) fn generation_floor(job: &Job, store: &Store, eval: EvalJob) -> (usize, usize) {
    let shape = GenerateShape { prompts: 1, beams: eval.beams, source_len: job.source_len, max_new: eval.max_new };
    let tape_job = TapeJob {
        store,
        train: &job.train,
        shape: job.shape(1),
        parts: 1,
        clip: false,
        marked: false,
        by_block: false,
    };
    let placed = place_generation(&job.spec, &tape_job, shape).placed;
    (placed.places.words, workspace(&placed.tape, store, &placed.rows, job.simd, job.threads))
}

/// What outlives a step of a job: without gradients where each is used up on the way.
pub(crate) fn store_of(job: &Job, optimizer_in_backward: bool) -> Store {
    let mut store = store(&job.spec, &job.train, &job.storage, Some(&job.optimizer), !optimizer_in_backward);
    add_copies(&mut store, &job.device);
    store
}

fn generation_rows(shape: &GenerateShape) -> MaxRows {
    MaxRows {
        source: shape.prompts * shape.source_len,
        target: 0,
        beam: shape.prompts * shape.beams,
        samples: shape.prompts,
    }
}

/// Places every tape of a job.
pub fn compile(job: &Job, choices: &Choices) -> Program {
    let job = &Job { device: job.device.with(choices), ..job.clone() };
    let store = store_of(job, choices.optimizer_in_backward);
    let tape_job = job.tape_job(&store, choices);
    let (part, shape) = (tape_job.shape, job.shape(job.staged(choices)));
    let rows = rows_of(&part);
    let micro = family::micro_tape(&job.spec, &tape_job, choices);
    let update = (!choices.optimizer_in_backward).then(|| family::update_tape(&store));
    let space = |tape: &Tape, rows: &MaxRows| match job.device {
        Device::Cpu => workspace(tape, &store, rows, job.simd, job.threads),
        Device::Cuda(form) => scratch(tape, &store, rows, &form, Some(&job.optimizer)),
    };
    let placed = |mut tape: Tape| {
        narrow(&mut tape, &job.device);
        Placed { places: place(&tape), tape, rows }
    };
    let (micro, update) = (placed(micro), update.map(placed));
    let mut transient = micro.places.words;
    let mut work = space(&micro.tape, &rows).max(update.as_ref().map_or(0, |u| space(&u.tape, &rows)));
    let eval = job.eval.map(|_| placed(family::eval_tape(&job.spec, &tape_job, choices.loss_chunk)));
    if let Some(eval) = &eval {
        transient = transient.max(eval.places.words);
        work = work.max(space(&eval.tape, &rows));
    }
    // Generation runs on the CPU alone.
    let generates = |e: &EvalJob| e.max_new > 0 && job.device == Device::Cpu;
    let generation = job.eval.filter(generates).map(|e| fit_generation(job, &tape_job, e, transient));
    if let Some(generation) = &generation {
        transient = transient.max(generation.placed.places.words);
        work = work.max(space(&generation.placed.tape, &generation.placed.rows));
    }
    work = work.max(other_forms_workspace(&store));
    let (store_offsets, store_words) = store_places(&store);
    let (staging, tables) = match job.device {
        Device::Cpu => (staging_of(&job.spec, &shape, generation.as_ref().map(|g| &g.shape)), 0),
        Device::Cuda(_) => {
            let tapes = [Some(&micro), update.as_ref(), eval.as_ref()];
            let of_tapes = tapes.into_iter().flatten().map(|placed| table_words(&placed.tape)).sum::<usize>();
            (staged_of(&job.spec, &shape, part.samples), MAP_WORDS + of_tapes)
        }
    };
    let (store_words, transient) = (job.device.whole(store_words), job.device.whole(aligned(transient)));
    let parts = ArenaParts { store: store_words, transient, workspace: work, staging, tables };
    Program {
        spec: job.spec.clone(),
        store,
        store_offsets,
        micro: Some(micro),
        update,
        eval,
        generation,
        shape,
        part_samples: part.samples,
        threads: job.threads,
        simd: job.simd,
        device: job.device,
        parts,
    }
}

/// Numbers that are held as f32 while a weight of another form is filled or read.
pub const LOAD_WORDS: usize = GROUP;

/// As many prompts at a time as fit into what training needs anyway; one at least.
fn fit_generation(job: &Job, tape_job: &TapeJob, eval: EvalJob, room: usize) -> PlacedGeneration {
    let mut prompts = tape_job.shape.samples;
    loop {
        let wanted = GenerateShape { prompts, beams: eval.beams, source_len: job.source_len, max_new: eval.max_new };
        let placed = place_generation(&job.spec, tape_job, wanted);
        if placed.placed.places.words <= room || prompts == 1 {
            return placed;
        }
        prompts = prompts.div_ceil(2);
    }
}

fn place_generation(spec: &ModelSpec, job: &TapeJob, shape: GenerateShape) -> PlacedGeneration {
    let Generation { tape, split, logits } = family::generation(spec, job, shape);
    let placed = Placed { places: place(&tape), tape, rows: generation_rows(&shape) };
    PlacedGeneration { placed, split, logits, shape }
}

/// What a program without training holds.
#[derive(Clone, Debug, PartialEq)]
pub struct InferenceJob {
    /// The model.
    pub spec: ModelSpec,
    /// Which factors of LoRA are beside it.
    pub train: TrainSpec,
    /// How its weights are stored.
    pub storage: Storage,
    /// Evaluation of batches of this shape, so many rows of logits at a time.
    pub eval: Option<(BatchShape, usize)>,
    /// Generation.
    pub generate: Option<GenerateShape>,
    /// Compute threads.
    pub threads: usize,
    /// Instruction set level.
    pub simd: Simd,
}

impl InferenceJob {
    /// A whole model in f32.
    pub fn new(
        spec: impl Into<ModelSpec>,
        eval: Option<(BatchShape, usize)>,
        generate: Option<GenerateShape>,
        (threads, simd): (usize, Simd),
    ) -> InferenceJob {
        let (train, storage) = (TrainSpec::All, Storage::default());
        InferenceJob { spec: spec.into(), train, storage, eval, generate, threads, simd }
    }
}

/// A program without training: the loss of a batch, and generation.
pub fn compile_inference(job: &InferenceJob) -> Program {
    let InferenceJob { spec, train, storage, eval, generate, threads, simd } = job;
    let (threads, simd) = (*threads, *simd);
    let store = store(spec, train, storage, None, false);
    let (mut transient, mut work) = (0, LOAD_WORDS);
    let staged = eval.map_or(BatchShape { samples: 1, source_len: 1, target_len: 1, documents: 1 }, |(shape, _)| shape);
    let tape_job =
        TapeJob { store: &store, train, shape: staged, parts: 1, clip: false, marked: false, by_block: false };
    let eval = eval.map(|(shape, chunk)| {
        let tape = family::eval_tape(spec, &tape_job, chunk);
        Placed { places: place(&tape), tape, rows: rows_of(&shape) }
    });
    let generation = generate.map(|shape| place_generation(spec, &tape_job, shape));
    for placed in eval.iter().chain(generation.iter().map(|g| &g.placed)) {
        transient = transient.max(placed.places.words);
        work = work.max(workspace(&placed.tape, &store, &placed.rows, simd, threads));
    }
    let (store_offsets, store_words) = store_places(&store);
    let parts = ArenaParts {
        store: store_words,
        transient: aligned(transient),
        workspace: work,
        staging: staging_of(spec, &staged, generate.as_ref()),
        tables: 0,
    };
    Program {
        spec: spec.clone(),
        store,
        store_offsets,
        micro: None,
        update: None,
        eval,
        generation,
        shape: staged,
        part_samples: staged.samples,
        threads,
        simd,
        device: Device::Cpu,
        parts,
    }
}

impl Program {
    /// A program of one tape over a store, run over whole batches of a shape: for what looks at ops one by one.
    pub fn of_tape(
        spec: ModelSpec,
        store: Store,
        tape: Tape,
        shape: BatchShape,
        optimizer: Option<&OptimizerSpec>,
        device: Device,
        (threads, simd): (usize, Simd),
    ) -> Program {
        let (rows, (store_offsets, store_words)) = (rows_of(&shape), store_places(&store));
        let places = place(&tape);
        let (workspace, staging, tables) = match device {
            Device::Cpu => (workspace(&tape, &store, &rows, simd, threads), staging_of(&spec, &shape, None), 0),
            Device::Cuda(form) => {
                let tables = MAP_WORDS + table_words(&tape);
                (scratch(&tape, &store, &rows, &form, optimizer), staged_of(&spec, &shape, shape.samples), tables)
            }
        };
        let (store_words, transient) = (device.whole(store_words), device.whole(aligned(places.words)));
        let parts = ArenaParts { store: store_words, transient, workspace, staging, tables };
        let part_samples = shape.samples;
        let micro = Some(Placed { tape, places, rows });
        let (update, eval, generation) = (None, None, None);
        Program {
            spec,
            store,
            store_offsets,
            micro,
            update,
            eval,
            generation,
            shape,
            part_samples,
            threads,
            simd,
            device,
            parts,
        }
    }

    /// Elements of a role in the store.
    pub fn store_words(&self, role: Role) -> usize {
        self.store.words(role)
    }
}
