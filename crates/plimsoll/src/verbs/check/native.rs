//! A job of our own, looked over: can it be read, does it fit, is there disk.

use std::path::Path;

use plimsoll_launch::check::{CheckFacts, Checklist, Item, LoaderFacts, RunFacts, check};
use plimsoll_machine::{Root, probe};
use plimsoll_plan::choose::{Plan, Verdict};

use super::host::host_facts;
use super::{fail, pass};
use crate::args::JobFlags;
use crate::prepare::{Bound, Supervisor, prepare};
use crate::render::{Fail, OrFail};
use crate::settings::Settings;

/// Points about a machine that a job of our own does not depend on: it has no loader processes and pins nothing.
const FOREIGN: [&str; 3] = ["flags", "open files", "disk"];

/// The points of a job.
pub fn points(job: &JobFlags) -> Result<Checklist, Fail> {
    let settings = match Settings::resolve(job) {
        Ok(settings) => settings,
        Err(wrong) => return Ok(Checklist { items: vec![refused("job", wrong)] }),
    };
    let mut items = vec![pass("job", "it can be read")];
    let root = Root::system();
    let found = probe(&root, Path::new(".")).or_usage()?;
    let mut host = host_facts(&root, &found);
    match prepare(&settings, Supervisor::Later, Path::new("."), Bound::default()) {
        Ok((prepared, _)) => {
            let plan = &prepared.plan;
            items.push(pass("model and data", format!("they can be read: {} updates", prepared.steps)));
            items.push(fits(plan));
            items.push(disk(plan));
            host.demand = Some(plan.ram.peak);
        }
        Err(wrong) => items.push(refused("model and data", wrong)),
    }
    // What the plan may use is set by the job; the machine's own room is another point.
    let facts = CheckFacts { host, loader: LoaderFacts::default(), run: RunFacts::default(), ..CheckFacts::default() };
    items.extend(check(&facts).items.into_iter().filter(|item| !FOREIGN.contains(&item.name)));
    Ok(Checklist { items })
}

fn fits(plan: &Plan) -> Item {
    let found = format!("{} are planned, {} may be used", plan.ram.peak, plan.ram.budget);
    match plan.verdict {
        Verdict::Fits => pass("plan", found),
        Verdict::TooBig => {
            let change = plan.would_fit.first().map(|one| format!("{} ({} RAM)", one.change, one.ram_peak));
            let cure = change.unwrap_or_else(|| "`plimsoll plan` on the job prints what would make it fit".to_string());
            fail("plan", found, cure)
        }
    }
}

fn disk(plan: &Plan) -> Item {
    let found = format!("{} are planned, {} may be used", plan.disk.peak, plan.disk.budget);
    match plan.disk.peak <= plan.disk.budget {
        true => pass("disk", found),
        false => fail("disk", found, "free some, keep fewer checkpoints (`train.keep`), or write elsewhere (`--out`)"),
    }
}

/// What refuses to be read, with its remedy.
fn refused(name: &'static str, wrong: Fail) -> Item {
    let fact = wrong.fact.map_or("it is refused".to_string(), |fact| {
        fact.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ")
    });
    fail(name, fact, wrong.hint.unwrap_or_else(|| "put it right; `plimsoll plan` says the same".to_string()))
}
