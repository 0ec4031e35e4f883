//! Matrix products: `C[m, n] (+)= scale * A[m, k] B[k, n]`, or `+ bias[n]`, C row-major.
//!
//! The micro-kernels are the `gemm` crate's; the loop and the packing are ours, in workspace that the plan sized. The
//! kernel writes columns of its own output contiguously, so its "rows" are our columns: B is packed in panels of `mr`
//! columns, A is read in strips of `nr` rows, packed only where its depth is not contiguous. The sum over k runs in
//! blocks of `kc` in order, whatever the threads, so the result is the same bits on any number of them. Stored weights
//! are decoded while they are packed, so the product is the same bits as with the decoded numbers.
//!
//! Legend: m rows of C, n columns of C, k depth.

mod few_rows;
mod grid;
mod operands;
mod pack;
mod packed;
#[cfg(test)]
mod tests;
mod tile;

use plimsoll_plan::tiles::{Simd, Tiles, matmul_workspace};

use crate::pool::{Shared, tasks, worker};

use few_rows::{FEW_ROWS, few_rows};
use grid::Grid;
pub use operands::{Matrix, Output, Right, Stored};
use pack::pack_right;
pub(super) use pack::transpose_16;
pub use packed::{Packed, matmul_packed, pack, pack_together};
use tile::{Depth, Kernels, tile_block};

/// `C (+)= scale * A B` on all threads.
///
/// # Safety
/// `a` is m x k, `b` is k x n, `c` is m x n with its stride and n of its bias, all readable or writable, and `c` overlaps
/// none of them.
pub unsafe fn matmul<'a>(
    simd: Simd,
    threads: usize,
    m: usize,
    n: usize,
    k: usize,
    a: Matrix,
    b: impl Into<Right<'a>>,
    c: Output,
    workspace: &mut [f32],
) {
    let b = b.into();
    assert!(c.bias.is_none() || !c.add, "a bias goes where nothing is yet");
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        // SAFETY: by the caller's promise.
        unsafe { empty_sum(m, n, c) };
    } else if m <= FEW_ROWS && a.col_stride == 1 && b.deep_rows() {
        // SAFETY: by the caller's promise.
        unsafe { few_rows(simd, m, n, k, a, b, c) };
    } else {
        let tiles = Tiles::of(simd);
        assert!(workspace.len() >= matmul_workspace(&tiles, threads, n, k), "workspace is what the plan says");
        let (block_cols, block_depth) = tiles.block(n, k);
        let packed = block_cols * block_depth * tiles.depths(n, k);
        let (packed, blocks) = workspace.split_at_mut(packed);
        let blocks = Blocks { first: Shared(blocks.as_mut_ptr()), words: tiles.row_block_words(block_depth) };
        // SAFETY: by the caller's promise.
        unsafe {
            if m <= FEW_ROWS && threads * tiles.mr * block_depth <= packed.len() {
                panel_by_panel(simd, m, n, k, a, b, c, packed, blocks);
            } else {
                block_by_block(simd, threads, m, n, k, a, b, c, packed, blocks);
            }
        }
    }
}

/// What a product of depth zero is.
///
/// # Safety
/// As for `matmul`.
unsafe fn empty_sum(m: usize, n: usize, c: Output) {
    for row in 0..if c.add { 0 } else { m } {
        // SAFETY: a row of C, and the bias apart from it.
        unsafe {
            let to = std::slice::from_raw_parts_mut(c.data.add(row * c.stride), n);
            match c.bias {
                Some(bias) => to.copy_from_slice(std::slice::from_raw_parts(bias, n)),
                None => to.fill(0.0),
            }
        }
    }
}

/// Scratch of each worker: packed rows of A while tiles are computed, decoded weights while B is packed.
#[derive(Clone, Copy)]
struct Blocks {
    first: Shared,
    words: usize,
}

impl Blocks {
    /// The running worker's.
    ///
    /// # Safety
    /// A task asks once.
    unsafe fn mine<'a>(self) -> &'a mut [f32] {
        // SAFETY: one block a worker, and a worker runs one task at a time.
        unsafe { self.first.slice(worker() * self.words, self.words) }
    }
}

