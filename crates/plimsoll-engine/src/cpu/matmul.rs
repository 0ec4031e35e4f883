//! Matrix products: `C[m, n] (+)= scale * A[m, k] B[k, n]`, C row-major.
//!
//! The micro-kernels are the `gemm` crate's; the loop and the packing are ours, in workspace that the plan sized. The
//! kernel writes columns of its own output contiguously, so its "rows" are our columns: B is packed in panels of `mr`
//! columns, A is read in strips of `nr` rows, packed only where its depth is not contiguous. The sum over k runs in
//! blocks of `kc` in order, whatever the threads, so the result is the same bits on any number of them.
//!
//! Legend: m rows of C, n columns of C, k depth.

use gemm_common::microkernel::MicroKernelFn;
use gemm_f32::microkernel::{avx512f, fma, scalar};
use plimsoll_plan::tiles::{STRIPS, Simd, Tiles, matmul_workspace};

use crate::pool::{Shared, tasks, worker};
use crate::simd::{LANES, fold, leveled};

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
    let (packed, strips) = workspace.split_at_mut(block_cols * block_depth);
    let (packed, strips) = (Shared(packed.as_mut_ptr()), Shared(strips.as_mut_ptr()));
    for col in (0..n).step_by(block_cols) {
        let cols = block_cols.min(n - col);
        for depth in (0..k).step_by(block_depth) {
            let deep = block_depth.min(k - depth);
            let panels = cols.div_ceil(tiles.mr);
            tasks(panels.div_ceil(2), |pair| {
                for panel in pair * 2..(pair * 2 + 2).min(panels) {
                    let from = col + panel * tiles.mr;
                    let wide = tiles.mr.min(col + cols - from);
                    // SAFETY: each task writes its own panels of the packed block.
                    let into = unsafe { packed.slice(panel * tiles.mr * deep, tiles.mr * deep) };
                    // SAFETY: the columns and depths lie inside B.
                    unsafe { pack_columns(simd, b, depth, deep, from, wide, tiles.mr, into) };
                }
            });
            let out = Output { add: c.add || depth > 0, ..c };
            let grid = Grid::of(m, panels, &tiles, threads);
            tasks(grid.tasks(), |task| {
                let (rows, panel_range) = grid.get(task);
                let words = tiles.row_block_words(block_depth);
                // SAFETY: one block of each worker, used by the task that runs on it.
                let strip = unsafe { strips.slice(worker() * words, words) };
                let a = Depth { matrix: a, from: depth, deep, panel: deep };
                // SAFETY: the packed block is complete and only read; tasks write disjoint tiles of C.
                unsafe { tile_block(&kernels, a, rows, packed.first(), panel_range, col, cols, out, strip) };
            });
        }
    }
}

/// Rows up to which packing B costs more than reading it once per row: a decoding step has one row per hypothesis.
const FEW_ROWS: usize = 16;
/// Columns of one task of such a product.
const FEW_ROWS_COLUMNS: usize = 64;

/// A product of few rows with a B whose depth is contiguous: dot products, four rows at a time.
///
/// # Safety
/// As for `matmul`.
unsafe fn few_rows(simd: Simd, m: usize, n: usize, k: usize, a: Matrix, b: Matrix, c: Output) {
    // SAFETY: row i of A and column j of B are `k` contiguous elements.
    let row = |i: usize| unsafe { std::slice::from_raw_parts({ a }.data.add(i * a.row_stride), k) };
    // SAFETY: as above.
    let column = |j: usize| unsafe { std::slice::from_raw_parts({ b }.data.add(j * b.col_stride), k) };
    tasks(n.div_ceil(FEW_ROWS_COLUMNS), |task| {
        for j in task * FEW_ROWS_COLUMNS..((task + 1) * FEW_ROWS_COLUMNS).min(n) {
            for first in (0..m).step_by(4) {
                let last = m - 1;
                let sums = dots(
                    simd,
                    [row(first), row((first + 1).min(last)), row((first + 2).min(last)), row((first + 3).min(last))],
                    column(j),
                );
                for (i, sum) in (first..m).zip(sums) {
                    // SAFETY: each task writes its own columns of C.
                    let out = unsafe { &mut *{ c }.data.add(i * c.stride + j) };
                    *out = if c.add { *out + c.scale * sum } else { c.scale * sum };
                }
            }
        }
    });
}

