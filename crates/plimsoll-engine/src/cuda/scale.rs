//! The loss scale of 16-bit floats with 5 bits of exponent: gradients are computed so many times too long that small ones
//! do not vanish, and made right by the update. One that overflowed is skipped and the scale halved; after many good ones
//! it is doubled (Micikevicius et al. 2018, section 3.2).

use plimsoll_plan::dtype::Dtype;

/// Scale at the start. Gradients here are of the sum over tokens, so it is what `torch.amp.GradScaler`'s 65536 is where the
/// loss is a mean over 64.
const FIRST: f32 = 1024.0;
/// Above this nothing is won: the smallest number of f16 times it is 1.
const MOST: f32 = 16_777_216.0;
/// At this scale only a gradient of tens of millions overflows.
const LEAST: f32 = 1.0 / 1024.0;
/// Updates in a row that went well before the scale is doubled.
const PATIENCE: u32 = 2000;

/// A loss scale, and since when it holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    /// What the loss is multiplied by; a power of two, so that nothing is rounded.
    pub scale: f32,
    /// Updates in a row that went well.
    pub good: u32,
}

/// What an overflow at a scale means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// The scale was too large, and is smaller now.
    OfScale,
    /// The gradient itself is not finite.
    OfGradient,
}

impl LossScale {
    /// The scale that a run on activations of this form begins with; none where nothing is scaled.
    pub fn of(activations: Dtype) -> Option<LossScale> {
        (activations == Dtype::F16).then_some(LossScale { scale: FIRST, good: 0 })
    }

    /// After an update that went well.
    pub fn went_well(&mut self) {
        self.good += 1;
        if self.good >= PATIENCE {
            *self = LossScale { scale: (self.scale * 2.0).min(MOST), good: 0 };
        }
    }

    /// After one whose gradient was not finite.
    pub fn overflowed(&mut self) -> Overflow {
        let what = if self.scale > LEAST { Overflow::OfScale } else { Overflow::OfGradient };
        *self = LossScale { scale: (self.scale * 0.5).max(LEAST), good: 0 };
        what
    }

    /// Whether a file may say so.
    pub fn is_valid(&self) -> bool {
        (LEAST..=MOST).contains(&self.scale) && self.scale.log2().fract() == 0.0 && self.good < PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_f16_is_scaled() {
        assert_eq!(LossScale::of(Dtype::F16), Some(LossScale { scale: 1024.0, good: 0 }));
        assert_eq!((LossScale::of(Dtype::Bf16), LossScale::of(Dtype::F32)), (None, None));
    }

    #[test]
    fn it_halves_at_an_overflow_down_to_the_least_and_doubles_after_many_good_updates() {
        let mut scale = LossScale { scale: 4.0 * LEAST, good: 7 };
        assert_eq!((scale.overflowed(), scale), (Overflow::OfScale, LossScale { scale: 2.0 * LEAST, good: 0 }));
        assert_eq!((scale.overflowed(), scale.scale), (Overflow::OfScale, LEAST));
        assert_eq!((scale.overflowed(), scale.scale), (Overflow::OfGradient, LEAST));
        (0..PATIENCE - 1).for_each(|_| scale.went_well());
        assert_eq!(scale, LossScale { scale: LEAST, good: PATIENCE - 1 });
        scale.went_well();
        assert_eq!(scale, LossScale { scale: 2.0 * LEAST, good: 0 });
        let mut most = LossScale { scale: MOST, good: PATIENCE - 1 };
        most.went_well();
        assert_eq!(most.scale, MOST);
    }

    #[test]
    fn what_no_run_could_have_written_is_not_valid() {
        assert!(LossScale { scale: 0.5, good: 3 }.is_valid());
        for scale in [LEAST / 2.0, 3.0, f32::NAN, f32::INFINITY, MOST * 2.0] {
            assert!(!LossScale { scale, good: 0 }.is_valid(), "{scale}");
        }
        assert!(!LossScale { scale: 1.0, good: PATIENCE }.is_valid());
    }
}
