//! The loss of samples of a series, mixed and not, against the formula in f64; gradients by finite differences of it.

use plimsoll_engine::cpu::series_loss::{Answers, Labels, Mix, series_loss};
use plimsoll_plan::batch::IGNORE;
use plimsoll_plan::spec::SeriesLoss;

use crate::{assert_close, finite_differences, numbers, unwritten, wide};

const CLASSES: usize = 3;
const VALUES: usize = 2;
const SAMPLES: usize = 5;

/// What the three heads answer, one behind the other: logits, how sure, values.
fn parts(answers: &[f64]) -> [&[f64]; 3] {
    let (logits, rest) = answers.split_at(SAMPLES * CLASSES);
    let (sure, values) = rest.split_at(SAMPLES);
    [logits, sure, values]
}

fn answered<'a>(outputs: usize, out: &'a [f32], grad: &'a mut [f32]) -> Option<Answers<'a>> {
    Some(Answers { outputs, out, grad: Some(grad) })
}

/// The loss of one sample with the labels of another.
fn exact(terms: &SeriesLoss, answers: &[f64], sample: usize, class: u32, wanted: &[f32]) -> f64 {
    let [logits, sure, values] = parts(answers);
    let logits = &logits[sample * CLASSES..(sample + 1) * CLASSES];
    let sum: f64 = logits.iter().map(|l| l.exp()).sum();
    let p: Vec<f64> = logits.iter().map(|l| l.exp() / sum).collect();
    let mut loss = 0.0;
    if class != IGNORE {
        let class = class as usize;
        let smooth = f64::from(terms.label_smoothing);
        let weight = |class: usize| terms.class_weights.get(class).map_or(1.0, |w| f64::from(*w));
        let even = -(0..CLASSES).map(|class| weight(class) * p[class].ln()).sum::<f64>() / CLASSES as f64;
        let entropy = (1.0 - smooth) * weight(class) * -p[class].ln() + smooth * even;
        loss += f64::from(terms.classes) * (1.0 - p[class]).powf(f64::from(terms.focal_gamma)) * entropy;
        let right = p.iter().all(|other| *other <= p[class]);
        let apart = 1.0 / (1.0 + (-sure[sample]).exp()) - f64::from(u8::from(right));
        loss += f64::from(terms.confidence) * apart * apart;
    }
    for (nth, wanted) in wanted.iter().enumerate().filter(|(_, wanted)| !wanted.is_nan()) {
        let apart = (values[sample * VALUES + nth] - f64::from(*wanted)).abs();
        let huber = if apart < 1.0 { 0.5 * apart * apart } else { apart - 0.5 };
        loss += f64::from(terms.values) / VALUES as f64 * huber;
    }
    loss
}

#[test]
fn losses_and_gradients_are_those_of_the_formula_mixed_and_not() {
    let plain = SeriesLoss::default();
    let focal = SeriesLoss {
        label_smoothing: 0.1,
        focal_gamma: 1.5,
        class_weights: vec![0.5, 1.25, 2.0],
        ..SeriesLoss::default()
    };
    let answers: Vec<f32> = numbers(SAMPLES * (CLASSES + 1 + VALUES), 1).iter().map(|a| 2.0 * a).collect();
    let classes = [2, 0, IGNORE, 1, 2];
    let mut wanted: Vec<f32> = numbers(SAMPLES * VALUES, 2).iter().map(|v| 1.5 * v).collect();
    (wanted[3], wanted[6], wanted[7]) = (f32::NAN, f32::NAN, f32::NAN);
    let mixes = [None, Some(Mix { share: 0.3, shift: 1 }), Some(Mix { share: 0.85, shift: 3 })];
    for (terms, mix) in [&plain, &focal].into_iter().flat_map(|terms| mixes.map(|mix| (terms, mix))) {
        // Each sample has its own labels by its share, and those of its partner by the rest.
        let of_sample = |answers: &[f64], sample: usize| {
            let with = |other: usize| {
                exact(terms, answers, sample, classes[other], &wanted[other * VALUES..(other + 1) * VALUES])
            };
            match mix {
                None => with(sample),
                Some(Mix { share, shift }) => {
                    let share = f64::from(share);
                    share * with(sample) + (1.0 - share) * with((sample + shift) % SAMPLES)
                }
            }
        };
        let total = |answers: &[f64]| (0..SAMPLES).map(|sample| of_sample(answers, sample)).sum::<f64>();
        let all = wide(&answers);
        let slopes = finite_differences(&all, total);
        let (logits, rest) = answers.split_at(SAMPLES * CLASSES);
        let (sure, values) = rest.split_at(SAMPLES);
        let mut grads = [logits, sure, values].map(|part| unwritten(part.len()));
        let [of_logits, of_sure, of_values] = &mut grads;
        let mut losses = unwritten(SAMPLES);
        series_loss(
            terms,
            Labels { classes: &classes, values: &wanted, mix },
            answered(CLASSES, logits, of_logits),
            answered(1, sure, of_sure),
            answered(VALUES, values, of_values),
            &mut losses,
        );
        let losses_exact: Vec<f64> = (0..SAMPLES).map(|sample| of_sample(&all, sample)).collect();
        assert_close(&losses, &losses_exact, 1e-6, &format!("losses, {mix:?}"));
        assert_close(&grads.concat(), &slopes, 1e-6, &format!("gradients, {mix:?}"));
    }
}

#[test]
fn an_answer_that_is_sure_beyond_all_digits_has_a_loss_and_a_gradient_of_nothing() {
    for focal_gamma in [0.5, 1.0, 2.0] {
        let terms = SeriesLoss { focal_gamma, ..SeriesLoss::default() };
        let (logits, mut grad, mut losses) = ([40.0, 0.0, 0.0], unwritten(3), unwritten(1));
        let labels = Labels { classes: &[0], values: &[], mix: None };
        series_loss(&terms, labels, answered(3, &logits, &mut grad), None, None, &mut losses);
        assert_eq!((losses, grad), (vec![0.0], vec![0.0; 3]), "{focal_gamma}");
    }
}
