//! Series, opened: rows, the model that fits them, and what reading them costs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use plimsoll_data::series::{
    Normalisation, Part, Scores, Series, SeriesFacts, SeriesLoader, SeriesOpening, SeriesSettings, SeriesSpec as Asked,
};
use plimsoll_data::{Cursor, Elsewhere, LOADER_CEILING, Order, Ranks};
use plimsoll_engine::simd;
use plimsoll_machine::{Bytes, Root, own_memory};
use plimsoll_model::{ModelFolder, SeriesInput};
use plimsoll_plan::cost::half_octave;
use plimsoll_plan::program::{EvalJob, Job};
use plimsoll_plan::series_batch::SeriesSlot;
use plimsoll_plan::spec::{HeadSpec, ModelSpec, SeriesSpec};
use plimsoll_plan::trained::TrainSpec;

use super::data::{RunData, Windows};
use super::{Bound, DataCosts, Opened, PREFETCH, as_begun, device, loader_hook, open_model, samples};
use crate::elsewhere;
use crate::heap;
use crate::rates::cache_folder;
use crate::render::{self, Fail, OrFail};
use crate::settings::{RunLength, Settings};
use crate::worker::told_classes;

/// Windows that the loader's rate is measured on, at most.
const RATE_WINDOWS: u64 = 64;
/// Passes over them: the first warms caches, the best counts.
const RATE_PASSES: usize = 3;

/// Opens model and series.
pub(super) fn open(
    settings: &Settings,
    asked: &Asked,
    bound: &Bound,
    remarks: &mut Vec<String>,
) -> Result<Opened, Fail> {
    let root = &Root::system();
    let (folder, weights) = open_model(settings, Some(series_input(asked)))?;
    // A model's normalisation is a part of it: its weights were made for it.
    let made_for = normalisation_of(&folder)?;
    heap::trim();
    let before = own_memory(root)?.rss_anon;
    let series = Arc::new(open_series_by(settings, &settings.train_data, asked, made_for.as_ref())?);
    heap::trim();
    let rows = own_memory(root)?.rss_anon.saturating_sub(before).max(Bytes(held_bytes(&series)));
    remarks.push(told(&series));
    if let Some(made_for) = &made_for {
        remarks.push("features are normalised as those that the model was trained on".into());
        if let (Some(until), Some(cut)) = (made_for.until, series.facts().cut)
            && until >= cut
        {
            let told = |time: i64| series.facts().told(time);
            remarks.push(format!(
                "validation begins at {}, and the model was trained until {}: what it is judged by it may have seen",
                told(cut),
                told(until)
            ));
        }
    }

    let mut spec = folder.answering_spec();
    if let Some(dropout) = settings.dropout {
        spec.set_dropout(dropout as f32);
    }
    let ModelSpec::Series(model) = &spec else {
        let fact = "the data are series, and the model is one of texts";
        return Err(Fail::usage(fact).hint("a `cnn-lstm` reads windows of numbers: docs/series.md"));
    };
    fits(model, &series)?;
    let effective_batch = settings.effective_batch as usize;
    if model.batch_matters() && settings.pins.micro_batch.is_some_and(|n| n != settings.effective_batch) {
        remarks.push(
            "batch norm and mixing see one micro-batch at a time: with `pin.micro_batch` the result is another one"
                .into(),
        );
    }
    let train = settings.train_spec(&spec)?;
    if matches!(train, TrainSpec::Lora(_)) {
        return Err(Fail::usage("`model.train` = `lora` is for models of texts, and this is a `cnn-lstm`"));
    }
    let window = model.window;
    let outputs = outputs(model);
    let job = Job {
        train,
        allow: settings.allowed(&spec)?,
        storage: settings.storage(weights.as_ref()),
        spec,
        source_len: window,
        target_len: 1,
        documents: 1,
        effective_batch,
        optimizer: settings.optimizer.clone(),
        clip: settings.clip_norm.is_some(),
        eval: asked.validation.is_some().then_some(EvalJob { beams: 1, max_new: 0 }),
        threads: settings.threads,
        simd: simd::detect(),
        device: device(settings),
    };
    let job = as_begun(job, bound)?;
    let samples = series.samples(Part::Training);
    let steps = match settings.length {
        RunLength::Steps(n) => n,
        RunLength::Epochs(n) => n.saturating_mul(samples).div_ceil(settings.effective_batch),
    };
    let order = Order::new(settings.seed, settings.shuffle);
    let loader_rate = loader_rate(&series, order)?;
    let evaluates = asked.validation.is_some();
    let of = series.clone();
    let loader = move |samples: usize, threads: usize| {
        let heap = |threads: usize| {
            let heap = of.heap(&loading(&of, samples, threads));
            Bytes(heap.ring + heap.threads)
        };
        heap(threads) + if evaluates { heap(1) } else { Bytes::ZERO }
    };
    let facts = series.facts();
    // The figures, the matrix in the journal's words, and the answers of a micro-batch.
    let matrix = facts.classes.map_or(0, |n| u64::from(n) * u64::from(n) * 24);
    let scores = Scores::heap_bytes(facts.classes, facts.values) + matrix;
    let evaluation = match evaluates {
        true => Bytes(scores + (outputs * effective_batch * 4) as u64) + Bytes::kib(64),
        false => Bytes::ZERO,
    };
    let costs = DataCosts {
        tokenizer: Bytes::ZERO,
        rows,
        loader: Box::new(loader),
        loader_rate,
        most_loader_threads: job.threads,
        evaluation,
        values: facts.values as u64,
        cells: facts.classes.map_or(0, told_classes).pow(2) as u64,
        unpacked: Bytes(if facts.held { 0 } else { facts.row_bytes }),
        fetched: Bytes::ZERO,
        side_files: Bytes(series.normalisation().to_json().len() as u64) + Bytes::kib(16),
    };
    let data = RunData::Series(Windows { series, order });
    Ok(Opened { folder, weights, data, job, steps, costs })
}

