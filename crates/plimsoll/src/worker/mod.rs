//! The worker: plans, takes its memory, trains, evaluates, saves. One process, started by the supervisor.

mod course;
mod early_stop;
mod evaluate;
mod evaluate_series;
mod feed;
mod finish;
mod last_words;
mod model;
mod resolved;
mod run;
mod samples;
mod save;
mod saver;
mod update;
mod weights;

use plimsoll_engine::with_cores;
use plimsoll_plan::choose::Plan;
use plimsoll_recover::{NewsWriter, StopFlag, atomic_write};

use crate::args::WorkerArgs;
use crate::elsewhere;
use crate::heap::{self, Role};
use crate::prepare::{Bound, Supervisor, prepare};
use crate::render::{self, Exit, Fail, OrFail};
use crate::settings::Settings;

use course::{Course, contract, course, pins_of};
pub use evaluate::{Evaluation, evaluate};
pub use evaluate_series::{evaluate_series, told_classes};
pub use model::save_of_checkpoint;
use run::{Run, Start};
pub use save::series_of;

/// Runs the worker of a run folder.
pub fn run(args: &WorkerArgs) -> Result<(), Fail> {
    let folder = args.run.as_path();
    let stop = StopFlag::install()?;
    elsewhere::end_when({
        let stop = stop.clone();
        move || stop.requested()
    });
    // SAFETY: the supervisor opened this descriptor for us, and nothing else in this process knows of it.
    let news = args.news.and_then(|number| unsafe { NewsWriter::adopt(number) });
    last_words::on_panic(folder);
    heap::on_refusal(args.news);
    let mut settings = Settings::from_run(folder)?;
    if let Some(cap) = args.cap {
        settings.ram = Some(settings.ram.map_or(cap, |ram| ram.min(cap)));
    }
    if args.whole_gradients {
        settings.pins.optimizer_in_backward = Some(false);
    }
    let supervisor = std::os::unix::process::parent_id();
    let plan_path = folder.join("plan.json");
    let earlier: Option<Plan> = match plan_path.exists() {
        true => Some(serde_json::from_slice(&fs_err::read(&plan_path)?).or_usage()?),
        false => None,
    };
    // What changes the result stays, whatever else is planned anew.
    let rungs = earlier.as_ref().map(|plan| plan.rungs.clone());
    let earlier = earlier.filter(|_| !args.anew);
    let bound = Bound { choices: earlier.as_ref().map(pins_of), rungs: rungs.clone() };
    let (mut prepared, mut program) = prepare(&settings, Supervisor::Running(supervisor), folder, bound)?;
    let mut chosen = course(earlier.as_ref(), &prepared.plan);
    if chosen == Course::PlanAnew {
        render::talk("the plan that this run began with does not fit any more; it is planned anew");
        drop((prepared, program));
        let bound = Bound { choices: None, rungs };
        (prepared, program) = prepare(&settings, Supervisor::Running(supervisor), folder, bound)?;
        chosen = course(None, &prepared.plan);
    }
    prepared.remarks.iter().for_each(render::talk);
    match (chosen, earlier) {
        (Course::GoOn, Some(earlier)) => prepared.plan = contract(earlier, &prepared.plan),
        (Course::Take, _) => {
            render::talk(&prepared.plan);
            // The job first: a run that has a plan has a job that gives the same plan.
            resolved::resolve_job(folder, &settings, &prepared)?;
            atomic_write(&plan_path, &serde_json::to_vec_pretty(&prepared.plan).or_failed()?)?;
        }
        _ => {
            render::talk(&prepared.plan);
            return Err(Fail::silent(Exit::DoesNotFit));
        }
    }
    let threads = prepared.plan.threads;
    with_cores(
        threads,
        || heap::tag(Role::Engine),
        move || Run::start(Start { folder, settings, prepared, program, supervisor, stop, news })?.go(),
    )?
}
