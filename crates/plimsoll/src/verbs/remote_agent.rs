//! `plimsoll remote-agent`: the far side of `plimsoll remote`, started by it over ssh.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use plimsoll_remote::serve::{Deeds, Progress, serve};
use plimsoll_remote::{Patience, Refusal};
use plimsoll_watch::view::Status;

use crate::args::{AgentArgs, AgentVerb, JobFlags};
use crate::render::{Exit, Fail, OrFail};
use crate::settings::Settings;
use crate::verbs::watch::follow::Following;

/// Runs that are followed at once. Each has its journal open; of others it is read anew.
const FOLLOWED: usize = 64;

/// What only this program knows of runs and jobs.
#[derive(Default)]
struct Own {
    /// The runs that were looked at last, the latest at the end: of them only what was appended is read.
    followed: RefCell<Vec<(PathBuf, Following)>>,
}

impl Deeds for Own {
    fn look(&self, run: &Path) -> Option<Progress> {
        let mut followed = self.followed.borrow_mut();
        let at = followed.iter().position(|(known, _)| known == run);
        let (path, mut following) =
            at.map_or_else(|| (run.to_path_buf(), Following::of(run)), |at| followed.remove(at));
        let view = following.look().ok().filter(|_| following.has_journal())?;
        if followed.len() == FOLLOWED {
            followed.remove(0);
        }
        followed.push((path, following));
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

    fn resolve(&self, job: &Path) -> Result<String, Refusal> {
        let flags = JobFlags { job: Some(job.to_path_buf()), ..JobFlags::default() };
        let settings = Settings::resolve(&flags);
        settings.map(|settings| settings.to_toml()).map_err(|fail| {
            let fact = fail.fact.map_or(String::new(), |fact| format!("{fact:#}"));
            let fact = fail.hint.map_or(fact.clone(), |hint| format!("{fact} ({hint})"));
            if fail.exit == Exit::BadInput { Refusal::of_asked(fact) } else { Refusal::of_machine(fact) }
        })
    }
}

/// Serves, keeps or begins.
pub fn run(args: &AgentArgs) -> Result<(), Fail> {
    match &args.verb {
        AgentVerb::Serve { dir, program } => {
            // Without the buffer of lines that stdout has.
            let output = std::io::stdout().as_fd().try_clone_to_owned().or_failed()?;
            serve(dir, program, std::io::stdin(), std::fs::File::from(output), &Own::default(), Patience::default())
                .map_err(|error| {
                    // Nobody is left to be told.
                    if error.is_cut() { Fail::silent(Exit::Done) } else { Fail::new(Exit::Failed, error) }
                })
        }
        AgentVerb::Keep { dir, run, program } => plimsoll_remote::keep::keep(dir, run, program)
            .map_err(|fact| Fail::new(Exit::Failed, anyhow::anyhow!(fact))),
        AgentVerb::Begin { program, words } => {
            plimsoll_remote::keep::begin(program, words).map_err(|fact| Fail::new(Exit::Failed, anyhow::anyhow!(fact)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use plimsoll_watch::{Event, Journal};

    use super::*;

    #[test]
    fn of_a_run_that_is_looked_at_again_only_what_was_appended_is_read() {
        let run = tempfile::tempdir().unwrap();
        let (own, path) = (Own::default(), run.path().join("journal.jsonl"));
        assert!(own.look(run.path()).is_none());
        let mut journal = Journal::create(&path).unwrap();
        let mut go = |step, total| journal.record(&Event::Progress { step, total, loss: None }).unwrap();
        go(3, Some(100));
        assert!(own.look(run.path()).is_some());
        // Whoever read it from the beginning would find no record there.
        fs_err::OpenOptions::new().write(true).open(&path).unwrap().file().write_all_at(b"spoilt", 0).unwrap();
        go(4, None);
        let found = own.look(run.path()).unwrap();
        assert_eq!((found.step, found.total_steps), (4, 100));
    }

    #[test]
    fn no_more_runs_are_held_open_than_a_few() {
        let dir = tempfile::tempdir().unwrap();
        let own = Own::default();
        for n in 0..=FOLLOWED {
            let run = dir.path().join(n.to_string());
            fs_err::create_dir(&run).unwrap();
            Journal::create(&run.join("journal.jsonl")).unwrap();
            assert!(own.look(&run).is_some());
        }
        assert_eq!(own.followed.borrow().len(), FOLLOWED);
        assert!(own.followed.borrow()[0].0.ends_with("1"));
    }
}
