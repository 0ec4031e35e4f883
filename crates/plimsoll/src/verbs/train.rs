//! `plimsoll train` and `plimsoll resume`: the supervisor's side. The work is done by a process of its own.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use plimsoll_recover::{Events, Exit as ChildExit, RunLock, checkpoint, supervise};

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
    let folder = run_folder::choose(args.out.as_deref(), &settings.run_name())?;
    if args.plan_only {
        let prepared = prepare(&settings, Supervisor::Later, &folder, None)?;
        prepared.remarks.iter().for_each(render::talk);
        render::data(&prepared.decision.plan)?;
        return match prepared.decision.plan.verdict {
            plimsoll_plan::choose::Verdict::Fits => Ok(()),
            plimsoll_plan::choose::Verdict::TooBig => Err(Fail::silent(Exit::TooBig)),
        };
    }
    let existed = folder.exists();
    fs_err::create_dir_all(&folder).or_usage()?;
    settings.write_run(&folder)?;
    drop(settings);
    let result = guard(&folder);
    if matches!(&result, Err(fail) if matches!(fail.exit, Exit::Usage | Exit::TooBig)) && !run_folder::holds_run(&folder) {
        forget(&folder, existed);
    }
    result
}

/// Goes on with a run.
pub fn resume(args: &ResumeArgs) -> Result<(), Fail> {
    let folder = &args.run;
    if !run_folder::holds_run(folder) {
        return Err(Fail::usage(format!("`{}` is not a run: it has no plan.json, journal.jsonl or checkpoints", folder.display())));
    }
    Settings::from_run(folder)?;
    guard(folder)
}

/// Takes the run, starts the worker, waits, and passes its verdict on.
fn guard(folder: &Path) -> Result<(), Fail> {
    let _lock = RunLock::take(folder, PATIENCE).or_usage()?;
    let checkpoints = folder.join("checkpoints");
    if checkpoints.is_dir() {
        for path in checkpoint::clean_leftovers(&checkpoints)? {
            render::talk(format!("removed what an interrupted save left: {}", path.display()));
        }
    }
    let program = std::env::current_exe()?;
    let mut command = Command::new(program);
    command.arg("worker").arg(folder);
    let mut events = Events::install()?;
    let outcome = supervise(&mut command, &mut events)?;
    match outcome.exit {
        ChildExit::Exited(0) => Ok(()),
        ChildExit::Exited(code) => Err(Fail::silent(match code {
            2 => Exit::Usage,
            3 => Exit::TooBig,
            4 => Exit::Stopped,
            _ => Exit::Failed,
        })),
        ChildExit::Killed(signal) if outcome.stopped_by_user => {
            render::talk(format!("stopped at once (signal {signal}); steps since the last checkpoint are lost"));
            Err(Fail::silent(Exit::Stopped))
        }
        ChildExit::Killed(signal) => {
            let fact = format!("the worker was killed by signal {signal}, its peak was {}", outcome.peak);
            let fail = Fail::new(Exit::Failed, anyhow::anyhow!(fact));
            Err(fail.hint(format!("go on from the last checkpoint: plimsoll resume {}", folder.display())))
        }
    }
}

/// A refused job leaves nothing behind: only what we made, and only if it is still as we made it.
fn forget(folder: &Path, existed: bool) {
    let ours = ["job.toml", ".lock", "run.lock"];
    let Ok(entries) = fs_err::read_dir(folder) else { return };
    let names: Vec<_> = entries.flatten().map(|e| e.file_name()).collect();
    if names.iter().all(|n| ours.iter().any(|o| n == o)) {
        names.iter().for_each(|n| drop(fs_err::remove_file(folder.join(n))));
        if !existed {
            let _ = fs_err::remove_dir(folder);
        }
    }
}
