//! What goes wrong between two machines, as facts. Whatever of them the far side said moves no terminal's cursor.

use std::io::ErrorKind;
use std::path::PathBuf;

use plimsoll_machine::Bytes;

use crate::harmless::{harmless, harmless_line};
use crate::wire::WireError;

/// Why something on another machine was not done.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// An address is none.
    #[error("`{text}` is no address of a remote: {why}")]
    Address {
        /// As it was given, without a password.
        text: String,
        /// What is wrong.
        why: String,
    },
    /// A name that cannot be one.
    #[error("`{name}` is no name for a remote; expected letters, digits, `.`, `_` and `-`")]
    Name {
        /// As it was given.
        name: String,
    },
    /// The file of names cannot be understood.
    #[error("`{}`: {why}", path.display())]
    Book {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        why: String,
    },
    /// One entry of it cannot.
    #[error("`{}`: remote `{name}`: {why}", path.display())]
    Entry {
        /// The file.
        path: PathBuf,
        /// The entry.
        name: String,
        /// What is wrong in it.
        why: String,
    },
    /// Nobody has given that name.
    #[error("there is no remote `{name}`; known: {}", if known.is_empty() { "none" } else { known })]
    NoSuchRemote {
        /// The name.
        name: String,
        /// Those that are known.
        known: String,
    },
    /// A path that cannot be the same on both sides.
    #[error("`{}` cannot be the name of a file on both machines", path.escape_debug())]
    FarPath {
        /// The path.
        path: String,
    },
    /// A pattern that is none.
    #[error("`{pattern}` is not a pattern: {why}")]
    Pattern {
        /// As it was given.
        pattern: String,
        /// What is wrong.
        why: String,
    },
    /// `PLIMSOLL_SSH_PATIENCE` cannot be understood.
    #[error("PLIMSOLL_SSH_PATIENCE = `{text}`: expected seconds, at least 1")]
    Patience {
        /// What it holds.
        text: String,
    },
    /// `PLIMSOLL_SSH` cannot be understood.
    #[error("PLIMSOLL_SSH = `{text}` is no command line")]
    SshCommand {
        /// What it holds.
        text: String,
    },
    /// There is no ssh here.
    #[error("cannot start `{program}`: {source}")]
    NoSsh {
        /// The program.
        program: String,
        /// Why not.
        source: std::io::Error,
    },
    /// Nobody answers.
    #[error("`{host}` cannot be reached: {said}")]
    Unreachable {
        /// The host.
        host: String,
        /// What ssh said.
        said: String,
    },
    /// It can be reached, and says nothing.
    #[error("`{host}` says nothing for {seconds} s{}", if said.is_empty() { String::new() } else { format!(" but `{said}`") })]
    Silent {
        /// The host.
        host: String,
        /// So long was waited.
        seconds: u64,
        /// What came instead.
        said: String,
    },
    /// It does not let us in.
    #[error("`{host}` does not let us in: {said}")]
    KeyRefused {
        /// The host.
        host: String,
        /// What ssh said.
        said: String,
    },
    /// It is not known, or not the one that was known.
    #[error("the key of `{host}` is not the known one: {said}")]
    HostKey {
        /// The host.
        host: String,
        /// What ssh said.
        said: String,
    },
    /// The connection ended in the middle.
    #[error("the connection to `{host}` was lost{}", if said.is_empty() { String::new() } else { format!(": {said}") })]
    Lost {
        /// The host.
        host: String,
        /// What ssh said.
        said: String,
    },
    /// The far shell says something else than we do.
    #[error("`{host}` answered something else than plimsoll: `{found}`")]
    Junk {
        /// The host.
        host: String,
        /// How it begins.
        found: String,
    },
    /// The far machine cannot run this program.
    #[error("`{host}` is {}, and this plimsoll is built for {wanted}", harmless_line(found))]
    WrongMachine {
        /// The host.
        host: String,
        /// What `uname -sm` says there.
        found: String,
        /// What it would have to say.
        wanted: String,
    },
    /// The program was copied, and does not start there.
    #[error("this plimsoll does not run on `{host}`: {said}")]
    DoesNotRun {
        /// The host.
        host: String,
        /// What its loader or shell said.
        said: String,
    },
    /// The copy of the program is not the program.
    #[error("the copy of the program on `{host}` is damaged and was removed: {said}")]
    Damaged {
        /// The host.
        host: String,
        /// What was found.
        said: String,
    },
    /// A script of ours failed there.
    #[error("`{host}`: {}", harmless_line(said))]
    Shell {
        /// The host.
        host: String,
        /// What was said.
        said: String,
    },
    /// It will not fit there.
    #[error("the disk of `{}` has {free} free, and {needed} are to be sent", harmless_line(place))]
    NoRoom {
        /// Where.
        place: String,
        /// To be sent.
        needed: Bytes,
        /// Free.
        free: Bytes,
    },
    /// It did not fit there after all.
    #[error("the disk is full, at `{path}` on `{host}`; what was sent is kept")]
    FarDiskFull {
        /// The host.
        host: String,
        /// The file that was being written.
        path: String,
    },
    /// The far side could not do it.
    #[error("on `{host}`: {}", harmless(fact))]
    Far {
        /// The host.
        host: String,
        /// What it said.
        fact: String,
    },
    /// The far side cannot be asked for that.
    #[error("on `{host}`: {}", harmless(fact))]
    Refused {
        /// The host.
        host: String,
        /// What it said.
        fact: String,
    },
    /// A run of the same name as one that was brought before.
    #[error("`{}` has another run `{run}`, which was brought from there before", folder.display())]
    OtherRun {
        /// The run's name.
        run: String,
        /// Where the other one is.
        folder: PathBuf,
    },
    /// A job that is a text of its own length.
    #[error("the job is {length} long, and at most {most} are taken")]
    JobTooLong {
        /// So long.
        length: Bytes,
        /// So long may it be.
        most: Bytes,
    },
    /// More than anybody would send.
    #[error("`{host}` sends more {what} than are taken: {most}")]
    TooMuch {
        /// The host.
        host: String,
        /// Of what.
        what: &'static str,
        /// So much is.
        most: String,
    },
    /// A file was written to while it was read.
    #[error("`{path}` changed while it was copied")]
    Changed {
        /// The file.
        path: String,
    },
    /// What was asked for is not what arrived.
    #[error("the settings on `{host}` are not those that were asked for: {}", harmless_line(differences))]
    NotAsAsked {
        /// The host.
        host: String,
        /// Key by key.
        differences: String,
    },
    /// The wire.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A file.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A file that was to be written whole.
    #[error(transparent)]
    Write(#[from] plimsoll_recover::RecoverError),
}

