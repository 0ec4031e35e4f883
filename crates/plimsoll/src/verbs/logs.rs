//! `plimsoll logs`: what a run's trainer wrote, by start and by rank.

use std::io::{BufRead, BufReader, Write};

use plimsoll_launch::telling::plain;

use crate::args::LogsArgs;
use crate::launch::log_files;
use crate::render::{Exit, Fail, OrFail};

/// Prints or searches the logs.
pub fn run(args: &LogsArgs) -> Result<(), Fail> {
    let all = log_files(&args.run);
    let last = all.last().map(|file| file.attempt);
    let Some(last) = last else {
        return Err(Fail::usage(format!("`{}` has no logs of a trainer", args.run.display()))
            .hint("only runs of `plimsoll run` have them"));
    };
    let start = match (args.start, &args.grep) {
        (Some(start), _) => Some(start),
        (None, Some(_)) => None,
        (None, None) => Some(last),
    };
    let wanted = all.iter().filter(|file| start.is_none_or(|start| file.attempt == start));
    let wanted: Vec<_> = match args.rank {
        Some(rank) => wanted.filter(|file| file.rank == Some(rank)).collect(),
        // What the launcher prints holds what the ranks wrote, too.
        None => wanted.filter(|file| file.rank.is_none() || args.grep.is_some()).collect(),
    };
    if wanted.is_empty() {
        let rank = args.rank.map_or(String::new(), |rank| format!(" of rank {rank}"));
        let start = start.map_or(String::new(), |start| format!(" of start {start}"));
        let fail = Fail::usage(format!("`{}` has no log{rank}{start}", args.run.display()));
        return Err(
            fail.hint(format!("it has starts 1 to {last}; launchers that write no log a rank have one for all"))
        );
    }
    let pattern = args.grep.as_deref().map(regex::Regex::new).transpose().or_usage()?;
    let mut stdout = std::io::stdout().lock();
    let mut any = false;
    for file in wanted {
        let mut from = BufReader::new(fs_err::File::open(&file.path).or_usage()?);
        let name = file.path.strip_prefix(&args.run).unwrap_or(&file.path).display().to_string();
        let mut bytes = Vec::new();
        for number in 1u64.. {
            bytes.clear();
            if from.read_until(b'\n', &mut bytes).or_failed()? == 0 {
                break;
            }
            let written = match &pattern {
                None => stdout.write_all(&bytes),
                Some(pattern) => {
                    // A bar that was drawn many times is many lines in one.
                    let found = bytes.split(|byte| *byte == b'\r').map(plain).rfind(|line| pattern.is_match(line));
                    any |= found.is_some();
                    found.map_or(Ok(()), |line| writeln!(stdout, "{name}:{number}: {line}"))
                }
            };
            if written.is_err() {
                return Ok(()); // a reader that has seen enough
            }
        }
    }
    if pattern.is_some() && !any { Err(Fail::silent(Exit::Failed)) } else { Ok(()) }
}
