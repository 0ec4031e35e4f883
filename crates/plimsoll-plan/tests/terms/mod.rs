//! The terms that plans are made under in these tests: a machine with round figures.

use plimsoll_machine::Bytes;
use plimsoll_plan::choose::{Pins, Terms};
use plimsoll_plan::cost::Rates;
use plimsoll_plan::footprint::{DiskFacts, Overheads};

/// Stack that a thread touches.
pub const STACK: Bytes = Bytes::kib(96);

pub fn loader(samples: usize, threads: usize) -> Bytes {
    Bytes::kib(64) * samples as u64 + Bytes::mib(1) * threads as u64
}

/// Terms of a run that does not save on its way.
pub fn terms(ram: Bytes, pins: Pins) -> Terms<'static> {
    Terms {
        ram,
        ram_there: Bytes::gib(100),
        disk: Bytes::gib(100),
        disk_there: Bytes::gib(100),
        disk_facts: DiskFacts {
            keep: 3,
            best: false,
            side_files: Bytes::mib(3),
            unpacked: Bytes::ZERO,
            fetched: Bytes::ZERO,
            steps: 1000,
            evaluations: Bytes::ZERO,
            evaluation_lines: Bytes::ZERO,
        },
        overheads: Overheads {
            program: Bytes::mib(12),
            tokenizer: Bytes::mib(8),
            rows: Bytes::ZERO,
            startup_peak: Bytes::mib(30),
            supervisor: Bytes::mib(5),
            checkpoint_writer: Bytes::mib(1),
            evaluation: Bytes::ZERO,
            stack: STACK,
            mirror: Bytes::ZERO,
        },
        rates: Rates::of(200e9, 20e9),
        loader_rate: 1e6,
        most_loader_threads: usize::MAX,
        pins,
        held: None,
        saves: false,
        loader: &loader,
        card: None,
    }
}
