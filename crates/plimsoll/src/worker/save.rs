//! A checkpoint of a run: weights, optimizer state, and what is needed to go on exactly; and the final model.

use std::io::BufReader;
use std::path::{Path, PathBuf};

use plimsoll_data::{Cursor, DataFacts};
use plimsoll_engine::Engine;
use plimsoll_machine::Bytes;
use plimsoll_model::{Existing, TensorView, WeightFiles, save_model, write_safetensors};
use plimsoll_plan::choose::Plan;
use plimsoll_plan::t5::{Choices, optimizer_state};
use plimsoll_plan::tiles::Simd;
use plimsoll_recover::{checkpoint, room_for};
use plimsoll_watch::EvalResult;
use serde::{Deserialize, Serialize};

use super::run::{Run, Tally};
use crate::prepare::Prepared;
use crate::render::{Fail, OrFail};

const WEIGHTS: &str = "weights.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
/// The evaluations so far. A file of its own: a manifest has a longest length, a run has not.
const EVALS: &str = "evals.json";
/// Room for the heads of files and, each, for an evaluation.
const HEADS: u64 = 1 << 20;
const EVAL: u64 = 256;

/// What a checkpoint notes beside its tensors.
#[derive(Serialize, Deserialize)]
struct Facts {
    cursor: Cursor,
    data: DataFacts,
    simd: Simd,
    seed: u64,
    choices: Choices,
    source_len: usize,
    target_len: usize,
    /// The plan's peak, which the tally's peak belongs to.
    planned_ram: Bytes,
    total_steps: u64,
    tally: Tally,
    /// The evaluation of this step is not among those that were done.
    eval_due: bool,
}

impl Facts {
    /// In which way the run will not repeat what it would have done, under `plan` and `seed`.
    fn changes(&self, plan: &Plan, seed: u64) -> Vec<String> {
        let mut told = Vec::new();
        if self.simd != plan.simd {
            told.push("this machine has another instruction set: losses agree to rounding, not to the bit".to_string());
        }
        // How many threads read is no matter of arithmetic.
        let choices = Choices { loader_threads: plan.choices.loader_threads, ..self.choices };
        if choices != plan.choices {
            told.push("the plan has other choices than before: losses agree to rounding, not to the bit".to_string());
        }
        let (then, now) = ((self.source_len, self.target_len), (plan.source_len, plan.target_len));
        if then != now {
            told.push(format!(
                "the lengths were source {}, target {} and are source {}, target {}: losses will differ",
                then.0, then.1, now.0, now.1
            ));
        }
        if self.seed != seed {
            told.push(format!("the seed was {} and is {seed}: losses will differ", self.seed));
        }
        told
    }
}

/// What a run goes on from.
pub(super) struct Restored {
    pub step: u64,
    pub cursor: Cursor,
    pub tally: Tally,
    pub evals: Vec<EvalResult>,
    pub eval_due: bool,
    pub path: PathBuf,
    /// In which way it will not repeat what it would have done.
    pub changes: Vec<String>,
}

/// Names of all optimizer tensors: (name in the file, parameter, nth state).
fn state_names(engine: &Engine, prepared: &Prepared) -> Vec<(String, usize, usize)> {
    let mut names = Vec::new();
    for (index, place) in engine.program().store.params.iter().enumerate() {
        for (nth, (kind, _)) in optimizer_state(&prepared.job.optimizer, &place.param).iter().enumerate() {
            names.push((format!("{}.{kind}", place.param.name), index, nth));
        }
    }
    names
}

/// Every parameter, to be written.
fn views(engine: &Engine) -> Vec<TensorView<'_>> {
    let params = engine.program().store.params.iter().enumerate();
    params.map(|(i, p)| TensorView { name: &p.param.name, shape: &p.param.shape, data: engine.param(i) }).collect()
}

