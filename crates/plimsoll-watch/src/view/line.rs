//! A line of the journal as a record. Lines of steps, nearly all of a long journal, are read straight into their
//! fields: three times as fast as through the tagged enum, which has to keep what it has read until it knows the tag.

use plimsoll_machine::Bytes;
use serde::Deserialize;

use crate::{Event, Record, number};

#[derive(Deserialize)]
struct StepLine {
    unix_ms: u64,
    step: u64,
    #[serde(with = "number")]
    loss: f64,
    #[serde(with = "number")]
    lr: f64,
    #[serde(with = "number::option", default)]
    grad_norm: Option<f64>,
    tokens: u64,
    #[serde(with = "number")]
    seconds: f64,
    #[serde(with = "number", default)]
    data_seconds: f64,
    #[serde(with = "number")]
    tokens_per_second: f64,
    ram_bytes: Bytes,
}

/// The record of a whole line.
pub(super) fn record(line: &[u8]) -> Result<Record, serde_json::Error> {
    if is_step(line)
        && let Ok(it) = serde_json::from_slice::<StepLine>(line)
    {
        let StepLine { unix_ms, step, loss, lr, grad_norm, tokens, seconds, data_seconds, .. } = it;
        let (tokens_per_second, ram_bytes) = (it.tokens_per_second, it.ram_bytes);
        let event =
            Event::Step { step, loss, lr, grad_norm, tokens, seconds, data_seconds, tokens_per_second, ram_bytes };
        return Ok(Record { unix_ms, event });
    }
    serde_json::from_slice(line)
}

/// Whether a line begins as the journal begins its steps.
fn is_step(line: &[u8]) -> bool {
    let Some(rest) = line.strip_prefix(b"{\"unix_ms\":") else { return false };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    rest[digits..].starts_with(b",\"event\":\"step\",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_read_as_the_journal_wrote_it_also_without_what_is_optional_and_with_a_loss_that_is_no_number() {
        let written = |loss, grad_norm| Record {
            unix_ms: 1_700_000_000_123,
            event: Event::Step {
                step: 7,
                loss,
                lr: 1e-3,
                grad_norm,
                tokens: 512,
                seconds: 0.1 + 0.2,
                data_seconds: 0.01,
                tokens_per_second: 1706.6,
                ram_bytes: Bytes::mib(212),
            },
        };
        for record in [written(1.25, Some(0.5)), written(0.1, None), written(f64::INFINITY, Some(f64::INFINITY))] {
            let line = serde_json::to_vec(&record).unwrap();
            assert!(is_step(&line));
            assert_eq!(super::record(&line).unwrap(), record);
        }
        let old = br#"{"unix_ms":1,"event":"step","step":1,"loss":1,"lr":0,"tokens":1,"seconds":1,"tokens_per_second":1,"ram_bytes":1}"#;
        assert_eq!(super::record(old).unwrap(), serde_json::from_slice(old).unwrap());
        assert!(super::record(br#"{"unix_ms":1,"event":"step","step":1}"#).is_err());
    }
}
