//! Sums over rows of strided columns.

use plimsoll_engine::cpu::Shared;
use plimsoll_engine::cpu::attention::Columns;
use plimsoll_engine::cpu::column_sum::column_sum;
use plimsoll_plan::op::{REDUCE_CHUNKS, Write};

use crate::{assert_close, numbers, on_all_cores, same_on_all_threads, unwritten, wide};

fn sums(x: &mut [f32], width: usize, start: usize, stride: usize, grad: &mut [f32], write: Write, cores: crate::Cores) {
    let columns = Columns { data: Shared(x.as_mut_ptr()), start, stride };
    column_sum(cores, x.len() / stride, columns, &mut grad[..width], write, &mut unwritten(REDUCE_CHUNKS * width));
}

#[test]
fn columns_are_summed_over_the_rows() {
    on_all_cores(|cores| {
        for (count, width, start, behind) in
            [(0, 3, 0, 0), (1, 1, 0, 0), (5, 17, 3, 2), (300, 40, 0, 9), (33, 64, 1, 0)]
        {
            let stride = start + width + behind;
            let mut x = numbers(count * stride, 1);
            let x64 = wide(&x);
            let exact = |c: usize| (0..count).map(|row| x64[row * stride + start + c]).sum::<f64>();
            for write in [Write::Set, Write::Add] {
                let before = if write == Write::Add { numbers(width, 2) } else { unwritten(width) };
                let mut grad = before.clone();
                sums(&mut x, width, start, stride, &mut grad, write, cores);
                let old = |c: usize| if write == Write::Add { f64::from(before[c]) } else { 0.0 };
                assert_close(&grad, &(0..width).map(|c| old(c) + exact(c)).collect::<Vec<f64>>(), 5e-6, "sums");
            }
        }
    });
}

#[test]
fn the_bits_do_not_depend_on_the_threads() {
    let x = numbers(1000 * 50, 1);
    same_on_all_threads(|cores| {
        let mut grad = unwritten(50);
        sums(&mut x.clone(), 50, 0, 50, &mut grad, Write::Set, cores);
        grad
    });
}
