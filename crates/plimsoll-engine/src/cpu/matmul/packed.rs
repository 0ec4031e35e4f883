//! Products that one task computes alone, against a right-hand side that it packed once: attention's.

use plimsoll_plan::tiles::{Simd, Tiles};

use super::pack::pack_columns;
use super::tile::{Depth, Kernels, tile_block};
use super::{Matrix, Output};
use crate::pool::{Shared, tasks};

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

// SAFETY: the packed words are only read while products run.
unsafe impl Send for Packed {}
// SAFETY: as above.
unsafe impl Sync for Packed {}

impl Packed {
    /// The same columns with only the first `deep` of the depth.
    pub fn shallower(self, deep: usize) -> Packed {
        assert!(deep <= self.used);
        Packed { used: deep, ..self }
    }

    /// The columns from `first` on, which is a multiple of a panel's width.
    pub fn from_column(self, simd: Simd, first: usize) -> Packed {
        assert!(first <= self.cols && first.is_multiple_of(Tiles::of(simd).mr));
        Packed { data: self.data.wrapping_add(first * self.deep), cols: self.cols - first, ..self }
    }

    /// The same columns from depth `first` on.
    pub fn from_depth(self, simd: Simd, first: usize) -> Packed {
        assert!(first <= self.used);
        Packed { data: self.data.wrapping_add(first * Tiles::of(simd).mr), used: self.used - first, ..self }
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

/// Packs B (k x n) whole, on all threads; not for a task, which has one.
///
/// # Safety
/// As for `pack`.
pub unsafe fn pack_together(simd: Simd, n: usize, k: usize, b: Matrix, into: &mut [f32]) -> Packed {
    let mr = Tiles::of(simd).mr;
    let panels = n.div_ceil(mr);
    let to = Shared(into[..panels * mr * k].as_mut_ptr());
    tasks(panels, |panel| {
        let wide = mr.min(n - panel * mr);
        // SAFETY: each task writes its own panel; the rest by the caller's promise.
        unsafe { pack_columns(simd, b, 0, k, panel * mr, wide, mr, to.slice(panel * mr * k, mr * k)) };
    });
    Packed { data: into.as_ptr(), cols: n, deep: k, used: k }
}

/// `C (+)= scale * A B` with B packed, on the calling thread; `cols` of B's columns and `deep` of its depth are used.
///
/// # Safety
/// As for `matmul`; `block` holds a block of rows where A's depth is not contiguous.
pub unsafe fn matmul_packed(simd: Simd, m: usize, cols: usize, a: Matrix, b: Packed, c: Output, block: &mut [f32]) {
    assert!(cols <= b.cols);
    let kernels = Kernels::of(simd);
    let a = Depth { matrix: a, from: 0, deep: b.used, panel: b.deep, width: kernels.tiles.mr };
    let panels = 0..cols.div_ceil(kernels.tiles.mr);
    // SAFETY: by the caller's promise.
    unsafe { tile_block(&kernels, a, 0..m, b.data, panels, 0, cols, c, block) };
}
