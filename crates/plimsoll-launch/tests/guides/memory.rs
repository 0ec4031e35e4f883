//! Answers about sizes: host RAM sums, parameters, ZeRO states, attention, presets, ranges.

use plimsoll_launch::guide::figure::{card_percent, faster, less, minutes, pace, percent, rounded};
use plimsoll_launch::guide::host_ram::{PiperRun, breakdown, host_plan, per_process};
use plimsoll_launch::guide::oom::CudaOom;
use plimsoll_launch::guide::zero::{self, Offload};
use plimsoll_launch::guide::{Gb, Span, arith, effective_batch, policy, preset, profile};
use plimsoll_launch::{Knob, Value as Set};
use plimsoll_machine::Bytes;
use plimsoll_plan::spec::T5Spec;
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
            let frozen = arith::frozen(&arith::chatlm(None));
            json!({
                "frozen": frozen.parts, "trainable_params": frozen.trained, "of": frozen.of, "pct": frozen.percent(),
            })
        }
        "fits" => {
            let least = policy::min_ram(input["mode"].as_str().unwrap()).unwrap();
            json!({"min_ram_gb": least, "fits": Gb(number("ram_gb")) >= least})
        }
        "attention_alloc" => {
            let length = arith::pooled_length(count("seq_steps"), count("features"), count("pool"));
            let matrix = arith::attention_matrix(count("batch"), count("heads"), length, count("bytes"));
            json!({"T": length, "gib": gib(matrix)})
        }
        "val_batch" => json!(preset::validation_batch(count("batch"))),
        "preset_select" => json!(preset::select(number("gpu_gb"))),
        "preset_full" => preset_full(input),
        "zero2_model_states" => {
            let states = zero::zero2(number("params") as u64, count("gpus"), input["offload_optimizer"] == true);
            json!({"gpu_gib": gib(states.card), "cpu_gib": gib(states.host)})
        }
        "zero3_model_states" => {
            assert_eq!(input["zero_init"], 0);
            let offload = match (input["offload_optimizer"] == true, input["offload_param"] == true) {
                (true, true) => Offload::All,
                (true, false) => Offload::Optimizer,
                (false, false) => Offload::Nothing,
                (false, true) => panic!("DeepSpeed offloads parameters with the optimizer alone"),
            };
            let (params, layer) = (number("params") as u64, number("largest_layer") as u64);
            let states = zero::zero3(params, layer, count("gpus"), offload);
            json!({"gpu_gib": gib(states.card), "cpu_gib": gib(states.host)})
        }
        "parse_cuda_oom" => {
            let oom = CudaOom::parse(input.as_str().unwrap()).unwrap();
            json!({
                "gpu": oom.gpu, "requested_gib": oom.requested.map(gib), "total_gib": oom.total.map(gib),
                "free_gib": oom.free.map(gib), "process_gib": oom.process.map(gib),
                "allocated_gib": oom.allocated.map(gib),
                "reserved_unallocated_gib": oom.reserved_unallocated.map(gib), "note": oom.note(),
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

fn model_bytes(input: &Value) -> Value {
    let arch = input["arch"].as_str().unwrap();
    if let Some(words) = arch.strip_prefix("T5 ") {
        let spec = t5(words, input["vocab"].as_u64().unwrap() as usize);
        assert_eq!(spec, arith::chatlm(None), "the file of profiles has the same model");
        let params = arith::parameters(&spec);
        return json!({
            "params": params, "fp32_bytes": params * 4, "adafactor_state_floats": arith::adafactor_state(&spec),
            "adam_state_bytes": arith::adam_state(params), "trainable_sft_decoder_only": arith::frozen(&spec).trained,
        });
    }
    let channels: Vec<u64> = serde_json::from_value(input["cnn"].clone()).unwrap();
    let model = arith::HybridCnnLstm {
        channels: channels.try_into().unwrap(),
        hidden: input["lstm"].as_u64().unwrap(),
        residual: match arch {
            "HybridCNNLSTM v1" => false,
            "HybridCNNLSTM v2 default" => true,
            other => panic!("unknown model `{other}`"),
        },
    };
    let params = model.parameters();
    json!({"params": params, "fp32_mb": rounded(params as f64 * 4.0 / 1e6, 1)})
}

/// `d768 ff3072 h12 L10+10 tied`
fn t5(words: &str, vocab: usize) -> T5Spec {
    let mut spec = T5Spec { vocab, tied: false, ..T5Spec::small() };
    for word in words.split(' ') {
        if let Some((encoder, decoder)) = word.strip_prefix('L').and_then(|layers| layers.split_once('+')) {
            (spec.encoder_layers, spec.decoder_layers) = (encoder.parse().unwrap(), decoder.parse().unwrap());
        } else if let Some(d_ff) = word.strip_prefix("ff") {
            spec.d_ff = d_ff.parse().unwrap();
        } else if let Some(d_model) = word.strip_prefix('d') {
            spec.d_model = d_model.parse().unwrap();
        } else if let Some(heads) = word.strip_prefix('h') {
            spec.heads = heads.parse().unwrap();
        } else {
            assert_eq!(word, "tied");
            spec.tied = true;
        }
    }
    spec.d_kv = spec.d_model / spec.heads;
    spec
}

fn preset_full(input: &Value) -> Value {
    assert_eq!(input["model"], preset::model().name.as_str());
    let profile = preset::of(input["name"].as_str().unwrap()).unwrap();
    let count = |knob| profile.settings.get(&knob).and_then(Set::count);
    let sizes = preset::sizes(profile).unwrap();
    json!({
        "lora_r": count(Knob::LoraRank), "lora_alpha": profile.own["lora_alpha"].parse::<u64>().unwrap(),
        "lora_scale": sizes.lora_scale, "lora_modules": count(Knob::LoraModules),
        "lora_params": sizes.lora_parameters, "logits_fp32_gib": gib(sizes.logits),
    })
}
