//! `plimsoll check`: the points that are worth a look before a training starts, on this machine.
//!
//! What is judged and how is `plimsoll_launch::check`'s business for somebody else's command, the plan's for a job of our
//! own; here the facts are gathered. Exit 0 where nothing fails, 1 where something does; nothing is written.

mod command;
mod deepspeed;
mod host;
mod native;
mod programs;
mod python;

use plimsoll_launch::check::{Checklist, Item, Mark};
use serde::Serialize;

use crate::args::CheckArgs;
use crate::render::{self, Exit, Fail};

/// What is printed for programs.
#[derive(Serialize)]
struct Report<'a> {
    /// What was looked over: the trainer of a command, or `job`.
    subject: &'a str,
    /// Points that failed.
    failed: usize,
    /// Points that could not be looked at.
    unknown: usize,
    #[serde(flatten)]
    list: &'a Checklist,
}

/// Looks, prints, and says by its exit whether something fails.
pub fn run(args: &CheckArgs) -> Result<(), Fail> {
    let (subject, list) = match args.command.is_empty() {
        true => ("job".to_string(), native::points(&args.job)?),
        false => command::points(&args.command, args.trainer.as_deref(), args.job.ram)?,
    };
    let count = |mark: Mark| list.items.iter().filter(|item| item.mark == mark).count();
    let (failed, unknown) = (count(Mark::Fail), count(Mark::Unknown));
    if args.json {
        render::json(&Report { subject: &subject, failed, unknown, list: &list })?;
    } else {
        let sum = match (failed, unknown) {
            (0, 0) => "all fine".to_string(),
            (failed, unknown) => format!("{failed} to put right, {unknown} not known"),
        };
        render::data(format!("{list}\n{subject}: {sum}"))?;
    }
    if failed > 0 { Err(Fail::silent(Exit::Failed)) } else { Ok(()) }
}

fn pass(name: &'static str, found: impl Into<String>) -> Item {
    Item { name, mark: Mark::Pass, found: found.into(), cure: None }
}

fn fail(name: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Item {
    Item { name, mark: Mark::Fail, found: found.into(), cure: Some(cure.into()) }
}
