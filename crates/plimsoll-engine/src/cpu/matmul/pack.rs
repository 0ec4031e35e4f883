//! Packing: columns of B in panels, rows of A in strips, each as the micro-kernel reads them.

use std::arch::x86_64::{
    __m512, _mm256_loadu_si256, _mm512_castsi512_ps, _mm512_cvtepu16_epi32, _mm512_loadu_ps, _mm512_permutex2var_ps,
    _mm512_setr_epi32, _mm512_slli_epi32, _mm512_storeu_ps,
};

use plimsoll_plan::tiles::{DECODED_ROWS, STRIPS, Simd};

use super::{Matrix, Right, Stored};
use crate::cpu::weights::Window;
use crate::simd::{leveled, prefetch};

/// Rows of a matrix that are asked for ahead: they lie so far apart that the processor does not guess the next.
const AHEAD: usize = 8;

/// Packs rows of A as strips: `into[(strip * deep + d) * nr + row]`.
///
/// # Safety
/// The rows and depths lie inside A.
pub(super) unsafe fn pack_rows(
    a: Matrix,
    first: usize,
    count: usize,
    from: usize,
    deep: usize,
    nr: usize,
    into: &mut [f32],
) {
    if a.row_stride == 1 && nr == 6 && count == nr * STRIPS {
        // Whole cache lines across the rows, six elements to each strip.
        for d in 0..deep {
            // SAFETY: `count` contiguous elements at this depth.
            let line = unsafe { std::slice::from_raw_parts(a.data.add(first + (from + d) * a.col_stride), 6 * STRIPS) };
            let later = line.as_ptr().wrapping_add(AHEAD * a.col_stride);
            (0..6 * STRIPS).step_by(16).for_each(|at| prefetch(later.wrapping_add(at)));
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

/// Packs `wide` columns of B as `into[d * mr + col]`, zero behind the last column. Stored weights whose depth is
/// contiguous are decoded into `scratch` first, of `DECODED_ROWS * deep` words.
///
/// # Safety
/// The columns and depths lie inside B.
pub(super) unsafe fn pack_right(
    simd: Simd,
    b: Right,
    depth: usize,
    deep: usize,
    from: usize,
    wide: usize,
    mr: usize,
    into: &mut [f32],
    scratch: &mut [f32],
) {
    match b {
        // SAFETY: by the caller's promise.
        Right::Plain(b) => unsafe { pack_columns(simd, b, depth, deep, from, wide, mr, into) },
        Right::Stored(b) if b.transposed => pack_stored_rows(simd, b, depth, deep, from, wide, mr, into, scratch),
        Right::Stored(Stored { weights, first, stride, .. }) => {
            let window = Window { first: first + depth * stride + from, stride, rows: deep, width: wide };
            weights.decode_rows(simd, window, into, mr);
            if wide < mr {
                into.chunks_exact_mut(mr).take(deep).for_each(|row| row[wide..].fill(0.0));
            }
        }
    }
}

/// Packs rows of W as columns of B, sixteen at a time.
fn pack_stored_rows(
    simd: Simd,
    b: Stored,
    depth: usize,
    deep: usize,
    from: usize,
    wide: usize,
    mr: usize,
    into: &mut [f32],
    scratch: &mut [f32],
) {
    let Stored { weights, first, stride, .. } = b;
    if wide < mr {
        into.fill(0.0);
    }
    for c in (0..wide).step_by(DECODED_ROWS) {
        let rows = DECODED_ROWS.min(wide - c);
        if let (Simd::Avx512, 16, true, Some(halves)) = (simd, rows, deep.is_multiple_of(16), weights.bf16()) {
            let row = |i: usize| &halves[first + (from + c + i) * stride + depth..][..deep];
            assert!(c + 16 <= mr && into.len() >= deep * mr);
            // SAFETY: the level was detected on this machine; the sizes were checked.
            unsafe { transpose_bf16_avx512(&std::array::from_fn(row), deep, &mut into[c..], mr) };
            continue;
        }
        let scratch = &mut scratch[..rows * deep];
        let window = Window { first: first + (from + c) * stride + depth, stride, rows, width: deep };
        weights.decode_rows(simd, window, scratch, deep);
        if rows == 16 {
            transpose_16(simd, &std::array::from_fn(|i| &scratch[i * deep..(i + 1) * deep]), c, mr, into);
        } else {
            for (i, column) in scratch.chunks_exact(deep).enumerate() {
                column.iter().enumerate().for_each(|(d, v)| into[d * mr + c + i] = *v);
            }
        }
    }
}

/// Packs `wide` columns of B as `into[d * mr + col]`, zero behind the last column.
///
/// # Safety
/// The columns and depths lie inside B.
pub(super) unsafe fn pack_columns(
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
        // SAFETY: `wide` contiguous columns at each depth.
        let all = unsafe { std::slice::from_raw_parts(start, (deep - 1) * b.row_stride + wide) };
        copy_columns(simd, all, b.row_stride, deep, wide, mr, into);
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
    /// Copies `wide` columns of each depth, a full panel in whole registers.
    fn copy_columns(from: &[f32], stride: usize, deep: usize, wide: usize, mr: usize, into: &mut [f32]) {
        const FULL: usize = 64;
        if wide == FULL && mr == FULL {
            for (d, to) in into.as_chunks_mut::<FULL>().0.iter_mut().take(deep).enumerate() {
                let later = from.as_ptr().wrapping_add((d + AHEAD) * stride);
                (0..FULL).step_by(16).for_each(|at| prefetch(later.wrapping_add(at)));
                *to = *from[d * stride..].first_chunk().expect("a full panel is inside the matrix");
            }
            return;
        }
        for (d, to) in into.chunks_exact_mut(mr).take(deep).enumerate() {
            to[..wide].copy_from_slice(&from[d * stride..][..wide]);
            to[wide..].fill(0.0);
        }
    }
}

/// Writes 16 columns side by side into a panel: `into[d * mr + c + i] = columns[i][d]`.
pub(in crate::cpu) fn transpose_16(simd: Simd, columns: &[&[f32]; 16], c: usize, mr: usize, into: &mut [f32]) {
    let deep = columns[0].len();
    let whole = deep / 16 * 16;
    assert!(columns.iter().all(|col| col.len() == deep) && c + 16 <= mr && into.len() >= deep * mr);
    let start = if simd == Simd::Avx512 {
        // SAFETY: the level was detected on this machine; the sizes were checked above.
        unsafe { transpose_avx512(columns, whole, &mut into[c..], mr) };
        whole
    } else {
        0
    };
    for d in start..deep {
        for i in 0..16 {
            into[d * mr + c + i] = columns[i][d];
        }
    }
}

/// Sixteen by sixteen at a time.
///
/// # Safety
/// Each column has `deep` elements, a multiple of 16; `into` has room for `deep` rows of `stride`, the last of 16.
#[target_feature(enable = "avx512f")]
unsafe fn transpose_avx512(columns: &[&[f32]; 16], deep: usize, into: &mut [f32], stride: usize) {
    for d in (0..deep).step_by(16) {
        // SAFETY: sixteen elements of each column from `d` on.
        let tile = std::array::from_fn(|i| unsafe { _mm512_loadu_ps(columns[i].as_ptr().add(d)) });
        // SAFETY: rows `d ..` of the panel.
        unsafe { store_transposed(tile, into.as_mut_ptr().add(d * stride), stride) };
    }
}

/// The same from halves, which are widened on the way.
///
/// # Safety
/// As for `transpose_avx512`.
#[target_feature(enable = "avx512f")]
unsafe fn transpose_bf16_avx512(columns: &[&[u16]; 16], deep: usize, into: &mut [f32], stride: usize) {
    for d in (0..deep).step_by(16) {
        let tile = std::array::from_fn(|i| {
            // SAFETY: sixteen elements of each column from `d` on.
            let halves = unsafe { _mm256_loadu_si256(columns[i].as_ptr().add(d).cast()) };
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        });
        // SAFETY: rows `d ..` of the panel.
        unsafe { store_transposed(tile, into.as_mut_ptr().add(d * stride), stride) };
    }
}

/// Transposes in four rounds of interleaving rows that are half the tile apart.
///
/// # Safety
/// `into` has room for 16 rows of `stride`, the last of 16.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn store_transposed(mut rows: [__m512; 16], into: *mut f32, stride: usize) {
    let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    for _ in 0..4 {
        let from = rows;
        for i in 0..8 {
            rows[2 * i] = _mm512_permutex2var_ps(from[i], low, from[i + 8]);
            rows[2 * i + 1] = _mm512_permutex2var_ps(from[i], high, from[i + 8]);
        }
    }
    for (r, row) in rows.iter().enumerate() {
        // SAFETY: by the caller's promise.
        unsafe { _mm512_storeu_ps(into.add(r * stride), *row) };
    }
}
