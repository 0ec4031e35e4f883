//! What we write is what the frameworks read: DeepSpeed's config class, accelerate's loader and transformers' parser are
//! asked. Needs `PLIMSOLL_PYTHON`, an interpreter that has them; says so and passes where there is none.

#![allow(clippy::print_stdout)]

use std::process::Command;

use plimsoll_launch::estimate::{Offload, Zero};
use plimsoll_launch::write::{Accelerate, Batches, Buckets, DeepSpeed, Distribution, Half, hf};
use plimsoll_launch::{Knob, Settings};
use serde_json::{Value, json};

/// What a framework understood of `what`, or none where there is no interpreter.
fn read(reader: &str, what: &str) -> Option<Value> {
    let Ok(python) = std::env::var("PLIMSOLL_PYTHON") else {
        println!("skipped: PLIMSOLL_PYTHON is not set");
        return None;
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peer/read_written.py");
    let out = Command::new(python).args([script, reader, what]).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{reader}: {errors}");
    Some(serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap())
}

fn file(folder: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    fs_err::write(&path, text).unwrap();
    path.to_str().unwrap().to_string()
}

fn deepspeed(zero: Zero) -> DeepSpeed {
    DeepSpeed {
        zero,
        batches: Batches::Explicit { micro: 3, accumulation: 4, world: 1 },
        half: Half::Bf16,
        buckets: Buckets::Explicit,
        own_optimizer: false,
        clip_milli: Some(500),
        nvme_path: None,
    }
}

#[test]
fn deepspeed_reads_its_file_as_it_was_meant() {
    let folder = tempfile::tempdir().unwrap();
    let two = Zero { stage: 2, offload_optimizer: Offload::Cpu, reduce_bucket: 1_000_000, ..Zero::default() };
    let path = file(&folder, "two.json", &deepspeed(two).json().unwrap().to_string());
    let Some(understood) = read("deepspeed", &path) else { return };
    let expected = json!({"train": 12, "micro": 3, "accumulation": 4, "stage": 2, "offload_optimizer": "cpu",
        "offload_param": null, "reduce_bucket": 1_000_000, "clip": 0.5, "force_cpu_adam": false, "bf16": true});
    assert_eq!(understood, expected);
    let three = Zero { stage: 3, offload_params: Offload::Cpu, ..two };
    let path = file(&folder, "three.json", &deepspeed(three).json().unwrap().to_string());
    let understood = read("deepspeed", &path).unwrap();
    assert_eq!((&understood["stage"], &understood["offload_param"]), (&json!(3), &json!("cpu")));
}

#[test]
fn transformers_fills_in_every_auto() {
    let folder = tempfile::tempdir().unwrap();
    for stage in [2, 3] {
        let zero = Zero { stage, ..Zero::default() };
        let written = DeepSpeed {
            batches: Batches::Auto,
            half: Half::Auto,
            buckets: Buckets::Auto,
            clip_milli: None,
            ..deepspeed(zero)
        };
        let path = file(&folder, "auto.json", &written.json().unwrap().to_string());
        let Some(understood) = read("auto", &path) else { return };
        assert_eq!(understood, json!({"left_auto": false, "micro": 3}), "stage {stage}");
    }
}

#[test]
fn accelerate_reads_its_file_as_it_was_meant() {
    let folder = tempfile::tempdir().unwrap();
    let with = |distribution| Accelerate {
        distribution,
        processes: 2,
        accumulation: 4,
        mixed_precision: "no",
        port: Some(29611),
    };
    let path = file(&folder, "ranks.yaml", &with(Distribution::Ranks).yaml().unwrap());
    let Some(understood) = read("accelerate", &path) else { return };
    assert_eq!(understood["kind"], "MULTI_GPU");
    assert_eq!((&understood["processes"], &understood["use_cpu"]), (&json!(2), &json!(false)));

    let zero = Zero { stage: 2, offload_optimizer: Offload::Cpu, ..Zero::default() };
    let path = file(&folder, "zero.yaml", &with(Distribution::DeepSpeed(zero)).yaml().unwrap());
    let understood = read("accelerate", &path).unwrap();
    assert_eq!(understood["kind"], "DEEPSPEED");
    assert_eq!(understood["deepspeed"]["zero_stage"], 2);
    assert_eq!(understood["deepspeed"]["offload_optimizer_device"], "cpu");

    let path = file(&folder, "own.yaml", &with(Distribution::DeepSpeedFile("/a b/it's.json".into())).yaml().unwrap());
    assert_eq!(read("accelerate", &path).unwrap()["deepspeed"]["deepspeed_config_file"], "/a b/it's.json");

    let one = Accelerate { processes: 1, ..with(Distribution::OneCpu) };
    let understood = read("accelerate", &file(&folder, "one.yaml", &one.yaml().unwrap())).unwrap();
    assert_eq!((&understood["kind"], &understood["use_cpu"]), (&json!("NO"), &json!(true)));
}

#[test]
fn transformers_parses_its_arguments_as_they_were_meant() {
    let settings = Settings::from([
        (Knob::Batch, 3.into()),
        (Knob::Accumulation, 5.into()),
        (Knob::Workers, 2.into()),
        (Knob::Prefetch, 4.into()),
        (Knob::PinMemory, false.into()),
        (Knob::Checkpointing, true.into()),
        (Knob::Resume, "out/checkpoint-6".into()),
        (Knob::Output, "out".into()),
    ]);
    let argv = serde_json::to_string(&hf(&settings).unwrap().argv).unwrap();
    let Some(understood) = read("hf", &argv) else { return };
    let expected = json!({"batch": 3, "accumulation": 5, "workers": 2, "prefetch": 4, "pin": false,
        "checkpointing": true, "resume": "out/checkpoint-6"});
    assert_eq!(understood, expected);
}
