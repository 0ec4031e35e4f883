//! Flag over job file over default; what is written into a run folder is what is read back.

use super::*;
use clap::Parser;
use plimsoll_plan::train::Anneal;

use crate::args::{Cli, Verb};

/// A folder with `m/` (a model folder), `a.jsonl`, `b.jsonl` and `e.jsonl`.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs_err::create_dir(dir.path().join("m")).unwrap();
    for name in ["a.jsonl", "b.jsonl", "e.jsonl"] {
        fs_err::write(dir.path().join(name), "").unwrap();
    }
    dir
}

/// Settings of `plimsoll plan` with `job` as job file in `dir` (none if empty) and `flags`.
fn resolve(dir: &Path, job: &str, flags: &[&str]) -> Result<Settings, Fail> {
    let file = dir.join("job.toml");
    let mut words = vec!["plimsoll".to_string(), "plan".to_string()];
    if !job.is_empty() {
        fs_err::write(&file, job).unwrap();
        words.push(file.to_str().unwrap().to_string());
    }
    words.extend(flags.iter().map(|flag| flag.replace("DIR", dir.to_str().unwrap())));
    match Cli::try_parse_from(words).unwrap().verb {
        Verb::Plan(args) => Settings::resolve(&args.job),
        other => panic!("{other:?}"),
    }
}

const SMALL: &str = "[model]\npath = \"m\"\n[data]\ntrain = [\"[ab].jsonl\"]\n";

#[test]
fn two_flags_are_a_job_and_all_else_is_a_default() {
    let dir = folder();
    let settings = resolve(dir.path(), "", &["--model", "DIR/m", "--data", "DIR/a.jsonl"]).unwrap();
    assert_eq!(settings.model, dir.path().join("m"));
    assert_eq!(settings.train_data, [dir.path().join("a.jsonl")]);
    assert_eq!(settings.effective_batch, 32);
    assert_eq!(settings.length, RunLength::Epochs(3));
    assert_eq!(settings.optimizer, OptimizerSpec::adafactor(1e-3));
    assert_eq!(settings.schedule, ScheduleSpec::CONSTANT);
    assert_eq!((settings.clip_norm, settings.eval_every, settings.save_every), (None, None, Some(500)));
    assert_eq!((settings.keep, settings.seed, settings.shuffle), (3, 1, true));
    assert_eq!((settings.ram, settings.disk, &settings.pins), (None, None, &Pins::default()));
    assert_eq!(settings.threads, std::thread::available_parallelism().unwrap().get());
    assert_eq!(settings.run_name(), "m");
    assert_eq!(settings.origin("model.path"), &Origin::Flag);
    assert_eq!(settings.origin("train.seed"), &Origin::Default);
}

#[test]
fn a_flag_outweighs_the_file_and_the_file_the_default() {
    let dir = folder();
    let job = format!("{SMALL}eval = \"e.jsonl\"\n[train]\nseed = 7\nkeep = 5\nepochs = 2\n");
    let settings = resolve(dir.path(), &job, &["--seed", "8", "--steps", "9", "--no-shuffle"]).unwrap();
    assert_eq!((settings.seed, settings.keep, settings.length), (8, 5, RunLength::Steps(9)));
    assert_eq!((settings.shuffle, settings.eval_every), (false, Some(200)));
    assert_eq!(settings.origin("train.seed").to_string(), "flag");
    assert_eq!(settings.origin("train.keep").to_string(), "given in job.toml, line 8");
    assert_eq!(settings.origin("train.effective_batch").to_string(), "default");
    let name = dir.path().file_name().unwrap().to_string_lossy().into_owned();
    assert_eq!(settings.run_name(), name);
}

#[test]
fn paths_in_a_job_start_from_the_jobs_folder_and_patterns_are_expanded_in_order() {
    let dir = folder();
    let settings = resolve(dir.path(), SMALL, &[]).unwrap();
    assert_eq!(settings.model, dir.path().join("m"));
    assert_eq!(settings.train_data, [dir.path().join("a.jsonl"), dir.path().join("b.jsonl")]);
}

#[test]
fn a_file_whose_name_looks_like_a_pattern_is_itself() {
    let dir = folder();
    fs_err::write(dir.path().join("[ab].jsonl"), "").unwrap();
    let settings = resolve(dir.path(), SMALL, &[]).unwrap();
    assert_eq!(settings.train_data, [dir.path().join("[ab].jsonl")]);
}

