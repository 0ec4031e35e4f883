//! One of our verbs, run to its end over a connection; it ends with the connection.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use super::{Event, Server};
use crate::pulse::Pulse;
use crate::wire::{Answer, Ask, Ending, Fault, WireError};

/// Between two looks at whether anybody is there.
const PAUSE: Duration = Duration::from_millis(500);

/// What follows.
pub(super) enum Then {
    GoOn,
    End,
}

pub(super) fn exec<W: Write>(
    server: &mut Server<'_, W>,
    words: &[String],
    folder: &Path,
    to: &SyncSender<Event>,
    events: &Receiver<Event>,
    pulse: &Pulse,
) -> Result<Then, WireError> {
    let mut command = Command::new(&server.program);
    command.args(words).current_dir(folder);
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            let fact = format!("cannot start `{}` in `{}`: {error}", server.program.display(), folder.display());
            server.say(&Answer::Failed { fact, full: None, fault: Fault::Machine }, &[])?;
            return Ok(Then::GoOn);
        }
    };
    let mut open = 0;
    if let Some(stdout) = child.stdout.take() {
        open += 1;
        reading(stdout, false, to.clone());
    }
    if let Some(stderr) = child.stderr.take() {
        open += 1;
        reading(stderr, true, to.clone());
    }
    // What it said last comes before the end of what it said it through.
    let mut closed = false;
    while open > 0 && !closed {
        match events.recv_timeout(PAUSE) {
            Ok(Event::Said { talk, bytes }) => {
                if let Err(error) = server.say(&Answer::Output { talk }, &bytes) {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(error);
                }
            }
            Ok(Event::Hushed) => open -= 1,
            Ok(Event::Asked(Ask::Ping {}, _)) => {}
            // Nothing else is asked while this is under way.
            Ok(Event::Asked(..) | Event::Closed(_)) | Err(RecvTimeoutError::Disconnected) => closed = true,
            Err(RecvTimeoutError::Timeout) => closed = pulse.is_gone(),
        }
    }
    if closed {
        let _ = child.kill();
    }
    let ending = match child.wait() {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => Ending::Code(code),
            (None, Some(signal)) => Ending::Signal(signal),
            (None, None) => Ending::Unseen,
        },
        Err(_) => Ending::Unseen,
    };
    if closed {
        return Ok(Then::End);
    }
    server.say(&Answer::Exited { ending }, &[])?;
    Ok(Then::GoOn)
}

fn reading(mut from: impl Read + Send + 'static, talk: bool, to: SyncSender<Event>) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 32 << 10];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if to.send(Event::Said { talk, bytes: buffer[..read].to_vec() }).is_err() {
                return;
            }
        }
        let _ = to.send(Event::Hushed);
    });
}
