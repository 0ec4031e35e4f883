//! `plimsoll deploy`: what is planned is what the file limits, what it starts goes on, what cannot fit writes nothing, and no secret gets into
//! it. `plimsoll plan --profile guide`: the guide's table beside the computed one, on a machine that was recorded elsewhere.

#[allow(dead_code, reason = "only its cgroups are used here")]
mod support;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use plimsoll_recover::RunLock;
use serde_json::Value;
use support::cgroup::Cgroup;

const TARGETS: [&str; 4] = ["compose", "systemd", "slurm", "k8s"];

fn plimsoll(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command
        .args(args)
        .current_dir(dir)
        .env("XDG_CACHE_HOME", dir.join("cache"))
        .env("XDG_STATE_HOME", dir.join("state"));
    command
}

fn done(output: Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(output: &Output, code: i32) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    stderr
}

fn job() -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/chat/job.toml");
    fs_err::canonicalize(path).unwrap().to_str().unwrap().to_string()
}

/// The server of guide 000 with four cards and 44 GB: made by hand in the form of `plimsoll probe --json`, with what such a virtual machine
/// (45056 MiB, Ubuntu 22.04, nothing running) tells of itself. Nobody has recorded one.
fn machine() -> String {
    format!("{}/tests/machines/four-cards-44gb.json", env!("CARGO_MANIFEST_DIR"))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn the_limit_is_the_plan_and_a_margin_and_the_job_fits_inside_of_it() {
    let dir = tempfile::tempdir().unwrap();
    // The chat example without its budget: the machine, or the limit, is what holds the plan.
    let example = Path::new(&job()).parent().unwrap().display().to_string();
    let text = fs_err::read_to_string(job()).unwrap().split("[budget]").next().unwrap().to_string();
    let text =
        text.replace("\"model\"", &format!("\"{example}/model\"")).replace("\"data/", &format!("\"{example}/data/"));
    fs_err::write(dir.path().join("job.toml"), text).unwrap();
    let said = json(&done(plimsoll(dir.path(), &["deploy", "compose", "job.toml", "--json"]).output().unwrap()));
    let memory = &said["deployment"]["memory"];
    let (planned, margin) = (memory["planned"].as_u64().unwrap(), memory["margin"].as_u64().unwrap());
    assert!(margin >= 256 << 20, "{memory}");
    let limit = planned + margin;
    let text = said["file"].as_str().unwrap();
    assert!(text.contains(&format!("mem_limit: {}m\n", limit >> 20)), "{text}");
    let cgroup = match Cgroup::limited_to(limit) {
        Ok(cgroup) => cgroup,
        Err(why) => return skip(&why),
    };
    let mut inside = plimsoll(dir.path(), &["plan", "job.toml", "--json"]);
    cgroup.enter(&mut inside);
    let inside = json(&done(inside.output().unwrap()));
    assert!(inside["ram"]["budget"].as_u64().unwrap() >= planned, "{inside}");
    assert_eq!(inside["verdict"], "fits", "{inside}");
    // The fastest of several that fit is a matter of rates, which are not the same twice.
    assert!(inside["ram"]["peak"].as_u64().unwrap() <= limit, "{inside}");
}

#[allow(clippy::print_stderr, reason = "a skipped test says why")]
fn skip(why: &str) {
    eprintln!("skipped: {why}");
}

#[test]
fn a_file_names_the_job_its_flags_its_folders_and_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["deploy", "compose", &job(), "--steps", "3", "--mirror", "s3://bucket/a b", "--name", "My chat"];
    let text = done(plimsoll(dir.path(), &args).output().unwrap());
    let root = fs_err::canonicalize(dir.path()).unwrap();
    let example = Path::new(&job()).parent().unwrap().to_path_buf();
    let lines = [
        "  \"my-chat\":\n".to_string(),
        format!("      - \"train\"\n      - \"{}\"\n", job()),
        "      - \"--steps=3\"\n".to_string(),
        "      - \"--mirror=s3://bucket/a b\"\n".to_string(),
        format!("      - \"--out\"\n      - \"{}/runs/my-chat\"\n      - \"--go-on\"\n", root.display()),
        format!("        source: \"{}\"\n", example.display()),
        format!("        source: \"{0}/runs\"\n        target: \"{0}/runs\"\n", root.display()),
        "      - \"AWS_SECRET_ACCESS_KEY\"\n".to_string(),
    ];
    for line in &lines {
        assert!(text.contains(line), "`{line}` is not in\n{text}");
    }
    assert!(!text.contains("capabilities: [\"gpu\"]"), "{text}");
    assert!(!text.contains(&format!("target: \"{}/runs\"\n        read_only", root.display())), "{text}");
}

