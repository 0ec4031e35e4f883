//! `plimsoll eval` of a run over series: how well its model foretells the validation part, or other files.
//!
//! Data are normalised by what was fitted when it was trained, which lies beside the model. Where that says, or the run's checkpoint, that
//! the model may have been trained on what it is judged by, so does the answer.

use std::fmt::{self, Write};
use std::path::Path;
use std::sync::Arc;

use plimsoll_data::series::{Part, SeriesFacts, SeriesSpec};
use plimsoll_plan::batch::BatchShape;
use plimsoll_plan::choose::Plan;

use serde::Serialize;

use crate::args::EvalArgs;
use crate::inference::Opened;
use crate::prepare::{may_have_seen, normalisation_of, open_series_by, told_unknown};
use crate::render::{self, Exit, Fail};
use crate::settings::Settings;
use crate::worker::{Evaluation, evaluate_series, series_of};

/// Most windows that are evaluated at a time.
const SAMPLES: usize = 64;

/// Evaluates and prints.
pub fn run(args: &EvalArgs, settings: &Settings, asked: &SeriesSpec, plan: &Plan, opened: &Opened) -> Result<(), Fail> {
    let Some(normalisation) = normalisation_of(&opened.folder)? else {
        let fact = format!("`{}` does not say what data are normalised by", opened.folder.dir().display());
        return Err(Fail::usage(fact).hint("expected `normalisation.json` beside its weights"));
    };
    let (files, spec, part) = match &args.data {
        // Of other files everything is evaluated.
        Some(file) => (vec![file.clone()], SeriesSpec { validation: None, ..asked.clone() }, Part::Training),
        None if asked.validation.is_some() => (settings.train_data.clone(), asked.clone(), Part::Validation),
        None => {
            let fact = "the run has no validation data: `validation` in its `[data.series]` says what is kept";
            return Err(Fail::usage(fact).hint("name a file with --data"));
        }
    };
    let series = Arc::new(open_series_by(settings, &files, &spec, Some(&normalisation))?);
    let then = series_of(&args.run).filter(|_| args.data.is_none());
    let remarks: Vec<String> = may_have_seen(&normalisation, &series, part)
        .into_iter()
        .chain(then.and_then(|then| other_data(&then, series.facts())))
        .chain(told_unknown(series.facts()))
        .collect();
    remarks.iter().for_each(render::talk);
    let samples = plan.micro_batch.clamp(1, SAMPLES);
    let shape = BatchShape { samples, source_len: asked.window, target_len: 1, documents: 1 };
    let program = opened.program(Some((shape, 1)), None)?;
    let found = opened.with_engine(program, |engine| evaluate_series(engine, &series, part, &|| false))?;
    let Some(found) = found else { return Err(Fail::silent(Exit::Stopped)) };
    match args.json {
        true => render::json(&Answer { found: &found, remarks: &remarks }),
        false => render::data(Told { found: &found, file: args.data.as_deref() }),
    }
}

/// What is to be said where the data of a run are not what they were when it was trained.
fn other_data(then: &SeriesFacts, now: &SeriesFacts) -> Option<String> {
    if (then.digest, then.cut) == (now.digest, now.cut) {
        return None;
    }
    let told = |of: &SeriesFacts| {
        let cut = of.cut.map_or(String::new(), |cut| format!(", validation from {}", of.told(cut)));
        format!("{} rows of {} series (digest {:016x}){cut}", of.rows, of.series, of.digest)
    };
    Some(format!(
        "the data are not those that the run was trained on: it had {}, and these are {}",
        told(then),
        told(now)
    ))
}

/// An evaluation, for programs.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    found: &'a Evaluation,
    /// What is to be said of its data.
    remarks: &'a [String],
}

/// An evaluation with its matrix.
struct Told<'a> {
    found: &'a Evaluation,
    file: Option<&'a Path>,
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Told { found, file } = self;
        let of = file.map_or("the validation part".to_string(), |file| file.display().to_string());
        write!(f, "{} windows of {of}: {found}", found.rows)?;
        let Some(matrix) = found.scores.as_ref().map(|scores| &scores.confusion).filter(|matrix| !matrix.is_empty())
        else {
            return Ok(());
        };
        let widest = matrix.iter().flatten().map(|count| count.to_string().len()).max().unwrap_or(1).max(4);
        let mut head = String::new();
        (0..matrix.len()).try_for_each(|class| write!(head, " {class:>widest$}"))?;
        write!(f, "\n\ntruth \\ answer{head}")?;
        for (truth, row) in matrix.iter().enumerate() {
            write!(f, "\n{truth:>14}")?;
            row.iter().try_for_each(|count| write!(f, " {count:>widest$}"))?;
        }
        Ok(())
    }
}
