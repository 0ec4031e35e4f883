//! `plimsoll remote` against a real sshd on this machine: a run from push to pull, wires that break, processes that are
//! killed, and everything that another machine may lack.
//!
//! Skipped with the reason where there is no sshd (`scripts/test` installs one).

#![allow(clippy::print_stdout, reason = "a skipped test says why")]

mod support_run;
mod support_ssh;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support_run::{PINS, Result as Outcome, Said, Workshop};
use support_ssh::proxy::{Fate, Proxy};
use support_ssh::{Pair, until};

const COURSE: &str = "effective_batch = 8\nsteps = 600\nsave_every = 0\neval_every = 200\nclip_norm = 1.0\n\
                      optimizer = { name = \"adamw\", lr = 3e-3 }\n";
const MIB: usize = 1 << 20;

/// Two machines, of which the other one has nothing yet.
macro_rules! pair {
    ($more:expr) => {
        match Pair::new($more) {
            Ok(pair) => pair,
            Err(why) => return println!("skipped: {why}"),
        }
    };
}

/// Two machines that have met before.
macro_rules! ready {
    () => {
        match Pair::ready("") {
            Ok(pair) => pair,
            Err(why) => return println!("skipped: {why}"),
        }
    };
}

#[path = "remote/kills.rs"]
mod kills;
#[path = "remote/links.rs"]
mod links;
#[path = "remote/sides.rs"]
mod sides;
#[path = "remote/starts.rs"]
mod starts;

fn workshop() -> Workshop {
    let workshop = Workshop::new();
    workshop.job(&format!("{COURSE}{PINS}"));
    workshop
}

fn job(workshop: &Workshop) -> String {
    workshop.path("job.toml").display().to_string()
}

/// The worker of a run that is kept.
fn worker(pair: &Pair, run: &str) -> Pid {
    let read = |path: String| fs_err::read_to_string(path).ok();
    until("a worker is there", || {
        let record = fs_err::read(pair.far(&format!("logs/{run}.json"))).ok()?;
        let record: serde_json::Value = serde_json::from_slice(&record).ok()?;
        let pid = record["process"]["pid"].as_i64()?;
        let children = read(format!("/proc/{pid}/task/{pid}/children"))?;
        let is_worker =
            |child: &&str| read(format!("/proc/{child}/cmdline")).is_some_and(|line| line.contains("\0worker\0"));
        Pid::from_raw(children.split_whitespace().find(is_worker)?.parse().ok()?)
    })
}

/// Whether a process that is halted has a stop waiting for it.
fn is_asked_to_stop(pid: Pid) -> bool {
    let status = fs_err::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
    u64::from_str_radix(pending.trim(), 16).unwrap() & ((1 << 14) | (1 << 1)) != 0
}

/// Whether two files hold the same, whatever their length.
fn assert_same(one: &Path, other: &Path) {
    let same = Command::new("cmp").args([one, other]).status().unwrap().success();
    assert!(same, "{} is not {}", one.display(), other.display());
}

/// Where the one folder of that name was pushed to.
fn pushed_to(pair: &Pair, name: &str) -> PathBuf {
    below(&pair.far("work"), name)
}

fn below(work: &Path, name: &str) -> PathBuf {
    let mut there =
        fs_err::read_dir(work).unwrap().map(|entry| entry.unwrap().path().join(name)).filter(|path| path.exists());
    let found = there.next().unwrap_or_else(|| panic!("no `{name}` below {}", work.display()));
    assert!(there.next().is_none(), "more than one `{name}`");
    found
}

/// A folder of files to push, with one large one.
fn folder(pair: &Pair, length: usize) {
    fs_err::create_dir_all(pair.near("stuff/deep")).unwrap();
    let mut large = fs_err::File::create(pair.near("stuff/large")).unwrap();
    let mut random = fs_err::File::open("/dev/urandom").unwrap().take(length as u64);
    std::io::copy(&mut random, &mut large).unwrap();
    fs_err::write(pair.near("stuff/deep/note"), "here").unwrap();
    fs_err::write(pair.near("stuff/deep/skip.wav"), "not this").unwrap();
}

