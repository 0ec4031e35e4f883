//! `plimsoll train` and `plimsoll resume`: the supervisor's side. The work is done by a process of its own.

use std::path::Path;

use plimsoll_recover::{Events, RunLock};
use plimsoll_watch::Summary;

use crate::args::{ResumeArgs, TrainArgs};
use crate::guard::{Charge, guard};
use crate::job::run_folder;
use crate::prepare::{Bound, Supervisor, prepare};
use crate::render::{self, Exit, Fail, OrFail};
use crate::settings::Settings;
use crate::verbs::fetch;
use crate::verbs::turn::{Start, take};

/// Starts a new run.
pub fn train(args: &TrainArgs) -> Result<(), Fail> {
    if let Some(run) = args.out.as_deref().filter(|out| args.go_on && run_folder::has_begun(out)) {
        let (run, out, model, data, eval) = (run.to_path_buf(), None, None, Vec::new(), None);
        return go_on(&ResumeArgs { run, out, model, data, eval }, Start::Guarded);
    }
    let settings = Settings::resolve(&args.job)?;
    if args.plan_only {
        let folder = run_folder::choose(args.out.as_deref(), &settings.run_name())?;
        let (prepared, _) = prepare(&settings, Supervisor::Later, &folder, Bound::default())?;
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
    let lock = take(folder, Start::of(args.go_on))?;
    // Whoever had it before may have begun the run.
    if args.go_on && run_folder::has_begun(folder) {
        return go_on_in(folder, &lock, events);
    }
    run_folder::is_unused(folder)?;
    settings.write_run(folder)?;
    let charge = Charge::of(&settings);
    drop(settings);
    let result = guard(folder, charge, &lock, events);
    if matches!(&result, Err(fail) if matches!(fail.exit, Exit::BadInput | Exit::DoesNotFit))
        && !run_folder::holds_run(folder)
    {
        fresh.forget();
    }
    result
}

/// Goes on with a run; one that is finished is said to be so and left alone.
pub fn resume(args: &ResumeArgs) -> Result<(), Fail> {
    go_on(args, Start::Asked)
}

fn go_on(args: &ResumeArgs, start: Start) -> Result<(), Fail> {
    let fetched;
    let folder = if fetch::is_url(&args.run) {
        fetched = fetch::fetch(args)?;
        fetched.as_path()
    } else {
        only_for_a_mirror(args)?;
        args.run.as_path()
    };
    if !folder.is_dir() {
        let fact = if folder.exists() { "is not a folder" } else { "does not exist" };
        return Err(Fail::usage(format!("`{}` {fact}; expected a run folder", folder.display())));
    }
    if folder.join(crate::launch::CHARGE).exists() {
        return crate::verbs::run::resume(folder, start);
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
    drop(Settings::from_run(folder)?);
    if let Some(summary) = finished(folder)? {
        tell_finished(folder, &summary);
        return Ok(());
    }
    let lock = take(folder, start)?;
    go_on_in(folder, &lock, Events::install()?)
}

/// Goes on in a folder that is ours now.
fn go_on_in(folder: &Path, lock: &RunLock, events: Events) -> Result<(), Fail> {
    let charge = Charge::of(&Settings::from_run(folder)?);
    // The process that was waited for may have come to the end.
    if let Some(summary) = finished(folder)? {
        tell_finished(folder, &summary);
        return Ok(());
    }
    guard(folder, charge, lock, events)
}

fn tell_finished(folder: &Path, summary: &Summary) {
    render::talk(format!(
        "`{}` is finished: {} steps, loss {:.4}; nothing is left to do",
        folder.display(),
        summary.steps,
        summary.final_loss
    ));
    render::talk(format!("model: {}", folder.join("model").display()));
}

/// Refuses what makes sense only with a URL.
fn only_for_a_mirror(args: &ResumeArgs) -> Result<(), Fail> {
    let said = [
        ("--out", args.out.is_some()),
        ("--model", args.model.is_some()),
        ("--data", !args.data.is_empty()),
        ("--eval", args.eval.is_some()),
    ];
    match said.into_iter().find(|(_, said)| *said) {
        Some((flag, _)) => {
            let fact = format!("`{flag}` is for a run that comes from a mirror; `{}` is a folder", args.run.display());
            Err(Fail::usage(fact)
                .hint("a run that goes on keeps its job; edit `job.toml` in it where paths have moved"))
        }
        None => Ok(()),
    }
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
