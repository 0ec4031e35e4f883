//! Answers about rules: policies, ladders, schedules, presets, classification, refusals, contradictions.

use std::path::Path;

use plimsoll_launch::estimate::zero::{check_batch, sharded, states};
use plimsoll_launch::estimate::{Offload, Optimizer, Precision, Trainable, Zero};
use plimsoll_launch::failure::{self, FailureKind, Log, LogSource, Scene};
use plimsoll_launch::guide::checklist::failures;
use plimsoll_launch::guide::cleanup::{self, Cleanup};
use plimsoll_launch::guide::consistency::{self, Contradiction};
use plimsoll_launch::guide::oom::signature;
use plimsoll_launch::guide::policy::{self, Decision, Snapshot};
use plimsoll_launch::guide::refusal::manual_optimization;
use plimsoll_launch::guide::{
    Book, Refusal, Situation, advice, argv, dataset, effective_batch, model, preset, profile,
};
use plimsoll_launch::{Command, Knob, LaunchError, Settings, Shelf, Value as Set};
use plimsoll_recover::Exit;
use plimsoll_recover::cause::{CgroupCounters, Change};
use serde_json::{Value, json};

/// What we say to a vector of this kind; none where it is not one of ours.
pub fn answer(kind: &str, seed: &str, input: &Value) -> Option<Value> {
    let count = |key: &str| input[key].as_u64().unwrap_or_else(|| panic!("`{key}` of {input}"));
    let number = |key: &str| input[key].as_f64().unwrap_or_else(|| panic!("`{key}` of {input}"));
    Some(match kind {
        "policy" => decided(&rule(number("threshold")).decide(Snapshot {
            available: number("available_gib"),
            gpus: count("gpus"),
            accumulation: count("config_accum"),
            batch: count("batch_size_per_gpu"),
        })),
        "policy_workers" => {
            let seen = Snapshot { available: number("available_gib"), gpus: count("gpus"), ..policy::snapshot() };
            json!(rule(number("threshold")).decide(seen).workers)
        }
        "rollback" => decided(&policy::rollback(number("threshold")).unwrap()),
        "low_mem_caps" => {
            let decision = low_mem(Snapshot { batch: count("config_batch"), ..policy::snapshot() });
            json!({"train_batch": decision.batch, "eval_batch": decision.eval_batch})
        }
        "low_mem_accum" => {
            json!(low_mem(Snapshot { accumulation: count("config_accum"), ..policy::snapshot() }).accumulation)
        }
        "log_consistency" => log_consistency(input),
        "advice" | "ladder" => steps(seed, input),
        "cleanup_schedule" => schedule(input),
        "preset" => named_preset(seed, input["name"].as_str().unwrap()),
        "classify_log" => json!(signature(input.as_str().unwrap()).map(|known| known.means.to_string())),
        "classify_exit" => ended(input),
        "adapter_check" => {
            let automatic = input["automatic_optimization"] == true;
            let checked = manual_optimization(count("accumulate_grad_batches"), automatic);
            json!({"reject": checked.is_err(), "message": refusal(checked)})
        }
        "argv" => {
            let argv: Vec<String> = serde_json::from_value(input["argv"].clone()).unwrap();
            json!({"reject": refused(argv)})
        }
        "argv_check" => argv_check(input),
        "dataset_check" => {
            let gpus = count("gpus");
            json!({"must_work": dataset::dataset(gpus, input["keep_in_memory"] == true).serves(gpus)})
        }
        "zero_shards" => {
            json!(sharded(stage(input)))
        }
        "zero_config_check" => {
            let offload_params = Offload::from_word(input["offload_param"].as_str().unwrap()).unwrap();
            json!({"reject": refusal(Zero { stage: stage(input), offload_params, ..Zero::default() }.check())})
        }
        "zero_gain" => {
            assert_eq!(input["offload"], false);
            let alone = held(stage(input), 1);
            assert!(alone > held(stage(input), 2), "two ranks share what one holds");
            json!({"sharding_saving_bytes": alone - held(stage(input), count("world_size"))})
        }
        "ds_batch_check" => {
            let (train, world) = (count("train_batch_size"), count("world_size"));
            json!({"reject": refusal(check_batch(train, count("micro"), count("accum"), world))})
        }
        _ => return None,
    })
}

