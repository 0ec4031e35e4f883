//! The last step of each sample, with the mean of all steps added to it where that is asked for; and its gradient.

use super::Cores;
use crate::pool::{self, Shared};
use crate::simd::leveled;

/// `out` is one row a sample.
pub fn summary_forward(cores: Cores, (steps, width, mean): (usize, usize, bool), x: &[f32], out: &mut [f32]) {
    let samples = out.len() / width;
    assert!(x.len() >= samples * steps * width, "every row has its place");
    let out = Shared(out.as_mut_ptr());
    pool::tasks(samples, |sample| {
        // SAFETY: a task is a sample.
        let out = unsafe { out.slice(sample * width, width) };
        let x = &x[sample * steps * width..(sample + 1) * steps * width];
        if mean {
            mean_of(cores.simd, x, out);
        } else {
            out.fill(0.0);
        }
        out.iter_mut().zip(&x[(steps - 1) * width..]).for_each(|(o, x)| *o += x);
    });
}

leveled! {
    fn mean_of(x: &[f32], out: &mut [f32]) {
        out.fill(0.0);
        let share = out.len() as f32 / x.len() as f32;
        for row in x.chunks_exact(out.len()) {
            out.iter_mut().zip(row).for_each(|(o, x)| *o += x);
        }
        out.iter_mut().for_each(|o| *o *= share);
    }
}

/// `dx` is set.
pub fn summary_backward((steps, width, mean): (usize, usize, bool), dout: &[f32], dx: &mut [f32]) {
    let samples = dout.len() / width;
    assert!(dx.len() >= samples * steps * width, "every row has its place");
    let share = if mean { 1.0 / steps as f32 } else { 0.0 };
    let dx = Shared(dx.as_mut_ptr());
    pool::tasks(samples, |sample| {
        // SAFETY: a task is a sample.
        let dx = unsafe { dx.slice(sample * steps * width, steps * width) };
        let dout = &dout[sample * width..(sample + 1) * width];
        for row in dx.chunks_exact_mut(width) {
            row.iter_mut().zip(dout).for_each(|(d, g)| *d = share * g);
        }
        dx[(steps - 1) * width..].iter_mut().zip(dout).for_each(|(d, g)| *d += g);
    });
}