/// The names in a JSON value, down to what lies in lists.
fn names(value: &Value, at: &str, found: &mut Vec<String>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        names(value, &at, found);
        found.push(at);
    }
}

#[test]
fn the_machine_made_by_hand_has_the_form_of_a_probe() {
    let dir = tempfile::tempdir().unwrap();
    let here = json(&done(plimsoll(dir.path(), &["probe", "--json"]).output().unwrap()));
    let there = json(&fs_err::read_to_string(machine()).unwrap());
    let of = |machine: &Value| {
        let mut found = Vec::new();
        names(machine, "", &mut found);
        // Cards, cgroups and swap are not the same everywhere.
        found.retain(|name| {
            !["gpus.", "cgroup.", "pressure.", "swap_advice."].iter().any(|part| name[1..].starts_with(part))
        });
        found.sort();
        found
    };
    assert_eq!(of(&there), of(&here));
    assert_eq!(there["gpus"]["cards"].as_array().unwrap().len(), 4);
    // 44 GB as a virtual machine has them, less what the kernel keeps of them for itself: a sixtieth or so.
    let total = there["ram"]["total"].as_u64().unwrap();
    assert!((45056 << 20) / 100 * 97 < total && total < 45056 << 20, "{total}");
}

/// What a trainer gets of cards and cores, as a Slurm script says it; every other file has as many cards.
fn granted(dir: &Path, flags: &[&str], command: &[&str]) -> (u64, u64) {
    let asked = |target: &str| {
        let mut args = vec!["deploy", target, "--ram", "16GiB"];
        args.extend(flags);
        args.push("--");
        args.extend(command);
        done(plimsoll(dir, &args).output().unwrap())
    };
    let value = |text: &str, before: &str| -> Option<u64> {
        text.lines().find_map(|line| line.trim().strip_prefix(before)?.parse().ok())
    };
    let script = asked("slurm");
    // Nothing can be said of its memory, and nothing has to be.
    assert!(script.contains("the RAM of `--ram`"), "{script}");
    assert!(!script.contains("--cards") && !script.contains("--cores"), "{script}");
    let (cards, cores) = (value(&script, "#SBATCH --gres=gpu:"), value(&script, "#SBATCH --cpus-per-task="));
    assert_eq!(value(&asked("compose"), "count: "), cards);
    assert_eq!(value(&asked("k8s"), "nvidia.com/gpu: "), cards);
    (cards.unwrap_or(0), cores.unwrap())
}

#[test]
fn a_trainer_of_unknown_shape_gets_its_cards_and_cores() {
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("train.py"), "import torch\n").unwrap();
    let machine = machine();
    let ranks = |ranks| ["torchrun", "--nproc_per_node", ranks, "train.py"];
    let there = ["--machine", machine.as_str()];
    // Four cards and 32 cores are there.
    assert_eq!(granted(dir.path(), &there, &ranks("4")), (4, 32));
    assert_eq!(granted(dir.path(), &there, &ranks("2")), (2, 16));
    assert_eq!(granted(dir.path(), &there, &ranks("gpu")), (4, 32));
    assert_eq!(granted(dir.path(), &there, &["python3", "train.py"]), (1, 8));
    assert_eq!(granted(dir.path(), &there, &["deepspeed", "train.py"]), (4, 32));
    assert_eq!(granted(dir.path(), &there, &["python3", "train.py", "--use_cpu"]), (0, 32));
    // What was said holds, for whatever machine.
    assert_eq!(granted(dir.path(), &["--cards", "2", "--cores", "6"], &ranks("2")), (2, 6));
    assert_eq!(granted(dir.path(), &["--machine", &machine, "--cards", "0"], &ranks("4")), (0, 32));
    let refused_for = |args: &[&str]| refused(&plimsoll(dir.path(), args).output().unwrap(), 2);
    assert!(refused_for(&["deploy", "slurm", &job(), "--cards", "2"]).contains("--cards"));
    assert!(refused_for(&["deploy", "slurm", "--cores", "0", "--", "./train"]).contains("--cores"));
}

