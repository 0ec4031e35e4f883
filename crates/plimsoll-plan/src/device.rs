//! Where a program runs, and what that changes in its tapes: on a card, activations may be of 16 bits, products read
//! copies of the weights in that form, and scratch is the card's kernels' own.

mod series;

use serde::{Deserialize, Serialize};

use crate::batch::BatchShape;
use crate::choices::Choices;
use crate::dtype::Dtype;
use crate::op::{AttentionShape, MaxRows, Op, SeriesOp};
use crate::place::aligned;
use crate::program::{Placed, Program};
use crate::spec::ModelSpec;
use crate::tape::{Id, Role, Store, Tape, Tensor};
use crate::train::OptimizerSpec;

pub(crate) use series::GATHERED;
pub use series::{
    LSTM_COUNTER, LSTM_UNITS, LSTM_WALKED, SERIES_FACTS, gathered_rows, series_arrays, series_sides,
    series_staged_words, stats_chunks, stats_words,
};

/// Where a program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// On the machine's own cores.
    #[default]
    Cpu,
    /// On an NVIDIA card.
    Cuda(CudaForm),
}

/// The form of a program on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaForm {
    /// Activations and their gradients: f32, bf16 or f16. Sums and statistics are f32.
    pub activations: Dtype,
    /// Scratch of the matrix library, in bytes.
    pub products: usize,
    /// Trained matrices in f32 have copies in the form of activations.
    pub copies: bool,
}

impl CudaForm {
    /// The usual scratch of the matrix library: what NVIDIA advises for Hopper; it is enough for all others.
    pub const PRODUCTS: usize = 32 << 20;
    /// What it makes do with.
    pub const LEAN_PRODUCTS: usize = 4 << 20;

    /// Activations of a form.
    pub fn of(activations: Dtype) -> CudaForm {
        CudaForm { activations, products: CudaForm::PRODUCTS, copies: true }
    }

    /// The form that takes the least memory beside what is computed.
    pub fn lean(self) -> CudaForm {
        // A copy in bf16 is half of its weight, and takes nothing.
        CudaForm { products: CudaForm::LEAN_PRODUCTS, copies: self.activations == Dtype::Bf16, ..self }
    }
}

impl Device {
    /// The device, used as a plan chose it.
    pub(crate) fn with(self, choices: &Choices) -> Device {
        match self {
            Device::Cuda(form) if choices.lean => Device::Cuda(form.lean()),
            other => other,
        }
    }

    /// Rounds a part of the arena up, so that the next begins where the device wants it: scratch of the matrix library at a
    /// multiple of 256 bytes.
    pub(crate) fn whole(&self, words: usize) -> usize {
        match self {
            Device::Cpu => words,
            Device::Cuda(_) => words.next_multiple_of(64),
        }
    }

    /// The form on a card, where it is one.
    pub fn cuda(&self) -> Option<&CudaForm> {
        match self {
            Device::Cpu => None,
            Device::Cuda(form) => Some(form),
        }
    }
}

/// Gives the tape's activations the form that the device computes in. Statistics, sums and gradients of weights stay f32.
pub(crate) fn narrow(tape: &mut Tape, device: &Device) {
    let Some(form) = device.cuda().filter(|form| form.activations != Dtype::F32) else { return };
    let mut wide = vec![false; tape.tensors.len()];
    for op in &tape.ops {
        op.always_f32(&mut |id| {
            if let Some(own) = tape.own(id) {
                wide[own] = true;
            }
        });
    }
    for (tensor, _) in tape.tensors.iter_mut().zip(wide).filter(|(t, wide)| t.role == Role::Activation && !wide) {
        tensor.words = form.activations.words(tensor.words);
        tensor.dtype = form.activations;
    }
}

