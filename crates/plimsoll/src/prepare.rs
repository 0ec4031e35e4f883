//! From settings to a decision: opens model and data, loads the tokenizer, measures what no formula gives, plans.
//!
//! Everything that can be known to be wrong before step 1 is found here, and nothing is written.

mod budget;
mod data;
mod history;
pub mod samples;
mod texts;
mod trained;
mod windows;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_engine::cuda::{Card, Hold};
use plimsoll_machine::{Bytes, Root, gpu_memory_used, own_mapped_files, own_memory, process_memory};
use plimsoll_model::{ModelFolder, SeriesInput, WeightFiles};
use plimsoll_plan::card::CardTerms;
use plimsoll_plan::choose::{Decision, Pins, Plan, Terms, Verdict, choose, decide, with_rungs};
use plimsoll_plan::device::{CudaForm, Device};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::footprint::{CardOverheads, DiskFacts, Overheads};
use plimsoll_plan::op::LSTM_BLOCK;
use plimsoll_plan::program::{Job, Program};
use plimsoll_plan::series_matrix::AttentionMatrix;
use plimsoll_plan::spec::{ModelSpec, SeriesSpec};
use plimsoll_recover::{FAULT_AROUND, mapped_by_a_fault};

use self::budget::Budgets;
pub use self::data::{RunData, Texts, Windows};
use self::history::History;
pub use self::windows::{
    SeriesReading, loading, may_have_seen, normalisation_of, open_series_by, open_series_files, series_input,
    told_unknown,
};
use crate::args::Init;
use crate::heap::{self, Role};
use crate::job::recompute::Recompute;
use crate::render::{Fail, OrFail};
use crate::settings::Settings;
use crate::{card_rates, rates};

