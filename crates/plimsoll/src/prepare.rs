//! From settings to a decision: opens model and data, loads the tokenizer, measures what no formula gives, plans.
//!
//! Everything that can be known to be wrong before step 1 is found here, and nothing is written.

mod budget;
pub mod samples;
mod trained;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use plimsoll_data::{
    Columns, Kind, LOADER_CEILING, LoadFacts, Order, Recipe, RowTexts, Sources, TextTokenizer, documents_of,
    loader_heap, stacks, threads_within, tokenizer_effort,
};
use plimsoll_engine::cuda::{Card, Hold};
use plimsoll_engine::simd;
use plimsoll_machine::{Bytes, Root, gpu_memory_used, own_mapped_files, own_memory, process_memory};
use plimsoll_model::{ModelFolder, WeightFiles};
use plimsoll_plan::batch::BatchShape;
use plimsoll_plan::card::CardTerms;
use plimsoll_plan::choose::{Decision, Pins, Plan, Terms, choose, decide, with_rungs};
use plimsoll_plan::cost::half_octave;
use plimsoll_plan::device::{CudaForm, Device};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::footprint::{CardOverheads, DiskFacts, Overheads};
use plimsoll_plan::program::{EvalJob, Job, Program};
use plimsoll_plan::spec::ModelSpec;

use self::budget::Budgets;
use crate::args::Init;
use crate::heap::{self, Role};
use crate::job::recompute::Recompute;
use crate::render::{Fail, OrFail};
use crate::settings::{RunLength, Settings};
use crate::{card_rates, rates};

/// Batches that the loader holds ready.
pub const PREFETCH: usize = 2;
/// Stack that a thread touches, measured with deep tokenizers and every kernel.
const STACK: Bytes = Bytes::kib(96);
/// What a phase of a run (steps, evaluation, save) touches of program and libraries. Measured as `RssFile` at the peak of
/// the jobs of `tests/contract.rs`: 7.1 to 9.6 MiB, with chat templates 7.9 to 11.3; release builds are smaller. Such pages
/// are clean: under pressure the kernel drops them, and what is above this is within the reserve.
const CODE: Bytes = Bytes::mib(9);
/// What chat templates add to it.
const TEMPLATE_CODE: Bytes = Bytes::mib(1);
/// What reading from stores adds: HTTP, and TLS, which a test against plain HTTP does not see.
const NETWORK_CODE: Bytes = Bytes::mib(6);
/// Rows that the loader's rate is measured on.
const RATE_ROWS: u64 = 64;
/// Passes over them: the first warms caches, the best counts.
const RATE_PASSES: usize = 3;

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
    /// How rows become samples.
    pub recipe: Recipe,
    /// Order of the training data.
    pub order: Order,
    /// Weight updates of the whole run.
    pub steps: u64,
    /// What is to be trained.
    pub job: Job,
    /// The plan.
    pub plan: Plan,
    /// Lengths of source and target that the job or the data ask for; a plan may have taken shorter ones.
    pub lens: (usize, usize),
    /// Heap that the plan gives the loader.
    pub loader_planned: Bytes,
    /// Of the card, in use by others before the run.
    pub others_on_card: Bytes,
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

/// What a run that goes on is bound to.
#[derive(Clone, Debug, Default)]
pub struct Bound {
    /// An earlier plan's choices, where they are kept.
    pub choices: Option<Pins>,
    /// The rungs that it took when it began; none where it is yet to begin.
    pub rungs: Option<Vec<String>>,
}

/// Opens, measures, plans. `run` is where the run's folder is or will be.
pub fn prepare(
    settings: &Settings,
    supervisor: Supervisor,
    run: &Path,
    bound: Bound,
) -> Result<(Prepared, Program), Fail> {
    prepare_and(settings, supervisor, run, bound, |_, _| ()).map(|(prepared, program, ())| (prepared, program))
}

