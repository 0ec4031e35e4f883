//! Copying to a folder and back: what is there, what never gets there, what leaves, and what a fetch makes of damage.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use fs_err as fs;
use plimsoll_machine::Bytes;
use plimsoll_mirror::{End, Fetched, MirrorError, Report, Wish, fetch, once, state};
use plimsoll_recover::checkpoint::{self, Writer};
use serde_json::json;

/// A run, and the folder that it is mirrored to.
struct Workshop {
    dir: tempfile::TempDir,
}

impl Workshop {
    fn new() -> Workshop {
        let workshop = Workshop { dir: tempfile::tempdir().unwrap() };
        fs::create_dir_all(workshop.path("model")).unwrap();
        for name in ["config.json", "tokenizer.json", "model.safetensors"] {
            fs::write(workshop.path("model").join(name), format!("the base's {name}")).unwrap();
        }
        fs::create_dir_all(workshop.path("run")).unwrap();
        fs::write(workshop.path("run/job.toml"), "[model]\n").unwrap();
        fs::write(workshop.path("run/plan.json"), "{}").unwrap();
        fs::write(workshop.path("run/journal.jsonl"), "{}\n").unwrap();
        workshop
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn url(&self) -> String {
        format!("file://{}", self.path("there").display())
    }

    fn wish(&self) -> Wish {
        Wish { run: self.path("run"), model: self.path("model"), url: self.url(), rate: None, keep: None }
    }

    /// Saves a checkpoint whose weights are `length` bytes that depend on `seed`.
    fn save(&self, step: u64, length: usize, seed: u8, facts: serde_json::Value) -> PathBuf {
        let mut writer = Writer::begin(&self.path("run/checkpoints"), step).unwrap();
        let bytes: Vec<u8> = (0..length).map(|at| (at as u64).wrapping_mul(2654435761) as u8 ^ seed).collect();
        writer.file("weights.safetensors", |sink| sink.write_all(&bytes)).unwrap();
        writer.file("evals.json", |sink| sink.write_all(b"[]")).unwrap();
        writer.finish(facts).unwrap()
    }

    fn copy(&self) -> (Result<End, MirrorError>, Vec<Report>) {
        self.copy_as(&self.wish())
    }

    fn copy_as(&self, wish: &Wish) -> (Result<End, MirrorError>, Vec<Report>) {
        let mut told = Vec::new();
        let end = once(wish, &mut |report| told.push(report));
        (end, told)
    }

    fn fetch(&self, out: &str) -> (Result<Fetched, MirrorError>, Vec<Report>) {
        let mut told = Vec::new();
        let fetched = fetch(&self.url(), &self.path(out), &mut |report| told.push(report));
        (fetched, told)
    }

    /// Steps at the mirror that have a manifest.
    fn there(&self) -> BTreeSet<u64> {
        let dir = self.path("there/checkpoints");
        let names = fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap());
        let whole = names.filter(|entry| entry.path().join("manifest.json").exists());
        whole.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("step-")?.parse().ok()).collect()
    }
}

fn all_there(end: Result<End, MirrorError>) {
    assert_eq!(end.unwrap(), End::AllThere);
}

fn mirrored(told: &[Report]) -> Vec<Option<u64>> {
    told.iter()
        .filter_map(|report| if let Report::Mirrored { step, .. } = report { Some(*step) } else { None })
        .collect()
}

fn same(a: &Path, b: &Path) {
    assert_eq!(fs::read(a).unwrap(), fs::read(b).unwrap(), "{} and {}", a.display(), b.display());
}

fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn everything_that_a_fresh_machine_needs_is_there_and_the_weights_of_the_base_are_not() {
    let workshop = Workshop::new();
    let kept = workshop.save(10, 20 << 20, 1, json!({}));
    fs::create_dir(workshop.path("run/model")).unwrap();
    fs::write(workshop.path("run/model/config.json"), "{}").unwrap();
    fs::write(workshop.path("run/model/model.safetensors"), vec![3; 9 << 20]).unwrap();
    fs::write(workshop.path("run/summary.json"), "{}").unwrap();
    let (end, told) = workshop.copy();
    all_there(end);
    assert_eq!(mirrored(&told), [Some(10), None]);
    for name in ["job.toml", "plan.json", "journal.jsonl", "summary.json", "model/model.safetensors"] {
        same(&workshop.path("run").join(name), &workshop.path("there").join(name));
    }
    for name in ["weights.safetensors", "evals.json", "manifest.json"] {
        same(&kept.join(name), &workshop.path("there/checkpoints/step-10").join(name));
    }
    same(&workshop.path("model/tokenizer.json"), &workshop.path("there/base/tokenizer.json"));
    assert!(!workshop.path("there/base/model.safetensors").exists());
    assert!(workshop.path("there/model/.complete").exists() && workshop.path("there/base/.complete").exists());
    assert!(state::read(&workshop.path("run")).unwrap().lets_go(10));
}

