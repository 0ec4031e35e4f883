//! How the program gets to the far side, with nothing there but a shell: `dd` behind what is there already, `cp`,
//! `sha256sum`, a new name.
//!
//! Invariant: under its own name, which holds its digest, the program is whole and starts, and nobody can write to it. A copy
//! that was cut short is gone on with, one that is damaged is removed. Any number may copy at once, those too whose near side
//! is gone: each writes the same bytes to the same places, and what gets the name is a copy of that.

use std::io::{Read, Seek, SeekFrom, Write};
use std::process::Stdio;
use std::time::Duration;

use plimsoll_machine::Bytes;

use crate::pulse::Pulse;
use crate::ssh::{failure, last_lines};
use crate::ssh_process::SshProcess;
use crate::{Address, Digest, RemoteError, Ssh};

/// Exit status of a script whose copy is damaged, and of one whose copy does not start.
const DAMAGED: i32 = 72;
const NOT_STARTED: i32 = 70;

/// Blocks of `dd`.
const STEP: u64 = 64 << 10;
/// Without anything being taken, or while what was sent is looked at.
const PATIENCE: Duration = Duration::from_secs(600);

/// What the script that found no program says of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// `uname -sm`.
    pub system: String,
    /// Bytes of the program that came before.
    pub part: u64,
    /// Free bytes, where `df` says so.
    pub free: Option<Bytes>,
}

/// The script that becomes the far side of the program, or says what is missing.
pub fn opening(address: &Address, digest: &Digest) -> String {
    let dir = address.dir_word();
    // printf of a plain sh knows octal only.
    format!(
        "d={dir}; b=$d/bin/plimsoll-{digest}; if [ -x \"$b\" ]; then exec \"$b\" remote-agent serve \"$d\" \"$b\"; fi; \
         [ -d \"$d\" ] || (umask 077; mkdir -p \"$d\"); mkdir -p \"$d/bin\" || exit 71; printf '\\n\\002plimsoll-absent\\n'; uname -sm; \
         if [ -f \"$b.part\" ]; then wc -c < \"$b.part\"; else echo 0; fi; df -Pk \"$d\" | tail -n 1"
    )
}

/// Reads what [`opening`] printed.
pub fn facts(text: &str) -> Option<Facts> {
    let mut lines = text.lines().map(str::trim);
    let system = lines.next()?.to_string();
    let part = lines.next()?.parse().ok()?;
    // `Filesystem 1024-blocks Used Available Capacity Mounted on`; names may hold blanks, so from the percent sign.
    let words: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let at = words.iter().position(|word| word.ends_with('%'));
    let free = at.and_then(|at| words.get(at.checked_sub(1)?)?.parse::<u64>().ok());
    Some(Facts { system, part, free: free.map(|kib| Bytes(kib.saturating_mul(1024))) })
}

/// Whether a machine can run this program, as far as its name says.
pub fn fits(system: &str) -> Result<(), String> {
    let arch = match std::env::consts::ARCH {
        "aarch64" => &["aarch64", "arm64"][..],
        "x86_64" => &["x86_64", "amd64"][..],
        other => &[other][..],
    };
    let (os, machine) = system.split_once(' ').unwrap_or((system, ""));
    match os.eq_ignore_ascii_case(std::env::consts::OS) && arch.contains(&machine) {
        true => Ok(()),
        false => Err(format!("Linux {}", arch[0])),
    }
}

