//! `plimsoll remote plan`, `train`, `run` and `resume`: something is started over there, and what it understood is
//! compared with what was asked for.

use std::path::Path;
use std::time::Duration;

use plimsoll_remote::echo::flat;
use plimsoll_remote::keep::RUN_WORD;
use plimsoll_remote::wire::{Answer, Ask, Echo, Ending};
use plimsoll_remote::{FarPath, Link, RemoteError, digest_of};
use serde_json::json;

use super::far_job::{FarJob, fair_name, same};
use super::files::{folder_load, sending};
use super::follow::{Log, one};
use super::run_words::run_words;
use super::{Remote, ended, origin, show, told};
use crate::args::{FarJobArgs, FarPlanArgs, FarRunArgs, FarTrainArgs};
use crate::render::{self, Exit, Fail};
use crate::settings::Settings;
use crate::verbs::run as run_verb;

/// Between two looks at a run that is being planned.
const PAUSE: Duration = Duration::from_millis(300);

/// What of a charge is another thing on another machine.
const ELSEWHERE: &[&str] = &["folder", "began_unix_ms", "trainer_files", "shape"];

/// Plans a job on the other machine.
pub fn plan(args: &FarPlanArgs) -> Result<(), Fail> {
    let job = FarJob::of(&Settings::resolve(&args.job)?, &origin()?, &args.sending.exclude)?;
    let (remote, path) = (Remote::named(&args.name)?, job.path()?);
    sending(&remote, &job.load, &args.sending, |link| resolved(link, &job, &path))?;
    let json = args.json.then(|| "--json".to_string());
    let words: Vec<String> = ["plan".to_string(), path.to_string()].into_iter().chain(json).collect();
    remote.exec(&words)
}

/// Writes the job there, and has it understood: whatever differs is an error before anything is started.
fn resolved(link: &Link, job: &FarJob, path: &FarPath) -> Result<(), RemoteError> {
    plimsoll_remote::push::write(link, path, job.text(link.dir()).as_bytes())?;
    match link.ask(&Ask::Resolve { path: path.clone() })?.0 {
        Answer::Resolved { text } => job.check(link.host(), link.dir(), &text),
        other => Err(RemoteError::Far { host: link.host().to_string(), fact: format!("{other:?}") }),
    }
}

/// Trains a job on the other machine.
pub fn train(args: &FarTrainArgs) -> Result<(), Fail> {
    let job = FarJob::of(&Settings::resolve(&args.job)?, &origin()?, &args.sending.exclude)?;
    let (remote, path) = (Remote::named(&args.name)?, job.path()?);
    let words = ["train".to_string(), path.to_string(), "--out".to_string(), RUN_WORD.to_string()];
    let (pushed, (started, checked)) = sending(&remote, &job.load, &args.sending, |link| {
        resolved(link, &job, &path)?;
        let asked = digest_of(format!("{words:?}\n{}", job.text(link.dir())).as_bytes());
        let ask = Ask::Start {
            name: job.name.clone(),
            fresh: true,
            words: words.to_vec(),
            folder: None,
            asked,
            beside: args.beside,
        };
        let started = start(link, &ask)?;
        let check = |echo: &Echo| job.check(link.host(), link.dir(), &echo.text);
        let checked = started.checked(link, check)?;
        Ok((started, checked))
    })?;
    if !args.json {
        told(&pushed, &args.name, false)?;
    }
    see_off(&remote, &started, checked, args.json)
}

/// Starts somebody else's trainer on the other machine.
pub fn run(args: &FarRunArgs) -> Result<(), Fail> {
    if args.run.out.is_some() {
        return Err(Fail::usage("`--out` names a folder of this machine; runs over there get a name there"));
    }
    let charge = run_verb::charge(&args.run)?;
    let name = fair_name(&charge.command()?.trainer.name);
    let (folder, load) = folder_load(Path::new("."), &args.sending)?;
    let mut words = vec!["run".to_string(), format!("--out={RUN_WORD}")];
    words.extend(run_words(&args.run));
    let charge = serde_json::to_value(&charge)?;
    let remote = Remote::named(&args.name)?;
    let (pushed, (started, checked)) = sending(&remote, &load, &args.sending, |link| {
        let asked = digest_of(format!("{folder} {words:?}").as_bytes());
        let ask = Ask::Start {
            name: name.clone(),
            fresh: true,
            words: words.clone(),
            folder: Some(folder.clone()),
            asked,
            beside: args.beside,
        };
        let started = start(link, &ask)?;
        let checked = started.checked(link, |echo| charged(link.host(), &charge, &echo.text))?;
        Ok((started, checked))
    })?;
    if !args.json {
        told(&pushed, &args.name, false)?;
    }
    see_off(&remote, &started, checked, args.json)
}