#[test]
fn a_job_is_trained_elsewhere_from_push_to_pull_and_gives_what_it_gives_here() {
    let pair = pair!("");
    let workshop = workshop();
    let job = job(&workshop);
    pair.remote(&["probe", "box"]).must(0, &[]);
    let plan = pair.remote(&["plan", "box", &job, "--seed", "7", "--json"]);
    assert!(plan.must(0, &[]).json()["ram"]["parts"].is_array(), "{}", plan.stdout);
    let started = pair.remote(&["train", "box", &job, "--seed", "7"]);
    let run = started.must(0, &["goes on at `box` by itself"]).stdout.trim().to_string();
    // Nothing of the connection is left, and the run goes on; halted, it cannot be over before it is stopped.
    let worker = worker(&pair, &run);
    kill_process(worker, Signal::STOP).unwrap();
    let seen = pair.seen(&run);
    assert_eq!((seen["status"].as_str(), seen["alive"].as_bool()), (Some("running"), Some(true)), "{seen}");
    let again = pair.remote(&["train", "box", &job, "--seed", "7"]);
    assert_eq!(again.must(0, &["already"]).stdout.trim(), run);
    pair.remote(&["watch", "box", &run, "--once"]).must(0, &[]);
    let stop = pair.command(&["stop", "box"]).stderr(Stdio::piped()).spawn().unwrap();
    until("the worker is asked to stop", || is_asked_to_stop(worker).then_some(()));
    kill_process(worker, Signal::CONT).unwrap();
    let stopped = stop.wait_with_output().unwrap();
    assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    let seen = pair.seen(&run);
    assert_eq!((seen["status"].as_str(), &seen["ending"]["code"]), (Some("stopped"), &4.into()), "{seen}");
    assert!(seen["step"].as_u64().unwrap() < 600, "{seen}");
    pair.remote(&["resume", "box", &run]).must(0, &["going on after step"]);
    let logs = pair.remote(&["logs", "box", &run, "-f"]);
    assert!(logs.must(0, &[]).stdout.contains("done: 600 steps"), "{}", logs.stdout);
    assert_eq!(pair.seen(&run)["status"], "finished");
    pair.remote(&["resume", "box"]).must(0, &["is finished"]);
    let pulled = pair.remote(&["pull", "box", &run]);
    let here = pair.near(pulled.must(0, &[]).stdout.trim());
    assert!(!here.join("checkpoints").exists());
    let local = workshop.plimsoll(&["train", "job.toml", "--seed", "7", "--out", "local"]);
    local.must(0, &["done: 600 steps"]);
    Outcome::of(&here).must_equal(&Outcome::of(&workshop.path("local")), "elsewhere and here");
    // Again, and nothing comes; a folder of somebody else's is not touched.
    let again = pair.remote(&["pull", "box", &run, "--json"]);
    assert_eq!(again.must(0, &[]).json()["sent_bytes"], 0);
    let other = workshop.path("local").display().to_string();
    pair.remote(&["pull", "box", &run, "--out", &other]).must(2, &["holds something else"]);
}

#[test]
fn a_job_over_series_goes_with_the_description_of_its_model_and_gives_what_it_gives_here() {
    let pair = ready!();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/series");
    let job = example.join("job.toml").display().to_string();
    let short = ["--steps", "40", "--eval-every", "20", "--save-every", "0"];
    let started = pair.remote(&[&["train", "box", &job], &short[..]].concat());
    // Whether it is said to go on or to be done depends on which is first.
    let run = started.must(0, &[]).stdout.trim().to_string();
    let logs = pair.remote(&["logs", "box", &run, "-f"]);
    assert!(logs.must(0, &[]).stdout.contains("done: 40 steps"), "{}", logs.stdout);
    let pulled = pair.remote(&["pull", "box", &run]);
    let here = pair.near(pulled.must(0, &[]).stdout.trim());
    let workshop = Workshop::new();
    let out = workshop.path("local").display().to_string();
    workshop.plimsoll(&[&["train", &job, "--out", &out], &short[..]].concat()).must(0, &["done: 40 steps"]);
    for file in ["model/model.safetensors", "model/normalisation.json", "model/config.json"] {
        let read = |run: &Path| fs_err::read(run.join(file)).unwrap();
        assert!(read(&here) == read(&workshop.path("local")), "`{file}` is another elsewhere");
    }
}

