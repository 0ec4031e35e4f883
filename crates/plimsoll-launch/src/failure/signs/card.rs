//! What is said when a card fails or is full.

use plimsoll_recover::cause::Confidence;

use super::super::cuda::{CardForm, CudaReport};
use super::super::kind::FailureKind;
use super::{Sign, Weight, Who};

/// Faults of the card, its memory or its link, as the driver's manual lists them; others (13, 31, 43, 45) are the
/// program's doing or follow from it.
const HARDWARE_XIDS: [i64; 11] = [48, 62, 64, 74, 79, 92, 94, 95, 119, 120, 140];

/// Reads a line about a card.
pub(super) fn read(text: &str) -> Option<Sign> {
    lost(text).or_else(|| {
        let report = CudaReport::parse(text)?;
        match report.form {
            CardForm::Allocator | CardForm::Driver => Sign::root(FailureKind::CardOom),
            CardForm::Corrupt => Sign::of(Weight::Echo, FailureKind::PeerLost, Who::default()),
            CardForm::Masked => {
                let sure = if text.contains("ALLOC_FAILED") { Confidence::Likely } else { Confidence::Unproven };
                let who = Who::default();
                Some(Sign { weight: Weight::Suspect, kind: FailureKind::CardMasked, sure, who })
            }
        }
    })
}

fn lost(text: &str) -> Option<Sign> {
    if let Some(sure) = xid(text) {
        let who = Who::default();
        return sure.then_some(Sign {
            weight: Weight::Root,
            kind: FailureKind::CardLost,
            sure: Confidence::Proven,
            who,
        });
    }
    let has = |mark: &str| text.contains(mark);
    let fault = has("uncorrectable ECC error")
        || has("uncorrectable NVLink error")
        || has("GPU has fallen off the bus")
        || has("GPU is lost")
        || has("hardware stack error")
        || (has("CUDA") && has("CUDA-capable device(s) is/are busy or unavailable"));
    if fault {
        return Sign::root(FailureKind::CardLost);
    }
    // A kernel may do this to itself; a card that fails looks the same.
    (has("unspecified launch failure") || has("hipErrorLaunchFailure"))
        .then(|| Sign::likely(FailureKind::CardLost))
        .flatten()
}

/// Whether a line of the driver tells of the hardware; `None` where it is no line of an Xid.
fn xid(text: &str) -> Option<bool> {
    let (_, rest) = text.split_once("NVRM: Xid (")?;
    let number = super::number_behind(rest, "):")?;
    Some(HARDWARE_XIDS.contains(&number))
}