impl RemoteError {
    /// Whether trying again may help: the connection broke, nothing was refused.
    pub fn is_cut(&self) -> bool {
        match self {
            RemoteError::Lost { .. } => true,
            RemoteError::Wire(error) => error.is_cut(),
            _ => false,
        }
    }

    /// What to do about it, where that is known.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            RemoteError::Entry { .. } => {
                "`plimsoll remote remove NAME` forgets it, and `plimsoll remote add` gives it anew"
            }
            RemoteError::NoSuchRemote { .. } => "plimsoll remote add NAME ssh://user@host[:port]/dir",
            RemoteError::NoSsh { .. } => "install OpenSSH's client, or name another with PLIMSOLL_SSH",
            RemoteError::Unreachable { .. } => "is it up, and are host and port right? `ssh HOST true` tells more",
            RemoteError::Silent { .. } => {
                "does a login shell wait for something there (~/.bashrc), or a disk that does not answer? `ssh HOST true` tells; \
                 PLIMSOLL_SSH_PATIENCE=SECONDS waits longer"
            }
            RemoteError::KeyRefused { .. } => {
                "nothing is asked for interactively: put a key on the host (ssh-copy-id), load it into ssh-agent, or name \
                 it in ~/.ssh/config"
            }
            RemoteError::HostKey { .. } => {
                "log in once by hand with `ssh`, and compare the key that it shows with the machine's own"
            }
            RemoteError::OtherRun { .. } => "name another folder with `--out`",
            RemoteError::Lost { .. } => "what was sent is kept; the same command goes on from there",
            RemoteError::Junk { .. } => {
                "a login shell must print nothing when it is not interactive: look at ~/.bashrc or ~/.profile there"
            }
            RemoteError::DoesNotRun { .. } => "use a plimsoll that is built for that system (an older or static libc)",
            RemoteError::NoRoom { .. } | RemoteError::FarDiskFull { .. } => {
                "make room there, or leave files out with --exclude; the same command goes on from what is there"
            }
            RemoteError::JobTooLong { .. } => {
                "it names too many files; fewer and larger ones in `data.train` do the same"
            }
            RemoteError::Changed { .. } => "wait until nobody writes to it, and run the same command again",
            RemoteError::NotAsAsked { .. } => "nothing is trained with other settings: nothing was started",
            RemoteError::Io(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                "make room here; the same command goes on from what has come"
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Answer, read_message};

    #[test]
    fn what_the_far_side_says_of_itself_moves_no_cursor() {
        let (host, sly) = ("box".to_string(), "a\u{1b}[2J\u{9b}1m\nb".to_string());
        let head = serde_json::json!({ "answer": "done", &sly: 1 }).to_string();
        let length = [head.len() as u32, 0].map(u32::to_le_bytes).concat();
        let wire = [&length[..], head.as_bytes()].concat();
        let of_wire: RemoteError = read_message::<Answer>(&mut wire.as_slice()).unwrap_err().into();
        let found = "x\u{9b}".to_string();
        let place = format!("{host}:{sly}");
        for error in [
            of_wire,
            WireError::Unexpected { expected: "`done`", found }.into(),
            RemoteError::NoRoom { place, needed: Bytes(2), free: Bytes(1) },
            RemoteError::WrongMachine { host: host.clone(), found: sly.clone(), wanted: "Linux".to_string() },
            RemoteError::NotAsAsked { host: host.clone(), differences: sly.clone() },
            RemoteError::Shell { host: host.clone(), said: sly.clone() },
            RemoteError::Far { host: host.clone(), fact: sly.clone() },
            RemoteError::Refused { host, fact: sly },
        ] {
            let told = error.to_string();
            assert!(told.chars().all(|c| c == '\n' || !c.is_control()) && told.contains('\u{fffd}'), "{told:?}");
        }
    }
}
