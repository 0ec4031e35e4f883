//! `plimsoll mirror`: copies a run to its mirror, once or beside the run.

use std::path::Path;

use plimsoll_mirror::{End, Report, Wish};
use plimsoll_watch::{Event, Journal};

use super::transfer::{self, Transfer};
use crate::args::MirrorArgs;
use crate::render::{self, Exit, Fail, OrFail};
use crate::settings::Settings;

/// Copies what the mirror lacks. Exit 0 when all is there, 1 where something cannot be copied, 4 when it was stopped.
pub fn run(args: &MirrorArgs) -> Result<(), Fail> {
    let settings = Settings::from_run(&args.run)?;
    let Some(mirror) = settings.mirror else {
        let file = args.run.join("job.toml");
        let fail = Fail::usage(format!("`{}` has no mirror", args.run.display()));
        return Err(fail.hint(format!("put `[mirror]` and `url = \"s3://bucket/run\"` into {}", file.display())));
    };
    let wish =
        Wish { run: args.run.clone(), model: settings.model, url: mirror.url, rate: mirror.rate, keep: mirror.keep };
    let mut journal = Journal::append(&args.run.join("journal.jsonl")).or_failed()?;
    let transfer = if args.follow { Transfer::silent() } else { Transfer::shown() };
    let mut report = |report: Report| tell(&report, &transfer, &mut journal, args.follow);
    let end = match args.follow {
        true => plimsoll_mirror::follow(&wish, &mut report),
        false => plimsoll_mirror::once(&wish, &mut report),
    };
    drop(transfer);
    match end {
        Ok(End::AllThere) if args.follow => Ok(()),
        Ok(End::AllThere) => {
            render::talk(format!("all of `{}` is at {}", args.run.display(), wish.url));
            Ok(())
        }
        Ok(End::Without(problems)) => {
            let fact = format!("{} has all of `{}` but this: {}", wish.url, args.run.display(), problems.join("; "));
            Err(Fail::new(Exit::Failed, anyhow::anyhow!(fact)))
        }
        Ok(End::Interrupted) => {
            render::talk(format!("stopped copying; {}", go_on(&args.run)));
            Err(Fail::silent(Exit::Stopped))
        }
        Err(error) => {
            record(&mut journal, &Event::MirrorTrouble { message: error.to_string() });
            let fail = transfer::fail(error);
            Err(if fail.hint.is_some() { fail } else { fail.hint(go_on(&args.run)) })
        }
    }
}

fn go_on(run: &Path) -> String {
    format!("go on: plimsoll mirror {}", run.display())
}

/// Translates a report, for the journal and for people.
fn tell(report: &Report, transfer: &Transfer, journal: &mut Journal, beside: bool) {
    match report {
        Report::Progress { step, done, total } => transfer.progress(*step, *done, *total),
        Report::Mirrored { step, url, bytes, seconds } => {
            let event = Event::Mirrored { step: *step, url: url.clone(), bytes: *bytes, seconds: *seconds };
            record(journal, &event);
        }
        Report::Trouble { message } => record(journal, &Event::MirrorTrouble { message: message.clone() }),
        Report::Removed { .. } | Report::Recovered | Report::PassedOver { .. } => {}
    }
    // Beside a run only what somebody may have to do something about is worth a line on its screen.
    let worth = !beside || matches!(report, Report::Trouble { .. } | Report::Recovered);
    if let Some(line) = transfer::line(report).filter(|_| worth) {
        transfer.note(&line);
    }
}

/// A journal that cannot be written to does not stop the copying.
fn record(journal: &mut Journal, event: &Event) {
    if let Err(error) = journal.record(event) {
        render::talk(format!("mirror: {error}"));
    }
}
