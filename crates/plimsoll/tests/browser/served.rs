//! The real `plimsoll watch --web`, and a plain HTTP client that says exactly what a test wants it to say.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A page that is being served; dropping it ends it.
pub struct Served {
    child: Child,
    pub address: SocketAddr,
}

/// An answer to a request.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// `plimsoll watch RUN --web --port PORT`.
pub fn command(run: &Path, port: u16) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.arg("watch").arg(run).args(["--web", "--port", &port.to_string()]).stdin(Stdio::null());
    command
}

impl Served {
    /// Serves the run on `port`, and waits until the address is told.
    pub fn start(run: &Path, port: u16) -> Served {
        let mut child = command(run, port).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix('/')?.parse().ok());
        let address = address.unwrap_or_else(|| panic!("`{line}` is no address"));
        Served { child, address }
    }

    /// The page's address.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Sends `text` as it is and reads until the server closes.
    pub fn say(&self, text: &str) -> Answer {
        let mut stream = self.connect();
        stream.write_all(text.as_bytes()).unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        let (head, body) = said.split_once("\r\n\r\n").unwrap_or_else(|| panic!("`{said}` is no answer"));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{head}"));
        Answer { status, head: head.to_ascii_lowercase(), body: body.to_string() }
    }

    /// Asks for a path as a well-meaning client does. HTTP/1.0, so that the body comes in one piece.
    pub fn get(&self, path: &str) -> Answer {
        self.say(&format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address))
    }

    /// Listens to `/events`.
    pub fn listen(&self) -> Stream {
        let mut stream = self.connect();
        write!(stream, "GET /events HTTP/1.0\r\nHost: {}\r\n\r\n", self.address).unwrap();
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the stream ended in its head");
        }
        Stream { lines }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends a signal and waits for the end.
    pub fn end(mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Server-sent events as they come.
pub struct Stream {
    lines: BufReader<TcpStream>,
}

impl Stream {
    /// The next event: its name and its data.
    pub fn next(&mut self) -> (String, String) {
        let (mut name, mut data) = (String::new(), String::new());
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "the stream ended");
            match line.trim_end().split_once(':') {
                Some(("event", rest)) => name = rest.trim().to_string(),
                Some(("data", rest)) => data += rest.trim_start(),
                Some(_) => {}
                None if name.is_empty() => {}
                None => return (name, data),
            }
        }
    }

    /// The data of the next event called `name` that satisfies `enough`.
    pub fn until(&mut self, name: &str, enough: impl Fn(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            let (kind, data) = self.next();
            if kind == name && enough(&data) {
                return data;
            }
            assert!(began.elapsed() < PATIENCE, "no such `{name}` came; the last event was {kind}: {data}");
        }
    }
}
