//! bf16 and f16: widened exactly, narrowed to nearest, ties to even. What came from such a number comes back bit by bit,
//! NaN's payload included, which is why the processor's own conversion (it quiets NaN) is not used.

use super::Window;
use crate::simd::{leveled, prefetch};

/// 2^112: from f16's exponents to f32's.
const REBIAS: f32 = f32::from_bits(0x7780_0000);
/// Magnitudes of f16 from here on are infinite or not numbers.
const F16_INFINITE: u32 = 0x7C00;

#[inline(always)]
fn from_bf16(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

#[inline(always)]
fn from_f16(half: u16) -> f32 {
    let half = u32::from(half);
    let shifted = (half & 0x7FFF) << 13;
    // A product that is exact, for f16's subnormals as well.
    let finite = (f32::from_bits(shifted) * REBIAS).to_bits();
    let bits = if shifted >= F16_INFINITE << 13 { shifted | 0x7F80_0000 } else { finite };
    f32::from_bits(bits | (half & 0x8000) << 16)
}

#[inline(always)]
fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let upper = bits >> 16;
    let rounded = (bits.wrapping_add(0x7FFF + (upper & 1))) >> 16;
    // NaN keeps its upper half; where that alone would be infinite, one bit is set.
    let nan = upper | u32::from(upper & 0x7F == 0) << 6;
    (if bits & 0x7FFF_FFFF > 0x7F80_0000 { nan } else { rounded }) as u16
}

#[inline(always)]
fn to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7FFF_FFFF;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xFFF + (magnitude >> 13 & 1)) >> 13;
    // Below 2^-14 the addition of 0.5 rounds at f16's last place, 2^-24.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let payload = magnitude >> 13 & 0x3FF;
    let nan = F16_INFINITE | payload | u32::from(payload == 0) << 9;
    let rounded = if magnitude < 113 << 23 { subnormal } else { normal };
    // From 65520 on the nearest is infinite.
    let finite_or_infinite = if magnitude >= 0x477F_F000 { F16_INFINITE } else { rounded };
    let all = if magnitude > 0x7F80_0000 { nan } else { finite_or_infinite };
    (all | bits >> 16 & 0x8000) as u16
}

macro_rules! sixteen {
    ($widen:ident, $from:ident, $narrow:ident, $to:ident) => {
        leveled! {
            /// Widens rows of halves.
            pub(super) fn $widen(from: &[u16], window: Window, out: &mut [f32], out_stride: usize) {
                for row in 0..window.rows {
                    // Rows lie so far apart that the processor does not guess the next.
                    let later = from.as_ptr().wrapping_add(window.first + (row + 8) * window.stride);
                    (0..window.width.min(64)).step_by(32).for_each(|at| prefetch(later.wrapping_add(at)));
                    let from = &from[window.first + row * window.stride..][..window.width];
                    let out = &mut out[row * out_stride..][..window.width];
                    out.iter_mut().zip(from).for_each(|(out, from)| *out = $from(*from));
                }
            }
        }
        leveled! {
            /// Rounds to halves.
            pub(super) fn $narrow(values: &[f32], out: &mut [u16]) {
                out.iter_mut().zip(values).for_each(|(out, value)| *out = $to(*value));
            }
        }
    };
}

sixteen!(widen_bf16, from_bf16, narrow_bf16, to_bf16);
sixteen!(widen_f16, from_f16, narrow_f16, to_f16);
