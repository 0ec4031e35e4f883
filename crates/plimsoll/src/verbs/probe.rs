//! `plimsoll probe`: the machine, and what a run may use of it. Facts only; what they allow is the plan's business.

use plimsoll_machine::{Root, probe};

use crate::args::ProbeArgs;
use crate::render::{self, Fail, OrFail};

/// Reads the machine once and prints it.
pub fn run(args: &ProbeArgs) -> Result<(), Fail> {
    let found = probe(&Root::system(), &args.path).or_usage()?;
    if args.json { render::json(&found) } else { render::data(&found) }
}
