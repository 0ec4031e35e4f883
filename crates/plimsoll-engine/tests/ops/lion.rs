//! Lion: several updates against the same updates in f64.

use plimsoll_engine::cpu::lion::{LionStep, lion};

use crate::{assert_close, numbers, on_all_cores, wide};

#[test]
fn updates_agree_with_double_precision() {
    on_all_cores(|cores| {
        for (betas, weight_decay) in [([0.9, 0.99], 0.0), ([0.5, 0.25], 0.1)] {
            for n in [1, 37, 70_001] {
                let mut weight = numbers(n, 1);
                let mut m = vec![0.0f32; n];
                let (mut w64, mut m64) = (wide(&weight), vec![0.0f64; n]);
                for number in 1..=5 {
                    let grad = numbers(n, 10 + number);
                    let step = LionStep { lr: 0.01, betas, weight_decay, grad_scale: 0.5 };
                    lion(cores, &step, &mut weight, &grad, &mut m);
                    for i in 0..n {
                        let g = f64::from(grad[i]) * 0.5;
                        let blend = betas[0] * m64[i] + (1.0 - betas[0]) * g;
                        // The sign of a blend that is nothing but rounding may differ.
                        let sign = if blend.abs() < 1e-7 { f64::NAN } else { blend.signum() };
                        w64[i] = w64[i] * (1.0 - 0.01 * weight_decay) - 0.01 * sign;
                        m64[i] = betas[1] * m64[i] + (1.0 - betas[1]) * g;
                    }
                }
                assert!(w64.iter().filter(|w| w.is_nan()).count() <= n / 1000);
                let kept: Vec<usize> = (0..n).filter(|i| w64[*i].is_finite()).collect();
                let (got, exact): (Vec<f32>, Vec<f64>) = kept.iter().map(|i| (weight[*i], w64[*i])).unzip();
                assert_close(&got, &exact, 1e-6, "weight");
                assert_close(&m, &m64, 1e-6, "average");
            }
        }
    });
}

#[test]
fn a_weight_without_gradient_only_decays() {
    on_all_cores(|cores| {
        let (mut weight, mut m) = (vec![2.0f32; 20], vec![0.0; 20]);
        let step = LionStep { lr: 0.1, betas: [0.9, 0.99], weight_decay: 0.5, grad_scale: 1.0 };
        lion(cores, &step, &mut weight, &[0.0; 20], &mut m);
        assert_close(&weight, &[1.9; 20], 1e-7, "weight");
        assert_eq!(m, vec![0.0; 20]);
    });
}
