//! The worker's last words: a panic is put into the journal, with its place, before it is told on the terminal.

use std::panic;
use std::path::Path;

use plimsoll_watch::{Event, Journal};

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
