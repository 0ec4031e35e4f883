//! What a user does with a decoder: trains it whole and by LoRA on chats, asks it, talks to it, evaluates and merges it.
//!
//! The judges in Python are transformers and PEFT (`$PLIMSOLL_PYTHON`, or the workspace's `.venv`); without them those
//! tests say so and pass.

mod support_run;

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use support_run::decoder::Rows;
use support_run::model::Family;
use support_run::{Said, Workshop, python};

const PROMPTS: [&str; 5] = [
    "my job is to be a driver. what do i work as?",
    "i could eat soup every day. what is my favourite food?",
    "my favourite colour is silver. what is my favourite colour?",
    "i have a dog named Sunny. what is my dog called?",
    "people call me Leo. what is my name?",
];
const FULL: &str = "steps = 80\nsave_every = 40\neval_every = 40\noptimizer = { name = \"adamw\", lr = 1e-2 }\n";
const LORA: &str = "{ lora = { r = 8, targets = [\"q_proj\", \"v_proj\", \"down_proj\"] } }";

/// A workshop with `full`, a model that was trained whole, and `run`, an adapter over it; shared by tests that only look.
fn finished() -> &'static Workshop {
    static FINISHED: OnceLock<Workshop> = OnceLock::new();
    FINISHED.get_or_init(|| {
        let workshop = Workshop::of_decoder(Family::Llama, Rows::Chats);
        workshop.decoder_job("", "", FULL);
        workshop
            .plimsoll(&["train", "job.toml", "--out", "full"])
            .must(0, &["data: chat (from its columns)", "done: 80 steps"]);
        let lora = ["--model", "full/model", "--train", LORA, "--packed", "on", "--steps", "40", "--out", "run"];
        workshop.plimsoll(&[&["train", "job.toml"], &lora[..]].concat()).must(0, &["done: 40 steps"]);
        workshop.plimsoll(&["merge", "run", "--out", "merged"]).must(0, &["model: merged"]);
        workshop
    })
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap()
}

/// Answers to all prompts, one a line.
fn answers(from: &str, more: &[&str]) -> Vec<String> {
    let prompts: Vec<&str> = PROMPTS.iter().flat_map(|prompt| ["--prompt", prompt]).collect();
    let args = [&["generate", from, "--max-new", "16", "--json"], prompts.as_slice(), more].concat();
    let said = finished().plimsoll(&args);
    let rows = said.must(0, &[]).stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let rows: Vec<Value> = rows.collect();
    assert!(rows.iter().zip(PROMPTS).all(|(row, prompt)| row["prompt"] == prompt) && rows.len() == PROMPTS.len());
    rows.iter().map(|row| row["answer"].as_str().unwrap().to_string()).collect()
}

