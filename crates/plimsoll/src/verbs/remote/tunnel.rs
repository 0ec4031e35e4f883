//! `plimsoll remote watch`: the view of a run, through ssh: a terminal of its own, or the page's port.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use plimsoll_recover::shell_word;
use plimsoll_remote::RemoteError;
use plimsoll_remote::wire::{Answer, Ask};

use super::{Remote, failed, strange};
use crate::render::{self, Exit, Fail, OrFail};

/// Between two looks at whether the tunnel stands.
const LOOK: Duration = Duration::from_millis(500);
/// Most bytes before the page's address, and before a tunnel stands.
const LONGEST: usize = 64 << 10;
/// How long a tunnel may take to stand.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the far end of a tunnel says once it stands: ssh starts nothing over there before it has the port here.
const STANDS: &str = "plimsoll-tunnel";
/// Tunnels in a row that may be lost soon after they stood.
const LOST: u32 = 5;
/// One that stood for so long was lost by chance; one that cannot be opened for so long cannot be had.
const LONG: Duration = Duration::from_secs(60);

/// The view in this terminal: ssh makes one over there.
pub fn terminal(remote: &Remote, folder: &str) -> Result<(), Fail> {
    let ssh = remote.session.ssh();
    let dir = ssh.address().dir_word();
    let script = format!("cd {dir} && exec {} watch {}", remote.session.far_program(), shell_word(folder));
    let status = ssh.command(&["-t"], Some(&script)).status();
    let status = status.map_err(|source| failed(RemoteError::NoSsh { program: ssh.program().to_string(), source }))?;
    match status.code() {
        Some(0) => Ok(()),
        Some(255) => {
            let host = ssh.address().host().to_string();
            Err(failed(RemoteError::Lost { host, said: String::new() }))
        }
        code => Err(Fail::silent(code.map_or(Exit::Failed, Exit::of))),
    }
}

/// The page: served over there on a port that is free there, and led to `port` here.
pub fn web(remote: &Remote, folder: &str, port: u16) -> Result<(), Fail> {
    let port = free(port)?;
    remote.with(
        |link| {
            let words = ["watch", folder, "--web", "--port", "0"].map(str::to_string).to_vec();
            link.tell(&Ask::Exec { words, folder: None }, &[])?;
            let mut told = String::new();
            let far_port = loop {
                match link.answer()? {
                    (Answer::Output { talk: false }, bytes) if told.len() < LONGEST => {
                        told.push_str(&String::from_utf8_lossy(&bytes));
                    }
                    (Answer::Output { talk: true }, bytes) => _ = super::show(true, &bytes),
                    (other, _) => return Err(strange(link, &other)),
                }
                if let Some(port) = port_of(&told) {
                    break port;
                }
            };
            let (mut tunnel, mut lost, mut closed) = (Tunnel::open(remote, port, far_port)?, 0, None);
            let _ = render::data(format!("http://127.0.0.1:{port}/"));
            // The page is there as long as both stand; Ctrl-C ends all.
            loop {
                match link.answer_within(LOOK)? {
                    Some((Answer::Output { talk }, bytes)) => _ = super::show(talk, &bytes),
                    Some((Answer::Exited { .. }, _)) => return Ok(()),
                    Some((other, _)) => return Err(strange(link, &other)),
                    // Its connection is one of its own, and breaks alone.
                    None if tunnel.is_gone()? => {
                        if closed.is_none() {
                            lost = if tunnel.since.elapsed() < LONG { lost + 1 } else { 0 };
                            if lost > LOST {
                                return Err(tunnel.failed(remote));
                            }
                            remote.shown.note("the tunnel of the page was lost; it is opened again");
                        }
                        let closed_at = *closed.get_or_insert_with(Instant::now);
                        match Tunnel::open(remote, port, far_port) {
                            Ok(again) => (tunnel, closed) = (again, None),
                            // The server starts again, or somebody has the port for a moment.
                            Err(_) if closed_at.elapsed() < LONG => {}
                            Err(error) => return Err(error),
                        }
                    }
                    None => {}
                }
            }
        },
        || 0,
    )
}

