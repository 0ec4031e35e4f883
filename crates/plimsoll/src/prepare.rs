//! From settings to a decision: opens model and data, loads the tokenizer, measures what no formula gives, plans.
//!
//! Everything that can be known to be wrong before step 1 is found here, and nothing is written.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use plimsoll_data::{
    Columns, LoadFacts, Order, RowTexts, SAMPLE_ROWS, Sources, TextTokenizer, loader_heap, suggest_lengths,
};
use plimsoll_engine::{measure_rates, simd, with_cores};
use plimsoll_machine::{Bytes, Headroom, Root, own_mapped_files, own_memory, process_memory};
use plimsoll_model::{ModelFolder, WeightFiles};
use plimsoll_plan::batch::BatchShape;
use plimsoll_plan::choose::{Decision, Pins, Plan, Terms, choose, decide};
use plimsoll_plan::footprint::Overheads;
use plimsoll_plan::program::{EvalJob, Job, Program};
use plimsoll_plan::spec::T5Spec;

use crate::args::Init;
use crate::heap::{self, Role};
use crate::render::{Fail, OrFail};
use crate::settings::{RunLength, Settings};

/// Batches that the loader holds ready.
pub const PREFETCH: usize = 2;
/// Stack that a thread touches, measured with deep tokenizers and every kernel.
const STACK: Bytes = Bytes::kib(96);
/// Rows that the loader's rate is measured on.
const RATE_ROWS: u64 = 64;
/// What is left to the machine when no budget is given: a twentieth, and at least this.
const MARGIN: Bytes = Bytes::mib(256);

/// Everything that a run is made from.
pub struct Prepared {
    /// The model's folder.
    pub folder: ModelFolder,
    /// Its weights, unless they are drawn.
    pub weights: Option<WeightFiles>,
    /// Training data.
    pub sources: Arc<Sources>,
    /// Evaluation data.
    pub eval: Option<Arc<Sources>>,
    /// The tokenizer.
    pub tokenizer: Arc<TextTokenizer>,
    /// Order of the training data.
    pub order: Order,
    /// Weight updates of the whole run.
    pub steps: u64,
    /// What is to be trained.
    pub job: Job,
    /// The plan.
    pub plan: Plan,
    /// Heap that the plan gives the loader.
    pub loader_planned: Bytes,
    /// Things worth saying: guessed columns, lengths, budget.
    pub remarks: Vec<String>,
}

/// Who else belongs to the run.
#[derive(Clone, Copy)]
pub enum Supervisor {
    /// A process that is already there.
    Running(u32),
    /// One that will be started.
    Later,
}

