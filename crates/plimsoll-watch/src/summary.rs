//! `summary.json`: what a run came to, planned beside measured.
//!
//! The names are published; whatever else a caller notes goes into `more` and stays at the top level of the file.

use std::collections::BTreeMap;

use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{WatchError, number};

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Weight updates done.
    pub steps: u64,
    /// The last step's loss.
    #[serde(with = "number")]
    pub final_loss: f64,
    /// Real source and target tokens over the wall time of the training steps.
    #[serde(with = "number")]
    pub tokens_per_second: f64,
    /// The planned peak of RAM, all processes.
    pub planned_ram_bytes: Bytes,
    /// The measured one: the sum of `VmHWM` over the run's processes.
    pub peak_ram_bytes: Bytes,
    /// The planned peak of VRAM.
    #[serde(default)]
    pub planned_vram_bytes: Bytes,
    /// The measured one.
    #[serde(default)]
    pub peak_vram_bytes: Bytes,
    /// Wall time of the whole run, its interruptions left out.
    #[serde(with = "number", default)]
    pub wall_seconds: f64,
    /// The evaluations, in order.
    #[serde(default)]
    pub evals: Vec<EvalResult>,
    /// Heap allocations on engine threads after the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_allocations_after_first_step: Option<u64>,
    /// The loader's heap at its highest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loader_heap_peak_bytes: Option<Bytes>,
    /// The loader's line in the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loader_heap_planned_bytes: Option<Bytes>,
    /// Arithmetic rate over the training steps, in GFLOP/s.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub gflops: Option<f64>,
    /// Everything else, by name.
    #[serde(flatten)]
    pub more: BTreeMap<String, Value>,
}

/// One evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalResult {
    /// After which step.
    pub step: u64,
    /// Mean loss over the target tokens.
    #[serde(with = "number")]
    pub loss: f64,
    /// BLEU-4, 0 to 100, where answers were generated.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub bleu: Option<f64>,
    /// Share of answers that are exactly right, 0 to 1, where answers were generated.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<f64>,
    /// What else is known, of series.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores: Option<EvalScores>,
    /// Its wall time.
    #[serde(with = "number", default)]
    pub seconds: f64,
}

/// How well series are foretold; what there is none of is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvalScores {
    /// Share of classes that are right, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// The mean of the F1 of the classes that occur, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub macro_f1: Option<f64>,
    /// Truths (rows) against answers, where there are not too many classes for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub confusion: Vec<Vec<u64>>,
    /// Mean absolute error of each value, in the unit of the data.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mae: Vec<Option<f64>>,
    /// Root of the mean square of its errors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rmse: Vec<Option<f64>>,
    /// Answers that are no numbers.
    #[serde(skip_serializing_if = "is_zero")]
    pub not_numbers: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl std::fmt::Display for EvalScores {
    /// Without the confusion matrix, each figure behind a comma.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(accuracy) = self.accuracy {
            write!(f, ", accuracy {:.1} %", 100.0 * accuracy)?;
        }
        if let Some(f1) = self.macro_f1 {
            write!(f, ", macro F1 {f1:.3}")?;
        }
        if self.mae.iter().any(Option::is_some) {
            let each = |error: &Option<f64>| error.map_or("unknown".to_string(), |error| format!("{error:.4}"));
            write!(f, ", mean absolute error {}", self.mae.iter().map(each).collect::<Vec<_>>().join(", "))?;
        }
        match self.not_numbers {
            0 => Ok(()),
            some => write!(f, ", {some} answers are no numbers"),
        }
    }
}

impl Summary {
    /// The text of `summary.json`.
    pub fn to_json(&self) -> String {
        // A map with text keys and numbers that are numbers cannot fail to be JSON.
        let mut text = serde_json::to_string_pretty(self).expect("a summary is plain JSON");
        text.push('\n');
        text
    }

    /// Reads the text of a `summary.json`.
    pub fn from_json(text: &str) -> Result<Summary, WatchError> {
        serde_json::from_str(text).map_err(|error| WatchError::NotASummary {
            line: error.line(),
            column: error.column(),
            problem: error.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_read_back_with_what_it_did_not_know_and_with_a_loss_that_is_no_number() {
        let mut summary = Summary { steps: 3, final_loss: 0.1 + 0.2, gflops: Some(211.5), ..Summary::default() };
        summary.evals.push(EvalResult { step: 3, loss: f64::INFINITY, bleu: Some(31.0), ..EvalResult::default() });
        summary.more.insert("simd".to_string(), Value::from("avx512"));
        let text = summary.to_json();
        assert_eq!(Summary::from_json(&text).unwrap(), summary);
        let plain: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&plain["simd"], &plain["steps"]), (&Value::from("avx512"), &Value::from(3)));
        summary.final_loss = f64::NAN;
        assert!(Summary::from_json(&summary.to_json()).unwrap().final_loss.is_nan());
    }

    #[test]
    fn a_summary_without_its_promised_fields_is_refused_with_the_place() {
        let error = Summary::from_json("{\"steps\": 3}").unwrap_err().to_string();
        assert!(error.contains("line 1 column 12") && error.contains("final_loss"), "{error}");
    }
}