/// Adds a copy, in the activations' form, of every trained matrix that is stored in f32: products read the copy, updates
/// write both. A copy in bf16 is the upper half of its weight, which then keeps the lower alone: together no more than f32.
pub(crate) fn add_copies(store: &mut Store, device: &Device) {
    store.copies = vec![None; store.elements.len()];
    let Some(form) = device.cuda().filter(|form| form.activations != Dtype::F32 && form.copies) else { return };
    let is_table = |id: Id| {
        let mut params = store.params.iter().filter(|place| place.weight == id);
        params.all(|place| place.param.shape.len() == 2 && !crate::trained::is_small(&place.param.name))
    };
    let copied: Vec<usize> = (0..store.elements.len())
        .filter(|at| store.tensors[*at].role == Role::Weight && store.tensors[*at].dtype == Dtype::F32)
        .filter(|at| is_table(Id(*at as u32)))
        .collect();
    for at in copied {
        let (name, words) = (format!("{}.copy", store.tensors[at].name), form.activations.words(store.elements[at]));
        store.copies[at] = Some(Id(store.tensors.len() as u32));
        if form.activations == Dtype::Bf16 {
            store.tensors[at].words = words;
        }
        store.tensors.push(Tensor { name, words, role: Role::Copy, dtype: form.activations });
    }
}

/// Tensor that a product reads for a weight: its copy, where it has one.
pub fn read_form(store: &Store, weight: Id) -> Id {
    store.copies.get(weight.0 as usize).copied().flatten().unwrap_or(weight)
}

/// Scratch of a tape on a card, in words: the matrix library's, then the most of what an op needs beside it.
pub(crate) fn scratch(
    tape: &Tape,
    store: &Store,
    rows: &MaxRows,
    form: &CudaForm,
    optimizer: Option<&OptimizerSpec>,
) -> usize {
    let ops = tape.ops.iter().map(|op| op_scratch(op, tape, store, rows, form)).max().unwrap_or(0);
    let groups = update_groups(tape);
    let of_group = |group| optimizer.map_or(0, |o| update_scratch(store, o, group_params(tape, group)));
    let updates = groups.iter().map(of_group).max().unwrap_or(0);
    aligned(form.products / 4) + ops.max(updates)
}

/// Where a weight that is stored in another form than the activations is written out before a product reads it, in words.
pub fn panel_words(store: &Store, weight: Id, form: &CudaForm) -> usize {
    let read = read_form(store, weight);
    if store.dtype(read) == form.activations {
        return 0;
    }
    aligned(form.activations.words(store.elements[weight.0 as usize]))
}

/// Row chunks that sums over rows are cut into: from the most rows alone, so that sums come out the same.
pub fn row_chunks(rows: usize) -> usize {
    // Series have millions of rows of few columns: more chunks keep a card busy.
    let most = rows.div_ceil(1024).clamp(64, 512);
    rows.div_ceil(128).clamp(1, most)
}

/// Chunks of rows where both gradients of an RMS norm come in one pass: a block takes a chunk, and a card has room for some hundreds.
pub fn norm_chunks(rows: usize) -> usize {
    rows.div_ceil(32).clamp(1, 256)
}

/// Whether that is done for rows of a width: a warp holds one, in whole pieces.
pub fn norm_in_one_pass(width: usize) -> bool {
    width <= 1024 && width.is_multiple_of(8)
}

/// Chunks of the gradient of a head norm's weight.
pub const HEAD_NORM_CHUNKS: usize = 256;
/// Numbers of a gradient that one partial sum of squares covers, where gradients are kept.
pub const SQUARES_CHUNK: usize = 1 << 16;
/// Numbers that a block of an update covers, and of a gradient that is used at once.
pub const UPDATE_CHUNK: usize = 4096;
/// Parameters that one tensor holds at most: q, k and v.
const GROUPED: usize = 3;
/// Parts of the gradient of keys and values at most.
const MOST_SPLITS: usize = 8;
/// Tiles of keys that fill a large card several times over: with fewer, that gradient is cut into parts.
const MANY_TILES: usize = 1024;
/// Rows of a tile of an attention kernel, one of these.
pub const ATTENTION_TILES: [usize; 3] = [16, 32, 64];

impl AttentionShape {
    /// Tiles of `tile` rows that the documents of one side take at most, where each begins a tile of its own.
    pub fn slots(rows: usize, documents: usize, tile: usize) -> usize {
        rows / tile + documents
    }

    /// Parts that the gradient of keys and values is computed in where several query heads read one of theirs: there would be
    /// too few tiles to fill a card. `rows` are the most rows of keys.
    pub fn kv_splits(&self, rows: usize, form: &CudaForm) -> usize {
        let cores = form.activations != Dtype::F32 && matches!(self.d_kv, 64 | 128);
        let tiles = (rows.div_ceil(64) * self.kv_heads).max(1);
        if cores { MANY_TILES.div_ceil(tiles).min(self.group()).clamp(1, MOST_SPLITS) } else { 1 }
    }

