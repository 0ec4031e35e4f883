//! `plimsoll remote logs`, `watch`, `stop` and `status`: a run that is elsewhere.

use std::cell::Cell;
use std::time::Duration;

use plimsoll_remote::keep::log_path;
use plimsoll_remote::wire::{Answer, Ask, Ending, RunSeen};
use plimsoll_remote::{FarPath, Link, RemoteError};
use serde_json::json;

use super::{Remote, ended, failed, show, strange, tunnel};
use crate::args::{FarJobArgs, FarLogsArgs, FarWatchArgs};
use crate::render::{self, Exit, Fail};

/// The signal that asks for a stop.
const TERM: i32 = 15;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(300);
/// Looks at a log from one at its run to the next.
const LOOKS: u64 = 4;

/// A log that is read as it grows; where it was read to outlives a connection.
pub struct Log {
    path: FarPath,
    from: Option<u64>,
}

impl Log {
    /// Of a run, from a byte on; `None`: of its end.
    pub fn of(run: &str, from: Option<u64>) -> Result<Log, Fail> {
        Ok(Log { path: log_path(run).map_err(failed)?, from })
    }

    /// Hands on all that is there; whether anything was.
    pub fn catch_up(&mut self, link: &Link, said: &mut dyn FnMut(&[u8])) -> Result<bool, RemoteError> {
        let mut any = false;
        loop {
            match link.ask(&Ask::Tail { path: self.path.clone(), from: self.from })? {
                (Answer::Text { from }, bytes) => {
                    // Whatever the far side says.
                    self.from = Some(from.saturating_add(bytes.len() as u64));
                    if bytes.is_empty() {
                        return Ok(any);
                    }
                    said(&bytes);
                    any = true;
                }
                (other, _) => return Err(strange(link, &other)),
            }
        }
    }
}

/// Shows what a run says.
pub fn logs(args: &FarLogsArgs) -> Result<(), Fail> {
    let remote = Remote::named(&args.of.name)?;
    let seen = remote.run(args.of.run.as_deref())?;
    let (name, run) = (&remote.name, &seen.run);
    if seen.by_hand || seen.began_unix_ms == 0 {
        let fact = format!("`{run}` was not last started from afar, and what it says since then is not in its log");
        render::talk(format!("{fact}; plimsoll remote watch {name} {run}"));
    }
    let (mut log, looks) = (Log::of(run, args.all.then_some(0))?, Cell::new(0u64));
    remote.with(
        |link| {
            loop {
                // What is said before the end is there once the end is seen.
                let asked = args.follow && looks.get() % LOOKS == 0;
                let over = !args.follow || (asked && !one(link, run)?.is_worked_on());
                let mut heard = true;
                log.catch_up(link, &mut |bytes| heard &= show(false, bytes))?;
                looks.set(looks.get() + 1);
                if over || !heard {
                    return Ok(());
                }
                std::thread::sleep(PAUSE);
            }
        },
        || looks.get(),
    )
}

/// One run.
pub fn one(link: &Link, run: &str) -> Result<RunSeen, RemoteError> {
    match link.ask(&Ask::Run { run: run.to_string() })?.0 {
        Answer::Runs { runs } if runs.len() == 1 => Ok(runs[0].clone()),
        other => Err(strange(link, &other)),
    }
}

/// Shows a run as `plimsoll watch` does.
pub fn watch(args: &FarWatchArgs) -> Result<(), Fail> {
    let remote = Remote::named(&args.of.name)?;
    let run = remote.run(args.of.run.as_deref())?.run;
    let folder = format!("runs/{run}");
    if args.web {
        return tunnel::web(&remote, &folder, args.port);
    }
    if args.once || !std::io::IsTerminal::is_terminal(&std::io::stdout()) {
        return remote.exec(&["watch".to_string(), folder, "--once".to_string()]);
    }
    tunnel::terminal(&remote, &folder)
}

