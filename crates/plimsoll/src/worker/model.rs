//! The model of a run as a folder: what it ends with, or what any of its checkpoints holds.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use plimsoll_data::series::{Normalisation, SeriesFacts};
use plimsoll_model::init::fill_random_part;
use plimsoll_model::{
    Existing, ModelError, ModelFolder, TensorSource, WeightFiles, WriteText, save_adapter, save_model, save_series,
};
use plimsoll_plan::choose::{Plan, adapts};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::spec::{ModelSpec, Param};
use plimsoll_plan::trained::TrainSpec;
use plimsoll_recover::checkpoint::{self, Manifest};
use plimsoll_watch::{EvalResult, Event};

use super::early_stop;
use super::run::Run;
use super::save::{Facts, WEIGHTS, evals_of, same_series};
use crate::args::Which;
use crate::doctor::read_journal;
use crate::prepare::{RunData, normalisation_of, open_model, open_series_by, series_input};
use crate::render::{Fail, OrFail};
use crate::settings::Settings;

/// What a folder is written from, besides its tensors.
struct Description<'a> {
    folder: &'a ModelFolder,
    train: &'a TrainSpec,
    dtype: Dtype,
    /// What features are normalised by, of a model of series.
    normalisation: Option<&'a Normalisation>,
}

impl Description<'_> {
    /// Writes it in Hugging Face's layout: whole, or LoRA's factors as PEFT has them; of series as PyTorch has it.
    fn write(&self, dir: &Path, tensors: &mut dyn TensorSource, existing: Existing) -> Result<(), ModelError> {
        let Description { folder, train, dtype, normalisation } = self;
        match (train, folder.spec()) {
            (TrainSpec::Lora(lora), spec) => {
                let base = folder.dir().to_string_lossy();
                save_adapter(dir, lora, spec, &base, tensors, folder.dir(), existing)
            }
            (_, ModelSpec::Series(spec)) => {
                let of = *normalisation;
                let write = |out: &mut dyn Write| of.map_or(Ok(()), |of| of.write_json(out));
                let write = of.is_some().then_some(&write as WriteText<'_>);
                save_series(dir, spec, *dtype, tensors, write, existing)
            }
            (_, spec) => save_model(dir, folder.config(), spec, *dtype, tensors, folder.dir(), existing),
        }
    }
}

/// A model whose every matrix is stored in bf16 loses nothing by being written so.
fn written_in(mut matrices: impl Iterator<Item = Dtype>) -> Dtype {
    if matrices.all(|dtype| dtype == Dtype::Bf16) { Dtype::Bf16 } else { Dtype::F32 }
}

/// Writes what the run ends with.
pub(super) fn save_final(run: &Run, dir: &Path) -> Result<(), Fail> {
    let (folder, engine) = (&run.prepared.folder, &run.engine);
    let params = &engine.program().store.params;
    let places: HashMap<&str, usize> =
        params.iter().enumerate().map(|(index, place)| (place.param.name.as_str(), index)).collect();
    // What the engine says of a failed read stands for what the writer makes of it.
    let lost = std::cell::Cell::new(None);
    let mut read = |name: &str, first: usize, out: &mut [f32]| -> Result<(), ModelError> {
        let index = places.get(name).ok_or_else(|| ModelError::NotGiven { tensor: name.into() })?;
        // What is only read may be held in fewer bits on a card than its file has.
        if let (Some(files), false, Some(_)) = (&run.prepared.weights, params[*index].trained, engine.card()) {
            return files.fill_part(name, first, out);
        }
        engine.read_param(*index, first, out).map_err(|e| {
            lost.set(Some(e));
            ModelError::NotGiven { tensor: name.into() }
        })
    };
    let matrices = params.iter().enumerate().filter(|(_, place)| place.param.shape.len() > 1);
    let description = Description {
        folder,
        train: &run.prepared.job.train,
        dtype: written_in(matrices.map(|(index, _)| engine.dtype(index))),
        normalisation: match &run.prepared.data {
            RunData::Series(windows) => Some(windows.series.normalisation()),
            RunData::Texts(_) => None,
        },
    };
    let saved = description.write(dir, &mut read, Existing::Replace);
    lost.take().map_or_else(|| Ok(saved?), |e| Err(e.into()))
}

