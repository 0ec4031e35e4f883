//! A word as a shell takes it.

/// `word` so that a shell reads it as one word, and runs none of it.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%=".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_one_word_and_runs_none_of_it() {
        for word in
            ["", "plain/a.b-c+d,e:f@g%h=i", "a b", "it's \"5 o'clock\"; $(rm -r x) `y` $HOME \\ !! *", "#", "~", "a\nb"]
        {
            let script = format!("printf %s {}", shell_word(word));
            let said = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), word);
        }
        assert_eq!(shell_word("plain/a.b-c+d,e:f@g%h=i"), "plain/a.b-c+d,e:f@g%h=i");
    }
}
