//! Answers about sizes: host RAM sums, parameters, ZeRO states, attention, presets, ranges.

use plimsoll_launch::estimate::activation::attention_matrix;
use plimsoll_launch::estimate::cnn_lstm::{self, CnnLstm, Version};
use plimsoll_launch::estimate::zero::deepspeed::{Edition, ModelStates, zero2, zero3};
use plimsoll_launch::estimate::{Offload, Optimizer, Trainable, from_config};
use plimsoll_launch::failure::CudaReport;
use plimsoll_launch::guide::figure::{card_percent, faster, less, minutes, pace, percent, rounded};
use plimsoll_launch::guide::host_ram::{PiperRun, breakdown, host_plan, per_process};
use plimsoll_launch::guide::{Gb, Span, effective_batch, model, policy, preset, profile};
use plimsoll_launch::{Knob, Value as Set};
use plimsoll_machine::Bytes;
use serde_json::{Value, json};

/// What we say to a vector of this kind; none where it is not one of ours.
pub fn answer(kind: &str, input: &Value) -> Option<Value> {
    let count = |key: &str| input[key].as_u64().unwrap_or_else(|| panic!("`{key}` of {input}"));
    let number = |key: &str| input[key].as_f64().unwrap_or_else(|| panic!("`{key}` of {input}"));
    Some(match kind {
        "plan_host_ram" => {
            let plan = host_plan(&run(input), Gb(number("ram_gb"))).unwrap();
            json!({
                "total_gb": plan.parts.total(), "fits": plan.fits(), "effective_batch": plan.effective_batch,
                "speed_pct": plan.speed_percent, "headroom_gb": plan.headroom, "warn": plan.warning,
            })
        }
        "breakdown" => {
            let parts = breakdown(input["model"].as_str().unwrap_or("presets"), &run(input)).unwrap();
            json!({
                "system": parts.system, "runtime": parts.runtime, "loader": parts.loader, "batch": parts.batch,
                "buffers": parts.buffers, "total": parts.total(), "fits_44": parts.total() <= Gb(44.0),
            })
        }
        "per_process_budget" => json!({"gb": per_process(Gb(number("ram_gb")), count("gpus")).unwrap()}),
        "effective_batch" => json!(effective_batch(count("batch"), count("gpus"), count("accum"))),
        "sum_range" => {
            let parts: Vec<Span> = serde_json::from_value(input.clone()).unwrap();
            json!(parts.into_iter().sum::<Span>())
        }
        "range_sub" => json!(less(number("used"), span(&input["saving"]))),
        "percent" if input.get("used_mib").is_some() => json!(card_percent(count("used_mib"), count("total_mib"))),
        "percent" => json!(percent(number("used"), number("total"))),
        "ratio" => {
            let pace = pace(number("before"), span(&input["after"]));
            json!({"step_pct": pace.step_percent, "speed": pace.speed})
        }
        "duration" => {
            let step = &profile("chatlm-before").unwrap().figures.iter().find(|(what, _)| what == "step").unwrap().1;
            let seconds: f64 = step.trim_end_matches(" s").parse().unwrap();
            let before = minutes(count("steps"), Span { low: seconds, high: seconds });
            assert_eq!(rounded(before.low, 2), 3.4);
            let now = minutes(count("steps"), span(&input["sec_per_step"]));
            json!({"minutes": now, "faster_than_before_3_40": faster(now, before)})
        }
        "model_bytes" => model_bytes(input),
        "freeze" => {
            assert_eq!(input["mode"], "finetune");
            let shape = model::chatlm().shape();
            let (trained, of) = (shape.trainable(Trainable::Decoder), shape.params());
            let percent = trained as f64 / of as f64 * 100.0;
            json!({"frozen": model::chatlm().frozen, "trainable_params": trained, "of": of, "pct": percent})
        }
        "fits" => {
            let least = policy::min_ram(input["mode"].as_str().unwrap()).unwrap();
            json!({"min_ram_gb": least, "fits": Gb(number("ram_gb")) >= least})
        }
        "attention_alloc" => {
            // The vector gives what the three poolings come to.
            assert_eq!(count("pool"), POOL.pow(3));
            let model = series(Version::V2, [32, 64, 128], 128, count("seq_steps"), count("features"));
            assert_eq!(model.heads(), count("heads"));
            let length = model.positions();
            json!({"T": length, "gib": gib(attention_matrix(count("batch"), model.heads(), length, count("bytes")))})
        }
        "val_batch" => json!(preset::validation_batch(count("batch"))),
        "preset_select" => json!(preset::select(number("gpu_gb"))),
        "preset_full" => preset_full(input),
        "zero2_model_states" => {
            let offload = offloaded(&input["offload_optimizer"]);
            states(zero2(number("params") as u64, count("gpus"), 1, offload, Edition::Documented))
        }
        "zero3_model_states" => {
            assert_eq!(input["zero_init"], 0);
            let [optimizer, parameters] = ["offload_optimizer", "offload_param"].map(|key| offloaded(&input[key]));
            let (params, layer) = (number("params") as u64, number("largest_layer") as u64);
            states(zero3(params, layer, count("gpus"), 1, optimizer, parameters, false))
        }
        "parse_cuda_oom" => {
            let oom = CudaReport::parse(input.as_str().unwrap()).unwrap();
            let note = oom.had_more_free().then_some("free > requested: not plain exhaustion");
            json!({
                "gpu": oom.gpu, "requested_gib": oom.requested.map(gib), "total_gib": oom.total.map(gib),
                "free_gib": oom.free.map(gib), "process_gib": oom.this_process.map(gib),
                "allocated_gib": oom.allocated.map(gib),
                "reserved_unallocated_gib": oom.unallocated.map(gib), "note": note,
            })
        }
        _ => return None,
    })
}

