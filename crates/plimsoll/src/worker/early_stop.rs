//! Which evaluation is the best, and whether those since then end the run.
//!
//! Invariant: pure functions of the evaluations so far, which are saved with every checkpoint; so a run that was interrupted
//! ends at the step at which it would have ended. There is no counter to lose.

use std::fmt;

use plimsoll_watch::EvalResult;

use super::run::Run;
use crate::job::early_stop::{EarlyStop, Measure};
use crate::settings::Settings;

/// What was looked at, turned so that lower is better; none where it was not found, or is no number.
fn badness(eval: &EvalResult, on: Measure) -> Option<f64> {
    let of_classes = |pick: fn(&plimsoll_watch::EvalScores) -> Option<f64>| eval.scores.as_ref().and_then(pick);
    let found = match on {
        Measure::Loss => Some(eval.loss),
        Measure::Accuracy => of_classes(|scores| scores.accuracy).map(|share| -share),
        Measure::MacroF1 => of_classes(|scores| scores.macro_f1).map(|share| -share),
    };
    found.filter(|x| x.is_finite())
}

/// What the best checkpoint is the best by.
pub(super) fn measure(settings: &Settings) -> Measure {
    settings.early_stop.map_or(Measure::Loss, |rule| rule.on)
}

/// The best evaluation; of several the first.
pub(super) fn best(evals: &[EvalResult], on: Measure) -> Option<&EvalResult> {
    let known = evals.iter().filter_map(|eval| badness(eval, on).map(|bad| (bad, eval)));
    known.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, eval)| eval)
}

/// Keeps the matrices of the last evaluation and of the best alone: all of them are in the journal, and a run has no longest number of them.
pub(super) fn forget_matrices(evals: &mut [EvalResult], on: Measure) {
    let best = best(evals, on).map(|eval| eval.step);
    let Some((_, before)) = evals.split_last_mut() else { return };
    for scores in before.iter_mut().filter(|eval| Some(eval.step) != best).filter_map(|eval| eval.scores.as_mut()) {
        scores.confusion = Vec::new();
    }
}

/// Evaluations that brought nothing, enough to end the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Plateau {
    pub rule: EarlyStop,
    /// How many there were.
    pub evaluations: u64,
    /// The step of the best evaluation of all, and what it found; none where none found anything.
    pub best: Option<(u64, f64)>,
}

impl fmt::Display for Plateau {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plateau { rule: EarlyStop { min_delta, on, .. }, evaluations, best } = self;
        let many = if *evaluations == 1 { "evaluation" } else { "evaluations in a row" };
        let by = if *min_delta > 0.0 { format!(" by more than {min_delta}") } else { String::new() };
        write!(f, "{evaluations} {many} without an improvement of the {on}{by}")?;
        match best {
            Some((step, found)) => write!(f, "; the best was {found:.4}, after step {step}"),
            None => Ok(()),
        }
    }
}

/// Whether these evaluations end a run: as many as the rule has patience for since the last that was better than all before it by
/// more than the rule's least difference.
pub(super) fn plateau(evals: &[EvalResult], rule: EarlyStop) -> Option<Plateau> {
    let (mut least, mut since) = (f64::INFINITY, 0);
    for eval in evals {
        match badness(eval, rule.on) {
            Some(bad) if bad < least - rule.min_delta => (least, since) = (bad, 0),
            _ => since += 1,
        }
    }
    let found = |eval: &EvalResult| badness(eval, rule.on).map(|bad| (eval.step, bad.abs()));
    let best = best(evals, rule.on).and_then(found);
    (since >= rule.patience).then_some(Plateau { rule, evaluations: since, best })
}