/// Opens, measures, plans. `disk` is where the run's folder is or will be; `choices` holds an earlier plan's.
pub fn prepare(
    settings: &Settings,
    supervisor: Supervisor,
    disk: &Path,
    held: Option<Pins>,
) -> Result<(Prepared, Program), Fail> {
    let root = Root::system();
    let at_start = own_memory(&root)?;
    let mut remarks = Vec::new();
    let (folder, weights) = match settings.init {
        Init::Random => (ModelFolder::open(&settings.model).or_usage()?, None),
        Init::Weights => {
            let (folder, weights) = ModelFolder::open_with_weights(&settings.model).or_usage()?;
            (folder, Some(weights))
        }
    };
    let mut spec = folder.spec().clone();
    if let Some(dropout) = settings.dropout {
        spec.dropout = dropout as f32;
    }
    let columns = || Columns { source: settings.source.clone(), target: settings.target.clone() };
    let sources = Arc::new(Sources::open(&settings.train_data, columns()).or_usage()?);
    let chosen = sources.columns();
    if chosen.guessed {
        remarks.push(format!(
            "columns: source `{}`, target `{}` (guessed from their names)",
            chosen.source, chosen.target
        ));
    }
    let eval = match &settings.eval_data {
        Some(path) => {
            let same = Columns { source: Some(chosen.source.clone()), target: Some(chosen.target.clone()) };
            Some(Arc::new(Sources::open(std::slice::from_ref(path), same).or_usage()?))
        }
        None => None,
    };
    let tokenizer_path = folder.tokenizer_path().or_usage()?;
    heap::trim();
    let before_tokenizer = own_memory(&root)?.rss_anon;
    let tokenizer = Arc::new(TextTokenizer::load(&tokenizer_path, spec.vocab, spec.eos_id, spec.pad_id).or_usage()?);
    heap::trim();
    let tokenizer_bytes = own_memory(&root)?.rss_anon.saturating_sub(before_tokenizer);
    let (source_len, target_len) = lengths(settings, &sources, &tokenizer, &mut remarks)?;
    let effective_batch = settings.effective_batch as usize;
    let steps = match settings.length {
        RunLength::Steps(n) => n,
        RunLength::Epochs(n) => (n * sources.rows()).div_ceil(settings.effective_batch),
    };
    let order = Order::new(settings.seed, settings.shuffle);
    let job = Job {
        spec: spec.clone(),
        source_len,
        target_len,
        effective_batch,
        optimizer: settings.optimizer.clone(),
        clip: settings.clip_norm.is_some(),
        eval: eval.as_ref().map(|_| EvalJob { beams: 1, max_new: target_len }),
        threads: settings.threads,
        simd: simd::detect(),
    };
    let loader_rate = loader_rate(&sources, &tokenizer, source_len)?;
    let rates = with_cores(job.threads, || {}, || measure_rates(job.simd))?;
    heap::trim();
    let facts = sources.load_facts(order);
    let eval_facts = eval.as_ref().map(|e| e.load_facts(Order::new(0, false)));
    let heap_of = |facts: &LoadFacts, samples: usize, threads: usize| {
        let shape = BatchShape { samples, source_len, target_len };
        Bytes(loader_heap(facts, shape, threads, PREFETCH).total_bytes())
    };
    let loader = |samples: usize, threads: usize| {
        let eval = eval_facts.as_ref().map_or(Bytes::ZERO, |f| heap_of(f, samples, 1));
        heap_of(&facts, samples, threads) + eval
    };
    let pins = match held {
        Some(pins) => pins,
        None => pins(settings, &spec)?,
    };
    let (ram, disk_budget) = budgets(settings, &root, disk, at_start.rss, &mut remarks)?;
    let mut terms = Terms {
        ram,
        disk: disk_budget,
        keep: settings.keep as usize,
        overheads: Overheads {
            program: at_start.rss,
            tokenizer: tokenizer_bytes,
            startup_peak: Bytes::ZERO,
            supervisor: supervisor_bytes(supervisor, &root, at_start.rss),
            // The writer's buffer, the header of the file, and the manifest.
            checkpoint_writer: plimsoll_recover::checkpoint::BUFFER + Bytes::kib(512),
            evaluation: eval_facts.as_ref().map_or(Bytes::ZERO, |f| Bytes(f.row_texts_bytes()) + Bytes::kib(512)),
            stack: STACK,
        },
        rates,
        loader_rate,
        pins,
        loader: &loader,
    };
    // Planned twice: the first plan's tapes are themselves memory, and are there when the second looks.
    let first = decide(&job, &terms);
    heap::trim();
    let now = own_memory(&root)?;
    terms.overheads.program = now.rss_anon.saturating_sub(tokenizer_bytes) + own_mapped_files(&root)?;
    terms.overheads.startup_peak = now.peak;
    drop(first);
    let Decision { plan, program } = choose(&job, &terms);
    let choices = plan.choices;
    let loader_planned = loader(choices.micro_batch, choices.loader_threads);
    let prepared =
        Prepared { folder, weights, sources, eval, tokenizer, order, steps, job, plan, loader_planned, remarks };
    Ok((prepared, program))
}

