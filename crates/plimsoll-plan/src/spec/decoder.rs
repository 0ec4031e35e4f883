//! Decoder-only models: GPT-2, Llama, Mistral, Qwen2 and Qwen3 as one spec, because they differ in a handful of facts.

use serde::{Deserialize, Serialize};

use super::{Init, Param};

/// Whose names and rules a decoder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecoderFamily {
    /// `gpt2`: learned positions, layer norm, biases everywhere, weights stored `[in, out]`.
    Gpt2,
    /// `llama`.
    Llama,
    /// `mistral`.
    Mistral,
    /// `qwen2`: biases of q, k and v.
    Qwen2,
    /// `qwen3`: RMS norm of each head's q and k.
    Qwen3,
}

/// How the angles of rotary positions are stretched for longer contexts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "type")]
pub enum RopeScaling {
    /// Not at all.
    Default,
    /// Every angle is divided by `factor`.
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// Llama 3's: long waves are divided, short ones kept, those between blended.
    Llama3 {
        /// Divisor of the long waves.
        factor: f32,
        /// Waves longer than the original context over this are divided.
        low_freq_factor: f32,
        /// Waves shorter than the original context over this are kept.
        high_freq_factor: f32,
        /// The context of the first training.
        original_context: usize,
    },
}

/// Rotary positions (Su et al. 2021), in Hugging Face's halves: element i turns with element i + width / 2.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RopeSpec {
    /// Base of the wave lengths.
    pub theta: f32,
    /// Stretching.
    pub scaling: RopeScaling,
}

impl RopeSpec {
    /// Angle per position of pair `i` of a head that is `width` wide; f32 steps, as transformers takes them.
    pub fn frequency(&self, i: usize, width: usize) -> f32 {
        let plain = 1.0 / self.theta.powf((2 * i) as f32 / width as f32);
        match self.scaling {
            RopeScaling::Default => plain,
            RopeScaling::Linear { factor } => plain / factor,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let wave = 2.0 * std::f32::consts::PI / plain;
                let context = original_context as f32;
                let (low, high) = (context / low_freq_factor, context / high_freq_factor);
                if wave > low {
                    return plain / factor;
                }
                if wave < high {
                    return plain;
                }
                let blend = (context / wave - low_freq_factor) / (high_freq_factor - low_freq_factor);
                (1.0 - blend) * plain / factor + blend * plain
            }
        }
    }
}

/// Where a token learns its position from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Positions {
    /// A table that is added to the embedding.
    Learned,
    /// Turned queries and keys.
    Rope(RopeSpec),
}

/// Probabilities of dropping an element while training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Dropouts {
    /// Of the embedding.
    pub embedding: f32,
    /// Of attention's probabilities.
    pub attention: f32,
    /// Of what a layer adds to the residual stream.
    pub residual: f32,
}

/// A decoder-only model, as its config.json states it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecoderSpec {
    /// Names and rules.
    pub family: DecoderFamily,
    /// Rows of the embedding table.
    pub vocab: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Blocks.
    pub layers: usize,
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of keys and values; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub d_head: usize,
    /// Width of the feed-forward part.
    pub d_ff: usize,
    /// Added to the variance inside the norms.
    pub norm_eps: f32,
    /// Positions.
    pub positions: Positions,
    /// Longest context that the config allows; rows of the learned table.
    pub max_positions: usize,
    /// Keys that a query sees at most, itself included, per block; empty: all.
    pub windows: Vec<Option<usize>>,
    /// q, k and v have biases (GPT-2, Qwen2, `attention_bias`).
    pub qkv_bias: bool,
    /// The attention's output projection has a bias (GPT-2, Llama's and Qwen3's `attention_bias`).
    pub out_bias: bool,
    /// The feed-forward products have biases (GPT-2, Llama's `mlp_bias`).
    pub mlp_bias: bool,
    /// The head is the embedding table.
    pub tied: bool,
    /// Dropout.
    pub dropout: Dropouts,
    /// Standard deviation of fresh weights (`initializer_range`).
    pub init_std: f32,
    /// Begin-of-text token, where the config has one.
    pub bos_id: Option<u32>,
    /// End tokens; the first ends a training sample, any of them ends an answer.
    pub eos_ids: Vec<u32>,
    /// Padding token, where the config has one.
    pub pad_id: Option<u32>,
}

impl DecoderSpec {
    /// Qwen2.5-0.5B as published: a size that people know, to plan and measure against.
    pub fn qwen25_half_billion() -> DecoderSpec {
        DecoderSpec {
            family: DecoderFamily::Qwen2,
            vocab: 151_936,
            d_model: 896,
            layers: 24,
            heads: 14,
            kv_heads: 2,
            d_head: 64,
            d_ff: 4864,
            norm_eps: 1e-6,
            positions: Positions::Rope(RopeSpec { theta: 1e6, scaling: RopeScaling::Default }),
            max_positions: 32_768,
            windows: vec![],
            qkv_bias: true,
            out_bias: false,
            mlp_bias: false,
            tied: true,
            dropout: Dropouts::default(),
            init_std: 0.02,
            bos_id: None,
            eos_ids: vec![151_643],
            pad_id: None,
        }
    }

    /// Width of all query heads together.
    pub fn q_width(&self) -> usize {
        self.heads * self.d_head
    }

