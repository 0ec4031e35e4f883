//! A trained model without training: opened from a run, a model folder or an adapter folder, for `generate`, `eval` and
//! `merge`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_data::TextTokenizer;
use plimsoll_engine::cuda::CudaOptions;
use plimsoll_engine::{Stepper, simd, with_cores};
use plimsoll_machine::{Bytes, Headroom, Root};
use plimsoll_model::{AdapterFolder, ModelFolder, WeightFiles};
use plimsoll_plan::batch::BatchShape;
use plimsoll_plan::choose::{Plan, quantises};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::generation::GenerateShape;
use plimsoll_plan::program::{InferenceJob, Program, compile_inference};
use plimsoll_plan::spec::ModelSpec;
use plimsoll_plan::trained::{Storage, TrainSpec};

use crate::job::run_folder;
use crate::render::{Exit, Fail, OrFail};
use crate::settings::Settings;

/// A model with its tokenizer, and perhaps an adapter.
pub struct Opened {
    /// config.json.
    pub folder: ModelFolder,
    weights: WeightFiles,
    adapter: Option<AdapterFolder>,
    storage: Storage,
    /// The tokenizer, of a model of texts.
    tokenizer: Option<Arc<TextTokenizer>>,
}

/// Where a model is, and what is beside it.
pub struct Found {
    /// The folder with config.json and weights.
    pub model: PathBuf,
    /// The folder with LoRA's factors.
    pub adapter: Option<PathBuf>,
}

const ADAPTER: &str = "adapter_config.json";

/// Where the model is: a model folder or an adapter's as it stands, or a run's `model`. An adapter names its base, unless
/// `base` does.
pub fn find(from: &Path, base: Option<&Path>) -> Result<Found, Fail> {
    let dir = [from.join("model"), from.to_path_buf()]
        .into_iter()
        .find(|dir| [ADAPTER, "config.json"].iter().any(|name| dir.join(name).exists()));
    let Some(dir) = dir else { return Err(no_model(from)) };
    if !dir.join(ADAPTER).exists() {
        return Ok(Found { model: dir, adapter: None });
    }
    let adapter = AdapterFolder::open(&dir).or_usage()?;
    let named = base.map(Path::to_path_buf).or_else(|| adapter.base().map(PathBuf::from));
    let model = match named {
        Some(path) if path.join("config.json").is_file() => path,
        Some(path) => {
            let fact = format!("`{}` is an adapter for `{}`, which holds no model", dir.display(), path.display());
            return Err(Fail::usage(fact).hint("name the base with --base"));
        }
        None => {
            let fact = format!("`{}` is an adapter that names no base", dir.display());
            return Err(Fail::usage(fact).hint("name the base with --base"));
        }
    };
    Ok(Found { model, adapter: Some(dir) })
}

fn no_model(from: &Path) -> Fail {
    if !from.exists() {
        return Fail::usage(format!("`{}` does not exist; expected a run or a model folder", from.display()));
    }
    let fail =
        Fail::usage(format!("`{}` holds no model: neither model/config.json nor config.json is there", from.display()));
    match run_folder::holds_run(from) {
        true => fail.hint(format!("the run is not finished; go on with it: plimsoll resume {}", from.display())),
        false => fail,
    }
}

/// Opens a model.
pub fn open(from: &Path, base: Option<&Path>) -> Result<Opened, Fail> {
    let Found { model, adapter } = find(from, base)?;
    let (folder, weights) = ModelFolder::open_with_weights(&model).or_usage()?;
    let adapter = adapter.map(AdapterFolder::open).transpose().or_usage()?;
    if let Some(adapter) = &adapter {
        adapter.check(folder.spec()).or_usage()?;
    }
    let spec = folder.spec();
    // A run that was trained over a quantised base is tried over it too.
    let mut storage = adapter.as_ref().and_then(|_| storage_of_run(from, &weights)).unwrap_or_default();
    if storage.quantised.is_none() {
        storage.frozen = weights.float_dtype().unwrap_or(Dtype::F32);
        storage.trained = storage.frozen;
    }
    let tokenizer = match spec {
        ModelSpec::Series(_) => None,
        ModelSpec::T5(_) | ModelSpec::Decoder(_) => {
            let path = folder.tokenizer_path().or_usage()?;
            let loaded = TextTokenizer::load(&path, spec.vocab(), spec.eos_id(), spec.pad_id()).or_usage()?;
            Some(Arc::new(loaded))
        }
    };
    Ok(Opened { tokenizer, folder, weights, adapter, storage })
}

/// How a run held its base: as its job says, or in fewer bits, where the job allowed it and the plan took that.
fn storage_of_run(run: &Path, weights: &WeightFiles) -> Option<Storage> {
    let settings = Settings::from_run(run).ok()?;
    let plan: Plan = serde_json::from_slice(&fs_err::read(run.join("plan.json")).ok()?).ok()?;
    let said = settings.storage(Some(weights));
    let allowed = settings.allow.quantise.filter(|_| quantises(&plan.rungs));
    Some(Storage { quantised: said.quantised.or(allowed), ..said })
}

impl Opened {
    /// The tokenizer; refused where the model reads no texts.
    pub fn tokenizer(&self) -> Result<&Arc<TextTokenizer>, Fail> {
        let none =
            || Fail::usage(format!("`{}` is a model of series, and this is for texts", self.folder.dir().display()));
        self.tokenizer.as_ref().ok_or_else(|| none().hint("`plimsoll eval` says how well it foretells"))
    }

    /// The program, refused where the machine cannot give its memory.
    pub fn program(&self, eval: Option<(BatchShape, usize)>, generate: Option<GenerateShape>) -> Result<Program, Fail> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let train = match &self.adapter {
            Some(adapter) => TrainSpec::Lora(adapter.lora().clone()),
            None => TrainSpec::All,
        };
        let job = InferenceJob {
            train,
            storage: self.storage,
            ..InferenceJob::new(self.folder.answering_spec(), eval, generate, (threads, simd::detect()))
        };
        let program = compile_inference(&job);
        let needed = Bytes(program.parts.words() as u64 * 4);
        let usable = Headroom::find(&Root::system())?.read()?;
        if needed > usable {
            let fact = anyhow::anyhow!("this needs {needed} of RAM, and the machine can give {usable}");
            let hint = "fewer beams or a smaller --max-new need less";
            let fail = Fail::new(Exit::DoesNotFit, fact);
            return Err(if generate.is_some() { fail.hint(hint) } else { fail });
        }
        Ok(program)
    }

    /// Runs `f` with an engine that holds the weights.
    pub fn with_engine<R: Send>(
        &self,
        program: Program,
        f: impl FnOnce(&mut Stepper) -> Result<R, Fail> + Send,
    ) -> Result<R, Fail> {
        with_cores(
            program.threads,
            || {},
            || {
                let mut engine = Stepper::start(program, None, &CudaOptions::default())?;
                for index in 0..engine.program().store.params.len() {
                    let place = &engine.program().store.params[index];
                    let name = place.param.name.clone();
                    let files = match (&self.adapter, place.adapter) {
                        (Some(adapter), true) => adapter.weights(),
                        _ => &self.weights,
                    };
                    engine.fill_param(index, |first, out| files.fill_part(&name, first, out))?.or_usage()?;
                }
                f(&mut engine)
            },
        )?
    }
}
