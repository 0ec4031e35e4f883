//! Words and texts as each format takes them: what goes in comes out again, to the letter.
//!
//! Invariant: no function here fails or drops anything. What a format cannot hold at all is refused before
//! ([`Deployment::check`](crate::Deployment::check)).

/// A YAML scalar, double-quoted. YAML's rules for it are JSON's, and beyond those only printable characters may stand
/// there as they are.
pub fn yaml(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if is_odd(c) => out.push_str(&match u32::from(c) {
                code @ 0..=0xff => format!("\\x{code:02x}"),
                code @ 0..=0xffff => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            }),
            c => out.push(c),
        }
    }
    out + "\""
}

/// Characters that change a line, the direction of a text, or nothing that can be seen.
fn is_odd(c: char) -> bool {
    let code = u32::from(c);
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
        || code & 0xfffe == 0xfffe
}

/// As [`yaml`], for a value of a compose file, which replaces `$NAME` and `${NAME}` and takes `$$` for a dollar.
pub fn compose(text: &str) -> String {
    yaml(&text.replace('$', "$$"))
}

/// As [`yaml`], for a command or argument of a container, where Kubernetes replaces `$(NAME)` and takes `$$` for a dollar.
pub fn kubernetes(text: &str) -> String {
    yaml(&text.replace('$', "$$"))
}

/// A word of a systemd command line: quoted, with C's escapes; `%` begins a specifier there and `$` a variable.
pub fn systemd(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@=".contains(c);
    // A lone `;` would begin a second command.
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_string();
    }
    let mut out = String::from("\"");
    for c in word.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '%' => out.push_str("%%"),
            '$' => out.push_str("$$"),
            // Byte by byte, as systemd reads it.
            c if is_odd(c) => {
                let mut bytes = [0; 4];
                c.encode_utf8(&mut bytes).bytes().for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
            }
            c => out.push(c),
        }
    }
    out + "\""
}

/// A word as a shell takes it.
pub use plimsoll_recover::shell_word as shell;

/// Text for a comment: one line of it.
pub fn comment(text: &str) -> String {
    let seen = |c: char| if is_odd(c) { ' ' } else { c };
    text.chars().map(seen).collect::<String>().trim().to_string()
}
