//! SGD: several updates against the same updates in f64.

use plimsoll_engine::cpu::sgd::{SgdStep, sgd};

use crate::{assert_close, numbers, on_all_cores, wide};

fn follows_torch(momentum: f64, dampening: f64, nesterov: bool, weight_decay: f64) {
    on_all_cores(|cores| {
        for n in [1, 37, 70_000] {
            let mut weight = numbers(n, 1);
            // The first update takes nothing from the buffer, whatever an earlier run left there.
            let mut buffer = if momentum == 0.0 { Vec::new() } else { vec![5.0; n] };
            let (mut exact, mut exact_buffer) = (wide(&weight), vec![0.0; n]);
            for number in 1..=4 {
                let grad = numbers(n, 10 + number);
                let step =
                    SgdStep { lr: 0.1, momentum, dampening, nesterov, weight_decay, step: number, grad_scale: 0.25 };
                sgd(cores, &step, &mut weight, &grad, &mut buffer);
                for (i, w) in exact.iter_mut().enumerate() {
                    let g = f64::from(grad[i]) * 0.25 + weight_decay * *w;
                    let b = &mut exact_buffer[i];
                    *b = if number == 1 { g } else { momentum * *b + (1.0 - dampening) * g };
                    *w -= 0.1
                        * if momentum == 0.0 {
                            g
                        } else if nesterov {
                            g + momentum * *b
                        } else {
                            *b
                        };
                }
            }
            assert_close(&weight, &exact, 1e-6, "weight");
            if momentum != 0.0 {
                assert_close(&buffer, &exact_buffer, 1e-6, "momentum buffer");
            }
        }
    });
}

#[test]
fn plain_updates_agree() {
    follows_torch(0.0, 0.0, false, 0.0);
    follows_torch(0.0, 0.0, false, 0.05);
}

#[test]
fn momentum_dampening_and_nesterov_agree() {
    follows_torch(0.9, 0.0, false, 0.0);
    follows_torch(0.9, 0.3, false, 0.02);
    follows_torch(0.9, 0.0, true, 0.02);
}
