//! The date that a template may write, given by the caller.

use minijinja::{Error, ErrorKind};

/// A day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    /// The year.
    pub year: u32,
    /// From 1.
    pub month: u32,
    /// From 1.
    pub day: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl Date {
    /// By the signs of `strftime` that templates use; the time is midnight.
    pub(crate) fn format(&self, format: &str) -> Result<String, Error> {
        let Date { year, month, day } = *self;
        let month_name = MONTHS[(month.clamp(1, 12) - 1) as usize];
        let day_name = DAYS[self.weekday()];
        let mut out = String::new();
        let mut signs = format.chars();
        while let Some(c) = signs.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            match signs.next() {
                Some('Y') => out += &year.to_string(),
                Some('y') => out += &format!("{:02}", year % 100),
                Some('m') => out += &format!("{month:02}"),
                Some('d') => out += &format!("{day:02}"),
                Some('e') => out += &format!("{day:2}"),
                Some('B') => out += month_name,
                Some('b' | 'h') => out += &month_name[..3],
                Some('A') => out += day_name,
                Some('a') => out += &day_name[..3],
                Some('H' | 'M' | 'S') => out += "00",
                Some('I') => out += "12",
                Some('p') => out += "AM",
                Some('%') => out.push('%'),
                other => {
                    let sign = other.map_or("%".into(), |c| format!("%{c}"));
                    return Err(Error::new(ErrorKind::InvalidOperation, format!("`{sign}` of strftime is not known")));
                }
            }
        }
        Ok(out)
    }

    /// From Sunday, by Sakamoto's rule.
    fn weekday(&self) -> usize {
        let shift = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4][(self.month.clamp(1, 12) - 1) as usize];
        let year = if self.month < 3 { self.year.saturating_sub(1) } else { self.year };
        ((year + year / 4 - year / 100 + year / 400 + shift + self.day) % 7) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_python_does() {
        let date = Date { year: 2024, month: 2, day: 9 };
        assert_eq!(
            date.format("%A, %d %B %Y (%a %b %y) %H:%M 100%%").unwrap(),
            "Friday, 09 February 2024 (Fri Feb 24) 00:00 100%"
        );
        assert!(date.format("%Q").is_err());
        assert_eq!(Date { year: 2026, month: 11, day: 15 }.format("%A").unwrap(), "Sunday");
    }
}
