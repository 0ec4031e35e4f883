//! How a verb ends badly, and how anything is printed.
//!
//! An error is a fact, the facts behind it, and perhaps a hint at the remedy; it becomes text in this one place. stdout
//! carries data and nothing else, stderr carries talk. A reader that closes its pipe early is not an error.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

pub use plimsoll_recover::ExitCode as Exit;
use serde::Serialize;

/// Why a verb did not do what it was asked for.
#[derive(Debug)]
pub struct Fail {
    /// What the program exits with.
    pub exit: Exit,
    /// The fact, and its causes. None where everything has been said already (a plan that does not fit).
    pub fact: Option<anyhow::Error>,
    /// The remedy, where one is known.
    pub hint: Option<String>,
}

impl Fail {
    /// A failure that states `fact`.
    pub fn new(exit: Exit, fact: impl Into<anyhow::Error>) -> Fail {
        Fail { exit, fact: Some(fact.into()), hint: None }
    }

    /// Wrong usage or bad input.
    pub fn usage(fact: impl Display) -> Fail {
        Fail::new(Exit::BadInput, anyhow::anyhow!("{fact}"))
    }

    /// An exit code for which the verb has already said why.
    pub fn silent(exit: Exit) -> Fail {
        Fail { exit, fact: None, hint: None }
    }

    /// The same failure, with a remedy.
    pub fn hint(mut self, hint: impl Display) -> Fail {
        self.hint = Some(hint.to_string());
        self
    }

    /// The same failure, seen from further out: `doing` becomes the fact, the old fact its cause.
    pub fn context(mut self, doing: impl Display + Send + Sync + 'static) -> Fail {
        self.fact = self.fact.map(|fact| fact.context(doing));
        self
    }

    /// Writes the failure as people read it.
    pub fn write(&self, out: &mut impl Write, colour: bool) -> io::Result<()> {
        let paint = |label: &str, code: &str| match colour {
            true => format!("\x1b[1;{code}m{label}:\x1b[0m"),
            false => format!("{label}:"),
        };
        if let Some(fact) = &self.fact {
            writeln!(out, "{} {fact}", paint("error", "31"))?;
            for cause in fact.chain().skip(1) {
                writeln!(out, "  because: {cause}")?;
            }
        }
        if let Some(hint) = &self.hint {
            writeln!(out, "{} {hint}", paint("hint", "36"))?;
        }
        Ok(())
    }
}

/// What no verb has judged is a failed run.
impl<E: std::error::Error + Send + Sync + 'static> From<E> for Fail {
    fn from(error: E) -> Fail {
        Fail::new(Exit::Failed, error)
    }
}

/// Gives an error its exit code.
pub trait OrFail<T> {
    /// The error means wrong usage or bad input.
    fn or_usage(self) -> Result<T, Fail>;
    /// The error means that the run failed.
    fn or_failed(self) -> Result<T, Fail>;
}

impl<T, E: Into<anyhow::Error>> OrFail<T> for Result<T, E> {
    fn or_usage(self) -> Result<T, Fail> {
        self.map_err(|error| Fail::new(Exit::BadInput, error))
    }

    fn or_failed(self) -> Result<T, Fail> {
        self.map_err(|error| Fail::new(Exit::Failed, error))
    }
}

/// Prints a failure to stderr; colour only on a terminal whose user has not set NO_COLOR.
pub fn report(fail: &Fail) {
    let stderr = io::stderr();
    let colour = stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // Nobody is left to be told that stderr is gone.
    let _ = fail.write(&mut stderr.lock(), colour);
}

/// Prints data to stdout, as one JSON document.
pub fn json(value: &impl Serialize) -> Result<(), Fail> {
    let text = serde_json::to_string_pretty(value).or_failed()?;
    data(text)
}

/// Prints data to stdout, with a line end behind it unless it has one.
pub fn data(text: impl Display) -> Result<(), Fail> {
    let mut text = text.to_string();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let mut stdout = io::stdout().lock();
    quiet_pipe(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
        .map_err(|error| Fail::from(error).context("cannot write to stdout"))
}

/// Prints talk to stderr, one line or several.
pub fn talk(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

fn quiet_pipe(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(fail: &Fail, colour: bool) -> String {
        let mut out = Vec::new();
        fail.write(&mut out, colour).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_failure_is_its_fact_its_causes_and_its_hint() {
        let cause = io::Error::new(io::ErrorKind::NotFound, "no such file");
        let fail = Fail::from(cause).context("cannot read job file `a.toml`").hint("name a job file");
        assert_eq!(
            text(&fail, false),
            "error: cannot read job file `a.toml`\n  because: no such file\nhint: name a job file\n"
        );
        assert_eq!(fail.exit, Exit::Failed);
    }

    #[test]
    fn colour_is_only_where_it_was_asked_for() {
        let fail = Fail::usage("x").hint("y");
        assert!(!text(&fail, false).contains('\x1b'));
        assert_eq!(text(&fail, true).matches('\x1b').count(), 4);
    }

    #[test]
    fn a_closed_pipe_is_no_error_but_a_full_disk_is() {
        assert!(quiet_pipe(Err(io::ErrorKind::BrokenPipe.into())).is_ok());
        assert!(quiet_pipe(Err(io::ErrorKind::StorageFull.into())).is_err());
    }
}
