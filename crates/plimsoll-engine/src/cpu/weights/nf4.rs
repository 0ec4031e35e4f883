//! Four bits an element: the nearest of sixteen levels, times the absmax of its block, which is stored in one byte with
//! an offset and a scale a group. The even element of a pair is the lower half of its byte.
//!
//! Levels are chosen against the absmax as it will be decoded. That may be wrong by half a step of its byte, in a block
//! of tiny numbers beside large ones even be negative: the nearest of the levels is then still the nearest.

use plimsoll_plan::dtype::{BLOCK, BLOCKS, Dtype, GROUP, NF4_LEVELS};
use plimsoll_plan::tiles::Simd;

use super::{Window, absmax, bytes, bytes_mut, signed_byte};
use crate::simd::leveled;

/// The code of zero.
const ZERO: u8 = 7;
/// Between two levels.
const MIDDLES: [f32; 15] = {
    let mut middles = [0.0; 15];
    let mut i = 0;
    while i < 15 {
        middles[i] = 0.5 * (NF4_LEVELS[i] + NF4_LEVELS[i + 1]);
        i += 1;
    }
    middles
};

/// A tensor's codes and what gives the absmax of its blocks.
#[derive(Clone, Copy)]
struct Parts<'a> {
    codes: &'a [u8],
    blocks: &'a [u8],
    groups: &'a [f32],
}

impl Parts<'_> {
    #[inline(always)]
    fn absmax(&self, block: usize) -> f32 {
        let group = block / BLOCKS;
        scaled(self.groups[2 * group], self.groups[2 * group + 1], self.blocks[block])
    }
}

#[inline(always)]
fn scaled(offset: f32, scale: f32, byte: u8) -> f32 {
    offset + f32::from(byte as i8) * scale
}

pub(super) fn decode(simd: Simd, words: &[f32], elements: usize, window: Window, out: &mut [f32], out_stride: usize) {
    let layout = Dtype::Nf4.layout(elements).expect("nf4 has blocks");
    let all = bytes(words);
    let parts = Parts {
        codes: &all[..elements.div_ceil(2)],
        blocks: &all[layout.blocks..][..elements.div_ceil(BLOCK)],
        groups: &words[layout.groups / 4..][..2 * elements.div_ceil(GROUP)],
    };
    match simd {
        // SAFETY: the level was detected on this machine.
        Simd::Avx512 => unsafe { rows_avx512(parts, window, out, out_stride) },
        // SAFETY: as above.
        Simd::Avx2 => unsafe { rows_avx2(parts, window, out, out_stride) },
        Simd::Baseline => runs(parts, window, out, out_stride, run),
    }
}

/// Calls `run(absmax, codes, first, out)` for each stretch of a row that lies in one block.
#[inline(always)]
fn runs(parts: Parts, window: Window, out: &mut [f32], out_stride: usize, run: impl Fn(f32, &[u8], usize, &mut [f32])) {
    for row in 0..window.rows {
        let mut at = window.first + row * window.stride;
        let mut rest = &mut out[row * out_stride..][..window.width];
        while !rest.is_empty() {
            let len = (BLOCK - at % BLOCK).min(rest.len());
            let (part, behind) = rest.split_at_mut(len);
            run(parts.absmax(at / BLOCK), parts.codes, at, part);
            (at, rest) = (at + len, behind);
        }
    }
}

#[inline(always)]
fn run(absmax: f32, codes: &[u8], first: usize, out: &mut [f32]) {
    for (i, out) in out.iter_mut().enumerate() {
        let at = first + i;
        let code = codes[at / 2] >> (4 * (at % 2)) & 15;
        *out = NF4_LEVELS[usize::from(code)] * absmax;
    }
}

/// Sixteen elements a turn: their eight bytes are spread over the lanes, shifted, and looked up in one register.
#[target_feature(enable = "avx512f")]
fn rows_avx512(parts: Parts, window: Window, out: &mut [f32], out_stride: usize) {
    use std::arch::x86_64::{
        _mm512_loadu_ps, _mm512_mask_set1_epi32, _mm512_mul_ps, _mm512_permutexvar_ps, _mm512_set1_epi32,
        _mm512_set1_ps, _mm512_setr_epi32, _mm512_srlv_epi32, _mm512_storeu_ps,
    };
    let shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    // SAFETY: sixteen levels.
    let levels = unsafe { _mm512_loadu_ps(NF4_LEVELS.as_ptr()) };
    runs(parts, window, out, out_stride, |absmax, codes, first, out| {
        let odd = first % 2;
        let whole = out.len().saturating_sub(odd) / 16 * 16;
        let table = _mm512_mul_ps(levels, _mm512_set1_ps(absmax));
        run(absmax, codes, first, &mut out[..odd]);
        let bytes = &codes[(first + odd) / 2..][..whole / 2];
        let (quads, _) = bytes.as_chunks::<8>();
        for (nth, [a, b, c, d, e, f, g, h]) in quads.iter().enumerate() {
            let low = _mm512_set1_epi32(i32::from_le_bytes([*a, *b, *c, *d]));
            let both = _mm512_mask_set1_epi32(low, 0xFF00, i32::from_le_bytes([*e, *f, *g, *h]));
            let values = _mm512_permutexvar_ps(_mm512_srlv_epi32(both, shifts), table);
            // SAFETY: `odd + whole` elements are there.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr().add(odd + nth * 16), values) };
        }
        run(absmax, codes, first + odd + whole, &mut out[odd + whole..]);
    });
}