/// Batches that the loader holds ready.
pub const PREFETCH: usize = 2;
/// Stack that a thread touches, measured with deep tokenizers and every kernel.
const STACK: Bytes = Bytes::kib(96);
/// What a phase of a run (steps, evaluation, save) touches of program and libraries. Measured as `RssFile` at the peak of
/// the jobs of `tests/contract.rs`: over series 7.5 to 9.4 MiB, over texts 8.1 to 13.2; release builds are smaller. Such
/// pages are clean: under pressure the kernel drops them, and what is above this is within the reserve.
const CODE: Bytes = Bytes::mib(9);
/// What tokenizers and readers of texts add to it.
const TEXT_CODE: Bytes = Bytes::kib(1536);
/// What chat templates add to it.
const TEMPLATE_CODE: Bytes = Bytes::mib(1);
/// What reading from stores adds: HTTP, and TLS, which a test against plain HTTP does not see.
const NETWORK_CODE: Bytes = Bytes::mib(6);
/// Everything that a run is made from.
pub struct Prepared {
    /// The model's folder.
    pub folder: ModelFolder,
    /// Its weights, unless they are drawn.
    pub weights: Option<WeightFiles>,
    /// What it is trained on.
    pub data: RunData,
    /// Weight updates of the whole run.
    pub steps: u64,
    /// What is to be trained.
    pub job: Job,
    /// The plan.
    pub plan: Plan,
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

/// Model and data, opened, and what they cost whatever the plan chooses.
struct Opened {
    folder: ModelFolder,
    weights: Option<WeightFiles>,
    data: RunData,
    job: Job,
    /// Weight updates of the whole run.
    steps: u64,
    costs: DataCosts,
}

/// What data cost.
struct DataCosts {
    /// The tokenizer's tables.
    tokenizer: Bytes,
    /// Rows that are held in memory.
    rows: Bytes,
    /// Heap of the loader, and of the one that evaluates, for micro-batches of so many samples by so many threads.
    loader: Box<dyn Fn(usize, usize) -> Bytes>,
    /// Tokens a second of one thread.
    loader_rate: f64,
    most_loader_threads: usize,
    /// What an evaluation holds besides.
    evaluation: Bytes,
    /// Values and cells of a matrix that an evaluation tells, of series.
    values: u64,
    cells: u64,
    /// What was written to the cache to be read in parts.
    unpacked: Bytes,
    /// What is fetched from elsewhere.
    fetched: Bytes,
    /// Files that the final model takes over.
    side_files: Bytes,
}

/// Weights and config, or the config alone.
pub fn open_model(settings: &Settings, data: Option<SeriesInput>) -> Result<(ModelFolder, Option<WeightFiles>), Fail> {
    Ok(match settings.init {
        Init::Random => (ModelFolder::open_for(&settings.model, data).or_usage()?, None),
        Init::Weights => {
            let (folder, weights) = ModelFolder::open_with_weights(&settings.model).or_usage()?;
            data.map_or(Ok(()), |data| folder.must_take(data)).or_usage()?;
            (folder, Some(weights))
        }
    })
}

/// The job as it was begun: under the rungs that its first plan took.
fn as_begun(job: Job, bound: &Bound) -> Result<Job, Fail> {
    let Some(rungs) = &bound.rungs else { return Ok(job) };
    with_rungs(&job, rungs).ok_or_else(|| {
        let fact = format!("the run was begun with {}, which its job does not allow any more", rungs.join("; "));
        Fail::usage(fact).hint("put `[allow]` in its job.toml back as it was")
    })
}

/// Where steps run.
fn device(settings: &Settings) -> Device {
    settings.card.map_or(Device::Cpu, |form| Device::Cuda(CudaForm::of(form)))
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
    let opened = match &settings.series {
        None => texts::open(settings, &bound, &mut remarks)?,
        Some(asked) => windows::open(settings, asked, &bound, &mut remarks)?,
    };
    let Opened { folder, weights, data, job, steps, costs } = opened;
    let loader = &*costs.loader;
    let history = match data.evaluates() {
        true => History { values: costs.values, cells: costs.cells, ..History::of(steps, settings.eval_every) },
        false => History::default(),
    };
    let rates = rates::rates(&root, job.threads, job.simd)?;
    heap::trim();
    // Held until everything is measured: what CUDA takes of RAM is part of the program then.
    let hold = settings.card.map(|form| Hold::open(0, form)).transpose().or_usage();
    let hold = hold.map_err(|fail| fail.hint("`train.device` = `auto` (`--device auto`) runs it on the CPU then"))?;
    let pins = pins(settings, &job.spec)?;
    let (unpacked, fetched) = (costs.unpacked, costs.fetched);
    let Budgets { ram, ram_there, disk, disk_there } =
        budget::budgets(settings, supervisor, &root, (run, unpacked + fetched), &mut remarks)?;
    let mut terms = Terms {
        ram,
        ram_there,
        disk,
        disk_there,
        disk_facts: DiskFacts {
            keep: settings.keep as usize,
            best: data.evaluates(),
            side_files: costs.side_files,
            unpacked,
            fetched,
            steps,
            evaluations: history.saved(),
            evaluation_lines: history.lines(),
        },
        overheads: Overheads {
            program: at_start.rss,
            tokenizer: costs.tokenizer,
            rows: costs.rows,
            startup_peak: Bytes::ZERO,
            supervisor: supervisor_bytes(supervisor, &root, at_start.rss),
            // The writer's buffer, the header of the file, and the manifest. Evaluations so far are there all the time, so that they
            // are in the line of whichever is the larger.
            checkpoint_writer: plimsoll_recover::checkpoint::BUFFER + Bytes::kib(256) + history.ram(),
            evaluation: costs.evaluation + history.ram(),
            stack: STACK,
            mirror: if settings.mirror.is_some() { plimsoll_mirror::MEMORY } else { Bytes::ZERO },
        },
        rates,
        loader_rate: costs.loader_rate,
        most_loader_threads: costs.most_loader_threads,
        pins,
        held: bound.choices,
        saves: settings.save_every.is_some() || settings.save_minutes.is_some(),
        loader,
        card: hold.as_ref().map(|hold| card_terms(settings, hold, others, &mut remarks)).transpose()?,
    };
    // Planned twice: the first plan's tapes are themselves memory, and are there when the second looks.
    let first = decide(&job, &terms);
    if let Some(hold) = hold.as_ref().filter(|_| first.plan.verdict == Verdict::Fits) {
        hold.rehearse(&first.program, &first.job.optimizer, Some(kernel_folder())).or_failed()?;
    }
    heap::trim();
    // What was needed to come this far is needed once; the peak of the start has its own line.
    let started = own_memory(&root)?;
    plimsoll_recover::shed();
    let now = own_memory(&root)?;
    let code = if matches!(data, RunData::Texts(_)) { CODE + TEXT_CODE } else { CODE };
    let code = if data.has_templates() { code + TEMPLATE_CODE } else { code };
    let code = if fetched > Bytes::ZERO { code + NETWORK_CODE } else { code };
    let code = match &hold {
        // CUDA's libraries, as far as they are used, and what the driver maps.
        Some(_) => started.rss_file + started.rss_shmem + CARD_HOST,
        None => own_mapped_files(&root)?.min(spread(code)),
    };
    terms.overheads.program = now.rss_anon.saturating_sub(costs.tokenizer + costs.rows) + code;
    terms.overheads.startup_peak = started.peak;
    drop(first);
    let more = more(&job, &terms);
    let Decision { mut plan, program, job } = choose(&job, &terms);
    // A plan may have taken shorter samples than were asked for.
    data.check_fit(&job)?;
    if let Some(rungs) = bound.rungs {
        plan.rungs = rungs;
    }
    let matrix = job.spec.series().and_then(|spec| AttentionMatrix::of(spec, plan.micro_batch));
    remarks.extend(matrix.map(|matrix| matrix.to_string()));
    let choices = plan.choices;
    let loader_planned = loader(job.staged(&choices), choices.loader_threads);
    let prepared =
        Prepared { folder, weights, data, steps, job, plan, loader_planned, others_on_card: others, remarks };
    Ok((prepared, program, more))
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

/// Where compiled kernels are kept.
pub fn kernel_folder() -> PathBuf {
    rates::cache_folder().join("kernels")
}

/// RAM that loading a program's kernels and capturing its steps adds to what CUDA has taken before.
const CARD_HOST: Bytes = Bytes::mib(64);
/// One part in so many of the card is left alone unless a budget says otherwise.
const CARD_MARGIN: u64 = 100;
/// Kernels, and what the matrix library loads after its first product. Measured on an H200: 2 to 4 MiB.
const CARD_MODULES: Bytes = Bytes::mib(6);

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
        lstm_every: said.lstm_every.map(|every| held_distance(every as usize, spec)).transpose()?,
    })
}

