//! `plimsoll doctor`: what happened to a run, or what logs tell.

use std::path::Path;

use crate::args::DoctorArgs;
use crate::doctor::{Colour, log_files, run_folder, story, text};
use crate::render::{self, Fail};

/// Tells the story of a run folder or of log files. Exit 0 whatever the story; exit 2 where there is none to tell.
pub fn run(args: &DoctorArgs) -> Result<(), Fail> {
    for path in args.from.iter().chain(&args.dmesg) {
        if path.symlink_metadata().is_err() {
            return Err(Fail::usage(format!("`{}` does not exist; expected a run folder or a log", path.display())));
        }
    }
    let run = args.from.iter().find_map(|path| if path.is_dir() { Some(path.as_path()) } else { run_of_journal(path) });
    let diagnosis = match run {
        Some(folder) => {
            if args.from.len() > 1 || !args.dmesg.is_empty() {
                let fact = format!("`{}` is a run folder, which is told alone", folder.display());
                return Err(Fail::usage(fact).hint("name the run folder, or log files"));
            }
            story(&run_folder(folder)?)
        }
        None => log_files(&args.from, &args.dmesg)?,
    };
    match args.json {
        true => render::json(&diagnosis),
        false => render::data(text(&diagnosis, Colour::of_stdout())),
    }
}

/// Whoever names a run's journal means the run.
fn run_of_journal(file: &Path) -> Option<&Path> {
    let journal = file.file_name().is_some_and(|name| name == "journal.jsonl");
    let folder = file.parent().map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    folder.filter(|_| journal)
}
