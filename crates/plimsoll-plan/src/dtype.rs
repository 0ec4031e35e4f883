//! How the numbers of a weight are stored. Arithmetic is in f32 whatever the storage.
//!
//! Quantised forms are block-wise over the elements in row-major order, whatever the shape, and every group of
//! [`GROUP`] elements is whole in itself: it can be written while a file is read, and read from any element on.

use serde::{Deserialize, Serialize};

/// Storage of one tensor's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// Four bytes.
    #[default]
    F32,
    /// The upper half of an f32.
    Bf16,
    /// IEEE half precision.
    F16,
    /// One signed byte, times the scale of its block: `x = code * scale`, `scale = absmax / 127`.
    Int8,
    /// Four bits, an index into [`NF4_LEVELS`], times the block's absmax; absmax itself in one byte (QLoRA, Dettmers et
    /// al. 2023: 4-bit NormalFloat with double quantisation).
    Nf4,
}

/// Elements that share one scale.
pub const BLOCK: usize = 64;
/// Blocks whose absmax share one offset and scale (NF4).
pub const BLOCKS: usize = 256;
/// Elements that belong together: nothing outside of a group is needed to read or write it.
pub const GROUP: usize = BLOCK * BLOCKS;

/// The published levels of NF4, in the order of their codes.
pub const NF4_LEVELS: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Where the parts of a quantised tensor lie, in bytes from its beginning.
///
/// Codes, then for int8 one f32 scale a block; for NF4 one signed byte a block (`absmax = offset + byte * scale`), then
/// an f32 offset and an f32 scale a group. Parts begin at multiples of 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantLayout {
    /// First byte of the block scales (int8) or of the blocks' bytes (NF4).
    pub blocks: usize,
    /// First byte of the groups' (offset, scale) pairs; NF4 only.
    pub groups: usize,
    /// Bytes of all.
    pub bytes: usize,
}

impl Dtype {
    /// Words of four bytes that `elements` numbers take.
    pub fn words(self, elements: usize) -> usize {
        match self {
            Dtype::F32 => elements,
            Dtype::Bf16 | Dtype::F16 => elements.div_ceil(2),
            Dtype::Int8 | Dtype::Nf4 => self.layout(elements).map_or(0, |l| l.bytes / 4),
        }
    }

    /// The parts of a quantised tensor; none for plain numbers.
    pub fn layout(self, elements: usize) -> Option<QuantLayout> {
        let line = |bytes: usize| bytes.next_multiple_of(64);
        let (blocks, groups) = (elements.div_ceil(BLOCK), elements.div_ceil(GROUP));
        match self {
            Dtype::Int8 => {
                let at = line(elements);
                let end = at + line(4 * blocks);
                Some(QuantLayout { blocks: at, groups: end, bytes: end })
            }
            Dtype::Nf4 => {
                let at = line(elements.div_ceil(2));
                let pairs = at + line(blocks);
                Some(QuantLayout { blocks: at, groups: pairs, bytes: pairs + line(8 * groups) })
            }
            _ => None,
        }
    }

    /// Whether reading loses nothing that was in a file of this dtype.
    pub fn is_exact(self) -> bool {
        !matches!(self, Dtype::Int8 | Dtype::Nf4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nf4_takes_about_an_eighth_of_f32() {
        let n = 1 << 20;
        let bytes = Dtype::Nf4.words(n) * 4;
        assert!(bytes as f64 / n as f64 <= 0.5 + 1.0 / 64.0 + 8.0 / 16384.0 + 0.001, "{bytes}");
        assert_eq!(Dtype::Bf16.words(5), 3);
        assert_eq!(Dtype::F32.words(5), 5);
    }
}
