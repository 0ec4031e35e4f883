//! What data of the kind `series` promise, on real files made here: one binary, because linking is what takes the time.

mod faults;
mod fixture;
mod formats;
mod kept;
mod missing;
mod mutated;
mod naive;
#[path = "../other_folder/mod.rs"]
mod other_folder;
mod peer;
mod split;
mod stream;
#[path = "../thread_heap/mod.rs"]
mod thread_heap;
