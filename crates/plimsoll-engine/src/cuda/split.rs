//! An f32 as two halves of 16 bits: the upper one, rounded to nearest, is the bf16 that products read; with the lower one it
//! is the number again, to the last bit.

/// The upper half, rounded to nearest, ties away from zero, and the lower one.
pub(crate) fn halves(value: f32) -> (u16, u16) {
    let bits = value.to_bits();
    ((bits.wrapping_add(0x8000) >> 16) as u16, bits as u16)
}

/// The number of both halves: where the lower one made the upper one round up, that is taken back.
pub(crate) fn joined(high: u16, low: u16) -> f32 {
    f32::from_bits(u32::from(high.wrapping_sub(low >> 15)) << 16 | u32::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_halves_are_the_number_and_the_upper_is_the_nearest_bf16() {
        let wide = |high: u16| f64::from(f32::from_bits(u32::from(high) << 16));
        for upper in 0..=u16::MAX {
            for lower in [0, 1, 0x1234, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
                let value = f32::from_bits(u32::from(upper) << 16 | lower);
                let (high, low) = halves(value);
                assert_eq!(joined(high, low).to_bits(), value.to_bits());
                let apart = |high: u16| (wide(high) - f64::from(value)).abs();
                let others = [high.wrapping_sub(1), high.wrapping_add(1)].map(apart);
                // Beside what is not a number, or above the largest, there is nothing to be near to.
                if wide(high).is_finite() && others.iter().all(|apart| apart.is_finite()) {
                    assert!(others.iter().all(|other| apart(high) <= *other), "{value:e}");
                }
            }
        }
    }
}
