//! The loss of each sample of a series, and the gradients of the answers: of its class, of how sure the model is of it, and
//! of values.
//!
//! A part that is not known of a sample (no class, no value) adds nothing. A mixed sample has two labels, each with its
//! share. All of it is a few numbers a sample, so one thread computes it, in doubles.

use plimsoll_plan::batch::IGNORE;
use plimsoll_plan::spec::SeriesLoss;

/// How samples are mixed: each with the one that is `shift` behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Share of the sample itself.
    pub share: f32,
    /// Samples between it and its partner.
    pub shift: usize,
}

/// A head's outputs and their gradient.
#[derive(Debug)]
pub struct Answers<'a> {
    /// Numbers of a sample.
    pub outputs: usize,
    /// All outputs.
    pub out: &'a [f32],
    /// Their gradient, where one is asked for.
    pub grad: Option<&'a mut [f32]>,
}

impl Answers<'_> {
    fn of(&self, sample: usize) -> &[f32] {
        &self.out[sample * self.outputs..(sample + 1) * self.outputs]
    }

    fn add(&mut self, sample: usize, nth: usize, value: f64) {
        if let Some(grad) = &mut self.grad {
            grad[sample * self.outputs + nth] += value as f32;
        }
    }
}

/// What is known of the samples.
#[derive(Clone, Copy, Debug)]
pub struct Labels<'a> {
    /// Classes.
    pub classes: &'a [u32],
    /// Values.
    pub values: &'a [f32],
    /// How they are mixed.
    pub mix: Option<Mix>,
}

/// Losses of all samples, and the gradients of what was answered, as sums.
pub fn series_loss<'a>(
    terms: &SeriesLoss,
    labels: Labels,
    mut classes: Option<Answers<'a>>,
    mut confidence: Option<Answers<'a>>,
    mut values: Option<Answers<'a>>,
    losses: &mut [f32],
) {
    let samples = labels.classes.len();
    let of_values = values.as_ref().map_or(0, |v| v.outputs);
    for answers in [&mut classes, &mut confidence, &mut values].into_iter().flatten() {
        if let Some(grad) = &mut answers.grad {
            grad[..samples * answers.outputs].fill(0.0);
        }
    }
    for (sample, loss) in losses[..samples].iter_mut().enumerate() {
        let mut total = 0.0;
        let partner = labels.mix.map(|mix| ((sample + mix.shift) % samples, 1.0 - f64::from(mix.share)));
        let itself = (sample, labels.mix.map_or(1.0, |mix| f64::from(mix.share)));
        for (other, share) in [Some(itself), partner].into_iter().flatten() {
            let class = labels.classes[other];
            if let (Some(answers), true) = (&mut classes, class != IGNORE) {
                let right = likeliest(answers.of(sample)) == class as usize;
                total += share * class_loss(terms, answers, sample, class as usize, share);
                if let Some(answers) = &mut confidence {
                    total += share * confidence_loss(terms, answers, sample, right, share);
                }
            }
            if let Some(answers) = &mut values {
                let wanted = &labels.values[other * of_values..(other + 1) * of_values];
                total += share * value_loss(terms, answers, sample, wanted, share);
            }
        }
        *loss = total as f32;
    }
}

/// The first of the largest.
fn likeliest(logits: &[f32]) -> usize {
    let better = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
    (0..logits.len()).fold(0, better)
}

/// Cross entropy with smoothed labels, each weighted by its own class (as PyTorch's `cross_entropy` has both), times `(1 - p) ^ gamma`.
fn class_loss(terms: &SeriesLoss, answers: &mut Answers, sample: usize, class: usize, share: f64) -> f64 {
    let count = answers.outputs;
    let wide = |at: usize| f64::from(answers.of(sample)[at]);
    let most = (0..count).map(wide).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = (0..count).map(|at| (wide(at) - most).exp()).sum();
    let log = |at: usize| wide(at) - most - sum.ln();
    let (smooth, gamma) = (f64::from(terms.label_smoothing), f64::from(terms.focal_gamma));
    let weight = |at: usize| terms.class_weights.get(at).map_or(1.0, |w| f64::from(*w));
    let target = |at: usize| weight(at) * (smooth / count as f64 + if at == class { 1.0 - smooth } else { 0.0 });
    let (mut entropy, mut whole) = (0.0, 0.0);
    for at in 0..count {
        entropy -= target(at) * log(at);
        whole += target(at);
    }
    let (factor, p) = (f64::from(terms.classes), log(class).exp());
    let (focus, slope) = match gamma == 0.0 {
        true => (1.0, 0.0),
        // Of an answer that is sure to the last digit nothing is left, whatever the power says of its slope.
        false if p == 1.0 => (0.0, 0.0),
        false => ((1.0 - p).powf(gamma), -gamma * (1.0 - p).powf(gamma - 1.0)),
    };
    for at in 0..count {
        let share_of = (f64::from(answers.of(sample)[at]) - most).exp() / sum;
        let of_p = p * (if at == class { 1.0 } else { 0.0 } - share_of);
        answers.add(sample, at, factor * share * (focus * (whole * share_of - target(at)) + entropy * slope * of_p));
    }
    factor * focus * entropy
}

fn confidence_loss(terms: &SeriesLoss, answers: &mut Answers, sample: usize, right: bool, share: f64) -> f64 {
    let sure = 1.0 / (1.0 + (-f64::from(answers.of(sample)[0])).exp());
    let (apart, factor) = (sure - if right { 1.0 } else { 0.0 }, f64::from(terms.confidence));
    answers.add(sample, 0, share * factor * 2.0 * apart * sure * (1.0 - sure));
    factor * apart * apart
}

/// Squared near the value, straight from one on; a mean over the values.
fn value_loss(terms: &SeriesLoss, answers: &mut Answers, sample: usize, wanted: &[f32], share: f64) -> f64 {
    let factor = f64::from(terms.values) / wanted.len().max(1) as f64;
    let mut total = 0.0;
    for (at, wanted) in wanted.iter().enumerate().filter(|(_, wanted)| !wanted.is_nan()) {
        let apart = f64::from(answers.of(sample)[at]) - f64::from(*wanted);
        let near = apart.abs() < 1.0;
        total += if near { 0.5 * apart * apart } else { apart.abs() - 0.5 };
        answers.add(sample, at, share * factor * if near { apart } else { apart.signum() });
    }
    factor * total
}
