//! A panic while the screen is taken: the terminal is given back first, so that its words can be read. This test starts
//! itself again on a pseudo-terminal.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};

use plimsoll_watch::{View, terminal};

const ROLE: &str = "PLIMSOLL_TEST_SCREEN";
const LEAVE: &str = "\x1b[?1049l";

#[test]
#[ignore = "the process whose terminal is looked at"]
fn showing_process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut looks = 0;
    let look = || {
        looks += 1;
        assert!(looks < 3, "the third look fails");
        Ok(View::of(&[], &[], 0, true))
    };
    terminal::show("run", look).unwrap();
}

fn local_modes(terminal: &OwnedFd) -> u32 {
    // SAFETY: plain data, for which zeroes are a value.
    let mut settings: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the call fills the settings.
    assert_eq!(unsafe { libc::tcgetattr(terminal.as_raw_fd(), &mut settings) }, 0);
    settings.c_lflag
}

#[test]
fn a_panic_gives_the_terminal_back_before_it_speaks() {
    let (mut ours, mut theirs) = (0, 0);
    let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: both descriptors have room, the name and the settings may be null, the size is only read.
    let done = unsafe {
        libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null_mut(), (&raw const size).cast_mut())
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: `openpty` gave us both descriptors and nobody else has them.
    let (mut ours, theirs) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    let before = local_modes(&theirs);
    let end = || Stdio::from(theirs.try_clone().unwrap());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "showing_process", "--nocapture", "--test-threads=1"])
        .env(ROLE, "1")
        .env("TERM", "xterm-256color")
        .stdin(end())
        .stdout(end())
        .stderr(end())
        .spawn()
        .unwrap();
    // Read in a thread: a full terminal would keep the program waiting.
    let reader = std::thread::spawn(move || {
        let (mut text, mut block) = (Vec::new(), [0; 4096]);
        // A terminal whose other end is closed answers with an error.
        while let Ok(got @ 1..) = ours.read(&mut block) {
            text.extend_from_slice(&block[..got]);
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    assert!(!child.wait().unwrap().success());
    assert_eq!(local_modes(&theirs), before, "the terminal was left raw");
    drop(theirs);
    let text = reader.join().unwrap();
    let left = text.find(LEAVE).unwrap_or_else(|| panic!("the alternate screen was not left: {text:?}"));
    let spoke = text.find("the third look fails").unwrap_or_else(|| panic!("no words: {text:?}"));
    assert!(left < spoke, "{text:?}");
    assert_eq!(text.matches(LEAVE).count(), 1, "given back twice: {text:?}");
}