/// Writes a checkpoint after the current step and removes those that are no longer kept.
pub(super) fn save(run: &Run) -> Result<(PathBuf, Bytes), Fail> {
    let dir = run.folder.join("checkpoints");
    fs_err::create_dir_all(&dir)?;
    let names = state_names(&run.engine, &run.prepared);
    let weights = views(&run.engine);
    let shapes: Vec<[usize; 1]> = names.iter().map(|(_, index, nth)| [run.engine.state(*index, *nth).len()]).collect();
    let state: Vec<TensorView> = names
        .iter()
        .zip(&shapes)
        .map(|((name, index, nth), shape)| TensorView { name, shape, data: run.engine.state(*index, *nth) })
        .collect();
    let bytes: u64 = weights.iter().chain(&state).map(|t| t.data.len() as u64 * 4).sum();
    room_for(&dir, Bytes(bytes + HEADS + EVAL * run.evals.len() as u64))?;
    let mut writer = checkpoint::Writer::begin(&dir, run.step)?;
    for (name, tensors) in [(WEIGHTS, &weights), (OPTIMIZER, &state)] {
        writer.file(name, |sink| write_safetensors(sink, &[], tensors).map(drop).map_err(std::io::Error::other))?;
    }
    writer.file(EVALS, |sink| serde_json::to_writer(sink, &run.evals).map_err(std::io::Error::from))?;
    let plan = &run.prepared.plan;
    let facts = Facts {
        cursor: run.cursor,
        data: *run.prepared.sources.facts(),
        simd: plan.simd,
        seed: run.settings.seed,
        choices: plan.choices,
        source_len: plan.source_len,
        target_len: plan.target_len,
        planned_ram: plan.ram.peak,
        total_steps: run.prepared.steps,
        tally: run.tally,
        eval_due: run.eval_due,
    };
    let written = writer.bytes();
    let path = writer.finish(serde_json::to_value(&facts).or_failed()?)?;
    checkpoint::retain(&dir, run.settings.keep as usize, &[])?;
    Ok((path, written))
}

/// Fills the engine from the newest whole checkpoint, if there is one.
pub(super) fn load(
    folder: &Path,
    engine: &mut Engine,
    prepared: &Prepared,
    seed: u64,
) -> Result<Option<Restored>, Fail> {
    let dir = folder.join("checkpoints");
    if !dir.is_dir() {
        return Ok(None);
    }
    let latest = checkpoint::latest_complete(&dir)?;
    for skipped in &latest.skipped {
        crate::render::talk(format!(
            "the checkpoint of step {} is not whole and is passed over: {}",
            skipped.step, skipped.reason
        ));
    }
    let Some(manifest) = latest.manifest else {
        if !latest.skipped.is_empty() {
            crate::render::talk("no checkpoint is whole: beginning again at step 1");
        }
        return Ok(None);
    };
    let facts: Facts = serde_json::from_value(manifest.facts.clone()).or_usage()?;
    same_data(manifest.step, &facts.data, prepared.sources.facts())?;
    let weights = WeightFiles::open_file(manifest.path().join(WEIGHTS)).or_usage()?;
    for index in 0..engine.program().store.params.len() {
        let name = engine.program().store.params[index].param.name.clone();
        weights.fill(&name, engine.param_mut(index)).or_usage()?;
    }
    let names = state_names(engine, prepared);
    if !names.is_empty() {
        let state = WeightFiles::open_file(manifest.path().join(OPTIMIZER)).or_usage()?;
        for (name, index, nth) in names {
            state.fill(&name, engine.state_mut(index, nth)).or_usage()?;
        }
    }
    let evals = serde_json::from_reader(BufReader::new(manifest.open_file(EVALS).or_usage()?)).or_usage()?;
    let changes = facts.changes(&prepared.plan, seed);
    let Facts { cursor, mut tally, eval_due, planned_ram, .. } = facts;
    if planned_ram != prepared.plan.ram.peak {
        // Planned and measured belong together: what was measured under another plan says nothing about this one.
        tally.peak_ram = 0;
    }
    let path = manifest.path().to_path_buf();
    Ok(Some(Restored { step: manifest.step, cursor, tally, evals, eval_due, path, changes }))
}

/// A cursor means something only in the data that it was taken in.
fn same_data(step: u64, then: &DataFacts, now: &DataFacts) -> Result<(), Fail> {
    let marks = |facts: &DataFacts| (facts.rows, facts.files, facts.blocks, facts.longest_source, facts.longest_target);
    if marks(then) == marks(now) {
        return Ok(());
    }
    let told = |facts: &DataFacts| {
        let DataFacts { rows, files, longest_source, longest_target, .. } = facts;
        format!("{rows} rows in {files} file(s), the longest texts {longest_source} and {longest_target} bytes")
    };
    let fact =
        format!("the training data is not what it was at step {step}: expected {}, found {}", told(then), told(now));
    Err(Fail::usage(fact).hint("put the files back as they were, or start a new run"))
}

/// Writes the model in Hugging Face's layout.
pub(super) fn save_final(run: &Run, dir: &Path) -> Result<(), Fail> {
    let folder = &run.prepared.folder;
    Ok(save_model(dir, folder.config(), folder.spec(), &views(&run.engine), folder.dir(), Existing::Replace)?)
}