fn rule(threshold: f64) -> &'static policy::Version {
    policy::by_threshold(threshold).unwrap_or_else(|| panic!("no version has the threshold {threshold}"))
}

fn low_mem(seen: Snapshot) -> Decision {
    policy::version("301ce20").unwrap().decide(seen)
}

fn refusal<T, E: ToString>(checked: Result<T, E>) -> Option<String> {
    checked.err().map(|refused| refused.to_string())
}

fn stage(input: &Value) -> u8 {
    input["stage"].as_u64().unwrap().try_into().unwrap()
}

/// Bytes of state that a rank of guide 002's model holds in a full fine-tuning.
fn held(stage: u8, ranks: u64) -> u64 {
    let zero = Zero { stage, ..Zero::default() };
    let held = states(&model::qwen().shape(), Trainable::All, Optimizer::AdamW, Precision::Mixed, &zero, ranks);
    held.weights.0 + held.gradients.0 + held.optimizer.0 + held.master.0
}

/// What `plimsoll run` says to Piper with these words; the vector's name for it is `duplicate flag`.
fn refused(argv: Vec<String>) -> Option<String> {
    let words = ["python", "-m", "piper.train", "fit"].map(String::from).into_iter().chain(argv).collect();
    match Command::understand(words, &Shelf::built_in().unwrap(), None, Path::new("/nowhere")) {
        Err(LaunchError::Twice { flag, .. }) => Some(format!("duplicate flag {flag}")),
        other => panic!("{other:?}"),
    }
}

/// What an end was, in the vectors' words.
fn ended(input: &Value) -> Value {
    let kills = Change { before: 0, after: input["cgroup_oom_kill_delta"].as_u64().unwrap() };
    let mut scene = Scene::default();
    scene.evidence.exit = Some(Exit::Exited(input["rc"].as_i64().unwrap() as i32));
    scene.evidence.cgroup =
        Some(CgroupCounters::V1 { oom_kill: Some(kills), failcnt: None, max_usage: None, limit: None });
    if input["cuda_text"] == true {
        let text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.".to_string();
        scene.logs.push(Log { source: LogSource::Main, first_line: 1, text });
    }
    json!(match failure::failure(&scene).kind {
        FailureKind::HostOom { .. } => "host_oom",
        FailureKind::KilledUnproven { signal: 9 } => "killed_unknown (SIGKILL without OOM evidence)",
        other => other.name(),
    })
}

fn decided(decision: &Decision) -> Value {
    json!({
        "low_mem": decision.low_mem, "ultra_low_mem": decision.ultra_low_mem, "num_workers": decision.workers,
        "pin_memory": decision.pin_memory, "accum": decision.accumulation, "batch": decision.batch,
    })
}

fn log_consistency(input: &Value) -> Value {
    if let Some(lines) = input["lines"].as_array() {
        let lines: Vec<&str> = lines.iter().map(|line| line.as_str().unwrap()).collect();
        let found = consistency::contradiction(&lines);
        return json!({"reject": found.is_some(), "reason": found.map(|found| found.to_string())});
    }
    let number = |key: &str| input[key].as_f64().unwrap();
    let checked = consistency::available(number("total"), number("used"), number("available_printed"));
    let expected = match checked {
        Err(Contradiction::Available { expected, .. }) => Some(expected),
        _ => None,
    };
    json!({"reject": expected.is_some(), "expected_available": expected})
}

/// The steps of a guide, in a list, or under `order` as guide 000's vectors have it.
fn steps(seed: &str, input: &Value) -> Value {
    let book = match seed {
        "000" => Book::Piper,
        "001" | "003" => Book::Chatlm,
        "002" => Book::Qwen,
        "004" => Book::Rtx3060,
        other => panic!("unknown guide `{other}`"),
    };
    let mut now = Situation::of(serde_json::from_value(input["event"].clone()).unwrap());
    now.phase = serde_json::from_value(input["phase"].clone()).unwrap();
    now.reading = input["value"].as_f64();
    now.ram_headroom = input["ram_headroom"].as_bool().unwrap_or(true);
    now.settings = settings(&input["config"]);
    let said: Vec<&str> = advice(book, &now).into_iter().map(|step| step.say.as_str()).collect();
    if seed == "000" { json!({"order": said}) } else { json!(said) }
}

