//! `plimsoll remote plan`, `train`, `run` and `resume`: something is started over there, and what it understood is
//! compared with what was asked for.

use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use plimsoll_remote::echo::flat;
use plimsoll_remote::keep::is_run_name;
use plimsoll_remote::wire::{Answer, Ask, Echo, Ending, RunSeen, Word};
use plimsoll_remote::{FarPath, Link, RemoteError, digest_of, token};
use serde_json::json;

use super::far_job::{FarJob, fair_name, same};
use super::files::{folder_load, sending};
use super::follow::{Log, one};
use super::run_words::run_words;
use super::{Remote, ended, failed, origin, show, strange, told};
use crate::args::{FarJobArgs, FarPlanArgs, FarRunArgs, FarTrainArgs};
use crate::render::{self, Exit, Fail};
use crate::settings::Settings;
use crate::verbs::run as run_verb;

/// Between two looks at a run that is being planned.
const PAUSE: Duration = Duration::from_millis(300);

/// What of a charge is another thing on another machine; what is in those files is compared.
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
    job.write(link, path)?;
    match link.ask(&Ask::Resolve { path: path.clone() })?.0 {
        Answer::Resolved { text } => job.check(link.host(), link.dir(), &text),
        other => Err(strange(link, &other)),
    }
}

/// Trains a job on the other machine.
pub fn train(args: &FarTrainArgs) -> Result<(), Fail> {
    let job = FarJob::of(&Settings::resolve(&args.job)?, &origin()?, &args.sending.exclude)?;
    let (remote, path, token) = (Remote::named(&args.name)?, job.path()?, token().map_err(failed)?);
    let words = [Word::all(["train", path.as_str(), "--out"]), vec![Word::Run]].concat();
    let (pushed, started) = sending(&remote, &job.load, &args.sending, |link| {
        resolved(link, &job, &path)?;
        let asked = digest_of(format!("{words:?}\n{}", job.text(link.dir())).as_bytes());
        let (name, words, token) = (job.name.clone(), words.clone(), token.clone());
        start(link, &Ask::Start { name, fresh: true, words, folder: None, asked, beside: args.beside, token })
    })?;
    if !args.json {
        told(&pushed, &args.name, false)?;
    }
    let check = |link: &Link, echo: &Echo| job.check(link.host(), link.dir(), &echo.text);
    see_off(&remote, &started, Some(&check), args.json)
}

/// Starts somebody else's trainer on the other machine.
pub fn run(args: &FarRunArgs) -> Result<(), Fail> {
    if args.run.out.is_some() {
        return Err(Fail::usage("`--out` names a folder of this machine; runs over there get a name there"));
    }
    let charge = run_verb::charge(&args.run)?;
    let name = fair_name(&charge.command()?.trainer.name);
    let (folder, load) = folder_load(Path::new("."), &args.sending)?;
    let words = [Word::all(["run", "--out"]), vec![Word::Run], Word::all(run_words(&args.run))].concat();
    // Another definition of a trainer is another order: what runs by an earlier one is left alone.
    let understood = serde_json::to_string(&charge.understood)?;
    let charge = serde_json::to_value(&charge)?;
    let (remote, token) = (Remote::named(&args.name)?, token().map_err(failed)?);
    let (pushed, started) = sending(&remote, &load, &args.sending, |link| {
        let asked = digest_of(format!("{folder} {words:?}\n{understood}").as_bytes());
        let (name, words, folder, token) = (name.clone(), words.clone(), Some(folder.clone()), token.clone());
        start(link, &Ask::Start { name, fresh: true, words, folder, asked, beside: args.beside, token })
    })?;
    if !args.json {
        told(&pushed, &args.name, false)?;
    }
    let check = |link: &Link, echo: &Echo| charged(link.host(), &charge, &echo.text);
    see_off(&remote, &started, Some(&check), args.json)
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
    let words = vec![Word::Said("resume".to_string()), Word::Run];
    let asked = digest_of(format!("{words:?} {}", seen.run).as_bytes());
    let (name, token) = (seen.run.clone(), token().map_err(failed)?);
    let ask = Ask::Start { name, fresh: false, words, folder: None, asked, beside: false, token };
    let started = remote.with(
        |link| {
            link.have_done(&Ask::Lock {})?;
            start(link, &ask)
        },
        || 0,
    )?;
    see_off(&remote, &started, None, false)
}

/// What was started.
struct Started {
    run: String,
    log_from: u64,
    already: bool,
}

fn start(link: &Link, ask: &Ask) -> Result<Started, RemoteError> {
    match link.ask(ask)?.0 {
        // It is shown, and becomes a part of commands.
        Answer::Started { run, log_from, already } if is_run_name(&run) => Ok(Started { run, log_from, already }),
        other => Err(strange(link, &other)),
    }
}

/// What a run wrote down of its settings, once it has.
fn echo(link: &Link, run: &str) -> Result<Option<Echo>, RemoteError> {
    match link.ask(&Ask::Echo { run: run.to_string() })?.0 {
        Answer::Echoed { echo } => Ok(echo),
        other => Err(strange(link, &other)),
    }
}