/// Eight elements a turn, looked up in two registers of which the fourth bit picks one.
#[target_feature(enable = "avx2")]
fn rows_avx2(parts: Parts, window: Window, out: &mut [f32], out_stride: usize) {
    use std::arch::x86_64::{
        _mm256_blendv_ps, _mm256_castsi256_ps, _mm256_loadu_ps, _mm256_mul_ps, _mm256_permutevar8x32_ps,
        _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32, _mm256_slli_epi32, _mm256_srlv_epi32, _mm256_storeu_ps,
    };
    let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    // SAFETY: sixteen levels.
    let (low, high) = unsafe { (_mm256_loadu_ps(NF4_LEVELS.as_ptr()), _mm256_loadu_ps(NF4_LEVELS[8..].as_ptr())) };
    runs(parts, window, out, out_stride, |absmax, codes, first, out| {
        let odd = first % 2;
        let whole = out.len().saturating_sub(odd) / 8 * 8;
        let factor = _mm256_set1_ps(absmax);
        let (low, high) = (_mm256_mul_ps(low, factor), _mm256_mul_ps(high, factor));
        run(absmax, codes, first, &mut out[..odd]);
        let bytes = &codes[(first + odd) / 2..][..whole / 2];
        for (nth, four) in bytes.as_chunks::<4>().0.iter().enumerate() {
            let index = _mm256_srlv_epi32(_mm256_set1_epi32(i32::from_le_bytes(*four)), shifts);
            let upper = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
            let values =
                _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index), upper);
            // SAFETY: `odd + whole` elements are there.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(odd + nth * 8), values) };
        }
        run(absmax, codes, first + odd + whole, &mut out[odd + whole..]);
    });
}

pub(super) fn encode(simd: Simd, elements: usize, first: usize, values: &[f32], words: &mut [f32]) {
    let layout = Dtype::Nf4.layout(elements).expect("nf4 has blocks");
    for (nth, group) in values.chunks(GROUP).enumerate() {
        let at = first + nth * GROUP;
        let all = bytes_mut(words);
        let (codes, blocks) = all.split_at_mut(layout.blocks);
        let codes = &mut codes[at / 2..][..group.len().div_ceil(2)];
        let blocks = &mut blocks[at / BLOCK..][..group.len().div_ceil(BLOCK)];
        let (offset, scale) = encode_group(simd, group, codes, blocks);
        let pair = layout.groups / 4 + 2 * (at / GROUP);
        (words[pair], words[pair + 1]) = (offset, scale);
    }
}

leveled! {
    /// Writes the codes and the blocks' bytes of one group; its offset and scale.
    fn encode_group(values: &[f32], codes: &mut [u8], blocks: &mut [u8]) -> (f32, f32) {
        let mut most = [0.0f32; BLOCKS];
        let most = &mut most[..blocks.len()];
        most.iter_mut().zip(values.chunks(BLOCK)).for_each(|(most, block)| *most = absmax(block));
        let offset = (most.iter().map(|m| f64::from(*m)).sum::<f64>() / most.len() as f64) as f32;
        let apart = most.iter().fold(0.0f32, |apart, m| apart.max((m - offset).abs()));
        let scale = apart / 127.0;
        for (byte, most) in blocks.iter_mut().zip(most) {
            *byte = if scale == 0.0 { 0 } else { signed_byte((*most - offset) / scale) };
        }
        for ((block, codes), byte) in values.chunks(BLOCK).zip(codes.chunks_mut(BLOCK / 2)).zip(blocks) {
            let absmax = scaled(offset, scale, *byte);
            let mut nearest = [ZERO; BLOCK];
            if absmax != 0.0 {
                for (code, value) in nearest.iter_mut().zip(block) {
                    let level = value / absmax;
                    *code = MIDDLES.iter().map(|middle| u8::from(level > *middle)).sum();
                }
            }
            // Half a byte behind an odd end is zero.
            if block.len() % 2 == 1 {
                nearest[block.len()] = 0;
            }
            for (code, pair) in codes.iter_mut().zip(nearest.as_chunks::<2>().0) {
                *code = pair[0] | pair[1] << 4;
            }
        }
        (offset, scale)
    }
}