#[test]
fn what_is_there_is_not_copied_again_and_what_changed_is() {
    let workshop = Workshop::new();
    workshop.save(10, 1000, 1, json!({}));
    all_there(workshop.copy().0);
    let (end, told) = workshop.copy();
    all_there(end);
    assert_eq!(told, []);
    // After a resume from step 5 the same step is saved anew, and says something else.
    workshop.save(10, 1000, 2, json!({}));
    fs::write(workshop.path("run/plan.json"), "{ }").unwrap();
    let (end, told) = workshop.copy();
    all_there(end);
    assert_eq!(mirrored(&told), [Some(10)]);
    let name = "checkpoints/step-10/weights.safetensors";
    same(&workshop.path("run").join(name), &workshop.path("there").join(name));
    same(&workshop.path("run/plan.json"), &workshop.path("there/plan.json"));
}

#[test]
fn a_lost_state_costs_no_second_copy() {
    let workshop = Workshop::new();
    workshop.save(10, 1000, 1, json!({}));
    all_there(workshop.copy().0);
    let file = workshop.path("there/checkpoints/step-10/weights.safetensors");
    let before = fs::metadata(&file).unwrap().modified().unwrap();
    let run = state::read(&workshop.path("run")).unwrap().run;
    fs::write(workshop.path("run/mirror/state.json"), json!({ "run": run }).to_string()).unwrap();
    all_there(workshop.copy().0);
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), before);
    assert!(state::read(&workshop.path("run")).unwrap().lets_go(10));
}

#[test]
fn a_checkpoint_that_rotted_on_disk_is_never_there_and_the_others_are() {
    let workshop = Workshop::new();
    workshop.save(10, 12 << 20, 1, json!({}));
    let rotten = workshop.save(20, 12 << 20, 2, json!({}));
    flip(&rotten.join("weights.safetensors"));
    let (end, told) = workshop.copy();
    let End::Without(problems) = end.unwrap() else { panic!("all of it is said to be there") };
    assert!(problems[0].contains("step 20") && problems[0].contains("expected checksum"), "{problems:?}");
    assert!(told.iter().any(|report| matches!(report, Report::Trouble { .. })), "{told:?}");
    assert_eq!(workshop.there(), [10].into());
    assert!(!workshop.path("there/checkpoints/step-20").exists(), "what was written of it is removed");
    assert!(!state::read(&workshop.path("run")).unwrap().lets_go(20));
}

#[test]
fn old_ones_leave_but_not_the_best() {
    let workshop = Workshop::new();
    let wish = Wish { keep: Some(2), ..workshop.wish() };
    for step in [10, 20, 30, 40] {
        workshop.save(step, 500, 1, json!({ "best_step": 10 }));
        all_there(workshop.copy_as(&wish).0);
    }
    assert_eq!(workshop.there(), [10, 30, 40].into());
    assert!(!workshop.path("there/checkpoints/step-20").exists());
    assert!((1..=4).all(|n| state::read(&workshop.path("run")).unwrap().lets_go(n * 10)));
}

#[test]
fn what_would_leave_at_once_is_not_copied_and_may_go_here() {
    let workshop = Workshop::new();
    for step in [10, 20, 30] {
        workshop.save(step, 500, 1, json!({}));
    }
    let (end, told) = workshop.copy_as(&Wish { keep: Some(1), ..workshop.wish() });
    all_there(end);
    assert_eq!(mirrored(&told), [Some(30)]);
    assert!(state::read(&workshop.path("run")).unwrap().lets_go(10));
}

#[test]
fn another_runs_mirror_is_left_alone() {
    let workshop = Workshop::new();
    workshop.save(10, 500, 1, json!({}));
    all_there(workshop.copy().0);
    fs::remove_dir_all(workshop.path("run/mirror")).unwrap();
    let error = workshop.copy().0.unwrap_err();
    assert!(matches!(error, MirrorError::OtherRun { .. }), "{error}");
}

#[test]
fn a_capped_copy_is_a_whole_one() {
    let workshop = Workshop::new();
    workshop.save(10, 9 << 20, 1, json!({}));
    all_there(workshop.copy_as(&Wish { rate: Some(Bytes::mib(512)), ..workshop.wish() }).0);
    let name = "checkpoints/step-10/weights.safetensors";
    same(&workshop.path("run").join(name), &workshop.path("there").join(name));
}

#[test]
fn what_a_killed_write_left_is_swept_away() {
    let workshop = Workshop::new();
    workshop.save(10, 9 << 20, 1, json!({}));
    let home = workshop.path("there/checkpoints/step-10");
    fs::create_dir_all(&home).unwrap();
    fs::write(home.join("weights.safetensors#1"), "half").unwrap();
    fs::write(home.join("manifest.json#3"), "half").unwrap();
    all_there(workshop.copy().0);
    let left: BTreeSet<_> = fs::read_dir(&home).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn a_fetch_takes_the_highest_step_and_not_the_latest_date() {
    let workshop = Workshop::new();
    for step in [9, 100] {
        workshop.save(step, 700, step as u8, json!({}));
    }
    all_there(workshop.copy().0);
    // The lower one is touched last, and sorts last as a text.
    let old = workshop.path("there/checkpoints/step-9");
    for entry in fs::read_dir(&old).unwrap() {
        let file = fs::OpenOptions::new().append(true).open(entry.unwrap().path()).unwrap();
        file.file().set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(3600)).unwrap();
    }
    let (fetched, _) = workshop.fetch("copy");
    let fetched = fetched.unwrap();
    assert_eq!(fetched.step, 100);
    assert_eq!(checkpoint::verify(&workshop.path("copy/checkpoints/step-100")).unwrap().step, 100);
    same(&workshop.path("copy/job.toml"), &workshop.path("run/job.toml"));
    same(&fetched.base.unwrap().join("tokenizer.json"), &workshop.path("model/tokenizer.json"));
}

