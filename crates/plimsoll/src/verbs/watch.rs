//! `plimsoll watch`.

use crate::args::WatchArgs;
use crate::render::Fail;

/// Not there yet.
pub fn run(args: &WatchArgs) -> Result<(), Fail> {
    Err(Fail::usage(format!("`watch` of {args:?} is not there yet")))
}
