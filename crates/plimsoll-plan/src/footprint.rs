//! The footprint: every part of a run that costs memory or disk, by name, and their sum.

pub use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};

use crate::device::captured_ops;
use crate::program::{Program, staging_of};
use crate::tape::Role;

/// What no formula gives: measured, or stated, by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overheads {
    /// Resident memory of the worker before it takes anything planned: program, libraries, data index.
    pub program: Bytes,
    /// The tokenizer, loaded and trimmed.
    pub tokenizer: Bytes,
    /// Rows of series that are held in memory.
    #[serde(default)]
    pub rows: Bytes,
    /// The most that the worker held while it started.
    pub startup_peak: Bytes,
    /// The supervisor process.
    pub supervisor: Bytes,
    /// Buffers of the checkpoint writer.
    pub checkpoint_writer: Bytes,
    /// Reading the references of an evaluation.
    pub evaluation: Bytes,
    /// Stack that a thread really touches.
    pub stack: Bytes,
    /// The process that copies checkpoints elsewhere; zero where there is none.
    #[serde(default)]
    pub mirror: Bytes,
}

impl Overheads {
    /// What the data take whatever is chosen: a tokenizer, or rows.
    fn data(&self) -> Bytes {
        self.tokenizer + self.rows
    }
}

/// What the choices of a plan take in the worker besides its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beside {
    /// Heap of the loader.
    pub loader: Bytes,
    /// Threads of the loader.
    pub loader_threads: usize,
    /// A copy of weights and optimizer state; none where the steps wait for a save.
    pub snapshot: Option<Bytes>,
}

impl Beside {
    /// The evaluation's line. A writer that the steps wait for has ended before an evaluation begins, so only what is above
    /// its buffers counts.
    fn evaluation(&self, overheads: &Overheads) -> Bytes {
        let writer = if self.snapshot.is_some() { Bytes::ZERO } else { overheads.checkpoint_writer };
        overheads.evaluation.saturating_sub(writer)
    }

    /// The snapshot's line: the copy, and the stack of the thread that writes it out.
    fn snapshot(&self, overheads: &Overheads) -> Bytes {
        self.snapshot.map_or(Bytes::ZERO, |copy| copy + overheads.stack)
    }
}

/// What disk a run takes besides its tensors, as far as the job says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFacts {
    /// Latest checkpoints kept.
    pub keep: usize,
    /// The best one is kept as well.
    pub best: bool,
    /// Files that the final model takes over from its source: the tokenizer's, and small ones.
    pub side_files: Bytes,
    /// Packed data, unpacked so that they can be entered anywhere.
    pub unpacked: Bytes,
    /// Parts of data that lie elsewhere.
    pub fetched: Bytes,
    /// Weight updates of the run, each with a line in the journal.
    pub steps: u64,
    /// Evaluations so far, as each checkpoint holds them.
    pub evaluations: Bytes,
    /// Their lines in the journal.
    pub evaluation_lines: Bytes,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// What it is.
    pub name: String,
    /// How much.
    pub bytes: Bytes,
}

/// One resource of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// What the run may use.
    pub budget: Bytes,
    /// What it will use at most; the parts add up to it.
    pub peak: Bytes,
    /// The parts.
    pub parts: Vec<Part>,
}

impl Footprint {
    /// Adds up the parts that are not empty.
    pub fn of(budget: Bytes, parts: Vec<(&str, Bytes)>) -> Footprint {
        let parts: Vec<Part> = parts
            .into_iter()
            .filter(|(_, bytes)| *bytes > Bytes::ZERO)
            .map(|(name, bytes)| Part { name: name.to_string(), bytes })
            .collect();
        Footprint { budget, peak: parts.iter().map(|p| p.bytes).sum(), parts }
    }
}

/// Named slack: heap that the run's own bookkeeping touches, and what allocator and kernel round up. Measured over the
/// jobs of `plimsoll/tests/contract.rs`, with every other line at what it really took: 0.9 to 1.3 MiB.
pub const RESERVE: Bytes = Bytes::kib(1280);

/// Page tables for `bytes` of memory: eight bytes a page, and the upper levels with the program's own; and what else the
/// kernel charges to a run (stacks, descriptors). Measured over the same jobs, both processes, as the highest
/// `memory.kmem` of their cgroup: 0.3 to 1.0 MiB, of which page tables (`VmPTE`) 0.15 to 0.3. What is above this for a
/// moment is met by clean pages of the program, which the kernel drops.
fn page_tables(bytes: Bytes) -> Bytes {
    Bytes(bytes.0 / 512) + Bytes::kib(640)
}

