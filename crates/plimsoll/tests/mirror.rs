//! Checkpoints reach a real S3 server, whatever is killed on the way, and a run comes back from it.

mod support_mirror;
mod support_run;

use plimsoll_watch::Event;
use rustix::process::Signal;
use support_mirror::server::SECRET;
use support_mirror::{Place, files_in, wait_for};
use support_run::trainer::Trainer;
use support_run::{PINS, Result, Workshop};

/// Slow enough that parts can be waited for, fast enough that a test is short.
const SLOW: &str = "rate = \"12MiB\"";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn must(output: &std::process::Output, code: i32) -> String {
    let told = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{told}");
    told
}

#[test]
fn a_run_is_copied_equal_and_a_second_copy_finds_nothing_to_do() {
    let place = Place::new("");
    place.save(10, 1);
    place.save(20, 20);
    let told = must(&place.copy(), 0);
    assert!(told.contains("checkpoint of step 20") && told.contains("all of `run` is at s3://"), "{told}");
    assert!(place.is_there(10) && place.is_there(20));
    assert!(place.there("job.toml").exists() && place.there("journal.jsonl").exists());
    assert_eq!(place.server.requests(&["POST", "uploads="]).len(), 1, "20 MiB are one upload in parts");
    assert_eq!(place.server.requests(&["PUT", "partNumber="]).len(), 3);
    let puts = place.server.requests(&["PUT"]).len();
    must(&place.copy(), 0);
    assert_eq!(place.server.requests(&["PUT"]).len(), puts);
}

#[test]
fn a_server_that_is_killed_during_an_upload_gets_the_rest_of_the_same_upload() {
    let mut place = Place::new(SLOW);
    place.save(10, 40);
    let copying = place.follow();
    let id = place.wait_for_parts(10, 2);
    place.server.kill();
    wait_for("the trouble to be told", || !place.troubles().is_empty());
    place.server.restart();
    wait_for("the checkpoint to be there", || place.state().lets_go(10));
    assert!(place.is_there(10));
    assert_eq!(copying.finish(), Some(0));
    let begun = place.server.requests(&["POST", "weights.safetensors", "uploads="]);
    assert_eq!(begun.len(), 1, "{begun:?}");
    assert_eq!(place.server.requests(&["POST", "weights.safetensors", &id, " 200"]).len(), 1);
    assert_eq!(place.server.requests(&["PUT", "partNumber=1&", " 200"]).len(), 1, "the first part went once");
}

#[test]
fn a_mirror_that_is_killed_during_an_upload_goes_on_with_it_and_sends_no_part_twice() {
    let place = Place::new(SLOW);
    place.save(10, 40);
    let copying = place.follow();
    let id = place.wait_for_parts(10, 2);
    copying.kill();
    let sent = place.state().uploads["checkpoints/step-10/weights.safetensors"].parts.len();
    assert!((2..5).contains(&sent), "{sent} parts had been written down");
    must(&place.copy(), 0);
    assert!(place.is_there(10));
    assert_eq!(place.server.requests(&["POST", "uploads="]).len(), 1);
    for part in 1..=sent {
        let requests = place.server.requests(&["PUT", &format!("partNumber={part}&"), &id]);
        assert_eq!(requests.len(), 1, "part {part}: {requests:?}");
    }
}

#[test]
fn an_upload_that_the_server_has_forgotten_begins_anew() {
    let place = Place::new(SLOW);
    place.save(10, 24);
    let copying = place.follow();
    let id = place.wait_for_parts(10, 1);
    copying.kill();
    for file in files_in(&place.path("server/objects")) {
        if file.file_name().is_some_and(|name| name.to_string_lossy().contains(&id)) {
            fs_err::remove_file(file).unwrap();
        }
    }
    must(&place.copy(), 0);
    assert!(place.is_there(10));
    assert_eq!(place.server.requests(&["POST", "uploads="]).len(), 2);
}

#[test]
fn while_the_server_is_away_the_run_goes_on_and_every_checkpoint_arrives() {
    let mut place = Place::new("");
    let copying = place.follow();
    place.save(10, 1);
    wait_for("the first checkpoint", || place.state().lets_go(10));
    place.server.kill();
    place.save(20, 9);
    wait_for("the trouble to be told", || !place.troubles().is_empty());
    place.save(30, 1);
    place.save(40, 1);
    place.server.restart();
    wait_for("all checkpoints", || [20, 30, 40].iter().all(|step| place.state().lets_go(*step)));
    assert!([10, 20, 30, 40].iter().all(|step| place.is_there(*step)));
    let troubles = place.troubles();
    let mut different = troubles.clone();
    different.dedup();
    assert_eq!(troubles, different, "a trouble is told once, not at each try");
    assert_eq!(copying.finish(), Some(0));
}

