//! Lines of logs, made safe for a terminal: no control characters, no escape sequences, no end of the screen.

/// Most characters of one line of evidence.
const WIDEST: usize = 600;

/// `text` without what a terminal would obey, on one line, cut where it is very long.
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(WIDEST));
    let mut left = WIDEST;
    let mut chars = text.trim().chars().peekable();
    while let Some(c) = chars.next() {
        if left == 0 {
            out.push_str(" ...");
            break;
        }
        match c {
            // A colour or a cursor movement: `ESC [`, numbers, one letter.
            '\x1b' if chars.peek() == Some(&'[') => {
                chars.next();
                while chars.next_if(|c| c.is_ascii_digit() || ";?:<=>".contains(*c)).is_some() {}
                chars.next();
                continue;
            }
            '\t' | '\n' | '\r' => out.push(' '),
            // Controls, and marks that change the direction of writing.
            c if c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => continue,
            c => out.push(c),
        }
        left -= 1;
    }
    out
}

/// A path as one word of a shell.
pub fn shell_word(path: &std::path::Path) -> String {
    let text = path.display().to_string();
    // Behind a dot it is no flag.
    let text = if text.starts_with('-') { format!("./{text}") } else { text };
    plimsoll_recover::shell_word(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_that_a_log_says() {
        assert_eq!(clean("\x1b[31mred\x1b[0m \x1b[2Jgone\x07\ttab\r\n"), "red gone tab");
        assert_eq!(clean("\x1b]0;title\x07x"), "]0;titlex");
        assert_eq!(clean("a\u{202e}b"), "ab");
        assert!(clean(&"x".repeat(9000)).len() < 700);
    }

    #[test]
    fn a_path_is_one_word() {
        assert_eq!(shell_word("runs/chat-1".as_ref()), "runs/chat-1");
        assert_eq!(shell_word("my runs/it's".as_ref()), r"'my runs/it'\''s'");
        assert_eq!(shell_word("-x".as_ref()), "./-x");
    }
}
