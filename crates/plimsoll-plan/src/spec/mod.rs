//! What a model is: the numbers of its config and the list of its parameters, in Hugging Face's names and order.

mod decoder;
mod series;
mod series_check;
mod t5;

use serde::{Deserialize, Serialize};

pub use decoder::{DecoderFamily, DecoderSpec, Dropouts, Positions, RopeScaling, RopeSpec, decoder_params};
pub use series::{
    Activation, BATCH_MOMENTUM, ConvBlock, ConvNorm, HeadLayer, HeadSpec, InputLayout, LstmSpec, Mixup, POSITIONS,
    SERIES_EPS, SeriesAttention, SeriesLoss, SeriesSpec, is_running, series_params,
};
pub use series_check::SpecError;
pub use t5::{FeedForward, T5Spec, t5_params};

/// How a freshly made parameter is drawn (Hugging Face's `_init_weights`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Every element is one.
    Ones,
    /// Every element is zero.
    Zeros,
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
    /// Uniform between plus and minus this (`kaiming_uniform_` of LoRA's first factor).
    Uniform(f32),
}

/// One tensor of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Hugging Face's name.
    pub name: String,
    /// Shape; linear weights are `[out, in]`, GPT-2's `[in, out]`.
    pub shape: Vec<usize>,
    /// How to draw it.
    pub init: Init,
}

impl Param {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A model of any family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelSpec {
    /// Encoder and decoder.
    T5(T5Spec),
    /// Decoder alone.
    Decoder(DecoderSpec),
    /// Convolutions and an LSTM, over series.
    Series(SeriesSpec),
}

impl From<T5Spec> for ModelSpec {
    fn from(spec: T5Spec) -> ModelSpec {
        ModelSpec::T5(spec)
    }
}

impl From<DecoderSpec> for ModelSpec {
    fn from(spec: DecoderSpec) -> ModelSpec {
        ModelSpec::Decoder(spec)
    }
}

impl From<SeriesSpec> for ModelSpec {
    fn from(spec: SeriesSpec) -> ModelSpec {
        ModelSpec::Series(spec)
    }
}

impl ModelSpec {
    /// Every parameter, in Hugging Face's names; of series in those of PyTorch's modules.
    pub fn params(&self) -> Vec<Param> {
        match self {
            ModelSpec::T5(spec) => t5_params(spec),
            ModelSpec::Decoder(spec) => decoder_params(spec),
            ModelSpec::Series(spec) => series_params(spec),
        }
    }

    /// The decoder's spec, where it is one.
    pub fn decoder(&self) -> Option<&DecoderSpec> {
        match self {
            ModelSpec::Decoder(spec) => Some(spec),
            ModelSpec::T5(_) | ModelSpec::Series(_) => None,
        }
    }

    /// T5's spec, where it is one.
    pub fn t5(&self) -> Option<&T5Spec> {
        match self {
            ModelSpec::T5(spec) => Some(spec),
            ModelSpec::Decoder(_) | ModelSpec::Series(_) => None,
        }
    }

    /// The spec of a model of series, where it is one.
    pub fn series(&self) -> Option<&SeriesSpec> {
        match self {
            ModelSpec::Series(spec) => Some(spec),
            ModelSpec::T5(_) | ModelSpec::Decoder(_) => None,
        }
    }

    /// Rows of the embedding table; 0 where there is none.
    pub fn vocab(&self) -> usize {
        match self {
            ModelSpec::T5(spec) => spec.vocab,
            ModelSpec::Decoder(spec) => spec.vocab,
            ModelSpec::Series(_) => 0,
        }
    }

    /// Width of the residual stream.
    pub fn d_model(&self) -> usize {
        match self {
            ModelSpec::T5(spec) => spec.d_model,
            ModelSpec::Decoder(spec) => spec.d_model,
            ModelSpec::Series(spec) => spec.width(),
        }
    }

    /// Blocks of all stacks; of series those of convolutions.
    pub fn blocks(&self) -> usize {
        match self {
            ModelSpec::T5(spec) => spec.encoder_layers + spec.decoder_layers,
            ModelSpec::Decoder(spec) => spec.layers,
            ModelSpec::Series(spec) => spec.conv.len(),
        }
    }

    /// The token that ends a text.
    pub fn eos_id(&self) -> u32 {
        match self {
            ModelSpec::T5(spec) => spec.eos_id,
            ModelSpec::Decoder(spec) => spec.eos_ids.first().copied().unwrap_or(0),
            ModelSpec::Series(_) => 0,
        }
    }

    /// Tokens that end an answer.
    pub fn ends(&self, token: u32) -> bool {
        match self {
            ModelSpec::T5(spec) => token == spec.eos_id,
            ModelSpec::Decoder(spec) => spec.eos_ids.contains(&token),
            ModelSpec::Series(_) => false,
        }
    }

    /// Padding; the end token where there is none of its own.
    pub fn pad_id(&self) -> u32 {
        match self {
            ModelSpec::T5(spec) => spec.pad_id,
            ModelSpec::Decoder(spec) => spec.pad_id.unwrap_or_else(|| self.eos_id()),
            ModelSpec::Series(_) => 0,
        }
    }

    /// Replaces every dropout probability.
    pub fn set_dropout(&mut self, rate: f32) {
        match self {
            ModelSpec::T5(spec) => spec.dropout = rate,
            ModelSpec::Decoder(spec) => {
                spec.dropout = Dropouts { embedding: rate, attention: rate, residual: rate };
            }
            ModelSpec::Series(spec) => spec.set_dropout(rate),
        }
    }
}
