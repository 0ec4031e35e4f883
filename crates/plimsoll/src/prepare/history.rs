//! What the evaluations of a run take while they add up: in memory, in every checkpoint, and as lines of the journal.

use plimsoll_machine::Bytes;
use plimsoll_watch::EvalResult;

/// Copies in memory: those of the run, of a checkpoint that is being written, and of the summary.
const COPIES: u64 = 3;
/// The text of one, its scores and matrix aside; in the summary it is held whole.
const TEXT: u64 = 512;
/// The text of a number, with its comma.
const NUMBER: u64 = 26;
/// The text of a cell of a matrix, with its share of brackets.
const CELL: u64 = 12;
/// A line of the journal, scores and matrix aside.
const LINE: u64 = 256;

/// How many evaluations there are, and how long what they say is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Evaluations of the whole run.
    pub evaluations: u64,
    /// Values that are foretold; each has two errors.
    pub values: u64,
    /// Cells of a matrix of classes that is told.
    pub cells: u64,
}

impl History {
    /// Of a run of so many steps with an evaluation every so many, and one at its end.
    pub fn of(steps: u64, eval_every: Option<u64>) -> History {
        let within = eval_every.map_or(0, |every| steps / every.max(1));
        History { evaluations: within + 1, values: 0, cells: 0 }
    }

    /// Memory of all of them. Matrices are kept of two, in each copy.
    pub fn ram(self) -> Bytes {
        let numbers = 2 * self.values;
        // A list of numbers is an allocation.
        let each = size_of::<EvalResult>() as u64 + 16 * numbers + if self.values > 0 { 64 } else { 0 };
        let text = TEXT + NUMBER * numbers;
        let matrix = (COPIES * 8 + CELL) * self.cells;
        Bytes(self.evaluations * (COPIES * each + text) + 2 * matrix)
    }

    /// What each checkpoint holds of them.
    pub fn saved(self) -> Bytes {
        Bytes(self.evaluations * (LINE + 2 * NUMBER * self.values) + 2 * CELL * self.cells)
    }

    /// Their lines in the journal, each with its matrix.
    pub fn lines(self) -> Bytes {
        Bytes(self.evaluations * (LINE + 2 * NUMBER * self.values + CELL * self.cells))
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_watch::{EvalScores, Event};

    use super::*;

    fn result(values: usize, classes: usize) -> EvalResult {
        let numbers = vec![Some(-1.234_567_890_123_456_7e-300); values];
        let scores = EvalScores {
            accuracy: Some(1.0 / 3.0),
            macro_f1: Some(1.0 / 3.0),
            confusion: vec![vec![1_000_000_000; classes]; classes],
            mae: numbers.clone(),
            rmse: numbers,
            not_numbers: 1 << 30,
        };
        let (step, loss) = (1 << 30, -1.234_567_890_123_456_7e-300);
        EvalResult { step, loss, scores: Some(scores), seconds: loss, ..EvalResult::default() }
    }

    #[test]
    fn what_is_written_of_an_evaluation_is_not_longer_than_what_is_planned() {
        for (values, classes) in [(0, 3), (1, 0), (2, 32), (40, 5)] {
            let history =
                |evaluations: u64| History { evaluations, values: values as u64, cells: (classes * classes) as u64 };
            let own = result(values, classes);
            let EvalResult { step, loss, bleu, exact, scores, seconds } = own.clone();
            let line = serde_json::to_string(&Event::Eval { step, loss, bleu, exact, scores, seconds }).unwrap();
            assert!(line.len() as u64 <= history(1).lines().0, "{} of {}", line.len(), history(1).lines());
            // Of many, two have their matrices.
            let mut bare = own.clone();
            bare.scores.as_mut().unwrap().confusion.clear();
            let all: Vec<EvalResult> = std::iter::repeat_n(bare, 20).chain(std::iter::repeat_n(own, 2)).collect();
            let saved = serde_json::to_string(&all).unwrap();
            assert!(saved.len() as u64 <= history(22).saved().0, "{} of {}", saved.len(), history(22).saved());
        }
    }

    #[test]
    fn a_run_without_evaluations_on_its_way_has_the_one_at_its_end() {
        assert_eq!(History::of(600, Some(200)).evaluations, 4);
        assert_eq!(History::of(600, None).evaluations, 1);
    }
}