    /// Width of all key heads together; the values' too.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.d_head
    }

    /// Layer norm with a bias instead of RMS norm.
    pub fn layer_norm(&self) -> bool {
        self.family == DecoderFamily::Gpt2
    }

    /// RMS norm of each head's q and k.
    pub fn qk_norm(&self) -> bool {
        self.family == DecoderFamily::Qwen3
    }

    /// Linear weights are stored `[in, out]`.
    pub fn weights_are_in_out(&self) -> bool {
        self.family == DecoderFamily::Gpt2
    }

    /// `silu(gate) * up`; otherwise `gelu_new`.
    pub fn gated(&self) -> bool {
        self.family != DecoderFamily::Gpt2
    }

    /// Keys that a query of this block sees at most.
    pub fn window(&self, block: usize) -> Option<usize> {
        self.windows.get(block).copied().flatten()
    }

    /// Name of the embedding table.
    pub fn table_name(&self) -> &'static str {
        match self.family {
            DecoderFamily::Gpt2 => "transformer.wte.weight",
            _ => "model.embed_tokens.weight",
        }
    }

    /// Name of the head: the table where it is tied.
    pub fn head_name(&self) -> &'static str {
        if self.tied { self.table_name() } else { "lm_head.weight" }
    }

    /// The modules of block `i` that are matrix products, with their inputs and outputs, in the order of a forward pass.
    /// GPT-2's `c_attn` is q, k and v in one.
    pub fn linears(&self, i: usize) -> Vec<(String, usize, usize)> {
        let (d, q, kv, ff) = (self.d_model, self.q_width(), self.kv_width(), self.d_ff);
        let stem = self.block_stem(i);
        let name = |part: &str| format!("{stem}.{part}");
        match self.family {
            DecoderFamily::Gpt2 => vec![
                (name("attn.c_attn"), d, q + 2 * kv),
                (name("attn.c_proj"), q, d),
                (name("mlp.c_fc"), d, ff),
                (name("mlp.c_proj"), ff, d),
            ],
            _ => vec![
                (name("self_attn.q_proj"), d, q),
                (name("self_attn.k_proj"), d, kv),
                (name("self_attn.v_proj"), d, kv),
                (name("self_attn.o_proj"), q, d),
                (name("mlp.gate_proj"), d, ff),
                (name("mlp.up_proj"), d, ff),
                (name("mlp.down_proj"), ff, d),
            ],
        }
    }

    /// What the names of block `i` begin with.
    pub fn block_stem(&self, i: usize) -> String {
        match self.family {
            DecoderFamily::Gpt2 => format!("transformer.h.{i}"),
            _ => format!("model.layers.{i}"),
        }
    }
}

/// Every parameter of a decoder, in Hugging Face's names. Parameters that one matrix product reads together (q, k, v;
/// gate and up) stand next to each other; so do their biases.
pub fn decoder_params(spec: &DecoderSpec) -> Vec<Param> {
    let (d, std) = (spec.d_model, spec.init_std);
    let mut list = Vec::new();
    let mut add = |name: String, shape: &[usize], init: Init| list.push(Param { name, shape: shape.to_vec(), init });
    add(spec.table_name().into(), &[spec.vocab, d], Init::Normal(std));
    if spec.positions == Positions::Learned {
        add("transformer.wpe.weight".into(), &[spec.max_positions, d], Init::Normal(std));
    }
    let gpt2 = spec.family == DecoderFamily::Gpt2;
    // GPT-2 scales what is added to the residual stream by the number of such additions.
    let onto_stream = if gpt2 { std / (2.0 * spec.layers as f32).sqrt() } else { std };
    for i in 0..spec.layers {
        let stem = spec.block_stem(i);
        let (first, second) = if gpt2 { ("ln_1", "ln_2") } else { ("input_layernorm", "post_attention_layernorm") };
        let mut norm = |name: &str| {
            add(format!("{stem}.{name}.weight"), &[d], Init::Ones);
            if spec.layer_norm() {
                add(format!("{stem}.{name}.bias"), &[d], Init::Zeros);
            }
        };
        norm(first);
        norm(second);
        if spec.qk_norm() {
            add(format!("{stem}.self_attn.q_norm.weight"), &[spec.d_head], Init::Ones);
            add(format!("{stem}.self_attn.k_norm.weight"), &[spec.d_head], Init::Ones);
        }
        let linears = spec.linears(i);
        let into = |name: &str| name.ends_with("c_proj");
        for (name, inputs, outputs) in &linears {
            let shape = if spec.weights_are_in_out() { [*inputs, *outputs] } else { [*outputs, *inputs] };
            let deviation = if into(name) { onto_stream } else { std };
            add(format!("{name}.weight"), &shape, Init::Normal(deviation));
        }
        for (name, _, outputs) in &linears {
            let biased = if name.contains("mlp.") {
                spec.mlp_bias
            } else if name.ends_with("o_proj") || name.ends_with("attn.c_proj") {
                spec.out_bias
            } else {
                spec.qkv_bias
            };
            if biased {
                add(format!("{name}.bias"), &[*outputs], Init::Zeros);
            }
        }
    }
    let last = if gpt2 { "transformer.ln_f" } else { "model.norm" };
    add(format!("{last}.weight"), &[d], Init::Ones);
    if spec.layer_norm() {
        add(format!("{last}.bias"), &[d], Init::Zeros);
    }
    if !spec.tied {
        add("lm_head.weight".into(), &[spec.vocab, d], Init::Normal(std));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_models_have_their_published_number_of_parameters() {
        let count = |spec: &DecoderSpec| decoder_params(spec).iter().map(Param::elements).sum::<usize>();
        assert_eq!(count(&DecoderSpec::qwen25_half_billion()), 494_032_768);
        let gpt2 = DecoderSpec {
            family: DecoderFamily::Gpt2,
            vocab: 50_257,
            d_model: 768,
            layers: 12,
            heads: 12,
            kv_heads: 12,
            d_ff: 3072,
            norm_eps: 1e-5,
            positions: Positions::Learned,
            max_positions: 1024,
            out_bias: true,
            mlp_bias: true,
            ..DecoderSpec::qwen25_half_billion()
        };
        assert_eq!(count(&gpt2), 124_439_808);
    }
}
