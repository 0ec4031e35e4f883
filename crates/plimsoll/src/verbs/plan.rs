//! `plimsoll plan`: the plan, part by part; exit 3 if it does not fit.

use std::path::Path;

use plimsoll_plan::choose::Verdict;

use crate::args::PlanArgs;
use crate::prepare::{Supervisor, prepare};
use crate::render::{self, Exit, Fail};
use crate::settings::Settings;

/// Plans and prints.
pub fn run(args: &PlanArgs) -> Result<(), Fail> {
    let settings = Settings::resolve(&args.job)?;
    let (prepared, _) = prepare(&settings, Supervisor::Later, Path::new("."), None)?;
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
