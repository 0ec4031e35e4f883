//! Sizes of the models that the guides speak of: parameters, state, attention matrix, logits, in bytes.
//!
//! Formulas over shapes and nothing else. The general ones (any `config.json`) belong to `estimate`; these are what the
//! guides' own models need.

use plimsoll_machine::Bytes;
use plimsoll_plan::spec::{FeedForward, Param, T5Spec, t5_params};

use super::book::CHATLM;
use super::preset::QwenModel;

/// ChatLM's T5, with upstream's vocabulary or another.
pub fn chatlm(vocab: Option<usize>) -> T5Spec {
    let model = &CHATLM.model;
    T5Spec {
        vocab: vocab.unwrap_or(model.vocab),
        d_model: model.d_model,
        d_kv: model.d_kv,
        d_ff: model.d_ff,
        heads: model.heads,
        encoder_layers: model.encoder_layers,
        decoder_layers: model.decoder_layers,
        feed_forward: FeedForward::Relu,
        tied: true,
        ..T5Spec::small()
    }
}

/// Elements of all parameters.
pub fn parameters(spec: &T5Spec) -> u64 {
    t5_params(spec).iter().map(|param| param.elements() as u64).sum()
}

/// Numbers that Adafactor keeps without a first moment: rows + columns of a matrix, all of a vector.
pub fn adafactor_state(spec: &T5Spec) -> u64 {
    let kept = |param: &Param| match param.shape[..] {
        [rows, columns] => rows + columns,
        _ => param.elements(),
    };
    t5_params(spec).iter().map(|param| kept(param) as u64).sum()
}

/// Bytes of Adam's two moments in fp32: 8 x parameters.
pub fn adam_state(parameters: u64) -> Bytes {
    Bytes(parameters * 8)
}

/// What fine-tuning leaves to train.
#[derive(Clone, Debug, PartialEq)]
pub struct Frozen {
    /// Parts that are frozen.
    pub parts: Vec<String>,
    /// Weights that are trained.
    pub trained: u64,
    /// Weights in all.
    pub of: u64,
}

impl Frozen {
    /// The trained share in percent.
    pub fn percent(&self) -> f64 {
        self.trained as f64 / self.of as f64 * 100.0
    }
}

/// Guide 003's fine-tuning: embedding and encoder frozen.
pub fn frozen(spec: &T5Spec) -> Frozen {
    let parts = CHATLM.model.frozen.clone();
    let is_frozen = |name: &str| {
        parts.iter().any(|part| match part.as_str() {
            "shared embedding" => name.starts_with("shared."),
            stack => name.starts_with(&format!("{stack}.")),
        })
    };
    let (mut trained, mut of) = (0, 0);
    for param in t5_params(spec) {
        let elements = param.elements() as u64;
        of += elements;
        trained += if is_frozen(&param.name) { 0 } else { elements };
    }
    Frozen { parts, trained, of }
}

/// Inputs and outputs of the modules that LoRA adapts in one block: the first 4 are attention's, the next 3 the
/// feed-forward part's.
pub fn lora_modules(model: &QwenModel, kinds: u64) -> Vec<(u64, u64)> {
    let (h, ff, kv) = (model.hidden, model.intermediate, model.hidden / model.heads * model.kv_heads);
    let all = [(h, h), (h, kv), (h, kv), (h, h), (h, ff), (h, ff), (ff, h)];
    all.into_iter().take(kinds as usize).collect()
}

/// LoRA's weights in modules of these inputs and outputs: rank x (in + out).
pub fn lora_parameters(modules: &[(u64, u64)], rank: u64) -> u64 {
    modules.iter().map(|(input, output)| rank * (input + output)).sum()
}

/// Logits: batch x length x vocabulary.
pub fn logits(batch: u64, length: u64, vocab: u64, element_bytes: u64) -> Bytes {
    Bytes(batch * length * vocab * element_bytes)
}

/// Length of the sequence that guide 004's attention sees: steps x features, pooled.
pub fn pooled_length(steps: u64, features: u64, pool: u64) -> u64 {
    steps * features / pool
}

/// An attention matrix that is kept: batch x heads x length^2.
pub fn attention_matrix(batch: u64, heads: u64, length: u64, element_bytes: u64) -> Bytes {
    Bytes(batch * heads * length * length * element_bytes)
}

/// Guide 004's model: convolutions of widths 3, 5, 7 over one channel, two bidirectional LSTM layers, attention, three
/// heads. `residual` is its second version: skips, layer norm, four-headed attention, a deeper first head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HybridCnnLstm {
    /// Channels of the convolutions.
    pub channels: [u64; 3],
    /// Width of the LSTM in one direction.
    pub hidden: u64,
    /// Whether it is the second version.
    pub residual: bool,
}

impl HybridCnnLstm {
    /// Number of weights.
    pub fn parameters(&self) -> u64 {
        let linear = |input: u64, output: u64| input * output + output;
        let mut sum = 0;
        let mut input = 1;
        for (output, width) in self.channels.into_iter().zip([3, 5, 7]) {
            // Convolution with bias, then batch norm; the skip is a convolution of width 1.
            sum += linear(input * width, output) + 2 * output;
            sum += if self.residual { linear(input, output) } else { 0 };
            input = output;
        }
        let (h, out) = (self.hidden, 2 * self.hidden);
        for input in [input, out] {
            // Two directions, four gates, PyTorch's two biases.
            sum += 2 * (4 * h * (input + h) + 8 * h);
        }
        if self.residual {
            const POSITIONS: u64 = 256;
            sum += 2 * out + 4 * linear(out, out) + 2 * out + POSITIONS * out;
            sum += linear(out, 128) + linear(128, 64) + linear(64, 3);
        } else {
            sum += linear(out, 128) + linear(128, 1);
            sum += linear(out, 128) + linear(128, 3);
        }
        sum + 2 * (linear(out, 64) + linear(64, 1))
    }
}
