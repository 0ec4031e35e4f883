//! How well series are foretold: loss, accuracy, macro F1, the confusion matrix, mean absolute errors.
//!
//! Invariant: batch by batch, in memory that depends on classes and values alone, so that validation is part of the plan. What is not known
//! ([`IGNORE`], NaN) is not counted; an answer that is no number is counted as such, not as a guess. Figures are those of sklearn: F1 is averaged over the
//! classes that occur in truth or answers. It knows no engine.

use plimsoll_plan::batch::IGNORE;

use super::scale::Scale;
use crate::DataError;

/// Truths against answers.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Confusion {
    classes: usize,
    /// Row by row: the true class, then the answer.
    counts: Vec<u64>,
}

impl Confusion {
    /// Nothing yet.
    pub fn new(classes: usize) -> Confusion {
        Confusion { classes, counts: vec![0; classes * classes] }
    }

    /// How often `truth` was answered with `answer`.
    pub fn count(&self, truth: usize, answer: usize) -> u64 {
        self.counts[truth * self.classes + answer]
    }

    /// One more answer.
    pub fn add(&mut self, truth: usize, answer: usize) {
        self.counts[truth * self.classes + answer] += 1;
    }

    /// All answers.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The part of answers that are right; none where there are none.
    pub fn accuracy(&self) -> Option<f64> {
        let right: u64 = (0..self.classes).map(|class| self.count(class, class)).sum();
        (self.total() > 0).then(|| right as f64 / self.total() as f64)
    }

    /// F1 of a class; none where it is neither a truth nor an answer.
    pub fn f1(&self, class: usize) -> Option<f64> {
        let right = self.count(class, class);
        let truths: u64 = (0..self.classes).map(|answer| self.count(class, answer)).sum();
        let answers: u64 = (0..self.classes).map(|truth| self.count(truth, class)).sum();
        (truths + answers > 0).then(|| 2.0 * right as f64 / (truths + answers) as f64)
    }

    /// The mean of the F1 of all classes that occur.
    pub fn macro_f1(&self) -> Option<f64> {
        let each: Vec<f64> = (0..self.classes).filter_map(|class| self.f1(class)).collect();
        (!each.is_empty()).then(|| each.iter().sum::<f64>() / each.len() as f64)
    }
}

/// A sum that keeps what single additions round off (Neumaier 1974).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    sum: f64,
    lost: f64,
    count: u64,
}

impl Sum {
    fn add(&mut self, number: f64, count: u64) {
        let sum = self.sum + number;
        let (large, small) = if self.sum.abs() >= number.abs() { (self.sum, number) } else { (number, self.sum) };
        self.lost += (large - sum) + small;
        self.sum = sum;
        self.count += count;
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| (self.sum + self.lost) / self.count as f64)
    }
}

/// Scores as batches come.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    confusion: Option<Confusion>,
    errors: Vec<Sum>,
    squares: Vec<Sum>,
    scales: Vec<Scale>,
    loss: Sum,
    not_numbers: u64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Score {
    /// The mean loss of a sample.
    pub loss: Option<f64>,
    /// The part of classes that are right.
    pub accuracy: Option<f64>,
    /// The mean of the F1 of classes.
    pub macro_f1: Option<f64>,
    /// Truths against answers.
    pub confusion: Option<Confusion>,
    /// The mean absolute error of each value, in its own unit.
    pub mae: Vec<Option<f64>>,
    /// The root of the mean square of errors, likewise.
    pub rmse: Vec<Option<f64>>,
    /// Answers that are no numbers.
    pub not_numbers: u64,
}

impl Scores {
    /// For so many classes, and values that were normalised so.
    pub fn new(classes: Option<u32>, scales: &[Scale]) -> Scores {
        let sums = || vec![Sum::default(); scales.len()];
        let confusion = classes.map(|classes| Confusion::new(classes as usize));
        Scores {
            confusion,
            errors: sums(),
            squares: sums(),
            scales: scales.into(),
            loss: Sum::default(),
            not_numbers: 0,
        }
    }

    /// Heap of one, in bytes.
    pub fn heap_bytes(classes: Option<u32>, values: usize) -> u64 {
        let classes = u64::from(classes.unwrap_or(0));
        8 * classes * classes + (values * (2 * size_of::<Sum>() + size_of::<Scale>())) as u64
    }

    /// A batch's loss: the sum of it over `samples` samples.
    pub fn add_loss(&mut self, sum: f64, samples: u64) {
        self.loss.add(sum, samples);
    }

    /// Classes of a batch, and for each of them the answer's number for each class. The largest is the answer; of several, the first.
    pub fn add_classes(&mut self, truths: &[u32], answers: &[f32]) -> Result<(), DataError> {
        let Some(confusion) = &mut self.confusion else { return Ok(()) };
        let classes = confusion.classes;
        enough("answers", answers.len(), truths.len() * classes)?;
        for (truth, numbers) in truths.iter().zip(answers.chunks(classes)).filter(|(truth, _)| **truth != IGNORE) {
            if *truth as usize >= classes {
                let expected = format!("below the {classes} classes");
                return Err(DataError::BadSetting { setting: "class", found: u64::from(*truth), expected });
            }
            if numbers.iter().any(|number| number.is_nan()) {
                self.not_numbers += 1;
                continue;
            }
            let best = (1..classes).fold(0, |best, at| if numbers[at] > numbers[best] { at } else { best });
            confusion.add(*truth as usize, best);
        }
        Ok(())
    }

