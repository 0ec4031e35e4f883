//! `plimsoll run`: a foreign trainer under guard. Its start with the planned settings, its watching, its end and what
//! follows from it.
//!
//! What a command means, what a death was and what to do about it is decided in `plimsoll-launch`, purely; here processes
//! are started, files are read, and both are noted in the journal. Nothing of the user's is ever written to: changed
//! copies of config files and tables go into the run folder.

mod attempts;
mod charge;
mod fit;
mod forecast;
mod inquest;
mod keeper;
mod logs;
mod ready;
mod recorded;
mod tree;

pub use attempts::{guard, python_of};
pub use charge::{CHARGE, Charge};
pub use fit::{Fitted, fit};
pub use forecast::{Question, forecast, longest_of, on_card};
pub use logs::{gists as log_gists, list as log_files, rank_of};
pub use ready::{Ready, now_unix_ms, own_checkpoints};
pub use recorded::Recorded;