#[test]
fn asked_to_end_it_brings_what_is_there_first_and_asked_twice_it_ends_at_once() {
    let place = Place::new("");
    let copying = place.follow();
    wait_for("the job", || place.there("job.toml").exists());
    place.save(10, 20);
    fs_err::create_dir(place.path("run/model")).unwrap();
    fs_err::write(place.path("run/model/config.json"), "{}").unwrap();
    fs_err::write(place.path("run/summary.json"), "{}").unwrap();
    assert_eq!(copying.finish(), Some(0));
    assert!(place.is_there(10));
    for name in ["model/config.json", "model/.complete", "summary.json", "journal.jsonl"] {
        assert!(place.there(name).exists(), "{name}");
    }

    let slow = Place::new("rate = \"256KiB\"");
    slow.save(10, 20);
    let mut copying = slow.follow();
    wait_for("the upload to begin", || !slow.state().uploads.is_empty());
    copying.signal(Signal::TERM);
    copying.signal(Signal::INT);
    assert_eq!(copying.child.wait().unwrap().code(), Some(4));
    assert!(!slow.there("checkpoints/step-10/manifest.json").exists());
}

#[test]
fn a_bucket_that_is_not_there_is_told_and_not_waited_for() {
    let place = Place::new("");
    let job = fs_err::read_to_string(place.path("run/job.toml")).unwrap();
    fs_err::write(place.path("run/job.toml"), job.replace("s3://bucket", "s3://other")).unwrap();
    let told = must(&place.copy(), 1);
    assert!(told.contains("NoSuchBucket") && told.contains("plimsoll mirror run"), "{told}");
    assert!(place.troubles().iter().any(|trouble| trouble.contains("NoSuchBucket")), "{:?}", place.troubles());
}

#[test]
fn wrong_credentials_are_told_and_the_secret_is_nowhere() {
    let place = Place::new("");
    place.save(10, 9);
    let output = place.plimsoll(&["mirror", "run"]).env("AWS_SECRET_ACCESS_KEY", "wrong").output().unwrap();
    let told = must(&output, 1);
    assert!(told.contains("403"), "{told}");
    let right = must(&place.copy(), 0);
    // By the provider's file, too.
    let file = place.path("credentials");
    let lines =
        format!("[work]\naws_access_key_id = {}\naws_secret_access_key = {SECRET}\n", support_mirror::server::KEY_ID);
    fs_err::write(&file, lines).unwrap();
    place.save(20, 1);
    let mut command = place.plimsoll(&["mirror", "run"]);
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    command.env("AWS_SHARED_CREDENTIALS_FILE", &file).env("AWS_PROFILE", "work");
    let by_file = must(&command.output().unwrap(), 0);
    assert!(place.is_there(10) && place.is_there(20));
    for told in [told, right, by_file] {
        assert!(!told.contains(SECRET), "{told}");
    }
    let holds = |path: &std::path::PathBuf| {
        let bytes = fs_err::read(path).unwrap();
        bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes())
    };
    for dir in ["run", "server/objects/bucket"] {
        for file in files_in(&place.path(dir)) {
            assert!(!holds(&file), "{}", file.display());
        }
    }
}

#[test]
fn beside_a_run_another_runs_mirror_is_told_once_and_ends_nothing() {
    let place = Place::new("");
    must(&place.copy(), 0);
    fs_err::remove_dir_all(place.path("run/mirror")).unwrap();
    let mut copying = place.follow();
    wait_for("the trouble", || !place.troubles().is_empty());
    assert!(copying.child.try_wait().unwrap().is_none(), "it goes on trying");
    assert!(place.troubles()[0].contains("holds another run"), "{:?}", place.troubles());
    // Asked to end, it says that not everything is there.
    assert_eq!(copying.finish(), Some(2));
}

#[test]
fn two_do_not_copy_one_run_at_a_time() {
    let place = Place::new("");
    let copying = place.follow();
    wait_for("the job", || place.there("job.toml").exists());
    let told = must(&place.copy(), 2);
    assert!(told.contains("in use by process"), "{told}");
    assert_eq!(copying.finish(), Some(0));
}