/// Slack of a start, which was measured when it was over.
const START_RESERVE: Bytes = Bytes::kib(512);

/// What the start alone comes to, over all processes.
fn start_total(overheads: &Overheads) -> Bytes {
    overheads.startup_peak + overheads.supervisor + page_tables(overheads.startup_peak) + START_RESERVE
}

/// What [`ram`] adds up to for an arena of this size on this many compute threads: it never falls while one of them grows.
pub(crate) fn ram_total(arena: Bytes, beside: &Beside, threads: usize, overheads: &Overheads) -> Bytes {
    let arena = Bytes(arena.0.next_multiple_of(4096));
    let stacks = overheads.stack * (threads + beside.loader_threads) as u64;
    let held = overheads.program + overheads.data() + beside.loader + stacks + beside.snapshot(overheads);
    let worker = arena + held;
    let others =
        overheads.checkpoint_writer + beside.evaluation(overheads) + overheads.supervisor + overheads.mirror + RESERVE;
    (worker + others + page_tables(worker)).max(start_total(overheads))
}

/// RAM of a run, over all its processes.
pub fn ram(program: &Program, beside: &Beside, overheads: &Overheads, budget: Bytes) -> Footprint {
    let bytes = |words: usize| Bytes(words as u64 * 4);
    let parts = &program.parts;
    let (gradients, state) = (program.store_words(Role::Gradient), program.store_words(Role::Optimizer));
    let frozen = program.store_words(Role::Frozen);
    // What alignment adds to the store is counted with the weights; the arena's last page with the batch.
    let weights = parts.store - gradients - state - frozen;
    let arena = bytes(parts.words()).0.next_multiple_of(4096);
    let staging = Bytes(arena) - bytes(parts.store + parts.transient + parts.workspace);
    let stacks = overheads.stack * (program.threads + beside.loader_threads) as u64;
    let snapshot = beside.snapshot(overheads);
    let worker = Bytes(arena) + overheads.program + overheads.data() + beside.loader + stacks + snapshot;
    let mut list = vec![
        ("weights", bytes(weights)),
        ("frozen weights", bytes(frozen)),
        ("gradients", bytes(gradients)),
        ("optimizer state", bytes(state)),
        ("activations", bytes(parts.transient)),
        ("op workspace", bytes(parts.workspace)),
        ("batch", staging),
        ("program", overheads.program),
        ("tokenizer", overheads.tokenizer),
        ("rows", overheads.rows),
        ("loader", beside.loader),
        ("thread stacks", stacks),
        ("snapshot", snapshot),
        ("checkpoint writer", overheads.checkpoint_writer),
        ("evaluation", beside.evaluation(overheads)),
        ("supervisor", overheads.supervisor),
        ("mirror", overheads.mirror),
        ("page tables", page_tables(worker)),
        ("reserve", RESERVE),
    ];
    // A start that peaked above all this (a large tokenizer, a small model) is part of the run too.
    let steady: Bytes = list.iter().map(|(_, b)| *b).sum();
    list.push(("start-up", start_total(overheads).saturating_sub(steady)));
    let footprint = Footprint::of(budget, list);
    debug_assert_eq!(footprint.peak, ram_total(bytes(parts.words()), beside, program.threads, overheads));
    footprint
}

/// RAM of a run whose steps are on a card: what is planned there is here only as the batch on its way and, where there is
/// room, as the copy that checkpoints are written from.
pub fn host_ram(program: &Program, beside: &Beside, overheads: &Overheads, budget: Bytes) -> Footprint {
    let stacks = overheads.stack * (program.threads + beside.loader_threads) as u64;
    // Two of them pinned, in turn.
    let staged = staging_of(&program.spec, &program.shape, None) + 2 * program.parts.staging + program.parts.tables;
    let (batch, snapshot) = (Bytes(staged as u64 * 4), beside.snapshot(overheads));
    let worker = batch + overheads.program + overheads.data() + beside.loader + stacks + snapshot;
    let mut list = vec![
        ("batch", batch),
        ("pieces on their way", PIECES + quantised_tensor(program)),
        ("program and CUDA", overheads.program),
        ("tokenizer", overheads.tokenizer),
        ("rows", overheads.rows),
        ("loader", beside.loader),
        ("thread stacks", stacks),
        ("snapshot", snapshot),
        ("checkpoint writer", overheads.checkpoint_writer),
        ("evaluation", overheads.evaluation),
        ("supervisor", overheads.supervisor),
        ("mirror", overheads.mirror),
        ("page tables", page_tables(worker)),
        ("reserve", RESERVE),
    ];
    let steady: Bytes = list.iter().map(|(_, b)| *b).sum();
    list.push(("start-up", start_total(overheads).saturating_sub(steady)));
    Footprint::of(budget, list)
}

