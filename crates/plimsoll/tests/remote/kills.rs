//! The near side, killed at each of its verbs: whatever it was at, the far side is as if it had not been asked, or as if it had
//! been, and the same verb goes on.

use super::*;

/// Bytes that go out after the greeting of ssh: what is asked for lies in them.
fn places() -> impl Iterator<Item = u64> {
    (2500..6500).step_by(1000)
}

fn alive(pair: &Pair) -> Vec<String> {
    let all = pair.remote(&["status", "box", "--json"]).must(0, &[]).json();
    let alive = all["runs"].as_array().unwrap().iter().filter(|seen| seen["alive"] == true);
    alive.map(|seen| seen["run"].as_str().unwrap().to_string()).collect()
}

/// Kills `words` as soon as the far side has started something, which must be the one run.
fn killed_when_started(pair: &Pair, words: &[&str]) {
    let child = Killed(pair.command(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    until("something is started", || pair.kept().first().copied());
    drop(child);
}

#[test]
fn an_install_and_a_run_that_are_killed_anywhere_leave_one_program_and_one_run() {
    let pair = pair!("");
    fs_err::write(pair.near("train.sh"), "#!/bin/sh\nsleep 1000\n").unwrap();
    let command = ["--", "sh", "train.sh"];
    killed_at(&pair, &[&["run", "held"], &command[..]].concat(), [0, 3000, MIB as u64, 3 * MIB as u64].into_iter());
    pair.remote(&["status", "box"]).must(0, &["has no run"]);
    killed_at(&pair, &[&["run", "held"], &command[..]].concat(), places());
    killed_when_started(&pair, &[&["run", "box"], &command[..]].concat());
    let said = pair.remote(&[&["run", "box"], &command[..]].concat());
    let run = said.must(0, &["is running on `box` already"]).stdout.trim().to_string();
    assert_eq!(alive(&pair), [run.as_str()]);
    assert_eq!(fs_err::read_dir(pair.far("bin")).unwrap().count(), 1);
    pair.remote(&["stop", "box", &run]).must(0, &[]);
}

#[test]
fn a_run_outlives_whoever_starts_stops_resumes_follows_or_fetches_it_and_is_killed() {
    let pair = ready!();
    let workshop = workshop();
    let job = job(&workshop);
    let train = ["train", "box", &job, "--steps", "100000"];
    pair.remote(&["push", "box", &job]).must(0, &[]);
    killed_when_started(&pair, &train);
    let run = pair.remote(&train).must(0, &["is running on `box` already"]).stdout.trim().to_string();
    let mut logs =
        pair.command(&["logs", "box", &run, "-f", "--all"]).stdout(Stdio::piped()).spawn().map(Killed).unwrap();
    BufReader::new(logs.0.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    drop(logs);
    assert_eq!(alive(&pair), [run.as_str()]);
    // It may have been stopped, if it was asked to; never is it anything else.
    killed_at(&pair, &["stop", "held", &run], places());
    pair.remote(&["stop", "box", &run]).must(0, &[]);
    let stopped = pair.seen(&run);
    assert_eq!((stopped["status"].as_str(), &stopped["ending"]["code"]), (Some("stopped"), &4.into()), "{stopped}");
    killed_at(&pair, &["pull", "held", &run, "--out", "here", "--checkpoints"], places());
    pair.remote(&["pull", "held", &run, "--out", "here", "--checkpoints"]).must(0, &[]);
    let (there, here) = (support_run::tree(&pair.far("runs").join(&run)), support_run::tree(&pair.near("here")));
    let relative = |tree: std::collections::BTreeMap<PathBuf, Vec<u8>>, root: PathBuf| {
        let own = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let files = tree.into_iter().filter(|(path, _)| path.is_file() && !own(path));
        files.map(|(path, bytes)| (path.strip_prefix(&root).unwrap().to_path_buf(), bytes)).collect::<Vec<_>>()
    };
    let there = relative(there, pair.far("runs").join(&run));
    assert!(there == relative(here, pair.near("here")), "what was fetched is not what is there");
    assert!(there.iter().any(|(path, _)| path.starts_with("checkpoints")));
    killed_at(&pair, &["resume", "held", &run], places());
    let said = pair.remote(&["resume", "box", &run]);
    assert!(["already", "by itself"].iter().any(|word| said.must(0, &[]).stderr.contains(word)), "{}", said.stderr);
    assert_eq!((alive(&pair), pair.kept().len()), (vec![run.clone()], 1));
    pair.remote(&["stop", "box", &run]).must(0, &["is stopped at step"]);
}
