//! Weights as they are stored: f32, bf16, f16, int8 or NF4 words, read as f32.
//!
//! `decode` reads from any element on, `encode` writes whole groups, so a file can be taken in piece by piece. The
//! numbers that come out are the same at every instruction level: one shift, or one product an element.
//!
//! A number that is not finite is never hidden: its block (int8) or group (NF4) decodes to numbers that are not finite.

mod int8;
mod nf4;
mod sixteen;

use plimsoll_plan::dtype::{Dtype, GROUP};
use plimsoll_plan::tiles::Simd;

/// The numbers of one tensor in the words they are stored in.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    words: &'a [f32],
    dtype: Dtype,
    elements: usize,
}

/// Elements `first + row * stride ..` of `rows` rows, `width` of each.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The first element.
    pub first: usize,
    /// Elements from one row to the next.
    pub stride: usize,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
}

impl<'a> Weights<'a> {
    /// `elements` numbers that `encode` wrote into `words`.
    pub fn new(words: &'a [f32], dtype: Dtype, elements: usize) -> Weights<'a> {
        assert!(words.len() >= dtype.words(elements), "the words hold every element");
        Weights { words, dtype, elements }
    }

    /// Plain numbers.
    pub fn f32(values: &'a [f32]) -> Weights<'a> {
        Weights::new(values, Dtype::F32, values.len())
    }

    /// How they are stored.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// How many there are.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// The numbers themselves, where they are stored as such.
    pub fn plain(&self) -> Option<&'a [f32]> {
        (self.dtype == Dtype::F32).then(|| &self.words[..self.elements])
    }

    /// The halves, where they are stored in bf16.
    pub(super) fn bf16(&self) -> Option<&[u16]> {
        (self.dtype == Dtype::Bf16).then(|| &halves(self.words)[..self.elements])
    }

    /// Reads the elements from `first` on.
    pub fn decode(&self, simd: Simd, first: usize, out: &mut [f32]) {
        let width = out.len();
        self.decode_rows(simd, Window { first, stride: width, rows: 1, width }, out, width);
    }

    /// Reads rows of elements; row `i` goes to `out[i * out_stride ..]`.
    pub fn decode_rows(&self, simd: Simd, window: Window, out: &mut [f32], out_stride: usize) {
        let Window { first, stride, rows, width } = window;
        if rows == 0 || width == 0 {
            return;
        }
        assert!(first + (rows - 1) * stride + width <= self.elements, "the elements lie inside the tensor");
        assert!((rows - 1) * out_stride + width <= out.len(), "every row has its place");
        match self.dtype {
            Dtype::F32 => {
                for row in 0..rows {
                    let from = &self.words[first + row * stride..][..width];
                    out[row * out_stride..][..width].copy_from_slice(from);
                }
            }
            Dtype::Bf16 => sixteen::widen_bf16(simd, halves(self.words), window, out, out_stride),
            Dtype::F16 => sixteen::widen_f16(simd, halves(self.words), window, out, out_stride),
            Dtype::Int8 => int8::decode(simd, self.words, self.elements, window, out, out_stride),
            Dtype::Nf4 => nf4::decode(simd, self.words, self.elements, window, out, out_stride),
        }
    }
}

/// Stores `values` as the elements from `first` on of a tensor of `elements`: whole groups, of which only the tensor's
/// last may be short. `words` are the whole tensor's. Whoever writes the last group zeroes what lies between the parts.
pub fn encode(simd: Simd, dtype: Dtype, elements: usize, first: usize, values: &[f32], words: &mut [f32]) {
    let end = first + values.len();
    assert!(end <= elements, "pieces end inside the tensor");
    if !dtype.is_exact() {
        assert!(first.is_multiple_of(GROUP), "pieces begin with a group");
        assert!(end == elements || end.is_multiple_of(GROUP), "only the last group is short");
    }
    assert!(words.len() >= dtype.words(elements), "the words hold every element");
    if end == elements {
        clear_gaps(dtype, elements, words);
    }
    match dtype {
        Dtype::F32 => words[first..end].copy_from_slice(values),
        Dtype::Bf16 => sixteen::narrow_bf16(simd, values, &mut halves_mut(words)[first..end]),
        Dtype::F16 => sixteen::narrow_f16(simd, values, &mut halves_mut(words)[first..end]),
        Dtype::Int8 => int8::encode(simd, elements, first, values, words),
        Dtype::Nf4 => nf4::encode(simd, elements, first, values, words),
    }
}

/// Zeroes the bytes that no element owns, so that the words of a tensor depend on its numbers alone.
fn clear_gaps(dtype: Dtype, elements: usize, words: &mut [f32]) {
    use plimsoll_plan::dtype::BLOCK;
    let end = dtype.words(elements) * 4;
    let (blocks, groups) = (elements.div_ceil(BLOCK), elements.div_ceil(GROUP));
    let bytes = bytes_mut(words);
    match (dtype, dtype.layout(elements)) {
        (Dtype::Bf16 | Dtype::F16, _) => bytes[elements * 2..end].fill(0),
        (Dtype::Int8, Some(l)) => {
            bytes[elements..l.blocks].fill(0);
            bytes[l.blocks + 4 * blocks..end].fill(0);
        }
        (Dtype::Nf4, Some(l)) => {
            bytes[elements.div_ceil(2)..l.blocks].fill(0);
            bytes[l.blocks + blocks..l.groups].fill(0);
            bytes[l.groups + 8 * groups..end].fill(0);
        }
        _ => {}
    }
}

/// The words as halves.
fn halves(words: &[f32]) -> &[u16] {
    // SAFETY: the same bytes, less aligned; every pattern is a number.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 2) }
}

/// The words as halves.
fn halves_mut(words: &mut [f32]) -> &mut [u16] {
    // SAFETY: as above, and every pattern is a word as well.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 2) }
}

/// The words as bytes.
fn bytes(words: &[f32]) -> &[u8] {
    // SAFETY: the same bytes, less aligned; every pattern is a number.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 4) }
}

/// The words as bytes.
fn bytes_mut(words: &mut [f32]) -> &mut [u8] {
    // SAFETY: as above, and every pattern is a word as well.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 4) }
}

/// The largest absolute value; NaN where one is in there, because NaN's bits are above those of every number.
#[inline(always)]
fn absmax(values: &[f32]) -> f32 {
    f32::from_bits(values.iter().map(|v| v.abs().to_bits()).max().unwrap_or(0))
}

/// The nearest of -127 ..= 127, ties to even, as the bits of a signed byte; something where there is no number.
#[inline(always)]
fn signed_byte(value: f32) -> u8 {
    // Numbers above this one are whole, so adding it rounds, and its lowest bits are the sum's.
    const WHOLE: f32 = 12_582_912.0;
    (value.clamp(-127.0, 127.0) + WHOLE).to_bits() as u8
}