/// The port of the page's address.
fn port_of(told: &str) -> Option<u16> {
    let (line, _) = told.split_once('\n')?;
    line.trim().strip_prefix("http://127.0.0.1:")?.trim_end_matches('/').parse().ok()
}

/// A port that nobody has; the one that was asked for, if there was one.
fn free(port: u16) -> Result<u16, Fail> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(listener) => Ok(listener.local_addr().or_failed()?.port()),
        Err(error) => Err(Fail::new(Exit::BadInput, error)
            .context(format!("port {port} cannot be had"))
            .hint("name another port with --port N; --port 0 takes a free one")),
    }
}

/// ssh that leads a port there. It is killed with us, whatever ends us: by itself it waits for what goes through it.
struct Tunnel {
    ssh: Child,
    said: Receiver<String>,
    /// When it began to stand.
    since: Instant,
}

impl Tunnel {
    fn open(remote: &Remote, port: u16, far_port: u16) -> Result<Tunnel, RemoteError> {
        let ssh = remote.session.ssh();
        let lead = format!("127.0.0.1:{port}:127.0.0.1:{far_port}");
        // A master connection of the user's would take the port over, and keep it.
        let options = ["-T", "-o", "ExitOnForwardFailure=yes", "-o", "ControlPath=none", "-L", &lead];
        let mut command = ssh.command(&options, Some(&format!("echo {STANDS}; exec cat >/dev/null")));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: between fork and exec one system call is made: no allocation, no lock.
        unsafe {
            command.pre_exec(|| {
                rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
                    .map_err(Into::into)
            })
        };
        let started = command.spawn();
        let mut child = started.map_err(|source| RemoteError::NoSsh { program: ssh.program().to_string(), source })?;
        let said = child.stderr.take().map_or_else(|| channel().1, lines);
        let heard = child.stdout.take().map_or_else(|| channel().1, |stdout| lines(stdout.take(LONGEST as u64)));
        let mut tunnel = Tunnel { ssh: child, said, since: Instant::now() };
        let by = Instant::now() + PATIENCE;
        // That somebody listens at the port says nothing: it may be another one, who took it before ssh did.
        while let Ok(line) = heard.recv_timeout(by.saturating_duration_since(Instant::now())) {
            if line.trim_end().ends_with(STANDS) {
                tunnel.since = Instant::now();
                return Ok(tunnel);
            }
        }
        Err(tunnel.failed(remote))
    }

    fn is_gone(&mut self) -> Result<bool, RemoteError> {
        Ok(self.ssh.try_wait()?.is_some())
    }

    /// What ssh said of it, which ends here.
    fn failed(&mut self, remote: &Remote) -> RemoteError {
        let _ = self.ssh.kill();
        let _ = self.ssh.wait();
        let by = Instant::now() + LOOK;
        let mut said = Vec::new();
        while let Ok(line) = self.said.recv_timeout(by.saturating_duration_since(Instant::now())) {
            said.push(line.trim().to_string());
        }
        RemoteError::Shell { host: remote.session.ssh().address().host().to_string(), said: said.join("; ") }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        let _ = self.ssh.kill();
        let _ = self.ssh.wait();
    }
}

/// The lines of a pipe, as they come.
fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (to, lines) = channel();
    std::thread::spawn(move || {
        let text = |line: Vec<u8>| String::from_utf8_lossy(&line).into_owned();
        BufReader::new(from).split(b'\n').map_while(Result::ok).try_for_each(|line| to.send(text(line)))
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_read_from_a_whole_line_only() {
        assert_eq!(port_of("http://127.0.0.1:4567/\n"), Some(4567));
        assert_eq!(port_of("http://127.0.0.1:45"), None);
        assert_eq!(port_of("http://0.0.0.0:45/\n"), None);
    }
}