/// Asks a run to stop, and sees it do so.
pub fn stop(args: &FarJobArgs) -> Result<(), Fail> {
    let remote = Remote::named(&args.name)?;
    let seen = remote.run(args.run.as_deref())?;
    if seen.by_hand {
        let fact = format!("`{}` works there, but was not started from afar", seen.run);
        return Err(Fail::new(Exit::Failed, anyhow::anyhow!(fact)).hint("stop it where it was started"));
    }
    if !seen.alive {
        render::talk(format!("nobody works on `{}`: {}", seen.run, seen.status));
        return Ok(());
    }
    let mut log = Log::of(&seen.run, None)?;
    let (mut heard, mut asked, looks) = (false, false, Cell::new(0));
    let seen = remote.with(
        |link| {
            if !heard {
                log.catch_up(link, &mut |_| {})?;
                heard = true;
            }
            if !asked {
                link.have_done(&Ask::Stop { run: seen.run.clone() })?;
                asked = true;
            }
            loop {
                let now = one(link, &seen.run)?;
                looks.set(looks.get() + 1);
                log.catch_up(link, &mut |bytes| _ = show(true, bytes))?;
                if !now.alive {
                    return Ok(now);
                }
                std::thread::sleep(PAUSE);
            }
        },
        || looks.get(),
    )?;
    let (name, run) = (&remote.name, &seen.run);
    match seen.ending {
        Some(Ending::Code(code)) if Exit::of(code) == Exit::Stopped => {
            render::talk(format!("`{run}` is stopped at step {}; plimsoll remote resume {name} {run}", seen.step));
        }
        Some(Ending::Code(0)) => render::talk(format!("`{run}` is done; plimsoll remote pull {name} {run}")),
        // What takes over the signal had not begun yet.
        Some(Ending::Signal(TERM)) => render::talk(format!("`{run}` is stopped, and had not begun")),
        Some(ending) => return ended(ending),
        None => render::talk(format!("nobody works on `{run}`: {}", seen.status)),
    }
    Ok(())
}

/// Lists the runs of a remote.
pub fn status(name: &str, json: bool) -> Result<(), Fail> {
    let remote = Remote::named(name)?;
    let runs = remote.runs()?;
    if json {
        return render::json(&json!({ "remote": name, "runs": runs }));
    }
    if runs.is_empty() {
        render::talk(format!("`{name}` has no run"));
        return Ok(());
    }
    render::data(runs.iter().map(line).collect::<Vec<_>>().join("\n"))
}

/// A run in one line.
fn line(run: &RunSeen) -> String {
    let steps = match run.total_steps {
        0 if run.step == 0 => String::new(),
        0 => format!("  step {}", run.step),
        total => format!("  step {}/{total}", run.step),
    };
    let loss = run.loss.map_or(String::new(), |loss| format!("  loss {loss:.4}"));
    let left =
        run.eta_seconds.filter(|_| run.is_worked_on()).map_or(String::new(), |left| format!("  {left:.0} s left"));
    let exit = match run.ending.filter(|_| !run.by_hand) {
        Some(Ending::Code(code)) if code != 0 => format!("  exit {code}"),
        Some(Ending::Signal(signal)) => format!("  signal {signal}"),
        _ => String::new(),
    };
    let there = run.host.as_ref().map_or(String::new(), |host| format!("  on {host}"));
    let by_hand = if run.by_hand { "  by hand" } else { "" };
    let why = run.why.as_ref().map_or(String::new(), |why| format!("  {why}"));
    format!("{}  {}{there}{by_hand}{steps}{loss}{left}{exit}{why}", run.run, run.status)
}

#[cfg(test)]
mod tests {
    use std::io::{Write, pipe};

    use plimsoll_remote::Patience;
    use plimsoll_remote::wire::{GREETING, read_message, write_message};

    use super::*;

    #[test]
    fn a_place_in_a_log_that_cannot_be_is_no_reason_to_fall() {
        let ((mut far_in, near_out), (near_in, mut far_out)) = (pipe().unwrap(), pipe().unwrap());
        std::thread::spawn(move || {
            far_out.write_all(GREETING).unwrap();
            let hello = Answer::Hello { version: "0".to_string(), dir: "/far".to_string() };
            write_message(&mut far_out, &hello, &[]).unwrap();
            for body in [&b"last words"[..], &[]] {
                read_message::<Ask>(&mut far_in).unwrap().unwrap();
                write_message(&mut far_out, &Answer::Text { from: u64::MAX - 3 }, body).unwrap();
            }
        });
        let link = Link::over_pipes("here", near_in, near_out, Patience::default()).unwrap();
        let (mut log, mut heard) = (Log::of("a-1", None).unwrap(), Vec::new());
        assert!(log.catch_up(&link, &mut |bytes| heard.extend_from_slice(bytes)).unwrap());
        assert_eq!(heard, b"last words");
    }
}
