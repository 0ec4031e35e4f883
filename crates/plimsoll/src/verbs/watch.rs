//! `plimsoll watch`: a run, live or dead, in this terminal, as text, or as a page.

pub(crate) mod follow;
mod web;

use std::io::{IsTerminal, stdout};
use std::path::Path;

use plimsoll_watch::terminal;

use crate::args::WatchArgs;
use crate::job::run_folder;
use crate::render::{self, Fail, OrFail};
use follow::Following;

/// Shows a run until the viewer leaves; once, where that was asked for or nobody could press a key.
pub fn run(args: &WatchArgs) -> Result<(), Fail> {
    let mut following = open(&args.run)?;
    if args.web {
        return web::serve(&args.run, args.port, move || following.look());
    }
    let name = name(&args.run);
    if args.once || !stdout().is_terminal() {
        return render::data(terminal::text(&name, &following.look().or_failed()?));
    }
    terminal::show(&name, || following.look()).or_failed()
}

/// The run in `folder`, or why there is nothing to see.
fn open(folder: &Path) -> Result<Following, Fail> {
    if !folder.is_dir() {
        let fact = if folder.exists() { "is not a folder" } else { "does not exist" };
        return Err(Fail::usage(format!("`{}` {fact}; expected a run folder", folder.display())));
    }
    let mut following = Following::of(folder);
    let alive = following.look().or_usage()?.status == plimsoll_watch::view::Status::Running;
    if following.has_journal() || alive {
        return Ok(following);
    }
    Err(match run_folder::holds_run(folder) || folder.join(".lock").exists() {
        true => Fail::usage(format!("`{}` has no journal.jsonl yet, and nobody works on it", folder.display()))
            .hint(format!("go on with the run: plimsoll resume {}", folder.display())),
        false => Fail::usage(format!("`{}` is not a run: it has no journal.jsonl", folder.display())),
    })
}

/// What the run folder is called, also where it was named as `.`.
fn name(run: &Path) -> String {
    let full = fs_err::canonicalize(run).unwrap_or_else(|_| run.to_path_buf());
    full.file_name().map_or_else(|| full.display().to_string(), |name| name.to_string_lossy().into_owned())
}