impl Run<'_> {
    /// Why the run ends here, before its last step; asked where the present step was evaluated.
    pub(super) fn ends_early(&self) -> Option<Plateau> {
        let evaluated = self.evals.last().is_some_and(|eval| eval.step == self.step);
        let rule = self.settings.early_stop.filter(|_| evaluated && self.step < self.prepared.steps)?;
        plateau(&self.evals, rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_watch::EvalScores;

    fn losses(list: &[f64]) -> Vec<EvalResult> {
        let eval =
            |(nth, loss): (usize, &f64)| EvalResult { step: 10 * (nth as u64 + 1), loss: *loss, ..Default::default() };
        list.iter().enumerate().map(eval).collect()
    }

    fn rule(patience: u64, min_delta: f64) -> EarlyStop {
        EarlyStop { patience, min_delta, on: Measure::Loss }
    }

    /// At which evaluation, from 1, a run ends.
    fn ends_at(list: &[f64], rule: EarlyStop) -> Option<usize> {
        let evals = losses(list);
        (1..=list.len()).find(|n| plateau(&evals[..*n], rule).is_some())
    }

    #[test]
    fn a_run_ends_after_so_many_evaluations_without_an_improvement() {
        assert_eq!(ends_at(&[3.0, 2.0, 2.5, 1.9, 2.1, 2.0, 1.8], rule(3, 0.0)), None);
        assert_eq!(ends_at(&[3.0, 2.0, 2.5, 2.1, 2.0, 1.0], rule(3, 0.0)), Some(5));
        assert_eq!(ends_at(&[3.0, 3.0], rule(1, 0.0)), Some(2));
        assert_eq!(ends_at(&[], rule(1, 0.0)), None);
    }

    #[test]
    fn what_is_better_by_too_little_is_no_improvement_however_often() {
        let slow = [3.0, 2.95, 2.9, 2.85, 2.8];
        assert_eq!(ends_at(&slow, rule(2, 0.06)), None, "two of them together are one");
        assert_eq!(ends_at(&slow, rule(3, 0.2)), Some(4));
        // The checkpoint that is named is the best of all the same.
        let found = plateau(&losses(&slow[..4]), rule(3, 0.2)).unwrap();
        assert_eq!((found.best, found.evaluations), (Some((40, 2.85)), 3));
        let told = "3 evaluations in a row without an improvement of the loss by more than 0.2; the best was 2.8500, after step 40";
        assert_eq!(found.to_string(), told);
    }

    #[test]
    fn a_loss_that_is_no_number_is_no_improvement_and_never_the_best() {
        let odd = [f64::NAN, 2.0, f64::INFINITY, f64::NAN];
        assert_eq!(ends_at(&odd, rule(2, 0.0)), Some(4));
        assert_eq!(best(&losses(&odd), Measure::Loss).unwrap().step, 20);
        assert_eq!(best(&losses(&[f64::NAN]), Measure::Loss), None);
        let never = plateau(&losses(&[f64::NAN, f64::NAN]), rule(2, 0.0)).unwrap();
        assert_eq!(never.to_string(), "2 evaluations in a row without an improvement of the loss");
    }

    #[test]
    fn matrices_are_kept_of_the_last_and_the_best() {
        let shares = [0.5, 0.7, 0.6, 0.65];
        let mut evals = Vec::new();
        for (nth, share) in shares.iter().enumerate() {
            let confusion = vec![vec![nth as u64; 2]; 2];
            let scores = EvalScores { accuracy: Some(*share), confusion, ..EvalScores::default() };
            evals.push(EvalResult { step: nth as u64, scores: Some(scores), ..Default::default() });
            forget_matrices(&mut evals, Measure::Accuracy);
        }
        let kept = |eval: &EvalResult| !eval.scores.as_ref().unwrap().confusion.is_empty();
        assert_eq!(evals.iter().map(kept).collect::<Vec<_>>(), [false, true, false, true]);
        assert_eq!(evals.iter().filter_map(|eval| eval.scores.as_ref()?.accuracy).collect::<Vec<_>>(), shares);
    }

    #[test]
    fn scores_of_classes_are_better_where_they_are_higher() {
        let shares = [0.5, 0.7, 0.6, 0.65];
        let eval = |(nth, share): (usize, &f64)| {
            let scores = EvalScores { accuracy: Some(*share), macro_f1: Some(1.0 - share), ..EvalScores::default() };
            EvalResult { step: nth as u64, loss: 1.0, scores: Some(scores), ..Default::default() }
        };
        let evals: Vec<EvalResult> = shares.iter().enumerate().map(eval).collect();
        assert_eq!(best(&evals, Measure::Accuracy).unwrap().step, 1);
        assert_eq!(best(&evals, Measure::MacroF1).unwrap().step, 0);
        let on = |on| plateau(&evals, EarlyStop { patience: 2, min_delta: 0.0, on });
        assert_eq!(on(Measure::Accuracy).unwrap().best, Some((1, 0.7)));
        assert_eq!(on(Measure::MacroF1).unwrap().evaluations, 3);
        assert_eq!(on(Measure::Loss).unwrap().best, Some((0, 1.0)));
    }
}
