//! What a line or an end says about memory: guide 000's signatures, the figures in a CUDA OOM text, and the exit code.
//!
//! A signature is the guide's reading of a line (`Killed` is host OOM to it, which C-000-14 corrects); an exit code
//! follows the truth: SIGKILL without evidence is not called OOM.

use std::fmt;
use std::sync::LazyLock;

use plimsoll_machine::Bytes;
use regex::Regex;
use serde::Deserialize;

use super::book::PIPER;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Symptom {
    /// The host's memory ran out.
    HostOom,
    /// A card's memory ran out.
    CudaOom,
    /// Killed, and nothing says by whom.
    KilledUnknown,
    /// An end that speaks of no memory.
    Other,
}

impl fmt::Display for Symptom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Symptom::HostOom => "host_oom",
            Symptom::CudaOom => "cuda_oom",
            Symptom::KilledUnknown => "killed_unknown (SIGKILL without OOM evidence)",
            Symptom::Other => "other",
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

/// What is known of an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Exit code as a shell gives it: 128 + the signal's number.
    pub exit_code: i32,
    /// OOM kills that the cgroup counted during the run.
    pub oom_kills: u64,
    /// Whether the log has a CUDA OOM.
    pub cuda_text: bool,
}

/// What an end was, by evidence.
pub fn end(end: End) -> Symptom {
    const KILLED: [i32; 2] = [137, -9];
    if end.oom_kills > 0 {
        Symptom::HostOom
    } else if end.cuda_text {
        Symptom::CudaOom
    } else if KILLED.contains(&end.exit_code) {
        Symptom::KilledUnknown
    } else {
        Symptom::Other
    }
}

/// The figures in a CUDA OOM text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaOom {
    /// The card.
    pub gpu: Option<u32>,
    /// What was asked for.
    pub requested: Option<Bytes>,
    /// What the card has.
    pub total: Option<Bytes>,
    /// What was free.
    pub free: Option<Bytes>,
    /// What the process had.
    pub process: Option<Bytes>,
    /// What PyTorch had given out.
    pub allocated: Option<Bytes>,
    /// What PyTorch held without giving it out.
    pub reserved_unallocated: Option<Bytes>,
}

static REQUESTED: LazyLock<Regex> = LazyLock::new(|| pattern(r"Tried to allocate (AMOUNT)"));
static CARD: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"GPU (\d+) has a total capaci?ty of (AMOUNT) of which (AMOUNT) is free"));
static PROCESS: LazyLock<Regex> = LazyLock::new(|| pattern(r"this process has (AMOUNT) memory in use"));
static ALLOCATED: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"Of the allocated memory (AMOUNT) is allocated by PyTorch,.*?(AMOUNT) is reserved by PyTorch but unallocated",
    )
});

fn pattern(text: &str) -> Regex {
    Regex::new(&text.replace("AMOUNT", r"[\d.]+ [KMG]iB")).expect("a pattern of ours")
}

impl CudaOom {
    /// Reads a message; none where it is no CUDA OOM.
    pub fn parse(text: &str) -> Option<CudaOom> {
        if !text.contains("CUDA out of memory") {
            return None;
        }
        let amount = |pattern: &Regex, group| pattern.captures(text)?.get(group)?.as_str().parse::<Bytes>().ok();
        Some(CudaOom {
            gpu: CARD.captures(text).and_then(|found| found[1].parse().ok()),
            requested: amount(&REQUESTED, 1),
            total: amount(&CARD, 2),
            free: amount(&CARD, 3),
            process: amount(&PROCESS, 1),
            allocated: amount(&ALLOCATED, 1),
            reserved_unallocated: amount(&ALLOCATED, 2),
        })
    }

    /// What the figures say beyond "full".
    pub fn note(&self) -> Option<&'static str> {
        let (requested, free) = (self.requested?, self.free?);
        (free > requested).then_some("free > requested: not plain exhaustion")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_is_oom_by_evidence_alone() {
        assert_eq!(end(End { exit_code: 137, ..End::default() }), Symptom::KilledUnknown);
        assert_eq!(end(End { exit_code: 1, oom_kills: 1, cuda_text: false }), Symptom::HostOom);
        assert_eq!(end(End { exit_code: 1, oom_kills: 0, cuda_text: true }), Symptom::CudaOom);
        assert_eq!(end(End { exit_code: 1, ..End::default() }), Symptom::Other);
    }

    #[test]
    fn a_full_card_gets_no_note_and_other_lines_no_figures() {
        let text = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacty of 8.00 GiB of which \
                    512.00 MiB is free.";
        let oom = CudaOom::parse(text).unwrap();
        assert_eq!((oom.gpu, oom.free, oom.note()), (Some(1), Some(Bytes::mib(512)), None));
        assert_eq!(CudaOom::parse("Tried to allocate 2.00 GiB"), None);
        assert!(signature("epoch 3 done").is_none());
    }

    #[test]
    fn the_guides_weakest_signature_carries_its_correction() {
        assert_eq!(signature("Killed").unwrap().corrections, ["C-000-14"]);
    }
}
