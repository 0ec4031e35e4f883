//! A text log of anybody's: a trainer's output, `dmesg`, `journalctl`, `docker inspect`, Slurm.
//!
//! Read once, as a stream, in bounded memory. `cause` weighs a death whose exit was seen; a log has none, so its lines
//! are weighed in [`judge()`], in the same order: witnesses first, the program's own words next, a bare signal last.

mod judge;
mod remedy;
mod scan;

use std::path::Path;

use crate::render::{Fail, OrFail};

use super::diagnosis::{Diagnosis, Status};
use judge::judge;
use scan::{Scan, scan};

/// How much of a file is looked at to tell text from other things.
const HEAD: usize = 8 << 10;
/// Lines after a program's own words from which on it may have survived what they tell. A crash of many ranks writes
/// hundreds.
const AFTERMATH: u64 = 2000;

/// What the log at `path` tells. Exit 2 for what is no text.
pub fn log_file(path: &Path) -> Result<Diagnosis, Fail> {
    let file = fs_err::File::open(path).or_usage()?;
    let mut from = std::io::BufReader::with_capacity(64 << 10, file);
    let head = std::io::BufRead::fill_buf(&mut from).or_usage()?;
    is_text(path, &head[..head.len().min(HEAD)])?;
    let scan = scan(from).or_usage()?;
    Ok(diagnose(path, &scan))
}

/// Refuses what is no text log, and says what it is where that can be seen.
fn is_text(path: &Path, head: &[u8]) -> Result<(), Fail> {
    let name = path.display();
    if head.is_empty() {
        return Err(Fail::usage(format!("`{name}` is empty")).hint("a log that was not flushed may lie elsewhere"));
    }
    let hints: [(&[u8], &str); 6] = [
        (b"\x1f\x8b", "it is compressed with gzip: unpack it first (`zcat`)"),
        (b"\x28\xb5\x2f\xfd", "it is compressed with zstd: unpack it first (`zstdcat`)"),
        (b"BZh", "it is compressed with bzip2: unpack it first (`bzcat`)"),
        (b"\xfd7zXZ", "it is compressed with xz: unpack it first (`xzcat`)"),
        (b"LPKSHHRH", "it is a journal of systemd: print it first (`journalctl --file`)"),
        (b"\xff\xfe", "it is UTF-16: convert it first (`iconv -f UTF-16 -t UTF-8`)"),
    ];
    let known = hints.iter().find(|(mark, _)| head.starts_with(mark)).map(|(_, hint)| *hint);
    let zero = head.iter().position(|&byte| byte == 0);
    if known.is_none() && zero.is_none() {
        return Ok(());
    }
    let found = zero.map_or(String::new(), |at| format!(": byte {at} is zero"));
    let fail = Fail::usage(format!("`{name}` is not a text log{found}"));
    Err(fail.hint(known.unwrap_or("name a text file, or a run folder")))
}

fn diagnose(path: &Path, scan: &Scan) -> Diagnosis {
    let mut judged = judge(scan);
    let mut remarks = Vec::new();
    if scan.left_out > 0 {
        remarks.push(format!("{} telling lines in the middle of the log were left out", scan.left_out));
    }
    if let Some(judged) = &mut judged
        && judged.by_words
        && let Some(line) = judged.finding.because.iter().find_map(|ground| ground.line)
    {
        let after = scan.lines.saturating_sub(line as u64);
        if after > AFTERMATH {
            let sure = &mut judged.finding.confidence;
            *sure = (*sure).min(plimsoll_recover::cause::Confidence::Likely);
            remarks.push(format!(
                "the log goes on for {after} lines after line {line}: the program may have survived that"
            ));
        }
    }
    let advice = judged.as_ref().map(|judged| remedy::advice(judged, scan)).unwrap_or_default();
    let (status, headline) = match &judged {
        Some(judged) => (Status::LogOfADeath, headline(judged, scan.lines)),
        None => (Status::LogWithoutADeath, format!("nothing in {} lines tells of a death", scan.lines)),
    };
    if judged.is_none()
        && let Some(last) = scan.last_lines.back()
    {
        remarks.push(format!("the last line is: {}", super::sanitize::clean(&last.text)));
    }
    Diagnosis {
        subject: path.to_path_buf(),
        asked_unix_ms: None,
        status,
        headline,
        progress: None,
        cause: judged.map(|judged| judged.finding),
        timeline: Vec::new(),
        lost: None,
        done: Vec::new(),
        pace: None,
        advice,
        next: None,
        remarks,
    }
}

fn headline(judged: &judge::Judged, lines: u64) -> String {
    let finding = &judged.finding;
    let place = match finding.because.iter().find_map(|ground| ground.line) {
        Some(line) => format!(", line {line} of {lines}"),
        None => String::new(),
    };
    match finding.confidence {
        plimsoll_recover::cause::Confidence::Unproven => format!("{}{place}", finding.told),
        sure => format!("{} ({}){place}", finding.told, sure.name()),
    }
}

#[cfg(test)]
#[path = "log/log_test.rs"]
mod tests;
