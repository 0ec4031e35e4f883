//! Prints the machine, and what it cost to look: `cargo run --example probe [PATH]`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

use plimsoll_machine::{Root, own_memory, probe};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let begun = Instant::now();
    let machine = probe(&Root::system(), &path)?;
    let took = begun.elapsed();
    let memory = own_memory(&Root::system())?;
    let mut out = io::stdout().lock();
    writeln!(out, "{machine}")?;
    writeln!(out, "looked in {:.1} ms, peak {}, GPUs included", took.as_secs_f64() * 1e3, memory.peak)?;
    Ok(())
}