/// The largest tensor that is made of fewer bits on its way: as a whole, since its scales lie behind its codes.
fn quantised_tensor(program: &Program) -> Bytes {
    let quantised = program.store.tensors.iter().filter(|tensor| !tensor.dtype.is_exact());
    Bytes(quantised.map(|tensor| tensor.words as u64 * 4).max().unwrap_or(0))
}

/// Numbers between files and the card: a piece as f32 and as halves.
const PIECES: Bytes = Bytes::mib(8);

/// What a card's memory holds besides the arena: measured on the card itself, before the arena is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardOverheads {
    /// The context.
    pub context: Bytes,
    /// Kernels and libraries, all loaded.
    pub modules: Bytes,
}

/// Memory that the driver hands out in pieces of this size.
const CARD_PIECE: u64 = 2 << 20;
/// What an op of a captured step takes of the card. Measured on an H200: 1700 of them took 8 MiB.
const CAPTURED_OP: u64 = 5 << 10;

/// What captured steps take of the card at most.
fn captured(program: &Program) -> Bytes {
    Bytes((CARD_PIECE / 2 + captured_ops(program) as u64 * CAPTURED_OP).next_multiple_of(CARD_PIECE))
}

/// VRAM of a program on a card.
pub fn vram(program: &Program, overheads: &CardOverheads, budget: Bytes) -> Footprint {
    let bytes = |words: usize| Bytes(words as u64 * 4);
    let parts = &program.parts;
    let of = |role: Role| program.store_words(role);
    let (gradients, state) = (of(Role::Gradient), of(Role::Optimizer));
    // Halves of weights are weights.
    let (frozen, copies) = (of(Role::Frozen), of(Role::Copy) - program.store.upper_half_words());
    // What alignment adds to the store is counted with the weights; the arena's last piece with the batch.
    let weights = parts.store - gradients - state - frozen - copies;
    let arena = Bytes(bytes(parts.words()).0.next_multiple_of(CARD_PIECE));
    let staging = arena - bytes(parts.store + parts.transient + parts.workspace);
    Footprint::of(
        budget,
        vec![
            ("weights", bytes(weights)),
            ("weight copies", bytes(copies)),
            ("frozen weights", bytes(frozen)),
            ("gradients", bytes(gradients)),
            ("optimizer state", bytes(state)),
            ("activations", bytes(parts.transient)),
            ("op workspace", bytes(parts.workspace)),
            ("batch and tables", staging),
            ("context", overheads.context),
            ("kernels and libraries", overheads.modules),
            ("captured steps", captured(program)),
        ],
    )
}

/// Of a file of tensors or a small JSON file, what is not tensors: header, config, manifest.
const HEADERS: Bytes = Bytes::mib(1);
/// Records that do not grow with the run: job, plan, summary, and the journal's notes.
const RECORDS: Bytes = Bytes::mib(16);
/// A step's line in the journal, at most.
const STEP_LINE: Bytes = Bytes(256);

/// The model as it is written out, in f32.
fn model_bytes(program: &Program) -> u64 {
    let own = program.store.params.iter().filter(|place| !place.adapter);
    let params: u64 = own.map(|place| place.param.elements() as u64 * 4).sum();
    // A tied head of T5 that is not scaled is written out as a table of its own.
    let head = program.spec.t5().filter(|spec| spec.tied && !spec.scale_head);
    params + head.map_or(0, |spec| (spec.vocab * spec.d_model) as u64 * 4)
}

/// Disk of a run: checkpoints (the latest, the best, one of an exit, and one being written), the final model, the records.
pub fn disk(program: &Program, facts: &DiskFacts, budget: Bytes) -> Footprint {
    let weights = (program.store_words(Role::Weight) + program.store.upper_half_words()) as u64 * 4;
    let state = program.store_words(Role::Optimizer) as u64 * 4;
    let checkpoint = Bytes(weights + state) + HEADERS + facts.evaluations;
    let checkpoints = facts.keep.max(1) as u64 + u64::from(facts.best) + 2;
    let adapters = program.store.params.iter().any(|place| place.adapter);
    let model = if adapters { Bytes(weights) } else { Bytes(model_bytes(program)) };
    Footprint::of(
        budget,
        vec![
            ("checkpoints", checkpoint * checkpoints),
            ("final model", model + facts.side_files + HEADERS),
            ("unpacked data", facts.unpacked),
            ("fetched data", facts.fetched),
            ("records", RECORDS + STEP_LINE * facts.steps + facts.evaluation_lines),
        ],
    )
}