fn run(input: &Value) -> PiperRun {
    let count = |key: &str| input[key].as_u64();
    PiperRun {
        gpus: count("gpus").unwrap(),
        batch: count("batch_size").unwrap(),
        workers: count("num_workers").unwrap(),
        accumulation: count("accum").unwrap_or(1),
    }
}

fn span(value: &Value) -> Span {
    serde_json::from_value(value.clone()).unwrap()
}

fn gib(bytes: Bytes) -> f64 {
    bytes.0 as f64 / Bytes::gib(1).0 as f64
}

fn states(states: ModelStates) -> Value {
    json!({"gpu_gib": gib(states.card), "cpu_gib": gib(states.host)})
}

fn offloaded(said: &Value) -> Offload {
    if said == true { Offload::Cpu } else { Offload::None }
}

/// By how much each pooling of HybridCNNLSTM shortens.
const POOL: u64 = 2;

fn series(version: Version, channels: [u64; 3], lstm: u64, steps: u64, features: u64) -> CnnLstm {
    CnnLstm { version, channels, lstm, steps, features, pool: POOL }
}

fn model_bytes(input: &Value) -> Value {
    let arch = input["arch"].as_str().unwrap();
    if let Some(words) = arch.strip_prefix("T5 ") {
        let shape = from_config(&t5(words, &input["vocab"])).unwrap();
        assert_eq!(shape, model::chatlm().shape(), "the file of profiles has the same model");
        return json!({
            "params": shape.params(), "fp32_bytes": shape.bytes(4),
            "adafactor_state_floats": shape.factored(Trainable::All),
            "adam_state_bytes": Optimizer::AdamW.state(&shape, Trainable::All, 4),
            "trainable_sft_decoder_only": shape.trainable(Trainable::Decoder),
        });
    }
    let version = match arch {
        "HybridCNNLSTM v1" => Version::V1,
        "HybridCNNLSTM v2 default" => Version::V2,
        other => panic!("unknown model `{other}`"),
    };
    let channels: [u64; 3] = serde_json::from_value(input["cnn"].clone()).unwrap();
    let shape = cnn_lstm::shape(series(version, channels, input["lstm"].as_u64().unwrap(), 60, 112));
    json!({"params": shape.params(), "fp32_mb": rounded(shape.bytes(4).0 as f64 / 1e6, 1)})
}

/// The config that `d768 ff3072 h12 L10+10 tied` is short for.
fn t5(words: &str, vocab: &Value) -> Value {
    let mut config = json!({"model_type": "t5", "vocab_size": vocab, "tie_word_embeddings": false});
    let number = |text: &str| text.parse::<u64>().unwrap();
    for word in words.split(' ') {
        if let Some((encoder, decoder)) = word.strip_prefix('L').and_then(|layers| layers.split_once('+')) {
            config["num_layers"] = json!(number(encoder));
            config["num_decoder_layers"] = json!(number(decoder));
        } else if let Some(d_ff) = word.strip_prefix("ff") {
            config["d_ff"] = json!(number(d_ff));
        } else if let Some(d_model) = word.strip_prefix('d') {
            config["d_model"] = json!(number(d_model));
        } else if let Some(heads) = word.strip_prefix('h') {
            config["num_heads"] = json!(number(heads));
        } else {
            assert_eq!(word, "tied");
            config["tie_word_embeddings"] = json!(true);
        }
    }
    config["d_kv"] = json!(config["d_model"].as_u64().unwrap() / config["num_heads"].as_u64().unwrap());
    config
}

fn preset_full(input: &Value) -> Value {
    assert_eq!(input["model"], model::qwen().name.as_str());
    let profile = preset::of(input["name"].as_str().unwrap()).unwrap();
    let count = |knob| profile.settings.get(&knob).and_then(Set::count);
    let sizes = preset::sizes(profile).unwrap();
    json!({
        "lora_r": count(Knob::LoraRank), "lora_alpha": profile.own["lora_alpha"].parse::<u64>().unwrap(),
        "lora_scale": sizes.lora_scale, "lora_modules": count(Knob::LoraModules),
        "lora_params": sizes.lora_parameters, "logits_fp32_gib": gib(sizes.logits),
    })
}
