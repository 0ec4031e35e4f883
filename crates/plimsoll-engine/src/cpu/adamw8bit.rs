//! AdamW with both moments in 8 bits (Dettmers et al., "8-bit optimizers via block-wise quantization", 2021).
//!
//! A moment is a code a number and the largest magnitude of each block of 256. Codes index a map that is fine near one and
//! reaches down to a millionth: seven decades, each cut into twice as many cells as the one below it. The map of the first
//! moment has a sign. Each block is widened on the stack, updated as `adamw` does it, and stored again.

use std::sync::LazyLock;

use plimsoll_plan::train::{EIGHT_BIT_BLOCK, EIGHT_BIT_LEAST, eight_bit_words};

use super::Cores;
use super::adamw::{AdamWStep, Numbers, adamw, adamw_range};
use super::weight::WeightMut;
use crate::pool::Shared;
use crate::simd::{LANES, leveled};

/// Decades that a map covers, from a millionth up.
const DECADES: i32 = 7;
/// Octaves below one that are looked up; what is smaller is nearest to zero.
const OCTAVES: usize = 24;
/// Leading bits of the mantissa that are looked up: at most one cell ends between two neighbours.
const LEADING: u32 = 7;

/// The map of one moment.
#[derive(Clone, Debug)]
pub struct CodeMap {
    /// The value of each code, ascending.
    pub values: [f32; 256],
    /// Whether codes below `zero` are negative.
    zero: usize,
    /// Middles between the value of a code from zero on and the next; infinite behind the last.
    middles: [f32; 256],
    /// Code (counted from zero's) of the smallest number with the given leading bits.
    start: [u8; OCTAVES << LEADING],
}

impl CodeMap {
    /// The signed or the unsigned map: decade i, from the lowest, is cut into `2^i` cells, or twice as many without a
    /// sign; the middle of each is a value, and so are 0 and 1.
    pub fn new(signed: bool) -> CodeMap {
        let mut values = [0.0f32; 256];
        let mut count = 0;
        let mut put = |value: f64| {
            values[count] = value as f32;
            count += 1;
        };
        for decade in 0..DECADES {
            let cells = (if signed { 1 } else { 2 }) << decade;
            let top = 10f64.powi(decade - DECADES + 1);
            for cell in 0..cells {
                let middle = top * (0.1 + 0.9 * (f64::from(cell) + 0.5) / f64::from(cells));
                put(middle);
                if signed {
                    put(-middle);
                }
            }
        }
        put(0.0);
        put(1.0);
        values.sort_unstable_by(f32::total_cmp);
        let zero = values.iter().position(|v| *v == 0.0).expect("zero is among them");
        let mut middles = [f32::INFINITY; 256];
        for (at, pair) in values[zero..].windows(2).enumerate() {
            middles[at] = (pair[0] + pair[1]) / 2.0;
        }
        let mut map = CodeMap { values, zero, middles, start: [0; OCTAVES << LEADING] };
        for at in 0..map.start.len() {
            let least = f32::from_bits(FIRST + ((at as u32) << (23 - LEADING)));
            map.start[at] = map.middles.iter().filter(|m| **m <= least).count() as u8;
        }
        map
    }

    /// The code whose value is nearest to `x`, which lies from -1 to 1.
    #[inline(always)]
    pub fn nearest(&self, x: f32) -> u8 {
        let size = x.abs();
        // Below the first octave nothing is nearer than zero; one is the last entry.
        let at = (size.to_bits().max(FIRST) - FIRST) >> (23 - LEADING);
        let start = usize::from(self.start[(at as usize).min(self.start.len() - 1)]);
        let from_zero = start + usize::from(size >= self.middles[start]);
        if x < 0.0 { self.zero.saturating_sub(from_zero) as u8 } else { (self.zero + from_zero).min(255) as u8 }
    }
}

/// Bits of the smallest number that is looked up.
const FIRST: u32 = (127 - OCTAVES as u32) << 23;

static SIGNED: LazyLock<CodeMap> = LazyLock::new(|| CodeMap::new(true));
static UNSIGNED: LazyLock<CodeMap> = LazyLock::new(|| CodeMap::new(false));