#[test]
fn a_push_of_a_gibibyte_goes_on_through_three_cuts_and_sends_little_twice() {
    let pair = ready!();
    let length = 1024 * MIB;
    folder(&pair, length);
    let proxy = Proxy::to(pair.port, &[200, 500, 900].map(|at| Fate::Cut(at * MIB as u64)));
    pair.add("brittle", proxy.port);
    let pushed = pair.remote(&["push", "brittle", "--folder", "stuff", "--exclude", "*.wav", "--json"]);
    let told = pushed.must(0, &["was lost", "trying again"]).json();
    assert_eq!((proxy.met(), &told["files"]), (3, &2.into()), "{told}");
    let there = pushed_to(&pair, "stuff");
    assert_same(&pair.near("stuff/large"), &there.join("large"));
    assert!(!there.join("deep/skip.wav").exists());
    // Of each connection, what was under way.
    let sent = told["sent_bytes"].as_u64().unwrap() as usize;
    assert!((length..=length + 3 * 17 * MIB).contains(&sent), "{sent}");
    let again = pair.remote(&["push", "box", "--folder", "stuff", "--exclude", "*.wav", "--json"]);
    assert_eq!(again.must(0, &[]).json()["sent_bytes"], 0);
}

#[test]
fn the_program_itself_arrives_through_cuts() {
    let pair = pair!("");
    let proxy = Proxy::to(pair.port, &[1, 2].map(|at| Fate::Cut(at * MIB as u64)));
    pair.add("brittle", proxy.port);
    pair.remote(&["probe", "brittle"]).must(0, &["trying again"]);
    assert_eq!(proxy.met(), 2);
    assert!(pair.far_program().is_file());
}

