//! Text of the far side's, as a terminal may be shown it: it moves no cursor and changes no colour.

/// With its line ends.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// In one line.
pub(crate) fn harmless_line(text: &str) -> String {
    harmless(text).replace('\n', " ")
}
