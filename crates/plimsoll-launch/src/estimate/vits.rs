//! VITS as Piper trains it, medium quality: two networks, two optimizers, a segment of sound.
//!
//! Parameters are counted from the package; what a sample keeps was measured on a CPU (`tests/estimate_real.rs`). The part
//! of a segment is the same for every clip, the rest grows with the clip's length, which has no knob in Piper.

use plimsoll_machine::Bytes;

use super::shape::{Dims, Family, Shape, Side, Tensor};

/// Parameters of the generator.
pub const GENERATOR: u64 = 23_700_000;
/// Parameters of the discriminator.
pub const DISCRIMINATOR: u64 = 46_700_000;

/// Kept for one sample whatever its length: the generator's and the discriminator's view of one segment.
const SEGMENT: Bytes = Bytes::mib(150);
/// Kept for a second of a clip: encoder, posterior encoder, flow.
const SECOND: Bytes = Bytes::mib(21);
/// Copies of the weights that weight norm, convolution reorders and their gradients make, kept by the allocator.
const WEIGHT_COPIES: u64 = 3;

/// Piper's medium model.
pub fn medium() -> Shape {
    let tensor = |module, count, side| Tensor { module, dims: vec![count], times: 1, side };
    let tensors =
        vec![tensor("generator", GENERATOR, Side::Decoder), tensor("discriminator", DISCRIMINATOR, Side::Shared)];
    Shape { family: Family::Vits, dims: Dims::default(), tensors }
}

/// What a batch keeps for its backward pass, clips of at most so many seconds.
pub fn kept(batch: u64, seconds: u64) -> Bytes {
    Bytes((SEGMENT.0 + SECOND.0.saturating_mul(seconds)).saturating_mul(batch))
}

/// What no batch size changes.
pub fn workspace() -> Bytes {
    Bytes((GENERATOR + DISCRIMINATOR) * 4 * WEIGHT_COPIES)
}

/// A sample on its way to the model: sound and spectrogram, 22,050 samples a second, 513 bins a frame of 256 samples.
pub fn sample_bytes(seconds: u64) -> Bytes {
    Bytes(seconds.saturating_mul(22_050 * 4 + 513 * 4 * 22_050 / 256))
}
