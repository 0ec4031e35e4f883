//! A checkpoint of a run: weights, optimizer state, and what is needed to go on exactly.
//!
//! A checkpoint is written from the engine while nothing runs, or from a snapshot while everything does: `Tensors` is
//! what both are to the writer.

use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_data::series::SeriesFacts;
use plimsoll_data::{Cursor, DataFacts};
use plimsoll_engine::cuda::LossScale;
use plimsoll_engine::{Snapshot, Stepper};
use plimsoll_machine::Bytes;
use plimsoll_model::{ModelError, StoredTensor, WeightFiles, write_stored};
use plimsoll_plan::choices::Choices;
use plimsoll_plan::choose::Plan;
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::store::optimizer_state;
use plimsoll_plan::tiles::Simd;
use plimsoll_recover::{checkpoint, room_for};
use plimsoll_watch::{EvalResult, SaveReason};
use serde::{Deserialize, Serialize};

use super::early_stop;
use super::run::{Run, Tally};
use super::weights::fill_frozen;
use crate::prepare::{Prepared, RunData};
use crate::render::{Fail, OrFail};

pub(super) const WEIGHTS: &str = "weights.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
/// The evaluations so far. A file of its own: a manifest has a longest length, a run has not.
const EVALS: &str = "evals.json";
/// Room for the heads of files and two matrices, for an evaluation, and for an error of a value in it.
const HEADS: u64 = 1 << 20;
const EVAL: u64 = 256;
const ERROR: u64 = 26;

/// What a checkpoint notes beside its tensors.
#[derive(Serialize, Deserialize)]
pub(super) struct Facts {
    cursor: Cursor,
    data: DataFacts,
    /// What the series are, where it is trained on some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<SeriesFacts>,
    simd: Simd,
    pub seed: u64,
    choices: Choices,
    source_len: usize,
    target_len: usize,
    /// The plan's peak, which the tally's peak belongs to.
    planned_ram: Bytes,
    total_steps: u64,
    tally: Tally,
    /// The evaluation of this step is not among those that were done.
    eval_due: bool,
    /// Why it was written.
    #[serde(default)]
    reason: SaveReason,
    /// The step with the best evaluation so far, and its loss.
    #[serde(default)]
    best_step: Option<u64>,
    #[serde(default)]
    best_loss: Option<f64>,
    /// The last checkpoint that was made because the run was stopping.
    #[serde(default)]
    exit_step: Option<u64>,
    /// Of a run in f16: what the loss is multiplied by, and since how many updates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    loss_scale: Option<(f32, u32)>,
    /// Blocks of a window, on which the order of rows depends.
    #[serde(default)]
    window: Option<usize>,
}

impl Facts {
    /// Those of a checkpoint.
    pub fn of(manifest: &checkpoint::Manifest) -> Result<Facts, Fail> {
        serde_json::from_value(manifest.facts.clone()).or_usage()
    }