/// All threads pack a block of B, then all threads compute with it.
///
/// # Safety
/// As for `matmul`.
unsafe fn block_by_block(
    simd: Simd,
    threads: usize,
    m: usize,
    n: usize,
    k: usize,
    a: Matrix,
    b: Right,
    c: Output,
    packed: &mut [f32],
    blocks: Blocks,
) {
    let kernels = Kernels::of(simd);
    let tiles = kernels.tiles;
    let (block_cols, block_depth) = tiles.block(n, k);
    let together = tiles.depths(n, k);
    let width = kernels.panel_width(n);
    let packed = Shared(packed.as_mut_ptr());
    for col in (0..n).step_by(block_cols) {
        let cols = block_cols.min(n - col);
        let panels = cols.div_ceil(tiles.mr);
        let grid = Grid::of(m, panels, &tiles, threads, a.col_stride != 1);
        for depth in (0..k).step_by(block_depth * together) {
            let depths = (k - depth).div_ceil(block_depth).min(together);
            let at = |nth: usize| (depth + nth * block_depth, block_depth.min(k - depth - nth * block_depth));
            let begin = |nth: usize| nth * block_cols * block_depth;
            tasks((panels * depths).div_ceil(2), |pair| {
                // SAFETY: once a task.
                let scratch = unsafe { blocks.mine() };
                for task in pair * 2..(pair * 2 + 2).min(panels * depths) {
                    let (nth, panel) = (task / panels, task % panels);
                    let (depth, deep) = at(nth);
                    let from = col + panel * tiles.mr;
                    let wide = tiles.mr.min(col + cols - from);
                    // SAFETY: each task writes its own panels of the packed blocks.
                    let into = unsafe { packed.slice(begin(nth) + panel * width * deep, width * deep) };
                    // SAFETY: the columns and depths lie inside B.
                    unsafe { pack_right(simd, b, depth, deep, from, wide, width, into, scratch) };
                }
            });
            tasks(grid.tasks(), |task| {
                let (rows, panel_range) = grid.get(task);
                // SAFETY: once a task.
                let block = unsafe { blocks.mine() };
                for nth in 0..depths {
                    let (from, deep) = at(nth);
                    let a = Depth { matrix: a, from, deep, panel: deep, width };
                    let out = c.adding_from(from).bias_from(col);
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

/// Each task packs a panel of B for itself and uses it at once: where rows are few, packing is most of the work, and so
/// the threads need not wait for each other. The same tiles, so the same bits.
///
/// # Safety
/// As for `matmul`; `packed` has room for a panel of each thread.
unsafe fn panel_by_panel(
    simd: Simd,
    m: usize,
    n: usize,
    k: usize,
    a: Matrix,
    b: Right,
    c: Output,
    packed: &mut [f32],
    blocks: Blocks,
) {
    let kernels = Kernels::of(simd);
    let Tiles { mr, .. } = kernels.tiles;
    let (_, block_depth) = kernels.tiles.block(n, k);
    let packed = Shared(packed.as_mut_ptr());
    tasks(n.div_ceil(mr), |panel| {
        let (col, wide) = (panel * mr, mr.min(n - panel * mr));
        // SAFETY: once a task; a panel of the packed words is the worker's own.
        let (block, into) = unsafe { (blocks.mine(), packed.slice(worker() * mr * block_depth, mr * block_depth)) };
        for from in (0..k).step_by(block_depth) {
            let deep = block_depth.min(k - from);
            // SAFETY: the columns and depths lie inside B.
            unsafe { pack_right(simd, b, from, deep, col, wide, mr, &mut into[..mr * deep], block) };
            let a = Depth { matrix: a, from, deep, panel: deep, width: mr };
            let out = c.adding_from(from).bias_from(col);
            // SAFETY: the panel is complete; tasks write disjoint columns of C.
            unsafe { tile_block(&kernels, a, 0..m, into.as_ptr(), 0..1, col, wide, out, block) };
        }
    });
}
