//! Series, opened: rows, the model that fits them, and what reading them costs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use plimsoll_data::series::{
    Normalisation, Part, Scores, Series, SeriesError, SeriesFacts, SeriesLoader, SeriesOpening, SeriesSettings,
    SeriesSpec as Asked,
};
use plimsoll_data::{Cursor, DataError, Elsewhere, LOADER_CEILING, Order, Ranks, stacks, threads_within};
use plimsoll_engine::simd;
use plimsoll_machine::{Bytes, Root, own_memory};
use plimsoll_model::{ModelFolder, NORMALISATION_LIMIT, SeriesInput};
use plimsoll_plan::cost::half_octave;
use plimsoll_plan::program::{EvalJob, Job};
use plimsoll_plan::series_batch::{SeriesShape, SeriesSlot};
use plimsoll_plan::spec::{ConvNorm, HeadSpec, ModelSpec, SeriesSpec};

use super::data::{RunData, Windows};
use super::{Bound, DataCosts, Opened, PREFETCH, as_begun, device, loader_hook, open_model, samples};
use crate::elsewhere;
use crate::heap;
use crate::rates::cache_folder;
use crate::render::{self, Exit, Fail, OrFail};
use crate::settings::{RunLength, Settings};
use crate::worker::told_classes;

/// Windows of a batch that the loader's rate is measured on, and their bytes: at most, but for one window.
const RATE_WINDOWS: u64 = 64;
const RATE_BYTES: u64 = 4 << 20;
/// Batches that are taken in a row, and how often: the best counts.
const RATE_BATCHES: usize = 4;
const RATE_PASSES: usize = 2;

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
        remarks.extend(may_have_seen(made_for, &series, Part::Validation));
    }
    remarks.extend(told_unknown(series.facts()));
    let kept = Bytes(series.normalisation().json_bytes());
    can_be_kept(kept, series.facts().series)?;

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
    normed(model, settings.pins.micro_batch.unwrap_or(settings.effective_batch))?;
    if model.batch_matters() && settings.pins.micro_batch.is_some_and(|n| n != settings.effective_batch) {
        remarks.push(
            "batch norm and mixing see one micro-batch at a time: with `pin.micro_batch` the result is another one"
                .into(),
        );
    }
    let train = settings.train_spec(&spec)?;
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
    let most_loader_threads = match settings.data_memory {
        None => job.threads,
        Some(ceiling) => {
            let samples = settings.pins.micro_batch.unwrap_or(settings.effective_batch) as usize;
            let held = Bytes(held_bytes(&series));
            // An evaluation has a thread beside the others.
            let more = usize::from(evaluates);
            let heap_of = |threads: usize| (held + loader(samples, threads)).0 + stacks(more);
            let least = settings.pins.loader_threads.unwrap_or(1) as usize;
            let most = threads_within(ceiling.0, &heap_of, job.threads.max(least)).filter(|most| *most >= least);
            most.ok_or_else(|| {
                let needed = [held, loader(samples, least), Bytes(stacks(least + more))];
                above_ceiling(ceiling, needed, least, series.facts())
            })?
        }
    };
    let facts = series.facts();
    // The figures, the matrix as far as it is told, and the answers of a micro-batch.
    let cells = facts.classes.map_or(0, told_classes).pow(2) as u64;
    let scores = Scores::heap_bytes(facts.classes, facts.values) + 24 * cells;
    let evaluation = match evaluates {
        true => Bytes(scores + (outputs * effective_batch * 4) as u64) + Bytes::kib(64),
        false => Bytes::ZERO,
    };
    let costs = DataCosts {
        tokenizer: Bytes::ZERO,
        rows,
        loader: Box::new(loader),
        loader_rate,
        most_loader_threads,
        evaluation,
        values: facts.values as u64,
        cells,
        unpacked: Bytes(if facts.held { 0 } else { facts.row_bytes }),
        fetched: samples::fetched(facts.remote_bytes, settings.cache),
        side_files: kept + Bytes::kib(16),
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

/// What is to be said where a model may have been trained on what it is judged by, a part of these series.
pub fn may_have_seen(made_for: &Normalisation, series: &Series, part: Part) -> Option<String> {
    let (until, begin, facts) = (made_for.until?, series.begin(part)?, series.facts());
    if made_for.instants != facts.instants {
        let word = |instants: bool| if instants { "instants" } else { "plain numbers" };
        return Some(format!(
            "times are {}, and those that the model was trained on were {}: whether it has seen what it is judged by cannot be said",
            word(facts.instants),
            word(made_for.instants)
        ));
    }
    let what = if part == Part::Validation { "validation begins" } else { "these data begin" };
    (until >= begin).then(|| {
        let (begin, until) = (facts.told(begin), facts.told(until));
        format!("{what} at {begin}, and the model was trained until {until}: what it is judged by it may have seen")
    })
}

/// What is to be said of series that the normalisation does not know.
pub fn told_unknown(facts: &SeriesFacts) -> Option<String> {
    let SeriesFacts { unknown_series, series, .. } = facts;
    (*unknown_series > 0).then(|| {
        format!(
            "{unknown_series} of {series} series are normalised as all together: nothing is known of them by themselves"
        )
    })
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

/// Refuses a normalisation that is longer than a model folder may have: its model could not be read again.
fn can_be_kept(bytes: Bytes, series: u64) -> Result<(), Fail> {
    let most = Bytes(NORMALISATION_LIMIT);
    if bytes <= most {
        return Ok(());
    }
    let fact =
        format!("what {series} series are normalised by takes {bytes} as a file of the model, expected at most {most}");
    Err(Fail::usage(fact)
        .hint("normalise all together (`normalise = \"all\"` in `[data.series]`), or take fewer series"))
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
    Series::open(files, asked.clone(), opening).map_err(|error| {
        let no_room = matches!(&error, DataError::Series(of) if matches!(**of, SeriesError::NoRoom { .. }));
        Fail::new(if no_room { Exit::DoesNotFit } else { Exit::BadInput }, error)
    })
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

/// The loader takes more than the job allows it.
fn above_ceiling(ceiling: Bytes, [held, heap, stacks]: [Bytes; 3], threads: usize, facts: &SeriesFacts) -> Fail {
    let needed = held + heap + stacks;
    let s = if threads == 1 { "" } else { "s" };
    // With so much, rows that lie in a file may have room in memory, and are held then.
    let rows = if !facts.held && facts.row_bytes <= needed.0 / 2 { facts.row_bytes } else { 0 };
    Fail::usage(format!(
        "`data.memory` is {ceiling}, but the loader takes {needed} with {threads} thread{s}: {held} for rows and what is known of the \
         series, {heap} for windows that are ready, {stacks} for stacks"
    ))
    .hint(format!(
        "`data.memory = \"{}MiB\"` is enough; so may be a smaller batch or fewer `pin.loader_threads`",
        (needed.0 + rows).div_ceil(1 << 20)
    ))
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

/// Refuses a batch norm over one value, which has no spread: PyTorch's does not train either.
fn normed(model: &SeriesSpec, micro_batch: u64) -> Result<(), Fail> {
    let norm = model.norm == ConvNorm::Batch && !model.conv.is_empty();
    // Where pools leave a step, every block but those of one step has more.
    match norm && micro_batch == 1 && model.at_block(0).1 == 1 {
        false => Ok(()),
        true => {
            let fact = "the model's batch norms would be over one value: a sample of one step";
            Err(Fail::usage(fact).hint("take a larger batch, a longer window, or `norm = \"none\"`"))
        }
    }
}

/// Steps of windows a second that one thread fills; to the nearest half octave, as the engine's rates are.
fn loader_rate(series: &Arc<Series>, order: Order) -> Result<f64, Fail> {
    let samples = rate_windows(series.samples(Part::Training), series.shape(1));
    let shape = series.shape(samples);
    let (mut inputs, mut values) =
        (vec![0.0; samples * shape.window * shape.features], vec![0.0; samples * shape.values]);
    let mut classes = vec![0; samples];
    let mut loader =
        SeriesLoader::start(series.clone(), Part::Training, order, loading(series, samples, 1)).or_usage()?;
    let mut take = |batches: usize| {
        (0..batches).try_for_each(|_| {
            let slot = SeriesSlot { inputs: &mut inputs, classes: &mut classes, values: &mut values };
            loader.next(slot).map(drop).or_usage()
        })
    };
    // Those that are held ready, while caches become warm. From then on as many are made as are taken.
    take(PREFETCH + 1)?;
    let mut best = 1.0f64;
    for _ in 0..RATE_PASSES {
        let start = Instant::now();
        take(RATE_BATCHES)?;
        let steps = (RATE_BATCHES * samples * shape.window) as f64;
        best = best.max(steps / start.elapsed().as_secs_f64().max(1e-9));
    }
    Ok(half_octave(best))
}

/// Windows of a batch that a rate is measured on, of so many that there are: what they take is in no plan yet, so it is little.
fn rate_windows(samples: u64, one: SeriesShape) -> usize {
    let bytes = 4 * (one.window * one.features + one.values + 1) as u64;
    (RATE_BYTES / bytes).clamp(1, RATE_WINDOWS).min(samples.max(1)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_measured_on_little_memory_however_large_a_window_is() {
        let one = |window: usize, features: usize| SeriesShape { samples: 1, window, features, values: 1 };
        assert_eq!(rate_windows(1000, one(12, 3)), 64);
        assert_eq!(rate_windows(7, one(12, 3)), 7);
        // Of 2.9 MB each, and the largest that there is.
        assert_eq!(rate_windows(1000, one(1440, 500)), 1);
        assert_eq!(rate_windows(1000, one(1 << 12, 1 << 12)), 1);
        assert_eq!(rate_windows(1000, one(60, 112)), 64);
        assert!(rate_windows(1000, one(600, 112)) * 600 * 112 * 4 <= 4 << 20);
    }

    #[test]
    fn what_a_model_folder_cannot_keep_is_refused_before_anything_is_trained() {
        assert!(can_be_kept(Bytes::mib(256), 9).is_ok());
        let refused = can_be_kept(Bytes(Bytes::mib(256).0 + 1), 9).unwrap_err();
        let told = refused.fact.unwrap().to_string();
        assert!(told.contains("what 9 series are normalised by") && told.contains("at most 256 MiB"), "{told}");
        assert!(refused.hint.unwrap().contains("normalise = \"all\""));
    }
}
