//! `plimsoll eval`: the loss of a finished run's model on a set, and its answers beside the references.

use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_data::{DataError, Kind, Sources};
use plimsoll_plan::batch::BatchShape;
use plimsoll_plan::choose::Plan;
use plimsoll_plan::generation::GenerateShape;
use plimsoll_plan::spec::ModelSpec;

use crate::args::EvalArgs;
use crate::inference;
use crate::prepare::samples::{self, new_tokens, recipe_for};
use crate::render::{self, Exit, Fail, OrFail};
use crate::settings::Settings;
use crate::verbs::eval_series;
use crate::worker::evaluate;

/// Samples evaluated at a time.
const SAMPLES: usize = 8;
/// Rows of logits at a time.
const CHUNK: usize = 64;

/// Evaluates and prints.
pub fn run(args: &EvalArgs) -> Result<(), Fail> {
    let settings = Settings::from_run(&args.run)?;
    let plan: Plan = serde_json::from_slice(&fs_err::read(args.run.join("plan.json")).or_usage()?).or_usage()?;
    let opened = inference::open(&args.run, None)?;
    if let Some(asked) = &settings.series {
        return eval_series::run(args, &settings, asked, &plan, &opened);
    }
    let Some(data) = args.data.as_ref().or(settings.eval_data.as_ref()) else {
        return Err(Fail::usage("the run has no evaluation data").hint("name a file with --data"));
    };
    let kind = match (settings.kind, opened.folder.spec()) {
        (_, ModelSpec::Series(_)) => {
            return Err(Fail::usage("the model is one of series, and the job of the run is about texts"));
        }
        (Some(kind), _) => kind,
        (None, ModelSpec::T5(_)) => Kind::Pairs,
        (None, ModelSpec::Decoder(_)) => match open(&settings.train_data, Kind::Chat, &settings) {
            Ok(_) => Kind::Chat,
            Err(_) => Kind::Text,
        },
    };
    let sources = Arc::new(open(std::slice::from_ref(data), kind, &settings).or_usage()?);
    let recipe = recipe_for(kind, settings.long, &opened.folder, opened.tokenizer()?)?;
    let (source_len, target_len) = (plan.source_len, plan.target_len);
    let shape = BatchShape { samples: SAMPLES, source_len, target_len, documents: 1 };
    let max_new = new_tokens(kind, target_len);
    let generate = (max_new > 0).then_some(GenerateShape { prompts: SAMPLES, beams: 1, source_len, max_new });
    let program = opened.program(Some((shape, CHUNK)), generate)?;
    let tokenizer = opened.tokenizer()?;
    let found =
        opened.with_engine(program, |engine| evaluate(engine, &sources, tokenizer, &recipe, None, &|| false))?;
    let Some(found) = found else { return Err(Fail::silent(Exit::Stopped)) };
    if args.json { render::json(&found) } else { render::data(&found) }
}

fn open(files: &[PathBuf], kind: Kind, settings: &Settings) -> Result<Sources, DataError> {
    samples::open(files, kind, settings.eval_columns(), samples::Reading::of(settings))
}