/// As `prepare`, and asks `more` of the same job under the same terms.
pub fn prepare_and<T>(
    settings: &Settings,
    supervisor: Supervisor,
    run: &Path,
    bound: Bound,
    more: impl FnOnce(&Job, &Terms) -> T,
) -> Result<(Prepared, Program, T), Fail> {
    let root = Root::system();
    let at_start = own_memory(&root)?;
    let mut remarks = Vec::new();
    // Before there is a context of ours.
    let others = settings.card.and_then(|_| Card::uuid_of(0).ok()).and_then(|uuid| gpu_memory_used(&uuid));
    let others = others.unwrap_or(Bytes::ZERO);
    let on_cpu;
    let mut settings = settings;
    if settings.card.is_some()
        && settings.card_optional
        && let Err(why) = Card::open(0)
    {
        remarks.push(format!("the steps run on the CPU: {why}"));
        on_cpu = Settings { card: None, vram: None, ..settings.clone() };
        settings = &on_cpu;
    }
    let (folder, weights) = match settings.init {
        Init::Random => (ModelFolder::open(&settings.model).or_usage()?, None),
        Init::Weights => {
            let (folder, weights) = ModelFolder::open_with_weights(&settings.model).or_usage()?;
            (folder, Some(weights))
        }
    };
    let mut spec = folder.answering_spec();
    if let Some(dropout) = settings.dropout {
        spec.set_dropout(dropout as f32);
    }
    let (sources, kind) = samples::open_sources(settings, &spec, &mut remarks)?;
    let eval = match &settings.eval_data {
        Some(path) => {
            let said = settings.eval_columns();
            let other = sources.is_mixture() && said != Columns::default();
            let same = if other { said } else { sources.columns().again() };
            let reading = samples::Reading::of(settings);
            Some(Arc::new(samples::open(std::slice::from_ref(path), kind, same, reading).or_usage()?))
        }
        None => None,
    };
    if let Some(path) = sources.in_order().next().filter(|_| settings.shuffle) {
        let fail = Fail::usage(format!(
            "`{}` can only be read from its beginning, and `data.unpack` is false",
            path.display()
        ));
        return Err(fail.hint("give `data.shuffle = false` (`--no-shuffle`), or leave out `data.unpack`: then it is packed anew, once, in parts"));
    }
    let left_out = sources.facts().oversized + eval.as_ref().map_or(0, |of| of.facts().oversized);
    if left_out > 0 {
        remarks.push(samples::told_left_out(left_out));
    }
    let tokenizer_path = folder.tokenizer_path().or_usage()?;
    heap::trim();
    let before_tokenizer = own_memory(&root)?.rss_anon;
    let tokenizer =
        Arc::new(TextTokenizer::load(&tokenizer_path, spec.vocab(), spec.eos_id(), spec.pad_id()).or_usage()?);
    heap::trim();
    let tokenizer_bytes = own_memory(&root)?.rss_anon.saturating_sub(before_tokenizer);
    let recipe = samples::recipe_for(kind, settings.long, &folder, &tokenizer)?;
    remarks.extend(recipe.remark());
    let (source_len, target_len) = samples::lengths(settings, &spec, &sources, &tokenizer, &recipe, &mut remarks)?;
    sources.check_fit(&tokenizer, &recipe, [source_len, target_len]).or_usage()?;
    let effective_batch = settings.effective_batch as usize;
    let documents = documents_of(settings.packed, source_len);
    let ceiling = settings.data_memory.unwrap_or(Bytes(LOADER_CEILING));
    let asked = Order::new(settings.seed, settings.shuffle).with_window(settings.window as usize);
    let order = asked.within(&sources, ceiling.0);
    if order != asked {
        let (window, asked) = (order.window_blocks(), asked.window_blocks());
        remarks.push(format!("shuffle: windows of {window} blocks instead of {asked}, so that their texts take half of {ceiling} at most (`data.memory`)"));
    }
    let job = Job {
        train: settings.train_spec(&spec)?,
        allow: settings.allowed(&spec)?,
        storage: settings.storage(weights.as_ref()),
        spec,
        source_len,
        target_len,
        documents,
        effective_batch,
        optimizer: settings.optimizer.clone(),
        clip: settings.clip_norm.is_some(),
        eval: eval.as_ref().map(|_| EvalJob { beams: 1, max_new: samples::new_tokens(kind, target_len) }),
        threads: settings.threads,
        simd: simd::detect(),
        device: settings.card.map_or(Device::Cpu, |form| Device::Cuda(CudaForm::of(form))),
    };
    let lens = (source_len, target_len);
    let job = match &bound.rungs {
        None => job,
        Some(rungs) => with_rungs(&job, rungs).ok_or_else(|| {
            let fact = format!("the run was begun with {}, which its job does not allow any more", rungs.join("; "));
            Fail::usage(fact).hint("put `[allow]` in its job.toml back as it was")
        })?,
    };
    let (source_len, target_len) = (job.source_len, job.target_len);
    let steps = match settings.length {
        RunLength::Steps(n) => n,
        RunLength::Epochs(n) => {
            let samples = samples::of_an_epoch(&sources, order, &tokenizer, &recipe, &job)?;
            (n * samples).div_ceil(settings.effective_batch)
        }
    };
    let loader_rate = loader_rate(&sources, &tokenizer, source_len)?;
    let rates = rates::rates(&root, job.threads, job.simd)?;
    let effort = tokenizer_effort(&tokenizer, &|work| heap::peak_of(work));
    heap::trim();
    let memo = tokenizer.memo_bytes();
    let load_facts =
        |of: &Sources, order| of.load_facts(order).with_recipe(&recipe).with_effort(effort).with_memo(memo);
    let facts = load_facts(&sources, order);
    let eval_facts = eval.as_ref().map(|of| load_facts(of, Order::new(0, false)));
    let heap_of = |facts: &LoadFacts, samples: usize, threads: usize| {
        let shape = BatchShape { samples, source_len, target_len, documents };
        Bytes(loader_heap(facts, shape, threads, PREFETCH).total_bytes())
    };
    let loader = |samples: usize, threads: usize| {
        let eval = eval_facts.as_ref().map_or(Bytes::ZERO, |f| heap_of(f, samples, 1));
        heap_of(&facts, samples, threads) + eval
    };
    let most_loader_threads = match settings.data_memory {
        None => job.threads,
        Some(ceiling) => {
            let heap_of = |threads: usize| (tokenizer_bytes + loader(effective_batch, threads)).0;
            let least = settings.pins.loader_threads.unwrap_or(1) as usize;
            let most = threads_within(ceiling.0, &heap_of, job.threads.max(least)).filter(|most| *most >= least);
            most.ok_or_else(|| above_ceiling(ceiling, tokenizer_bytes, loader(effective_batch, least), least))?
        }
    };
    // Held until everything is measured: what CUDA takes of RAM is part of the program then.
    let hold = settings.card.map(|form| Hold::open(0, form)).transpose().or_usage();
    let hold = hold.map_err(|fail| fail.hint("`train.device` = `auto` (`--device auto`) runs it on the CPU then"))?;
    let pins = pins(settings, &job.spec)?;
    let unpacked = Bytes(sources.unpacked_bytes() + eval.as_ref().map_or(0, |of| of.unpacked_bytes()));
    let opened: Vec<&Sources> = std::iter::once(&*sources).chain(eval.as_deref()).collect();
    let fetched = samples::fetched(&opened, settings.cache);
    let Budgets { ram, ram_there, disk, disk_there } =
        budget::budgets(settings, supervisor, &root, (run, unpacked + fetched), &mut remarks)?;
    let mut terms = Terms {
        ram,
        ram_there,
        disk,
        disk_there,
        disk_facts: DiskFacts {
            keep: settings.keep as usize,
            best: eval.is_some(),
            side_files: side_files(&settings.model)?,
            unpacked,
            fetched,
            steps,
        },
        overheads: Overheads {
            program: at_start.rss,
            tokenizer: tokenizer_bytes,
            startup_peak: Bytes::ZERO,
            supervisor: supervisor_bytes(supervisor, &root, at_start.rss),
            // The writer's buffer, the header of the file, and the manifest.
            checkpoint_writer: plimsoll_recover::checkpoint::BUFFER + Bytes::kib(256),
            evaluation: eval_facts.as_ref().map_or(Bytes::ZERO, |f| Bytes(f.row_texts_bytes()) + Bytes::kib(256)),
            stack: STACK,
            mirror: if settings.mirror.is_some() { plimsoll_mirror::MEMORY } else { Bytes::ZERO },
        },
        rates,
        loader_rate,
        most_loader_threads,
        pins,
        held: bound.choices,
        saves: settings.save_every.is_some() || settings.save_minutes.is_some(),
        loader: &loader,
        card: hold.as_ref().map(|hold| card_terms(settings, hold, others, &mut remarks)).transpose()?,
    };
    // Planned twice: the first plan's tapes are themselves memory, and are there when the second looks.
    let first = decide(&job, &terms);
    heap::trim();
    // What was needed to come this far is needed once; the peak of the start has its own line.
    let started = own_memory(&root)?;
    plimsoll_recover::shed();
    let now = own_memory(&root)?;
    let code = if kind == Kind::Chat { CODE + TEMPLATE_CODE } else { CODE };
    let code = if fetched > Bytes::ZERO { code + NETWORK_CODE } else { code };
    let code = match &hold {
        // CUDA's libraries, as far as they are used, and what the driver maps.
        Some(_) => started.rss_file + started.rss_shmem + CARD_HOST,
        None => own_mapped_files(&root)?.min(code),
    };
    terms.overheads.program = now.rss_anon.saturating_sub(tokenizer_bytes) + code;
    terms.overheads.startup_peak = started.peak;
    drop(first);
    let more = more(&job, &terms);
    let Decision { mut plan, program, job } = choose(&job, &terms);
    // A plan may have taken shorter samples than were asked for.
    sources.check_fit(&tokenizer, &recipe, [job.source_len, job.target_len]).or_usage()?;
    if let Some(rungs) = bound.rungs {
        plan.rungs = rungs;
    }
    let choices = plan.choices;
    let loader_planned = loader(job.staged(&choices), choices.loader_threads);
    let prepared = Prepared {
        folder,
        weights,
        sources,
        eval,
        tokenizer,
        recipe,
        order,
        steps,
        job,
        plan,
        lens,
        loader_planned,
        others_on_card: others,
        remarks,
    };
    Ok((prepared, program, more))
}

