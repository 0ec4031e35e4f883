//! `/dev/kmsg`: the kernel's log, record by record, from now on or from its oldest record.
//!
//! Each `read` of the device gives one record, `level,number,microseconds,flags;text`, with the device's own facts on
//! indented lines after it. Bounded: of a log that is longer than [`MOST`], the newest part is kept. The tables of all
//! processes and the call traces that an OOM kill comes with are left out: they are long and name no cause.

use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};
use std::time::Duration;

use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt;
use plimsoll_machine::Root;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The most that is kept, in bytes.
const MOST: usize = 256 << 10;
/// The most that is read: a kernel that writes faster than we read must not hold us.
const MOST_READ: usize = 32 << 20;
/// No record is longer: the kernel's own buffer for one has 2 KiB (8 KiB since 3.18).
const RECORD: usize = 8 << 10;

/// The open log.
#[derive(Debug)]
pub(super) struct Kmsg {
    file: fs::File,
    /// A line whose end has not been read yet.
    open: Vec<u8>,
}

impl Kmsg {
    /// The log from now on; `None` where it may not be read.
    pub(super) fn at_end(root: &Root) -> Option<Kmsg> {
        let mut kmsg = Kmsg::at_start(root)?;
        kmsg.file.seek(SeekFrom::End(0)).ok()?;
        Some(kmsg)
    }

    /// The log from its oldest record.
    pub(super) fn at_start(root: &Root) -> Option<Kmsg> {
        let mut how = fs::OpenOptions::new();
        how.read(true).custom_flags(libc::O_NONBLOCK);
        Some(Kmsg { file: how.open(root.join("/dev/kmsg")).ok()?, open: Vec::new() })
    }

    /// Reads what there is of records no older than `since`, by the kernel's clock.
    pub(super) fn read_on(&mut self, tail: &mut Tail, since: Duration) {
        let mut record = [0u8; RECORD];
        let mut total = 0;
        while total < MOST_READ {
            match self.file.read(&mut record) {
                Ok(0) => return,
                Ok(read) => {
                    total += read;
                    self.take(&record[..read], tail, since);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The ring went round since the last read; the next gives its oldest record.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => return,
            }
        }
    }

    fn take(&mut self, mut bytes: &[u8], tail: &mut Tail, since: Duration) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.open.extend_from_slice(&bytes[..end]);
            if let Some(line) = telling(&String::from_utf8_lossy(&self.open), since) {
                tail.push(line);
            }
            self.open.clear();
            bytes = &bytes[end + 1..];
        }
        self.open.extend_from_slice(bytes);
    }

    /// Waits for more; `false` when none came in time.
    pub(super) fn wait(&self, patience: Duration) -> bool {
        let time = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&time)) {
            Ok(ready) => ready > 0,
            Err(rustix::io::Errno::INTR) => true,
            Err(_) => false,
        }
    }
}

/// A line of the log as `dmesg` shows it; `None` where it is older, or tells nothing.
fn telling(line: &str, since: Duration) -> Option<String> {
    let (head, text) = line.split_once(';')?;
    let micros: u64 = head.split(',').nth(2)?.parse().ok()?;
    let at = Duration::from_micros(micros);
    // Frames of a call trace are indented; rows of the table of processes begin with a number in brackets.
    let row = text.strip_prefix('[').is_some_and(|rest| {
        rest.split_once(']').is_some_and(|(pid, _)| pid.trim().parse::<u32>().is_ok() && pid.starts_with(' '))
    });
    if at < since || row || text.starts_with(' ') || text.is_empty() {
        return None;
    }
    Some(format!("[{:5}.{:06}] {text}", at.as_secs(), at.subsec_micros()))
}

/// The newest lines, as many as fit.
#[derive(Debug, Default)]
pub(super) struct Tail {
    lines: VecDeque<String>,
    bytes: usize,
}

impl Tail {
    fn push(&mut self, line: String) {
        self.bytes += line.len() + 1;
        self.lines.push_back(line);
        while self.bytes > MOST
            && let Some(oldest) = self.lines.pop_front()
        {
            self.bytes -= oldest.len() + 1;
        }
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    pub(super) fn text(self) -> String {
        let mut text = String::with_capacity(self.bytes);
        for line in self.lines {
            text.push_str(&line);
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_as_dmesg_shows_it_and_tables_and_traces_are_left_out() {
        let read = |line| telling(line, Duration::ZERO);
        let line = "3,812,7429091577,-;Memory cgroup out of memory: Killed process 11089 (a;b)";
        assert_eq!(
            read(line).as_deref(),
            Some("[ 7429.091577] Memory cgroup out of memory: Killed process 11089 (a;b)")
        );
        assert_eq!(read("6,813,1,-;[  11089]     0 11089    14678    13883  python3"), None);
        assert_eq!(read("6,813,1,-; dump_stack_lvl+0x5b/0x90"), None);
        assert_eq!(read(" SUBSYSTEM=block"), None);
        assert_eq!(read("no record"), None);
        assert!(read("4,814,1,c;[drm] a message of a driver").is_some());
    }

    #[test]
    fn what_is_older_than_the_worker_is_left_out() {
        let line = "6,1,5000000,-;x";
        assert!(telling(line, Duration::from_secs(5)).is_some());
        assert_eq!(telling(line, Duration::from_secs(6)), None);
    }

    #[test]
    fn of_a_long_log_the_newest_part_is_kept() {
        let mut tail = Tail::default();
        for n in 0..100_000 {
            tail.push(format!("line {n}"));
        }
        let text = tail.text();
        assert!(text.len() <= MOST && text.len() > MOST - 20, "{}", text.len());
        assert!(text.ends_with("line 99999\n"));
    }
}
