//! Progress on standard error: one live line on a terminal, a plain line now and then elsewhere.
//!
//! Invariant: no threads, and between two moments that are [`due`] a step costs a comparison. A screen that cannot be
//! written to never stops a run.

mod rhythm;
mod words;

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use plimsoll_machine::Bytes;

use rhythm::remaining;
pub use rhythm::{Rhythm, Shown, due};

/// Where progress goes.
pub enum Target {
    /// Standard error: the live line if it is a terminal, plain lines if not.
    Stderr,
    /// Plain lines into this.
    Plain(Box<dyn Write + Send>),
    /// Nowhere.
    Hidden,
}

/// What is shown of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepView {
    /// Which, from 1.
    pub step: u64,
    /// Its loss.
    pub loss: f64,
    /// The rate, as the caller averages it.
    pub tokens_per_second: f64,
    /// What is counted there, in short.
    pub unit: &'static str,
    /// RAM in use, all processes.
    pub ram_used: Bytes,
    /// The planned peak.
    pub ram_planned: Bytes,
}

/// The progress of one run.
pub struct Progress {
    total: u64,
    began: Instant,
    screen: Screen,
    first: Option<Shown>,
    shown: Option<Shown>,
    seen: Option<StepView>,
    text: String,
}

enum Screen {
    Bar(ProgressBar),
    Lines(Box<dyn Write + Send>),
    Nothing,
}

impl Progress {
    /// Progress towards step `total`. The first step that is shown may be any: a resumed run's remaining time is
    /// reckoned from there.
    pub fn new(total: u64, target: Target) -> Progress {
        let screen = match target {
            Target::Stderr if io::stderr().is_terminal() => Screen::Bar(bar(total)),
            Target::Stderr => Screen::Lines(Box::new(io::stderr())),
            Target::Plain(writer) => Screen::Lines(writer),
            Target::Hidden => Screen::Nothing,
        };
        let text = String::with_capacity(160);
        Progress { total, began: Instant::now(), screen, first: None, shown: None, seen: None, text }
    }

    /// Takes note of a step that is done, and shows it if it is time.
    pub fn step(&mut self, view: &StepView) {
        self.step_at(view, self.began.elapsed());
    }

    fn step_at(&mut self, view: &StepView, now: Duration) {
        let here = Shown { step: view.step, at: now };
        self.first.get_or_insert(here);
        self.seen = Some(*view);
        let rhythm = match self.screen {
            Screen::Bar(_) => Rhythm::Live,
            Screen::Lines(_) => Rhythm::Lines,
            Screen::Nothing => return,
        };
        if due(here, self.shown, self.total, rhythm) {
            self.show(view, here);
        }
    }

    /// Prints a line, above the live one if there is one.
    pub fn note(&mut self, text: &str) {
        match &mut self.screen {
            Screen::Bar(bar) => bar.println(text),
            Screen::Lines(writer) => drop(writeln!(writer, "{text}")),
            Screen::Nothing => {}
        }
    }

    /// Shows the last step, if it has not been shown, and leaves the line standing.
    pub fn finish(&mut self) {
        if let Some(view) = self.seen
            && self.shown.is_none_or(|shown| shown.step != view.step)
        {
            self.show(&view, Shown { step: view.step, at: self.began.elapsed() });
        }
        if let Screen::Bar(bar) = &self.screen {
            bar.abandon();
            if self.shown.is_some() {
                let _ = writeln!(io::stderr());
            }
        }
    }

    fn show(&mut self, view: &StepView, here: Shown) {
        self.text.clear();
        let left = remaining(self.first, here, self.total);
        words::write_status(&mut self.text, view, left);
        match &mut self.screen {
            Screen::Bar(bar) => {
                bar.set_position(view.step);
                bar.set_message(self.text.clone());
            }
            Screen::Lines(writer) => {
                let _ = writeln!(writer, "step {}/{}  {}", view.step, self.total, self.text);
            }
            Screen::Nothing => {}
        }
        self.shown = Some(here);
    }
}

fn bar(total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("step {pos}/{len} [{bar:20}] {wide_msg}")
        .expect("the template is a constant")
        .progress_chars("=> ");
    ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()).with_style(style)
}

#[cfg(test)]
#[path = "progress/progress_test.rs"]
mod tests;