/// The loader takes more than the job allows it.
fn above_ceiling(ceiling: Bytes, tokenizer: Bytes, heap: Bytes, threads: usize) -> Fail {
    let stacks = Bytes(stacks(threads));
    let needed = tokenizer + heap + stacks;
    let s = if threads == 1 { "" } else { "s" };
    Fail::usage(format!(
        "`data.memory` is {ceiling}, but the loader takes {needed} with {threads} thread{s}: {tokenizer} for the tokenizer's tables, \
         {heap} for rows, pages and tokens in work, {stacks} for stacks"
    ))
    .hint(format!("`data.memory = \"{}MiB\"` is enough; so may be a smaller `data.window` or fewer `pin.loader_threads`", needed.0.div_ceil(1 << 20)))
}

/// The card's budget, what it holds already, and how fast it is.
fn card_terms(settings: &Settings, hold: &Hold, others: Bytes, remarks: &mut Vec<String>) -> Result<CardTerms, Fail> {
    let (total, used) = (Bytes(hold.card().total()), Bytes(hold.used()));
    let most = total.saturating_sub(others);
    let vram = settings.vram.unwrap_or(Bytes(most.0 - most.0 / CARD_MARGIN));
    if vram > most {
        remarks.push(format!("VRAM budget: {most} instead of the {vram} asked for: there is no more"));
    }
    let held = if others > Bytes::ZERO { format!(", {others} of it in use by others") } else { String::new() };
    remarks.push(format!("card: {}, {total} of VRAM{held}", hold.card().name()));
    let context = used.saturating_sub(others);
    let overheads = CardOverheads { context, modules: CARD_MODULES };
    let rates = card_rates::rates(hold.card(), settings.card.unwrap_or(Dtype::F32))?;
    let processors = hold.card().processors() as usize;
    Ok(CardTerms { vram: vram.min(most), vram_there: most, overheads, rates, processors })
}

