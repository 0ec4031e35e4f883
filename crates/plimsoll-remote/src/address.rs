//! Where another machine is: `ssh://user@host:port/dir`.
//!
//! Invariant: an address holds no secret, and nothing in it can be taken for an option by `ssh` or for more than one word
//! by a shell.

use std::fmt;
use std::str::FromStr;

use plimsoll_recover::shell_word;
use url::{Host, Url};

use crate::RemoteError;

/// A folder on another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    user: Option<String>,
    host: String,
    port: Option<u16>,
    /// Absolute, or below the user's home where it begins with `~/`.
    dir: String,
}

impl Address {
    /// The account; `None`: as ssh's configuration says.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The host, or its name in ssh's configuration.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; `None`: as ssh's configuration says.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// The folder as a word of a shell.
    pub fn dir_word(&self) -> String {
        match self.dir.strip_prefix("~/") {
            Some(rest) => format!("\"$HOME\"/{}", shell_word(rest)),
            None => shell_word(&self.dir),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ssh://")?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        match self.host.contains(':') {
            true => write!(f, "[{}]", self.host)?,
            false => f.write_str(&self.host)?,
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        write!(f, "{}{}", if self.dir.starts_with('~') { "/" } else { "" }, escaped(&self.dir))
    }
}

impl FromStr for Address {
    type Err = RemoteError;

    fn from_str(text: &str) -> Result<Address, RemoteError> {
        // A refusal must not repeat what may be a secret.
        let wrong = |why: &str| RemoteError::Address { text: without_secret(text), why: why.to_string() };
        let url = Url::parse(text).map_err(|error| wrong(&error.to_string()))?;
        if url.scheme() != "ssh" {
            return Err(wrong("expected ssh://user@host[:port]/dir"));
        }
        if url.password().is_some() {
            return Err(wrong("holds a password; passwords are never stored, use a key or an agent"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(wrong("has something behind `?` or `#`"));
        }
        let host = match url.host() {
            Some(Host::Domain(host)) => host.to_string(),
            Some(Host::Ipv4(host)) => host.to_string(),
            Some(Host::Ipv6(host)) => host.to_string(),
            None => return Err(wrong("names no host")),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
        if host.is_empty() || host.starts_with('-') || !host.chars().all(plain) {
            return Err(wrong("has a host that ssh would not take"));
        }
        let user = Some(url.username()).filter(|user| !user.is_empty()).map(str::to_string);
        if user.iter().any(|user| user.starts_with('-') || !user.chars().all(|c| plain(c) && c != ':')) {
            return Err(wrong("has a user that ssh would not take"));
        }
        let path = unescaped(url.path()).ok_or_else(|| wrong("has a folder that is not UTF-8"))?;
        let dir = path.trim_end_matches('/');
        let dir = if dir.starts_with("/~/") { &dir[1..] } else { dir };
        if dir.is_empty() || dir == "/~" {
            return Err(wrong("names no folder; expected ssh://host/dir, or ssh://host/~/dir below your home"));
        }
        if dir.chars().any(char::is_control) {
            return Err(wrong("has a control character in its folder"));
        }
        Ok(Address { user, host, port: url.port(), dir: dir.to_string() })
    }
}

/// The text with what stands between the first `:` of a user and the last `@` left out: a secret may hold any character, and
/// who mistypes an address may forget its scheme.
fn without_secret(text: &str) -> String {
    let (scheme, rest) = text.split_at(text.find("://").map_or(0, |at| at + 3));
    match rest.rsplit_once('@').and_then(|(user, host)| Some((user.split_once(':')?.0, host))) {
        Some((user, host)) => format!("{scheme}{user}:...@{host}"),
        None => text.to_string(),
    }
}

/// A folder as an address has it: whatever would mean something else there as `%20` and the like.
fn escaped(dir: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~+,:@=".contains(&byte);
    dir.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// `%20` and the like as the characters that they stand for.
fn unescaped(path: &str) -> Option<String> {
    let bytes = path.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let digits = || path.get(at + 1..at + 3).filter(|two| two.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let hex = || u8::from_str_radix(digits()?, 16).ok();
        match (bytes[at], hex()) {
            (b'%', Some(byte)) => (out.push(byte), at += 3).0,
            (byte, _) => (out.push(byte), at += 1).0,
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_address_is_taken_apart_and_written_back() {
        for text in ["ssh://root@gpu.example:2222/srv/plimsoll", "ssh://box/~/runs", "ssh://me@[::1]:22/a%20b"] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string().parse::<Address>().unwrap(), address, "{text}");
        }
        let address: Address = "ssh://root@gpu.example:2222/srv/plimsoll/".parse().unwrap();
        assert_eq!((address.user(), address.host(), address.port()), (Some("root"), "gpu.example", Some(2222)));
        assert_eq!(address.dir_word(), "/srv/plimsoll");
        let home: Address = "ssh://box/~/my%20runs".parse().unwrap();
        assert_eq!(home.dir_word(), "\"$HOME\"/'my runs'");
    }

    #[test]
    fn a_password_is_refused_and_not_repeated() {
        let error = "ssh://me:geheim@host/dir".parse::<Address>().unwrap_err().to_string();
        assert!(error.contains("password") && !error.contains("geheim"), "{error}");
        for text in
            ["ssh://me:ge/heim@host/dir", "ssh://me:ge#heim@host/", "me:geheim@host:dir", "ssh://me:x@geheim@h o/"]
        {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(!error.contains("heim") && error.contains("me:...@h"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn a_folder_of_any_name_is_written_so_that_it_is_read_again(dir in "[a-zA-Z0-9 #?%~@:\\\\ü.&=+'\"$]{1,12}(/[#?%fF2 a.~]{0,6}){0,3}") {
            for dir in [format!("/{dir}"), format!("~/{dir}")] {
                let dir = dir.trim_end_matches('/').to_string();
                let written = Address { user: None, host: "box".to_string(), port: None, dir: dir.clone() }.to_string();
                // No folder is left, or one of dots, which name another one; or one that is written as a home's is.
                let below = dir.strip_prefix("~/").or(dir.strip_prefix('/')).unwrap_or_default();
                let is_plain = !below.is_empty() && !below.split('/').any(|part| matches!(part, "." | ".."));
                if is_plain && dir != "/~" && !dir.starts_with("/~/") {
                    prop_assert_eq!(written.parse::<Address>().unwrap().dir, dir, "{}", written);
                }
            }
        }
    }

    #[test]
    fn signs_that_mean_something_in_an_address_stay_in_the_folder() {
        for (text, word) in [
            ("ssh://h/srv/a%23b", "'/srv/a#b'"),
            ("ssh://h/srv/a%3Fb", "'/srv/a?b'"),
            ("ssh://h/srv/a%25ffb", "/srv/a%ffb"),
            ("ssh://h/~/a%25", "\"$HOME\"/a%"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.dir_word(), word);
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn what_ssh_or_a_shell_would_misread_is_refused() {
        let wrong = [
            "http://host/dir",
            "ssh://host",
            "ssh://host/",
            "ssh://-oProxyCommand=x/dir",
            "ssh://-l@host/dir",
            "host:dir",
            "ssh://host/dir?x",
            "ssh://host/a%0Ab",
            "ssh://host/%ff",
            "ssh://ho%20st/dir",
        ];
        for text in wrong {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