    /// In which way the run will not repeat what it would have done, under `plan` and `seed`.
    fn changes(&self, plan: &Plan, seed: u64, window: usize) -> Vec<String> {
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
        if let Some(then) = self.window.filter(|then| *then != window) {
            told.push(format!(
                "a window of the shuffle had {then} blocks and has {window}: some rows of this pass come twice, others not at all"
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
    pub exit_step: Option<u64>,
    pub path: PathBuf,
    /// In which way it will not repeat what it would have done.
    pub changes: Vec<String>,
}

/// What holds the tensors of a checkpoint.
pub(super) trait Tensors {
    /// Writes a trained parameter, as it is stored.
    fn write_param(&self, index: usize, sink: &mut dyn Write) -> io::Result<()>;
    /// Writes optimizer state.
    fn write_state(&self, index: usize, nth: usize, sink: &mut dyn Write) -> io::Result<()>;
}

impl Tensors for Stepper {
    fn write_param(&self, index: usize, sink: &mut dyn Write) -> io::Result<()> {
        match self {
            Stepper::Cpu(engine) => sink.write_all(engine.param_bytes(index)),
            Stepper::Card(engine) => engine.write_param(index, sink),
        }
    }

    fn write_state(&self, index: usize, nth: usize, sink: &mut dyn Write) -> io::Result<()> {
        match self {
            Stepper::Cpu(engine) => sink.write_all(bytemuck::cast_slice(engine.state(index, nth))),
            Stepper::Card(engine) => engine.write_state(index, nth, sink),
        }
    }
}

impl Tensors for Snapshot {
    fn write_param(&self, index: usize, sink: &mut dyn Write) -> io::Result<()> {
        sink.write_all(self.param_bytes(index))
    }

    fn write_state(&self, index: usize, nth: usize, sink: &mut dyn Write) -> io::Result<()> {
        sink.write_all(bytemuck::cast_slice(self.state(index, nth)))
    }
}

/// A parameter of a checkpoint.
struct Param {
    index: usize,
    name: String,
    shape: Vec<usize>,
    dtype: Dtype,
}

/// Optimizer state of a checkpoint.
struct State {
    name: String,
    /// Parameter, and which of its states.
    of: (usize, usize),
    words: [usize; 1],
}

/// Names and shapes of the tensors of a checkpoint; the same over a whole run. What is only read is in the model's files.
pub(super) struct Layout {
    params: Vec<Param>,
    states: Vec<State>,
    /// Of all tensors.
    bytes: Bytes,
}

impl Layout {
    pub fn of(engine: &Stepper, prepared: &Prepared) -> Layout {
        let store = &engine.program().store;
        let places = &store.params;
        let (mut params, mut states, mut bytes) = (Vec::new(), Vec::new(), 0);
        for (index, place) in places.iter().enumerate().filter(|(_, place)| place.changes()) {
            let (name, shape) = (place.param.name.clone(), place.param.shape.clone());
            // Running statistics have none.
            let state = optimizer_state(&prepared.job.optimizer, &place.param);
            for (nth, (kind, _)) in state.iter().enumerate().take(place.state.len()) {
                let words = store.tensors[place.state[nth].0 as usize].words;
                bytes += words * 4;
                states.push(State { name: format!("{name}.{kind}"), of: (index, nth), words: [words] });
            }
            bytes += place.param.elements() * if engine.dtype(index) == Dtype::F32 { 4 } else { 2 };
            params.push(Param { index, name, shape, dtype: engine.dtype(index) });
        }
        Layout { params, states, bytes: Bytes(bytes as u64) }
    }

    fn write_params(&self, from: &impl Tensors, sink: &mut dyn Write) -> Result<u64, ModelError> {
        let tensors: Vec<StoredTensor<'_>> =
            self.params.iter().map(|p| StoredTensor { name: &p.name, shape: &p.shape, dtype: p.dtype }).collect();
        write_stored(sink, &tensors, |nth, sink| from.write_param(self.params[nth].index, sink))
    }

    fn write_states(&self, from: &impl Tensors, sink: &mut dyn Write) -> Result<u64, ModelError> {
        let tensors: Vec<StoredTensor<'_>> =
            self.states.iter().map(|s| StoredTensor { name: &s.name, shape: &s.words, dtype: Dtype::F32 }).collect();
        write_stored(sink, &tensors, |nth, sink| from.write_state(self.states[nth].of.0, self.states[nth].of.1, sink))
    }
}

/// One checkpoint, ready to be written by any thread.
pub(super) struct Content {
    pub step: u64,
    dir: PathBuf,
    layout: Arc<Layout>,
    evals: Vec<EvalResult>,
    facts: serde_json::Value,
    keep: usize,
    protected: Vec<u64>,
}

impl Content {
    /// What a checkpoint of the present step holds, its tensors aside.
    pub fn of(run: &Run, reason: SaveReason) -> Result<Content, Fail> {
        let plan = &run.prepared.plan;
        let best = early_stop::best(&run.evals, early_stop::measure(&run.settings));
        let exit_step = if reason == SaveReason::Exit { Some(run.step) } else { run.exit_step };
        let facts = Facts {
            cursor: run.cursor,
            data: data_facts(&run.prepared.data).0,
            series: data_facts(&run.prepared.data).1,
            simd: plan.simd,
            seed: run.settings.seed,
            choices: plan.choices,
            source_len: plan.source_len,
            target_len: plan.target_len,
            planned_ram: plan.ram.peak,
            total_steps: run.prepared.steps,
            tally: run.tally,
            eval_due: run.eval_due,
            reason,
            best_step: best.map(|best| best.step),
            best_loss: best.map(|best| best.loss),
            exit_step,
            loss_scale: run.engine.loss_scale().map(|LossScale { scale, good }| (scale, good)),
            window: Some(run.prepared.data.order().window_blocks()),
        };
        Ok(Content {
            step: run.step,
            dir: run.folder.join("checkpoints"),
            layout: run.layout.clone(),
            evals: run.evals.clone(),
            facts: serde_json::to_value(&facts).or_failed()?,
            keep: run.settings.keep as usize,
            protected: best.map(|best| best.step).into_iter().chain(exit_step).collect(),
        })
    }

    /// What it takes on disk.
    pub fn bytes(&self) -> Bytes {
        let errors = self.evals.iter().filter_map(|eval| eval.scores.as_ref());
        let errors: usize = errors.map(|scores| scores.mae.len() + scores.rmse.len()).sum();
        self.layout.bytes + Bytes(HEADS + EVAL * self.evals.len() as u64 + ERROR * errors as u64)
    }

    /// Writes it, and removes those that are no longer kept; `waiting` are steps that the mirror still lacks.
    pub fn write(&self, tensors: &impl Tensors, waiting: &[u64]) -> Result<(PathBuf, Bytes), Fail> {
        fs_err::create_dir_all(&self.dir)?;
        room_for(&self.dir, self.bytes())?;
        let mut writer = checkpoint::Writer::begin(&self.dir, self.step)?;
        let layout = &self.layout;
        writer.file(WEIGHTS, |sink| layout.write_params(tensors, sink).map(drop).map_err(io::Error::other))?;
        writer.file(OPTIMIZER, |sink| layout.write_states(tensors, sink).map(drop).map_err(io::Error::other))?;
        writer.file(EVALS, |sink| serde_json::to_writer(sink, &self.evals).map_err(io::Error::from))?;
        let written = writer.bytes();
        let path = writer.finish(self.facts.clone())?;
        let mut protected = self.protected.clone();
        // What is not mirrored yet stays as long as the disk has room for it and another checkpoint.
        if room_for(&self.dir, self.bytes() * 2).is_ok() {
            protected.extend(waiting);
        }
        // The checkpoint is written; an old one that cannot be removed is tried again after the next.
        if let Err(error) = checkpoint::retain(&self.dir, self.keep, &protected) {
            crate::render::talk(format!("an old checkpoint cannot be removed: {error}"));
        }
        Ok((path, written))
    }
}

/// The evaluations that were done when a checkpoint was written; that of its own step comes after it.
pub(super) fn evals_of(manifest: &checkpoint::Manifest) -> Result<Vec<EvalResult>, Fail> {
    serde_json::from_reader(BufReader::new(manifest.open_file(EVALS).or_usage()?)).or_usage()
}

/// Fills the engine from the newest whole checkpoint, if there is one.
pub(super) fn load(
    folder: &Path,
    engine: &mut Stepper,
    prepared: &Prepared,
    layout: &Layout,
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
    let facts = Facts::of(&manifest)?;
    let (data, series) = data_facts(&prepared.data);
    same_data(manifest.step, &facts.data, &data)?;
    same_series(manifest.step, facts.series.as_ref(), series.as_ref())?;
    let weights = WeightFiles::open_file(manifest.path().join(WEIGHTS)).or_usage()?;
    for Param { index, name, .. } in &layout.params {
        engine.fill_param(*index, |first, out| weights.fill_part(name, first, out))?.or_usage()?;
    }
    fill_frozen(engine, prepared, seed)?;
    if !layout.states.is_empty() {
        let state = WeightFiles::open_file(manifest.path().join(OPTIMIZER)).or_usage()?;
        for State { name, of: (index, nth), .. } in &layout.states {
            engine.fill_state(*index, *nth, |first, out| state.fill_part(name, first, out))?.or_usage()?;
        }
    }
    let evals = evals_of(&manifest)?;
    let changes = facts.changes(&prepared.plan, seed, prepared.data.order().window_blocks());
    let Facts { cursor, mut tally, eval_due, planned_ram, exit_step, loss_scale, .. } = facts;
    if let Some((scale, good)) = loss_scale {
        let scale = LossScale { scale, good };
        if !scale.is_valid() {
            let fact = format!("the checkpoint of step {} has a loss scale that no run has: {scale:?}", manifest.step);
            return Err(Fail::usage(fact));
        }
        engine.set_loss_scale(scale);
    }
    if planned_ram != prepared.plan.ram.peak {
        // Planned and measured belong together: what was measured under another plan says nothing about this one.
        (tally.peak_ram, tally.peak_vram) = (0, 0);
    }
    let path = manifest.path().to_path_buf();
    Ok(Some(Restored { step: manifest.step, cursor, tally, evals, eval_due, exit_step, path, changes }))
}

/// What tells the data of a run from others.
fn data_facts(data: &RunData) -> (DataFacts, Option<SeriesFacts>) {
    match data {
        RunData::Texts(texts) => (*texts.sources.facts(), None),
        RunData::Series(windows) => (DataFacts::default(), Some(*windows.series.facts())),
    }
}

/// The series that a run is trained on, as its newest checkpoint has them.
pub fn series_of(run: &Path) -> Option<SeriesFacts> {
    let found = checkpoint::list(&run.join("checkpoints")).ok()?;
    let newest = found.iter().rev().find(|found| found.state == checkpoint::State::Complete)?;
    Facts::of(&checkpoint::Manifest::read(&newest.path).ok()?).ok()?.series
}

/// Series are the same where every number, every window and what they are normalised by is.
pub(super) fn same_series(step: u64, then: Option<&SeriesFacts>, now: Option<&SeriesFacts>) -> Result<(), Fail> {
    let marks = |facts: &SeriesFacts| (facts.digest, facts.normalised, facts.training_samples, facts.cut);
    if then.map(marks) == now.map(marks) {
        return Ok(());
    }
    let told = |facts: Option<&SeriesFacts>| match facts {
        None => "texts".to_string(),
        Some(SeriesFacts { rows, series, training_samples, digest, normalised, .. }) => format!(
            "{rows} rows of {series} series, {training_samples} windows, digest {digest:016x}, normalised by {normalised:016x}"
        ),
    };
    let fact =
        format!("the training data is not what it was at step {step}: expected {}, found {}", told(then), told(now));
    Err(Fail::usage(fact).hint("put the files back as they were, or start a new run"))
}

/// A cursor means something only in the data that it was taken in.
fn same_data(step: u64, then: &DataFacts, now: &DataFacts) -> Result<(), Fail> {
    let marks = |facts: &DataFacts| (facts.rows, facts.files, facts.blocks, facts.longest_source, facts.longest_target);
    if marks(then) == marks(now) {
        if then.mixture == now.mixture {
            return Ok(());
        }
        let fact = format!("the sets and weights of the training data are not those of step {step}");
        return Err(Fail::usage(fact).hint("put `data.mixture` in its job.toml back as it was, or start a new run"));
    }
    let told = |facts: &DataFacts| {
        let DataFacts { rows, files, blocks, longest_source, longest_target, .. } = facts;
        format!(
            "{rows} rows in {files} file(s) and {blocks} blocks, the longest texts {longest_source} and {longest_target} bytes"
        )
    };
    let fact =
        format!("the training data is not what it was at step {step}: expected {}, found {}", told(then), told(now));
    Err(Fail::usage(fact).hint("put the files back as they were, or start a new run"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_of_other_rows_or_other_weights_is_refused() {
        let facts = DataFacts { rows: 7, mixture: 3, ..DataFacts::default() };
        assert!(same_data(4, &facts, &facts).is_ok());
        let told = |now: DataFacts| same_data(4, &facts, &now).unwrap_err().fact.unwrap().to_string();
        let weights = told(DataFacts { mixture: 4, ..facts });
        assert_eq!(weights, "the sets and weights of the training data are not those of step 4");
        assert!(told(DataFacts { rows: 8, ..facts }).contains("expected 7 rows in 0 file(s)"));
    }
}
