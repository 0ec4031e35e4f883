//! Text logs of anybody's: a trainer's output, one file or one a rank, `dmesg`, `journalctl`, `docker inspect`, Slurm.
//!
//! Each is read once, as a stream, in bounded memory. There is one judgement: `plimsoll_launch::failure` weighs what
//! trainer, kernel and daemons say; [`judge()`] gathers the scene for it and adds what only other logs tell. What a
//! training survived is no death. The encoding may be anything.

mod form;
mod judge;
mod remedy;
mod scan;

use std::path::{Path, PathBuf};

use plimsoll_launch::failure::{Log, LogSource};

use crate::launch::rank_of;
use crate::render::{Fail, OrFail};

use super::diagnosis::{Diagnosis, Status};
use judge::{Judged, judge};
use scan::{Scan, scan};

/// What a file was read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// A program's output.
    Program(LogSource),
    /// The kernel's log.
    Kernel,
}

/// A log that was read.
#[derive(Clone, Debug)]
struct Read {
    path: PathBuf,
    of: Of,
    scan: Scan,
}

/// What the logs at `paths` and the kernel logs at `kernel` tell. Exit 2 for what is no text.
pub fn log_files(paths: &[PathBuf], kernel: &[PathBuf]) -> Result<Diagnosis, Fail> {
    let programs = paths.iter().map(|path| (path, Of::Program(rank_of(path).map_or(LogSource::Main, LogSource::Rank))));
    let kernels = kernel.iter().map(|path| (path, Of::Kernel));
    let reads: Result<Vec<Read>, Fail> = programs.chain(kernels).map(|(path, of)| read(path, of)).collect();
    Ok(diagnose(&reads?))
}

fn read(path: &Path, of: Of) -> Result<Read, Fail> {
    let file = fs_err::File::open(path).or_usage()?;
    let mut from = std::io::BufReader::with_capacity(64 << 10, file);
    let head = std::io::BufRead::fill_buf(&mut from).or_usage()?;
    form::is_text(path, head)?;
    let source = match of {
        Of::Program(source) => source,
        Of::Kernel => LogSource::Main,
    };
    Ok(Read { path: path.to_path_buf(), of, scan: scan(from, source).or_usage()? })
}

/// What a trainer's log holds that an end is judged by, in bounded memory; nothing where it cannot be read.
pub fn gist(path: &Path, source: LogSource) -> Vec<Log> {
    let Ok(file) = fs_err::File::open(path) else { return Vec::new() };
    scan(std::io::BufReader::with_capacity(64 << 10, file), source).map(|scan| scan.gist).unwrap_or_default()
}

fn diagnose(reads: &[Read]) -> Diagnosis {
    let lines: u64 = reads.iter().map(|read| read.scan.lines).sum();
    let left_out: u64 = reads.iter().map(|read| read.scan.left_out).sum();
    let judged = judge(reads);
    let mut remarks = Vec::new();
    if left_out > 0 {
        remarks.push(format!("{left_out} telling lines in the middle of the log were left out"));
    }
    let advice = judged.as_ref().map(|judged| remedy::advice(judged, reads)).unwrap_or_default();
    let (status, headline) = match &judged {
        Some(judged) => (Status::LogOfADeath, headline(judged, lines, reads.len())),
        None => (Status::LogWithoutADeath, format!("nothing in {lines} lines tells of a death")),
    };
    if judged.is_none() {
        remarks.extend(judge::survived(reads));
        let last = reads.iter().find_map(|read| read.scan.last_lines.back());
        remarks.extend(last.map(|last| format!("the last line is: {}", super::sanitize::clean(&last.text))));
    }
    Diagnosis {
        subject: reads.first().map(|read| read.path.clone()).unwrap_or_default(),
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
        swap: None,
        trainer: None,
        next: None,
        remarks,
    }
}

fn headline(judged: &Judged, lines: u64, files: usize) -> String {
    let finding = &judged.finding;
    let place = match finding.because.iter().find(|ground| ground.line.is_some()) {
        Some(ground) if files == 1 => format!(", line {} of {lines}", ground.line.unwrap_or_default()),
        Some(ground) => {
            let file = ground.file.as_ref().map_or(String::new(), |file| format!("{} ", file.display()));
            format!(", {file}line {}", ground.line.unwrap_or_default())
        }
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
