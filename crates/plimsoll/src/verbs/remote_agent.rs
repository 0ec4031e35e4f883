//! `plimsoll remote-agent`: the far side of `plimsoll remote`, started by it over ssh.

use std::os::fd::AsFd;
use std::path::Path;

use plimsoll_remote::Patience;
use plimsoll_remote::serve::{Deeds, Progress, serve};
use plimsoll_watch::view::Status;

use crate::args::{AgentArgs, AgentVerb, JobFlags};
use crate::render::{Exit, Fail, OrFail};
use crate::settings::Settings;
use crate::verbs::watch::follow::Following;

/// What only this program knows of runs and jobs.
struct Own;

impl Deeds for Own {
    fn look(&self, run: &Path) -> Option<Progress> {
        let mut following = Following::of(run);
        let view = following.look().ok().filter(|_| following.has_journal())?;
        let status = match view.status {
            Status::Running => "running",
            Status::Stopped => "stopped",
            Status::Finished => "finished",
            Status::Dead => "dead",
        };
        Some(Progress {
            status: status.to_string(),
            step: view.step,
            total_steps: view.total_steps,
            loss: view.latest.map(|latest| latest.loss).filter(|loss| loss.is_finite()),
            eta_seconds: view.eta_seconds,
            why: view.why,
            last_unix_ms: view.last_unix_ms.unwrap_or(0),
        })
    }

    fn resolve(&self, job: &Path) -> Result<String, String> {
        let flags = JobFlags { job: Some(job.to_path_buf()), ..JobFlags::default() };
        let settings = Settings::resolve(&flags);
        settings.map(|settings| settings.to_toml()).map_err(|fail| {
            let fact = fail.fact.map_or(String::new(), |fact| format!("{fact:#}"));
            fail.hint.map_or(fact.clone(), |hint| format!("{fact} ({hint})"))
        })
    }
}

/// Serves or keeps.
pub fn run(args: &AgentArgs) -> Result<(), Fail> {
    match &args.verb {
        AgentVerb::Serve { dir, program } => {
            // Without the buffer of lines that stdout has.
            let output = std::io::stdout().as_fd().try_clone_to_owned().or_failed()?;
            serve(dir, program, std::io::stdin(), std::fs::File::from(output), &Own, Patience::default()).map_err(
                |error| {
                    // Nobody is left to be told.
                    if error.is_cut() { Fail::silent(Exit::Done) } else { Fail::new(Exit::Failed, error) }
                },
            )
        }
        AgentVerb::Keep { dir, run, program } => plimsoll_remote::keep::keep(dir, run, program)
            .map_err(|fact| Fail::new(Exit::Failed, anyhow::anyhow!(fact))),
    }
}
