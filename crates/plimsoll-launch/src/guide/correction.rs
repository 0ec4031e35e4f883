//! Where a guide is wrong or contradicts itself, and what is true: 74 entries, shown beside what they touch.

use std::fmt;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::book::read;

/// How much harm a wrong claim does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Severity {
    /// Who follows it fails or is misled.
    A,
    /// A number or a reason is wrong.
    B,
    /// It can be read two ways.
    C,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// One claim of a guide, and the truth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Correction {
    /// `C-GUIDE-NUMBER`.
    pub id: String,
    /// How bad it is.
    pub severity: Severity,
    /// What the guide says.
    pub claim: String,
    /// What is true.
    pub truth: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    correction: Vec<Correction>,
}

static CORRECTIONS: LazyLock<List> =
    LazyLock::new(|| read("corrections.toml", include_str!("../../profiles/corrections.toml")));

/// All of them, by guide and number.
pub fn corrections() -> &'static [Correction] {
    &CORRECTIONS.correction
}

/// The one with this id.
pub fn correction(id: &str) -> Option<&'static Correction> {
    corrections().iter().find(|correction| correction.id == id)
}