#[test]
fn copying_a_large_checkpoint_stays_inside_the_memory_that_is_planned_for_it() {
    let place = Place::new("");
    place.save(10, 256);
    let mut copying = place.follow();
    let pid = copying.child.id();
    let mut peak = 0;
    wait_for("the checkpoint", || {
        let status = fs_err::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        peak = kib.map_or(peak, |kib| kib << 10);
        assert!(copying.child.try_wait().unwrap().is_none(), "it ended");
        place.state().lets_go(10)
    });
    assert!(place.is_there(10));
    assert_eq!(copying.finish(), Some(0));
    println!("peak of the copying process: {} KiB", peak >> 10);
    assert!(peak <= plimsoll_mirror::MEMORY.0, "{peak} of {}", plimsoll_mirror::MEMORY.0);
}

/// 60 rows, 8 epochs, 8 samples an update.
const COURSE: &str = "effective_batch = 8\nepochs = 8\nsave_every = 5\neval_every = 20\n\
                      optimizer = { name = \"adamw\", lr = 3e-3 }\n";

#[test]
fn a_run_that_comes_back_from_its_mirror_ends_as_the_one_that_never_left() {
    let place = Place::new("");
    let workshop = Workshop::new();
    workshop.job(&format!("{COURSE}{PINS}"));
    Trainer::train(&workshop, "undisturbed").end().must(0, &["done: 60 steps"]);
    let mut trainer = Trainer::train(&workshop, "run");
    trainer.wait_for_step(12).signal(Signal::TERM);
    trainer.end().must(4, &[]);
    let job = fs_err::read_to_string(workshop.path("run/job.toml")).unwrap();
    fs_err::write(workshop.path("run/job.toml"), format!("{job}\n[mirror]\nurl = \"{}\"\n", place.url())).unwrap();
    let run = workshop.path("run").display().to_string();
    must(&place.plimsoll(&["mirror", &run]).output().unwrap(), 0);

    // Another machine: neither the run nor the model's folder, and the data lies elsewhere.
    fs_err::remove_dir_all(workshop.path("run")).unwrap();
    fs_err::rename(workshop.path("model"), workshop.path("gone")).unwrap();
    for name in ["train.jsonl", "eval.jsonl"] {
        fs_err::rename(workshop.path(name), workshop.path(&format!("moved-{name}"))).unwrap();
    }
    let [train, eval] =
        ["train", "eval"].map(|name| workshop.path(&format!("moved-{name}.jsonl")).display().to_string());
    let url = place.url();
    let told = must(&place.plimsoll(&["resume", &url, "--out", "copy"]).output().unwrap(), 2);
    assert!(told.contains("data.train") && told.contains("--data"), "{told}");
    let words = ["resume", &url, "--out", "copy", "--data", &train, "--eval", &eval];
    must(&place.plimsoll(&words).output().unwrap(), 0);
    Result::of(&place.path("copy")).must_equal(&Result::of(&workshop.path("undisturbed")), "fetched");
}

#[test]
fn a_run_trains_on_while_its_mirror_is_away_and_every_checkpoint_arrives_whole() {
    let mut place = Place::new("");
    let workshop = Workshop::new();
    workshop.job(&format!("{COURSE}keep = 2\n{PINS}"));
    let url = place.url();
    let mut trainer = Trainer::train_with(&workshop, "run", |command| {
        place.server.environment(command);
        command.args(["--mirror", &url]);
    });
    trainer.wait_for_step(7);
    place.server.kill();
    // It trains on, and what the mirror lacks is kept beyond the two that would stay.
    trainer.wait_for_step(60);
    place.server.restart();
    trainer.end().must(0, &["done: 60 steps"]);
    let saved: Vec<u64> = plimsoll_watch::read(&workshop.path("run/journal.jsonl"))
        .unwrap()
        .records
        .iter()
        .filter_map(|record| match record.event {
            Event::Saved { step, .. } => Some(step),
            _ => None,
        })
        .collect();
    assert_eq!(saved.len(), 12);
    for step in saved {
        plimsoll_recover::checkpoint::verify(&place.there(&format!("checkpoints/step-{step}"))).unwrap();
    }
    let model = "model/model.safetensors";
    assert!(fs_err::read(place.there(model)).unwrap() == fs_err::read(workshop.path("run").join(model)).unwrap());
}

#[test]
fn a_url_without_a_checkpoint_is_refused_and_leaves_no_folder() {
    let place = Place::new("");
    let url = place.url();
    let told = must(&place.plimsoll(&["resume", &url]).output().unwrap(), 2);
    assert!(told.contains("holds no run"), "{told}");
    must(&place.copy(), 0);
    let told = must(&place.plimsoll(&["resume", &url, "--out", "copy"]).output().unwrap(), 2);
    assert!(told.contains("holds no checkpoint"), "{told}");
    assert!(!place.path("copy").exists());
}