#[test]
fn no_file_asks_for_more_cores_than_its_machine_has() {
    let dir = tempfile::tempdir().unwrap();
    // All cores compute, unless something else is said, and the loader has a thread beside them.
    let here = std::thread::available_parallelism().unwrap().get() as u64;
    let of_job = |flags: &[&str]| {
        let job = job();
        let asked = |target| [&["deploy", target, "--json", job.as_str()][..], flags].concat();
        let cores = TARGETS.map(|target| {
            let said = json(&done(plimsoll(dir.path(), &asked(target)).output().unwrap()));
            said["deployment"]["cores"].as_u64().unwrap()
        });
        assert!(cores.iter().all(|count| *count == cores[0]), "{cores:?}");
        cores[0]
    };
    assert_eq!(of_job(&[]), here);
    assert_eq!(of_job(&["--threads", "1"]), here.min(2));
    // That was asked for with another machine in mind.
    let more = (here + 3).to_string();
    assert_eq!(of_job(&["--threads", &more]), here + 3);
    // Four ranks with eight loader processes each would be 36 of 32.
    fs_err::write(dir.path().join("train.py"), "import torch\n").unwrap();
    let command = ["torchrun", "--nproc_per_node", "4", "train.py", "--num-workers", "8"];
    assert_eq!(granted(dir.path(), &["--machine", &machine()], &command), (4, 32));
}

#[test]
fn a_flag_that_a_file_has_no_use_for_is_refused_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let flags = [
        (["--image", "plimsoll:1"], vec!["slurm", "systemd"]),
        (["--claim", "disk=/data"], vec!["slurm", "systemd", "compose"]),
        (["--secret", "mine"], vec!["slurm", "systemd", "compose"]),
    ];
    for (flag, targets) in flags {
        for target in TARGETS {
            let output = plimsoll(dir.path(), &["deploy", target, &job(), flag[0], flag[1]]).output().unwrap();
            match targets.contains(&target) {
                true => assert!(refused(&output, 2).contains(&format!("`{}` is for", flag[0])), "{target}"),
                false => assert!(!done(output).is_empty(), "{target}"),
            }
        }
    }
}

#[test]
fn what_would_mount_the_root_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file").display().to_string();
    let job = job();
    let of_job = |target: &str| {
        let args = ["deploy", target, &job, "--out", "/run1", "-o", &file];
        plimsoll(dir.path(), &args).output().unwrap()
    };
    let from_root = |target: &str| {
        let args = ["deploy", target, "--ram", "1GiB", "--out", "/srv/run1", "-o", &file, "--", "./train"];
        plimsoll(dir.path(), &args).current_dir("/").output().unwrap()
    };
    for target in ["compose", "k8s"] {
        let told = refused(&of_job(target), 2);
        assert!(told.contains("`/run1` would need `/` itself mounted"), "{told}");
        let told = refused(&from_root(target), 2);
        assert!(told.contains("`/` would need `/` itself mounted"), "{told}");
        assert!(!Path::new(&file).exists());
    }
    // Where nothing is mounted nothing is wrong with it.
    for target in ["slurm", "systemd"] {
        for asked in [&of_job as &dyn Fn(&str) -> Output, &from_root] {
            done(asked(target));
            fs_err::remove_file(&file).unwrap();
        }
    }
}

#[test]
fn a_limit_is_never_above_what_the_machine_has_to_give() {
    let dir = tempfile::tempdir().unwrap();
    // What is expected of Piper on four cards fits 11 GiB, what it takes at most does not.
    let mut small = json(&fs_err::read_to_string(machine()).unwrap());
    let usable = 11u64 << 30;
    small["usable"] = usable.into();
    fs_err::write(dir.path().join("small.json"), small.to_string()).unwrap();
    let args = ["deploy", "compose", "--json", "--profile", "immers-4gpu", "--machine"];
    let limit = |machine: &str| {
        let said = json(&done(plimsoll(dir.path(), &[&args[..], &[machine]].concat()).output().unwrap()));
        let memory = &said["deployment"]["memory"];
        let limit = memory["planned"].as_u64().unwrap() + memory["margin"].as_u64().unwrap();
        assert!(said["file"].as_str().unwrap().contains(&format!("mem_limit: {}m\n", limit >> 20)), "{said}");
        limit
    };
    let at_most = limit(&machine());
    assert!(at_most > usable, "{at_most}");
    let held = limit("small.json");
    assert!(held <= usable && held > usable - (1 << 20), "{held}");
}

