//! The live line on a real pseudo-terminal: this test starts itself again with one as its standard error.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Command, Stdio};

use plimsoll_machine::Bytes;
use plimsoll_watch::{Progress, StepView, Target};

const ROLE: &str = "PLIMSOLL_TEST_PROGRESS";

#[test]
#[ignore = "the process whose terminal is looked at"]
fn showing_process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let threads = || fs_err::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    let mut progress = Progress::new(400, Target::Stderr);
    for step in 1..=120 {
        let (ram_used, ram_planned) = (Bytes::mib(212), Bytes::mib(240));
        progress.step(&StepView { step, loss: 1.2344, tokens_per_second: 8123.0, unit: "tok", ram_used, ram_planned });
        if step == 60 {
            progress.note("saved checkpoints/step-60");
        }
    }
    progress.finish();
    assert_eq!(threads(), before, "progress must not start threads");
}

/// Both ends of a terminal of `columns` columns.
fn terminal(columns: u16) -> (File, OwnedFd) {
    let (mut ours, mut theirs) = (0, 0);
    let size = libc::winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: both descriptors have room, the name and the settings may be null, the size is only read.
    let done = unsafe {
        libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null_mut(), (&raw const size).cast_mut())
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: `openpty` gave us both descriptors and nobody else has them.
    unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) }
}

fn shown(columns: u16) -> String {
    let (mut ours, theirs) = terminal(columns);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "showing_process", "--nocapture", "--test-threads=1"])
        .env(ROLE, "1")
        .env("TERM", "xterm-256color")
        .env_remove("NO_COLOR")
        .stdout(Stdio::null())
        .stderr(theirs)
        .spawn()
        .unwrap();
    let mut text = Vec::new();
    let mut block = [0; 4096];
    loop {
        match ours.read(&mut block) {
            Ok(0) => break,
            Ok(got) => text.extend_from_slice(&block[..got]),
            // A terminal whose other end is closed answers so.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(child.wait().unwrap().success(), "{}", String::from_utf8_lossy(&text));
    String::from_utf8(text).unwrap()
}

#[test]
fn a_terminal_gets_one_live_line_with_everything_and_notes_above_it() {
    let text = shown(120);
    let last = text.rsplit("step ").next().unwrap();
    assert!(last.starts_with("120/400 [======> "), "{text:?}");
    assert!(last.contains("] loss 1.234  8.1k tok/s  RAM 212 of 240 MiB  ETA 0:0"), "{text:?}");
    assert!(text.contains("saved checkpoints/step-60"), "{text:?}");
    // The line is drawn again in place, not 120 times below each other, and what follows starts on a line of its own.
    assert!(text.matches('\n').count() <= 6 && text.ends_with('\n'), "{text:?}");
}

#[test]
fn a_narrow_terminal_cuts_the_line_and_does_not_wrap_it() {
    let text = shown(50);
    let last = text.rsplit("step ").next().unwrap();
    let line = last.trim_end();
    assert!(line.contains("loss 1.2") && "step ".len() + line.chars().count() <= 50, "{line:?}");
}
