//! The command's own Python, asked what it can import: under a time limit, and without a network.
//!
//! Each answer is written as it is known, so that what takes too long leaves the others known. What is not known is not
//! guessed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Imports of torch and its like take seconds, on a busy machine tens of them.
const WITHIN: Duration = Duration::from_secs(120);
/// What marks our lines among those that modules print.
const MARK: &str = "plimsoll-check ";

const CODE: &str = r#"
import importlib, socket, sys
def refuse(*args, **named):
    raise OSError("no network while it is checked")
socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = socket.create_connection = refuse
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        said = "yes"
    except BaseException as error:
        said = "no"
    print("plimsoll-check " + said + " " + name, flush=True)
"#;

/// Which of `modules` `python` can import in `folder`.
pub fn importable(python: &Path, modules: &[String], folder: &Path) -> BTreeMap<String, bool> {
    let mut found = BTreeMap::new();
    if modules.is_empty() {
        return found;
    }
    let mut command = Command::new(python);
    command.arg("-c").arg(CODE).args(modules).current_dir(folder).process_group(0);
    // No module need open a card or look for a model to be imported.
    command.env("CUDA_VISIBLE_DEVICES", "").env("HF_HUB_OFFLINE", "1").env("PYTHONDONTWRITEBYTECODE", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return found };
    let group = Pid::from_child(&child);
    let (tell, hear) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
    }
    let until = Instant::now() + WITHIN;
    while found.len() < modules.len() {
        let left = until.saturating_duration_since(Instant::now());
        let Ok(line) = hear.recv_timeout(left) else { break };
        if let Some((said, name)) = line.strip_prefix(MARK).and_then(|rest| rest.split_once(' ')) {
            // What a module prints itself, later and in our words, is no answer.
            if modules.iter().any(|asked| asked == name) {
                found.entry(name.to_string()).or_insert(said == "yes");
            }
        }
    }
    // Whatever an import has started goes with it.
    let _ = kill_process_group(group, Signal::KILL);
    let _ = child.wait();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Python of this machine; without one the peer is said to be missing.
    fn python() -> Option<std::path::PathBuf> {
        super::super::programs::find("python3", Path::new("."))
    }

    #[test]
    fn modules_that_are_there_are_told_from_those_that_are_not_and_the_network_is_refused() {
        let Some(python) = python() else { return };
        let dir = tempfile::tempdir().unwrap();
        let calls = "import urllib.request\nurllib.request.urlopen('http://192.0.2.1/', timeout=60)\n";
        fs_err::write(dir.path().join("calls_home.py"), calls).unwrap();
        fs_err::write(dir.path().join("prints.py"), "print('plimsoll-check no json')\n").unwrap();
        let asked = ["json", "no_such_module_here", "calls_home", "prints"].map(String::from);
        let found = importable(&python, &asked, dir.path());
        assert_eq!((found["json"], found["no_such_module_here"], found["calls_home"]), (true, false, false));
    }
}
