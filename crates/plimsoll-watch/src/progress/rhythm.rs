//! When progress is shown, and how much time is left. Pure.

use std::time::Duration;

/// How often is often enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rhythm {
    /// A line that is redrawn: ten times a second.
    Live,
    /// Lines that stay: every 10 s, and at every tenth of the run.
    Lines,
}

/// A step and when it was done, since the start of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Which step.
    pub step: u64,
    /// When.
    pub at: Duration,
}

/// Whether to show `now`, when `last` was shown before. The first and the last step always are.
pub fn due(now: Shown, last: Option<Shown>, total: u64, rhythm: Rhythm) -> bool {
    let Some(last) = last else {
        return true;
    };
    let waited = now.at.saturating_sub(last.at);
    let tenth = |step: u64| u128::from(step) * 10 / u128::from(total.max(1));
    let time = match rhythm {
        Rhythm::Live => waited >= Duration::from_millis(100),
        Rhythm::Lines => waited >= Duration::from_secs(10) || tenth(now.step) > tenth(last.step),
    };
    time || (now.step >= total && now.step != last.step)
}

/// The time left at the mean pace since `first`, evaluations and saves included; unknown at the first step.
pub(super) fn remaining(first: Option<Shown>, now: Shown, total: u64) -> Option<Duration> {
    let first = first?;
    let done = now.step.checked_sub(first.step).filter(|&done| done > 0)?;
    let pace = now.at.saturating_sub(first.at).as_secs_f64() / done as f64;
    Duration::try_from_secs_f64(pace * total.saturating_sub(now.step) as f64).ok()
}