/// A process that is killed when the test is done with it, however that ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `words` behind a wire that holds at each of `places` in turn, and kills it there.
fn killed_at(pair: &Pair, words: &[&str], places: impl Iterator<Item = u64>) {
    let url = format!("ssh://held{}", pair.far("").display());
    pair.remote(&["add", "held", &url]).must(0, &[]);
    for place in places {
        let proxy = Proxy::to(pair.port, &[Fate::Hold(place)]);
        pair.lead("held", proxy.port);
        let mut child: Child = pair.command(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("the wire holds, or it is over", || {
            (proxy.met() > 0 || child.try_wait().unwrap().is_some()).then_some(())
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }
    pair.lead("held", pair.port);
}

#[test]
fn a_push_that_is_killed_anywhere_harms_nothing() {
    let pair = ready!();
    pair.remote(&["status", "box"]).must(0, &[]);
    folder(&pair, 24 * MIB);
    let places = [0, 3000, 6000, MIB as u64, 5 * MIB as u64, 11 * MIB as u64].into_iter();
    killed_at(&pair, &["push", "held", "--folder", "stuff"], places);
    let large = pushed_to(&pair, "stuff").join("large");
    assert!(!large.exists(), "a name that stands for less than the file");
    let told = pair.remote(&["push", "box", "--folder", "stuff", "--json"]).must(0, &[]).json();
    assert_same(&pair.near("stuff/large"), &large);
    let sent = told["sent_bytes"].as_u64().unwrap() as usize;
    assert!(sent < 16 * MIB, "{sent} although most was there");
}

#[test]
fn a_start_that_is_killed_anywhere_starts_one_run_or_none() {
    let pair = ready!();
    let workshop = workshop();
    let job = job(&workshop);
    pair.remote(&["push", "box", &job]).must(0, &[]);
    // What goes out after the greeting of ssh is a few kilobytes; the start is told in one of them.
    killed_at(&pair, &["train", "held", &job, "--steps", "100000"], (2500..7000).step_by(500));
    let last = pair.remote(&["train", "box", &job, "--steps", "100000"]);
    let run = last.must(0, &[]).stdout.trim().to_string();
    let all = pair.remote(&["status", "box", "--json"]).json();
    let alive: Vec<_> = all["runs"].as_array().unwrap().iter().filter(|seen| seen["alive"] == true).collect();
    assert_eq!(alive.len(), 1, "{all}");
    assert_eq!(alive[0]["run"], run.as_str());
    pair.remote(&["stop", "box", &run]).must(0, &["is stopped at step"]);
}

#[test]
fn what_another_machine_may_lack_is_said_clearly() {
    let pair = ready!();
    let workshop = workshop();
    let job = job(&workshop);
    // Nobody listens.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    pair.add("down", free);
    pair.remote(&["probe", "down"]).must(1, &["`127.0.0.1` cannot be reached", "Connection refused", "hint: is it up"]);
    // A key that it does not know.
    let only = pair.path("only_config");
    let config = fs_err::read_to_string(pair.path("ssh_config")).unwrap();
    fs_err::write(&only, config.replace("/key\n", "/stranger\n")).unwrap();
    let with = |config: &Path| {
        let ssh = format!("ssh -F {}", config.display());
        let output = pair.command(&["probe", "box"]).env("PLIMSOLL_SSH", ssh).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, stderr) = with(&only);
    assert!(code == Some(1) && stderr.contains("does not let us in") && stderr.contains("ssh-copy-id"), "{stderr}");
    // A machine that is not the known one.
    fs_err::write(&only, config.replace("accept-new", "yes").replace("/known\n", "/unknown\n")).unwrap();
    let (code, stderr) = with(&only);
    assert!(code == Some(1) && stderr.contains("is not the known one"), "{stderr}");
    // No ssh, no remote, no run, no pattern, a password.
    let none = pair.command(&["probe", "box"]).env("PLIMSOLL_SSH", "/nowhere/ssh").output().unwrap();
    assert!(String::from_utf8_lossy(&none.stderr).contains("cannot start `/nowhere/ssh`"));
    pair.remote(&["probe", "bx"]).must(2, &["there is no remote `bx`; known: `box`"]);
    pair.remote(&["logs", "box", "chat-9"]).must(2, &["has no run `chat-9`"]);
    pair.remote(&["push", "box", &job, "--exclude", "[a"]).must(2, &["is not a pattern"]);
    pair.remote(&["push", "box", &job, "--exclude", "train.jsonl"]).must(2, &["is excluded, and the job needs it"]);
    let secret = pair.remote(&["add", "x", "ssh://me:geheim@host/dir"]);
    assert!(!secret.must(2, &["password"]).stderr.contains("geheim"));
    // A job that does not fit there, and a card that is not there.
    pair.remote(&["train", "box", &job, "--ram", "8MiB"]).must(3, &["too big: the smallest plan needs"]);
    if !Path::new("/dev/nvidiactl").exists() {
        for verb in ["plan", "train"] {
            let card = pair.remote(&[verb, "box", &job, "--device", "cuda"]);
            assert!(matches!(card.code, Some(1 | 2)), "{card:?}");
            assert!(card.stderr.contains("NVIDIA driver") && card.stderr.contains("--device auto"), "{}", card.stderr);
        }
    }
    assert!(!pair.far("runs").exists() || fs_err::read_dir(pair.far("runs")).unwrap().next().is_none());
}

#[test]
fn a_shell_that_talks_is_passed_over_and_one_that_says_something_else_is_told() {
    let pair = pair!("Banner none\nForceCommand echo welcome; eval \"$SSH_ORIGINAL_COMMAND\"");
    pair.remote(&["status", "box"]).must(0, &["has no run"]);
    let pair = pair!("ForceCommand echo only backups here");
    pair.remote(&["status", "box"]).must(1, &["answered something else", "only backups here"]);
}

#[test]
fn a_machine_of_another_kind_is_told_before_anything_is_sent() {
    let fake = tempfile::tempdir().unwrap();
    let uname = fake.path().join("uname");
    fs_err::write(&uname, "#!/bin/sh\necho Linux riscv64\n").unwrap();
    fs_err::set_permissions(&uname, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let pair = pair!(&format!("SetEnv PATH={}:/usr/bin:/bin", fake.path().display()));
    pair.remote(&["probe", "box"]).must(1, &["is Linux riscv64, and this plimsoll is built for Linux x86_64"]);
    assert_eq!(fs_err::read_dir(pair.far("bin")).unwrap().count(), 0);
}

#[test]
fn somebody_elses_trainer_runs_elsewhere_with_every_word() {
    let pair = ready!();
    let script = "#!/bin/sh\necho \"batch $2, in $(basename \"$PWD\"), called $3\"\nexit 0\n";
    fs_err::write(pair.near("train.sh"), script).unwrap();
    let words =
        ["run", "box", "--knob", "batch=--bs", "--stall-after", "60", "--", "sh", "train.sh", "--bs", "8 9", "x-{run}"];
    let started = pair.remote(&words);
    let run = started.must(0, &[]).stdout.trim().to_string();
    let charge = fs_err::read(pair.far(&format!("runs/{run}/launch.json"))).unwrap();
    let charge: serde_json::Value = serde_json::from_slice(&charge).unwrap();
    assert_eq!(charge["words"], serde_json::json!(["sh", "train.sh", "--bs", "8 9", "x-{run}"]));
    assert_eq!(charge["stall_after"], 60);
    let logs = pair.remote(&["logs", "box", &run, "-f", "--all"]);
    assert!(logs.must(0, &[]).stdout.contains("batch 8 9, in near, called x-{run}"), "{}", logs.stdout);
}

/// What the page at an address says of its run, where it is there.
fn page(address: &str) -> Option<String> {
    let mut page = TcpStream::connect(address).ok()?;
    let ask = format!("GET /view.json HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    page.write_all(ask.as_bytes()).ok()?;
    let mut answer = String::new();
    page.read_to_string(&mut answer).ok()?;
    answer.starts_with("HTTP/1.1 200").then_some(answer)
}

/// The processes in whose command line all of these are.
fn processes(words: &[&str]) -> Vec<Pid> {
    let line = |pid: &i32| fs_err::read(format!("/proc/{pid}/cmdline")).ok();
    let pids =
        fs_err::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let matching = pids.filter(|pid| {
        let line = line(pid).map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
        line.is_some_and(|line| words.iter().all(|word| line.contains(word)))
    });
    matching.filter_map(Pid::from_raw).collect()
}

#[test]
fn the_page_of_a_run_comes_through_the_tunnel_and_ends_with_us() {
    let pair = ready!();
    let workshop = workshop();
    let started = pair.remote(&["train", "box", &job(&workshop), "--steps", "100000"]);
    let run = started.must(0, &[]).stdout.trim().to_string();
    let mut watch = pair.command(&["watch", "box", &run, "--web", "--port", "0"]);
    let mut watch = Killed(watch.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut url = String::new();
    BufReader::new(watch.0.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let address = url.trim().strip_prefix("http://").unwrap().trim_end_matches('/').to_string();
    let answer = page(&address).unwrap();
    assert!(answer.contains("\"status\":\"running\""), "{answer}");
    // Killed, nothing of it is left on either side, and the run goes on.
    drop(watch);
    let (far, serving) = (pair.far("").display().to_string(), format!("watch runs/{run} --web"));
    until("the far side is gone", || processes(&[&far, &serving]).is_empty().then_some(()));
    // Nobody connects to look: a tunnel ends when nothing goes through it any more.
    let lead = format!("-L {address}:127.0.0.1:");
    until("the tunnel is gone", || processes(&[&lead]).is_empty().then_some(()));
    assert_eq!(pair.seen(&run)["alive"], true);
    pair.remote(&["stop", "box", &run]).must(0, &[]);
}

#[test]
fn a_full_disk_is_told_before_and_in_the_middle_and_what_was_sent_is_kept() {
    let pair = pair!("");
    // A disk of its own needs a mount namespace, which an sshd of its own thread must be in.
    drop(pair);
    let place = tempfile::tempdir().unwrap();
    let disk = match support_run::disk::Disk::mount(place.path().join("disk"), plimsoll_machine::Bytes::mib(160)) {
        Ok(disk) => disk,
        Err(why) => return println!("skipped: {why}"),
    };
    let pair = pair!("");
    let url = format!("ssh://127.0.0.1:{}{}", pair.port, place.path().join("disk/far").display());
    pair.remote(&["add", "small", &url]).must(0, &[]);
    pair.remote(&["status", "small"]).must(0, &[]);
    folder(&pair, 150 * MIB);
    pair.remote(&["push", "small", "--folder", "stuff"]).must(1, &["are to be sent", "--exclude"]);
    assert!(!place.path().join("disk/far/work").exists(), "nothing is begun that cannot end");
    // It fits, and then somebody else fills the disk while it is sent.
    folder(&pair, 30 * MIB);
    let proxy = Proxy::to(pair.port, &[Fate::Wait(8 * MIB as u64)]);
    let url = format!("ssh://127.0.0.1:{}{}", proxy.port, place.path().join("disk/far").display());
    pair.remote(&["add", "slow", &url]).must(0, &[]);
    let push = pair.command(&["push", "slow", "--folder", "stuff"]).stderr(Stdio::piped()).spawn().unwrap();
    until("a part is under way", || (proxy.met() > 0).then_some(()));
    disk.fill();
    proxy.let_go();
    let ended = push.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the disk is full") && stderr.contains("hint: make room there"), "{stderr}");
    disk.free();
    let told = pair.remote(&["push", "small", "--folder", "stuff", "--json"]).must(0, &[]).json();
    assert!(told["sent_bytes"].as_u64().unwrap() < 29 * MIB as u64, "{told}");
    assert_same(&pair.near("stuff/large"), &below(&place.path().join("disk/far/work"), "stuff").join("large"));
    // A run that ends while the disk is full: how it ended is written down all the same.
    let go = pair.path("go");
    let script = format!("#!/bin/sh\nwhile [ ! -e {} ]; do sleep 0.05; done\nexit 7\n", go.display());
    fs_err::write(pair.near("train.sh"), script).unwrap();
    let started = pair.remote(&["run", "small", "--exclude", "stuff", "--", "sh", "train.sh"]);
    let run = started.must(0, &["goes on at `small`"]).stdout.trim().to_string();
    disk.fill();
    fs_err::write(&go, "").unwrap();
    let ending = until("it has ended", || {
        let all = pair.remote(&["status", "small", "--json"]).must(0, &[]).json();
        let seen = all["runs"].as_array().unwrap().iter().find(|seen| seen["run"] == run.as_str()).unwrap().clone();
        (seen["alive"] == false).then(|| seen["ending"].clone())
    });
    assert!(ending["code"].as_i64().is_some_and(|code| code != 0), "{ending}");
    disk.free();
}

#[test]
fn a_full_disk_here_is_told_before_and_in_the_middle_and_what_came_is_kept() {
    drop(ready!());
    let place = tempfile::tempdir().unwrap();
    let disk = match support_run::disk::Disk::mount(place.path().join("disk"), plimsoll_machine::Bytes::mib(48)) {
        Ok(disk) => disk,
        Err(why) => return println!("skipped: {why}"),
    };
    let pair = ready!();
    folder(&pair, 30 * MIB);
    fs_err::create_dir_all(pair.far("runs/a-1")).unwrap();
    fs_err::write(pair.far("runs/a-1/journal.jsonl"), "").unwrap();
    fs_err::rename(pair.near("stuff/large"), pair.far("runs/a-1/large")).unwrap();
    let out = place.path().join("disk/here").display().to_string();
    let proxy = Proxy::to(pair.port, &[]);
    pair.lead("far", proxy.port);
    pair.remote(&["add", "far", &format!("ssh://far{}", pair.far("").display())]).must(0, &[]);
    pair.remote(&["status", "far"]).must(0, &[]);
    // Two connections have been made and some blocks have been asked for.
    let proxy = Proxy::to(pair.port, &[Fate::Wait(2 * proxy.sent() + 1000)]);
    pair.lead("far", proxy.port);
    let pull = pair.command(&["pull", "far", "--out", &out]).stderr(Stdio::piped()).spawn().unwrap();
    until("blocks are under way", || (proxy.met() > 0).then_some(()));
    disk.fill();
    proxy.let_go();
    let ended = pull.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    let words = ["cannot write `", "large", "No space left on device", "hint: make room here"];
    assert!(words.iter().all(|word| stderr.contains(word)), "{stderr}");
    pair.remote(&["pull", "far", "--out", &out]).must(1, &["are to be sent"]);
    disk.free();
    let told = pair.remote(&["pull", "far", "--out", &out, "--json"]).must(0, &[]).json();
    assert!(told["sent_bytes"].as_u64().unwrap() < 30 * MIB as u64, "{told}");
    assert_same(&pair.far("runs/a-1/large"), &place.path().join("disk/here/large"));
}
