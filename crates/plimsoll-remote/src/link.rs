//! A connection to the far side: what is asked goes out, answers come in, in order.
//!
//! Invariant: a connection that ends, or says nothing for a minute, is an error that says what ssh said of it; nothing waits
//! for an answer that cannot come. A thread shows the far side that we are there, so that one whose network is gone ends by
//! itself. What nobody has taken yet is at most a few answers, whatever the far side sends.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::harmless::harmless_line;
use crate::pulse::{Heard, Pulse};
use crate::push::UNDER_WAY;
use crate::ssh::{failure, last_lines};
use crate::ssh_process::SshProcess;
use crate::wire::{ABSENT, Answer, Ask, Fault, GREETING, RunSeen, WireError, read_message, write_message};
use crate::{Patience, RemoteError, Ssh};

/// Answers that nobody has taken yet, beside those that only say that something is done.
const WAITING: usize = 2;
/// With those: all that is under way may be done, so that whoever sends more of it still listens, and sees when nobody is there any more.
const DONE_WAITING: usize = UNDER_WAY + WAITING;
/// Between two looks at whether anything is heard.
const LOOK: Duration = Duration::from_millis(100);
/// What a login shell may print before we are heard.
const MOST_JUNK: usize = 64 << 10;

type Output = Arc<Mutex<Option<Box<dyn Write + Send>>>>;
type Received = Result<(Answer, Vec<u8>), WireError>;

/// A connection that stands.
pub struct Link {
    host: String,
    output: Output,
    answers: Receiver<Received>,
    /// A place of [`WAITING`] for each answer of more than a word.
    places: Receiver<()>,
    pulse: Pulse,
    patience: Patience,
    process: Mutex<Option<SshProcess>>,
    dir: String,
    version: String,
    _heart: Sender<()>,
}

/// What answered.
pub enum Opened {
    /// The program.
    Link(Box<Link>),
    /// The script: the program is not there. What it says of the machine.
    Absent(String),
}

impl Link {
    /// Connects and runs `script`, which ends in the far side of this program.
    pub fn open(ssh: &Ssh, script: &str) -> Result<Opened, RemoteError> {
        let patience = ssh.patience();
        let pulse = Pulse::awaited(patience.greeting);
        let mut command = ssh.command(&["-T"], Some(script));
        command.stdout(Stdio::piped());
        let mut process = SshProcess::start(ssh, command, pulse.clone())?;
        let (Some(output), Some(input)) = (process.input(), process.output()) else {
            return Err(WireError::Cut.into());
        };
        Link::over(ssh.address().host(), input, output, Some(process), pulse, patience)
    }

    /// Over any two pipes, without a process: their first word is waited for without an end.
    pub fn over_pipes(
        host: &str,
        input: impl Read + Send + 'static,
        output: impl Write + Send + 'static,
        patience: Patience,
    ) -> Result<Link, RemoteError> {
        let pulse = Pulse::awaited(patience.greeting);
        match Link::over(host, Heard { input, pulse: pulse.clone() }, output, None, pulse, patience)? {
            Opened::Link(link) => Ok(*link),
            Opened::Absent(found) => Err(RemoteError::Junk { host: host.to_string(), found }),
        }
    }

    fn over(
        host: &str,
        input: impl Read + Send + 'static,
        output: impl Write + Send + 'static,
        mut process: Option<SshProcess>,
        pulse: Pulse,
        patience: Patience,
    ) -> Result<Opened, RemoteError> {
        let silent = |said: &str| {
            let (host, seconds) = (host.to_string(), patience.greeting.as_secs());
            RemoteError::Silent { host, seconds, said: last_lines(said) }
        };
        let mut input = BufReader::with_capacity(256 << 10, input);
        let greeting = greeting(&mut input).map_err(WireError::Pipe)?;
        match greeting {
            Greeting::Program => pulse.began(patience.silence),
            Greeting::Script => {
                let mut facts = Vec::new();
                let _ = input.take(MOST_JUNK as u64).read_to_end(&mut facts);
                let (facts, over) = (String::from_utf8_lossy(&facts).into_owned(), pulse.is_gone());
                // A script that failed has said why.
                return match process.as_mut().map(SshProcess::end) {
                    Some((Some(0), _)) | None => Ok(Opened::Absent(facts)),
                    Some(_) if over => Err(silent(&facts)),
                    Some((status, said)) => Err(failure(host, status, &said)),
                };
            }
            Greeting::None(junk) => {
                let over = process.is_some() && pulse.is_gone();
                let (status, said) = process.as_mut().map_or((None, String::new()), SshProcess::end);
                if over {
                    return Err(silent(if junk.trim().is_empty() { &said } else { &junk }));
                }
                return Err(match status {
                    Some(0) => RemoteError::Junk { host: host.to_string(), found: last_lines(&junk) },
                    Some(status) if status != 255 => {
                        let said = if said.trim().is_empty() { junk } else { said };
                        RemoteError::Shell { host: host.to_string(), said: last_lines(&said) }
                    }
                    status => failure(host, status, &said),
                });
            }
        }
        let (to, answers) = sync_channel(DONE_WAITING);
        let (place, places) = sync_channel(WAITING);
        let hearing = pulse.clone();
        std::thread::spawn(move || listen(input, &to, &place, &hearing));
        let output: Output = Arc::new(Mutex::new(Some(Box::new(output))));
        let (heart, stop) = channel();
        let beating = Arc::clone(&output);
        std::thread::spawn(move || beat(&beating, patience.beat, &stop));
        let mut link = Link {
            host: host.to_string(),
            output,
            answers,
            places,
            pulse,
            patience,
            process: Mutex::new(process),
            dir: String::new(),
            version: String::new(),
            _heart: heart,
        };
        match link.answer()?.0 {
            Answer::Hello { version, dir } => (link.version, link.dir) = (version, dir),
            other => return Err(unexpected("a greeting", &other).into()),
        }
        Ok(Opened::Link(Box::new(link)))
    }

