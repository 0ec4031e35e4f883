//! `plimsoll doctor`: what happened to a run, from its folder or from a log.
//!
//! [`gather`] reads, [`story()`] decides and is pure, [`text()`] prints. [`foreign`] is the story of
//! somebody else's trainer, [`log`] does all three for text files of anybody's.
//! Invariants: no cause without evidence, a status of 137 is never called OOM by itself, and every number that is said
//! twice comes from one place ([`numbers`]). It changes nothing in a run folder, and works on a run that is alive.

mod advice;
mod after;
mod alive;
mod attempts;
mod case;
mod diagnosis;
mod ending;
mod foreign;
mod gather;
mod journal;
mod log;
mod numbers;
mod pace;
mod sanitize;
mod story;
mod swap;
mod text;
mod throttle;
mod timeline;
mod when;
mod words;

#[cfg(test)]
mod any_journal_test;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod story_test;

pub use gather::run_folder;
pub use journal::read as read_journal;
pub use log::{gist, log_files};
pub use story::story;
pub use text::{Colour, text};
