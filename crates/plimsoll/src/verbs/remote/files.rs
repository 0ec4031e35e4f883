//! `plimsoll remote push` and `pull`.

use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use plimsoll_recover::{atomic_write, checkpoint};
use plimsoll_remote::pull::list;
use plimsoll_remote::push::{Care, Item, Pushed};
use plimsoll_remote::select::{Excludes, USUAL, files};
use plimsoll_remote::wire::{Answer, Ask, Listed};
use plimsoll_remote::{FarPath, Link, RemoteError};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde_json::json;

use super::far_job::{FarJob, fair_name};
use super::{Remote, failed, far, origin, strange, told};
use crate::args::{FarPullArgs, FarPushArgs, Sending};
use crate::render::{self, Fail, OrFail};
use crate::settings::Settings;

/// Says which run of which remote a folder was brought from.
const MARK: &str = ".remote.json";

/// Where a run says what happens to it.
const JOURNAL: &str = "journal.jsonl";
/// Where a run has its checkpoints.
const CHECKPOINTS: &str = "checkpoints";
/// Whoever trains in a folder leaves it there; it is never brought.
const RUN_LOCK: &str = ".lock";
/// Who brings it has it alone.
const LOCK: &str = ".remote.lock";
/// What of a run stays where it is; checkpoints that are being written or deleted too.
const LEFT: &[&str] = &[RUN_LOCK, ".*.tmp-*", ".tmp-step-*", ".old-step-*", MARK, LOCK];

/// What is to be there before anything is done with it.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// Its files.
    pub items: Vec<Item>,
    /// A folder that holds nothing else.
    pub whole: Option<Whole>,
}

/// A folder that is over there as it is here: what is not here any more goes.
#[derive(Clone, Debug)]
pub struct Whole {
    /// Where it is.
    pub folder: FarPath,
    /// What of it is neither sent nor removed.
    pub exclude: Vec<String>,
}

/// Sends what a job needs, or a folder.
pub fn push(args: &FarPushArgs) -> Result<(), Fail> {
    let (load, job, place) = match &args.folder {
        Some(folder) => {
            let (place, load) = folder_load(folder, &args.sending)?;
            (load, None, Some(place))
        }
        None => {
            let job = FarJob::of(&Settings::resolve(&args.job)?, &origin()?, &args.sending.exclude)?;
            (job.load.clone(), Some(job), None)
        }
    };
    let remote = Remote::named(&args.name)?;
    let job = job.map(|job| job.path().map(|path| (job, path))).transpose()?;
    let pushed = sending(&remote, &load, &args.sending, |link| {
        job.as_ref().map_or(Ok(()), |(job, path)| job.write(link, path))
    })?;
    let what = place.map_or(args.name.clone(), |place| format!("{}:{place}", args.name));
    told(&pushed.0, &what, args.json)
}

/// Sends what there is to send, then does `then` over the same connection; all of it again where that breaks.
pub fn sending<T>(
    remote: &Remote,
    load: &Load,
    how: &Sending,
    mut then: impl FnMut(&Link) -> Result<T, RemoteError>,
) -> Result<(Pushed, T), Fail> {
    let (most, care) = (Cell::new(0), Care { compare_all: how.compare_all });
    let mut sent = 0;
    let (mut pushed, result) = remote.with(
        |link| {
            let mut before = 0;
            let pushed = plimsoll_remote::push::push(link, &load.items, care, &mut |pushed| {
                remote.shown.show("files", pushed.done, pushed.total);
                most.set(most.get().max(pushed.done.0));
                sent += pushed.sent.0 - before;
                before = pushed.sent.0;
            })?;
            if let Some(Whole { folder, exclude }) = &load.whole {
                plimsoll_remote::push::nothing_else(link, folder, exclude, &load.items)?;
            }
            Ok((pushed, then(link)?))
        },
        || most.get(),
    )?;
    // Of all connections together.
    pushed.sent = plimsoll_machine::Bytes(sent);
    Ok((pushed, result))
}

/// Where a folder will be, under its own name, and its files.
pub fn folder_load(folder: &Path, how: &Sending) -> Result<(FarPath, Load), Fail> {
    let full = fs_err::canonicalize(folder).or_usage()?;
    let name = fair_name(&full.file_name().unwrap_or_default().to_string_lossy());
    let patterns: Vec<&str> = USUAL.iter().copied().chain(how.exclude.iter().map(String::as_str)).collect();
    // Folders of one name are many, and so are people who send them.
    let to = far(format!("work/{}/{name}", origin()?.key(&full, &[])))?;
    let mut load = Load::default();
    for file in files(&full, &Excludes::new(&patterns).map_err(failed)?).map_err(failed)? {
        load.items.push(Item { from: file.path.in_folder(&full), to: to.join(&file.path).map_err(failed)? });
    }
    Ok((to, load))
}

