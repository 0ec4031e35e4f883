//! T5: encoder and decoder, v1.0 and v1.1.

use serde::{Deserialize, Serialize};

use super::{Init, Param};

/// The middle of a T5 block's feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FeedForward {
    /// `relu(x wi)`: T5 v1.0.
    Relu,
    /// `gelu_new(x wi_0) * (x wi_1)`: T5 v1.1.
    GatedGelu,
}

/// A T5 model, as its config.json states it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct T5Spec {
    /// Rows of the embedding table.
    pub vocab: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Width of one attention head.
    pub d_kv: usize,
    /// Width of the feed-forward part.
    pub d_ff: usize,
    /// Blocks of the encoder.
    pub encoder_layers: usize,
    /// Blocks of the decoder.
    pub decoder_layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Buckets of the relative position bias.
    pub buckets: usize,
    /// Distance from which all positions share the last bucket.
    pub max_distance: usize,
    /// Probability of dropping an element while training.
    pub dropout: f32,
    /// Added to the mean square inside RMS norm.
    pub norm_eps: f32,
    /// Kind of feed-forward part.
    pub feed_forward: FeedForward,
    /// The head is the embedding table; otherwise there is an `lm_head.weight`.
    pub tied: bool,
    /// The head's input is scaled by `d_model^-0.5` (v1.0). Apart from `tied`, because transformers 5 takes
    /// `tie_word_embeddings = false` as "do not scale" and ties all the same unless the file holds another head.
    pub scale_head: bool,
    /// Padding token.
    pub pad_id: u32,
    /// End-of-sequence token.
    pub eos_id: u32,
    /// First token of every decoder input.
    pub start_id: u32,
}

impl T5Spec {
    /// T5-small as published (v1.0): a size that people know, to plan and measure against.
    pub fn small() -> T5Spec {
        T5Spec {
            vocab: 32128,
            d_model: 512,
            d_kv: 64,
            d_ff: 2048,
            encoder_layers: 6,
            decoder_layers: 6,
            heads: 8,
            buckets: 32,
            max_distance: 128,
            dropout: 0.1,
            norm_eps: 1e-6,
            feed_forward: FeedForward::Relu,
            tied: true,
            scale_head: true,
            pad_id: 0,
            eos_id: 1,
            start_id: 0,
        }
    }

    /// Width of all heads together.
    pub fn inner(&self) -> usize {
        self.heads * self.d_kv
    }
}

/// Every parameter of a T5 model. Parameters that one matrix product reads together (q, k, v; the two gated inputs)
/// stand next to each other, and stay next to each other in memory.
pub fn t5_params(spec: &T5Spec) -> Vec<Param> {
    let (d, inner, ff) = (spec.d_model as f32, spec.inner(), spec.d_ff);
    let mut list = Vec::new();
    let mut add = |name: String, shape: &[usize], init: Init| list.push(Param { name, shape: shape.to_vec(), init });
    add("shared.weight".into(), &[spec.vocab, spec.d_model], Init::Normal(1.0));
    for (stack, layers) in [("encoder", spec.encoder_layers), ("decoder", spec.decoder_layers)] {
        for i in 0..layers {
            let block = format!("{stack}.block.{i}.layer");
            let kinds: &[&str] =
                if stack == "encoder" { &["SelfAttention"] } else { &["SelfAttention", "EncDecAttention"] };
            for (j, kind) in kinds.iter().enumerate() {
                let q_std = (d * spec.d_kv as f32).powf(-0.5);
                add(format!("{block}.{j}.{kind}.q.weight"), &[inner, spec.d_model], Init::Normal(q_std));
                add(format!("{block}.{j}.{kind}.k.weight"), &[inner, spec.d_model], Init::Normal(d.powf(-0.5)));
                add(format!("{block}.{j}.{kind}.v.weight"), &[inner, spec.d_model], Init::Normal(d.powf(-0.5)));
                add(
                    format!("{block}.{j}.{kind}.o.weight"),
                    &[spec.d_model, inner],
                    Init::Normal((inner as f32).powf(-0.5)),
                );
                if i == 0 && j == 0 {
                    let name = format!("{block}.0.SelfAttention.relative_attention_bias.weight");
                    add(name, &[spec.buckets, spec.heads], Init::Normal(d.powf(-0.5)));
                }
                add(format!("{block}.{j}.layer_norm.weight"), &[spec.d_model], Init::Ones);
            }
            let j = kinds.len();
            let wi: &[&str] = match spec.feed_forward {
                FeedForward::Relu => &["wi"],
                FeedForward::GatedGelu => &["wi_0", "wi_1"],
            };
            for w in wi {
                add(format!("{block}.{j}.DenseReluDense.{w}.weight"), &[ff, spec.d_model], Init::Normal(d.powf(-0.5)));
            }
            add(
                format!("{block}.{j}.DenseReluDense.wo.weight"),
                &[spec.d_model, ff],
                Init::Normal((ff as f32).powf(-0.5)),
            );
            add(format!("{block}.{j}.layer_norm.weight"), &[spec.d_model], Init::Ones);
        }
        add(format!("{stack}.final_layer_norm.weight"), &[spec.d_model], Init::Ones);
    }
    if !spec.tied {
        add("lm_head.weight".into(), &[spec.vocab, spec.d_model], Init::Normal(1.0));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t5_small_has_its_published_number_of_parameters() {
        let total: usize = t5_params(&T5Spec::small()).iter().map(Param::elements).sum();
        assert_eq!(total, 60_506_624);
    }
}