#[test]
fn a_job_that_cannot_fit_is_refused_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let output = plimsoll(dir.path(), &["deploy", "k8s", &job(), "--ram", "1MiB", "-o", "job.yaml"]).output().unwrap();
    assert!(refused(&output, 3).contains("too big"));
    assert!(!dir.path().join("job.yaml").exists());
    // Neither is a trainer that the guide warns of, on a machine that is too small for it.
    let args = ["deploy", "compose", "--profile", "immers-4gpu-oom", "--ram", "4GiB", "--as-is", "-o", "c.yaml"];
    let output = plimsoll(dir.path(), &args[..6]).output().unwrap();
    assert!(refused(&output, 3).contains("does not fit"));
}

#[test]
fn a_file_that_is_there_is_left_alone_unless_forced() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.service");
    fs_err::write(&file, "mine").unwrap();
    let args = ["deploy", "systemd", &job(), "-o", "a.service", "--force"];
    let output = plimsoll(dir.path(), &args[..5]).output().unwrap();
    assert!(refused(&output, 2).contains("is there already"));
    assert_eq!(fs_err::read_to_string(&file).unwrap(), "mine");
    done(plimsoll(dir.path(), &args).output().unwrap());
    assert!(fs_err::read_to_string(&file).unwrap().contains("\nRestartPreventExitStatus=1 2 3\n"));
}

#[test]
fn no_value_of_a_secret_gets_into_a_file_or_a_message() {
    let dir = tempfile::tempdir().unwrap();
    const SECRET: &str = "wJalrXUtnFEMI-s3cret";
    let run = |args: &[&str]| {
        let mut command = plimsoll(dir.path(), args);
        command.env("AWS_SECRET_ACCESS_KEY", SECRET).env("WANDB_API_KEY", SECRET).output().unwrap()
    };
    let clean = |output: &Output| {
        let all = [&output.stdout[..], &output.stderr].concat();
        assert!(!String::from_utf8_lossy(&all).contains("s3cret"), "{}", String::from_utf8_lossy(&all));
    };
    for target in TARGETS {
        let output = run(&["deploy", target, &job(), "--mirror", "s3://bucket/chat", "--env", "WANDB_API_KEY"]);
        clean(&output);
        let text = done(output);
        assert!(text.contains("AWS_SECRET_ACCESS_KEY") && text.contains("WANDB_API_KEY"), "{text}");
    }
    let value = format!("WANDB_API_KEY={SECRET}");
    let output = run(&["deploy", "k8s", &job(), "--env", &value]);
    clean(&output);
    assert!(refused(&output, 2).contains("not the name of a variable"));
    let word = format!("--key={SECRET}");
    let trainer = ["deploy", "slurm", "--ram", "1GiB", "--trainer", "generic", "--", "./train", &word];
    let output = run(&trainer);
    clean(&output);
    let told = refused(&output, 2);
    assert!(told.contains("_KEY` stands in it"), "{told}");
}

#[test]
fn the_words_of_a_file_start_a_run_and_then_go_on_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["deploy", "slurm", &job(), "--steps", "2", "--eval-every", "0", "--out", "runs/a", "--json"];
    let said = json(&done(plimsoll(dir.path(), &args).output().unwrap()));
    let words: Vec<&str> =
        said["deployment"]["words"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    let first = plimsoll(dir.path(), &words).output().unwrap();
    done(first);
    assert!(dir.path().join("runs/a/summary.json").exists());
    let second = plimsoll(dir.path(), &words).output().unwrap();
    assert!(String::from_utf8_lossy(&second.stderr).contains("is finished"), "{second:?}");
    done(second);
    // Without it a run is never taken for a new one.
    let without: Vec<&str> = words.iter().copied().filter(|word| *word != "--go-on").collect();
    assert!(refused(&plimsoll(dir.path(), &without).output().unwrap(), 2).contains("holds a run already"));
}

