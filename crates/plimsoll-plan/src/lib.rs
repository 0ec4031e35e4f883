//! What will be done, to the byte: model spec and shapes in, tape, places, footprint and verdict out.
//!
//! Invariant: pure. No files, no clock, no threads, no GPU; "too big" is a value, not an error.
//!
//! Read in this order: `spec` (the model), `op` and `tape` (the program's words), `layer`, `t5`, `decoder` and `series` (a model as a tape), `place`
//! (addresses), `program` (all tapes of a run), `snapshot` (a copy for saves), `cost`, `footprint`, `search` and `choose`
//! (the decision).

pub mod batch;
pub mod card;
pub mod choices;
pub mod choose;
pub mod cost;
mod decoder;
pub mod device;
pub mod dtype;
mod evaluated;
mod explain;
mod family;
pub mod footprint;
pub mod generation;
mod layer;
pub mod op;
mod outline;
pub mod place;
pub mod program;
mod remedy;
mod rung;
mod search;
mod series;
pub mod series_batch;
pub mod series_matrix;
mod shelf;
pub mod snapshot;
pub mod spec;
pub mod store;
pub mod sweep;
mod t5;
mod table;
pub mod tape;
pub mod tiles;
pub mod train;
pub mod trained;
mod uniform;
