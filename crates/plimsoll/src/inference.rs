//! A trained model without training: opened from a run or a model folder, for `generate` and `eval`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_data::TextTokenizer;
use plimsoll_engine::{Engine, simd, with_cores};
use plimsoll_machine::{Bytes, Headroom, Root};
use plimsoll_model::{ModelFolder, WeightFiles};
use plimsoll_plan::batch::BatchShape;
use plimsoll_plan::program::{Program, compile_inference};
use plimsoll_plan::spec::T5Spec;
use plimsoll_plan::t5::GenerateShape;

use crate::job::run_folder;
use crate::render::{Exit, Fail, OrFail};

/// A model with its tokenizer.
pub struct Opened {
    /// config.json.
    pub folder: ModelFolder,
    weights: WeightFiles,
    /// The tokenizer.
    pub tokenizer: Arc<TextTokenizer>,
}

/// Where the model is: a model folder as it stands, or a run's `model`.
pub fn model_folder(from: &Path) -> Result<PathBuf, Fail> {
    let inside = from.join("model");
    if inside.join("config.json").exists() {
        return Ok(inside);
    }
    if from.join("config.json").exists() {
        return Ok(from.to_path_buf());
    }
    if !from.exists() {
        return Err(Fail::usage(format!("`{}` does not exist; expected a run or a model folder", from.display())));
    }
    let fail =
        Fail::usage(format!("`{}` holds no model: neither model/config.json nor config.json is there", from.display()));
    Err(match run_folder::holds_run(from) {
        true => fail.hint(format!("the run is not finished; go on with it: plimsoll resume {}", from.display())),
        false => fail,
    })
}

/// The spec of a T5, the only family that has tapes.
pub fn t5(folder: &ModelFolder) -> Result<&T5Spec, Fail> {
    let fact =
        || Fail::usage(format!("`{}` holds a decoder; only T5 and MT5 models can be run", folder.dir().display()));
    folder.spec().t5().ok_or_else(fact)
}

/// Opens a model.
pub fn open(from: &Path) -> Result<Opened, Fail> {
    let dir = model_folder(from)?;
    let (folder, weights) = ModelFolder::open_with_weights(&dir).or_usage()?;
    let spec = t5(&folder)?;
    let tokenizer =
        TextTokenizer::load(&folder.tokenizer_path().or_usage()?, spec.vocab, spec.eos_id, spec.pad_id).or_usage()?;
    Ok(Opened { tokenizer: Arc::new(tokenizer), folder, weights })
}

impl Opened {
    /// The program, refused where the machine cannot give its memory.
    pub fn program(&self, eval: Option<(BatchShape, usize)>, generate: Option<GenerateShape>) -> Result<Program, Fail> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let program = compile_inference(t5(&self.folder)?, eval, generate, threads, simd::detect());
        let needed = Bytes(program.parts.words() as u64 * 4);
        let usable = Headroom::find(&Root::system())?.read()?;
        if needed > usable {
            let fact = anyhow::anyhow!("this needs {needed} of RAM, and the machine can give {usable}");
            return Err(Fail::new(Exit::DoesNotFit, fact).hint("fewer beams or a smaller --max-new need less"));
        }
        Ok(program)
    }

    /// Runs `f` with an engine that holds the weights.
    pub fn with_engine<R: Send>(
        &self,
        program: Program,
        f: impl FnOnce(&mut Engine) -> Result<R, Fail> + Send,
    ) -> Result<R, Fail> {
        with_cores(
            program.threads,
            || {},
            || {
                let mut engine = Engine::start(program, None)?;
                for index in 0..engine.program().store.params.len() {
                    let name = engine.program().store.params[index].param.name.clone();
                    self.weights.fill(&name, engine.param_mut(index)).or_usage()?;
                }
                f(&mut engine)
            },
        )?
    }
}