    /// Values of a batch, and what was answered, sample by sample, both as the loader hands them out.
    pub fn add_values(&mut self, truths: &[f32], answers: &[f32]) -> Result<(), DataError> {
        let values = self.scales.len();
        enough("answers", answers.len(), truths.len())?;
        if values == 0 {
            return Ok(());
        }
        for (at, (truth, answer)) in truths.iter().zip(answers).enumerate().filter(|(_, (truth, _))| !truth.is_nan()) {
            if !answer.is_finite() {
                self.not_numbers += 1;
                continue;
            }
            let which = at % values;
            let error = (f64::from(*truth) - f64::from(*answer)).abs() * self.scales[which].std;
            self.errors[which].add(error, 1);
            self.squares[which].add(error * error, 1);
        }
        Ok(())
    }

    /// What came of it so far.
    pub fn score(&self) -> Score {
        self.clone().into_score()
    }

    /// What came of it, in the memory that it has.
    pub fn into_score(self) -> Score {
        Score {
            loss: self.loss.mean(),
            accuracy: self.confusion.as_ref().and_then(Confusion::accuracy),
            macro_f1: self.confusion.as_ref().and_then(Confusion::macro_f1),
            confusion: self.confusion,
            mae: self.errors.iter().map(Sum::mean).collect(),
            rmse: self.squares.iter().map(|sum| sum.mean().map(f64::sqrt)).collect(),
            not_numbers: self.not_numbers,
        }
    }
}

fn enough(part: &'static str, found: usize, expected: usize) -> Result<(), DataError> {
    if found >= expected { Ok(()) } else { Err(DataError::SlotTooSmall { part, expected, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that make `answer` the answer.
    fn numbers(answers: &[usize], classes: usize) -> Vec<f32> {
        answers
            .iter()
            .flat_map(|answer| (0..classes).map(move |class| if class == *answer { 2.0 } else { -1.0 }))
            .collect()
    }

    #[test]
    fn figures_are_those_of_sklearn() {
        // The example of sklearn's `f1_score`: macro 0.26666..., and its `confusion_matrix` of the same.
        let mut scores = Scores::new(Some(3), &[]);
        let (truths, answers) = ([0, 1, 2, 0, 1, 2], [0, 2, 1, 0, 0, 1]);
        scores.add_classes(&truths[..4], &numbers(&answers[..4], 3)).unwrap();
        scores.add_classes(&truths[4..], &numbers(&answers[4..], 3)).unwrap();
        let score = scores.score();
        assert!((score.macro_f1.unwrap() - 0.8 / 3.0).abs() < 1e-15);
        assert_eq!(score.accuracy, Some(2.0 / 6.0));
        let confusion = score.confusion.unwrap();
        let row = |truth: usize| (0..3).map(|answer| confusion.count(truth, answer)).collect::<Vec<_>>();
        // Rows are truths.
        assert_eq!([row(0), row(1), row(2)], [vec![2, 0, 0], vec![1, 0, 1], vec![0, 2, 0]]);
    }

    #[test]
    fn a_class_that_never_occurs_is_no_part_of_the_mean() {
        let mut confusion = Confusion::new(4);
        [(0, 0), (0, 0), (0, 1), (1, 1), (3, 0)].iter().for_each(|(truth, answer)| confusion.add(*truth, *answer));
        // By hand: F1 of 0 is 2*2/(3+3), of 1 is 2*1/(1+2), of 3 is 0; 2 does not occur.
        assert_eq!(confusion.f1(2), None);
        assert!((confusion.macro_f1().unwrap() - (2.0 / 3.0 + 2.0 / 3.0 + 0.0) / 3.0).abs() < 1e-15);
        assert_eq!(confusion.accuracy(), Some(0.6));
        assert_eq!((Confusion::new(3).macro_f1(), Confusion::new(3).accuracy()), (None, None));
    }

    #[test]
    fn what_is_not_known_is_not_counted_and_what_is_no_number_is_named() {
        let mut scores = Scores::new(Some(2), &[Scale::NONE]);
        scores.add_classes(&[IGNORE, 1, 0], &[9.0, 0.0, f32::NAN, 0.0, 0.5, 0.5]).unwrap();
        assert_eq!((scores.score().not_numbers, scores.score().confusion.unwrap().total()), (1, 1));
        // Of two that are equal the first.
        assert_eq!(scores.score().accuracy, Some(1.0));
        scores.add_values(&[f32::NAN, 1.0, 2.0], &[0.0, f32::INFINITY, 1.0]).unwrap();
        assert_eq!((scores.score().not_numbers, &scores.score().mae[..]), (2, &[Some(1.0)][..]));
        assert!(scores.add_classes(&[2], &[0.0, 0.0]).is_err());
        assert!(scores.add_classes(&[0, 1], &[0.0, 0.0]).is_err());
    }

    #[test]
    fn errors_are_in_the_unit_of_the_data_and_sums_lose_nothing() {
        let mut scores = Scores::new(None, &[Scale { mean: 100.0, std: 4.0 }, Scale::NONE]);
        // numpy: mean(|[1, -2] - [0.5, 0]|) * 4 = 5, sqrt(mean([2, 8]^2)) = sqrt(34); the second value 0.5 and 3.
        scores.add_values(&[1.0, 10.0, -2.0, 20.0], &[0.5, 10.5, 0.0, 23.0]).unwrap();
        let score = scores.score();
        assert_eq!(score.mae, [Some(5.0), Some(1.75)]);
        assert_eq!(score.rmse[0], Some(34f64.sqrt()));
        scores.add_loss(1e16, 1);
        (0..1000).for_each(|_| scores.add_loss(1.0, 1));
        scores.add_loss(-1e16, 0);
        assert_eq!(scores.score().loss, Some(1000.0 / 1001.0));
        assert_eq!(Scores::new(None, &[]).score().loss, None);
    }
}
