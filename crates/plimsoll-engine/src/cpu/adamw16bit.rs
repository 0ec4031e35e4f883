//! AdamW with both moments in bf16. They are rounded as weights in bf16 are, up or down with the probability that makes the
//! mean right: the second moment changes by a thousandth a step, which a rounding to nearest would always lose.

use super::Cores;
use super::adamw::{AdamWStep, Numbers, adamw_range};
use super::weight::{BLOCK, Rounder, WeightMut, round, widen};

/// What the random bits of a parameter's moments follow from.
#[derive(Clone, Copy, Debug)]
pub struct Rounding {
    /// The run's seed.
    pub seed: u64,
    /// Which update.
    pub update: u64,
    /// Index of the parameter.
    pub param: u32,
}

/// A moment's numbers, which tasks share.
#[derive(Clone, Copy)]
struct Moment(*mut u16);

// SAFETY: tasks use disjoint blocks.
unsafe impl Send for Moment {}
// SAFETY: as above.
unsafe impl Sync for Moment {}

impl Moment {
    fn of(words: &mut [f32], elements: usize) -> Moment {
        assert_eq!(words.len(), elements.div_ceil(2), "state is what the plan says");
        Moment(words.as_mut_ptr().cast())
    }

    /// Some of them.
    ///
    /// # Safety
    /// They are there, and no other task uses them.
    unsafe fn part<'a>(self, start: usize, len: usize) -> &'a mut [u16] {
        // SAFETY: by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

/// Updates one parameter.
pub fn adamw16bit<'a>(
    cores: Cores,
    step: &AdamWStep,
    rounding: Rounding,
    weight: impl Into<WeightMut<'a>>,
    grad: &[f32],
    exp_avg: &mut [f32],
    exp_avg_sq: &mut [f32],
) {
    let mut weight = weight.into();
    assert_eq!(weight.len(), grad.len(), "the gradient is the weight's size");
    let numbers = Numbers::of(step);
    let Rounding { seed, update, param } = rounding;
    let moments = [Moment::of(exp_avg, grad.len()), Moment::of(exp_avg_sq, grad.len())];
    let rounders = [1, 2].map(|stream| Rounder { cores, seed, update, param: param | stream << 29 });
    weight.update(cores, |range, weight| {
        for (nth, weight) in weight.chunks_mut(BLOCK).enumerate() {
            let (start, len) = (range.start + nth * BLOCK, weight.len());
            let mut values = [[0.0f32; BLOCK]; 2];
            // SAFETY: the pieces of a weight are disjoint, and these are their elements.
            let stored = moments.map(|moment| unsafe { moment.part(start, len) });
            let [m, v] = values.each_mut().map(|values| &mut values[..len]);
            widen(cores.simd, stored[0], m);
            widen(cores.simd, stored[1], v);
            adamw_range(cores.simd, numbers, weight, &grad[start..start + len], m, v);
            let [m_bits, v_bits] = stored;
            round(cores.simd, rounders[0], start, m, m_bits);
            round(cores.simd, rounders[1], start, v, v_bits);
        }
    });
}
