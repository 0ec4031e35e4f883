//! Jobs over series keep every promise that jobs over texts do: with the real binary, on a market that is made here.

#[path = "../support_run/mod.rs"]
mod support_run;

mod builds;
mod choices;
mod ends;
mod peer;
mod refusals;
mod resume;