    /// The far folder, absolute.
    pub fn dir(&self) -> &str {
        &self.dir
    }

    /// The far program's version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The far machine, for messages.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Asks, without waiting for the answer.
    pub fn tell(&self, ask: &Ask, body: &[u8]) -> Result<(), RemoteError> {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let written = match output.as_mut() {
            Some(output) => write_message(output, ask, body),
            None => Err(WireError::Cut),
        };
        drop(output);
        written.map_err(|error| self.judged(error))
    }

    /// The next answer; a refusal is an error.
    pub fn answer(&self) -> Result<(Answer, Vec<u8>), RemoteError> {
        loop {
            if let Some(answer) = self.answer_within(LOOK)? {
                return Ok(answer);
            }
        }
    }

    /// The next answer, where one comes in time.
    pub fn answer_within(&self, time: Duration) -> Result<Option<(Answer, Vec<u8>)>, RemoteError> {
        let received = match self.answers.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) if !self.pulse.is_gone() => return Ok(None),
            Ok(received) => received,
            Err(_) => Err(WireError::Cut),
        };
        if !is_a_word(&received) {
            let _ = self.places.try_recv();
        }
        let host = || self.host.clone();
        match received.map_err(|error| self.judged(error))? {
            (Answer::Failed { full: Some(path), .. }, _) => {
                Err(RemoteError::FarDiskFull { host: host(), path: path.to_string() })
            }
            (Answer::Failed { fact, fault: Fault::Machine, .. }, _) => Err(RemoteError::Far { host: host(), fact }),
            (Answer::Failed { fact, fault: Fault::Asked, .. }, _) => Err(RemoteError::Refused { host: host(), fact }),
            (Answer::Runs { runs }, body) => {
                let runs = runs.into_iter().map(|run| RunSeen {
                    run: harmless_line(&run.run),
                    status: harmless_line(&run.status),
                    why: run.why.as_deref().map(harmless_line),
                    host: run.host.as_deref().map(harmless_line),
                    ..run
                });
                Ok(Some((Answer::Runs { runs: runs.collect() }, body)))
            }
            other => Ok(Some(other)),
        }
    }

    /// Asks and waits for the answer.
    pub fn ask(&self, ask: &Ask) -> Result<(Answer, Vec<u8>), RemoteError> {
        self.tell(ask, &[])?;
        self.answer()
    }

    /// Asks for something that is done or not.
    pub fn have_done(&self, ask: &Ask) -> Result<(), RemoteError> {
        match self.ask(ask)?.0 {
            Answer::Done {} => Ok(()),
            other => Err(unexpected("`done`", &other).into()),
        }
    }

    /// A broken pipe, as ssh explains it.
    fn judged(&self, error: WireError) -> RemoteError {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        match (error.is_cut(), process.as_mut()) {
            (true, Some(process)) => {
                let (status, said) = process.end();
                if process.was_silent() {
                    return self.silent();
                }
                // Once the program spoke, every end is a lost connection, whatever ssh calls it.
                let said = match status {
                    Some(255) | None => last_lines(&said),
                    Some(status) => format!("the far side ended with {status}: {}", last_lines(&said)),
                };
                RemoteError::Lost { host: self.host.clone(), said }
            }
            (true, None) if self.pulse.is_gone() => self.silent(),
            (true, None) => RemoteError::Lost { host: self.host.clone(), said: String::new() },
            (false, _) => error.into(),
        }
    }

    /// It stood, so another one may help.
    fn silent(&self) -> RemoteError {
        let said = format!("nothing was heard for {} s", self.patience.silence.as_secs());
        RemoteError::Lost { host: self.host.clone(), said }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The far side ends when its input does; ssh is not waited for.
        self.output.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(process) = self.process.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            process.kill();
        }
    }
}

