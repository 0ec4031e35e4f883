//! What is shown while a run is copied to its mirror or brought back, and how that fails.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use plimsoll_machine::Bytes;
use plimsoll_mirror::{MirrorError, Report};
use plimsoll_recover::RecoverError;

use crate::render::{self, Exit, Fail};

/// The live line of a transfer on a terminal; elsewhere only what is done is told.
pub struct Transfer {
    bar: Option<ProgressBar>,
}

impl Transfer {
    /// A transfer that somebody waits for.
    pub fn shown() -> Transfer {
        let bar = io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg} [{bar:20}] {bytes}/{total_bytes}, {bytes_per_sec}")
                .expect("the template is a constant")
                .progress_chars("=> ");
            ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr()).with_style(style)
        });
        Transfer { bar }
    }

    /// A transfer beside something else that is shown.
    pub fn silent() -> Transfer {
        Transfer { bar: None }
    }

    /// Shows how far it is.
    pub fn progress(&self, step: Option<u64>, done: Bytes, total: Bytes) {
        self.show(&what(step), done, total);
    }

    /// Shows how far something is.
    pub fn show(&self, what: &str, done: Bytes, total: Bytes) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_string());
            bar.set_length(total.0);
            bar.set_position(done.0);
        }
    }

    /// Prints a line, above the live one if there is one.
    pub fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| render::talk(text)),
            None => render::talk(text),
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// What is being copied.
pub fn what(step: Option<u64>) -> String {
    step.map_or("model".to_string(), |step| format!("checkpoint of step {step}"))
}

/// The line for a report, where it is worth one.
pub fn line(report: &Report) -> Option<String> {
    match report {
        Report::Progress { .. } => None,
        Report::Mirrored { step, url, bytes, seconds } => {
            Some(format!("{} is at {url}: {bytes} in {seconds:.1} s", what(*step)))
        }
        Report::Removed { step } => Some(format!("removed the {} from the mirror", what(Some(*step)))),
        Report::Trouble { message } => Some(format!("mirror: {message}; it is tried again")),
        Report::Recovered => Some("mirror: it works again".to_string()),
        Report::PassedOver { step, reason } => {
            Some(format!("the {} at the mirror is not whole and is passed over: {reason}", what(Some(*step))))
        }
    }
}

/// A failed transfer, with its exit code and the remedy.
pub fn fail(error: MirrorError) -> Fail {
    let hint = match &error {
        MirrorError::Url { .. } => Some("expected `s3://bucket/prefix`, `gs://`, `az://` or `file:///folder`"),
        MirrorError::OtherRun { .. } => Some("give each run a `mirror.url` of its own"),
        MirrorError::Recover(RecoverError::RunInUse { .. }) => {
            Some("the run is being copied by another process; wait for it to end, or stop it")
        }
        MirrorError::NotACopy { .. } => Some("name another folder with `--out`"),
        MirrorError::NoRun { .. } => Some("name the URL that the job has as `mirror.url`"),
        MirrorError::NoCheckpoint { .. } => Some("nothing was copied yet; begin again with `plimsoll train`"),
        _ => None,
    };
    let exit = match &error {
        MirrorError::Url { .. }
        | MirrorError::Credentials { .. }
        | MirrorError::SetUp { .. }
        | MirrorError::OtherRun { .. }
        | MirrorError::NotACopy { .. }
        | MirrorError::NoRun { .. }
        | MirrorError::NoCheckpoint { .. }
        | MirrorError::Recover(RecoverError::RunInUse { .. }) => Exit::BadInput,
        _ => Exit::Failed,
    };
    let fail = Fail::new(exit, error);
    match hint {
        Some(hint) => fail.hint(hint),
        None => fail,
    }
}
