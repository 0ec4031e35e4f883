//! A folder in which a real trainer runs under guard, and what the tests ask of it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use plimsoll_watch::{Event, Record};

/// A test that waits longer than this for something has failed.
const PATIENCE: Duration = Duration::from_secs(300);

/// Trainers take gigabytes and both cores: one at a time.
static TURN: Mutex<()> = Mutex::new(());

pub struct Shop {
    folder: tempfile::TempDir,
    python: PathBuf,
    port: u16,
    _turn: MutexGuard<'static, ()>,
}

/// An estimate and what was measured.
#[derive(Debug)]
pub struct Estimated {
    pub name: String,
    pub expected: u64,
    pub safe: u64,
    pub measured: u64,
}

impl Shop {
    /// `None`, with the reason printed, where the trainers or the cgroups are missing.
    pub fn new(modules: &[&str]) -> Option<Shop> {
        let Some(python) = std::env::var_os("PLIMSOLL_PYTHON").map(PathBuf::from) else {
            println!("skipped: PLIMSOLL_PYTHON is not set");
            return None;
        };
        let code =
            format!("import importlib.util as u, sys; sys.exit(any(u.find_spec(m) is None for m in {modules:?}))");
        let there = Command::new(&python).args(["-c", &code]).stderr(Stdio::null()).status().is_ok_and(|s| s.success());
        if !there {
            println!("skipped: {} lacks one of {modules:?}; scripts/trainers-setup makes them ready", python.display());
            return None;
        }
        if let Err(reason) = super::support::cgroup::Cgroup::limited_to(1 << 30) {
            println!("skipped: {reason}");
            return None;
        }
        let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        Some(Shop { folder: tempfile::tempdir().unwrap(), python, port, _turn: turn })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn script(&self, name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trainers").join(name)
    }

    /// Words with `{name}` for a script, `PORT` for a free port and `python` for the tests' own.
    fn words(&self, text: &str) -> Vec<String> {
        let word = |word: &str| match word.strip_prefix('{').and_then(|word| word.strip_suffix('}')) {
            Some(name) => self.script(name).display().to_string(),
            None if word == "PORT" => self.port.to_string(),
            None => word.to_string(),
        };
        text.split_whitespace().map(word).collect()
    }

    fn plimsoll(&self, verb: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        let mut path = vec![self.python.parent().unwrap().to_path_buf()];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        command.arg(verb).current_dir(self.folder.path()).env("PATH", std::env::join_paths(path).unwrap());
        command.envs([("DS_ACCELERATOR", "cpu"), ("HF_HUB_OFFLINE", "1"), ("PYTHONDONTWRITEBYTECODE", "1")]);
        command.env("XDG_STATE_HOME", self.path("state")).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn start(&self, flags: &str, words: &str) -> Child {
        let mut command = self.plimsoll("run");
        command.args(["--out", "run"]).args(flags.split_whitespace()).arg("--").args(self.words(words));
        command.spawn().unwrap()
    }

    pub fn run(&self, flags: &str, words: &str) -> Output {
        self.start(flags, words).wait_with_output().unwrap()
    }

    /// `plimsoll logs` of the run.
    pub fn logs(&self, flags: &str) -> Output {
        self.plimsoll("logs").arg("run").args(flags.split_whitespace()).output().unwrap()
    }

    /// Makes Piper's sounds and its table.
    pub fn piper_data(&self) {
        let made =
            Command::new(&self.python).arg(self.script("piper_data.py")).arg(self.path("data")).output().unwrap();
        assert!(made.status.success(), "{}", text(&made));
    }

    /// Plans, runs, and compares.
    pub fn estimated(&self, flags: &str, shape: &str, words: &str) -> Estimated {
        for old in ["run", "out"] {
            let _ = fs_err::remove_dir_all(self.path(old));
        }
        let mut more: Vec<String> = flags.split_whitespace().map(str::to_string).collect();
        if !shape.is_empty() {
            fs_err::write(self.path("shape.json"), shape).unwrap();
            more.extend(["--shape".to_string(), "shape.json".to_string()]);
        }
        let planned =
            self.plimsoll("plan").args(&more).args(["--as-is", "--json", "--"]).args(self.words(words)).output();
        let planned = planned.unwrap();
        assert!(planned.status.success(), "{}", text(&planned));
        let plan: serde_json::Value = serde_json::from_slice(&planned.stdout).unwrap();
        let table = &plan["ram"]["table"];
        let mut command = self.plimsoll("run");
        command.args(["--out", "run", "--as-is", "--quiet"]).args(&more).arg("--").args(self.words(words));
        let ran = command.output().unwrap();
        assert!(ran.status.success(), "{}", text(&ran));
        let measured = self.summary()["last_start_peak_ram_bytes"].as_u64().unwrap();
        let bytes = |key: &str| table[key].as_u64().unwrap_or_else(|| panic!("no `{key}` in {plan:#}"));
        let name = plan["trainer"][0].as_str().unwrap().to_string();
        Estimated { name, expected: bytes("expected"), safe: bytes("safe"), measured }
    }

    pub fn records(&self) -> Vec<Record> {
        plimsoll_watch::read(&self.path("run/journal.jsonl")).map(|reading| reading.records).unwrap_or_default()
    }

    pub fn summary(&self) -> serde_json::Value {
        serde_json::from_str(&fs_err::read_to_string(self.path("run/summary.json")).unwrap()).unwrap()
    }

    /// The first death was the kernel's, at the limit, of a process of this role, and proven.
    pub fn died_of_memory(&self, role: &str) {
        let first = self.records().into_iter().find_map(|record| match record.event {
            Event::Incident { kind, told, confidence, because, .. } => Some((kind, told, confidence, because)),
            _ => None,
        });
        let (kind, told, confidence, because) = first.expect("an incident");
        assert_eq!((kind.as_str(), confidence.as_str()), ("host_oom", "proven"), "{told} {because:#?}");
        assert!(told.contains(role), "{told}");
        println!("{told}");
    }

    /// What was compared with what was asked came out so.
    pub fn verified(&self, wanted: &str, as_asked: bool) {
        let found = self.records().into_iter().rev().find_map(|record| match record.event {
            Event::Verified { what, fine, asked, seen } if what == wanted => Some((fine, asked, seen)),
            _ => None,
        });
        let (fine, asked, seen) = found.unwrap_or_else(|| panic!("`{wanted}` was not looked at"));
        assert_eq!(fine, as_asked, "asked {asked}, seen {seen}");
    }

    pub fn wait_for(&self, what: &str, mut there: impl FnMut() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !there() {
            assert!(Instant::now() < until, "{what} did not happen: {:#?}", self.records());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Processes that run in this folder.
    fn processes(&self) -> Vec<u32> {
        let here = fs_err::canonicalize(self.folder.path()).unwrap();
        let numbers = fs_err::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
        numbers.filter(|pid: &u32| fs_err::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == here)).collect()
    }

    /// Kills a rank from outside, as somebody would.
    pub fn kill_rank(&self, rank: u32) {
        let mark = format!("RANK={rank}");
        let is_rank = |pid: &u32| {
            let environ = fs_err::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.split(|byte| *byte == 0).any(|pair| pair == mark.as_bytes())
        };
        let pid = self.processes().into_iter().find(is_rank).expect("the rank's process");
        fs_err::write(self.path("killed"), "").unwrap();
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    /// The time between that kill and the next start.
    pub fn between_kill_and_next_start(&self) -> Duration {
        let killed = fs_err::metadata(self.path("killed")).unwrap().modified().unwrap();
        let killed = killed.duration_since(std::time::UNIX_EPOCH).unwrap();
        let started = self.records().into_iter().filter(|r| matches!(r.event, Event::WorkerStarted { .. })).nth(1);
        Duration::from_millis(started.expect("a second start").unix_ms).saturating_sub(killed)
    }

    pub fn nothing_is_left(&self) {
        assert_eq!(self.processes(), Vec::<u32>::new(), "processes of the trainer that live on");
    }
}

pub fn text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

pub fn must(output: &Output, status: i32, told: &[&str]) {
    let text = text(output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    for words in told {
        assert!(text.contains(words), "`{words}` is not in:\n{text}");
    }
}
