//! A running ssh, and what it says.
//!
//! Invariant: it is ended when nothing is heard of it any more, and nobody waits for what a process that it left behind may still
//! say.

use std::io::Read;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::patient_pipe::PatientPipe;
use crate::pulse::{Pulse, Watchdog};
use crate::{RemoteError, Ssh};

/// What is kept of what ssh says.
const MOST_SAID: usize = 16 << 10;
/// How long ssh may take to say why it ended.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// ssh.
pub(crate) struct SshProcess {
    child: Child,
    said: Arc<Mutex<Vec<u8>>>,
    listener: Option<JoinHandle<()>>,
    watchdog: Watchdog,
    pulse: Pulse,
}

impl SshProcess {
    /// Starts it, with the stdout that `command` has; it is killed where `pulse` is gone.
    pub fn start(ssh: &Ssh, mut command: Command, pulse: Pulse) -> Result<SshProcess, RemoteError> {
        let started = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = started.map_err(|source| RemoteError::NoSsh { program: ssh.program().to_string(), source })?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let (heard, stderr) = (Arc::clone(&said), child.stderr.take());
        let listener = stderr.map(|stderr| std::thread::spawn(move || hear(stderr, &heard)));
        let watchdog = Watchdog::over(&child, pulse.clone());
        Ok(SshProcess { child, said, listener, watchdog, pulse })
    }

    /// What goes in, once.
    pub fn input(&mut self) -> Option<PatientPipe<ChildStdin>> {
        PatientPipe::new(self.child.stdin.take()?, self.pulse.clone()).ok()
    }

    /// What comes out, once, where that is a pipe.
    pub fn output(&mut self) -> Option<PatientPipe<ChildStdout>> {
        PatientPipe::new(self.child.stdout.take()?, self.pulse.clone()).ok()
    }

    /// Whether it was killed because nothing was heard.
    pub fn was_silent(&self) -> bool {
        self.watchdog.has_bitten()
    }

    /// Its exit status and what it said; it is given a moment, then killed.
    pub fn end(&mut self) -> (Option<i32>, String) {
        let by = Instant::now() + LAST_WORDS;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status.code(),
                Ok(None) if Instant::now() < by => std::thread::sleep(Duration::from_millis(10)),
                _ => {
                    self.kill();
                    break None;
                }
            }
        };
        (status, self.last_words(by))
    }

    /// The same of one that ends by itself, or for want of a pulse.
    pub fn wait(&mut self) -> std::io::Result<(Option<i32>, String)> {
        let status = self.child.wait()?.code();
        Ok((status, self.last_words(Instant::now() + LAST_WORDS)))
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Somebody whom ssh started (a control master) may hold the pipe for longer; a process that ended has said all.
    fn last_words(&self, by: Instant) -> String {
        while self.listener.as_ref().is_some_and(|listener| !listener.is_finished()) && Instant::now() < by {
            std::thread::sleep(Duration::from_millis(5));
        }
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&said).into_owned()
    }
}

fn hear(mut from: impl Read, said: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend(&buffer[..read]);
        let over = said.len().saturating_sub(MOST_SAID);
        said.drain(..over);
    }
}
