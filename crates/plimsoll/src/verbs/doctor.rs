//! `plimsoll doctor`: what happened to a run, or what a log tells.

use std::path::Path;

use crate::args::DoctorArgs;
use crate::doctor::{Colour, log_file, run_folder, story, text};
use crate::render::{self, Fail};

/// Tells the story of a run folder or a log file. Exit 0 whatever the story; exit 2 where there is none to tell.
pub fn run(args: &DoctorArgs) -> Result<(), Fail> {
    let from = args.from.as_path();
    let diagnosis = match from.symlink_metadata() {
        Err(_) => {
            return Err(Fail::usage(format!("`{}` does not exist; expected a run folder or a log", from.display())));
        }
        Ok(_) if from.is_dir() => story(&run_folder(from)?),
        Ok(_) => match run_of_journal(from) {
            Some(folder) => story(&run_folder(folder)?),
            None => log_file(from)?,
        },
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
