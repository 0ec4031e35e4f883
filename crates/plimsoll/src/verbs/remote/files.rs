//! `plimsoll remote push` and `pull`.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use plimsoll_recover::atomic_write;
use plimsoll_remote::push::{Care, Item, Pushed};
use plimsoll_remote::select::{Excludes, USUAL, files};
use plimsoll_remote::{Link, RemoteError};
use serde_json::json;

use super::far_job::{FarJob, fair_name};
use super::{Remote, failed, far, told};
use crate::args::{FarPullArgs, FarPushArgs, Sending};
use crate::render::{self, Fail, OrFail};
use crate::settings::Settings;

/// Says which run of which remote a folder was brought from.
const MARK: &str = ".remote.json";

/// What of a run stays where it is.
const LEFT: &[&str] = &[".lock", ".*.tmp-*", MARK];

/// Sends what a job needs, or a folder.
pub fn push(args: &FarPushArgs) -> Result<(), Fail> {
    let (items, job) = match &args.folder {
        Some(folder) => (folder_items(folder, &args.sending)?.1, None),
        None => {
            let job = FarJob::of(&Settings::resolve(&args.job)?, &args.sending.exclude)?;
            (job.items.clone(), Some(job))
        }
    };
    let remote = Remote::named(&args.name)?;
    let job = job.map(|job| job.path().map(|path| (job, path))).transpose()?;
    let pushed = sending(&remote, &items, &args.sending, |link| {
        let Some((job, path)) = &job else { return Ok(()) };
        plimsoll_remote::push::write(link, path, job.text(link.dir()).as_bytes())
    })?;
    told(&pushed.0, &args.name, args.json)
}

/// Sends `items`, then does `then` over the same connection; all of it again where that breaks.
pub fn sending<T>(
    remote: &Remote,
    items: &[Item],
    how: &Sending,
    mut then: impl FnMut(&Link) -> Result<T, RemoteError>,
) -> Result<(Pushed, T), Fail> {
    let (most, care) = (Cell::new(0), Care { compare_all: how.compare_all });
    let mut sent = 0;
    let (mut pushed, result) = remote.with(
        |link| {
            let mut before = 0;
            let pushed = plimsoll_remote::push::push(link, items, care, &mut |pushed| {
                remote.shown.show("files", pushed.done, pushed.total);
                most.set(most.get().max(pushed.done.0));
                sent += pushed.sent.0 - before;
                before = pushed.sent.0;
            })?;
            Ok((pushed, then(link)?))
        },
        || most.get(),
    )?;
    // Of all connections together.
    pushed.sent = plimsoll_machine::Bytes(sent);
    Ok((pushed, result))
}

/// The name of a folder, and its files.
pub fn folder_items(folder: &Path, how: &Sending) -> Result<(String, Vec<Item>), Fail> {
    let full = fs_err::canonicalize(folder).or_usage()?;
    let name = fair_name(&full.file_name().unwrap_or_default().to_string_lossy());
    let patterns: Vec<&str> = USUAL.iter().copied().chain(how.exclude.iter().map(String::as_str)).collect();
    let to = far(format!("work/{name}"))?;
    let mut items = Vec::new();
    for file in files(&full, &Excludes::new(&patterns).map_err(failed)?).map_err(failed)? {
        items.push(Item { from: file.path.in_folder(&full), to: to.join(&file.path).map_err(failed)? });
    }
    Ok((name, items))
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
    // First of all, so that a pull that is cut short can be gone on with.
    let text = serde_json::to_vec_pretty(&mark).or_failed()?;
    atomic_write(&out.join(MARK), &text).or_failed()?;
    let checkpoints = (!args.checkpoints).then_some("checkpoints");
    let exclude = LEFT.iter().copied().chain(checkpoints).chain(args.exclude.iter().map(String::as_str));
    let exclude: Vec<String> = exclude.map(str::to_string).collect();
    let (from, most) = (far(format!("runs/{run}"))?, Cell::new(0));
    let mut shown = |pulled: &Pushed| {
        remote.shown.show(&run, pulled.done, pulled.total);
        most.set(most.get().max(pulled.done.0));
    };
    let pulled =
        remote.with(|link| plimsoll_remote::pull::pull(link, &from, &exclude, &out, &mut shown), || most.get())?;
    if !args.json {
        render::data(out.display())?;
    }
    told(&pulled, &format!("{}:{run}", remote.name), args.json)
}

/// Refuses a folder that holds anything but this run, brought before.
fn is_ours(out: &Path, mark: &serde_json::Value) -> Result<(), Fail> {
    let empty = match fs_err::read_dir(out) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(Fail::new(render::Exit::BadInput, error)),
    };
    let found = fs_err::read(out.join(MARK)).ok();
    let found = found.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
    match empty || found.as_ref() == Some(mark) {
        true => Ok(()),
        false => Err(Fail::usage(format!("`{}` holds something else than this run", out.display()))
            .hint("name another folder with --out")),
    }
}