leveled! {
    /// Dot products of four rows with one column, in lane order.
    fn dots(rows: [&[f32]; 4], column: &[f32]) -> [f32; 4] {
        let mut lanes = [[0.0f32; LANES]; 4];
        let n = column.len();
        let split = n / LANES * LANES;
        let rows = rows.map(|r| &r[..n]);
        for at in (0..split).step_by(LANES) {
            for (lanes, row) in lanes.iter_mut().zip(&rows) {
                for i in 0..LANES {
                    lanes[i] = row[at + i].mul_add(column[at + i], lanes[i]);
                }
            }
        }
        for at in split..n {
            for (lanes, row) in lanes.iter_mut().zip(&rows) {
                lanes[at - split] = row[at].mul_add(column[at], lanes[at - split]);
            }
        }
        lanes.map(fold)
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

/// How the tiles of one block are dealt out: by rows first, by panels where rows are few.
struct Grid {
    m: usize,
    rows_per_task: usize,
    row_tasks: usize,
    panels: usize,
    panels_per_task: usize,
    panel_tasks: usize,
}

impl Grid {
    fn of(m: usize, panels: usize, tiles: &Tiles, threads: usize) -> Grid {
        let strips = m.div_ceil(tiles.nr);
        let row_tasks = (strips / 8).clamp(1, threads * 4);
        let rows_per_task = strips.div_ceil(row_tasks) * tiles.nr;
        let row_tasks = m.div_ceil(rows_per_task);
        let panel_tasks = (threads * 2).div_ceil(row_tasks).min(panels).max(1);
        let panels_per_task = panels.div_ceil(panel_tasks);
        Grid { m, rows_per_task, row_tasks, panels, panels_per_task, panel_tasks: panels.div_ceil(panels_per_task) }
    }

    fn tasks(&self) -> usize {
        self.row_tasks * self.panel_tasks
    }

    fn get(&self, task: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let (row, panel) = (task / self.panel_tasks, task % self.panel_tasks);
        let rows = row * self.rows_per_task..((row + 1) * self.rows_per_task).min(self.m);
        (rows, panel * self.panels_per_task..((panel + 1) * self.panels_per_task).min(self.panels))
    }
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

/// Packs rows of A as strips: `into[(strip * deep + d) * nr + row]`.
///
/// # Safety
/// The rows and depths lie inside A.
unsafe fn pack_rows(a: Matrix, first: usize, count: usize, from: usize, deep: usize, nr: usize, into: &mut [f32]) {
    if a.row_stride == 1 && nr == 6 && count == nr * STRIPS {
        // Whole cache lines across the rows, six elements to each strip.
        for d in 0..deep {
            // SAFETY: `count` contiguous elements at this depth.
            let line = unsafe { std::slice::from_raw_parts(a.data.add(first + (from + d) * a.col_stride), 6 * STRIPS) };
            for (strip, six) in line.chunks_exact(6).enumerate() {
                into[(strip * deep + d) * 6..][..6].copy_from_slice(six);
            }
        }
        return;
    }
    for row in 0..count {
        for d in 0..deep {
            // SAFETY: inside A.
            let value = unsafe { *a.data.add((first + row) * a.row_stride + (from + d) * a.col_stride) };
            into[(row / nr * deep + d) * nr + row % nr] = value;
        }
    }
}

/// Packs `wide` columns of B as `into[d * mr + col]`, zero behind the last column.
///
/// # Safety
/// The columns and depths lie inside B.
unsafe fn pack_columns(
    simd: Simd,
    b: Matrix,
    depth: usize,
    deep: usize,
    from: usize,
    wide: usize,
    mr: usize,
    into: &mut [f32],
) {
    // SAFETY: by the caller's promise.
    let start = unsafe { b.data.add(depth * b.row_stride + from * b.col_stride) };
    if b.col_stride == 1 {
        for (d, to) in into.chunks_exact_mut(mr).take(deep).enumerate() {
            // SAFETY: `wide` contiguous columns at this depth.
            let row = unsafe { std::slice::from_raw_parts(start.add(d * b.row_stride), wide) };
            to[..wide].copy_from_slice(row);
            to[wide..].fill(0.0);
        }
    } else if b.row_stride == 1 {
        // SAFETY: column c is `deep` contiguous elements.
        let column = |c: usize| unsafe { std::slice::from_raw_parts(start.add(c * b.col_stride), deep) };
        if wide < mr {
            into.fill(0.0);
        }
        let mut c = 0;
        while c + 16 <= wide {
            transpose_16(simd, &std::array::from_fn(|i| column(c + i)), c, mr, into);
            c += 16;
        }
        for c in c..wide {
            column(c).iter().enumerate().for_each(|(d, v)| into[d * mr + c] = *v);
        }
    } else {
        into.fill(0.0);
        for d in 0..deep {
            for c in 0..wide {
                // SAFETY: inside B.
                into[d * mr + c] = unsafe { *start.add(d * b.row_stride + c * b.col_stride) };
            }
        }
    }
}

leveled! {
    /// Writes 16 columns side by side into a panel: `into[d * mr + c + i] = columns[i][d]`.
    fn transpose_16(columns: &[&[f32]; 16], c: usize, mr: usize, into: &mut [f32]) {
        let deep = columns[0].len();
        let mut d = 0;
        while d + 16 <= deep {
            let mut tile = [[0.0f32; 16]; 16];
            for i in 0..16 {
                tile[i].copy_from_slice(&columns[i][d..d + 16]);
            }
            transpose_tile(&mut tile);
            for (r, row) in tile.iter().enumerate() {
                into[(d + r) * mr + c..][..16].copy_from_slice(row);
            }
            d += 16;
        }
        for d in d..deep {
            for i in 0..16 {
                into[d * mr + c + i] = columns[i][d];
            }
        }
    }
}

/// Transposes in four rounds of interleaving rows that are half the tile apart; each round is a shuffle of two registers.
#[inline(always)]
fn transpose_tile(tile: &mut [[f32; 16]; 16]) {
    for _ in 0..4 {
        let from = *tile;
        for i in 0..8 {
            for j in 0..8 {
                tile[2 * i][2 * j] = from[i][j];
                tile[2 * i][2 * j + 1] = from[i + 8][j];
                tile[2 * i + 1][2 * j] = from[i][j + 8];
                tile[2 * i + 1][2 * j + 1] = from[i + 8][j + 8];
            }
        }
    }
}

/// A packed right-hand side of any depth, for products that one task computes alone.
#[derive(Clone, Copy)]
pub struct Packed {
    data: *const f32,
    cols: usize,
    /// Depth that was packed: panels are this far apart.
    deep: usize,
    /// Depth that products use.
    used: usize,
}

impl Packed {
    /// The same columns with only the first `deep` of the depth.
    pub fn shallower(self, deep: usize) -> Packed {
        assert!(deep <= self.used);
        Packed { used: deep, ..self }
    }
}

/// Packs B (k x n) whole.
///
/// # Safety
/// B is readable; the packed words stay alive and unwritten while the result is used.
pub unsafe fn pack(simd: Simd, n: usize, k: usize, b: Matrix, into: &mut [f32]) -> Packed {
    let mr = Tiles::of(simd).mr;
    for panel in 0..n.div_ceil(mr) {
        let wide = mr.min(n - panel * mr);
        // SAFETY: by the caller's promise.
        unsafe { pack_columns(simd, b, 0, k, panel * mr, wide, mr, &mut into[panel * mr * k..(panel + 1) * mr * k]) };
    }
    Packed { data: into.as_ptr(), cols: n, deep: k, used: k }
}

/// `C (+)= scale * A B` with B packed, on the calling thread; `cols` of B's columns and `deep` of its depth are used.
///
/// # Safety
/// As for `matmul`; `block` holds a block of rows where A's depth is not contiguous.
pub unsafe fn matmul_packed(simd: Simd, m: usize, cols: usize, a: Matrix, b: Packed, c: Output, block: &mut [f32]) {
    assert!(cols <= b.cols);
    let kernels = Kernels::of(simd);
    let a = Depth { matrix: a, from: 0, deep: b.used, panel: b.deep };
    let panels = 0..cols.div_ceil(kernels.tiles.mr);
    // SAFETY: by the caller's promise.
    unsafe { tile_block(&kernels, a, 0..m, b.data, panels, 0, cols, c, block) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let mut x = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
        (0..n)
            .map(|_| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (x >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    fn levels() -> Vec<Simd> {
        match crate::simd::detect() {
            Simd::Avx512 => vec![Simd::Avx512, Simd::Avx2, Simd::Baseline],
            Simd::Avx2 => vec![Simd::Avx2, Simd::Baseline],
            Simd::Baseline => vec![Simd::Baseline],
        }
    }

    fn run(
        simd: Simd,
        threads: usize,
        m: usize,
        n: usize,
        k: usize,
        layout: (bool, bool),
        add: bool,
    ) -> (Vec<f32>, Vec<f64>) {
        let (a, b, start) = (numbers(m * k, 1), numbers(k * n, 2), numbers(m * n, 3));
        let at_a = |i: usize, d: usize| if layout.0 { d * m + i } else { i * k + d };
        let at_b = |d: usize, j: usize| if layout.1 { j * k + d } else { d * n + j };
        let mut exact = vec![0.0f64; m * n];
        for i in 0..m {
            for j in 0..n {
                let sum: f64 = (0..k).map(|d| f64::from(a[at_a(i, d)]) * f64::from(b[at_b(d, j)])).sum();
                exact[i * n + j] = sum * 0.5 + if add { f64::from(start[i * n + j]) } else { 0.0 };
            }
        }
        let ma = if layout.0 { Matrix::rows(&a, m).transposed() } else { Matrix::rows(&a, k) };
        let mb = if layout.1 { Matrix::rows(&b, k).transposed() } else { Matrix::rows(&b, n) };
        let mut c = start.clone();
        let mut workspace = vec![f32::NAN; matmul_workspace(&Tiles::of(simd), threads, n, k)];
        let out = Output { data: c.as_mut_ptr(), stride: n, add, scale: 0.5 };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let space = Shared(workspace.as_mut_ptr());
        let len = workspace.len();
        // SAFETY: the matrices have the stated sizes; the workspace is ours alone.
        pool.install(move || unsafe { matmul(simd, threads, m, n, k, ma, mb, out, { space }.slice(0, len)) });
        (c, exact)
    }

    #[test]
    fn products_agree_with_double_precision_in_every_layout() {
        for simd in levels() {
            for (m, n, k) in
                [(1, 1, 1), (7, 65, 33), (13, 130, 700), (100, 64, 5), (6, 2100, 40), (50, 17, 16), (3, 64, 1100)]
            {
                for layout in [(false, false), (true, false), (false, true), (true, true)] {
                    for add in [false, true] {
                        let (got, exact) = run(simd, 2, m, n, k, layout, add);
                        for (g, e) in got.iter().zip(&exact) {
                            assert!(
                                (f64::from(*g) - e).abs() < 1e-6 * (k as f64 + 10.0),
                                "{simd:?} {m}x{n}x{k} {layout:?} {add}: {g} {e}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_bits_do_not_depend_on_the_number_of_threads() {
        let simd = crate::simd::detect();
        for (m, n, k) in [(100, 200, 300), (5, 3000, 600), (33, 64, 2000)] {
            let one = run(simd, 1, m, n, k, (false, true), true).0;
            for threads in [2, 3, 4] {
                assert_eq!(one, run(simd, threads, m, n, k, (false, true), true).0);
            }
        }
    }

    #[test]
    fn a_packed_product_agrees() {
        for simd in levels() {
            let (m, n, k) = (20, 70, 90);
            let (a, b) = (numbers(m * k, 1), numbers(n * k, 2));
            let tiles = Tiles::of(simd);
            let mut packed = vec![0.0; tiles.packed_words(n, k)];
            let (mut c, mut strip) = (vec![0.0; m * n], vec![0.0; tiles.row_block_words(k)]);
            let out = Output { data: c.as_mut_ptr(), stride: n, add: false, scale: 1.0 };
            // SAFETY: sizes as stated.
            unsafe {
                let packed = pack(simd, n, k, Matrix::rows(&b, k).transposed(), &mut packed);
                matmul_packed(simd, m, n, Matrix::rows(&a, m).transposed(), packed, out, &mut strip);
            }
            for i in 0..m {
                for j in 0..n {
                    let exact: f64 = (0..k).map(|d| f64::from(a[d * m + i]) * f64::from(b[j * k + d])).sum();
                    assert!((f64::from(c[i * n + j]) - exact).abs() < 1e-4);
                }
            }
        }
    }
}
