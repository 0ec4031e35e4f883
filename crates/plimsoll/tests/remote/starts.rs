//! What is started: compared with what was asked for, however slowly it begins, and stopped where it is something else.

use super::*;

/// A run that was started in `words`, which are still waited for.
fn starting(pair: &Pair, words: &[&str]) -> Killed {
    Killed(pair.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// How it ended, once it has.
fn told(mut child: Killed) -> Said {
    let (mut out, mut err) = (String::new(), String::new());
    child.0.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    child.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    Said { code: child.0.wait().unwrap().code(), stdout: out, stderr: err }
}

/// No run is alive any more, of so many.
fn all_end(pair: &Pair, count: usize) {
    until("all have ended", || {
        let all = pair.remote(&["status", "box", "--json"]).json();
        let runs = all["runs"].as_array().unwrap();
        assert_eq!(runs.len(), count, "{all}");
        runs.iter().all(|seen| seen["alive"] == false).then_some(())
    });
}

#[test]
fn a_knob_that_gets_lost_is_an_error_and_its_run_is_stopped_over_whatever_connection() {
    let pair = ready!();
    let workshop = workshop();
    let job = job(&workshop);
    pair.remote(&["push", "box", &job]).must(0, &[]);
    // A far side that loses a setting between what it is told and what it starts, as wrappers do; and a connection that is
    // gone when the stop is asked for, once.
    let filter = "while (sysread(STDIN, $b, 65536)) { if (index($b, q(\"ask\":\"stop\")) >= 0 && !-e $ARGV[0]) \
                  { open(F, q(>), $ARGV[0]); exit } syswrite(STDOUT, $b) }";
    let cut = pair.far("cut");
    pair.wrap(&format!(
        "if [ \"$1\" = train ]; then sed -i '/^seed/d' \"$2\"; fi\nif [ \"$2\" = serve ]; then\n  perl -e '{filter}' {} | \
         \"$real\" \"$@\"; exit\nfi",
        cut.display()
    ));
    let started = pair.remote(&["train", "box", &job, "--seed", "7", "--steps", "100000"]);
    let words =
        ["are not those that were asked for", "`train.seed`: asked `7`, arrived `1`", "was lost", "was stopped"];
    started.must(1, &words);
    assert!(cut.exists(), "no connection was cut");
    all_end(&pair, 1);
}

#[test]
fn a_run_that_has_begun_is_left_alone_by_who_asks_for_it_again_and_finds_it_different() {
    let pair = ready!();
    let workshop = workshop();
    let job = job(&workshop);
    let train = ["train", "box", &job, "--seed", "7", "--steps", "100000"];
    let run = pair.remote(&train).must(0, &["by itself"]).stdout.trim().to_string();
    // As an earlier version might have written it.
    let echo = pair.far(&format!("runs/{run}/job.toml"));
    let text = fs_err::read_to_string(&echo).unwrap();
    assert!(text.contains("\nseed = 7 "), "{text}");
    fs_err::write(&echo, text.replace("\nseed = 7 ", "\nseed = 8 ")).unwrap();
    pair.remote(&train).must(1, &["`train.seed`: asked `7`, arrived `8`", "goes on as it is"]);
    // Nobody has asked it to stop, so it makes more steps.
    let step = pair.seen(&run)["step"].as_u64().unwrap();
    until("it goes on", || (pair.seen(&run)["step"].as_u64().unwrap() > step).then_some(()));
    assert_eq!(pair.seen(&run)["alive"], true);
    pair.remote(&["stop", "box", &run]).must(0, &["is stopped"]);
    all_end(&pair, 1);
}

#[test]
fn a_trainer_that_starts_slowly_is_waited_for_without_the_lock_and_compared() {
    let pair = ready!();
    fs_err::write(pair.near("train.sh"), "#!/bin/sh\nsleep 1000\n").unwrap();
    pair.remote(&["push", "box", "--folder", "."]).must(0, &[]);
    let go = pair.far("go");
    pair.wrap(&format!(
        "if [ \"$1\" = run ]; then\n  while [ ! -e {} ]; do sleep 0.05; done\n  [ \"$4\" = --stall-after=60 ] || exit 9\n  \
         out=$3; shift 4; exec \"$real\" run --out \"$out\" \"$@\"\nfi",
        go.display()
    ));
    let words = ["run", "box", "--stall-after", "60", "--", "sh", "train.sh"];
    let child = starting(&pair, &words);
    until("it is being started", || pair.far("logs").join("generic-1.json").exists().then_some(()));
    // Others may push, and whoever asks again finds it.
    fs_err::write(pair.near("other"), "more").unwrap();
    pair.remote(&["push", "box", "--folder", "."]).must(0, &[]);
    fs_err::write(&go, "").unwrap();
    told(child).must(1, &["`stall_after`: asked `60`, arrived", "was stopped"]);
    all_end(&pair, 1);
}

#[test]
fn a_resume_that_does_not_fit_any_more_says_so_however_the_run_ended_before() {
    let pair = ready!();
    let workshop = workshop();
    let run =
        pair.remote(&["train", "box", &job(&workshop), "--steps", "100000"]).must(0, &[]).stdout.trim().to_string();
    pair.remote(&["stop", "box", &run]).must(0, &["is stopped at step"]);
    let job = pair.far(&format!("runs/{run}/job.toml"));
    let fits = fs_err::read_to_string(&job).unwrap();
    assert!(fits.contains("ram = \"256.0 MiB\"") || fits.contains("ram = \"256MiB\""), "{fits}");
    let small = fits.replace("256.0 MiB", "8MiB").replace("256MiB", "8MiB");
    fs_err::write(&job, &small).unwrap();
    pair.remote(&["resume", "box", &run]).must(3, &["too big", "ended"]);
    // Killed, its records have no end.
    fs_err::write(&job, &fits).unwrap();
    pair.remote(&["resume", "box", &run]).must(0, &["goes on at `box` by itself"]);
    let worker = worker(&pair, &run);
    for pid in pair.kept().into_iter().chain([worker]) {
        kill_process(pid, Signal::KILL).unwrap();
    }
    until("it is dead", || (pair.seen(&run)["status"] == "dead").then_some(()));
    fs_err::write(&job, &small).unwrap();
    pair.remote(&["resume", "box", &run]).must(3, &["too big", "ended"]);
}

#[test]
fn a_stop_that_comes_too_late_tells_how_the_run_ended() {
    let pair = ready!();
    let workshop = workshop();
    let run =
        pair.remote(&["train", "box", &job(&workshop), "--steps", "100000"]).must(0, &[]).stdout.trim().to_string();
    // Behind what one connection sends: it looks for the run over the first, and asks it to stop over the second.
    let proxy = Proxy::to(pair.port, &[]);
    pair.add("counted", proxy.port);
    pair.remote(&["status", "counted"]).must(0, &[]);
    let proxy = Proxy::to(pair.port, &[Fate::Wait(proxy.sent() + 100)]);
    pair.add("late", proxy.port);
    let stop = starting(&pair, &["stop", "late", &run]);
    until("the second connection waits", || (proxy.met() > 0).then_some(()));
    pair.remote(&["stop", "box", &run]).must(0, &["is stopped at step"]);
    proxy.let_go();
    told(stop).must(0, &["is stopped at step"]);
}

/// A process that is halted until the test is done with it.
struct Halted(Pid);

impl Halted {
    /// The keeper of a run's process: its parent.
    fn keeper_of(pid: Pid) -> Halted {
        let (_, parent) = state(pid);
        kill_process(parent, Signal::STOP).unwrap();
        Halted(parent)
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// What a process is doing, and who started it.
fn state(pid: Pid) -> (char, Pid) {
    let stat = fs_err::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    let mut fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    let state = fields.next().unwrap().chars().next().unwrap();
    (state, Pid::from_raw(fields.next().unwrap().parse().unwrap()).unwrap())
}

#[test]
fn a_run_whose_keeper_has_yet_to_write_down_how_it_ended_is_waited_for() {
    let pair = ready!();
    let workshop = workshop();
    let job = job(&workshop);
    let run = pair.remote(&["train", "box", &job, "--steps", "100000"]).must(0, &[]).stdout.trim().to_string();
    // It has ended, and its keeper does not get to it.
    let end = || {
        let process = pair.kept()[0];
        let keeper = Halted::keeper_of(process);
        let stop = starting(&pair, &["stop", "box", &run]);
        until("it has ended", || (state(process).0 == 'Z').then_some(()));
        (keeper, stop)
    };
    let (keeper, stop) = end();
    let seen = pair.seen(&run);
    assert!(seen["alive"] == true && seen["ending"].is_null(), "{seen}");
    drop(keeper);
    told(stop).must(0, &["is stopped at step"]);
    // Started again meanwhile, nothing of the first start is written over what is written down of the second.
    pair.remote(&["resume", "box", &run]).must(0, &["by itself"]);
    let (keeper, stop) = end();
    drop(stop);
    let resume = starting(&pair, &["resume", "box", &run]);
    let sessions = [pair.far("").display().to_string(), "serve".to_string()];
    until("it is asked for", || (!processes(&[&sessions[0], &sessions[1]]).is_empty()).then_some(()));
    drop(keeper);
    told(resume).must(0, &["goes on at `box` by itself"]);
    let seen = pair.seen(&run);
    assert!(seen["alive"] == true && seen["ending"].is_null(), "{seen}");
    pair.remote(&["stop", "box", &run]).must(0, &["is stopped at step"]);
}

#[test]
fn a_run_that_goes_on_by_hand_is_told_and_not_called_ended() {
    let pair = ready!();
    let workshop = workshop();
    let run =
        pair.remote(&["train", "box", &job(&workshop), "--steps", "100000"]).must(0, &[]).stdout.trim().to_string();
    pair.remote(&["stop", "box", &run]).must(0, &["is stopped at step"]);
    let mut by_hand = Command::new(pair.far_program());
    by_hand.arg("resume").arg(pair.far("runs").join(&run)).current_dir(pair.far(""));
    let mut by_hand = Killed(by_hand.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let seen = until("it works", || Some(pair.seen(&run)).filter(|seen| seen["by_hand"] == true));
    assert_eq!(seen["alive"], false, "{seen}");
    let told_so = ["works there, but was not started from afar", "hint: stop it where it was started"];
    pair.remote(&["stop", "box", &run]).must(1, &told_so);
    let logs = starting(&pair, &["logs", "box", &run, "-f"]);
    pair.remote(&["resume", "box", &run]).must(2, &["ended"]);
    kill_process(Pid::from_child(&by_hand.0), Signal::TERM).unwrap();
    by_hand.0.wait().unwrap();
    told(logs).must(0, &["was not last started from afar"]);
    pair.remote(&["stop", "box", &run]).must(0, &["nobody works on"]);
}

#[test]
fn what_nobody_keeps_does_not_begin() {
    let folder = tempfile::tempdir().unwrap();
    let begun = folder.path().join("begun");
    let begin = |said: &str| {
        let mut begin = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        begin.args(["remote-agent", "begin", "/bin/sh", "--", "-c", "echo $1 > $0"]).arg(&begun).arg("x");
        let mut child = begin.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(said.as_bytes()).unwrap();
        child.wait().unwrap().code()
    };
    assert_eq!((begin(""), begun.exists()), (Some(1), false));
    assert_eq!((begin("\n"), fs_err::read_to_string(&begun).unwrap().as_str()), (Some(0), "x\n"));
}

#[test]
fn a_trainer_that_is_only_known_here_is_an_error_and_its_run_is_stopped() {
    let pair = ready!();
    let trainers = pair.path("config/plimsoll/trainers");
    fs_err::create_dir_all(&trainers).unwrap();
    let mine = "name = \"mine\"\nsays = \"ours\"\nbase = \"generic\"\n[recognise]\nflags = [\"--mine\"]\n";
    fs_err::write(trainers.join("mine.toml"), mine).unwrap();
    fs_err::write(pair.near("train.sh"), "#!/bin/sh\nsleep 1000\n").unwrap();
    let command = ["--", "sh", "train.sh", "--mine"];
    let differs = ["`understood.trainer`: asked `\"mine\"`, arrived `\"generic\"`", "was stopped"];
    pair.remote(&[&["run", "box"], &command[..]].concat()).must(1, &differs);
    all_end(&pair, 1);
    // In the folder that is sent it is known there too.
    fs_err::rename(trainers.join("mine.toml"), pair.near("mine.toml")).unwrap();
    let run = pair.remote(&[&["run", "box", "--trainer", "mine.toml"], &command[..]].concat());
    let run = run.must(0, &["goes on at `box`"]).stdout.trim().to_string();
    // The same order finds it; by another definition it is another one, and the first goes on.
    let again = || pair.remote(&[&["run", "box", "--trainer", "mine.toml"], &command[..]].concat());
    assert_eq!(again().must(0, &["is running on `box` already"]).stdout.trim(), run);
    fs_err::write(pair.near("mine.toml"), mine.replace("ours", "ours too")).unwrap();
    let other = again().must(0, &["goes on at `box`"]).stdout.trim().to_string();
    assert!(other != run && pair.seen(&run)["alive"] == true, "{other}");
    for run in [&run, &other] {
        pair.remote(&["stop", "box", run]);
    }
    all_end(&pair, 3);
}