/// RAM that loading a program's kernels and capturing its steps adds to what CUDA has taken before.
const CARD_HOST: Bytes = Bytes::mib(64);
/// One part in so many of the card is left alone unless a budget says otherwise.
const CARD_MARGIN: u64 = 100;
/// Kernels, and what the matrix library loads after its first product. Measured on an H200: 2 to 4 MiB.
const CARD_MODULES: Bytes = Bytes::mib(6);

/// What a model takes over from its source besides weights: every text and tokenizer file, so rather more than less.
fn side_files(model: &Path) -> Result<Bytes, Fail> {
    let mut total = Bytes::ZERO;
    for entry in fs_err::read_dir(model).or_usage()? {
        let path = entry.or_usage()?.path();
        let beside =
            path.extension().is_some_and(|e| ["json", "model", "jinja", "txt"].iter().any(|known| e == *known));
        if beside && path.is_file() {
            total += Bytes(fs_err::metadata(&path).or_usage()?.len());
        }
    }
    Ok(total)
}

/// Tokens a second that one thread makes, over the first rows, or, of prepared data, copies; to the nearest half octave, as the
/// engine's rates are, so that noise does not change a plan.
fn loader_rate(sources: &Arc<Sources>, tokenizer: &TextTokenizer, most: usize) -> Result<f64, Fail> {
    let mut rows = RowTexts::new(sources.clone());
    let (mut tokens, mut memo, mut best) = (Vec::new(), tokenizer.memo(), 1.0f64);
    for _ in 0..RATE_PASSES {
        let (start, mut made) = (Instant::now(), sources.copy_first_block(most).or_usage()?);
        let texts = if sources.is_prepared() { 0 } else { sources.facts().rows.min(RATE_ROWS) };
        for row in 0..texts {
            tokens.clear();
            tokenizer.encode_by(&mut memo, rows.pair(row).or_usage()?.0, most, &mut tokens).or_usage()?;
            made += tokens.len();
        }
        best = best.max(made as f64 / start.elapsed().as_secs_f64().max(1e-9));
    }
    Ok(half_octave(best))
}

