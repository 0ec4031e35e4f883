//! A real sshd on a port of its own, with keys and a configuration of its own, and a far folder behind it.
//!
//! Invariant: everything lies in one temporary folder; what was started is ended by its id when the test ends, detached runs
//! too. Waiting ends with what is waited for, or with the test's patience.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod proxy;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support_run::Said;

/// A test that waits longer than this for something has failed.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Two machines in one.
pub struct Pair {
    dir: tempfile::TempDir,
    sshd: Child,
    pub port: u16,
    binary: PathBuf,
}

impl Pair {
    /// An sshd with `more` in its configuration, and a remote `box`; or why there is none here.
    pub fn new(more: &str) -> Result<Pair, String> {
        let program = ["/usr/sbin/sshd", "/usr/local/sbin/sshd"].into_iter().find(|path| Path::new(path).exists());
        let program = program.ok_or("there is no sshd; `apt-get install openssh-server` brings one")?;
        alone();
        let dir = tempfile::Builder::new().prefix("plimsoll-ssh-").tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for key in ["host", "key", "stranger"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(at(key));
            let made = keygen.status().map_err(|error| format!("no ssh-keygen: {error}"))?;
            assert!(made.success(), "ssh-keygen: {made}");
        }
        for folder in ["far", "near", "home", "config", "state"] {
            fs_err::create_dir(at(folder)).unwrap();
        }
        // For an sshd that separates its privileges; only root's does.
        let _ = fs_err::create_dir_all("/run/sshd");
        let (mut sshd, port) = start(program, dir.path(), more)?;
        let near = format!(
            "Include {0}/leads\nHost *\nIdentityFile {0}/key\nIdentitiesOnly yes\nUserKnownHostsFile {0}/known\nGlobalKnownHostsFile \
             /dev/null\nStrictHostKeyChecking accept-new\n",
            dir.path().display()
        );
        fs_err::write(at("ssh_config"), near).unwrap();
        let mut pair = Pair { binary: stripped(), port, sshd: Command::new("true").spawn().unwrap(), dir };
        std::mem::swap(&mut pair.sshd, &mut sshd);
        let _ = sshd.wait();
        pair.add("box", port);
        Ok(pair)
    }

    /// Names the far folder, behind a port.
    pub fn add(&self, name: &str, port: u16) {
        self.remote(&["add", name, &self.url(port)]).must(0, &[]);
    }

    /// The far folder, behind a port.
    pub fn url(&self, port: u16) -> String {
        format!("ssh://127.0.0.1:{port}{}", self.far("").display())
    }

    /// With the program over there already, as if it had been brought; it is not what is tested.
    pub fn ready(more: &str) -> Result<Pair, String> {
        let pair = Pair::new(more)?;
        let sum =
            Command::new("sha256sum").arg(&pair.binary).output().map_err(|error| format!("sha256sum: {error}"))?;
        let digest = String::from_utf8(sum.stdout).unwrap().split_whitespace().next().unwrap().to_string();
        fs_err::create_dir(pair.far("bin")).unwrap();
        fs_err::copy(&pair.binary, pair.far("bin").join(format!("plimsoll-{digest}"))).unwrap();
        Ok(pair)
    }

    /// Where `ssh://NAME/...` leads to from now on.
    pub fn lead(&self, name: &str, port: u16) {
        let config = format!("Host {name}\nHostName 127.0.0.1\nPort {port}\nHostKeyAlias {name}\n");
        fs_err::write(self.path("leads"), config).unwrap();
    }

    /// A path of the other machine.
    pub fn far(&self, name: &str) -> PathBuf {
        self.dir.path().join("far").join(name)
    }

    /// A path of this one.
    pub fn near(&self, name: &str) -> PathBuf {
        self.dir.path().join("near").join(name)
    }

    /// A path of the whole.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `plimsoll remote ...` here.
    pub fn command(&self, words: &[&str]) -> Command {
        self.command_of("config", words)
    }

    /// The same by somebody whose configuration is in `user`.
    pub fn command_of(&self, user: &str, words: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("remote").args(words).current_dir(self.near("")).stdin(Stdio::null());
        command.env("XDG_CONFIG_HOME", self.path(user)).env("HOME", self.path("home"));
        command.env("PLIMSOLL_SSH", format!("ssh -F {}", self.path("ssh_config").display()));
        command
    }

    /// Runs it to its end.
    pub fn remote(&self, words: &[&str]) -> Said {
        Said::of(self.command(words).output().expect("plimsoll starts"))
    }

    /// The program on the far side.
    pub fn far_program(&self) -> PathBuf {
        let mut found = fs_err::read_dir(self.far("bin")).unwrap();
        found.next().expect("the program").unwrap().path()
    }

