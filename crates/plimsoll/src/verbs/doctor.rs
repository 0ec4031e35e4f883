//! `plimsoll doctor`.

use crate::args::DoctorArgs;
use crate::render::Fail;

/// Not there yet.
pub fn run(args: &DoctorArgs) -> Result<(), Fail> {
    Err(Fail::usage(format!("`doctor` of {args:?} is not there yet")))
}
