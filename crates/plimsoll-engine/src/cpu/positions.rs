//! Learned positions, added to the steps of each sample; and their gradient.

use plimsoll_plan::op::Write;

use crate::pool::{self, Shared};

/// `out = x + table` of each step.
pub fn positions_forward(samples: usize, (steps, width): (usize, usize), x: &[f32], table: &[f32], out: &mut [f32]) {
    assert!(x.len() >= samples * steps * width && out.len() >= samples * steps * width && table.len() >= steps * width);
    let out = Shared(out.as_mut_ptr());
    pool::tasks(samples, |sample| {
        let part = sample * steps * width..(sample + 1) * steps * width;
        // SAFETY: a task is a sample.
        let out = unsafe { out.slice(part.start, part.len()) };
        out.iter_mut().zip(x[part].iter().zip(table)).for_each(|(o, (x, p))| *o = x + p);
    });
}

/// `grad (+)=` the sum over samples; positions behind the last step get nothing.
pub fn positions_backward(samples: usize, (steps, width): (usize, usize), dy: &[f32], grad: &mut [f32], write: Write) {
    assert!(dy.len() >= samples * steps * width, "every row has its place");
    if write != Write::Add {
        grad[steps * width..].fill(0.0);
    }
    let grad = Shared(grad.as_mut_ptr());
    pool::tasks(steps, |step| {
        // SAFETY: a task is a step.
        let grad = unsafe { grad.slice(step * width, width) };
        if write != Write::Add {
            grad.fill(0.0);
        }
        for sample in 0..samples {
            let row = &dy[(sample * steps + step) * width..][..width];
            grad.iter_mut().zip(row).for_each(|(g, d)| *g += d);
        }
    });
}
