//! `plimsoll eval`: the loss of a finished run's model on a set, and its answers beside the references.

use std::sync::Arc;

use plimsoll_data::{Columns, Sources};
use plimsoll_plan::batch::BatchShape;
use plimsoll_plan::choose::Plan;
use plimsoll_plan::t5::GenerateShape;

use crate::args::EvalArgs;
use crate::inference;
use crate::render::{self, Exit, Fail, OrFail};
use crate::settings::Settings;
use crate::worker::evaluate;

/// Samples evaluated at a time.
const SAMPLES: usize = 8;
/// Rows of logits at a time.
const CHUNK: usize = 64;

/// Evaluates and prints.
pub fn run(args: &EvalArgs) -> Result<(), Fail> {
    let settings = Settings::from_run(&args.run)?;
    let plan: Plan = serde_json::from_slice(&fs_err::read(args.run.join("plan.json")).or_usage()?).or_usage()?;
    let opened = inference::open(&args.run)?;
    let Some(data) = args.data.as_ref().or(settings.eval_data.as_ref()) else {
        return Err(Fail::usage("the run has no evaluation data").hint("name a file with --data"));
    };
    let columns = Columns { source: settings.source.clone(), target: settings.target.clone() };
    let sources = Arc::new(Sources::open(std::slice::from_ref(data), columns).or_usage()?);
    let shape = BatchShape { samples: SAMPLES, source_len: plan.source_len, target_len: plan.target_len, documents: 1 };
    let generate = GenerateShape { prompts: SAMPLES, beams: 1, source_len: plan.source_len, max_new: plan.target_len };
    let program = opened.program(Some((shape, CHUNK)), Some(generate))?;
    let found = opened.with_engine(program, |engine| evaluate(engine, &sources, &opened.tokenizer, None, &|| false))?;
    let Some(found) = found else { return Err(Fail::silent(Exit::Stopped)) };
    if args.json { render::json(&found) } else { render::data(&found) }
}
