//! The arguments of one launch, in the order of the kernel's parameters.

use std::ffi::c_void;

use plimsoll_plan::op::Place;

use super::card::Address;
use crate::philox::Dropper;

/// Arguments by value, each at eight bytes' alignment.
pub(crate) struct Call {
    words: [u64; 64],
    used: usize,
    starts: [usize; 24],
    count: usize,
}

impl Call {
    /// No arguments yet.
    pub fn new() -> Call {
        Call { words: [0; 64], used: 0, starts: [0; 24], count: 0 }
    }

    /// One more argument.
    pub fn with<T: Copy>(mut self, value: T) -> Call {
        let words = size_of::<T>().div_ceil(8);
        assert!(align_of::<T>() <= 8 && self.used + words <= self.words.len() && self.count < self.starts.len());
        // SAFETY: room for the value was just checked; the array is aligned to eight bytes.
        unsafe { self.words.as_mut_ptr().add(self.used).cast::<T>().write(value) };
        self.starts[self.count] = self.used;
        self.used += words;
        self.count += 1;
        self
    }

    /// A pointer.
    pub fn at(self, address: Address) -> Call {
        self.with(address)
    }

    /// A number of 32 bits.
    pub fn u32(self, value: usize) -> Call {
        self.with(u32::try_from(value).expect("sizes of a tensor's sides fit 32 bits"))
    }

    /// Where each argument lies, for the driver.
    pub fn pointers(&mut self) -> ([*mut c_void; 24], usize) {
        let mut pointers = [std::ptr::null_mut(); 24];
        for (pointer, start) in pointers.iter_mut().zip(&self.starts[..self.count]) {
            *pointer = (&raw mut self.words[*start]).cast();
        }
        (pointers, self.count)
    }
}

/// A place of dropout, as the kernels take it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Drop {
    pub sample: Address,
    pub position: Address,
    pub place: u32,
    pub threshold: u32,
    pub scale: f32,
    /// Rows of each sample, where all have as many; `sample` is then the place of the first one's index.
    pub steps: u32,
}

impl Drop {
    /// Drops at a place of the tape; nothing where there is none.
    pub fn of(place: Option<Place>, sample: Address, position: Address) -> Drop {
        let Some(place) = place else { return Drop { scale: 1.0, ..Drop::default() } };
        // Seed and update are in the step's own numbers.
        let Dropper { place, threshold, scale, .. } = Dropper::new(0, 0, place.key, place.rate);
        Drop { sample, position, place, threshold, scale, steps: 0 }
    }
}

impl Drop {
    /// Drops in rows of samples that have `steps` each; the index of the first one stands at `first`.
    pub fn of_steps(place: Option<Place>, first: Address, steps: usize) -> Drop {
        Drop { steps: steps as u32, ..Drop::of(place, first, 0) }
    }
}

/// What changes from step to step, in the card's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub seed: u64,
    pub update: u64,
    pub first_micro: u32,
    pub stopped: u32,
    pub loss_sum: f64,
    pub squares: f64,
    pub mean: f64,
    pub clip_norm: f64,
    pub norm: f64,
    pub grad_scale: f32,
    pub loss_scale: f32,
    pub numbers: [f32; 16],
    pub rates: [f64; 8],
    /// Times that gradients were found to be finite.
    pub judged: u32,
    pub unused: [u32; 13],
}

/// A parameter as the update kernels see it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ParamEntry {
    pub master: Address,
    pub weight: Address,
    pub grad: Address,
    pub state: [Address; 3],
    pub scratch: Address,
    pub elements: u64,
    pub rows: u32,
    pub cols: u32,
    pub key: u32,
    pub flags: u32,
}

/// Of a parameter: it has rows and columns.
pub(crate) const MATRIX: u32 = 1;
/// Of a parameter: `master` has its lower halves, `weight` its upper ones.
pub(crate) const SPLIT: u32 = 2;

const _: () = assert!(size_of::<Drop>() == 32 && size_of::<Step>() == 256 && size_of::<ParamEntry>() == 80);
const _: () = assert!(size_of::<Step>() == 4 * plimsoll_plan::device::STEP_WORDS);
const _: () = assert!(size_of::<ParamEntry>() == 4 * plimsoll_plan::device::PARAM_WORDS);

/// Any plain value as words of four bytes.
pub(crate) fn words_of<T: Copy>(values: &[T]) -> &[u32] {
    assert!(size_of::<T>().is_multiple_of(4) && align_of::<T>() >= 4);
    // SAFETY: plain values without padding (checked above for those we use), at the alignment of words or more.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values) / 4) }
}