/// Brings a run here.
pub fn pull(args: &FarPullArgs) -> Result<(), Fail> {
    let remote = Remote::named(&args.of.name)?;
    let run = remote.run(args.of.run.as_deref())?.run;
    let usual = || PathBuf::from("runs").join(fair_name(&format!("{}-{run}", remote.name)));
    let out = args.out.clone().unwrap_or_else(usual);
    let url = remote.session.ssh().address().to_string();
    let mark = json!({ "remote": url, "run": run });
    is_ours(&out, &mark)?;
    fs_err::create_dir_all(&out).or_usage()?;
    let _lock = take(&out)?;
    // Another one may have had it meanwhile. The mark comes first of all, so that a pull that is cut short can be gone on with.
    if !is_ours(&out, &mark)? {
        let text = serde_json::to_vec_pretty(&mark).or_failed()?;
        atomic_write(&out.join(MARK), &text).or_failed()?;
    }
    let checkpoints = (!args.checkpoints).then_some(CHECKPOINTS);
    let exclude = LEFT.iter().copied().chain(checkpoints).chain(args.exclude.iter().map(String::as_str));
    let exclude: Vec<String> = exclude.map(str::to_string).collect();
    let (from, most) = (far(format!("runs/{run}"))?, Cell::new(0));
    let mut shown = |pulled: &Pushed| {
        remote.shown.show(&run, pulled.done, pulled.total);
        most.set(most.get().max(pulled.done.0));
    };
    let (pulled, gone) = remote.with(
        |link| {
            is_the_same(link, &run, &out)?;
            let pulled = plimsoll_remote::pull::pull(link, &from, &exclude, &out, &mut shown)?;
            let gone = if args.checkpoints { forget(link, &from, &out)? } else { Vec::new() };
            Ok((pulled, gone))
        },
        || most.get(),
    )?;
    if !args.json {
        render::data(out.display())?;
    }
    for step in gone {
        render::talk(format!("the checkpoint of step {step} is not there any more, and was removed here"));
    }
    told(&pulled, &format!("{}:{run}", remote.name), args.json)
}

/// Refuses a folder with another run of that name, brought before: a machine that was made anew numbers its runs from 1 again. A run
/// is told by the first record of its journal, which is only ever appended to.
fn is_the_same(link: &Link, run: &str, out: &Path) -> Result<(), RemoteError> {
    let first = |from: &mut dyn BufRead| {
        let mut line = Vec::new();
        from.read_until(b'\n', &mut line).ok().filter(|_| line.ends_with(b"\n")).map(|_| line)
    };
    let here = fs_err::File::open(out.join(JOURNAL)).ok().and_then(|file| first(&mut BufReader::new(file)));
    let Some(here) = here else { return Ok(()) };
    let path = FarPath::new(format!("runs/{run}/{JOURNAL}"))?;
    let there = match link.ask(&Ask::Tail { path, from: Some(0) })? {
        (Answer::Text { from: 0 }, bytes) => first(&mut &bytes[..]),
        (other, _) => return Err(strange(link, &other)),
    };
    match there.is_none_or(|there| there == here) {
        true => Ok(()),
        false => Err(RemoteError::OtherRun { run: run.to_string(), folder: out.into() }),
    }
}

/// Removes the checkpoints in `out` that are gone over there, now that those are whole which have taken their place; their steps.
/// Where somebody has trained here, they may be this machine's own, and stay.
fn forget(link: &Link, run: &FarPath, out: &Path) -> Result<Vec<u64>, RemoteError> {
    if out.join(RUN_LOCK).exists() {
        return Ok(Vec::new());
    }
    let there = match list(link, &run.join(&FarPath::new(CHECKPOINTS)?)?, &[]) {
        Ok(there) => there,
        // It has none.
        Err(RemoteError::Refused { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let step = |file: &Listed| file.path.as_str().split_once('/')?.0.strip_prefix("step-")?.parse().ok();
    let steps: Vec<u64> = there.iter().filter_map(step).collect();
    Ok(checkpoint::follow(&out.join(CHECKPOINTS), &steps)?)
}

/// The right to write into a folder of a run. The kernel takes it back, whatever ends us.
fn take(out: &Path) -> Result<fs_err::File, Fail> {
    let file = fs_err::OpenOptions::new().create(true).truncate(false).write(true).open(out.join(LOCK)).or_usage()?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => {
            Err(Fail::usage(format!("another plimsoll is writing to `{}`", out.display()))
                .hint("wait until it has ended"))
        }
        Err(error) => Err(Fail::new(render::Exit::BadInput, std::io::Error::from(error))
            .context(format!("cannot lock `{}`", out.display()))),
    }
}

/// Refuses a folder that holds anything but this run, brought before; whether it is marked as that.
fn is_ours(out: &Path, mark: &serde_json::Value) -> Result<bool, Fail> {
    // What a pull leaves that is killed before it has written its mark.
    let is_own = |name: &str| name == LOCK || name.starts_with(&format!(".{MARK}.tmp-"));
    let empty = match fs_err::read_dir(out) {
        Ok(entries) => entries.flatten().all(|entry| entry.file_name().to_str().is_some_and(is_own)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(Fail::new(render::Exit::BadInput, error)),
    };
    let found = fs_err::read(out.join(MARK)).ok();
    let found = found.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
    match found.as_ref() == Some(mark) {
        true => Ok(true),
        false if empty => Ok(false),
        false => Err(Fail::usage(format!("`{}` holds something else than this run", out.display()))
            .hint("name another folder with --out")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_this_runs_if_nothing_is_in_it_but_what_a_killed_pull_left() {
        let out = tempfile::tempdir().unwrap();
        let (mark, other) = (json!({ "run": "a-1" }), json!({ "run": "a-2" }));
        assert!(!is_ours(&out.path().join("none"), &mark).unwrap() && !is_ours(out.path(), &mark).unwrap());
        // Killed between the lock and the name of the mark.
        let lock = take(out.path()).unwrap();
        fs_err::write(out.path().join("..remote.json.tmp-77-0"), "{").unwrap();
        assert!(!is_ours(out.path(), &mark).unwrap());
        assert!(take(out.path()).is_err());
        drop(lock);
        assert!(take(out.path()).is_ok());
        fs_err::write(out.path().join(MARK), mark.to_string()).unwrap();
        fs_err::write(out.path().join("job.toml"), "").unwrap();
        assert!(is_ours(out.path(), &mark).unwrap() && is_ours(out.path(), &other).is_err());
        fs_err::remove_file(out.path().join(MARK)).unwrap();
        assert!(is_ours(out.path(), &mark).is_err());
    }
}
