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
