//! Convolutions over the steps of each sample: `out[t] = sum over j of x[t + j - k / 2] weight[:, :, j] + bias`, zeros around.

use plimsoll_engine::cpu::Cores;
use plimsoll_engine::cpu::conv::{conv_forward, conv_input, conv_weight};
use plimsoll_plan::op::{ConvShape, SeriesOp, Write};
use plimsoll_plan::tape::Id;

use crate::{
    assert_close, finite_differences, inner_product, numbers, on_all_cores, planned, same_on_all_threads, unwritten,
    wide,
};

/// Samples; steps, channels in and out, kernel. One input channel as a flat window has; kernels longer than the sample;
/// steps beyond the tile of one task.
const SHAPES: [(usize, [usize; 4]); 6] = [
    (1, [1, 1, 1, 1]),
    (2, [3, 2, 5, 7]),
    (3, [11, 1, 6, 3]),
    (2, [9, 5, 3, 5]),
    (2, [10, 4, 70, 1]),
    (2, [530, 2, 3, 3]),
];

fn shape([steps, inputs, outputs, kernel]: [usize; 4]) -> ConvShape {
    ConvShape { steps, inputs, outputs, kernel }
}

fn exact(shape: ConvShape, samples: usize, x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let ConvShape { steps, inputs, outputs, kernel } = shape;
    let mut out = Vec::new();
    for sample in 0..samples {
        for t in 0..steps {
            for o in 0..outputs {
                let mut sum = bias[o];
                for j in 0..kernel {
                    let Some(from) = (t + j).checked_sub(kernel / 2).filter(|from| *from < steps) else { continue };
                    for i in 0..inputs {
                        sum += x[(sample * steps + from) * inputs + i] * weight[(o * inputs + i) * kernel + j];
                    }
                }
                out.push(sum);
            }
        }
    }
    out
}

/// What the plan gives the three ops to work in.
fn scratch(cores: Cores, shape: ConvShape) -> Vec<f32> {
    let id = Id(0);
    let ops = [
        SeriesOp::Conv { shape, x: id, weight: id, bias: id, out: id },
        SeriesOp::ConvInput { shape, dy: id, weight: id, dx: id, add: false },
        SeriesOp::ConvWeight { shape, dy: id, x: id, grad: id, write: Write::Set },
    ];
    planned(cores, 1, &ops)
}

#[test]
fn forward_is_the_formula() {
    on_all_cores(|cores| {
        for (samples, of) in SHAPES {
            let shape = shape(of);
            let (x, weight) = (numbers(samples * shape.steps * shape.inputs, 1), numbers(shape.weights(), 2));
            let (bias, mut out) = (numbers(shape.outputs, 3), unwritten(samples * shape.steps * shape.outputs));
            conv_forward(cores, shape, samples, &x, &weight, &bias, &mut out, &mut scratch(cores, shape));
            assert_close(&out, &exact(shape, samples, &wide(&x), &wide(&weight), &wide(&bias)), 2e-6, "out");
        }
    });
}

#[test]
fn backward_is_the_slope_of_the_formula() {
    for (samples, of) in &SHAPES[..5] {
        let (samples, shape) = (*samples, shape(*of));
        let (x, weight) = (numbers(samples * shape.steps * shape.inputs, 1), numbers(shape.weights(), 2));
        let (bias, dy) = (numbers(shape.outputs, 3), numbers(samples * shape.steps * shape.outputs, 4));
        let (x64, w64, b64, dy64) = (wide(&x), wide(&weight), wide(&bias), wide(&dy));
        let exact_dx = finite_differences(&x64, |x| inner_product(&dy64, &exact(shape, samples, x, &w64, &b64)));
        let exact_dw = finite_differences(&w64, |w| inner_product(&dy64, &exact(shape, samples, &x64, w, &b64)));
        let (x0, w0) = (numbers(x.len(), 5), numbers(weight.len(), 6));
        let plus = |exact: &[f64], before: &[f32]| -> Vec<f64> {
            exact.iter().zip(before).map(|(e, b)| e + f64::from(*b)).collect()
        };
        on_all_cores(|cores| {
            let (mut dx, mut dw) = (unwritten(x.len()), unwritten(weight.len()));
            conv_input(cores, shape, samples, &dy, &weight, &mut dx, false, &mut scratch(cores, shape));
            assert_close(&dx, &exact_dx, 1e-5, "dx");
            conv_weight(cores, shape, samples, &dy, &x, &mut dw, Write::Set, &mut scratch(cores, shape));
            assert_close(&dw, &exact_dw, 1e-5, "dw");
            let (mut dx, mut dw) = (x0.clone(), w0.clone());
            conv_input(cores, shape, samples, &dy, &weight, &mut dx, true, &mut scratch(cores, shape));
            assert_close(&dx, &plus(&exact_dx, &x0), 1e-5, "dx, added");
            conv_weight(cores, shape, samples, &dy, &x, &mut dw, Write::Add, &mut scratch(cores, shape));
            assert_close(&dw, &plus(&exact_dw, &w0), 1e-5, "dw, added");
        });
    }
}

#[test]
fn the_bits_do_not_depend_on_the_threads() {
    let (samples, shape) = (3, shape([601, 6, 70, 5]));
    let (x, weight) = (numbers(samples * shape.steps * shape.inputs, 1), numbers(shape.weights(), 2));
    let (bias, dy) = (numbers(shape.outputs, 3), numbers(samples * shape.steps * shape.outputs, 4));
    same_on_all_threads(|cores| {
        let (mut out, mut dx, mut dw) = (unwritten(dy.len()), unwritten(x.len()), unwritten(weight.len()));
        conv_forward(cores, shape, samples, &x, &weight, &bias, &mut out, &mut scratch(cores, shape));
        conv_input(cores, shape, samples, &dy, &weight, &mut dx, false, &mut scratch(cores, shape));
        conv_weight(cores, shape, samples, &dy, &x, &mut dw, Write::Set, &mut scratch(cores, shape));
        (out, dx, dw)
    });
}
