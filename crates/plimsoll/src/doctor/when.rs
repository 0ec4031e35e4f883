//! Times for people: a date from milliseconds since 1970 (UTC), and how long something took.

use std::fmt;

/// A moment, printed as `2026-11-15 03:12:44`, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When(pub u64);

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1000;
        let (days, rest) = (seconds / 86_400, seconds % 86_400);
        let (year, month, day) = date(days);
        let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
    }
}

/// Year, month and day of a number of days since 1970-01-01. Years are counted from March, so that the leap day is the
/// last of a year and the months before it have lengths that repeat every five.
fn date(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097;
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / ERA, shifted % ERA);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / (ERA - 1)) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

/// A duration, printed with two units at most: `0.25 s`, `41 s`, `3 min 12 s`, `2 h 5 min`, `4 d 6 h`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span(pub f64);

impl Span {
    /// Between two moments; nothing where a clock went back.
    pub fn between(from_ms: u64, to_ms: u64) -> Span {
        Span(to_ms.saturating_sub(from_ms) as f64 / 1000.0)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !(0.0..1e12).contains(&self.0) {
            return f.write_str("an unknown time");
        }
        if self.0 < 10.0 {
            return write!(f, "{:.2} s", self.0);
        }
        let seconds = self.0.round() as u64;
        match seconds {
            0..60 => write!(f, "{seconds} s"),
            60..3600 => write!(f, "{} min {} s", seconds / 60, seconds % 60),
            3600..86_400 => write!(f, "{} h {} min", seconds / 3600, seconds / 60 % 60),
            _ => write!(f, "{} d {} h", seconds / 86_400, seconds / 3600 % 24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_date_u() {
        // `date -u -d @N '+%F %T'`
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_709_251_199, "2024-02-29 23:59:59"),
            (1_709_251_200, "2024-03-01 00:00:00"),
            (1_794_712_364, "2026-11-15 03:12:44"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(When(seconds * 1000).to_string(), text);
        }
        // Any number is some date.
        let _ = When(u64::MAX).to_string();
    }

    #[test]
    fn spans_have_two_units_at_most_and_nonsense_is_not_printed_as_a_number() {
        for (seconds, text) in [
            (0.25, "0.25 s"),
            (41.4, "41 s"),
            (192.0, "3 min 12 s"),
            (7500.0, "2 h 5 min"),
            (367_200.0, "4 d 6 h"),
            (f64::NAN, "an unknown time"),
            (-1.0, "an unknown time"),
        ] {
            assert_eq!(Span(seconds).to_string(), text);
        }
    }
}
