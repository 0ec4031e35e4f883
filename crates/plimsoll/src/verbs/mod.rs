//! One file per verb: read what was asked, have it done by a library, print.

pub mod check;
pub mod checkpoints;
pub mod data;
mod data_prepare;
mod data_series;
mod data_tokenizer;
pub mod deploy;
pub mod doctor;
pub mod eval;
mod eval_series;
pub mod fetch;
pub mod generate;
mod guided;
pub mod logs;
pub mod merge;
pub mod mirror;
pub mod plan;
pub mod plan_foreign;
pub mod plan_sweep;
pub mod probe;
pub mod remote;
pub mod remote_agent;
pub mod run;
pub mod train;
pub mod transfer;
pub mod turn;
pub mod watch;
