//! AdamW: several updates against the same updates in f64.

use plimsoll_engine::cpu::adamw::{AdamWStep, adamw};

use crate::{assert_close, numbers, on_all_cores, wide};

#[test]
fn updates_agree_with_double_precision() {
    on_all_cores(|cores| {
        for (betas, eps, weight_decay) in
            [([0.9, 0.999], 1e-8, 0.0), ([0.8, 0.95], 1e-3, 0.1), ([0.0, 0.5], 1e-6, 0.01)]
        {
            for n in [1, 15, 70_001] {
                let mut weight = numbers(n, 1);
                let (mut m, mut v) = (vec![0.0; n], vec![0.0; n]);
                let (mut w64, mut m64, mut v64) = (wide(&weight), vec![0.0f64; n], vec![0.0f64; n]);
                for number in 1..=5 {
                    let grad = numbers(n, 10 + number);
                    let step = AdamWStep { lr: 0.01, betas, eps, weight_decay, step: number, grad_scale: 0.5 };
                    adamw(cores, &step, &mut weight, &grad, &mut m, &mut v);
                    let [b1, b2] = betas;
                    for i in 0..n {
                        let g = f64::from(grad[i]) * 0.5;
                        m64[i] = b1 * m64[i] + (1.0 - b1) * g;
                        v64[i] = b2 * v64[i] + (1.0 - b2) * g * g;
                        let first = m64[i] / (1.0 - b1.powi(number as i32));
                        let second = v64[i] / (1.0 - b2.powi(number as i32));
                        w64[i] -= 0.01 * weight_decay * w64[i];
                        w64[i] -= 0.01 * first / (second.sqrt() + eps);
                    }
                }
                assert_close(&weight, &w64, 1e-6, "weight");
                assert_close(&m, &m64, 1e-6, "first moment");
                assert_close(&v, &v64, 1e-6, "second moment");
            }
        }
    });
}

#[test]
fn a_weight_without_gradient_only_decays() {
    on_all_cores(|cores| {
        let mut weight = vec![2.0f32; 20];
        let (mut m, mut v) = (vec![0.0; 20], vec![0.0; 20]);
        let step = AdamWStep { lr: 0.1, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.5, step: 1, grad_scale: 1.0 };
        adamw(cores, &step, &mut weight, &[0.0; 20], &mut m, &mut v);
        assert_close(&weight, &[2.0 * 0.95; 20], 1e-7, "weight");
        assert_eq!((m, v), (vec![0.0; 20], vec![0.0; 20]));
    });
}