/// Lengths from the job, or from a look at the data.
fn lengths(
    settings: &Settings,
    sources: &Sources,
    tokenizer: &TextTokenizer,
    remarks: &mut Vec<String>,
) -> Result<(usize, usize), Fail> {
    if let (Some(source), Some(target)) = (settings.max_source, settings.max_target) {
        return Ok((source as usize, target as usize));
    }
    let found = suggest_lengths(sources, tokenizer, SAMPLE_ROWS).or_usage()?;
    let source = settings.max_source.map_or(found.source, |n| n as usize);
    let target = settings.max_target.map_or(found.target, |n| n as usize);
    remarks.push(format!(
        "lengths: source {source}, target {target} tokens (from {} rows; {} of them would be cut)",
        found.sampled, found.truncated
    ));
    Ok((source, target))
}

/// Tokens a second that one thread makes, over the first rows.
fn loader_rate(sources: &Arc<Sources>, tokenizer: &TextTokenizer, most: usize) -> Result<f64, Fail> {
    let mut rows = RowTexts::new(sources.clone());
    let (start, mut tokens, mut made) = (Instant::now(), Vec::new(), 0);
    for row in 0..sources.rows().min(RATE_ROWS) {
        tokens.clear();
        tokenizer.encode(rows.pair(row).or_usage()?.0, most, &mut tokens).or_usage()?;
        made += tokens.len();
    }
    Ok(made as f64 / start.elapsed().as_secs_f64().max(1e-9))
}

fn pins(settings: &Settings, spec: &T5Spec) -> Result<Pins, Fail> {
    let blocks = spec.encoder_layers + spec.decoder_layers;
    let said = &settings.pins;
    let recompute = match said.recompute {
        None => None,
        Some(how) => Some(
            how.of(blocks)
                .ok_or_else(|| Fail::usage(format!("recompute asks for more than the model's {blocks} blocks")))?,
        ),
    };
    let number = |n: Option<u64>| n.map(|n| n as usize);
    Ok(Pins {
        micro_batch: number(said.micro_batch),
        recompute,
        loss_chunk: number(said.loss_chunk),
        optimizer_in_backward: said.optimizer_in_backward,
        loader_threads: number(said.loader_threads),
    })
}

/// RAM and disk that the run may use: given, or what the machine can give less a margin.
fn budgets(
    settings: &Settings,
    root: &Root,
    disk: &Path,
    ours: Bytes,
    remarks: &mut Vec<String>,
) -> Result<(Bytes, Bytes), Fail> {
    let usable = Headroom::find(root)?.read()? + ours;
    let ram = match settings.ram {
        Some(ram) => {
            if ram > usable {
                remarks.push(format!(
                    "warning: the budget of {ram} is more than the {usable} that the machine can give now"
                ));
            }
            ram
        }
        None => {
            let margin = MARGIN.max(Bytes(usable.0 / 20));
            remarks.push(format!(
                "RAM budget: {} ({usable} can be had, {margin} left to the machine)",
                usable.saturating_sub(margin)
            ));
            usable.saturating_sub(margin)
        }
    };
    let disk = match settings.disk {
        Some(bytes) => bytes,
        None => {
            let there = disk.ancestors().find(|p| p.is_dir()).unwrap_or(Path::new("."));
            let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
            let space = rustix::fs::statvfs(there).map_err(std::io::Error::from)?;
            let free = Bytes(space.f_bavail * space.f_frsize);
            free.saturating_sub(Bytes(free.0 / 50))
        }
    };
    Ok((ram, disk))
}

fn supervisor_bytes(supervisor: Supervisor, root: &Root, ours: Bytes) -> Bytes {
    match supervisor {
        // It waits in a system call; what it holds now, and its last words.
        Supervisor::Running(pid) => process_memory(root, pid).map_or(ours, |m| m.peak) + Bytes::kib(512),
        Supervisor::Later => ours + Bytes::kib(512),
    }
}

/// The hook that tags loader threads.
pub fn loader_hook() -> plimsoll_data::ThreadHook {
    Arc::new(|| heap::tag(Role::Loader))
}
