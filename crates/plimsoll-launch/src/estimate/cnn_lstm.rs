//! HybridCNNLSTM: convolutions over a flattened series, a two-layer LSTM in both directions, attention, three heads.
//!
//! Its weights are megabytes. What costs is the length: steps times features positions, an eighth of them after three
//! poolings, and in version 2 an attention matrix over those.

use plimsoll_machine::Bytes;
use serde::Serialize;

use super::precision::Device;
use super::shape::{Dims, Family, Shape, Side, Tensor};

const KERNELS: [u64; 3] = [3, 5, 7];
/// The positions that version 2 has an embedding for.
const POSITIONS: u64 = 256;

/// Which version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Version {
    /// Additive attention.
    V1,
    /// Residual convolutions, layer norms, four-head self-attention.
    V2,
}

/// The numbers of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CnnLstm {
    /// Which version.
    pub version: Version,
    /// Channels of the three convolutions.
    pub channels: [u64; 3],
    /// Width of the LSTM, one direction.
    pub lstm: u64,
    /// Steps of a sample.
    pub steps: u64,
    /// Features of a step.
    pub features: u64,
    /// By how much each of the three poolings shortens; 2 in HybridCNNLSTM.
    pub pool: u64,
}

/// Its tensors.
pub fn shape(model: CnnLstm) -> Shape {
    let mut tensors = Vec::new();
    let mut add = |module: &'static str, dims: &[u64], times: u64| {
        tensors.push(Tensor { module, dims: dims.to_vec(), times, side: Side::Decoder });
    };
    let mut into = 1;
    for (channels, kernel) in model.channels.into_iter().zip(KERNELS) {
        add("conv", &[channels, into, kernel], 1);
        add("conv", &[channels], 1);
        add("batch_norm", &[channels], 2);
        if model.version == Version::V2 {
            add("skip", &[channels, into, 1], 1);
            add("skip", &[channels], 1);
        }
        into = channels;
    }
    let (hidden, out) = (model.lstm, 2 * model.lstm);
    for into in [into, out] {
        add("lstm", &[4 * hidden, into], 2);
        add("lstm", &[4 * hidden, hidden], 2);
        add("lstm", &[4 * hidden], 4);
    }
    match model.version {
        Version::V1 => {
            add("attention", &[128, out], 1);
            add("attention", &[128], 1);
            add("score", &[1, 128], 1);
            add("score", &[1], 1);
            add("direction", &[128, out], 1);
            add("direction", &[128], 1);
        }
        Version::V2 => {
            add("lstm_norm", &[out], 2);
            for module in ["q", "k", "v", "o"] {
                add(module, &[out, out], 1);
                add(module, &[out], 1);
            }
            add("attention_norm", &[out], 2);
            add("position_embedding", &[POSITIONS, out], 1);
            add("direction", &[128, out], 1);
            add("direction", &[128], 1);
            add("direction_middle", &[64, 128], 1);
            add("direction_middle", &[64], 1);
        }
    }
    let last = if model.version == Version::V1 { 128 } else { 64 };
    add("classes", &[3, last], 1);
    add("classes", &[3], 1);
    add("confidence_and_return", &[64, out], 2);
    add("confidence_and_return", &[64], 2);
    add("confidence_and_return_out", &[1, 64], 2);
    add("confidence_and_return_out", &[1], 2);
    Shape { family: Family::CnnLstm(model), dims: Dims::default(), tensors }
}

impl CnnLstm {
    /// Positions that attention and LSTM see.
    pub fn positions(&self) -> u64 {
        self.steps * self.features / self.pool.max(1).pow(3)
    }

    /// Heads of its attention: one score a position in version 1.
    pub fn heads(&self) -> u64 {
        if self.version == Version::V1 { 0 } else { 4 }
    }

    /// What a sample keeps for its backward pass, the attention matrix aside.
    ///
    /// Measured by `saved_tensors_hooks`: 16 bytes a channel and position of a convolution block (its output, the norm's
    /// and the mask's), 8 a pooled position for its index, and its input; an LSTM layer 128 bytes a unit and position on a CPU, the second
    /// 200. A card's fused LSTM keeps about half.
    pub fn kept(&self, device: Device) -> Bytes {
        let mut length = self.steps * self.features;
        let mut into = 1;
        let mut bytes = 0;
        for channels in self.channels {
            bytes += length * (16 * channels + 4 * into) + length / self.pool.max(1) * 8 * channels;
            length /= self.pool.max(1);
            into = channels;
        }
        let lstm = self.positions() * (4 * into + (128 + 200) * self.lstm);
        bytes += if device == Device::Cpu { lstm } else { lstm / 2 };
        let attention = if self.version == Version::V1 { 4 * 128 * 2 } else { 4 * 2 * self.lstm * 7 };
        Bytes(bytes + self.positions() * attention)
    }

    /// A sample on its way to the model.
    pub fn sample_bytes(&self) -> Bytes {
        Bytes(self.steps * self.features * 4)
    }
}