    /// Words of the parts of that gradient; none where it is in one piece.
    pub fn kv_partial_words(&self, rows: usize, form: &CudaForm) -> usize {
        match self.kv_splits(rows, form) {
            1 => 0,
            splits => splits * 2 * rows * self.kv_heads * self.d_kv,
        }
    }

    /// Words of the partial sums of the bias' gradient, whichever tile the card's kernel has.
    pub fn bias_partial_words(&self, rows: usize, documents: usize) -> usize {
        let of = |tile| AttentionShape::slots(rows, documents, tile) * self.heads * (self.max_keys + tile);
        ATTENTION_TILES.into_iter().map(of).max().unwrap_or(0)
    }
}

/// Scratch of one op beside the matrix library's, in words.
fn op_scratch(op: &Op, tape: &Tape, store: &Store, rows: &MaxRows, form: &CudaForm) -> usize {
    match op {
        Op::Linear { weight, .. }
        | Op::LinearInput { weight, .. }
        | Op::Loss { weight, .. }
        | Op::LossOnly { weight, .. } => panel_words(store, *weight, form),
        Op::Embed { positions, .. } => positions.map_or(0, |id| aligned(store.elements[id.0 as usize])),
        Op::EmbedBackward { side, .. } => 3 * aligned(rows.of(*side)),
        Op::NormBackward { side, width, .. } => {
            let both = if norm_in_one_pass(*width) { norm_chunks(rows.of(*side)) } else { 0 };
            aligned(both * width).max(2 * aligned(row_chunks(rows.of(*side)) * width))
        }
        Op::HeadNormBackward { width, .. } => aligned(HEAD_NORM_CHUNKS * width),
        Op::ColumnSum { side, width, .. } => aligned(row_chunks(rows.of(*side)) * width),
        Op::AttentionBackward { shape, dbias, .. } => {
            let queries = rows.of(shape.queries);
            // A bias has T5 alone, whose documents are its samples.
            let samples = queries.div_ceil(shape.max_queries.max(1));
            let partial = dbias.map_or(0, |_| shape.bias_partial_words(queries, samples));
            let parts = shape.kv_partial_words(rows.of(shape.keys), form);
            let scores = shape.score_words(rows.samples, form, 2);
            aligned(queries * shape.heads) + aligned(partial) + aligned(parts) + scores
        }
        Op::Attention { shape, .. } => shape.score_words(rows.samples, form, 1),
        Op::GradientNorm { gradients } => {
            let words = |id: &Id| match tape.own(*id) {
                Some(own) => tape.tensors[own].words,
                None => store.tensors[id.0 as usize].words,
            };
            // Several parameters may share a gradient, and each begins a chunk.
            let chunks = |id: &Id| words(id).div_ceil(UPDATE_CHUNK) + GROUPED;
            aligned(2 * gradients.iter().map(chunks).sum::<usize>())
        }
        Op::Series(op) => series::series_scratch(op, store, rows, form),
        _ => 0,
    }
}

/// Scratch of the updates of one group, in words: of Adafactor alone.
pub fn update_scratch(store: &Store, optimizer: &OptimizerSpec, params: impl Iterator<Item = usize>) -> usize {
    if !matches!(optimizer, OptimizerSpec::Adafactor { .. }) {
        return 0;
    }
    params.map(|param| param_scratch(store, param)).sum()
}

/// Adafactor's scratch of one parameter, in words.
pub fn param_scratch(store: &Store, param: usize) -> usize {
    match store.params[param].param.shape.len() {
        2 => {
            let shape = store.param(param);
            aligned(2 * shape.rows + 17 * shape.cols + 8)
        }
        _ => aligned(8),
    }
}

/// Updates that follow each other on a tape are one launch: the ranges of ops.
pub fn update_groups(tape: &Tape) -> Vec<std::ops::Range<usize>> {
    let mut groups: Vec<std::ops::Range<usize>> = Vec::new();
    for (at, op) in tape.ops.iter().enumerate() {
        if !matches!(op, Op::Update { .. }) {
            continue;
        }
        match groups.last_mut().filter(|group| group.end == at) {
            Some(group) => group.end += 1,
            None => groups.push(at..at + 1),
        }
    }
    groups
}

