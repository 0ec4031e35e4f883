//! The windows of a batch, as they are or mixed: each with the one that is `shift` behind it.

use super::series_loss::Mix;
use crate::pool::{self, Shared};

/// `out = share * x + (1 - share) * its partner`, sample by sample; without a mix a copy.
pub fn input_forward(width: usize, x: &[f32], mix: Option<Mix>, out: &mut [f32]) {
    assert!(x.len() == out.len() && x.len().is_multiple_of(width.max(1)), "every row has its place");
    let Some(Mix { share, shift }) = mix else { return out.copy_from_slice(x) };
    let samples = x.len() / width.max(1);
    let of = |sample: usize| &x[sample * width..(sample + 1) * width];
    let out = Shared(out.as_mut_ptr());
    pool::tasks(samples, |sample| {
        // SAFETY: a task is a sample.
        let out = unsafe { out.slice(sample * width, width) };
        let pairs = of(sample).iter().zip(of((sample + shift) % samples));
        out.iter_mut().zip(pairs).for_each(|(out, (one, other))| *out = share * one + (1.0 - share) * other);
    });
}
