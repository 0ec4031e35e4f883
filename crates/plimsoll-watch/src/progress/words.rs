//! The words of the status: `loss 1.234  8.1k tok/s  RAM 212 of 240 MiB  ETA 1:23`.

use std::fmt::Write;
use std::time::Duration;

use plimsoll_machine::Bytes;

use super::StepView;

pub(super) fn write_status(text: &mut String, view: &StepView, left: Option<Duration>) {
    // Writing into a `String` cannot fail.
    let _ = write_all(text, view, left);
}

fn write_all(text: &mut String, view: &StepView, left: Option<Duration>) -> std::fmt::Result {
    let loss = view.loss;
    if loss != 0.0 && loss.abs() < 0.001 {
        write!(text, "loss {loss:.1e}")?
    } else {
        write!(text, "loss {loss:.3}")?
    }
    text.push_str("  ");
    write_rate(text, view.tokens_per_second, view.unit)?;
    text.push_str("  RAM ");
    write_share(text, view.ram_used, view.ram_planned)?;
    if let Some(left) = left {
        text.push_str("  ETA ");
        write_clock(text, left)?;
    }
    Ok(())
}

fn write_rate(text: &mut String, rate: f64, unit: &str) -> std::fmt::Result {
    match rate {
        rate if rate < 999.5 => write!(text, "{rate:.0} {unit}/s"),
        rate if rate < 99_950.0 => write!(text, "{:.1}k {unit}/s", rate / 1e3),
        rate if rate < 999_500.0 => write!(text, "{:.0}k {unit}/s", rate / 1e3),
        rate => write!(text, "{:.1}M {unit}/s", rate / 1e6),
    }
}

/// Both numbers in the planned one's unit, so that they can be compared at a glance.
fn write_share(text: &mut String, used: Bytes, planned: Bytes) -> std::fmt::Result {
    match planned {
        Bytes::ZERO => write!(text, "{used}"),
        planned if planned >= Bytes::gib(1) => {
            write!(text, "{:.2} of {:.2} GiB", used.as_mib() / 1024.0, planned.as_mib() / 1024.0)
        }
        planned => write!(text, "{:.0} of {:.0} MiB", used.as_mib(), planned.as_mib()),
    }
}

fn write_clock(text: &mut String, time: Duration) -> std::fmt::Result {
    let seconds = (time.as_secs_f64()).round() as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { write!(text, "{hours}:{minutes:02}:{seconds:02}") } else { write!(text, "{minutes}:{seconds:02}") }
}
