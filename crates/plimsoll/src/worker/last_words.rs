//! The worker's last words: what sort of failure it ends itself for, and a panic with its place, put into the journal
//! before it is told on the terminal.

use std::panic;
use std::path::Path;

use plimsoll_data::DataError;
use plimsoll_recover::RecoverError;
use plimsoll_recover::cause::Kind;
use plimsoll_watch::{Event, Journal};

use crate::render::{Exit, Fail};

/// What sort of failure it is, where that is plain from its type.
pub fn kind_of(fail: &Fail) -> Option<Kind> {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    let causes = || fail.fact.iter().flat_map(|fact| fact.chain());
    let io = || causes().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    let full = io().any(|error| matches!(error.kind(), StorageFull | QuotaExceeded))
        || causes().any(|cause| matches!(cause.downcast_ref(), Some(RecoverError::DiskTooFull { .. })));
    if full {
        Some(Kind::DiskFull)
    } else if fail.exit == Exit::BadInput || causes().any(|cause| cause.is::<DataError>()) {
        Some(Kind::BadData)
    } else if io().next().is_some() {
        Some(Kind::IoError)
    } else {
        None
    }
}

/// From here on a panic in any thread is noted in the journal of `folder`, where there is one.
pub fn on_panic(folder: &Path) {
    let path = folder.join("journal.jsonl");
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        // Nobody asked for a journal yet while the run is being planned, and a run without one is none.
        if path.exists()
            && let Ok(mut journal) = Journal::append(&path)
        {
            let message = panic.payload_as_str().unwrap_or("panic").to_string();
            let place = panic.location().map(ToString::to_string);
            let _ = journal.record(&Event::Failed { step: 0, message, place });
            let _ = journal.sync();
        }
        tell(panic);
    }));
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use plimsoll_machine::Bytes;

    use super::*;

    #[test]
    fn a_full_disk_is_told_from_other_failures_at_any_depth() {
        let io = |kind: std::io::ErrorKind| Fail::new(Exit::Failed, std::io::Error::from(kind)).context("writing");
        assert_eq!(kind_of(&io(std::io::ErrorKind::StorageFull)), Some(Kind::DiskFull));
        assert_eq!(kind_of(&io(std::io::ErrorKind::PermissionDenied)), Some(Kind::IoError));
        let (needed, free, path) = (Bytes(2), Bytes(1), PathBuf::from("x"));
        let full = Fail::new(Exit::Failed, RecoverError::DiskTooFull { needed, free, path });
        assert_eq!(kind_of(&full), Some(Kind::DiskFull));
        assert_eq!(kind_of(&Fail::usage("no")), Some(Kind::BadData));
        assert_eq!(kind_of(&Fail::silent(Exit::Failed)), None);
    }
}