#[test]
fn lora_over_chats_leaves_a_peft_folder_and_a_whole_training_a_model_folder() {
    let workshop = finished();
    let names = |dir: &str| -> Vec<String> {
        let entries = fs_err::read_dir(workshop.path(dir)).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let tokenizer = ["tokenizer.json", "tokenizer_config.json"];
    assert_eq!(names("run/model"), [&["adapter_config.json", "adapter_model.safetensors"], &tokenizer[..]].concat());
    let whole = ["config.json", "generation_config.json", "model.safetensors"];
    assert_eq!(names("full/model"), [&whole[..], &tokenizer].concat());
    let config = json(&workshop.path("run/model/adapter_config.json"));
    assert_eq!((&config["peft_type"], &config["r"], &config["lora_alpha"]), (&"LORA".into(), &8.into(), &16.into()));
    assert_eq!(config["target_modules"], serde_json::json!(["q_proj", "v_proj", "down_proj"]));
    let base = workshop.path("full/model");
    assert_eq!(config["base_model_name_or_path"], base.to_str().unwrap());
    // Of 3 products a block, two factors each of rank 8: no weight of the base is in it.
    let adapter = fs_err::metadata(workshop.path("run/model/adapter_model.safetensors")).unwrap().len();
    let weights = fs_err::metadata(base.join("model.safetensors")).unwrap().len();
    assert!(adapter < weights / 2, "{adapter} of {weights}");
    let evals = json(&workshop.path("full/summary.json"))["evals"].as_array().unwrap().clone();
    let loss = |eval: &Value| eval["loss"].as_f64().unwrap();
    assert!(evals.len() == 2 && loss(&evals[1]) < loss(&evals[0]), "{evals:?}");
}

#[test]
fn a_prompt_has_one_answer_however_it_is_given_and_wherever_the_adapter_is_found() {
    let by_flags = answers("run", &[]);
    assert!(
        by_flags.iter().filter(|answer| answer.starts_with("you")).count() >= 3,
        "nothing was learnt: {by_flags:?}"
    );
    assert_eq!(answers("run/model", &[]), by_flags);
    assert_eq!(answers("run", &["--base", "full/model"]), by_flags);
    let input = PROMPTS.join("\n") + "\n";
    let said = finished().plimsoll_with(&["generate", "run", "--max-new", "16"], &input);
    assert_eq!(said.must(0, &[]).stdout.lines().collect::<Vec<_>>(), by_flags);
    // The adapter does something: the base alone answers otherwise.
    assert_ne!(answers("full", &[]), by_flags);
    finished().plimsoll(&["generate", "run", "--base", "run", "--prompt", "a"]).must(2, &["holds no model", "--base"]);
}

#[test]
fn a_merged_model_answers_as_the_adapter_over_its_base() {
    assert_eq!(answers("merged", &[]), answers("run", &[]));
    let again = finished().plimsoll(&["merge", "run", "--out", "merged"]);
    again.must(2, &["merged"]);
    finished().plimsoll(&["merge", "full", "--out", "other"]).must(2, &["`full` holds no adapter", "full/model"]);
    finished().plimsoll(&["merge", "run", "--out", "other", "--dtype", "f16"]).must(2, &["`--dtype` must be"]);
    assert!(!finished().path("other").exists());
}

#[test]
fn a_conversation_sees_what_was_said_before() {
    let (first, second) = (PROMPTS[3], "what is my dog called?");
    let input = format!("{first}\n\n{second}\n");
    let said = finished().plimsoll_with(&["generate", "run", "--chat", "--max-new", "12"], &input);
    let turns: Vec<&str> = said.must(0, &[]).stdout.lines().collect();
    assert_eq!(turns.len(), 2, "{said:?}");
    let raw = |prompt: &str| -> String {
        let said = finished().plimsoll(&["generate", "run", "--raw", "--max-new", "12", "--prompt", prompt]);
        said.must(0, &[]).stdout.trim_end_matches('\n').to_string()
    };
    let turn = |role: &str, text: &str| format!("<|im_start|>{role}\n{text}<|im_end|>\n");
    let opened = "<|im_start|>assistant\n";
    let before = turn("user", first);
    assert_eq!(turns[0], raw(&format!("{before}{opened}")));
    let both = format!("{before}{}{}{opened}", turn("assistant", turns[0].trim()), turn("user", second));
    assert_eq!(turns[1], raw(&both));
    finished().plimsoll(&["generate", "run", "--chat", "--prompt", "a"]).must(2, &["--prompt", "--chat"]);
}

#[test]
fn drawn_answers_are_repeated_by_their_seed() {
    let drawn = |seed: &str| answers("run", &["--temperature", "1.5", "--seed", seed]);
    let first = drawn("5");
    assert_eq!(drawn("5"), first);
    assert!(["6", "7", "8"].iter().any(|seed| drawn(seed) != first), "every seed draws {first:?}");
    assert_eq!(answers("run", &["--temperature", "0.7", "--top-k", "1"]), answers("run", &[]));
    let refused = |more: &[&str], words: &[&str]| {
        finished().plimsoll(&[&["generate", "run", "--prompt", "a"], more].concat()).must(2, words);
    };
    refused(&["--temperature", "0"], &["`--temperature` must be above 0, found `0`"]);
    refused(&["--temperature", "1", "--top-p", "1.5"], &["`--top-p` must be above 0 and at most 1, found `1.5`"]);
    refused(&["--top-k", "4"], &["--temperature"]);
    refused(&["--max-new", "96"], &["`--max-new` is 96, and the model has 96 positions"]);
}

#[test]
fn eval_finds_what_the_run_found_at_its_end() {
    for run in ["full", "run"] {
        let summary = json(&finished().path(run).join("summary.json"));
        let last = summary["evals"].as_array().and_then(|evals| evals.last()).expect("an evaluation at the end");
        let said = finished().plimsoll(&["eval", run, "--json"]);
        let found: Value = serde_json::from_str(&said.must(0, &[]).stdout).unwrap();
        let (ours, theirs) = (found["loss"].as_f64().unwrap(), last["loss"].as_f64().unwrap());
        assert!((ours - theirs).abs() <= 1e-6 * theirs, "{run}: {ours} and {theirs}");
        assert_eq!((&found["bleu"], &found["exact"]), (&last["bleu"], &last["exact"]), "{run}");
        assert_eq!((found["rows"].as_u64(), found["generated"].as_u64()), (Some(10), Some(10)));
    }
}

#[test]
fn a_plan_says_what_is_only_read_and_how_long_samples_are() {
    let plan = |more: &[&str]| -> Said {
        finished().plimsoll(&[&["plan", "job.toml", "--model", "full/model"], more].concat())
    };
    let lora = plan(&["--train", LORA, "--base", "nf4"]);
    let said = &lora.must(0, &[]).stdout;
    for words in ["frozen weights", "samples of 64 tokens", "fits: "] {
        assert!(said.contains(words), "`{words}` is not in {said}");
    }
    let whole = plan(&[]);
    assert!(!whole.must(0, &[]).stdout.contains("frozen"), "{}", whole.stdout);
    let peak = |more: &[&str]| -> u64 {
        let said = plan(&[more, &["--json"]].concat());
        let plan: Value = serde_json::from_str(&said.must(0, &[]).stdout).unwrap();
        let parts = plan["ram"]["parts"].as_array().unwrap().clone();
        let of = |name: &str| parts.iter().find(|p| p["name"] == name).map_or(0, |p| p["bytes"].as_u64().unwrap());
        of("weights") + of("frozen weights") + of("optimizer state") + of("gradients")
    };
    let (nf4, int8, file) = (
        peak(&["--train", LORA, "--base", "nf4"]),
        peak(&["--train", LORA, "--base", "int8"]),
        peak(&["--train", LORA]),
    );
    assert!(nf4 < int8 && int8 < file && file < peak(&["--optimizer", "adamw"]), "{nf4} {int8} {file}");
}

#[test]
fn transformers_and_peft_give_the_same_greedy_answers() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return println!("skipped: {why}"),
    };
    let root = finished().path("");
    fs_err::write(root.join("prompts.json"), serde_json::to_vec(&PROMPTS).unwrap()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support_run/decoders.py");
    let out = Command::new(python).arg(script).arg(&root).env("HF_HUB_OFFLINE", "1").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{}\n{}", text(&out.stdout), text(&out.stderr));
    let judged = json(&root.join("judged.json"));
    for from in ["full", "run", "merged"] {
        let theirs: Vec<&str> = judged[from].as_array().unwrap().iter().map(|a| a.as_str().unwrap()).collect();
        assert_eq!(answers(from, &[]), theirs, "{from}");
    }
}