/// Whether it says that something is done, and no more.
fn is_a_word(received: &Received) -> bool {
    matches!(received, Ok((Answer::Done {}, body)) if body.is_empty())
}

fn listen(mut input: impl Read, to: &SyncSender<Received>, place: &SyncSender<()>, pulse: &Pulse) {
    loop {
        let message = match read_message(&mut input) {
            Ok(Some((Answer::Pong {}, _))) => continue,
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err(WireError::Cut),
            Err(error) => Err(error),
        };
        let last = message.is_err();
        // What is not taken here is not the far side's silence.
        pulse.busy();
        let has_place = is_a_word(&message) || place.send(()).is_ok();
        if !has_place || to.send(message).is_err() || last {
            return;
        }
        pulse.beat();
    }
}

fn beat(output: &Output, every: Duration, stop: &Receiver<()>) {
    while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(every) {
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        match output.as_mut().map(|output| write_message(output, &Ask::Ping {}, &[])) {
            Some(Ok(())) => {}
            _ => return,
        }
    }
}

/// What was expected, and what came.
pub fn unexpected(expected: &'static str, found: &Answer) -> WireError {
    let found = serde_json::to_string(found).unwrap_or_default();
    WireError::Unexpected { expected, found: found.chars().take(200).collect() }
}

enum Greeting {
    Program,
    Script,
    /// Neither; what came instead.
    None(String),
}

/// Reads up to the end of a greeting; as far as anything came in time.
fn greeting(input: &mut impl BufRead) -> std::io::Result<Greeting> {
    let mut seen = Vec::new();
    while seen.len() < MOST_JUNK {
        let before = seen.len();
        match input.take(MOST_JUNK as u64).read_until(b'\n', &mut seen) {
            Err(error) if error.kind() != ErrorKind::TimedOut => return Err(error),
            Err(_) => break,
            Ok(_) if seen.len() == before => break,
            Ok(_) => {}
        }
        if seen.ends_with(GREETING) || seen == GREETING[1..] {
            return Ok(Greeting::Program);
        }
        if seen.ends_with(ABSENT) || seen == ABSENT[1..] {
            return Ok(Greeting::Script);
        }
    }
    Ok(Greeting::None(String::from_utf8_lossy(&seen).into_owned()))
}

#[cfg(test)]
mod tests {
    use std::io::pipe;

    use super::*;

    #[test]
    fn what_a_login_shell_prints_is_passed_over() {
        for before in ["", "Welcome to box!\n", "no line end", "\n\n"] {
            let wire = [before.as_bytes(), GREETING, b"rest"].concat();
            let mut input = wire.as_slice();
            assert!(matches!(greeting(&mut input).unwrap(), Greeting::Program), "{before:?}");
            assert_eq!(input, b"rest");
        }
        assert!(
            matches!(greeting(&mut b"only\njunk".as_slice()).unwrap(), Greeting::None(junk) if junk == "only\njunk")
        );
        let endless = vec![b'x'; 1 << 20];
        assert!(matches!(greeting(&mut endless.as_slice()).unwrap(), Greeting::None(_)));
    }

    #[test]
    fn who_is_told_of_all_that_is_done_while_he_sends_more_sees_when_nobody_is_there_any_more() {
        let (_far_in, near_out) = pipe().unwrap();
        let (near_in, mut far_out) = pipe().unwrap();
        far_out.write_all(GREETING).unwrap();
        let mut say = |answer: &Answer| write_message(&mut far_out, answer, &[]).unwrap();
        say(&Answer::Hello { version: "0".to_string(), dir: "/far".to_string() });
        let quick =
            Patience { silence: Duration::from_secs(2), beat: Duration::from_secs(3600), ..Patience::default() };
        let link = Link::over_pipes("here", near_in, near_out, quick).unwrap();
        // As many as may be under way, and nobody takes one: who would is held by a pipe that is full.
        (0..UNDER_WAY).for_each(|_| say(&Answer::Done {}));
        while !link.pulse.is_gone() {
            std::thread::sleep(Duration::from_millis(5));
        }
        (0..UNDER_WAY).for_each(|_| assert!(matches!(link.answer(), Ok((Answer::Done {}, _)))));
        assert!(link.answer().unwrap_err().is_cut());
    }
}
