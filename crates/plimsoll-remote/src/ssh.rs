//! The system's `ssh`, and what its failures mean.
//!
//! Everything about keys, hosts and jumps is in the user's own ssh configuration; nothing is asked for interactively, and
//! no secret comes through here. `PLIMSOLL_SSH` names another program or gives it options, as `GIT_SSH_COMMAND` does;
//! `PLIMSOLL_SSH_PATIENCE` says how many seconds may pass until the far side speaks.

use std::process::Command;
use std::time::Duration;

use plimsoll_recover::shell_word;

use crate::{Address, Patience, RemoteError};

/// ssh to one address.
#[derive(Clone, Debug)]
pub struct Ssh {
    words: Vec<String>,
    address: Address,
    patience: Patience,
}

/// For every connection: no questions, a host that is down is told within seconds, one that falls silent is noticed. A master
/// connection that stands is used; what may be killed never becomes one that others use.
const OPTIONS: [&str; 5] =
    ["BatchMode=yes", "ConnectTimeout=15", "ServerAliveInterval=15", "ServerAliveCountMax=4", "ControlMaster=no"];

impl Ssh {
    /// The program of the environment, or `ssh`.
    pub fn to(address: Address) -> Result<Ssh, RemoteError> {
        let mut ssh = Ssh::with(address, &std::env::var("PLIMSOLL_SSH").unwrap_or_default())?;
        if let Ok(text) = std::env::var("PLIMSOLL_SSH_PATIENCE") {
            let seconds = text.parse().ok().filter(|seconds| (1..=86_400).contains(seconds));
            ssh.patience.greeting = Duration::from_secs(seconds.ok_or(RemoteError::Patience { text })?);
        }
        Ok(ssh)
    }

    /// `program` is a command line; empty: `ssh`.
    pub fn with(address: Address, program: &str) -> Result<Ssh, RemoteError> {
        let words = shlex::split(program).ok_or_else(|| RemoteError::SshCommand { text: program.to_string() })?;
        let words = if words.is_empty() { vec!["ssh".to_string()] } else { words };
        Ok(Ssh { words, address, patience: Patience::default() })
    }

    /// Where to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// How long is waited for the far side.
    pub fn patience(&self) -> Patience {
        self.patience
    }

    /// The program.
    pub fn program(&self) -> &str {
        &self.words[0]
    }

    /// `ssh OPTIONS... HOST [COMMAND]`.
    pub fn command(&self, options: &[&str], command: Option<&str>) -> Command {
        let mut ssh = Command::new(&self.words[0]);
        ssh.args(&self.words[1..]);
        for option in OPTIONS {
            ssh.args(["-o", option]);
        }
        if let Some(port) = self.address.port() {
            ssh.arg("-p").arg(port.to_string());
        }
        if let Some(user) = self.address.user() {
            ssh.arg("-l").arg(user);
        }
        ssh.args(options).arg("--").arg(self.address.host());
        // A login shell may be any; what it is given is one plain word list that begins with `exec sh`.
        if let Some(command) = command {
            ssh.arg(format!("exec sh -c {}", shell_word(command)));
        }
        ssh
    }
}

/// What ssh's end means: its exit status, and what it said. 255 is its own, everything else the far command's.
pub fn failure(host: &str, status: Option<i32>, said: &str) -> RemoteError {
    let (host, text) = (host.to_string(), last_lines(said));
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if status.is_some_and(|status| status != 255) {
        return RemoteError::Shell { host, said: text };
    }
    if has(&["Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED"]) {
        return RemoteError::HostKey { host, said: text };
    }
    if has(&["Permission denied", "Too many authentication failures", "No such identity"]) {
        return RemoteError::KeyRefused { host, said: text };
    }
    let before = [
        "Connection refused",
        "Connection timed out",
        "No route to host",
        "Network is unreachable",
        "Could not resolve",
        "Operation timed out",
        "kex_exchange_identification",
        "banner exchange",
    ];
    if has(&before) {
        return RemoteError::Unreachable { host, said: text };
    }
    RemoteError::Lost { host, said: text }
}

/// The last lines of what was said, in one.
pub fn last_lines(said: &str) -> String {
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let kept = lines[lines.len().saturating_sub(3)..].join("; ");
    kept.chars().filter(|c| !c.is_control()).take(600).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> Vec<String> {
        command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_users_program_and_the_address_become_one_command_line() {
        let address: Address = "ssh://me@box:2200/srv".parse().unwrap();
        let ssh = Ssh::with(address, "ssh -F 'my config'").unwrap();
        let words = words(&ssh.command(&["-T"], Some("echo 'a b'")));
        assert_eq!(words[..2], ["-F", "my config"]);
        assert!(words.windows(2).any(|two| two == ["-p", "2200"]) && words.windows(2).any(|two| two == ["-l", "me"]));
        assert!(words.windows(2).any(|two| two == ["-o", "ControlMaster=no"]));
        assert_eq!(words[words.len() - 3..], ["--", "box", r"exec sh -c 'echo '\''a b'\'''"]);
        assert!(Ssh::with("ssh://box/srv".parse().unwrap(), "ssh 'open").is_err());
    }

    #[test]
    fn each_way_to_fail_is_told_from_the_others() {
        let of = |said: &str| failure("box", Some(255), said);
        assert!(matches!(of("ssh: connect to host box port 22: Connection refused"), RemoteError::Unreachable { .. }));
        assert!(matches!(of("ssh: Could not resolve hostname box: x"), RemoteError::Unreachable { .. }));
        assert!(matches!(of("me@box: Permission denied (publickey)."), RemoteError::KeyRefused { .. }));
        assert!(matches!(of("Host key verification failed."), RemoteError::HostKey { .. }));
        assert!(matches!(of("client_loop: send disconnect: Broken pipe"), RemoteError::Lost { .. }));
        assert!(of("").is_cut());
        let told = failure("box", Some(1), "sh: 1: cannot create x: No space left on device\n").to_string();
        assert!(told.contains("No space left on device"), "{told}");
    }
}
