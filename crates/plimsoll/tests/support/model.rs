//! A model's numbers: a T5 or one of the decoder families, its config.json and weights for it.

use std::collections::HashMap;
use std::path::Path;

use plimsoll_model::{Existing, ModelError, ModelFolder, init, save_model};
use plimsoll_plan::dtype::Dtype;
use serde_json::{Value, json};

use super::draw::Draw;

/// Whose names and rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    T5,
    Gpt2,
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

/// Every decoder.
pub const DECODERS: [Family; 5] = [Family::Gpt2, Family::Llama, Family::Mistral, Family::Qwen2, Family::Qwen3];

/// The numbers of a model.
#[derive(Clone, Debug)]
pub struct Model {
    pub family: Family,
    pub vocab: usize,
    pub d_model: usize,
    pub d_head: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub d_ff: usize,
    /// Blocks; of a T5 those of its encoder.
    pub layers: usize,
    /// Blocks of a T5's decoder.
    pub decoder_layers: usize,
    /// A T5's feed-forward part has a gate.
    pub gated: bool,
    pub tied: bool,
    /// Longest context of a decoder.
    pub positions: usize,
    /// Keys that a Mistral's query sees at most.
    pub window: Option<usize>,
}

impl Model {
    /// A T5 of a few MiB, or of tens.
    pub fn t5(draw: &mut Draw, large: bool) -> Model {
        let d_model = if large { 64 * draw.within(4..=16) } else { 8 * draw.within(4..=32) };
        let heads = draw.within(1..=4);
        Model {
            family: Family::T5,
            vocab: if large { draw.within(20000..=50000) } else { draw.within(100..=8000) },
            d_model,
            d_head: *draw.one_of(&[8, 16, 32, 64]),
            heads,
            kv_heads: heads,
            d_ff: d_model * draw.within(1..=4),
            layers: draw.within(1..=4),
            decoder_layers: draw.within(1..=4),
            gated: draw.once_in(2),
            tied: draw.once_in(2),
            positions: 0,
            window: None,
        }
    }

    /// A decoder of a few MiB, or of tens to hundreds.
    pub fn decoder(family: Family, draw: &mut Draw, large: bool) -> Model {
        let heads = if large { *draw.one_of(&[4, 6, 8, 12]) } else { *draw.one_of(&[2, 4, 8]) };
        let d_head = if large { *draw.one_of(&[32, 64, 128]) } else { *draw.one_of(&[8, 16, 32]) };
        let kv = [1, 2, heads];
        let d_model = heads * d_head;
        Model {
            family,
            vocab: if large { draw.within(20000..=50000) } else { draw.within(400..=8000) },
            d_model,
            d_head,
            heads,
            kv_heads: if family == Family::Gpt2 { heads } else { *draw.one_of(&kv) },
            d_ff: d_model * draw.within(1..=4),
            layers: draw.within(if large { 2..=8 } else { 1..=5 }),
            decoder_layers: 0,
            gated: true,
            tied: family == Family::Gpt2 || draw.once_in(2),
            positions: *draw.one_of(&[512, 1024, 2048]),
            window: (family == Family::Mistral && draw.once_in(2)).then(|| draw.within(8..=64)),
        }
    }

    /// Numbers of the model, about.
    pub fn params(&self) -> usize {
        let (inner, kv) = (self.d_head * self.heads, self.d_head * self.kv_heads);
        let attention = self.d_model * (2 * inner + 2 * kv);
        let gated = if self.family == Family::T5 { self.gated } else { self.family != Family::Gpt2 };
        let forward = self.d_model * self.d_ff * if gated { 3 } else { 2 };
        let blocks = self.layers * (attention + forward) + self.decoder_layers * (2 * attention + forward);
        blocks + self.vocab * self.d_model * if self.tied { 1 } else { 2 }
    }

    /// config.json.
    pub fn config(&self) -> Value {
        match self.family {
            Family::T5 => self.t5_config(),
            Family::Gpt2 => json!({
                "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": self.vocab,
                "n_embd": self.d_model, "n_head": self.heads, "n_layer": self.layers, "n_inner": self.d_ff,
                "n_positions": self.positions, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
                "embd_pdrop": 0.1, "attn_pdrop": 0.1, "resid_pdrop": 0.1, "initializer_range": 0.02,
                "tie_word_embeddings": true, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
            }),
            Family::Llama => self.llama_like("llama", "LlamaForCausalLM"),
            Family::Mistral => self.llama_like("mistral", "MistralForCausalLM"),
            Family::Qwen2 => self.llama_like("qwen2", "Qwen2ForCausalLM"),
            Family::Qwen3 => self.llama_like("qwen3", "Qwen3ForCausalLM"),
        }
    }

    fn t5_config(&self) -> Value {
        json!({
            "architectures": ["T5ForConditionalGeneration"],
            "model_type": "t5",
            "vocab_size": self.vocab,
            "d_model": self.d_model,
            "d_kv": self.d_head,
            "d_ff": self.d_ff,
            "num_layers": self.layers,
            "num_decoder_layers": self.decoder_layers,
            "num_heads": self.heads,
            "relative_attention_num_buckets": 32,
            "relative_attention_max_distance": 128,
            "dropout_rate": 0.1,
            "layer_norm_epsilon": 1e-6,
            "initializer_factor": 1.0,
            "feed_forward_proj": if self.gated { "gated-gelu" } else { "relu" },
            "is_encoder_decoder": true,
            "tie_word_embeddings": self.tied,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "decoder_start_token_id": 0,
        })
    }

    fn llama_like(&self, model_type: &str, class: &str) -> Value {
        json!({
            "architectures": [class], "model_type": model_type, "vocab_size": self.vocab,
            "hidden_size": self.d_model, "intermediate_size": self.d_ff, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.d_head,
            "max_position_embeddings": self.positions, "hidden_act": "silu", "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0, "sliding_window": self.window, "attention_dropout": 0.0,
            "initializer_range": 0.02, "tie_word_embeddings": self.tied,
            "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
        })
    }
}

/// Gives the model in `from` weights, drawn and stored in this form: a folder `to`.
pub fn write_weights(from: &Path, to: &Path, dtype: Dtype) {
    let folder = ModelFolder::open(from).unwrap();
    let params = folder.spec().params();
    let by_name: HashMap<&str, usize> = params.iter().enumerate().map(|(i, p)| (p.name.as_str(), i)).collect();
    let factor = folder.init_factor();
    let mut drawn = |name: &str, first: usize, out: &mut [f32]| -> Result<(), ModelError> {
        init::fill_random_part(&params[by_name[name]], factor, 7, first, out);
        Ok(())
    };
    save_model(to, folder.config(), folder.spec(), dtype, &mut drawn, from, Existing::Refuse).unwrap();
}