/// One moment's state: codes, a byte each, then one f32 a block.
#[derive(Clone, Copy)]
struct Moment {
    codes: *mut u8,
    scales: Shared,
    map: &'static CodeMap,
}

// SAFETY: tasks use disjoint blocks.
unsafe impl Send for Moment {}
// SAFETY: as above.
unsafe impl Sync for Moment {}

impl Moment {
    fn of(state: &mut [f32], elements: usize, map: &'static CodeMap) -> Moment {
        assert_eq!(state.len(), eight_bit_words(elements), "state is what the plan says");
        let scales = state[elements.div_ceil(4)..].as_mut_ptr();
        Moment { codes: state.as_mut_ptr().cast(), scales: Shared(scales), map }
    }

    /// The codes and the scale of one block.
    ///
    /// # Safety
    /// `start` begins a block that has `len` elements, and no other task uses it.
    unsafe fn block<'a>(self, start: usize, len: usize) -> (&'a mut [u8], &'a mut f32) {
        // SAFETY: by the caller's promise.
        unsafe {
            (
                std::slice::from_raw_parts_mut(self.codes.add(start), len),
                &mut self.scales.slice(start / EIGHT_BIT_BLOCK, 1)[0],
            )
        }
    }
}

/// Updates one parameter. The state of a small one is f32, as AdamW's.
pub fn adamw8bit<'a>(
    cores: Cores,
    step: &AdamWStep,
    weight: impl Into<WeightMut<'a>>,
    grad: &[f32],
    exp_avg: &mut [f32],
    exp_avg_sq: &mut [f32],
) {
    let mut weight = weight.into();
    assert_eq!(weight.len(), grad.len(), "the gradient is the weight's size");
    if grad.len() < EIGHT_BIT_LEAST {
        return adamw(cores, step, weight, grad, exp_avg, exp_avg_sq);
    }
    let numbers = Numbers::of(step);
    let (first, second) = (Moment::of(exp_avg, grad.len(), &SIGNED), Moment::of(exp_avg_sq, grad.len(), &UNSIGNED));
    weight.update(cores, |range, weight| {
        // Pieces begin at multiples of a block, and only the last one ends elsewhere.
        for (nth, weight) in weight.chunks_mut(EIGHT_BIT_BLOCK).enumerate() {
            let start = range.start + nth * EIGHT_BIT_BLOCK;
            let len = weight.len();
            let mut moments = [[0.0f32; EIGHT_BIT_BLOCK]; 2];
            let [m, v] = moments.each_mut().map(|moment| &mut moment[..len]);
            // SAFETY: this task alone uses the blocks of this piece.
            let ((m_codes, m_scale), (v_codes, v_scale)) =
                unsafe { (first.block(start, len), second.block(start, len)) };
            read(cores.simd, first.map, m_codes, *m_scale, m);
            read(cores.simd, second.map, v_codes, *v_scale, v);
            adamw_range(cores.simd, numbers, weight, &grad[start..start + len], m, v);
            *m_scale = write(cores.simd, first.map, m, m_codes);
            *v_scale = write(cores.simd, second.map, v, v_codes);
        }
    });
}

leveled! {
    fn read(map: &CodeMap, codes: &[u8], scale: f32, values: &mut [f32]) {
        values.iter_mut().zip(codes).for_each(|(v, code)| *v = map.values[usize::from(*code)] * scale);
    }
}

leveled! {
    /// Stores the numbers' codes; returns the largest magnitude.
    fn write(map: &CodeMap, values: &[f32], codes: &mut [u8]) -> f32 {
        let mut lanes = [0.0f32; LANES];
        for chunk in values.chunks(LANES) {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                *lane = if value.abs() > *lane { value.abs() } else { *lane };
            }
        }
        let most = lanes.iter().copied().fold(0.0, f32::max);
        let inverse = if most > 0.0 { 1.0 / most } else { 0.0 };
        codes.iter_mut().zip(values).for_each(|(code, value)| *code = map.nearest((value * inverse).clamp(-1.0, 1.0)));
        most
    }
}