#[test]
fn a_foreign_run_goes_on_by_the_same_words_too() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["run", "--out", "runs/f", "--go-on", "--trainer", "generic", "--", "sh", "-c", "echo hello"];
    assert!(done(plimsoll(dir.path(), &args).output().unwrap()).contains("hello"));
    let second = plimsoll(dir.path(), &args).output().unwrap();
    assert!(String::from_utf8_lossy(&second.stderr).contains("is finished"), "{second:?}");
    assert!(!done(second).contains("hello"));
}

/// Starts it while another process has its run, gives it the run as soon as it says that it waits, and hears how it ends.
fn after_its_turn(dir: &Path, args: &[&str], meanwhile: impl FnOnce(&Path)) -> (Option<i32>, String) {
    let run = dir.join("runs/turn");
    fs_err::create_dir_all(&run).unwrap();
    let lock = RunLock::take(&run, Duration::ZERO).unwrap();
    let mut child = plimsoll(dir, args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut said = String::new();
    while !said.contains("is in use by process") {
        let line = lines.next();
        said += &line.unwrap_or_else(|| panic!("it ended without waiting:\n{said}"));
        said += "\n";
    }
    meanwhile(&run);
    drop(lock);
    lines.for_each(|line| said += &format!("{line}\n"));
    (child.wait().unwrap().code(), said)
}

#[test]
fn a_start_by_a_guard_waits_for_the_process_that_has_its_run() {
    let dir = tempfile::tempdir().unwrap();
    let job = job();
    let train = ["train", &job, "--steps", "2", "--eval-every", "0", "--out", "runs/turn", "--go-on"];
    let (code, said) = after_its_turn(dir.path(), &train, |_| {});
    assert!(code == Some(0) && said.contains("done: 2 steps"), "{said}");
    // The process that was waited for has begun the run, and come to its end.
    let done = dir.path().join("runs/done");
    fs_err::rename(dir.path().join("runs/turn"), &done).unwrap();
    let (code, said) = after_its_turn(dir.path(), &train, |run| {
        for entry in fs_err::read_dir(&done).unwrap().map(Result::unwrap).filter(|entry| entry.file_name() != ".lock") {
            fs_err::rename(entry.path(), run.join(entry.file_name())).unwrap();
        }
    });
    assert!(code == Some(0) && said.contains("`runs/turn` is finished: 2 steps"), "{said}");
    // A trainer of somebody else's, before its run began and after.
    fs_err::remove_dir_all(dir.path().join("runs/turn")).unwrap();
    let run = ["run", "--out", "runs/turn", "--go-on", "--trainer", "generic", "--", "sh", "-c", "exit $(cat code)"];
    fs_err::write(dir.path().join("code"), "7").unwrap();
    let (code, said) = after_its_turn(dir.path(), &run, |_| {});
    assert_eq!(code, Some(1), "{said}");
    fs_err::write(dir.path().join("code"), "0").unwrap();
    let (code, said) = after_its_turn(dir.path(), &run, |_| {});
    assert_eq!(code, Some(0), "{said}");
    // Somebody who asks is not kept waiting.
    let lock = RunLock::take(&dir.path().join("runs/turn"), Duration::ZERO).unwrap();
    fs_err::remove_file(dir.path().join("runs/turn/summary.json")).unwrap();
    let told = refused(&plimsoll(dir.path(), &["resume", "runs/turn"]).output().unwrap(), 2);
    assert!(told.contains("is in use by process"), "{told}");
    drop(lock);
}

#[test]
fn four_cards_and_44_gb_show_the_guides_table_beside_the_computed_one() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["plan", "--profile", "guide", "--machine", &machine(), "--trainer", "piper"];
    let text = done(plimsoll(dir.path(), &args).output().unwrap());
    // The guide's sum and its table, figure by figure.
    let rows = [
        "immers-4gpu: guide 000 for 4 cards and 44 GB",
        "    guide     35 GB of 32 GB, effective batch 32, speed 100 %; does not fit\n",
        "    guide     29 GB of 32 GB, effective batch 24, speed 95 %; fits\n",
        "    guide     52 GB of 44 GB, effective batch 64, speed 100 %; does not fit\n",
        "  4 cards, batch 16, 1 worker  <- this one\n    guide     42 GB of 44 GB, effective batch 64, speed 95 %; fits\n",
        "    guide     38 GB of 44 GB, effective batch 96, speed 95 %; fits\n    computed  does not start: Piper",
    ];
    for row in rows {
        assert!(text.contains(row), "`{row}` is not in\n{text}");
    }
    for (part, guide) in
        [("system", 6), ("PyTorch", 8), ("loader processes", 8), ("batches", 16), ("everything else", 4)]
    {
        assert!(text.contains(&format!("  {part:<20} {:>8}  ", format!("{guide} GB"))), "{part} is not in\n{text}");
    }
    let plan = json(&done(plimsoll(dir.path(), &[&args[..], &["--json"]].concat()).output().unwrap()));
    assert_eq!((plan["verdict"].as_str(), plan["settings"]["batch"].as_u64()), (Some("fits"), Some(16)), "{plan}");
    let expected = plan["ram"]["table"]["expected"].as_u64().unwrap();
    let parts = plan["guide"]["parts"].as_array().unwrap();
    assert_eq!(parts.iter().filter_map(|part| part["computed"].as_u64()).sum::<u64>(), expected, "{plan}");
    // What the recorded machine has is what the plan is held to.
    let usable = json(&fs_err::read_to_string(machine()).unwrap())["usable"].as_u64().unwrap();
    assert_eq!(plan["ram"]["budget"].as_u64(), Some(usable - usable / 20));
}

