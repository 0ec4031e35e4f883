//! Guide 000's signatures: what the guide takes a log line for.
//!
//! The guide's reading and no verdict (`Killed` is host OOM to it, which C-000-14 corrects). What a death was is decided
//! by [`crate::failure::failure`], from evidence; a card's figures are read by [`crate::failure::CudaReport`].

use std::fmt;

use serde::Deserialize;

use super::book::PIPER;

/// What the guide takes a line for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Symptom {
    /// The host's memory ran out.
    HostOom,
    /// A card's memory ran out.
    CudaOom,
}

impl fmt::Display for Symptom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Symptom::HostOom => "host_oom",
            Symptom::CudaOom => "cuda_oom",
        })
    }
}

/// A text by which a guide knows a death.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    text: String,
    also: Option<String>,
    /// What it takes it for.
    pub means: Symptom,
    /// What is wrong with that.
    #[serde(default)]
    pub corrections: Vec<String>,
}

/// The guide's reading of a log line.
pub fn signature(line: &str) -> Option<&'static Signature> {
    PIPER
        .signature
        .iter()
        .find(|known| line.contains(&known.text) && known.also.as_ref().is_none_or(|also| line.contains(also.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guides_weakest_signature_carries_its_correction() {
        assert_eq!(signature("Killed").unwrap().corrections, ["C-000-14"]);
        assert!(signature("epoch 3 done").is_none());
    }
}
