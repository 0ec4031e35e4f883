//! A job of our own: its plan to the byte, its words, its folders.

use std::path::Path;

use plimsoll_data::remote_url;
use plimsoll_deploy::{Grace, Kind, Limit, Stop, hardware};
use plimsoll_machine::Bytes;
use plimsoll_plan::choose::{Plan, Verdict};

use super::folders::Folders;
use super::said::Said;
use super::{Planned, text};
use crate::args::{DeployArgs, ForeignFlags, JobFlags};
use crate::prepare::{Bound, Supervisor, prepare};
use crate::render::{self, Exit, Fail, OrFail};
use crate::settings::Settings;

/// Plans the job on this machine.
pub fn planned(args: &DeployArgs) -> Result<Planned, Fail> {
    let said = Said::again()?;
    if let Some(flag) = said.flags::<ForeignFlags>(|_| true)?.first() {
        let flag = flag.split('=').next().unwrap_or(flag);
        return Err(Fail::usage(format!("`{flag}` is for foreign trainers; expected `-- COMMAND` with it")));
    }
    let settings = Settings::resolve(&args.job)?;
    let here = std::env::current_dir().or_failed()?;
    let run = here.join(args.out.as_deref().unwrap_or(Path::new("runs")));
    let (prepared, _) = prepare(&settings, Supervisor::Later, &run, Bound::default())?;
    prepared.remarks.iter().for_each(render::talk);
    let plan = &prepared.plan;
    if plan.verdict == Verdict::TooBig {
        render::talk(plan);
        return Err(Fail::silent(Exit::DoesNotFit));
    }
    let mut folders = Folders::default();
    let (mut urls, mut notes) = (Vec::new(), Vec::new());
    folders.read(&settings.model)?;
    for path in settings.train_data.iter().chain(&settings.eval_data) {
        match remote_url(path) {
            Some(url) => urls.push(url.to_string()),
            None => folders.read(path)?,
        }
    }
    urls.extend(settings.mirror.as_ref().map(|mirror| mirror.url.clone()));
    let mut words = vec!["train".to_string()];
    if let Some(job) = &args.job.job {
        // Not through links: paths in it begin where it lies.
        let job = std::path::absolute(job).or_usage()?;
        folders.read(&job)?;
        words.push(text(&job)?);
        notes.push(format!("The job: {}; a run that has begun keeps the job that it began with.", job.display()));
    }
    words.extend(said.flags::<JobFlags>(|_| true)?);
    notes.push(
        "Planned by `plimsoll plan` for the memory and the cores of the machine where this file was written."
            .to_string(),
    );
    let grace = Grace::of(match settings.stop_within {
        Some(seconds) => Stop::Within { seconds },
        None => Stop::Saves {
            step_seconds: plan.seconds_per_update,
            checkpoint: checkpoint(plan, settings.keep),
            mirrored: settings.mirror.as_ref().map(|mirror| mirror.rate),
        },
    });
    let cards = u64::from(settings.card.is_some() && !plan.vram.parts.is_empty());
    Ok(Planned {
        kind: Kind::Native,
        name: settings.run_name(),
        notes,
        words,
        command: Vec::new(),
        folder: here,
        image: image(cards),
        memory: Limit::over(plan.ram.peak, "the plan's RAM"),
        shm: None,
        cards,
        cores: hardware::cores(plan.threads as u64, plan.choices.loader_threads as u64, cores_here()),
        grace,
        saves: true,
        urls,
        folders,
    })
}

/// Cores that a run may use here: threads that nobody said are as many.
fn cores_here() -> u64 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64)
}

/// The image of docs/deploy.md; steps on cards need the one with CUDA's libraries.
fn image(cards: u64) -> String {
    let base = if cards > 0 { "-cuda" } else { "" };
    format!("plimsoll:{}{base}", env!("CARGO_PKG_VERSION"))
}

/// One checkpoint, at most: the plan's line is of those that are kept, and of one that is being written.
fn checkpoint(plan: &Plan, keep: u64) -> Bytes {
    let all = plan.disk.parts.iter().find(|part| part.name == "checkpoints").map_or(Bytes::ZERO, |part| part.bytes);
    Bytes(all.0 / (keep.max(1) + 2))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_job_on_a_card_gets_the_image_with_cudas_libraries() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(super::image(0), format!("plimsoll:{version}"));
        assert_eq!(super::image(1), format!("plimsoll:{version}-cuda"));
    }
}
