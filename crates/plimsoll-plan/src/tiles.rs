//! Tile sizes of the matrix product, and what it needs as workspace.
//!
//! The micro-kernels are the `gemm` crate's; the loop around them is ours, because that crate's own loop allocates its
//! packing buffers from the heap on every call, and a plan to the byte cannot leave that to chance.

use serde::{Deserialize, Serialize};

use crate::place::aligned;

/// Instruction set level that the kernels are chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Simd {
    /// AVX-512 F, BW, CD, DQ, VL.
    Avx512,
    /// AVX2 and FMA.
    Avx2,
    /// Neither.
    Baseline,
}

/// Sizes of the matrix product's blocks, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// Columns of the output that one micro-kernel call writes.
    pub mr: usize,
    /// Rows of the output that one micro-kernel call writes.
    pub nr: usize,
    /// Depth of one block.
    pub kc: usize,
    /// Packed columns that stay in a core's second-level cache.
    pub mc: usize,
    /// Columns packed at a time, shared by all threads.
    pub nc: usize,
}

impl Tiles {
    /// The tiles for an instruction set level (`mr` and `nr` are the `gemm` micro-kernels' own).
    pub fn of(simd: Simd) -> Tiles {
        let (mr, nr) = match simd {
            Simd::Avx512 => (64, 6),
            Simd::Avx2 => (16, 6),
            Simd::Baseline => (2, 4),
        };
        let mc = 384 / mr * mr;
        Tiles { mr, nr, kc: 512, mc, nc: 2048 / mr * mr }
    }

    /// Packed columns and depth of one block of a product with `n` columns and depth `k`.
    pub fn block(&self, n: usize, k: usize) -> (usize, usize) {
        (n.div_ceil(self.mr).saturating_mul(self.mr).min(self.nc), k.min(self.kc))
    }

    /// Blocks of depth that are packed together, so that threads meet less often: as many as a full block has room for.
    pub fn depths(&self, n: usize, k: usize) -> usize {
        let (cols, depth) = self.block(n, k);
        k.div_ceil(depth.max(1)).clamp(1, (self.nc * self.kc / (cols * depth).max(1)).max(1))
    }

    /// Words of a block of packed rows of depth `k`.
    pub fn row_block_words(&self, k: usize) -> usize {
        STRIPS * self.nr * k
    }

    /// Words of a right-hand side of `n` columns and depth `k`, packed whole.
    pub fn packed_words(&self, n: usize, k: usize) -> usize {
        aligned(n.div_ceil(self.mr) * self.mr * k)
    }
}

/// Strips of rows that are packed together: eight of six are three cache lines of a matrix read across its rows.
pub const STRIPS: usize = 8;

/// Rows of stored weights that are decoded together, before they are packed as columns.
pub const DECODED_ROWS: usize = 16;

/// Workspace words of a product with `n` output columns and depth `k`: one shared block of packed columns, and for each
/// thread a block of packed rows. Stored weights need no more: while columns are packed, a thread decodes into its
/// block of rows.
pub fn matmul_workspace(tiles: &Tiles, threads: usize, n: usize, k: usize) -> usize {
    let (cols, depth) = tiles.block(n, k);
    cols * depth * tiles.depths(n, k) + threads * tiles.row_block_words(depth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspace_is_bounded_whatever_the_product() {
        let tiles = Tiles::of(Simd::Avx512);
        let most = matmul_workspace(&tiles, 2, usize::MAX / 64, usize::MAX / 64);
        assert!(most * 4 < 6 << 20, "{most}");
    }

    #[test]
    fn decoded_weights_find_room_in_the_block_of_packed_rows() {
        for simd in [Simd::Avx512, Simd::Avx2, Simd::Baseline] {
            for depth in [1, 17, 512] {
                assert!(Tiles::of(simd).row_block_words(depth) >= DECODED_ROWS * depth, "{simd:?} {depth}");
            }
        }
    }
}
