//! One signed byte an element, one f32 scale a block.

use plimsoll_plan::dtype::{BLOCK, Dtype};
use plimsoll_plan::tiles::Simd;

use super::{Window, absmax, bytes, bytes_mut, signed_byte};
use crate::simd::{LANES, leveled};

pub(super) fn decode(simd: Simd, words: &[f32], elements: usize, window: Window, out: &mut [f32], out_stride: usize) {
    let layout = Dtype::Int8.layout(elements).expect("int8 has blocks");
    let scales = &words[layout.blocks / 4..][..elements.div_ceil(BLOCK)];
    decode_rows(simd, &bytes(words)[..elements], scales, window, out, out_stride);
}

leveled! {
    fn decode_rows(codes: &[u8], scales: &[f32], window: Window, out: &mut [f32], out_stride: usize) {
        for row in 0..window.rows {
            let mut at = window.first + row * window.stride;
            let mut rest = &mut out[row * out_stride..][..window.width];
            while !rest.is_empty() {
                let len = (BLOCK - at % BLOCK).min(rest.len());
                let (run, behind) = rest.split_at_mut(len);
                let scale = scales[at / BLOCK];
                let (codes, codes_tail) = codes[at..at + len].as_chunks::<LANES>();
                let (run, run_tail) = run.as_chunks_mut::<LANES>();
                for (out, codes) in run.iter_mut().zip(codes) {
                    for i in 0..LANES {
                        out[i] = f32::from(codes[i] as i8) * scale;
                    }
                }
                run_tail.iter_mut().zip(codes_tail).for_each(|(out, code)| *out = f32::from(*code as i8) * scale);
                (at, rest) = (at + len, behind);
            }
        }
    }
}

pub(super) fn encode(simd: Simd, elements: usize, first: usize, values: &[f32], words: &mut [f32]) {
    let layout = Dtype::Int8.layout(elements).expect("int8 has blocks");
    for (nth, block) in values.chunks(BLOCK).enumerate() {
        let at = first + nth * BLOCK;
        let codes = &mut bytes_mut(words)[at..at + block.len()];
        words[layout.blocks / 4 + at / BLOCK] = encode_block(simd, block, codes);
    }
}

leveled! {
    /// Writes the codes of one block; its scale.
    fn encode_block(values: &[f32], codes: &mut [u8]) -> f32 {
        let scale = absmax(values) / 127.0;
        if scale == 0.0 {
            codes.fill(0);
            return 0.0;
        }
        for (code, value) in codes.iter_mut().zip(values) {
            // A scale that is nearly nothing is rounded itself, so a quotient may lie above the last code.
            *code = signed_byte(value / scale);
        }
        scale
    }
}
