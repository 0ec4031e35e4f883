//! A run folder with checkpoints that were never trained, and the processes that copy it.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod server;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use plimsoll_mirror::state::{self, State};
use plimsoll_recover::checkpoint::Writer;
use plimsoll_watch::{Event, Record};
use server::{BUCKET, Server};

/// How long a condition may take to come true before the test has failed.
const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until `seen` holds.
#[track_caller]
pub fn wait_for(what: &str, mut seen: impl FnMut() -> bool) {
    let began = Instant::now();
    while !seen() {
        assert!(began.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A folder with a server's files and a run that is mirrored to it.
pub struct Place {
    pub dir: tempfile::TempDir,
    pub server: Server,
}

impl Place {
    /// A run without checkpoints, whose job has `more` below `[mirror]`.
    pub fn new(more: &str) -> Place {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(&dir.path().join("server"));
        let place = Place { dir, server };
        fs_err::create_dir_all(place.path("run")).unwrap();
        let job = format!(
            "[model]\npath = \"/nowhere\"\n[data]\ntrain = [\"/nowhere.jsonl\"]\n[mirror]\nurl = \"{}\"\n{more}\n",
            place.url()
        );
        fs_err::write(place.path("run/job.toml"), job).unwrap();
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn url(&self) -> String {
        format!("s3://{BUCKET}/some/run")
    }

    /// Where the server keeps what the run has copied as `name`.
    pub fn there(&self, name: &str) -> PathBuf {
        self.server.object("some/run").join(name)
    }

    /// Saves a checkpoint with `mib` MiB of weights.
    pub fn save(&self, step: u64, mib: usize) -> PathBuf {
        let mut writer = Writer::begin(&self.path("run/checkpoints"), step).unwrap();
        writer.file("evals.json", |sink| sink.write_all(b"[]")).unwrap();
        let weights = |sink: &mut dyn Write| {
            let mut state = step;
            for _ in 0..mib * 4 {
                let words = std::iter::repeat_with(|| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    state.to_le_bytes()
                });
                sink.write_all(&words.take((256 << 10) / 8).flatten().collect::<Vec<u8>>())?;
            }
            Ok(())
        };
        writer.file("weights.safetensors", weights).unwrap();
        writer.finish(serde_json::json!({})).unwrap()
    }

    /// `plimsoll` with these words, told where the server is.
    pub fn plimsoll(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.args(words).current_dir(self.dir.path()).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("AWS_")) {
                command.env_remove(name);
            }
        }
        // No profile of whoever runs the tests.
        command.env("AWS_SHARED_CREDENTIALS_FILE", "/nowhere").env("AWS_CONFIG_FILE", "/nowhere");
        self.server.environment(&mut command);
        command
    }

    /// Copies once.
    pub fn copy(&self) -> Output {
        self.plimsoll(&["mirror", "run"]).output().unwrap()
    }

    /// Copies beside the run.
    pub fn follow(&self) -> Copying {
        let stderr = fs_err::File::create(self.path("follow.stderr")).unwrap().into_parts().0;
        let child = self.plimsoll(&["mirror", "run", "--follow"]).stderr(stderr).spawn().unwrap();
        Copying { child }
    }

    pub fn state(&self) -> State {
        state::read(&self.path("run")).unwrap()
    }

    /// Waits until `parts` parts of the weights of `step` are there, and returns the upload's id.
    #[track_caller]
    pub fn wait_for_parts(&self, step: u64, parts: usize) -> String {
        let key = format!("checkpoints/step-{step}/weights.safetensors");
        let mut id = String::new();
        wait_for("parts of the weights", || {
            let state = self.state();
            let upload = state.uploads.get(&key).filter(|upload| upload.parts.len() >= parts);
            id = upload.map_or(String::new(), |upload| upload.id.clone());
            upload.is_some()
        });
        id
    }

    /// Whether the checkpoint is there, whole and equal.
    pub fn is_there(&self, step: u64) -> bool {
        let home = format!("checkpoints/step-{step}");
        let names = ["evals.json", "weights.safetensors", "manifest.json"];
        self.there(&home).join("manifest.json").exists()
            && names.iter().all(|name| {
                let [here, there] = [self.path("run").join(&home), self.there(&home)].map(|dir| dir.join(name));
                fs_err::read(here).unwrap() == fs_err::read(there).unwrap()
            })
    }

    pub fn records(&self) -> Vec<Record> {
        let path = self.path("run/journal.jsonl");
        if path.exists() { plimsoll_watch::read(&path).unwrap().records } else { Vec::new() }
    }

    /// Troubles in the journal.
    pub fn troubles(&self) -> Vec<String> {
        let trouble = |record: Record| match record.event {
            Event::MirrorTrouble { message } => Some(message),
            _ => None,
        };
        self.records().into_iter().filter_map(trouble).collect()
    }
}

/// A copying process. Dropped, it is killed.
pub struct Copying {
    pub child: Child,
}

impl Copying {
    /// Asks it to finish, and waits for its end.
    pub fn finish(mut self) -> Option<i32> {
        self.signal(rustix::process::Signal::TERM);
        self.child.wait().unwrap().code()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Files in a folder, at any depth.
pub fn files_in(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs_err::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files_in(&path)) } else { found.push(path) }
    }
    found
}
