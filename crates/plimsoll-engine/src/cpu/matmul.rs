//! Matrix products: `C[m, n] (+)= scale * A[m, k] B[k, n]`, C row-major.
//!
//! The micro-kernels are the `gemm` crate's; the loop and the packing are ours, in workspace that the plan sized. The
//! kernel writes columns of its own output contiguously, so its "rows" are our columns: B is packed in panels of `mr`
//! columns, A is read in strips of `nr` rows, packed only where its depth is not contiguous. The sum over k runs in
//! blocks of `kc` in order, whatever the threads, so the result is the same bits on any number of them.
//!
//! Legend: m rows of C, n columns of C, k depth.

mod few_rows;
mod grid;
mod pack;
mod packed;
#[cfg(test)]
mod tests;

use gemm_common::microkernel::MicroKernelFn;
use gemm_f32::microkernel::{avx512f, fma, scalar};
use plimsoll_plan::tiles::{STRIPS, Simd, Tiles, matmul_workspace};

use crate::pool::{Shared, tasks, worker};

use few_rows::{FEW_ROWS, few_rows};
use grid::Grid;
use pack::{pack_columns, pack_rows};
pub use packed::{Packed, matmul_packed, pack};

/// A matrix to read: element (i, j) is at `i * row_stride + j * col_stride`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// First element.
    pub data: *const f32,
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// Elements from one column to the next.
    pub col_stride: usize,
}

// SAFETY: only read while a product runs; the caller keeps the memory alive and unwritten.
unsafe impl Send for Matrix {}
// SAFETY: as above.
unsafe impl Sync for Matrix {}

impl Matrix {
    /// A row-major matrix in a slice.
    pub fn rows(data: &[f32], stride: usize) -> Matrix {
        Matrix { data: data.as_ptr(), row_stride: stride, col_stride: 1 }
    }

    /// The same numbers, transposed.
    pub fn transposed(self) -> Matrix {
        Matrix { row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }
}

/// Where a product goes.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// First element.
    pub data: *mut f32,
    /// Elements from one row to the next; columns are contiguous.
    pub stride: usize,
    /// Adds to what is there.
    pub add: bool,
    /// Factor on the product.
    pub scale: f32,
}

// SAFETY: tasks of one product write disjoint tiles of it.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

impl Output {
    /// The same place for the part of the sum that starts at depth `from`: what comes after the first adds.
    fn adding_from(self, from: usize) -> Output {
        Output { add: self.add || from > 0, ..self }
    }
}

/// The micro-kernels of one instruction set level.
#[derive(Clone, Copy)]
struct Kernels {
    lane: usize,
    tiles: Tiles,
    simd: Simd,
}

impl Kernels {
    fn of(simd: Simd) -> Kernels {
        let tiles = Tiles::of(simd);
        let (lane, mr, nr) = match simd {
            Simd::Avx512 => (16, avx512f::f32::MR_DIV_N * 16, avx512f::f32::NR),
            Simd::Avx2 => (8, fma::f32::MR_DIV_N * 8, fma::f32::NR),
            Simd::Baseline => (1, scalar::f32::MR_DIV_N, scalar::f32::NR),
        };
        assert_eq!((tiles.mr, tiles.nr), (mr, nr), "the plan's tiles are the micro-kernels' own");
        Kernels { lane, tiles, simd }
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

/// `C (+)= scale * A B` on all threads.
///
/// # Safety
/// `a` is m x k, `b` is k x n, `c` is m x n with its stride, all readable or writable, and `c` overlaps neither.
pub unsafe fn matmul(
    simd: Simd,
    threads: usize,
    m: usize,
    n: usize,
    k: usize,
    a: Matrix,
    b: Matrix,
    c: Output,
    workspace: &mut [f32],
) {
    if m == 0 || n == 0 {
        return;
    }
    if m <= FEW_ROWS && a.col_stride == 1 && b.row_stride == 1 {
        // SAFETY: by the caller's promise.
        unsafe { few_rows(simd, m, n, k, a, b, c) };
        return;
    }
    let kernels = Kernels::of(simd);
    let tiles = kernels.tiles;
    assert!(workspace.len() >= matmul_workspace(&tiles, threads, n, k), "workspace is what the plan says");
    let (block_cols, block_depth) = tiles.block(n, k);
    let together = tiles.depths(n, k);
    let (packed, rows) = workspace.split_at_mut(block_cols * block_depth * together);
    let (packed, row_blocks) = (Shared(packed.as_mut_ptr()), Shared(rows.as_mut_ptr()));
    for col in (0..n).step_by(block_cols) {
        let cols = block_cols.min(n - col);
        let panels = cols.div_ceil(tiles.mr);
        let grid = Grid::of(m, panels, &tiles, threads);
        for depth in (0..k).step_by(block_depth * together) {
            let depths = (k - depth).div_ceil(block_depth).min(together);
            let at = |nth: usize| (depth + nth * block_depth, block_depth.min(k - depth - nth * block_depth));
            let begin = |nth: usize| nth * block_cols * block_depth;
            tasks((panels * depths).div_ceil(2), |pair| {
                for task in pair * 2..(pair * 2 + 2).min(panels * depths) {
                    let (nth, panel) = (task / panels, task % panels);
                    let (depth, deep) = at(nth);
                    let from = col + panel * tiles.mr;
                    let wide = tiles.mr.min(col + cols - from);
                    // SAFETY: each task writes its own panels of the packed blocks.
                    let into = unsafe { packed.slice(begin(nth) + panel * tiles.mr * deep, tiles.mr * deep) };
                    // SAFETY: the columns and depths lie inside B.
                    unsafe { pack_columns(simd, b, depth, deep, from, wide, tiles.mr, into) };
                }
            });
            tasks(grid.tasks(), |task| {
                let (rows, panel_range) = grid.get(task);
                let words = tiles.row_block_words(block_depth);
                // SAFETY: one block of each worker, used by the task that runs on it.
                let block = unsafe { row_blocks.slice(worker() * words, words) };
                for nth in 0..depths {
                    let (from, deep) = at(nth);
                    let a = Depth { matrix: a, from, deep, panel: deep };
                    let out = c.adding_from(from);
                    let panels = packed.first().wrapping_add(begin(nth));
                    // SAFETY: the packed blocks are complete and only read; tasks write disjoint tiles of C.
                    unsafe {
                        tile_block(&kernels, a, rows.clone(), panels, panel_range.clone(), col, cols, out, block)
                    };
                }
            });
        }
    }
}

/// A stretch of A's depth.
#[derive(Clone, Copy)]
struct Depth {
    matrix: Matrix,
    from: usize,
    deep: usize,
    /// Depth that the packed panels were made with.
    panel: usize,
}

/// The tiles of some rows and some packed panels.
///
/// Where A's depth is contiguous, panels are taken a cache-full at a time, and each strip of A is read in place against
/// all of them. Where it is not, a block of strips is packed first and used against all panels before the next.
///
/// # Safety
/// As for `matmul`; `packed` holds the block's panels for this depth.
#[allow(clippy::too_many_arguments)]
unsafe fn tile_block(
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
                mr as isize,
                strip.depth_stride as isize,
                strip.row_stride as isize,
                1.0,
                c.scale,
                u8::from(c.add),
                false,
                false,
                false,
                columns,
            );
        }
    }
}
