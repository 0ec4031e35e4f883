//! What is seen of a run: its journal, its summary, its progress on the terminal.
//!
//! Architecture invariant: this crate only reports. It knows no engine and no plan (numbers come to it as values), and
//! nothing here can change a run: a terminal that is gone or a closed pipe is not an error.

mod error;
mod journal;
mod loss;
mod number;
mod progress;
mod summary;
pub mod terminal;
pub mod view;
pub mod web;

pub use error::WatchError;
pub use journal::{Cut, Event, Journal, Member, Moment, Reading, Record, SaveReason, Seen, last, read};
pub use loss::{effective_losses, losses};
pub use progress::{Progress, Rhythm, Shown, StepView, Target, due};
pub use summary::{EvalResult, EvalScores, Summary};
pub use view::{Tail, View};
