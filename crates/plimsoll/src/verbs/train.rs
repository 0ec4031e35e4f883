//! `plimsoll train` and `plimsoll resume`: the supervisor's side. The work is done by a process of its own.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use plimsoll_recover::checkpoint::State;
use plimsoll_recover::{Events, Exit as ChildExit, RecoverError, RunLock, checkpoint, supervise};
use plimsoll_watch::Summary;

use crate::args::{ResumeArgs, TrainArgs};
use crate::job::run_folder;
use crate::prepare::{Supervisor, prepare};
use crate::render::{self, Exit, Fail, OrFail};
use crate::settings::Settings;

/// How long `resume` waits for a worker that is still saving.
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts a new run.
pub fn train(args: &TrainArgs) -> Result<(), Fail> {
    let settings = Settings::resolve(&args.job)?;
    if args.plan_only {
        let folder = run_folder::choose(args.out.as_deref(), &settings.run_name())?;
        let (prepared, _) = prepare(&settings, Supervisor::Later, &folder, None)?;
        prepared.remarks.iter().for_each(render::talk);
        render::data(&prepared.plan)?;
        return match prepared.plan.verdict {
            plimsoll_plan::choose::Verdict::Fits => Ok(()),
            plimsoll_plan::choose::Verdict::TooBig => Err(Fail::silent(Exit::DoesNotFit)),
        };
    }
    // From here on a stop is for the run, which can then be resumed.
    let events = Events::install()?;
    let fresh = run_folder::make(args.out.as_deref(), &settings.run_name())?;
    let folder = fresh.folder();
    // Two may have found the same folder empty. Whoever does not get it, or gets it used, leaves it alone.
    let lock = take(folder)?;
    run_folder::is_unused(folder)?;
    settings.write_run(folder)?;
    drop(settings);
    let result = guard(folder, &lock, events);
    if matches!(&result, Err(fail) if matches!(fail.exit, Exit::BadInput | Exit::DoesNotFit))
        && !run_folder::holds_run(folder)
    {
        fresh.forget();
    }
    result
}

/// Goes on with a run; one that is finished is said to be so and left alone.
pub fn resume(args: &ResumeArgs) -> Result<(), Fail> {
    let folder = &args.run;
    if !folder.is_dir() {
        let fact = if folder.exists() { "is not a folder" } else { "does not exist" };
        return Err(Fail::usage(format!("`{}` {fact}; expected a run folder", folder.display())));
    }
    // A run that was stopped while it was being planned has its job and its lock, and nothing else yet.
    if !run_folder::holds_run(folder) && !folder.join(".lock").exists() {
        let fact = format!("`{}` is not a run: it has no plan.json, journal.jsonl or checkpoints", folder.display());
        return Err(match folder.join("job.toml").exists() {
            true => {
                Fail::usage(fact).hint(format!("start a run: plimsoll train {}", folder.join("job.toml").display()))
            }
            false => Fail::usage(fact),
        });
    }
    Settings::from_run(folder)?;
    if let Some(summary) = finished(folder)? {
        render::talk(format!(
            "`{}` is finished: {} steps, loss {:.4}; nothing is left to do",
            folder.display(),
            summary.steps,
            summary.final_loss
        ));
        render::talk(format!("model: {}", folder.join("model").display()));
        return Ok(());
    }
    let lock = take(folder)?;
    guard(folder, &lock, Events::install()?)
}

/// What a finished run came to: the summary is written when the model is whole, and last.
fn finished(folder: &Path) -> Result<Option<Summary>, Fail> {
    let path = folder.join("summary.json");
    if !path.exists() || !folder.join("model/config.json").exists() {
        return Ok(None);
    }
    let read = Summary::from_json(&fs_err::read_to_string(&path).or_usage()?).or_usage();
    read.map(Some).map_err(|fail| fail.context(format!("cannot read `{}`", path.display())))
}

/// The right to train in `folder`.
fn take(folder: &Path) -> Result<RunLock, Fail> {
    RunLock::take(folder, PATIENCE).map_err(|error| {
        let in_use = matches!(error, RecoverError::RunInUse { .. });
        let fail = Fail::new(Exit::BadInput, error);
        if in_use { fail.hint("one process trains a run; wait for it to end, or stop it") } else { fail }
    })
}

/// Starts the worker, waits, and passes its verdict on.
fn guard(folder: &Path, _lock: &RunLock, mut events: Events) -> Result<(), Fail> {
    let checkpoints = folder.join("checkpoints");
    if checkpoints.is_dir() {
        for path in checkpoint::clean_leftovers(&checkpoints)? {
            render::talk(format!("removed what an interrupted save left: {}", path.display()));
        }
    }
    let program = std::env::current_exe()?;
    let mut command = Command::new(program);
    command.arg("worker").arg(folder);
    let outcome = supervise(&mut command, &mut events)?;
    match outcome.exit {
        ChildExit::Exited(0) => Ok(()),
        ChildExit::Exited(status) => Err(Fail::silent(Exit::of(status))),
        ChildExit::Killed(signal) if outcome.stopped_by_user => {
            let lost = match has_checkpoint(&checkpoints) {
                true => "steps since the last checkpoint are lost",
                false => "nothing was saved yet",
            };
            render::talk(format!(
                "stopped at once (signal {signal}); {lost}; go on: plimsoll resume {}",
                folder.display()
            ));
            Err(Fail::silent(Exit::Stopped))
        }
        ChildExit::Killed(signal) => {
            let fact = format!("the worker was killed by signal {signal}, its peak was {}", outcome.peak);
            let fail = Fail::new(Exit::Failed, anyhow::anyhow!(fact));
            let remedy = match has_checkpoint(&checkpoints) {
                true => "go on from the last checkpoint",
                false => "nothing was saved yet; begin again",
            };
            Err(fail.hint(format!("{remedy}: plimsoll resume {}", folder.display())))
        }
    }
}

/// Whether anything was saved.
fn has_checkpoint(checkpoints: &Path) -> bool {
    let found = checkpoints.is_dir().then(|| checkpoint::list(checkpoints).ok()).flatten().unwrap_or_default();
    found.iter().any(|found| matches!(found.state, State::Complete))
}
