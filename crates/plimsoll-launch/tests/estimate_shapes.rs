//! Parameter counts, LoRA, attention and logits of the estimator, against what `transformers` 5.22 counts and against the
//! figures that the guides' models are known by.

use plimsoll_launch::estimate::activation::{attention_matrix, logits};
use plimsoll_launch::estimate::cnn_lstm::{self, CnnLstm, Version};
use plimsoll_launch::estimate::shape::{ByHand, Dims};
use plimsoll_launch::estimate::{
    Attention, Device, EstimateError, Offload, PhaseName, Precision, Shape, Software, Terms, Trainable, Zero,
    from_config, host, vits, vram,
};
use plimsoll_launch::{Knob, Settings};
use plimsoll_machine::Bytes;
use serde_json::{Value, json};

fn shape(config: Value) -> Shape {
    from_config(&config).unwrap()
}

fn qwen() -> Shape {
    shape(json!({"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": true}))
}

#[test]
fn parameters_are_those_that_transformers_counts() {
    let llama = |kind: &str, ffn: u64, kv: u64| {
        json!({"model_type": kind, "hidden_size": 4096, "intermediate_size": ffn, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": kv, "vocab_size": 32000})
    };
    let bert = |kind: &str, vocab: u64, positions: u64, types: u64| {
        json!({"model_type": kind, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
            "num_attention_heads": 12, "vocab_size": vocab, "max_position_embeddings": positions,
            "type_vocab_size": types})
    };
    let t5 = |kind: &str, layers: u64, hidden: u64, ffn: u64, heads: u64, vocab: u64| {
        json!({"model_type": kind, "num_layers": layers, "d_model": hidden, "d_ff": ffn, "num_heads": heads, "d_kv": 64,
            "vocab_size": vocab})
    };
    let gpt2 = json!({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_inner": null,
        "n_positions": 1024, "vocab_size": 50257});
    let qwen3 = json!({"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "tie_word_embeddings": true});
    for (config, params) in [
        (gpt2, 124_439_808),
        (qwen3, 596_049_920),
        (llama("llama", 11008, 32), 6_738_415_616),
        (llama("mistral", 14336, 8), 7_241_732_096),
        (bert("bert", 30522, 512, 2), 109_514_298),
        (bert("roberta", 50265, 514, 1), 124_697_433),
        (t5("t5", 6, 512, 2048, 8, 32128), 60_506_624),
        (t5("mt5", 8, 512, 1024, 6, 250112), 172_119_424),
        (t5("t5", 10, 768, 3072, 12, 29298), 187_692_288),
    ] {
        assert_eq!(shape(config.clone()).params(), params, "{config}");
    }
    assert_eq!(qwen().params(), 494_032_768);
}

#[test]
fn a_finetune_of_the_decoder_trains_half_of_chatlm() {
    let chatlm = shape(json!({"model_type": "t5", "num_layers": 10, "d_model": 768, "d_ff": 3072, "num_heads": 12,
        "d_kv": 64, "vocab_size": 29298}));
    assert_eq!(chatlm.trainable(Trainable::Decoder), 94_396_032);
    assert_eq!(chatlm.bytes(4), Bytes(750_769_152));
    assert_eq!(chatlm.largest_layer(), 29298 * 768);
}

#[test]
fn lora_adds_rank_times_inputs_and_outputs() {
    let qwen = qwen();
    for (rank, modules, params) in [(64, 7, 35_192_832), (48, 7, 26_394_624), (32, 7, 17_596_416), (16, 4, 2_162_688)] {
        assert_eq!(qwen.lora(rank, modules), params);
    }
    assert_eq!(qwen.lora_pairs(2), 48);
    // Rows and columns of A and B: for q 16 + 896 + 896 + 16, for v 16 + 896 + 128 + 16.
    let trained = Trainable::Lora { rank: 16, modules: 2 };
    assert_eq!(qwen.factored(trained), 24 * (16 + 896 + 896 + 16 + 16 + 896 + 128 + 16));
}

#[test]
fn the_trading_models_have_their_known_parameters() {
    let of = |version, channels, lstm| {
        cnn_lstm::shape(CnnLstm { version, channels, lstm, steps: 60, features: 112, pool: 2 }).params()
    };
    assert_eq!(of(Version::V1, [64, 128, 256], 256), 3_099_142);
    assert_eq!(of(Version::V1, [32, 64, 128], 128), 827_142);
    assert_eq!(of(Version::V2, [32, 64, 128], 128), 1_142_405);
    assert_eq!(vits::medium().params(), 70_400_000);
}

#[test]
fn an_attention_matrix_is_what_the_failed_allocations_were() {
    let gib = |batch, features, element| {
        let model = CnnLstm { version: Version::V2, channels: [32, 64, 128], lstm: 128, steps: 60, features, pool: 2 };
        let bytes = attention_matrix(batch, model.heads(), model.positions(), element);
        (model.positions(), (bytes.0 as f64 / (1u64 << 30) as f64 * 1e4).round() / 1e4)
    };
    assert_eq!(gib(256, 112, 2), (840, 1.3458));
    assert_eq!(gib(256, 112, 4), (840, 2.6917));
    assert_eq!(gib(128, 112, 2), (840, 0.6729));
    assert_eq!(gib(64, 112, 4), (840, 0.6729));
    assert_eq!(gib(256, 110, 4), (825, 2.5964));
}

#[test]
fn logits_are_the_largest_term_of_the_presets() {
    let gib = |batch, seq| {
        let bytes = logits(batch, seq, 151_936, 4);
        (bytes.0 as f64 / (1u64 << 30) as f64 * 1e3).round() / 1e3
    };
    assert_eq!((gib(4, 2048), gib(3, 1792), gib(2, 1536), gib(1, 1024)), (4.637, 3.043, 1.739, 0.58));
    let terms = Terms::new(qwen(), Device::Cuda, Software::Torch);
    let mut terms = Terms { batch: 4, length: 2048, precision: Precision::Mixed, checkpointing: true, ..terms };
    terms.trainable = Trainable::Lora { rank: 64, modules: 7 };
    let table = vram(&terms);
    let largest = table.phase(table.peak).unwrap().parts.iter().max_by_key(|part| part.bytes).unwrap();
    assert_eq!(largest.name, "logits and their gradients", "{table}");
}

#[test]
fn all_missing_keys_are_named_at_once() {
    let missing = from_config(&json!({"model_type": "llama", "hidden_size": 64})).unwrap_err();
    let text = missing.to_string();
    for key in ["num_attention_heads", "num_hidden_layers", "intermediate_size", "vocab_size"] {
        assert!(text.contains(key), "{text}");
    }
    let unknown = from_config(&json!({"model_type": "mamba"})).unwrap_err().to_string();
    assert!(unknown.contains("`mamba`") && unknown.contains("kv_heads"), "{unknown}");
    let absurd = json!({"model_type": "gpt2", "n_layer": 12, "n_embd": 1u64 << 60, "n_head": 12, "n_positions": 1,
        "vocab_size": 50257});
    assert!(matches!(from_config(&absurd).unwrap_err(), EstimateError::BadKey { .. }));
}

#[test]
fn a_shape_by_hand_carries_what_its_numbers_do_not_explain() {
    let dims = Dims {
        encoder_layers: 0,
        decoder_layers: 24,
        hidden: 896,
        heads: 14,
        kv_heads: 2,
        head_dim: 64,
        ffn: 4864,
        vocab: 151_936,
        tied: true,
    };
    let by_hand = |params| Shape::by_hand(ByHand { params, dims, gated: true });
    assert_eq!(by_hand(Some(494_032_768)).unwrap().params(), 494_032_768);
    assert_eq!(by_hand(None).unwrap().lora(64, 7), 35_192_832);
    assert!(matches!(by_hand(Some(1000)).unwrap_err(), EstimateError::TooFewParams { given: 1000, .. }));
}

#[test]
fn settings_are_laid_over_the_terms_and_refused_by_name() {
    let base = || Terms::new(qwen(), Device::Cuda, Software::HfTrainer);
    let settings = Settings::from([
        (Knob::Batch, 4.into()),
        (Knob::Length, 2048.into()),
        (Knob::Precision, "bf16-mixed".into()),
        (Knob::ZeroStage, 3.into()),
        (Knob::OffloadOptimizer, "cpu".into()),
        (Knob::OffloadParams, "cpu".into()),
        (Knob::LoraRank, 64.into()),
        (Knob::LoraModules, 7.into()),
        (Knob::Attention, "eager".into()),
    ]);
    let terms = Terms::from_settings(&settings, base()).unwrap();
    assert_eq!((terms.batch, terms.length, terms.target_length, terms.zero.stage), (4, 2048, 2048, 3));
    assert_eq!((terms.precision, terms.attention), (Precision::Mixed, Attention::Eager));
    assert_eq!(terms.shape.trainable(terms.trainable), 35_192_832);
    assert_eq!(terms.zero.offload_params, Offload::Cpu);

    let bad = |knob, value: plimsoll_launch::Value| base().with(&Settings::from([(knob, value)])).unwrap_err();
    assert_eq!(bad(Knob::Batch, 0.into()).to_string(), "`batch`: expected a number of at least 1, found `0`");
    assert_eq!(bad(Knob::ZeroStage, 4.into()), EstimateError::NoSuchStage { stage: 4 });
    assert_eq!(bad(Knob::OffloadParams, "cpu".into()), EstimateError::OffloadNeedsStage3 { stage: 0 });
    assert!(bad(Knob::Optimizer, "prodigy".into()).to_string().contains("`prodigy`"));
}

#[test]
fn each_cure_takes_off_what_it_should_and_nothing_else() {
    let terms = Terms::new(qwen(), Device::Cuda, Software::Torch);
    let terms = Terms { batch: 4, length: 1024, target_length: 1024, attention: Attention::Eager, ..terms };
    let of = |terms: &Terms, name: &str| {
        let table = vram(terms);
        let phase = table.phase(PhaseName::Backward).unwrap();
        phase.parts.iter().find(|part| part.name == name).map_or(Bytes::ZERO, |part| part.bytes)
    };
    let fused = Terms { attention: Attention::Sdpa, ..terms.clone() };
    assert!(of(&terms, "attention matrices") > Bytes::gib(4) && of(&fused, "attention matrices") == Bytes::ZERO);
    let recomputed = Terms { checkpointing: true, ..fused.clone() };
    assert!(of(&recomputed, "activations").0 * 4 < of(&fused, "activations").0);
    assert_eq!(of(&recomputed, "weights"), of(&fused, "weights"));
    // One rank has nothing to share a stage over; four have.
    let zero = |stage, processes| Terms { zero: Zero { stage, ..Zero::default() }, processes, ..fused.clone() };
    assert_eq!(of(&zero(1, 1), "optimizer state"), of(&zero(2, 1), "optimizer state"));
    assert_eq!(of(&zero(2, 4), "optimizer state").0 * 4, of(&zero(2, 1), "optimizer state").0);
    let mut offloaded = zero(2, 4);
    offloaded.zero.offload_optimizer = Offload::Cpu;
    assert_eq!(of(&offloaded, "optimizer state"), Bytes::ZERO);
}

#[test]
fn a_resumed_checkpoint_has_the_moments_wherever_they_lie() {
    let mut terms = Terms::new(qwen(), Device::Cuda, Software::HfDeepSpeed);
    terms = Terms { processes: 2, precision: Precision::Mixed, resume: true, ..terms };
    let loaded = |offload_optimizer| {
        let zero = Zero { stage: 2, offload_optimizer, ..Zero::default() };
        let table = host(&Terms { zero, ..terms.clone() });
        let resume = table.phase(PhaseName::Resume).unwrap();
        resume.parts.iter().find(|part| part.name == "loaded checkpoint").unwrap().bytes
    };
    assert_eq!(loaded(Offload::Cpu), loaded(Offload::None));
    assert_eq!(loaded(Offload::Cpu), Bytes(14 * 494_032_768));
}
