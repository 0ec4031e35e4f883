//! A weight as the optimizers write it: plain f32, or bf16 with stochastic rounding.
//!
//! Arithmetic is in f32 either way. A stored bf16 is widened into a block on the stack, updated there and rounded back: up
//! with the probability that makes the mean right, so that updates far below a weight's spacing are not lost. The random
//! bits are a pure function of (seed, update, parameter, element): of no thread, and the same after a resume.

use std::ops::Range;

use super::Cores;
use crate::philox::{ROUNDED, rounding};
use crate::pool::{self, Shared};
use crate::simd::{dot, leveled};

/// Elements of one task of an update.
const GRAIN: usize = 1 << 16;
/// Elements that are widened at a time. Tasks begin at multiples of it.
pub(super) const BLOCK: usize = 256;

/// One parameter's numbers.
#[derive(Debug)]
pub enum WeightMut<'a> {
    /// Four bytes each.
    F32(&'a mut [f32]),
    /// Upper halves of f32, rounded stochastically.
    Bf16 {
        /// The numbers.
        bits: &'a mut [u16],
        /// Key of the random bits: the run's seed.
        seed: u64,
        /// Which update.
        update: u64,
        /// Index of the parameter.
        param: u32,
    },
}

impl<'a> From<&'a mut [f32]> for WeightMut<'a> {
    fn from(values: &'a mut [f32]) -> Self {
        WeightMut::F32(values)
    }
}

impl<'a> From<&'a mut Vec<f32>> for WeightMut<'a> {
    fn from(values: &'a mut Vec<f32>) -> Self {
        WeightMut::F32(values)
    }
}

impl WeightMut<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            WeightMut::F32(values) => values.len(),
            WeightMut::Bf16 { bits, .. } => bits.len(),
        }
    }

    /// No elements at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What tasks share.
    pub(super) fn shared(&mut self, cores: Cores) -> SharedWeight {
        match self {
            WeightMut::F32(values) => SharedWeight::F32(Shared(values.as_mut_ptr())),
            WeightMut::Bf16 { bits, seed, update, param } => {
                let rounder = Rounder { cores, seed: *seed, update: *update, param: *param };
                SharedWeight::Bf16(bits.as_mut_ptr(), rounder)
            }
        }
    }

    /// Calls `f(elements, their values)` for pieces of the parameter on all threads; what it leaves is stored. `f` treats
    /// each element by itself, because the pieces of an f32 and of a bf16 weight differ.
    pub(super) fn update(&mut self, cores: Cores, f: impl Fn(Range<usize>, &mut [f32]) + Sync + Send) {
        let (count, shared) = (self.len(), self.shared(cores));
        pool::rows(count, GRAIN, |range| {
            // SAFETY: tasks own disjoint ranges.
            unsafe { shared.update(range, &f) };
        });
    }

    /// Sum of squares of some elements as they are stored.
    pub(super) fn sum_of_squares(&self, cores: Cores, range: Range<usize>) -> f64 {
        match self {
            WeightMut::F32(values) => sum_of_squares(cores.simd, &values[range]),
            WeightMut::Bf16 { bits, .. } => sum_of_squares_bf16(cores.simd, &bits[range]),
        }
    }
}

/// The random bits of one parameter's update.
#[derive(Clone, Copy)]
pub(super) struct Rounder {
    pub cores: Cores,
    pub seed: u64,
    pub update: u64,
    pub param: u32,
}

/// A weight that tasks share; each writes to elements that no other task touches.
#[derive(Clone, Copy)]
pub(super) enum SharedWeight {
    F32(Shared),
    Bf16(*mut u16, Rounder),
}

// SAFETY: the tasks that get a copy write to disjoint elements; each use says which.
unsafe impl Send for SharedWeight {}
// SAFETY: as above.
unsafe impl Sync for SharedWeight {}

impl SharedWeight {
    /// Calls `f(elements, their values)` for pieces of a range, in order; what it leaves is stored.
    ///
    /// # Safety
    /// The range lies inside the weight, and no other task touches it.
    pub(super) unsafe fn update(self, range: Range<usize>, f: &(impl Fn(Range<usize>, &mut [f32]) + ?Sized)) {
        match self {
            // SAFETY: by the caller's promise.
            SharedWeight::F32(data) => f(range.clone(), unsafe { data.slice(range.start, range.len()) }),
            SharedWeight::Bf16(data, rounder) => {
                let mut values = [0.0f32; BLOCK];
                for start in range.clone().step_by(BLOCK) {
                    let end = (start + BLOCK).min(range.end);
                    let values = &mut values[..end - start];
                    // SAFETY: by the caller's promise.
                    let bits = unsafe { std::slice::from_raw_parts_mut(data.add(start), end - start) };
                    widen(rounder.cores.simd, bits, values);
                    f(start..end, values);
                    round(rounder.cores.simd, rounder, start, values, bits);
                }
            }
        }
    }
}

/// A bf16 as an f32.
#[inline(always)]
fn wide(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

leveled! {
    pub(super) fn widen(bits: &[u16], values: &mut [f32]) {
        values.iter_mut().zip(bits).for_each(|(v, b)| *v = wide(*b));
    }
}

leveled! {
    /// Adds 16 random bits below the ones that are kept, and cuts: a value on the grid stays, one between two neighbours
    /// goes to each as often as it is near. What is not finite is cut.
    pub(super) fn round(rounder: Rounder, first: usize, values: &[f32], bits: &mut [u16]) {
        let mut at = 0;
        while at < values.len() {
            let (group, within) = ((first + at) / ROUNDED, (first + at) % ROUNDED);
            let count = (ROUNDED - within).min(values.len() - at);
            let random = rounding(rounder.seed, rounder.update, rounder.param, group as u64);
            for ((to, value), random) in bits[at..at + count].iter_mut().zip(&values[at..]).zip(&random[within..]) {
                let exact = value.to_bits();
                let finite = exact & 0x7F80_0000 != 0x7F80_0000;
                let up = exact.wrapping_add(if finite { u32::from(*random) } else { 0 });
                *to = (up >> 16) as u16 | u16::from(value.is_nan()) << 6;
            }
            at += count;
        }
    }
}

leveled! {
    fn sum_of_squares(values: &[f32]) -> f64 {
        // A loop, as in `gradient_norm`: closures of iterators lose the instruction set level.
        let mut sum = 0.0f64;
        for chunk in values.chunks(4096) {
            sum += f64::from(dot(chunk, chunk));
        }
        sum
    }
}

leveled! {
    fn sum_of_squares_bf16(bits: &[u16]) -> f64 {
        let mut sum = 0.0f64;
        let mut values = [0.0f32; BLOCK];
        for chunk in bits.chunks(BLOCK) {
            let values = &mut values[..chunk.len()];
            values.iter_mut().zip(chunk).for_each(|(v, b)| *v = wide(*b));
            sum += f64::from(dot(values, values));
        }
        sum
    }
}
