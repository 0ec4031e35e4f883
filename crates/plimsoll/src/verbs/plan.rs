//! `plimsoll plan`: the plan, part by part; exit 3 if it does not fit.

use std::path::Path;

use plimsoll_plan::choose::Verdict;

use crate::args::PlanArgs;
use crate::prepare::{Bound, Supervisor, prepare};
use crate::render::{self, Exit, Fail};
use crate::settings::Settings;
use crate::verbs::{plan_foreign, plan_sweep};

/// Plans and prints.
pub fn run(args: &PlanArgs) -> Result<(), Fail> {
    let foreign = args.trainer.is_some() || !args.command.is_empty() || args.machine.is_some();
    if let Some(name) = args.profile.as_deref().filter(|name| !foreign || *name == "list") {
        return plan_foreign::profile(name, args.json);
    }
    if args.trainer.is_some() || !args.command.is_empty() || args.profile.is_some() {
        return plan_foreign::plan(args);
    }
    let only = [
        ("--shape", args.shape.is_some()),
        ("--length", args.length.is_some()),
        ("--set", !args.set.is_empty()),
        ("--allow", !args.allow.is_empty()),
        ("--as-is", args.as_is),
        ("--write", args.write.is_some()),
        ("--machine", args.machine.is_some()),
    ];
    if let Some((flag, _)) = only.into_iter().find(|(_, said)| *said) {
        let fact = format!("`{flag}` is for foreign trainers; expected `--trainer NAME` or `-- COMMAND` with it");
        return Err(Fail::usage(fact));
    }
    if args.sweep {
        return plan_sweep::run(args);
    }
    let settings = Settings::resolve(&args.job)?;
    let (prepared, _) = prepare(&settings, Supervisor::Later, Path::new("."), Bound::default())?;
    prepared.remarks.iter().for_each(render::talk);
    let plan = &prepared.plan;
    if args.json {
        render::json(plan)?;
    } else {
        render::data(plan)?;
    }
    match plan.verdict {
        Verdict::Fits => Ok(()),
        Verdict::TooBig => Err(Fail::silent(Exit::DoesNotFit)),
    }
}