#[test]
fn a_guides_profile_gives_the_compose_file_that_the_guide_meant() {
    let dir = tempfile::tempdir().unwrap();
    for (profile, cards, batch, gigabytes) in [("immers-1gpu", 1, 24, 32), ("immers-4gpu", 4, 16, 44)] {
        let text = done(plimsoll(dir.path(), &["deploy", "compose", "--profile", profile]).output().unwrap());
        let value = |flag: &str| -> Vec<&str> {
            let lines: Vec<&str> = text.lines().collect();
            let of = |at: usize| match lines[at].trim().strip_prefix(&format!("- \"{flag}"))?.strip_suffix('"')? {
                "" => lines[at + 1].trim().strip_prefix("- \"")?.strip_suffix('"'),
                rest => rest.strip_prefix('='),
            };
            (0..lines.len()).filter_map(of).collect()
        };
        assert_eq!(value("--data.batch_size"), [batch.to_string().as_str()], "{text}");
        assert_eq!(value("--trainer.precision"), ["16-mixed"], "{text}");
        // One worker is Piper's own default; what is set stands once.
        assert!(value("--data.num_workers").iter().all(|workers| *workers == "1"), "{text}");
        let devices = value("--trainer.devices");
        assert!(devices == [cards.to_string().as_str()] || (cards == 1 && devices.is_empty()), "{devices:?}\n{text}");
        assert!(text.contains(&format!("              count: {cards}\n")), "{text}");
        // What it takes is below the limit, and the limit below what the server has: a limit above that would never be met.
        let args = ["plan", "--profile", profile, "--trainer", "piper", "--json"];
        let plan = json(&done(plimsoll(dir.path(), &args).output().unwrap()));
        let expected = plan["ram"]["table"]["expected"].as_u64().unwrap();
        let safe = plan["ram"]["table"]["safe"].as_u64().unwrap();
        let limits = |name: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_suffix('m'));
            line?.parse::<u64>().ok().map(|mib| mib << 20)
        };
        let limit = limits("mem_limit: ").unwrap();
        assert_eq!(limits("memswap_limit: "), Some(limit));
        assert!(expected <= safe && safe + (64 << 20) < limit, "{safe} {limit}");
        assert!(limit < safe + safe / 10 + (512 << 20) && limit < gigabytes * 1_000_000_000, "{limit}");
        assert!(text.contains("stop_grace_period: 130s") && text.contains("shm_size: "), "{text}");
        assert!(!text.contains("accumulate"), "{text}");
        assert!(text.contains("# C-000-8: the guide says"), "{text}");
        assert_eq!(text.contains("ddp_find_unused_parameters_true"), cards > 1, "{text}");
    }
}