fn pins(settings: &Settings, spec: &ModelSpec) -> Result<Pins, Fail> {
    let blocks = spec.blocks();
    let said = &settings.pins;
    let recompute = said.recompute.map(|how| held_recompute(how, blocks)).transpose()?;
    let number = |n: Option<u64>| n.map(|n| n as usize);
    Ok(Pins {
        micro_batch: number(said.micro_batch),
        recompute,
        recompute_attention: None,
        recompute_feed_forward: None,
        loss_chunk: number(said.loss_chunk),
        optimizer_in_backward: said.optimizer_in_backward,
        loader_threads: number(said.loader_threads),
        snapshot: said.snapshot,
        threads: settings.says("train.threads").then_some(settings.threads),
        lean: None,
        keep_norms: None,
        lstm_every: None,
    })
}

/// Blocks to compute again, of those that there are.
fn held_recompute(how: Recompute, blocks: usize) -> Result<usize, Fail> {
    how.of(blocks).ok_or_else(|| {
        let asked = match how {
            Recompute::Blocks(n) => n.to_string(),
            Recompute::All => "all".to_string(),
        };
        Fail::usage(format!(
            "`pin.recompute` (`--recompute`) must be at most the {blocks} blocks of the model, found `{asked}`"
        ))
    })
}

fn supervisor_bytes(supervisor: Supervisor, root: &Root, ours: Bytes) -> Bytes {
    match supervisor {
        // It waits in a system call; what it holds now, and its last words.
        Supervisor::Running(pid) => process_memory(root, pid).map_or(ours, |m| m.peak) + Bytes::kib(320),
        Supervisor::Later => ours + Bytes::kib(320),
    }
}

/// The hook that tags loader threads.
pub fn loader_hook() -> plimsoll_data::ThreadHook {
    Arc::new(|| heap::tag(Role::Loader))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_recompute_than_there_are_blocks_is_refused_with_both_numbers() {
        assert!(matches!(held_recompute(Recompute::Blocks(12), 12), Ok(12)));
        let refused = held_recompute(Recompute::Blocks(13), 12).unwrap_err();
        let fact = refused.fact.unwrap().to_string();
        assert_eq!(fact, "`pin.recompute` (`--recompute`) must be at most the 12 blocks of the model, found `13`");
    }

    #[test]
    fn a_rate_that_is_off_by_a_tenth_is_the_same_rate() {
        let rate = half_octave(1e6);
        assert_eq!((half_octave(0.95e6), half_octave(1.1e6)), (rate, rate));
        assert!((rate / 1e6 - 1.0).abs() < 0.2, "{rate}");
        assert!(half_octave(2e6) > rate);
    }

    #[test]
    fn weights_are_no_side_files() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in [("tokenizer.json", 700), ("spiece.model", 40), ("model.safetensors", 5000)] {
            fs_err::write(dir.path().join(name), vec![b' '; bytes]).unwrap();
        }
        assert_eq!(side_files(dir.path()).unwrap(), Bytes(740));
    }
}
