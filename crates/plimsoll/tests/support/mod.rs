//! What the contract is tested with: random jobs, the real binary, eyes outside of it, and a cgroup around it.

pub mod cgroup;
pub mod draw;
pub mod drawn;
pub mod files;
pub mod flags;
pub mod job;
pub mod model;
pub mod pure;
pub mod run;
pub mod series_job;
pub mod tokenizer;