/// Whether what a run wrote down is what was asked for.
type Check<'a> = &'a dyn Fn(&Link, &Echo) -> Result<(), RemoteError>;

/// Follows a run until it is planned and has begun, or has ended; from there on it goes on without us. What it wrote down is
/// compared with what was asked for as soon as it is there, however long that takes; where it differs the run is stopped, and
/// seen to end. One that had begun before it was asked for again is left as it is.
fn see_off(remote: &Remote, started: &Started, check: Option<Check>, json: bool) -> Result<(), Fail> {
    let (name, run) = (&remote.name, &started.run);
    let mut log = Log::of(run, Some(started.log_from))?;
    let (mut unseen, mut wrong, mut stopping, mut older, looks) = (check, None, false, false, Cell::new(0));
    let followed = remote.with(
        |link| {
            loop {
                let seen = one(link, run)?;
                looks.set(looks.get() + 1);
                older |= started.already && looks.get() == 1 && has_begun(&seen);
                if !started.already {
                    log.catch_up(link, &mut |bytes| _ = show(true, bytes))?;
                }
                if let Some(check) = unseen
                    && let Some(echo) = echo(link, run)?
                {
                    unseen = None;
                    wrong = check(link, &echo).err();
                }
                if !seen.alive {
                    return Ok(seen);
                }
                if wrong.is_some() && older {
                    return Ok(seen);
                }
                if wrong.is_some() && !stopping {
                    link.have_done(&Ask::Stop { run: run.clone() })?;
                    stopping = true;
                }
                if wrong.is_none() && unseen.is_none() && has_begun(&seen) {
                    return Ok(seen);
                }
                std::thread::sleep(PAUSE);
            }
        },
        || looks.get(),
    );
    let seen = match (wrong, followed) {
        (None, Ok(seen)) => seen,
        (None, Err(fail)) if unseen.is_some() => {
            let hint =
                format!("`{run}` was started, and what it understood is not compared yet: the same command does that");
            return Err(fail.hint(hint));
        }
        (None, Err(fail)) => return Err(fail),
        (Some(error), Ok(seen)) if seen.alive && older => {
            let hint = format!(
                "`{run}` had begun before, and goes on as it is; plimsoll remote stop {name} {run}, or --beside"
            );
            return Err(failed(error).hint(hint));
        }
        (Some(error), Ok(_)) => {
            let how = if stopping { "was stopped" } else { "has ended by itself" };
            return Err(failed(error).hint(format!("nothing is trained with other settings: `{run}` {how}")));
        }
        (Some(error), Err(fail)) => {
            let why = fail.fact.map_or(String::new(), |fact| format!(": {fact:#}"));
            let fact = format!("`{run}` goes on at `{name}` with other settings, and could not be stopped{why}");
            return Err(failed(error).context(fact).hint(format!("plimsoll remote stop {name} {run}")));
        }
    };
    if !seen.alive && (seen.ending != Some(Ending::Code(0)) || unseen.is_some()) {
        render::talk(format!("on `{name}`: `{run}` ended"));
        ended(seen.ending.unwrap_or(Ending::Unseen))?;
        return Err(Fail::new(Exit::Failed, anyhow::anyhow!("it has not said which settings it had")));
    }
    if json {
        return render::json(&json!({ "remote": name, "run": run, "already": started.already, "seen": seen }));
    }
    render::data(run)?;
    render::talk(match (started.already, seen.alive) {
        (true, _) => format!("`{run}` is running on `{name}` already, and is what was asked for"),
        (false, true) => {
            format!("`{run}` goes on at `{name}` by itself; plimsoll remote logs {name} {run} -f, watch, stop, pull")
        }
        (false, false) => format!("`{run}` is done; plimsoll remote pull {name} {run}"),
    });
    Ok(())
}

/// Whether a run that is alive is past its planning, also where its records of before say how it ended then.
fn has_begun(seen: &RunSeen) -> bool {
    matches!(seen.status.as_str(), "running" | "finished")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_trainer_over_there_is_told_and_other_places_of_files_are_not() {
        let asked = json!({
            "folder": "/here", "words": ["sh"], "shape": "/here/config.json", "trainer_files": ["/here/mine.toml"],
            "understood": { "trainer": "mine", "launcher": null, "definition": "a1", "shape": "b2" },
        });
        let mut there = asked.clone();
        for (key, value) in [("folder", "/there"), ("shape", "/there/config.json")] {
            there[key] = value.into();
        }
        there["trainer_files"] = json!(["/there/mine.toml"]);
        charged("box", &asked, &there.to_string()).unwrap();
        let told = |key: &str, value: &str| {
            let mut there = there.clone();
            there["understood"][key] = value.into();
            charged("box", &asked, &there.to_string()).unwrap_err().to_string()
        };
        assert!(told("trainer", "generic").contains("`understood.trainer`: asked `\"mine\"`, arrived `\"generic\"`"));
        assert!(told("definition", "a2").contains("`understood.definition`"));
        assert!(told("shape", "b3").contains("`understood.shape`"));
    }
}