/// How far apart cells of an LSTM are kept, in the whole blocks that they are kept in; 0 where nothing is computed again.
fn held_distance(every: usize, spec: &ModelSpec) -> Result<usize, Fail> {
    let Some(steps) = spec.series().map(SeriesSpec::lstm_steps) else {
        let fact = "`pin.lstm_every` (`--lstm-every`) is for models of series, and this is one of texts";
        return Err(Fail::usage(fact));
    };
    let whole = every.next_multiple_of(LSTM_BLOCK);
    Ok(if whole < steps { whole } else { 0 })
}

/// What is resident of a program where faults map more of its file than where that was measured, in percent. What a fault maps is
/// mostly touched as well: pieces of 128 KiB to 2 MiB took 1.07 to 1.54 times the memory of pieces of 64 KiB.
const MOST_SPREAD: u64 = 175;

/// Program that is resident on this machine, of so much where faults map [`FAULT_AROUND`].
fn spread(code: Bytes) -> Bytes {
    let mapped = mapped_by_a_fault().unwrap_or(FAULT_AROUND).max(FAULT_AROUND);
    Bytes(code.0 * (100 * mapped / FAULT_AROUND).min(MOST_SPREAD) / 100)
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
        Supervisor::Later => ours + SUPERVISOR_MORE + Bytes::kib(320),
    }
}

/// What a supervisor has taken more, when its worker plans, than a process that only plans had at its start: 0.5 MiB in eight starts of
/// `plimsoll train` beside forty of `plimsoll plan`, whose figures were up to 0.4 MiB apart among themselves. A budget that `plan` says is
/// enough must not be refused by `train`.
const SUPERVISOR_MORE: Bytes = Bytes::mib(1);

/// The hook that tags loader threads.
pub fn loader_hook() -> plimsoll_data::ThreadHook {
    Arc::new(|| heap::tag(Role::Loader))
}

#[cfg(test)]
mod tests {
    use plimsoll_plan::spec::T5Spec;

    use super::*;

    #[test]
    fn more_recompute_than_there_are_blocks_is_refused_with_both_numbers() {
        assert!(matches!(held_recompute(Recompute::Blocks(12), 12), Ok(12)));
        let refused = held_recompute(Recompute::Blocks(13), 12).unwrap_err();
        let fact = refused.fact.unwrap().to_string();
        assert_eq!(fact, "`pin.recompute` (`--recompute`) must be at most the 12 blocks of the model, found `13`");
    }

    #[test]
    fn steps_apart_are_whole_blocks_of_a_model_that_has_steps() {
        let flat = ModelSpec::Series(SeriesSpec::hybrid_v1(110));
        let taken = |every: usize| held_distance(every, &flat).unwrap();
        assert_eq!([taken(0), taken(1), taken(64), taken(65), taken(825), taken(4000)], [0, 64, 64, 128, 0, 0]);
        let fact = held_distance(64, &ModelSpec::T5(T5Spec::small())).unwrap_err().fact.unwrap().to_string();
        assert_eq!(fact, "`pin.lstm_every` (`--lstm-every`) is for models of series, and this is one of texts");
    }
}
