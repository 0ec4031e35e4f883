//! `plimsoll remote`: the near side. What is asked for is sent, started, followed and fetched by plimsoll-remote; here it
//! is said in which words.

mod far_job;
mod files;
mod follow;
mod run_words;
mod start;
mod tunnel;

use std::io::Write;
use std::path::PathBuf;

use plimsoll_machine::Bytes;
use plimsoll_remote::session::Note;
use plimsoll_remote::wire::{Answer, Ask, Ending, RunSeen};
use plimsoll_remote::{Book, FarPath, Link, Origin, RemoteError, Session, Ssh};
use serde_json::json;

use crate::args::{RemoteArgs, RemoteVerb};
use crate::guard::program;
use crate::render::{self, Exit, Fail, OrFail};
use crate::verbs::transfer::Transfer;

/// Most bytes of data that one of our verbs prints over there.
const MOST_DATA: usize = 64 << 20;

/// Does what was asked.
pub fn run(args: &RemoteArgs) -> Result<(), Fail> {
    match &args.verb {
        RemoteVerb::Add { name, url } => add(name, url),
        RemoteVerb::Remove { name } => {
            Book::remove(&book_path()?, name).map_err(|error| refused(error, Exit::BadInput))
        }
        RemoteVerb::List { json } => list(*json),
        RemoteVerb::Push(args) => files::push(args),
        RemoteVerb::Pull(args) => files::pull(args),
        RemoteVerb::Probe { name, rates, json } => {
            let flags = [("--rates", rates), ("--json", json)];
            let mut words = vec!["probe".to_string(), ".".to_string()];
            words.extend(flags.iter().filter(|(_, said)| **said).map(|(flag, _)| flag.to_string()));
            Remote::named(name)?.exec(&words)
        }
        RemoteVerb::Plan(args) => start::plan(args),
        RemoteVerb::Train(args) => start::train(args),
        RemoteVerb::Run(args) => start::run(args),
        RemoteVerb::Resume(args) => start::resume(args),
        RemoteVerb::Logs(args) => follow::logs(args),
        RemoteVerb::Watch(args) => follow::watch(args),
        RemoteVerb::Stop(args) => follow::stop(args),
        RemoteVerb::Status { name, json } => follow::status(name, *json),
    }
}

fn book() -> Result<Book, Fail> {
    Book::read(&book_path()?).map_err(|error| refused(error, Exit::BadInput))
}

fn book_path() -> Result<PathBuf, Fail> {
    let none = || Fail::usage("there is no place for names of remotes").hint("set HOME or XDG_CONFIG_HOME");
    Book::usual_path().ok_or_else(none)
}

/// Who we are to a far side.
fn origin() -> Result<Origin, Fail> {
    let book = book_path()?;
    Origin::of(book.parent().unwrap_or(&book)).map_err(|error| refused(error, Exit::Failed))
}

fn add(name: &str, url: &str) -> Result<(), Fail> {
    let address = url.parse().map_err(|error| refused(error, Exit::BadInput))?;
    let before = Book::add(&book_path()?, name, &address).map_err(|error| refused(error, Exit::BadInput))?;
    if let Some(before) = before {
        render::talk(format!("`{name}` was {before}"));
    }
    Ok(())
}

fn list(json: bool) -> Result<(), Fail> {
    let book = book()?;
    let mut found = Vec::new();
    for (name, address) in book.remotes() {
        match address {
            Ok(address) => found.push((name, Some(address.to_string()))),
            // It has a name all the same, by which it can be removed.
            Err(error) => {
                render::report(&refused(error, Exit::BadInput));
                found.push((name, None));
            }
        }
    }
    if json {
        return render::json(&found.into_iter().collect::<std::collections::BTreeMap<_, _>>());
    }
    let lines: Vec<String> =
        found.iter().map(|(name, url)| format!("{name}  {}", url.as_deref().unwrap_or("?"))).collect();
    if lines.is_empty() { Ok(()) } else { render::data(lines.join("\n")) }
}

/// A remote by its name, and what is shown while somebody waits for it.
pub(super) struct Remote {
    pub name: String,
    pub session: Session,
    pub shown: Transfer,
}

impl Remote {
    /// What the book says; nothing is connected yet.
    pub fn named(name: &str) -> Result<Remote, Fail> {
        let address = book()?.find(name).map_err(|error| refused(error, Exit::BadInput))?;
        let ssh = Ssh::to(address).map_err(|error| refused(error, Exit::BadInput))?;
        let session = Session::new(ssh, &program().or_failed()?).map_err(failed)?;
        Ok(Remote { name: name.to_string(), session, shown: Transfer::shown() })
    }

    /// Does `deed` over a connection, again where one breaks; `done` counts how far it came.
    pub fn with<T>(
        &self,
        deed: impl FnMut(&Link) -> Result<T, RemoteError>,
        done: impl FnMut() -> u64,
    ) -> Result<T, Fail> {
        let mut note = |note| match note {
            Note::Program { sent, total } => self.shown.show("plimsoll", sent, total),
            Note::Again { why, after } => {
                self.shown.note(&format!("{why}; trying again in {:.1} s", after.as_secs_f64()));
            }
        };
        self.session.patiently(&mut note, deed, done).map_err(failed)
    }

    /// Runs one of our verbs there; its output is ours, and so is its exit code. Of a connection that broke nothing is data.
    pub fn exec(&self, words: &[String]) -> Result<(), Fail> {
        let (ending, data) = self.with(
            |link| {
                let mut data = Vec::new();
                let ending = run_there(link, words, &mut data)?;
                Ok((ending, data))
            },
            || 0,
        )?;
        show(false, &data);
        ended(ending)
    }

