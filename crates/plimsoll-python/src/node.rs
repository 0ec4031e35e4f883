//! One loader for all ranks of a node: a ring of rounds in shared memory that one process fills and all take from.
//!
//! `ring` is the memory, `line` the sockets, `meeting` how ranks find each other, `lead` the process that makes the rounds, `seat`
//! a rank that takes them. Sharing is never needed for a right stream: what a round holds follows from the place where it
//! begins, so a rank that loses the others goes on from its place, with a new ring or by itself.
//!
//! Invariant: nothing has a name in a file system. The memory is a memfd and the meeting point an abstract socket, and both go
//! with the processes that have them open, however these end. What another process wrote is checked before it is used.

mod lead;
mod line;
mod meeting;
mod ring;
mod seat;

pub use lead::{Lead, Stop, Work};
pub use line::Process;
pub use meeting::{Meeting, Role};
pub use ring::{Ring, RingShape};
pub use seat::{Seat, Taken};