#[test]
fn naming_the_jobs_own_optimizer_again_keeps_its_numbers_and_another_starts_afresh() {
    let dir = folder();
    let job = format!("{SMALL}[train]\noptimizer = {{ name = \"adamw\", lr = 2e-4, weight_decay = 0.1 }}\n");
    let with = |flags: &[&str]| resolve(dir.path(), &job, flags).unwrap().optimizer;
    let own = OptimizerSpec::AdamW { lr: 2e-4, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.1 };
    assert_eq!(with(&[]), own);
    assert_eq!(with(&["--optimizer", "adamw"]), own);
    assert_eq!(with(&["--lr", "3e-4"]).lr(), Some(3e-4));
    assert_eq!(with(&["--optimizer", "adafactor"]), OptimizerSpec::adafactor(1e-3));
    assert_eq!(with(&["--optimizer", "sgd", "--lr", "0.5"]), OptimizerSpec::sgd(0.5));
    assert_eq!(with(&["--optimizer", "{ name = \"adafactor\" }"]), OptimizerSpec::adafactor_relative());
    let schedule = |flags: &[&str]| resolve(dir.path(), &job, flags).unwrap().schedule;
    assert_eq!(schedule(&["--warmup-steps", "4"]), ScheduleSpec::Constant { warmup_steps: 4 });
    assert_eq!(
        schedule(&["--schedule", "{ name = 'one-cycle', anneal_strategy = 'linear' }"]),
        ScheduleSpec::OneCycle {
            pct_start: 0.3,
            anneal_strategy: Anneal::Linear,
            div_factor: 25.0,
            final_div_factor: 1e4,
            three_phase: false
        }
    );
}

/// What must survive writing and reading: everything but where it was said.
fn values(settings: &Settings) -> Settings {
    Settings { job_file: None, origins: BTreeMap::new(), ..settings.clone() }
}

#[test]
fn a_run_folder_gives_back_the_settings_that_were_written() {
    let dir = folder();
    let jobs: &[(&str, &[&str])] = &[
        (SMALL, &[]),
        (SMALL, &["--init", "random", "--dropout", "0", "--eval", "DIR/e.jsonl", "--eval-every", "0"]),
        (SMALL, &["--source", "q \"x\" # y", "--target", "a\\b", "--max-source", "9", "--max-target", "8"]),
        (SMALL, &["--steps", "5", "--optimizer", "{ name = 'adafactor' }", "--save-every", "0", "--seed", "0"]),
        (SMALL, &["--optimizer", "{ name = 'adafactor', lr = 0.123456789012345678, beta1 = 0.9 }"]),
        (SMALL, &["--optimizer", "{ name = 'sgd', lr = 1, momentum = 0.9, nesterov = true }", "--clip-norm", "0.1"]),
        (
            SMALL,
            &["--optimizer", "adamw", "--schedule", "cosine", "--warmup-steps", "3", "--seed", "9223372036854775807"],
        ),
        (SMALL, &["--schedule", "one-cycle", "--ram", "1.5GiB", "--disk", "1234567", "--threads", "3", "--keep", "1"]),
        (
            SMALL,
            &["--schedule", "{ name = 'cosine-warm-restarts', t_0 = 9, t_mult = 2, eta_min = 1e-7 }", "--keep", "1"],
        ),
        (SMALL, &["--eval", "DIR/e.jsonl", "--early-stop", "{ patience = 4, min_delta = 1e-3 }"]),
        (SMALL, &["--micro-batch", "4", "--recompute", "all", "--loss-chunk", "64", "--loader-threads", "2"]),
        (SMALL, &["--recompute", "none", "--optimizer-in-backward", "on"]),
    ];
    for (job, flags) in jobs {
        let settings = resolve(dir.path(), job, flags).unwrap();
        let run = dir.path().join("run");
        fs_err::create_dir_all(&run).unwrap();
        settings.write_run(&run).unwrap();
        let back = Settings::from_run(&run).unwrap_or_else(|fail| panic!("{fail:?}\n{}", settings.to_toml()));
        assert_eq!(values(&back), values(&settings), "{}", settings.to_toml());
        assert_eq!(back.to_toml().matches("default").count(), 0, "a resolved job leaves nothing open");
    }
}

#[test]
fn the_resolved_job_says_where_each_value_came_from() {
    let dir = folder();
    let text = resolve(dir.path(), SMALL, &["--ram", "256MiB"]).unwrap().to_toml();
    for line in [
        "effective_batch = 32  # default",
        "ram = \"256MiB\"  # flag",
        "shuffle = true  # default",
        "optimizer = { name = \"adafactor\", clip_threshold = 1.0, decay_rate = -0.8, eps = [1e-30, 0.001], lr = 0.001, \
         relative_step = false, scale_parameter = false, warmup_init = false, weight_decay = 0.0 }  # default",
    ] {
        assert!(text.lines().any(|found| found == line), "`{line}` is not in:\n{text}");
    }
    assert!(text.contains("/m\"  # given in job.toml, line 2\n"), "{text}");
}

#[test]
fn a_run_outlives_its_data_and_its_first_model() {
    let dir = folder();
    let settings = resolve(dir.path(), SMALL, &["--eval", "DIR/e.jsonl"]).unwrap();
    let run = dir.path().join("run");
    fs_err::create_dir(&run).unwrap();
    settings.write_run(&run).unwrap();
    fs_err::remove_dir_all(dir.path().join("m")).unwrap();
    for name in ["a.jsonl", "b.jsonl", "e.jsonl"] {
        fs_err::remove_file(dir.path().join(name)).unwrap();
    }
    assert_eq!(values(&Settings::from_run(&run).unwrap()), values(&settings));
}

#[test]
fn a_folder_without_a_job_is_not_a_run() {
    let dir = folder();
    let fail = Settings::from_run(&dir.path().join("m")).unwrap_err();
    assert_eq!(fail.exit, crate::render::Exit::BadInput);
    assert!(fail.fact.unwrap().to_string().ends_with("is not a run: it has no `job.toml`"));
}
