//! Times of rows: whole numbers, in order. An instant is nanoseconds since 1970 in UTC, so that files of different formats agree.
//!
//! Invariant: an instant that nanoseconds cannot tell (before 1678, after 2262) is no time. It knows no clock and no zones but offsets.

use chrono::{DateTime, NaiveDate, NaiveDateTime, SecondsFormat};
use serde::{Deserialize, Serialize};

use super::spec::TimePoint;

/// What a column of times holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TimeForm {
    /// Whole numbers of the data's own unit.
    Number,
    /// Nanoseconds since 1970.
    Instant,
}

impl TimeForm {
    /// Of times that are instants, or not.
    pub fn of(instants: bool) -> TimeForm {
        if instants { TimeForm::Instant } else { TimeForm::Number }
    }

    pub fn name(self) -> &'static str {
        match self {
            TimeForm::Number => "a plain number",
            TimeForm::Instant => "an instant",
        }
    }

    /// A time as people write it.
    pub fn told(self, time: i64) -> String {
        match self {
            TimeForm::Number => time.to_string(),
            TimeForm::Instant => DateTime::from_timestamp_nanos(time).to_rfc3339_opts(SecondsFormat::AutoSi, true),
        }
    }
}

/// The time that a text is.
pub(crate) fn parse(text: &str) -> Option<(TimeForm, i64)> {
    if let Ok(number) = text.parse() {
        return Some((TimeForm::Number, number));
    }
    instant(text).map(|nanoseconds| (TimeForm::Instant, nanoseconds))
}

fn instant(text: &str) -> Option<i64> {
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return time.timestamp_nanos_opt();
    }
    if let Ok(time) = DateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S%.f%:z") {
        return time.timestamp_nanos_opt();
    }
    for form in ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"] {
        if let Ok(time) = NaiveDateTime::parse_from_str(text, form) {
            return time.and_utc().timestamp_nanos_opt();
        }
    }
    let day = NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()?;
    day.and_hms_opt(0, 0, 0)?.and_utc().timestamp_nanos_opt()
}

impl TimePoint {
    /// As columns have it; none where the text is no time.
    pub(crate) fn as_time(&self) -> Option<(TimeForm, i64)> {
        match self {
            TimePoint::Number(number) => Some((TimeForm::Number, *number)),
            TimePoint::Text(text) => parse(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_numbers_or_instants_in_utc() {
        assert_eq!(parse("-7"), Some((TimeForm::Number, -7)));
        let noon = Some((TimeForm::Instant, 1_769_860_800_000_000_000));
        for text in [
            "2026-01-31T12:00:00Z",
            "2026-01-31 12:00:00",
            "2026-01-31T13:00:00+01:00",
            "2026-01-31 11:30:00-00:30",
            "2026-01-31 12:00",
        ] {
            assert_eq!(parse(text), noon, "{text}");
        }
        assert_eq!(parse("1970-01-02"), Some((TimeForm::Instant, 86_400_000_000_000)));
        assert_eq!(parse("1970-01-01 00:00:00.000000001"), Some((TimeForm::Instant, 1)));
        for text in ["", "1.5", "2026-13-01", "noon", "9999-01-01", "2026-01-31T"] {
            assert_eq!(parse(text), None, "{text}");
        }
        for text in ["-7", "2026-01-31T12:00:00Z", "1970-01-01T00:00:00.000000001Z", "1969-12-31T23:59:59.500Z"] {
            let (form, time) = parse(text).unwrap();
            assert_eq!(form.told(time), text);
        }
    }
}
