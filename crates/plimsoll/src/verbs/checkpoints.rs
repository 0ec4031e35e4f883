//! `plimsoll checkpoints`: list, verify, and make a model of one.

use plimsoll_machine::Bytes;
use plimsoll_recover::checkpoint::{self, Manifest, State};
use serde::Serialize;

use crate::args::CheckpointsArgs;
use crate::render::{self, Exit, Fail, OrFail};
use crate::worker::save_of_checkpoint;

#[derive(Serialize)]
struct Row {
    step: u64,
    path: std::path::PathBuf,
    bytes: Option<Bytes>,
    state: String,
}

/// The model that was made of a checkpoint.
#[derive(Serialize)]
struct Made<'a> {
    step: u64,
    model: &'a std::path::Path,
}

/// Lists a run's checkpoints; with `--verify` every byte is read. Exit 1 if one is not whole.
pub fn run(args: &CheckpointsArgs) -> Result<(), Fail> {
    let dir = args.run.join("checkpoints");
    if !dir.is_dir() {
        return Err(Fail::usage(format!("`{}` has no checkpoints", args.run.display())));
    }
    if let (Some(which), Some(out)) = (args.model, &args.out) {
        let step = save_of_checkpoint(&args.run, which, out)?;
        if args.json {
            return render::json(&Made { step, model: out });
        }
        render::talk(format!("of step {step}"));
        return render::data(out.display());
    }
    let mut rows = Vec::new();
    let mut whole = true;
    for found in checkpoint::list(&dir).or_usage()? {
        let checked = match (&found.state, args.verify) {
            (State::Incomplete(reason), _) => Err(reason.clone()),
            (State::Complete, true) => checkpoint::verify(&found.path).map(|m| m.bytes()).map_err(|e| e.to_string()),
            (State::Complete, false) => Manifest::read(&found.path).map(|m| m.bytes()).map_err(|e| e.to_string()),
        };
        whole &= checked.is_ok();
        let state = match &checked {
            Ok(_) if args.verify => "verified".to_string(),
            Ok(_) => "complete".to_string(),
            Err(reason) => format!("broken: {reason}"),
        };
        rows.push(Row { step: found.step, path: found.path, bytes: checked.ok(), state });
    }
    if args.json {
        render::json(&rows)?;
    } else {
        for row in &rows {
            let bytes = row.bytes.map_or("-".to_string(), |b| b.to_string());
            render::data(format!("step {:<10} {bytes:>12}  {}  {}", row.step, row.state, row.path.display()))?;
        }
    }
    if whole { Ok(()) } else { Err(Fail::silent(Exit::Failed)) }
}
