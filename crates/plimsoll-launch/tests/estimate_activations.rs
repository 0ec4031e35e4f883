//! What a layer keeps, against what PyTorch said that it saved.
//!
//! Bytes a token of one more layer (of each stack), from `saved_tensors_hooks` with torch 2.15 and transformers 5.22 on a
//! CPU: unique storages, parameters aside, of two layers less those of one. Width 64, feed-forward 256, 4 heads of 16,
//! length 32 unless said otherwise.

use plimsoll_launch::estimate::{Attention, Device, Precision, Software, Terms, activation, from_config};
use serde_json::{Value, json};

fn config(family: &str, layers: u64, kv: u64) -> Value {
    match family {
        "gpt2" => json!({"model_type": "gpt2", "n_layer": layers, "n_embd": 64, "n_inner": 256, "n_head": 4,
            "n_positions": 512, "vocab_size": 128}),
        "t5" | "mt5" => json!({"model_type": family, "num_layers": layers, "d_model": 64, "d_ff": 256, "num_heads": 4,
            "d_kv": 16, "vocab_size": 128}),
        "bert" => {
            json!({"model_type": "bert", "num_hidden_layers": layers, "hidden_size": 64, "intermediate_size": 256,
            "num_attention_heads": 4, "vocab_size": 128, "max_position_embeddings": 512})
        }
        kind => json!({"model_type": kind, "num_hidden_layers": layers, "hidden_size": 64, "intermediate_size": 256,
            "num_attention_heads": 4, "num_key_value_heads": kv, "head_dim": 16, "vocab_size": 128}),
    }
}

fn a_layer_keeps(family: &str, kv: u64, length: u64, attention: Attention, dropout: bool, precision: Precision) -> f64 {
    let kept = |layers| {
        let shape = from_config(&config(family, layers, kv)).unwrap();
        let terms = Terms::new(shape, Device::Cpu, Software::Torch);
        let terms = Terms { batch: 2, length, target_length: length, attention, dropout, precision, ..terms };
        let kept = activation::kept(&terms);
        (kept.layers.0 + kept.scores.0) as f64
    };
    (kept(2) - kept(1)) / (2 * length) as f64
}

#[test]
fn full_precision_is_within_one_per_cent() {
    use Attention::{Eager, Sdpa};
    for (family, kv, length, attention, dropout, saved) in [
        ("gpt2", 4, 32, Eager, false, 7696.0),
        ("gpt2", 4, 64, Eager, false, 8208.0),
        ("gpt2", 4, 32, Eager, true, 9232.0),
        ("gpt2", 4, 64, Eager, true, 10768.0),
        ("gpt2", 4, 32, Sdpa, false, 7200.0),
        ("gpt2", 4, 64, Sdpa, false, 7200.0),
        ("gpt2", 4, 64, Sdpa, true, 10768.0),
        ("llama", 4, 32, Eager, false, 7176.0),
        ("llama", 4, 64, Eager, false, 7688.0),
        ("llama", 4, 32, Sdpa, false, 6680.0),
        ("llama", 2, 32, Sdpa, false, 6424.0),
        ("qwen2", 2, 32, Sdpa, false, 6424.0),
        ("qwen3", 4, 32, Sdpa, false, 7736.0),
        ("qwen3", 2, 32, Sdpa, false, 7216.0),
        ("qwen3", 4, 64, Eager, false, 8744.0),
        ("t5", 4, 32, Eager, false, 10516.0),
        ("t5", 4, 64, Eager, false, 12052.0),
        ("t5", 4, 64, Eager, true, 23572.0),
        ("t5", 4, 64, Sdpa, false, 11076.0),
        ("t5", 4, 64, Sdpa, true, 23604.0),
        ("mt5", 4, 32, Eager, false, 22804.0),
        ("mt5", 4, 32, Eager, true, 29204.0),
        ("bert", 4, 32, Eager, false, 4624.0),
        ("bert", 4, 64, Eager, true, 7696.0),
        ("bert", 4, 64, Sdpa, false, 4128.0),
    ] {
        let kept = a_layer_keeps(family, kv, length, attention, dropout, Precision::Full);
        let off = (kept - saved).abs() / saved;
        assert!(off <= 0.01, "{family} {kv} {length} {attention:?} {dropout}: {kept} instead of {saved}");
    }
}

/// With the casts of the weights taken off, which the estimate has apart.
#[test]
fn mixed_precision_is_within_six_per_cent() {
    use Attention::{Eager, Sdpa};
    for (family, attention, dropout, saved) in [
        ("gpt2", Sdpa, false, 3854.0),
        ("gpt2", Eager, true, 5118.0),
        ("llama", Sdpa, false, 4248.0),
        ("llama", Eager, false, 5000.0),
        ("t5", Eager, false, 9364.0),
        ("mt5", Eager, true, 17940.0),
        ("bert", Sdpa, false, 2574.0),
    ] {
        let kept = a_layer_keeps(family, 4, 32, attention, dropout, Precision::Mixed);
        let off = (kept - saved).abs() / saved;
        assert!(off <= 0.06, "{family} {attention:?} {dropout}: {kept} instead of {saved}");
    }
}