/// Settings in guide 000's names.
fn settings(config: &Value) -> Settings {
    let mut settings = Settings::new();
    for (name, value) in config.as_object().into_iter().flatten() {
        let knob = match name.as_str() {
            "gpus" => Knob::Processes,
            "batch_size" => Knob::Batch,
            "num_workers" => Knob::Workers,
            "accum" => Knob::Accumulation,
            "precision" => Knob::Precision,
            other => panic!("unknown setting `{other}`"),
        };
        let set = value.as_u64().map(Set::from).or(value.as_str().map(Set::from));
        settings.insert(knob, set.unwrap());
    }
    settings
}

fn schedule(input: &Value) -> Value {
    if let (Some(every), Some(batches)) = (input["every"].as_u64(), input["batches"].as_u64()) {
        let cleanup = cleanup::rtx3060();
        assert_eq!(cleanup.every, every);
        return json!({"after_batches": Cleanup { every, ..cleanup }.at(batches)});
    }
    let version = policy::version(input["version"].as_str().unwrap_or("301ce20")).unwrap();
    let steps = input["steps"].as_u64().unwrap();
    let cleaned = version.cleanup().at(steps);
    let logged = version.logging().map(|logging| logging.at(steps));
    json!({"at_steps": cleaned, "plus": version.cleans_also(), "gc_at": cleaned, "log_at": logged})
}

fn named_preset(seed: &str, name: &str) -> Value {
    let profile = match seed {
        "002" => preset::of(name).unwrap(),
        "004" => profile(&format!("rtx3060-{name}")).unwrap(),
        other => panic!("guide `{other}` has no such presets"),
    };
    let count = |knob| profile.settings.get(&knob).and_then(Set::count);
    let word = |knob| profile.settings.get(&knob).and_then(Set::word);
    let (batch, accumulation) = (count(Knob::Batch).unwrap(), count(Knob::Accumulation).unwrap());
    let mut answer = json!({
        "batch": batch, "accum": accumulation, "num_workers": count(Knob::Workers),
        "mixed_precision": word(Knob::Precision) == Some("fp16-mixed"),
        "effective_batch": effective_batch(batch, count(Knob::Processes).unwrap(), accumulation),
        "checklist_fail": failures(&profile.settings),
        "seq": count(Knob::Length), "stage_named": count(Knob::ZeroStage),
        "cpu_offload": word(Knob::OffloadOptimizer) == Some("cpu"),
    });
    for (what, span) in &profile.claims {
        answer[what] = json!(span);
    }
    if let Some(sizes) = preset::sizes(profile) {
        answer["effective_batch_1gpu"] = json!(sizes.effective_batch);
        answer["tokens_per_micro_step"] = json!(sizes.tokens_per_pass);
        answer["tokens_per_update"] = json!(sizes.tokens_per_update);
    }
    answer
}

fn argv_check(input: &Value) -> Value {
    let known = &profile("chatlm-16gb").unwrap().flags;
    let asked = input.as_object().unwrap();
    let words: Vec<String> = asked.iter().map(|(flag, value)| format!("--{flag}={value}")).collect();
    let read = argv::check(&words, Some(known));
    let has = |flags: &argv::Flags, flag: &str, value: &Value| flags.get(flag) == Some(&value.to_string());
    let applied = read.as_ref().is_ok_and(|flags| asked.iter().all(|(flag, value)| has(flags, flag, value)));
    let strange = argv::check(&["--no_such_flag=1"], Some(known));
    let refused = matches!(&strange, Err(refused @ Refusal::UnknownFlag { .. })
        if refused.to_string().contains("refused before training starts"));
    json!({
        "accepted": read.is_ok(), "applied": applied,
        "unknown_flag": if refused { "reject before training starts" } else { "let through" },
    })
}