    /// The run that is meant: by its name, or the one that was started last.
    pub fn run(&self, said: Option<&str>) -> Result<RunSeen, Fail> {
        let wanted = said.map(|said| said.trim_end_matches('/').trim_start_matches("runs/"));
        let (found, runs) = self.with(
            |link| {
                // Of one that is named the others are not looked at.
                let named = wanted.map(|wanted| follow::one(link, wanted)).transpose();
                match named {
                    Err(RemoteError::Refused { .. }) => Ok((None, all(link)?)),
                    Ok(None) => all(link).map(|runs| (runs.iter().max_by_key(|run| run.began_unix_ms).cloned(), runs)),
                    named => Ok((named?, Vec::new())),
                }
            },
            || 0,
        )?;
        found.ok_or_else(|| {
            let known = runs.iter().map(|run| format!("`{}`", run.run)).collect::<Vec<_>>().join(", ");
            let fail = match wanted {
                Some(wanted) => Fail::usage(format!("`{}` has no run `{wanted}`", self.name)),
                None => Fail::usage(format!("`{}` has no run", self.name)),
            };
            match known.is_empty() {
                true => fail.hint(format!("plimsoll remote train {} JOB starts one", self.name)),
                false => fail.hint(format!("it has {known}")),
            }
        })
    }

    /// All runs there.
    pub fn runs(&self) -> Result<Vec<RunSeen>, Fail> {
        self.with(all, || 0)
    }
}

/// All runs of a far side.
fn all(link: &Link) -> Result<Vec<RunSeen>, RemoteError> {
    match link.ask(&Ask::Runs {})?.0 {
        Answer::Runs { runs } => Ok(runs),
        other => Err(strange(link, &other)),
    }
}

/// An answer to another question.
pub(super) fn strange(link: &Link, answer: &Answer) -> RemoteError {
    RemoteError::Far { host: link.host().to_string(), fact: format!("something else than was asked for: {answer:?}") }
}

/// Runs one of our verbs over a connection; what it says is shown at once, its data is whole when it has ended.
fn run_there(link: &Link, words: &[String], data: &mut Vec<u8>) -> Result<Ending, RemoteError> {
    link.tell(&Ask::Exec { words: words.to_vec(), folder: None }, &[])?;
    let host = || link.host().to_string();
    loop {
        match link.answer()? {
            (Answer::Output { talk: true }, bytes) => _ = show(true, &bytes),
            (Answer::Output { talk: false }, bytes) if data.len() + bytes.len() > MOST_DATA => {
                let most = Bytes(MOST_DATA as u64).to_string();
                return Err(RemoteError::TooMuch { host: host(), what: "data", most });
            }
            (Answer::Output { talk: false }, bytes) => data.extend(bytes),
            (Answer::Exited { ending }, _) => return Ok(ending),
            (other, _) => return Err(strange(link, &other)),
        }
    }
}

/// Prints what the far side printed, as it came. Whether anybody reads it.
pub(super) fn show(talk: bool, bytes: &[u8]) -> bool {
    let written = match talk {
        true => std::io::stderr().lock().write_all(bytes),
        false => std::io::stdout().lock().write_all(bytes).and_then(|()| std::io::stdout().lock().flush()),
    };
    written.is_ok()
}

/// An end on the far side is our own; what it was has been shown.
pub(super) fn ended(ending: Ending) -> Result<(), Fail> {
    match ending {
        Ending::Code(0) => Ok(()),
        Ending::Code(code) => Err(Fail::silent(Exit::of(code))),
        Ending::Signal(signal) => {
            Err(Fail::new(Exit::Failed, anyhow::anyhow!("it was killed there by signal {signal}")))
        }
        Ending::Unseen => Err(Fail::new(Exit::Failed, anyhow::anyhow!("it ended there, and nobody saw how"))
            .hint("the machine or its keeper went down; `plimsoll remote resume` goes on")),
    }
}

/// What went wrong between the machines.
pub(super) fn failed(error: RemoteError) -> Fail {
    let exit = match &error {
        RemoteError::Refused { .. }
        | RemoteError::OtherRun { .. }
        | RemoteError::Pattern { .. }
        | RemoteError::FarPath { .. } => Exit::BadInput,
        _ => Exit::Failed,
    };
    refused(error, exit)
}

fn refused(error: RemoteError, exit: Exit) -> Fail {
    let hint = error.hint();
    let fail = Fail::new(exit, error);
    match hint {
        Some(hint) => fail.hint(hint),
        None => fail,
    }
}

/// What a transfer came to, for programs and people.
pub(super) fn told(pushed: &plimsoll_remote::push::Pushed, what: &str, json: bool) -> Result<(), Fail> {
    if json {
        return render::json(&json!({
            "files": pushed.files,
            "unchanged": pushed.unchanged,
            "bytes": pushed.total,
            "sent_bytes": pushed.sent,
        }));
    }
    let Bytes(sent) = pushed.sent;
    let how = if sent == 0 { "nothing had to be sent".to_string() } else { format!("{} sent", pushed.sent) };
    render::talk(format!("{what}: {} files, {}; {how}", pushed.files, pushed.total));
    Ok(())
}

/// A far path that we made ourselves.
pub(super) fn far(text: String) -> Result<FarPath, Fail> {
    FarPath::new(text).map_err(failed)
}
