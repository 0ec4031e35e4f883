//! `[allow]`: a job that fits by no plan with the same result takes the mildest change that it allows, says so, and keeps
//! it; without `[allow]` it is refused.

mod support_run;

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use support_run::Workshop;
use support_run::decoder::{Rows, tiny};
use support_run::model::{Family, Model};
use support_run::trainer::Trainer;

const MIB: u64 = 1 << 20;
const COURSE: &str = "steps = 12\nsave_every = 3\neval_every = 6\noptimizer = { name = \"adamw\", lr = 1e-3 }\n";

/// A model whose table and blocks are of the size of several MiB, so that a rung is more than what is measured anew.
fn workshop(allow: &str) -> Workshop {
    workshop_of(4, allow)
}

fn workshop_of(layers: usize, allow: &str) -> Workshop {
    let model = Model { d_model: 128, d_head: 32, d_ff: 384, layers, vocab: 6000, ..tiny(Family::Qwen2) };
    let workshop = Workshop::of_model(&model, Rows::Chats);
    workshop.decoder_job("", "", &format!("{COURSE}[allow]\n{allow}\n"));
    workshop
}

/// The plan of the job with `flags`, fitting or not.
fn plan(workshop: &Workshop, flags: &[&str]) -> Value {
    let said = workshop.plimsoll(&[&["plan", "job.toml", "--json"], flags].concat());
    serde_json::from_str(&said.stdout).unwrap_or_else(|e| panic!("{e}: {}", said.stderr))
}

/// A budget that lacks `mib` of what the smallest plan with the same result needs.
fn short_by(mib: u64) -> String {
    let smallest = plan(&workshop(""), &[])["smallest"].as_u64().unwrap();
    (smallest - mib * MIB).to_string()
}

fn read(workshop: &Workshop, name: &str) -> Value {
    serde_json::from_slice(&fs_err::read(workshop.path(name)).unwrap()).unwrap()
}

#[test]
fn what_fits_by_an_allowed_change_alone_takes_it_says_so_and_is_refused_without() {
    let budget = short_by(3);
    let eight = workshop("optimizer = [\"adamw8bit\"]");
    let words = ["another result, as allowed: AdamW's moments in 8 bits", "done: 12 steps"];
    eight.plimsoll(&["train", "job.toml", "--ram", &budget, "--out", "run"]).must(0, &words);
    let taken = read(&eight, "run/plan.json");
    assert_eq!(taken["rungs"], serde_json::json!(["AdamW's moments in 8 bits"]));
    assert!(taken["ram"]["peak"].as_u64() <= budget.parse().ok(), "{taken:#}");

    // Where it fits anyway, nothing is changed.
    eight.plimsoll(&["train", "job.toml", "--out", "roomy"]).must(0, &["done: 12 steps"]);
    assert_eq!(read(&eight, "roomy/plan.json")["rungs"].as_array().map_or(0, Vec::len), 0);

    let none = workshop("");
    let refused = none.refused(&["--ram", &budget], 3, &["too big: ", "what would fit:"]);
    assert!(!refused.stderr.contains("another result, as allowed"), "{}", refused.stderr);
    let plan = plan(&none, &["--ram", &budget]);
    assert!(!plan["would_fit"].as_array().unwrap().is_empty(), "{plan:#}");
}

#[test]
fn a_run_that_took_a_change_keeps_it_when_it_is_killed_and_when_there_is_room_again() {
    let budget = short_by(3);
    let workshop = workshop("optimizer = [\"adamw8bit\"]");
    let job = fs_err::read_to_string(workshop.path("job.toml")).unwrap();
    fs_err::write(workshop.path("job.toml"), job.replace("ram = \"256MiB\"", &format!("ram = \"{budget}\""))).unwrap();
    Trainer::train(&workshop, "whole").end().must(0, &["done: 12 steps"]);
    let mut trainer = Trainer::train(&workshop, "run");
    kill_process(trainer.wait_for_step(4).worker(), Signal::KILL).unwrap();
    trainer.wait_for_step(8).signal(Signal::INT);
    trainer.end().must(4, &["stopped after step"]);
    let job = fs_err::read_to_string(workshop.path("run/job.toml")).unwrap();
    let roomy = |line: &str| if line.starts_with("ram =") { "ram = \"1GiB\"".to_string() } else { line.to_string() };
    fs_err::write(workshop.path("run/job.toml"), job.lines().map(roomy).collect::<Vec<_>>().join("\n")).unwrap();
    Trainer::resume(&workshop, "run").end().must(0, &["done: 12 steps"]);
    for run in ["whole", "run"] {
        let rungs = &read(&workshop, &format!("{run}/plan.json"))["rungs"];
        assert_eq!(*rungs, serde_json::json!(["AdamW's moments in 8 bits"]), "{run}");
    }
    let losses = |run: &str| plimsoll_watch::losses(&workshop.path(run).join("journal.jsonl")).unwrap();
    for ((step, a), (_, b)) in losses("run").into_iter().zip(losses("whole")) {
        assert!((a - b).abs() <= 1e-3 * b, "step {step}: {a} and {b}");
    }
}

#[test]
fn an_adapter_that_was_allowed_is_evaluated_over_the_base_that_it_was_trained_over() {
    // More than 8-bit moments or bf16 weights could save: only factors over 4 bits fit. Enough blocks that even those need
    // more than the start does.
    let workshop = workshop_of(24, "lora = { r = 4 }\nbase = [\"nf4\"]");
    let lora = plan(&workshop, &["--train", "{ lora = { r = 4 } }"])["smallest"].as_u64().unwrap();
    // `plan` says half a MiB more than `train` needs.
    let budget = (lora - 5 * MIB / 2).to_string();
    let words = ["LoRA of rank 4", "frozen weights of blocks in 4 bits (NF4)", "done: 12 steps"];
    workshop.plimsoll(&["train", "job.toml", "--ram", &budget, "--out", "run"]).must(0, &words);
    assert!(workshop.path("run/model/adapter_config.json").exists());
    let summary = read(&workshop, "run/summary.json");
    let last = summary["evals"].as_array().and_then(|evals| evals.last()).unwrap();
    let said = workshop.plimsoll(&["eval", "run", "--json"]);
    let found: Value = serde_json::from_str(&said.must(0, &[]).stdout).unwrap();
    let (ours, theirs) = (found["loss"].as_f64().unwrap(), last["loss"].as_f64().unwrap());
    assert!((ours - theirs).abs() <= 1e-6 * theirs, "{ours} and {theirs}");
}