/// Whether the other machine guards what was asked for.
fn charged(host: &str, asked: &serde_json::Value, arrived: &str) -> Result<(), RemoteError> {
    let wrong = |why: String| RemoteError::Far { host: host.to_string(), fact: format!("its settings: {why}") };
    let arrived: serde_json::Value = serde_json::from_str(arrived).map_err(|error| wrong(error.to_string()))?;
    let of = |value: &serde_json::Value| {
        let mut all = flat(value, &[]);
        all.retain(|key, _| !ELSEWHERE.contains(&key.as_str()));
        all
    };
    same(host, &of(asked), &of(&arrived), &[])
}

/// Goes on with a run on the other machine.
pub fn resume(args: &FarJobArgs) -> Result<(), Fail> {
    let remote = Remote::named(&args.name)?;
    let seen = remote.run(args.run.as_deref())?;
    if seen.status == "finished" {
        render::talk(format!("`{}` is finished; nothing is left to do", seen.run));
        return Ok(());
    }
    let words = vec!["resume".to_string(), RUN_WORD.to_string()];
    let asked = digest_of(format!("{words:?} {}", seen.run).as_bytes());
    let ask = Ask::Start { name: seen.run.clone(), fresh: false, words, folder: None, asked, beside: false };
    let started = remote.with(
        |link| {
            link.have_done(&Ask::Lock {})?;
            start(link, &ask)
        },
        || 0,
    )?;
    see_off(&remote, &started, true, false)
}

/// What was started.
struct Started {
    run: String,
    echo: Option<Echo>,
    ending: Option<Ending>,
    log_from: u64,
    already: bool,
}

fn start(link: &Link, ask: &Ask) -> Result<Started, RemoteError> {
    match link.ask(ask)?.0 {
        Answer::Started { run, echo, ending, log_from, already } => {
            Ok(Started { run, echo, ending, log_from, already })
        }
        other => Err(RemoteError::Far { host: link.host().to_string(), fact: format!("{other:?}") }),
    }
}

impl Started {
    /// Compares what the started process wrote down with what was asked for, and stops it where that differs. Whether
    /// there was something to compare: what ended at once has said why.
    fn checked(&self, link: &Link, check: impl Fn(&Echo) -> Result<(), RemoteError>) -> Result<bool, RemoteError> {
        let Some(echo) = &self.echo else { return Ok(false) };
        let checked = check(echo);
        if checked.is_err() && self.ending.is_none() {
            // One that has ended meanwhile needs no stop.
            let _ = link.have_done(&Ask::Stop { run: self.run.clone() });
        }
        checked.map(|()| true)
    }
}

/// Follows a run until it is planned and has begun, or has ended; from there on it goes on without us.
fn see_off(remote: &Remote, started: &Started, checked: bool, json: bool) -> Result<(), Fail> {
    if started.ending.is_none() && !checked {
        let fact = format!("`{}` runs on `{}`, and has not said which settings it has", started.run, remote.name);
        return Err(Fail::new(Exit::Failed, anyhow::anyhow!(fact))
            .hint(format!("plimsoll remote stop {} {}", remote.name, started.run)));
    }
    let mut log = Log::of(&started.run, Some(started.log_from))?;
    let seen = remote.with(
        |link| {
            loop {
                let seen = one(link, &started.run)?;
                if !started.already {
                    log.catch_up(link, &mut |bytes| show(true, bytes))?;
                }
                if seen.status != "planning" || !seen.alive {
                    return Ok(seen);
                }
                std::thread::sleep(PAUSE);
            }
        },
        || 0,
    )?;
    if let Some(ending) = seen.ending.filter(|ending| *ending != Ending::Code(0)) {
        render::talk(format!("on `{}`: `{}` ended", remote.name, seen.run));
        return ended(ending);
    }
    if json {
        return render::json(
            &json!({ "remote": remote.name, "run": seen.run, "already": started.already, "seen": seen }),
        );
    }
    render::data(&seen.run)?;
    let (name, run) = (&remote.name, &seen.run);
    render::talk(match (started.already, seen.alive) {
        (true, _) => format!("`{run}` is running on `{name}` already, and is what was asked for"),
        (false, true) => {
            format!("`{run}` goes on at `{name}` by itself; plimsoll remote logs {name} {run} -f, watch, stop, pull")
        }
        (false, false) => format!("`{run}` is done; plimsoll remote pull {name} {run}"),
    });
    Ok(())
}