#[test]
fn a_damaged_checkpoint_there_is_passed_over_and_told() {
    let workshop = Workshop::new();
    for step in [10, 20, 30] {
        workshop.save(step, 700, 1, json!({}));
    }
    all_there(workshop.copy().0);
    flip(&workshop.path("there/checkpoints/step-30/weights.safetensors"));
    flip(&workshop.path("there/checkpoints/step-20/manifest.json"));
    let (fetched, told) = workshop.fetch("copy");
    assert_eq!(fetched.unwrap().step, 10);
    let passed = |report: &Report| if let Report::PassedOver { step, .. } = report { Some(*step) } else { None };
    assert_eq!(told.iter().filter_map(passed).collect::<Vec<_>>(), [30, 20]);
    assert_eq!(checkpoint::list(&workshop.path("copy/checkpoints")).unwrap().len(), 1);
    flip(&workshop.path("there/checkpoints/step-10/evals.json"));
    let error = workshop.fetch("other").0.unwrap_err();
    assert!(matches!(&error, MirrorError::NoneWhole { tried, .. } if tried == &[30, 20, 10]), "{error}");
}

#[test]
fn what_was_brought_is_not_brought_again_and_half_a_file_is_gone_on_with() {
    let workshop = Workshop::new();
    workshop.save(10, 3 << 20, 1, json!({}));
    all_there(workshop.copy().0);
    workshop.fetch("copy").0.unwrap();
    let home = workshop.path("copy/checkpoints/step-10");
    let whole = fs::read(home.join("weights.safetensors")).unwrap();
    // As a fetch leaves it that was killed in the middle of the weights; the other file is gone at the mirror.
    let halfway = workshop.path("copy/checkpoints/.fetch-step-10");
    fs::rename(&home, &halfway).unwrap();
    fs::remove_file(halfway.join("weights.safetensors")).unwrap();
    fs::write(halfway.join(".weights.safetensors.half"), &whole[..1 << 20]).unwrap();
    fs::remove_file(workshop.path("there/checkpoints/step-10/evals.json")).unwrap();
    // Were the first half brought again, it would be wrong.
    let there = workshop.path("there/checkpoints/step-10/weights.safetensors");
    let mut bytes = fs::read(&there).unwrap();
    bytes[..1 << 20].fill(0);
    fs::write(&there, bytes).unwrap();
    assert_eq!(workshop.fetch("copy").0.unwrap().step, 10);
    assert_eq!(fs::read(home.join("weights.safetensors")).unwrap(), whole);
    assert!(!halfway.exists());
}

#[test]
fn a_folder_with_something_else_in_it_is_not_written_into() {
    let workshop = Workshop::new();
    workshop.save(10, 500, 1, json!({}));
    all_there(workshop.copy().0);
    fs::create_dir(workshop.path("copy")).unwrap();
    fs::write(workshop.path("copy/thesis.tex"), "mine").unwrap();
    let error = workshop.fetch("copy").0.unwrap_err();
    assert!(matches!(error, MirrorError::NotACopy { .. }), "{error}");
    assert_eq!(fs::read_dir(workshop.path("copy")).unwrap().count(), 1);
}

#[test]
fn a_fetched_run_goes_on_with_the_same_mirror() {
    let workshop = Workshop::new();
    workshop.save(10, 500, 1, json!({}));
    all_there(workshop.copy().0);
    workshop.fetch("copy").0.unwrap();
    let mut writer = Writer::begin(&workshop.path("copy/checkpoints"), 20).unwrap();
    writer.file("weights.safetensors", |sink| sink.write_all(b"more")).unwrap();
    writer.finish(json!({})).unwrap();
    let wish = Wish { run: workshop.path("copy"), model: workshop.path("copy/base"), ..workshop.wish() };
    let (end, told) = workshop.copy_as(&wish);
    all_there(end);
    assert_eq!(mirrored(&told), [Some(20)]);
    assert_eq!(workshop.there(), [10, 20].into());
}

#[test]
fn a_mirror_without_a_run_or_a_checkpoint_is_told_as_what_it_is() {
    let workshop = Workshop::new();
    fs::create_dir(workshop.path("there")).unwrap();
    assert!(matches!(workshop.fetch("copy").0, Err(MirrorError::NoRun { .. })));
    all_there(workshop.copy().0);
    assert!(matches!(workshop.fetch("copy").0, Err(MirrorError::NoCheckpoint { .. })));
    assert!(!workshop.path("copy").exists());
}
