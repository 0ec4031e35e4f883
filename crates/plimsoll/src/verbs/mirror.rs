//! `plimsoll mirror`.

use crate::args::MirrorArgs;
use crate::render::Fail;

/// Not there yet.
pub fn run(args: &MirrorArgs) -> Result<(), Fail> {
    Err(Fail::usage(format!("`mirror` of {args:?} is not there yet")))
}