    /// Puts a shell script in the place of the far program, which is `$real` in it.
    pub fn wrap(&self, script: &str) {
        let (program, real) = (self.far_program(), self.far("real"));
        fs_err::rename(&program, &real).unwrap();
        fs_err::write(&program, format!("#!/bin/sh\nreal={}\n{script}\nexec \"$real\" \"$@\"\n", real.display()))
            .unwrap();
        fs_err::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// The one run, as `status` tells it.
    pub fn seen(&self, run: &str) -> serde_json::Value {
        let all = self.remote(&["status", "box", "--json"]).json();
        let runs = all["runs"].as_array().unwrap().clone();
        runs.into_iter().find(|seen| seen["run"] == run).unwrap_or_else(|| panic!("no {run}: {all}"))
    }

    /// The processes that were started from afar and are there.
    pub fn kept(&self) -> Vec<Pid> {
        let records = fs_err::read_dir(self.far("logs")).into_iter().flatten().flatten().map(|entry| entry.path());
        let read = |path: PathBuf| serde_json::from_slice::<serde_json::Value>(&fs_err::read(path).ok()?).ok();
        let records = records.filter(|path| path.extension().is_some_and(|end| end == "json")).filter_map(read);
        let running = records.filter(|record| record["ending"].is_null());
        running.filter_map(|record| Pid::from_raw(record["process"]["pid"].as_i64()? as i32)).collect()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let kept = self.kept();
        for pid in kept {
            let _ = kill_process(pid, Signal::TERM);
        }
        let by = Instant::now() + Duration::from_secs(20);
        while !self.kept().is_empty() && Instant::now() < by {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.sshd.kill();
        let _ = self.sshd.wait();
    }
}

/// Gives this test and all that it starts a network of its own, where the kernel lets us (only root may) and `ip` is there to
/// wake its loopback. Else it is on the machine's, on a port of its own.
fn alone() {
    let has_ip = Command::new("ip").arg("-V").stdout(Stdio::null()).status().is_ok_and(|said| said.success());
    if !has_ip {
        return;
    }
    // SAFETY: it changes this thread alone, before it has opened anything, and what it starts from here on.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.is_ok_and(|up| up.success()), "`ip link set lo up` in a network of its own");
    }
}

/// Waits until something is so.
#[track_caller]
pub fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let by = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < by, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn start(program: &str, dir: &Path, more: &str) -> Result<(Child, u16), String> {
    let dir_name = dir.display();
    fs_err::copy(dir.join("key.pub"), dir.join("authorized")).unwrap();
    for _ in 0..5 {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        // A caller's line comes first: of two the first counts.
        let config = format!(
            "{more}\nListenAddress 127.0.0.1\nPort {port}\nHostKey {dir_name}/host\nAuthorizedKeysFile {dir_name}/authorized\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPidFile none\n\
             PermitRootLogin yes\nMaxStartups 100\nAllowTcpForwarding yes\n"
        );
        fs_err::write(dir.join("sshd_config"), config).unwrap();
        let mut command = Command::new(program);
        command.args(["-D", "-f"]).arg(dir.join("sshd_config")).arg("-E").arg(dir.join("sshd.log"));
        let mut sshd = command.stdin(Stdio::null()).spawn().map_err(|error| format!("sshd: {error}"))?;
        let listens = until("sshd listens or ends", || match sshd.try_wait().unwrap() {
            Some(_) => Some(false),
            None => std::net::TcpStream::connect(("127.0.0.1", port)).is_ok().then_some(true),
        });
        if listens {
            return Ok((sshd, port));
        }
    }
    Err(format!("sshd does not start: {}", fs_err::read_to_string(dir.join("sshd.log")).unwrap_or_default()))
}

/// The program without what debuggers need: a fifth of it is to be sent. Made once for all tests of a build.
fn stripped() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_plimsoll"));
    let built = fs_err::metadata(program).unwrap().modified().unwrap();
    let built = built.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let to = folder.join(format!("plimsoll-stripped-{built}"));
    if to.exists() {
        return to;
    }
    for old in fs_err::read_dir(folder).unwrap().flatten() {
        if old.file_name().to_string_lossy().starts_with("plimsoll-stripped-") {
            let _ = fs_err::remove_file(old.path());
        }
    }
    let own = tempfile::Builder::new().prefix("strip-").tempdir_in(folder).unwrap();
    let made = own.path().join("plimsoll");
    let done = Command::new("strip").arg("-o").arg(&made).arg(program).status();
    match done.is_ok_and(|status| status.success()) {
        true => fs_err::rename(made, &to).unwrap(),
        // Without binutils the whole program is sent.
        false => return program.to_path_buf(),
    }
    to
}
