//! What the viewer pressed, and what follows from it. Pure.
//!
//! Keys are read from bytes here and not by the terminal library: its reader spins for ever on a terminal that is gone,
//! and then no signal ends the program.

/// Every key, for the viewer.
pub(super) const KEYS: [(&str, &str); 5] = [
    ("q, Esc, Ctrl-C", "leave; the run goes on"),
    ("Up, Down", "events, a line"),
    ("PgUp, PgDn", "events, a page"),
    ("Home, End", "the oldest, the latest"),
    ("?", "this"),
];

/// A key that means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Leave,
    Escape,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Help,
}

/// What a key leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Stay,
    Leave,
}

/// What the viewer has chosen to see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mood {
    /// Lines that the events are scrolled back.
    pub back: usize,
    /// Lines of events on the screen, as they were last drawn.
    pub page: usize,
    /// The keys are shown.
    pub keys_shown: bool,
}

impl Mood {
    /// Takes a key.
    pub fn press(&mut self, key: Key) -> Step {
        let page = self.page.max(1);
        match key {
            Key::Leave => return Step::Leave,
            Key::Escape if !self.keys_shown => return Step::Leave,
            Key::Escape => self.keys_shown = false,
            Key::Help => self.keys_shown = !self.keys_shown,
            Key::Up => self.back += 1,
            Key::Down => self.back = self.back.saturating_sub(1),
            Key::PageUp => self.back += page,
            Key::PageDown => self.back = self.back.saturating_sub(page),
            // Drawing brings it back to what there is.
            Key::Home => self.back = usize::MAX / 2,
            Key::End => self.back = 0,
        }
        Step::Stay
    }
}

/// Whether the bytes end inside a sequence, or with an escape that may begin one.
pub(super) fn is_cut(bytes: &[u8]) -> bool {
    let Some(start) = bytes.iter().rposition(|&byte| byte == 0x1b) else { return false };
    match &bytes[start + 1..] {
        [] | [b'O'] => true,
        [b'[', rest @ ..] => !rest.iter().any(|byte| (0x40..=0x7e).contains(byte)),
        _ => false,
    }
}

/// The keys that a terminal sends as these bytes. What means nothing is passed over, whole sequences too.
pub(super) fn keys(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let [first, rest @ ..] = bytes {
        let (key, length) = match (first, rest) {
            (0x1b, [b'[', rest @ ..]) => {
                let length = rest.iter().position(|byte| (0x40..=0x7e).contains(byte)).map_or(rest.len(), |at| at + 1);
                (sequence(&rest[..length]), 2 + length)
            }
            (0x1b, [b'O', letter, ..]) => (sequence(&[*letter]), 3),
            (0x1b, [0x1b, ..] | []) => (Some(Key::Escape), 1),
            // Alt and a letter.
            (0x1b, [_, ..]) => (None, 2),
            (b'q' | b'Q' | 0x03, _) => (Some(Key::Leave), 1),
            (b'?', _) => (Some(Key::Help), 1),
            _ => (None, 1),
        };
        keys.extend(key);
        bytes = &bytes[length..];
    }
    keys
}

fn sequence(tail: &[u8]) -> Option<Key> {
    match tail {
        b"A" => Some(Key::Up),
        b"B" => Some(Key::Down),
        b"5~" => Some(Key::PageUp),
        b"6~" => Some(Key::PageDown),
        b"H" | b"1~" | b"7~" => Some(Key::Home),
        b"F" | b"4~" | b"8~" => Some(Key::End),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_alone_and_in_a_row_and_foreign_sequences_mean_nothing() {
        assert_eq!(keys(b"x\x1b[A\x1bOB\x1b[5~\x1b[6~?"), [Key::Up, Key::Down, Key::PageUp, Key::PageDown, Key::Help]);
        assert_eq!(keys(b"\x1b[H\x1b[4~"), [Key::Home, Key::End]);
        assert_eq!(keys(b"\x1b[1;5C\x1b[200~\x1bx\x1b[<0;3;4M"), []);
        assert_eq!((keys(b"\x03"), keys(b"q"), keys(b"\x1b")), (vec![Key::Leave], vec![Key::Leave], vec![Key::Escape]));
        assert_eq!(keys(b"\x1b["), [], "a cut sequence is no escape");
    }

    #[test]
    fn a_cut_sequence_is_known_as_one() {
        assert!([&b"\x1b"[..], b"x\x1b[", b"\x1b[5", b"\x1bO"].into_iter().all(is_cut));
        assert!(![&b"q"[..], b"\x1b[A", b"\x1b[5~", b"\x1bx", b""].into_iter().any(is_cut));
    }

    #[test]
    fn escape_closes_the_keys_before_it_leaves() {
        let mut mood = Mood::default();
        assert_eq!((mood.press(Key::Help), mood.keys_shown), (Step::Stay, true));
        assert_eq!((mood.press(Key::Escape), mood.keys_shown), (Step::Stay, false));
        assert_eq!(mood.press(Key::Escape), Step::Leave);
    }
}
