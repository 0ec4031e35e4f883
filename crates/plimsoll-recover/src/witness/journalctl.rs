//! The system's journal, where there is one that we may read: other OOM daemons, and the kernel's log for users who may
//! not open it themselves.
//!
//! Bounded in time and length: a machine in need may have no time for us. Only ever called at a death.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use plimsoll_machine::Root;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most that is taken of it, in bytes.
const MOST: usize = 256 << 10;
/// Who kills for want of memory, or tells of such kills.
const DAEMONS: [&str; 5] = ["systemd-oomd", "earlyoom", "nohang", "kubelet", "systemd"];

/// What daemons that kill wrote since then.
pub(super) fn daemon_log(root: &Root, since_unix_ms: u64) -> Option<String> {
    let mut words = vec![since(since_unix_ms), "--lines=200".to_string()];
    words.extend(DAEMONS.iter().map(|name| format!("--identifier={name}")));
    ask(root, &words)
}

/// What the kernel wrote since then, in this boot.
pub(super) fn kernel_log(root: &Root, since_unix_ms: u64) -> Option<String> {
    let kernel = ["--dmesg", "--output=short-monotonic", "--lines=1000"].map(str::to_string);
    ask(root, &[&kernel[..], &[since(since_unix_ms)]].concat())
}

/// The end of the kernel's log of an earlier boot.
pub(super) fn kernel_log_of_boot(root: &Root, boot_id: &str) -> Option<String> {
    let boot: String = boot_id.chars().filter(char::is_ascii_hexdigit).collect();
    // A word that is no boot's number could be read as an offset or another option.
    if boot.len() != 32 {
        return None;
    }
    let kernel = ["--dmesg", "--output=short-monotonic", "--lines=400"].map(str::to_string);
    ask(root, &[&kernel[..], &[format!("--boot={boot}")]].concat())
}

fn since(unix_ms: u64) -> String {
    format!("--since=@{}", (unix_ms / 1000).saturating_sub(1))
}

/// The answer; `None` where there is no journal, none that we may read, or nothing in it.
fn ask(root: &Root, words: &[String]) -> Option<String> {
    if !root.is_system() {
        return None;
    }
    let mut command = Command::new("journalctl");
    command.args(["--quiet", "--no-pager"]).args(words);
    answer(&mut command, PATIENCE, MOST)
}

/// What a program writes within a time, up to a length; it is ended after that.
fn answer(command: &mut Command, patience: Duration, most: usize) -> Option<String> {
    let end = Instant::now() + patience;
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut pipe = child.stdout.take()?;
    let mut text = Vec::new();
    let mut block = [0u8; 4 << 10];
    while text.len() < most {
        let left = end.saturating_duration_since(Instant::now());
        let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&time)) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        match pipe.read(&mut block) {
            Ok(0) | Err(_) => break,
            Ok(read) => text.extend_from_slice(&block[..read]),
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    let text = String::from_utf8_lossy(&text);
    // A line that was cut tells half of something.
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    (!whole.trim().is_empty()).then(|| whole.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn whole_lines_are_taken_and_a_cut_one_is_not() {
        let minute = Duration::from_secs(60);
        assert_eq!(answer(&mut shell("printf 'a\\nb\\nc'"), minute, MOST).as_deref(), Some("a\nb\n"));
        assert_eq!(answer(&mut shell("true"), minute, MOST), None);
        assert_eq!(answer(&mut Command::new("/no/such/journalctl"), minute, MOST), None);
        let long = answer(&mut shell("while echo line; do :; done"), minute, 64 << 10).unwrap();
        assert!(long.len() <= (64 << 10) + (4 << 10) && long.ends_with("line\n"));
    }

    #[test]
    fn one_that_does_not_end_is_ended_and_what_it_wrote_counts() {
        let told = answer(&mut shell("echo early; exec sleep 1000"), Duration::from_millis(500), MOST);
        assert!(told.is_none_or(|told| told == "early\n"));
    }

    #[test]
    fn only_a_whole_boot_number_is_asked_for() {
        assert_eq!(kernel_log_of_boot(&Root::system(), "-1"), None);
        assert_eq!(since(1_700_000_000_500), "--since=@1699999999");
    }
}
