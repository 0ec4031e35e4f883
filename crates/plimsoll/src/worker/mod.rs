//! The worker: plans, takes its memory, trains, evaluates, saves. One process, started by the supervisor.

mod evaluate;
mod run;
mod save;
mod weights;

use std::path::Path;

use plimsoll_engine::with_cores;
use plimsoll_plan::choose::{Pins, Plan, Verdict};
use plimsoll_recover::{StopFlag, atomic_write};

use crate::heap::{self, Role};
use crate::prepare::{Supervisor, prepare};
use crate::render::{self, Exit, Fail, OrFail};
use crate::settings::Settings;

pub use evaluate::evaluate;
use run::Run;

/// Runs the worker of a run folder.
pub fn run(folder: &Path) -> Result<(), Fail> {
    let stop = StopFlag::install()?;
    let settings = Settings::from_run(folder)?;
    let supervisor = std::os::unix::process::parent_id();
    let plan_path = folder.join("plan.json");
    let earlier: Option<Plan> = match plan_path.exists() {
        true => Some(serde_json::from_slice(&fs_err::read(&plan_path)?).or_usage()?),
        false => None,
    };
    let held = earlier.as_ref().map(pins_of);
    let mut replanned = earlier.is_none();
    let (mut prepared, mut program) = prepare(&settings, Supervisor::Running(supervisor), folder, held)?;
    if earlier.is_some() && prepared.plan.verdict == Verdict::TooBig {
        render::talk(
            "the plan that this run began with does not fit any more; it is planned anew, and from here on losses agree to rounding, not to the bit",
        );
        drop((prepared, program));
        (prepared, program) = prepare(&settings, Supervisor::Running(supervisor), folder, None)?;
        replanned = true;
    }
    prepared.remarks.iter().for_each(render::talk);
    let plan = &prepared.plan;
    if plan.verdict == Verdict::TooBig {
        render::talk(plan);
        return Err(Fail::silent(Exit::DoesNotFit));
    }
    if replanned {
        render::talk(plan);
        atomic_write(&plan_path, &serde_json::to_vec_pretty(plan).or_failed()?)?;
    }
    let threads = plan.threads;
    with_cores(
        threads,
        || heap::tag(Role::Engine),
        move || Run::start(folder, settings, prepared, program, supervisor, stop)?.go(),
    )?
}

/// An earlier plan's choices: a run that goes on does exactly what it did.
fn pins_of(plan: &Plan) -> Pins {
    let c = &plan.choices;
    Pins {
        micro_batch: Some(c.micro_batch),
        recompute: Some(c.recompute),
        loss_chunk: Some(c.loss_chunk),
        optimizer_in_backward: Some(c.optimizer_in_backward),
        loader_threads: Some(c.loader_threads),
    }
}
