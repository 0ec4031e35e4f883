//! Every way in which a job can be wrong ends before anything starts: exit 2, the place, what was expected and found,
//! nothing on stdout, nothing written.

use std::path::Path;
use std::process::{Command, Output};

/// A folder with `m/` (a model folder), `a.jsonl` and `e.jsonl`.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs_err::create_dir(dir.path().join("m")).unwrap();
    for name in ["a.jsonl", "e.jsonl"] {
        fs_err::write(dir.path().join(name), "").unwrap();
    }
    dir
}

fn plimsoll(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll")).args(args).current_dir(dir).output().expect("plimsoll runs")
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs_err::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Runs `plimsoll train` and holds its stderr against `expected`.
fn refused(dir: &Path, args: &[&str], expected: &str) {
    let before = names(dir);
    let output = plimsoll(dir, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert_eq!(stderr.trim_end(), expected, "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?} prints data");
    assert_eq!(names(dir), before, "{args:?} writes something");
}

const HEAD: &str = "[model]\npath = \"m\"\n[data]\ntrain = [\"a.jsonl\"]\n";

#[test]
fn a_wrong_value_in_a_job_file_is_named_with_its_place() {
    let dir = folder();
    // Behind four lines of a good job: the lines to add, and what is said about them.
    let cases = [
        (
            "kind = \"series\"",
            "error: job.toml:5:8: `data.kind` = `series` needs to know columns and window\nhint: give the table `[data.series]`; docs/series.md has its keys",
        ),
        (
            "kind = \"poems\"",
            "error: job.toml:5:8: `data.kind` must be `pairs`, `chat`, `text` or `series`, found `poems`",
        ),
        ("long = \"fold\"", "error: job.toml:5:8: `data.long` must be `split`, `cut` or `drop`, found `fold`"),
        ("eval = \"no.jsonl\"", "error: job.toml:5:8: `data.eval` = `DIR/no.jsonl` does not exist"),
        (
            "columns = { source = \"x\", target = \"x\" }",
            "error: job.toml:5:36: `data.columns.target` is `x`, which is the source already",
        ),
        ("columns = { sorce = \"x\" }", "error: job.toml:5:13: unknown key `sorce`\nhint: did you mean `source`?"),
        ("max_len = { source = 0 }", "error: job.toml:5:22: `data.max_len.source` must be at least 1, found `0`"),
        (
            "max_len = 128",
            "error: job.toml:5:11: invalid type: integer `128`, expected a table like { source = 256, target = 256 }",
        ),
        ("[train]\neffective_batch = 0", "error: job.toml:6:19: `train.effective_batch` must be at least 1, found `0`"),
        (
            "[train]\neffective_batch = 1.5",
            "error: job.toml:6:19: invalid type: floating point `1.5`, expected a whole number of 0 or more",
        ),
        (
            "[train]\nepochs = 1\nsteps = 2",
            "error: job.toml:7:9: `train.steps` and `train.epochs` exclude each other\nhint: keep one of them",
        ),
        ("[train]\nsteps = 0", "error: job.toml:6:9: `train.steps` must be at least 1, found `0`"),
        ("[train]\nkeep = 0", "error: job.toml:6:8: `train.keep` must be at least 1, found `0`"),
        ("[train]\nthreads = 0", "error: job.toml:6:11: `train.threads` must be at least 1, found `0`"),
        ("[train]\nthreads = 5000", "error: job.toml:6:11: `train.threads` must be at most 1024, found `5000`"),
        (
            "[train]\neffective_batch = 16777217",
            "error: job.toml:6:19: `train.effective_batch` must be at most 16777216, found `16777217`",
        ),
        (
            "[train]\nclip_norm = -1",
            "error: job.toml:6:13: `train.clip_norm` must be a finite number of 0 or more, found `-1`",
        ),
        (
            "[train]\neval_every = 5",
            "error: job.toml:6:14: `train.eval_every` needs data to evaluate on\nhint: give `data.eval` or `--eval FILE`",
        ),
        (
            "[train]\noptimizer = { name = \"adamw\", lr = -1 }",
            "error: job.toml:6:13: `train.optimizer.lr` must be a finite number above 0, found `-1`",
        ),
        (
            "[train]\noptimizer = { name = \"adamw\", beta1 = 0.9 }",
            "error: job.toml:6:13: `train.optimizer.beta1` is not an option of `adamw`\nhint: say `betas = [0.9, 0.999]`",
        ),
        (
            "[train]\noptimizer = { name = \"adamv\" }",
            "error: job.toml:6:13: `train.optimizer.name` must be one of `adafactor`, `adamw`, `adamw16bit`, `adamw8bit`, `lion`, `sgd`, found `adamv`\nhint: did you mean `adamw`?",
        ),
        (
            "[train]\noptimizer = \"adamw\"",
            "error: job.toml:6:13: invalid type: string \"adamw\", expected a table like { name = \"adamw\", lr = 1e-4 }",
        ),
        (
            "[train]\noptimizer = { name = \"adafactor\", lr = 1e-3, relative_step = true }",
            "error: job.toml:6:13: `train.optimizer.relative_step` cannot be true where `lr` is given\nhint: leave out `lr`, or set `relative_step = false`",
        ),
        (
            "[train]\noptimizer = { name = \"adafactor\" }\nschedule = { name = \"linear\" }",
            "error: job.toml:7:12: `train.schedule` is `linear`, but a relative step has no rate to schedule\nhint: give `lr` to the optimizer, or leave out the schedule",
        ),
        (
            "[train]\nschedule = { name = \"cosin\" }",
            "error: job.toml:6:12: `train.schedule.name` must be one of `constant`, `linear`, `cosine`, `cosine-warm-restarts`, `one-cycle`, found `cosin`\nhint: did you mean `cosine`?",
        ),
        (
            "[train]\noptimizer = { name = \"adamw\", lr = 1e-4 }\nschedule = { name = \"cosine-warm-restarts\", t_0 = 9, eta_min = 1e-3 }",
            "error: job.toml:7:12: `train.schedule` has eta_min = 0.001, above the optimizer's rate of 0.0001",
        ),
        (
            "[train]\nearly_stop = { patience = 3 }",
            "error: job.toml:6:14: `train.early_stop` needs evaluations\nhint: give `train.eval_every`, and data for it",
        ),
        (
            "[train]\nearly_stop = { min_delta = 3 }",
            "error: job.toml:6:14: `train.early_stop.patience` must be given: evaluations without an improvement",
        ),
        (
            "[train]\nearly_stop = 3",
            "error: job.toml:6:14: invalid type: integer `3`, expected a table like { patience = 5, min_delta = 0.001 }",
        ),
        (
            "[budget]\nram = \"2GB\"",
            "error: job.toml:6:7: `budget.ram` must be a number of bytes such as `2GiB` or `512MiB`, found `2GB`",
        ),
        ("[budget]\nram = 0", "error: job.toml:6:7: `budget.ram` must be more than 0"),
        (
            "[budget]\ndisk = 1.5",
            "error: job.toml:6:8: `budget.disk` must be a number of bytes such as `2GiB` or `512MiB`, found `1.5`",
        ),
        (
            "[budget]\nvram = \"1GiB\"",
            "error: job.toml:6:8: `budget.vram` needs a run on a card\nhint: give `train.device` = `cuda` or `--device cuda`",
        ),
        (
            "[train]\ndevice = \"tpu\"",
            "error: job.toml:6:10: `train.device` must be `cpu`, `cuda` or `auto`, found `tpu`",
        ),
        (
            "[train]\ncompute = \"f16\"",
            "error: job.toml:6:11: `train.compute` = `f16` needs a run on a card\nhint: give `train.device` = `cuda` or `--device cuda`",
        ),
        (
            "[train]\ndevice = \"cuda\"\ncompute = \"fp8\"",
            "error: job.toml:7:11: `train.compute` must be `f32`, `bf16` or `f16`, found `fp8`",
        ),
        (
            "[train]\ndevice = \"auto\"\ncompute = \"f16\"\nprecision = \"bf16\"",
            "error: job.toml:8:13: `train.precision` = `bf16` does not go with `train.compute` = `f16`\nhint: products read one kind of 16 bits: take `compute` = `bf16`, or leave `precision` out",
        ),
        ("[allow]\nprecision = [\"fp8\"]", "error: job.toml:6:13: `allow.precision` knows `bf16`, found `fp8`"),
        ("[allow]\noptimizer = \"lion\"", "error: job.toml:6:13: `allow.optimizer` knows `adamw8bit`, found `lion`"),
        ("[allow]\nbase = [\"int4\"]", "error: job.toml:6:8: `allow.base` knows `int8` and `nf4`, found `int4`"),
        ("[allow]\nbase = 4", "error: job.toml:6:8: `allow.base` must be a list of names, found `4`"),
        ("[allow]\nlora = { r = 0 }", "error: job.toml:6:8: `allow.lora` must have an `r` from 1 to 4096, found `0`"),
        (
            "[allow]\nlength = 2",
            "error: job.toml:6:10: `allow.length` must be a number of tokens of 8 or more, found `2`",
        ),
        (
            "[allow]\nbatch = true",
            "error: job.toml:6:9: `allow.batch` is not supported: the effective batch is kept\nhint: leave it out",
        ),
        (
            "[train]\nprecision = \"fp16\"",
            "error: job.toml:6:13: `train.precision` must be `f32` or `bf16`, found `fp16`",
        ),
        (
            "[pin]\nmicro_batch = 5",
            "error: job.toml:6:15: `pin.micro_batch` must divide the effective batch of 32, found `5`",
        ),
        ("[pin]\nloss_chunk = 0", "error: job.toml:6:14: `pin.loss_chunk` must be at least 1, found `0`"),
        ("[pin]\nloader_threads = 0", "error: job.toml:6:18: `pin.loader_threads` must be at least 1, found `0`"),
    ];
    let here = dir.path().to_str().unwrap();
    for (lines, expected) in cases {
        fs_err::write(dir.path().join("job.toml"), format!("{HEAD}{lines}\n")).unwrap();
        refused(dir.path(), &["train", "job.toml"], &expected.replace("DIR", here));
    }
}

#[test]
fn a_model_table_that_is_wrong_is_named_with_its_place() {
    let dir = folder();
    let folder_hint = "hint: expected a Hugging Face folder with `config.json` and `tokenizer.json`";
    let hint = "hint: `all`, `lora`, { freeze = [\"encoder.*\"] } or { lora = { r = 16, targets = [\"q_proj\"] } }";
    let cases = [
        ("path = \"none\"", format!("error: job.toml:2:8: `model.path` = `DIR/none` does not exist\n{folder_hint}")),
        ("path = \"a.jsonl\"", format!("error: job.toml:2:8: `model.path` = `DIR/a.jsonl` is not a folder\n{folder_hint}")),
        ("path = \"\"", "error: job.toml:2:8: `model.path` is empty; expected a path".to_string()),
        ("path = \"m\"\ntrain = { lora = { r = 0 } }", "error: job.toml:3:9: `model.train` must have an `r` from 1 to 4096, found `0`".to_string()),
        ("path = \"m\"\ntrain = { freeze = [] }", format!("error: job.toml:3:9: `model.train` needs either `freeze` with patterns or `lora`\n{hint}")),
        ("path = \"m\"\ntrain = 3", format!("error: job.toml:3:9: `model.train` is `3`\n{hint}")),
        ("path = \"m\"\nbase = \"nf4\"", "error: job.toml:3:8: `model.base` = `nf4` needs LoRA: a quantised weight cannot be trained\nhint: add `train = { lora = { r = 16 } }`".to_string()),
        ("path = \"m\"\nbase = \"int4\"", "error: job.toml:3:8: `model.base` must be `file`, `f32`, `int8` or `nf4`, found `int4`".to_string()),
        ("path = \"m\"\ninit = \"random\"\ntrain = \"lora\"", "error: job.toml:4:9: `model.train` trains factors beside a base, and `model.init` = `random` has none\nhint: give a folder with weights, or `train = \"all\"`".to_string()),
        ("path = \"m\"\ninit = \"zeros\"", "error: job.toml:3:8: `model.init` must be `weights` or `random`, found `zeros`".to_string()),
        ("path = \"m\"\ndropout = 1.0", "error: job.toml:3:11: `model.dropout` must be from 0 to less than 1, found `1`".to_string()),
        ("", "error: no model is named\nhint: plimsoll train --model DIR --data FILE, or `path` in the `[model]` table of a job file".replace("DIR", "D-R")),
    ];
    let here = dir.path().to_str().unwrap();
    for (lines, expected) in cases {
        let job = format!("[model]\n{lines}\n[data]\ntrain = [\"a.jsonl\"]\n");
        fs_err::write(dir.path().join("job.toml"), job).unwrap();
        let expected = expected.replace("DIR", here).replace("D-R", "DIR");
        refused(dir.path(), &["train", "job.toml"], &expected);
    }
}

#[test]
fn training_data_that_is_missing_or_named_twice_is_refused() {
    let dir = folder();
    let here = dir.path().to_str().unwrap();
    let with = |data: &str, expected: String| {
        let job = format!("[model]\npath = \"m\"\n[data]\ntrain = {data}\n");
        fs_err::write(dir.path().join("job.toml"), job).unwrap();
        refused(dir.path(), &["train", "job.toml"], &expected);
    };
    let none = "`data.train` names no training data\nhint: give `--data FILE`, or `train = [\"FILE\"]` in the `[data]` table of a job file";
    with(
        "3",
        "error: job.toml:4:9: invalid type: integer `3`, expected a list of files like [\"data/*.jsonl\"]".to_string(),
    );
    with("\"b.jsonl\"", format!("error: job.toml:4:9: `data.train` = `{here}/b.jsonl` matches no file"));
    with("[]", format!("error: job.toml:4:9: {none}"));
    with("[\"*.parquet\"]", format!("error: job.toml:4:9: `data.train` = `{here}/*.parquet` matches no file"));
    with("[\"a.jsonl\", \"a*\"]", format!("error: job.toml:4:9: `data.train` names `{here}/a.jsonl` twice"));
    with(
        "[\"m\"]",
        format!(
            "error: job.toml:4:9: `data.train` = `{here}/m` is a folder; expected a file\nhint: name its files, such as `{here}/m/*.jsonl`"
        ),
    );
    refused(dir.path(), &["train", "--model", "m"], &format!("error: {none}"));
}

#[test]
fn a_wrong_flag_is_named_as_a_flag() {
    let dir = folder();
    let cases: &[(&[&str], &str)] = &[
        (&["--lr", "-1"], "error: `--lr` must be a finite number above 0, found `-1`"),
        (&["--lr", "nan"], "error: `--lr` must be a finite number above 0, found `NaN`"),
        (&["--effective-batch", "0"], "error: `--effective-batch` must be at least 1, found `0`"),
        (&["--dropout", "-0.1"], "error: `--dropout` must be from 0 to less than 1, found `-0.1`"),
        (&["--clip-norm", "inf"], "error: `--clip-norm` must be a finite number of 0 or more, found `inf`"),
        (&["--micro-batch", "3"], "error: `--micro-batch` must divide the effective batch of 32, found `3`"),
        (&["--ram", "0"], "error: `--ram` must be more than 0"),
        (&["--eval", "none.jsonl"], "error: `--eval` = `DIR/none.jsonl` does not exist"),
        (&["--optimizer", "sgd"], "error: `--optimizer`: `lr` is needed with `sgd`: no rate suits every model"),
        (
            &["--optimizer", "{ name = 'adamw', betas = [2, 0] }"],
            "error: `--optimizer`: `betas` must be two numbers from 0 to less than 1, found `2`",
        ),
        (
            &["--optimizer", "{ name = 'adamw', bets = [2, 0] }"],
            "error: `--optimizer`, column 19: unknown key `bets`\nhint: did you mean `betas`?",
        ),
        (
            &["--schedule", "one-cycle", "--warmup-steps", "3"],
            "error: `--warmup-steps` is not an option of `one-cycle`\nhint: one-cycle rises over `pct_start` of the run",
        ),
    ];
    let here = dir.path().to_str().unwrap();
    for (flags, expected) in cases {
        let args = [&["train", "--model", "m", "--data", "a.jsonl"], *flags].concat();
        refused(dir.path(), &args, &expected.replace("DIR", here));
    }
    refused(
        dir.path(),
        &["train", "--model", "m", "--data", "a.jsonl", "job.toml"],
        "error: `--data` takes data files, found `job.toml`\nhint: put the job file before `--data`",
    );
}

#[test]
fn a_job_file_that_is_missing_or_a_folder_is_refused() {
    let dir = folder();
    let output = plimsoll(dir.path(), &["plan", "none.toml"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.starts_with("error: cannot read the job file\n  because: "), "{stderr}");
    assert!(stderr.contains("none.toml"), "{stderr}");
    refused(dir.path(), &["plan", "m"], "error: `m` is a folder; expected a job file");
    fs_err::write(dir.path().join("m/job.toml"), HEAD).unwrap();
    let named = "error: `m` is a folder; expected a job file\nhint: name the file in it: m/job.toml";
    refused(dir.path(), &["plan", "m"], named);
}

#[test]
fn a_folder_that_holds_a_run_is_not_written_over() {
    let dir = folder();
    let run = dir.path().join("run");
    fs_err::create_dir(&run).unwrap();
    fs_err::write(run.join("journal.jsonl"), "{}\n").unwrap();
    refused(
        dir.path(),
        &["train", "--model", "m", "--data", "a.jsonl", "--out", "run"],
        "error: `run` holds a run already\nhint: go on with it: plimsoll resume run; or name another `--out`",
    );
    assert_eq!(names(&run), ["journal.jsonl"]);
}
