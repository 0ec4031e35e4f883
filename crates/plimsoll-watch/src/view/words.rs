//! Numbers as people read them: losses, rates, times.

/// A loss: three places, or its magnitude where they would say nothing.
pub(crate) fn loss_text(loss: f64) -> String {
    if loss != 0.0 && loss.abs() < 0.001 { format!("{loss:.1e}") } else { format!("{loss:.3}") }
}

/// A rate of tokens.
pub(crate) fn rate_text(rate: f64) -> String {
    match rate {
        rate if rate < 999.5 => format!("{rate:.0} tok/s"),
        rate if rate < 99_950.0 => format!("{:.1}k tok/s", rate / 1e3),
        rate if rate < 999_500.0 => format!("{:.0}k tok/s", rate / 1e3),
        rate => format!("{:.1}M tok/s", rate / 1e6),
    }
}

/// A short time: `0.4 s`, `12 s`, then as a clock.
pub(crate) fn span(seconds: f64) -> String {
    match seconds {
        short if short < 9.95 => format!("{short:.1} s"),
        more if more < 99.5 => format!("{more:.0} s"),
        long => clock(long),
    }
}

/// A time as `1:02:03`, with days before it from one day on.
pub(crate) fn clock(seconds: f64) -> String {
    let seconds = seconds.round().max(0.0) as u64;
    let (days, hours, minutes, rest) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes}:{rest:02}"),
        (0, _) => format!("{hours}:{minutes:02}:{rest:02}"),
        _ => format!("{days} d {hours}:{minutes:02}:{rest:02}"),
    }
}

/// How long ago, in one unit.
pub(crate) fn ago(seconds: f64) -> String {
    match seconds {
        now if now < 60.0 => format!("{now:.0} s ago"),
        minutes if minutes < 3600.0 => format!("{:.0} min ago", (minutes / 60.0).floor()),
        hours if hours < 2.0 * 86_400.0 => format!("{:.0} h ago", (hours / 3600.0).floor()),
        days => format!("{:.0} d ago", (days / 86_400.0).floor()),
    }
}

/// A moment: how long ago, or its date (UTC) from a day on.
pub(crate) fn when(unix_ms: u64, now_unix_ms: u64) -> String {
    let age = now_unix_ms.saturating_sub(unix_ms) as f64 / 1e3;
    if age < 86_400.0 { ago(age) } else { date(unix_ms / 1000) }
}

/// `11-14 22:13Z`
fn date(unix: u64) -> String {
    let (mut day, minute) = (unix / 86_400, unix % 86_400 / 60);
    // The calendar repeats itself after 400 years.
    day %= 146_097;
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    format!("{:02}-{:02} {:02}:{:02}Z", month + 1, day + 1, minute / 60, minute % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_told_by_its_age_and_later_by_its_date() {
        let now = 1_709_251_200_000; // 2024-03-01 00:00Z, by `date -u`
        assert_eq!(when(now - 90_000, now), "1 min ago");
        assert_eq!(when(now - 86_400_000, now), "02-29 00:00Z");
        assert_eq!(
            [date(0), date(1_700_000_000), date(1_798_761_599)],
            ["01-01 00:00Z", "11-14 22:13Z", "12-31 23:59Z"]
        );
    }

    #[test]
    fn times_rates_and_losses_are_read_at_a_glance() {
        let told = [0.04, 9.96, 99.6, 3723.4, 93_784.0].map(span);
        assert_eq!(told, ["0.0 s", "10 s", "1:40", "1:02:03", "1 d 2:03:04"]);
        assert_eq!([5.0, 119.0, 7300.0, 260_000.0].map(ago), ["5 s ago", "1 min ago", "2 h ago", "3 d ago"]);
        assert_eq!(
            [999.0, 8123.0, 123_456.0, 2e6].map(rate_text),
            ["999 tok/s", "8.1k tok/s", "123k tok/s", "2.0M tok/s"]
        );
        assert_eq!([1.2344, 0.00012, f64::NAN].map(loss_text), ["1.234", "1.2e-4", "NaN"]);
    }
}
