//! Tiles of the product: which micro-kernel, and the order in which rows meet packed panels.

use gemm_common::microkernel::MicroKernelFn;
use gemm_f32::microkernel::{avx512f, fma, scalar};
use plimsoll_plan::tiles::{STRIPS, Simd, Tiles};

use super::pack::pack_rows;
use super::{Matrix, Output};

/// The micro-kernels of one instruction set level.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    lane: usize,
    pub tiles: Tiles,
    simd: Simd,
}

impl Kernels {
    pub fn of(simd: Simd) -> Kernels {
        let tiles = Tiles::of(simd);
        let (lane, mr, nr) = match simd {
            Simd::Avx512 => (16, avx512f::f32::MR_DIV_N * 16, avx512f::f32::NR),
            Simd::Avx2 => (8, fma::f32::MR_DIV_N * 8, fma::f32::NR),
            Simd::Baseline => (1, scalar::f32::MR_DIV_N, scalar::f32::NR),
        };
        assert_eq!((tiles.mr, tiles.nr), (mr, nr), "the plan's tiles are the micro-kernels' own");
        Kernels { lane, tiles, simd }
    }

    /// Width of the panels of a product with `n` columns: a single one is no wider than the micro-kernel needs it.
    pub fn panel_width(&self, n: usize) -> usize {
        n.next_multiple_of(self.lane).min(self.tiles.mr)
    }

    fn get(&self, cols: usize, rows: usize) -> MicroKernelFn<f32> {
        let c = cols.div_ceil(self.lane) - 1;
        match self.simd {
            Simd::Avx512 => avx512f::f32::UKR[c][rows - 1],
            Simd::Avx2 => fma::f32::UKR[c][rows - 1],
            Simd::Baseline => scalar::f32::UKR[c][rows - 1],
        }
    }
}

/// A stretch of A's depth.
#[derive(Clone, Copy)]
pub(super) struct Depth {
    pub matrix: Matrix,
    pub from: usize,
    pub deep: usize,
    /// Depth that the packed panels were made with.
    pub panel: usize,
    /// Packed elements from one depth to the next: a panel's width, or less where there is only one and it is narrow.
    pub width: usize,
}

/// The tiles of some rows and some packed panels.
///
/// Where A's depth is contiguous, panels are taken a cache-full at a time, and each strip of A is read in place against
/// all of them. Where it is not, a block of strips is packed first and used against all panels before the next.
///
/// # Safety
/// As for `matmul`; `packed` holds the block's panels for this depth.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn tile_block(
    kernels: &Kernels,
    a: Depth,
    rows: std::ops::Range<usize>,
    packed: *const f32,
    panels: std::ops::Range<usize>,
    col: usize,
    cols: usize,
    c: Output,
    block: &mut [f32],
) {
    let Tiles { mr, nr, mc, .. } = kernels.tiles;
    let Depth { matrix, from, deep, .. } = a;
    let groups = || panels.clone().step_by(mc / mr).map(|at| at..(at + mc / mr).min(panels.end));
    if matrix.col_stride == 1 {
        for group in groups() {
            for row in rows.clone().step_by(nr) {
                // SAFETY: row and depth lie inside A.
                let strip = unsafe { matrix.data.add(row * matrix.row_stride + from) };
                let strip =
                    Strip { data: strip, row_stride: matrix.row_stride, depth_stride: 1, tall: nr.min(rows.end - row) };
                // SAFETY: by the caller's promise.
                unsafe { tile_row(kernels, a, strip, packed, group.clone(), cols, c, row * c.stride + col) };
            }
        }
        return;
    }
    for first in rows.clone().step_by(nr * STRIPS) {
        let count = (nr * STRIPS).min(rows.end - first);
        // SAFETY: rows and depth lie inside A; the block has room for them.
        unsafe { pack_rows(matrix, first, count, from, deep, nr, block) };
        for group in groups() {
            for (nth, row) in (first..first + count).step_by(nr).enumerate() {
                let data = block[nth * nr * deep..].as_ptr();
                let strip = Strip { data, row_stride: 1, depth_stride: nr, tall: nr.min(first + count - row) };
                // SAFETY: by the caller's promise.
                unsafe { tile_row(kernels, a, strip, packed, group.clone(), cols, c, row * c.stride + col) };
            }
        }
    }
}

/// A few rows of A, in place or packed.
#[derive(Clone, Copy)]
struct Strip {
    data: *const f32,
    row_stride: usize,
    depth_stride: usize,
    tall: usize,
}

/// One strip of rows against some panels; `at` is the first element of the strip's rows in C.
///
/// # Safety
/// As for `tile_block`.
#[allow(clippy::too_many_arguments)]
unsafe fn tile_row(
    kernels: &Kernels,
    a: Depth,
    strip: Strip,
    packed: *const f32,
    panels: std::ops::Range<usize>,
    cols: usize,
    c: Output,
    at: usize,
) {
    let mr = kernels.tiles.mr;
    for panel in panels {
        let wide = mr.min(cols - panel * mr);
        let mut add = c.add;
        if let (Some(bias), false) = (c.bias, c.add) {
            for row in 0..strip.tall {
                let to = c.data.wrapping_add(at + row * c.stride + panel * mr);
                // SAFETY: the tile lies inside C; there is a bias for each of its columns, outside of C.
                unsafe { std::ptr::copy_nonoverlapping(bias.add(panel * mr), to, wide) };
            }
            add = true;
        }
        // SAFETY: the tile lies inside C; the panel is packed; the strip holds `deep` columns of A.
        unsafe {
            let columns = packed.add(panel * mr * a.panel);
            kernels.get(wide, strip.tall)(
                wide,
                strip.tall,
                a.deep,
                c.data.add(at + panel * mr),
                columns,
                strip.data,
                c.stride as isize,
                1,
                a.width as isize,
                strip.depth_stride as isize,
                strip.row_stride as isize,
                1.0,
                c.scale,
                u8::from(add),
                false,
                false,
                false,
                columns,
            );
        }
    }
}