/// Copies the program, from where a copy before this one ended.
pub fn install(
    ssh: &Ssh,
    program: &std::path::Path,
    digest: &Digest,
    found: &Facts,
    told: &mut dyn FnMut(Bytes, Bytes),
) -> Result<(), RemoteError> {
    let host = ssh.address().host().to_string();
    if let Err(wanted) = fits(&found.system) {
        return Err(RemoteError::WrongMachine { host, found: found.system.clone(), wanted });
    }
    let mut file = fs_err::File::open(program)?;
    let length = file.metadata()?.len();
    let from = if found.part > length { 0 } else { found.part - found.part % STEP };
    let needed = Bytes(length - from + length);
    if let Some(free) = found.free.filter(|free| needed > *free) {
        return Err(RemoteError::NoRoom { place: ssh.address().to_string(), needed, free });
    }
    file.seek(SeekFrom::Start(from))?;
    let head = format!("d={}; b=$d/bin/plimsoll-{digest}; p=$b.part;", ssh.address().dir_word());
    let send = format!("{head} dd of=\"$p\" bs={STEP} seek={} conv=notrunc", from / STEP);
    // Programs are made to be packed; ssh does that by itself.
    shell(ssh, &["-T", "-C"], &send, |into, pulse| {
        let (mut buffer, mut sent) = (vec![0; 256 << 10], from);
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(()),
                read => into.write_all(&buffer[..read]).map(|()| sent += read as u64)?,
            }
            pulse.beat();
            told(Bytes(sent), Bytes(length));
        }
    })?;
    // What another one has brought meanwhile is as good, whatever became of ours.
    let check = format!(
        "{head} n=$b.new-$$; there() {{ [ -x \"$b\" ]; }}; if there; then rm -f \"$p\"; exit 0; fi; \
         if [ ! -f \"$p\" ]; then there && exit 0; echo 'somebody took it away' >&2; exit {DAMAGED}; fi; \
         cp \"$p\" \"$n\" || {{ rm -f \"$n\"; there; exit; }}; \
         if command -v sha256sum >/dev/null; then h=$(sha256sum < \"$n\"); else h=$(shasum -a 256 < \"$n\"); fi; \
         case $h in {digest}*) ;; *) rm -f \"$n\" \"$p\"; there && exit 0; echo \"its digest is $h\" >&2; exit {DAMAGED};; esac; \
         chmod 755 \"$n\" && {{ sync \"$n\" 2>/dev/null || sync; }} && \
         {{ \"$n\" --version >/dev/null || {{ there && exit 0; rm -f \"$n\" \"$p\"; exit {NOT_STARTED}; }}; }} && \
         mv -f \"$n\" \"$b\" && rm -f \"$p\" \"$b\".new-* || there"
    );
    shell(ssh, &["-T"], &check, |_, _| Ok(()))
}

/// Runs a script there, fed by `feed`.
fn shell(
    ssh: &Ssh,
    options: &[&str],
    script: &str,
    feed: impl FnOnce(&mut dyn Write, &Pulse) -> std::io::Result<()>,
) -> Result<(), RemoteError> {
    let host = ssh.address().host();
    let pulse = Pulse::heard(PATIENCE);
    let mut command = ssh.command(options, Some(script));
    command.stdout(Stdio::null());
    let mut process = SshProcess::start(ssh, command, pulse.clone())?;
    // A pipe that breaks is explained by what ssh says of it.
    let fed = process.input().map_or(Ok(()), |mut input| feed(&mut input, &pulse));
    let (status, said) = process.wait()?;
    match status {
        None if process.was_silent() => {
            let (seconds, said) = (PATIENCE.as_secs(), last_lines(&said));
            Err(RemoteError::Silent { host: host.to_string(), seconds, said })
        }
        Some(0) => fed.map_err(|_| RemoteError::Lost { host: host.to_string(), said: last_lines(&said) }),
        Some(DAMAGED) => Err(RemoteError::Damaged { host: host.to_string(), said: last_lines(&said) }),
        Some(NOT_STARTED) => Err(RemoteError::DoesNotRun { host: host.to_string(), said: last_lines(&said) }),
        Some(status) if status != 255 && said.contains("No space left on device") => {
            Err(RemoteError::FarDiskFull { host: host.to_string(), path: "bin".to_string() })
        }
        status => Err(failure(host, status, &said)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_facts_are_read_and_anything_else_is_not() {
        let text = "Linux x86_64\n  1234 \n/dev/vda 263174212 49069232 200664260 20% /\n";
        let free = Some(Bytes(200_664_260 * 1024));
        assert_eq!(facts(text), Some(Facts { system: "Linux x86_64".into(), part: 1234, free }));
        assert_eq!(facts("Linux x86_64\n0\n"), Some(Facts { system: "Linux x86_64".into(), part: 0, free: None }));
        assert_eq!(facts("Linux x86_64\nno\n"), None);
        assert_eq!(facts(""), None);
    }

    #[test]
    fn another_machine_is_told_from_our_own_kind() {
        let own = format!("Linux {}", std::env::consts::ARCH);
        assert!(fits(&own).is_ok());
        assert!(fits("Linux riscv64").is_err() && fits("Darwin x86_64").is_err() && fits("").is_err());
    }
}
