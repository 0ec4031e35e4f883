//! The losses that count: those of the run as it stands, not of steps that a resume has undone.

use std::collections::BTreeMap;
use std::path::Path;

use crate::WatchError;
use crate::journal::{Event, Record, read};

/// Step and loss, by step, from the journal at `path`.
pub fn losses(path: &Path) -> Result<Vec<(u64, f64)>, WatchError> {
    Ok(effective_losses(&read(path)?.records))
}

/// Step and loss, by step: a resume voids what came after its checkpoint, a new start voids everything, and of two
/// records of one step the later holds.
pub fn effective_losses(records: &[Record]) -> Vec<(u64, f64)> {
    let mut by_step = BTreeMap::new();
    for record in records {
        match record.event {
            Event::RunStarted { .. } => by_step.clear(),
            Event::Resumed { step, .. } => by_step.retain(|&done, _| done <= step),
            Event::Step { step, loss, .. } => {
                by_step.insert(step, loss);
            }
            _ => {}
        }
    }
    by_step.into_iter().collect()
}