/// Parameters of a range of updates.
pub fn group_params(tape: &Tape, group: &std::ops::Range<usize>) -> impl Iterator<Item = usize> {
    tape.ops[group.clone()].iter().filter_map(|op| match op {
        Op::Update { param, .. } => Some(*param),
        _ => None,
    })
}

/// Ops of all captured steps at most.
const MOST_CAPTURED: usize = 2000;
/// Sizes of a batch that are captured, where its rows vary.
const CAPTURED_SIZES: usize = 6;

/// What a captured run of a tape counts as: its ops, and of series their launches, which are many more.
pub fn tape_launches(tape: &Tape, rows: &MaxRows, form: &CudaForm) -> usize {
    let launches = |op: &Op| match op {
        Op::Series(op) => series::series_launches(op, rows, form),
        Op::Attention { shape, .. } => shape.launches(rows.samples, form, 1, 3),
        Op::AttentionBackward { shape, .. } => shape.launches(rows.samples, form, 2, 6),
        _ => 1,
    };
    tape.ops.iter().map(launches).sum()
}

/// Ops that an engine captures of a program at most: a few sizes of a batch, unless it is long. What goes beyond is launched op by
/// op.
pub fn captured_ops(program: &Program) -> usize {
    let tapes = [&program.micro, &program.update, &program.eval];
    let form = program.device.cuda().copied().unwrap_or(CudaForm::of(Dtype::F32));
    let of = |placed: &Placed| tape_launches(&placed.tape, &placed.rows, &form);
    let ops: usize = tapes.into_iter().flatten().map(of).sum();
    (CAPTURED_SIZES * ops).min(MOST_CAPTURED)
}

/// Words of a parameter's entry in a table of updates.
pub const PARAM_WORDS: usize = 20;
/// Words of what changes from step to step, at the start of the staging area.
pub const STEP_WORDS: usize = 64;
/// Words of a part's numbers of rows and documents.
pub const COUNT_WORDS: usize = 16;

/// Words of the tables that a tape's ops read: angles, buckets, parameters of updates.
pub fn table_words(tape: &Tape) -> usize {
    let own = tape.ops.iter().map(|op| match op {
        Op::RopeTable { width, len, .. } => aligned(len * width),
        Op::BiasExpand { shape, .. } | Op::BiasCollect { shape, .. } => aligned(shape.span()),
        Op::Series(SeriesOp::Loss { terms, .. }) => aligned(terms.class_weights.len()),
        _ => 0,
    });
    let groups = update_groups(tape);
    let updates = groups.iter().map(|group| aligned(group.len() * PARAM_WORDS) + 3 * aligned(group.len() + 1));
    own.sum::<usize>() + updates.sum::<usize>()
}

/// Words of the maps of 8-bit moments.
pub const MAP_WORDS: usize = 512;

/// Arrays of one part of a staged batch on a card, in words each: tokens of both sides and the decoder's inputs; first rows
/// of documents and of samples; of each document its sample and its first row there; of each row its sample, its position
/// there and in its document.
pub fn part_arrays(part: &BatchShape) -> [usize; PART_ARRAYS] {
    let (source, target) = (part.samples * part.source_len, part.samples * part.target_len);
    let documents = part.samples * part.documents + 1;
    [
        COUNT_WORDS,
        source,
        target,
        target,
        documents,
        part.samples + 1,
        documents,
        documents,
        source,
        source,
        source,
        target,
        target,
    ]
}

/// Arrays of one part.
pub const PART_ARRAYS: usize = 13;

/// Words of the staging area on a card: the step's numbers, then every part at the same distance.
pub fn staged_words(batch: &BatchShape, part_samples: usize) -> usize {
    let part = BatchShape { samples: part_samples, ..*batch };
    STEP_WORDS + batch.samples.div_ceil(part_samples.max(1)) * part_words(&part)
}

/// Words of the staging area of a model on a card.
pub fn staged_of(spec: &ModelSpec, batch: &BatchShape, part_samples: usize) -> usize {
    match spec {
        ModelSpec::Series(spec) => series_staged_words(spec, batch.samples),
        ModelSpec::T5(_) | ModelSpec::Decoder(_) => staged_words(batch, part_samples),
    }
}

/// Words of one part.
pub fn part_words(part: &BatchShape) -> usize {
    part_arrays(part).iter().map(|n| aligned(*n)).sum()
}