/// Writes the model that a checkpoint of a run holds, every byte of it checked, and says of which step it is.
pub fn save_of_checkpoint(run: &Path, which: Which, out: &Path) -> Result<u64, Fail> {
    let settings = Settings::from_run(run)?;
    let plan: Plan = serde_json::from_slice(&fs_err::read(run.join("plan.json")).or_usage()?).or_usage()?;
    let manifest = find(run, &settings, which)?;
    let facts = Facts::of(&manifest)?;
    let trained = WeightFiles::open_file(manifest.path().join(WEIGHTS)).or_usage()?;
    let (folder, files) = open_model(&settings, settings.series.as_ref().map(series_input))?;
    let spec = folder.spec();
    let allowed = settings.allowed(spec)?.lora.filter(|_| adapts(&plan.rungs));
    let train = match allowed {
        Some(lora) => TrainSpec::Lora(lora),
        None => settings.train_spec(spec)?,
    };
    let params: HashMap<String, Param> = spec.params().into_iter().map(|param| (param.name.clone(), param)).collect();
    let stored = |param: &Param| match (&files, trained.contains(&param.name)) {
        (_, true) => trained.dtype(&param.name),
        (Some(files), false) => files.dtype(&param.name),
        (None, false) => Ok(Dtype::F32),
    };
    let matrices: Result<Vec<Dtype>, ModelError> = match &train {
        TrainSpec::Lora(_) => Ok(Vec::new()),
        _ => params.values().filter(|param| param.shape.len() > 1).map(stored).collect(),
    };
    let normalisation = normalisation(run, &settings, &folder, &manifest, &facts)?;
    let description = Description {
        folder: &folder,
        train: &train,
        dtype: written_in(matrices.or_usage()?.into_iter()),
        normalisation: normalisation.as_ref(),
    };
    let mut read = |name: &str, first: usize, part: &mut [f32]| match (&files, params.get(name)) {
        _ if trained.contains(name) => trained.fill_part(name, first, part),
        (Some(files), _) => files.fill_part(name, first, part),
        // It was drawn and never trained.
        (None, Some(param)) => {
            fill_random_part(param, folder.init_factor(), facts.seed, first, part);
            Ok(())
        }
        (None, None) => Err(ModelError::NotGiven { tensor: name.into() }),
    };
    description.write(out, &mut read, Existing::Refuse).or_usage()?;
    Ok(manifest.step)
}

/// Finds a checkpoint and reads every byte of it.
fn find(run: &Path, settings: &Settings, which: Which) -> Result<Manifest, Fail> {
    let dir = run.join("checkpoints");
    let none = || Fail::usage(format!("`{}` has no checkpoint that is whole", run.display()));
    let last = || checkpoint::latest_complete(&dir).or_usage()?.manifest.ok_or_else(none);
    let step = match which {
        Which::Last => return last(),
        Which::Step(step) => step,
        Which::Best => best_step(run, settings, &last()?)?,
    };
    let found = checkpoint::list(&dir).or_usage()?;
    let Some(found) = found.iter().find(|found| found.step == step) else {
        let steps: Vec<String> = found.iter().map(|found| found.step.to_string()).collect();
        let fact = format!("`{}` has no checkpoint of step {step}", run.display());
        return Err(Fail::usage(fact).hint(format!("it has those of steps {}", steps.join(", "))));
    };
    checkpoint::verify(&found.path).or_usage()
}

/// The step of the best evaluation of all up to the last checkpoint. A checkpoint is written before its own step is evaluated, so
/// what it does not know yet is in the journal.
fn best_step(run: &Path, settings: &Settings, last: &Manifest) -> Result<u64, Fail> {
    let mut evals = evals_of(last)?;
    let known = evals.last().map_or(0, |eval| eval.step);
    let (records, _) = read_journal(&run.join("journal.jsonl")).or_usage()?;
    evals.extend(records.into_iter().filter_map(|record| match record.event {
        Event::Eval { step, loss, bleu, exact, scores, seconds } if (known + 1..=last.step).contains(&step) => {
            Some(EvalResult { step, loss, bleu, exact, scores, seconds })
        }
        _ => None,
    }));
    let found = early_stop::best(&evals, early_stop::measure(settings)).map(|eval| eval.step);
    found.ok_or_else(|| {
        let fact = format!("`{}` has not been evaluated: none of its checkpoints is the best", run.display());
        Fail::usage(fact).hint("`--model last` takes the last one")
    })
}

/// What features are normalised by: as the finished model says it, or the one that it began from, with what it was trained on since, or as
/// the data give it.
fn normalisation(
    run: &Path,
    settings: &Settings,
    folder: &ModelFolder,
    manifest: &Manifest,
    facts: &Facts,
) -> Result<Option<Normalisation>, Fail> {
    let Some(asked) = &settings.series else { return Ok(None) };
    let finished = ModelFolder::open(run.join("model")).ok();
    let finished = finished.as_ref().and_then(|folder| normalisation_of(folder).transpose());
    if let Some(finished) = finished {
        return finished.map(Some);
    }
    if let Some(mut begun) = normalisation_of(folder)? {
        if let Some(SeriesFacts { latest, instants, .. }) = facts.series {
            begun.trained_until(latest, instants);
        }
        return Ok(Some(begun));
    }
    let series = open_series_by(settings, &settings.train_data, asked, None)?;
    same_series(manifest.step, facts.series.as_ref(), Some(series.facts()))?;
    Ok(Some(series.normalisation().clone()))
}