/// What the data say of a model of them.
pub fn series_input(asked: &Asked) -> SeriesInput {
    SeriesInput { features: asked.features.len(), window: asked.window }
}

/// What the data of a model were normalised by, where its folder says it.
pub fn normalisation_of(folder: &ModelFolder) -> Result<Option<Normalisation>, Fail> {
    let Some(text) = folder.normalisation().or_usage()? else { return Ok(None) };
    Normalisation::from_json(&text, folder.dir()).map(Some).or_usage()
}

/// Opens series as a job says, normalised by what is given, else by what their training part has.
pub fn open_series_by(
    settings: &Settings,
    files: &[PathBuf],
    asked: &Asked,
    normalisation: Option<&Normalisation>,
) -> Result<Series, Fail> {
    let reading = SeriesReading { memory: settings.data_memory, cache: settings.cache };
    open_series_files(reading, files, asked, normalisation)
}

/// How much may be taken to read series.
#[derive(Clone, Copy, Debug, Default)]
pub struct SeriesReading {
    /// Memory of everything.
    pub memory: Option<Bytes>,
    /// Most of the disk for parts of what lies elsewhere.
    pub cache: Option<Bytes>,
}

/// Opens series.
pub fn open_series_files(
    reading: SeriesReading,
    files: &[PathBuf],
    asked: &Asked,
    normalisation: Option<&Normalisation>,
) -> Result<Series, Fail> {
    let folder = cache_folder().join("data");
    let cache = elsewhere::cache(reading.cache, &folder).0;
    let opening = SeriesOpening {
        folder: Some(&folder),
        memory: reading.memory.map_or(LOADER_CEILING, |memory| memory.0),
        cached: samples::cached_bytes(),
        elsewhere: Some(Elsewhere { files: elsewhere::files(|told| render::talk(told)), cache }),
        normalisation,
    };
    Series::open(files, asked.clone(), opening).or_usage()
}

/// How batches of so many windows are loaded.
pub fn loading(series: &Series, samples: usize, threads: usize) -> SeriesSettings {
    SeriesSettings {
        shape: series.shape(samples),
        threads,
        prefetch_batches: PREFETCH,
        cursor: Cursor::default(),
        limit: None,
        ranks: Ranks::ONE,
        on_thread_start: Some(loader_hook()),
    }
}

/// What open series hold before a loader is started.
fn held_bytes(series: &Series) -> u64 {
    let heap = series.heap(&loading(series, 1, 1));
    heap.index + heap.rows
}

fn told(series: &Series) -> String {
    let SeriesFacts { rows, series: many, training_samples, validation_samples, held, row_bytes, .. } = *series.facts();
    let validation = match validation_samples {
        0 => String::new(),
        some => format!(", {some} of validation"),
    };
    let place = if held { "in memory" } else { "in one file of the cache" };
    let bytes = Bytes(row_bytes);
    format!("data: {rows} rows of {many} series, {bytes} {place}; {training_samples} windows{validation}")
}

/// Numbers that a model answers for one sample.
fn outputs(model: &SeriesSpec) -> usize {
    model.heads().map(|head| head.outputs).sum()
}

/// Refuses a model that does not read or answer what the data have.
fn fits(model: &SeriesSpec, series: &Series) -> Result<(), Fail> {
    let facts = series.facts();
    let of = |head: &Option<HeadSpec>| head.as_ref().map_or(0, |head| head.outputs);
    let (classes, values) = (facts.classes.unwrap_or(0) as usize, facts.values);
    let pairs = [("classes", "class", of(&model.classes), classes), ("values", "values", of(&model.values), values)];
    match pairs.into_iter().find(|(_, _, of_model, of_data)| of_model != of_data) {
        None => Ok(()),
        Some((what, key, of_model, of_data)) => {
            let fact = format!("the model has {of_model} {what}, and the data (`data.series.{key}`) have {of_data}");
            Err(Fail::usage(fact)
                .hint("heads of the model and what `[data.series]` foretells belong together: docs/series.md"))
        }
    }
}

/// Steps of windows a second that one thread fills; to the nearest half octave, as the engine's rates are.
fn loader_rate(series: &Arc<Series>, order: Order) -> Result<f64, Fail> {
    let samples = series.samples(Part::Training).clamp(1, RATE_WINDOWS) as usize;
    let shape = series.shape(samples);
    let (mut inputs, mut values) =
        (vec![0.0; samples * shape.window * shape.features], vec![0.0; samples * shape.values]);
    let mut classes = vec![0; samples];
    let mut loader =
        SeriesLoader::start(series.clone(), Part::Training, order, loading(series, samples, 1)).or_usage()?;
    let mut best = 1.0f64;
    for _ in 0..RATE_PASSES {
        let start = Instant::now();
        // As many as are held ready, and one more: one at the least was made meanwhile.
        for _ in 0..=PREFETCH {
            let slot = SeriesSlot { inputs: &mut inputs, classes: &mut classes, values: &mut values };
            loader.next(slot).or_usage()?;
        }
        best = best.max((samples * shape.window) as f64 / start.elapsed().as_secs_f64().max(1e-9));
    }
    Ok(half_octave(best))
}
