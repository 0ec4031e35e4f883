//! A program on a pseudo-terminal of its own, and an emulator that knows what its screen shows.
//!
//! Nothing here counts time: a condition is waited for, by reading what the program writes, until it holds or a
//! generous deadline has passed.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longer than anything takes on the slowest machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// Flags of input, output, control and local modes, and the control characters.
pub type Settings = (u32, u32, u32, u32, [u8; 32]);

/// A terminal with a program on it.
pub struct Pty {
    ours: Option<File>,
    /// Kept open while the program runs, for the settings.
    theirs: Option<OwnedFd>,
    /// The settings before the program, and at its end.
    pub before: Settings,
    left: Option<Settings>,
    child: Child,
    written: Receiver<Vec<u8>>,
    parser: vt100::Parser,
}

impl Pty {
    /// Starts `command` on a terminal of this size.
    pub fn start(command: &mut Command, columns: u16, rows: u16) -> Pty {
        let (mut ours, mut theirs) = (0, 0);
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: both descriptors have room, the name and the settings may be null, the size is only read.
        let done = unsafe {
            libc::openpty(
                &mut ours,
                &mut theirs,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                (&raw const size).cast_mut(),
            )
        };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: `openpty` gave us both descriptors and nobody else has them.
        let (ours, theirs) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        close_on_exec(&ours);
        let before = settings(&theirs);
        let end = || Stdio::from(theirs.try_clone().unwrap());
        let command = command.env("TERM", "xterm-256color").stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().unwrap();
        let mut from = ours.try_clone().unwrap();
        let (send, written) = channel();
        // Reading in a thread of its own keeps the program from waiting for a test that looks elsewhere.
        std::thread::spawn(move || {
            let mut block = [0; 4096];
            while let Ok(got @ 1..) = from.read(&mut block) {
                if send.send(block[..got].to_vec()).is_err() {
                    break;
                }
            }
        });
        let parser = vt100::Parser::new(cells(rows), cells(columns), 0);
        Pty { ours: Some(ours), theirs: Some(theirs), before, left: None, child, written, parser }
    }

    /// The screen, as of what was read so far.
    pub fn screen(&self) -> &vt100::Screen {
        self.parser.screen()
    }

    /// Its text.
    pub fn contents(&self) -> String {
        self.screen().contents()
    }

    /// Whether any letter on the screen is in a colour of its own.
    pub fn is_coloured(&self) -> bool {
        let (rows, columns) = self.screen().size();
        let coloured =
            |row, column| self.screen().cell(row, column).is_some_and(|cell| cell.fgcolor() != vt100::Color::Default);
        (0..rows.get()).any(|row| (0..columns.get()).any(|column| coloured(row, column)))
    }

    /// Waits until the screen holds `text`.
    pub fn wait_for(&mut self, text: &str) {
        self.wait_until(text, |screen| screen.contents().contains(text));
    }

    /// Waits until the screen is as `holds` wants it.
    pub fn wait_until(&mut self, what: &str, holds: impl Fn(&vt100::Screen) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !holds(self.parser.screen()) {
            match self.written.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.parser.process(&bytes),
                Err(error) => {
                    let _ = self.child.kill();
                    panic!("{error} while waiting for `{what}`; on screen:\n{}", self.contents());
                }
            }
        }
    }

    /// Types.
    pub fn send(&mut self, bytes: &[u8]) {
        self.ours.as_mut().expect("the terminal is there").write_all(bytes).unwrap();
    }

    /// Gives the terminal another size, and tells the program as a terminal does.
    pub fn resize(&mut self, columns: u16, rows: u16) {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let terminal = self.ours.as_ref().expect("the terminal is there").as_raw_fd();
        // SAFETY: the descriptor is open, and the call only reads the size.
        assert_eq!(unsafe { libc::ioctl(terminal, libc::TIOCSWINSZ, &raw const size) }, 0);
        self.parser.screen_mut().set_size(cells(rows), cells(columns));
        // The terminal is not the program's controlling one, so the kernel does not do this.
        self.signal(libc::SIGWINCH);
    }

    /// Sends the program a signal.
    pub fn signal(&mut self, signal: i32) {
        // SAFETY: the child has not been waited for, so its number is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Takes the terminal away: nobody reads it or types on it any more.
    pub fn hang_up(&mut self) {
        let ours = self.ours.take().expect("the terminal is there");
        self.theirs = None;
        // The reading thread has a descriptor of its own, which keeps the terminal alive as long as it reads. A last
        // word of the program's ends its wait, and a channel that nobody listens to ends the thread.
        (_, self.written) = channel();
        drop(ours);
    }

    /// The terminal's settings: raw or not, and all the rest.
    pub fn settings(&self) -> Settings {
        self.left.unwrap_or_else(|| settings(self.theirs.as_ref().expect("the terminal is there")))
    }

    /// Waits for the program to end, and takes in its last words.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + DEADLINE;
        let status = loop {
            match self.written.recv_timeout(Duration::from_millis(20)) {
                Ok(bytes) => self.parser.process(&bytes),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                let _ = self.child.kill();
                panic!("it does not end; on screen:\n{}", self.contents());
            }
        };
        self.left = self.theirs.is_some().then(|| self.settings());
        // Without a second end, reading ends when everything was read.
        self.theirs = None;
        while let Ok(bytes) = self.written.recv_timeout(DEADLINE) {
            self.parser.process(&bytes);
        }
        status
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn settings(terminal: &OwnedFd) -> Settings {
    // SAFETY: plain data, for which zeroes are a value.
    let mut settings: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the call fills the settings.
    assert_eq!(unsafe { libc::tcgetattr(terminal.as_raw_fd(), &mut settings) }, 0);
    (settings.c_iflag, settings.c_oflag, settings.c_cflag, settings.c_lflag, settings.c_cc)
}

fn cells(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).expect("a terminal has rows and columns")
}

/// Keeps our end out of the programs that are started.
fn close_on_exec(file: &File) {
    // SAFETY: the descriptor is open, and the call takes no memory.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) }, 0);
}
