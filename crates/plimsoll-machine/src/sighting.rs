//! `Sighting`: something that a machine may rightly lack, with the reason where it does.
//!
//! In JSON it is the thing itself, or `{"unseen": "reason"}`. An absent GPU library is a fact worth printing, not an
//! error to stop at.

use serde::Serialize;

/// Something that was seen, or why it was not.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Sighting<T> {
    /// It is there.
    Seen(T),
    /// It is not there, or cannot be seen from here.
    Unseen {
        /// Why.
        #[serde(rename = "unseen")]
        reason: String,
    },
}

impl<T> Sighting<T> {
    /// Not there, for this reason.
    pub fn unseen(reason: impl Into<String>) -> Sighting<T> {
        Sighting::Unseen { reason: reason.into() }
    }

    /// The thing, where it was seen.
    pub fn seen(&self) -> Option<&T> {
        match self {
            Sighting::Seen(thing) => Some(thing),
            Sighting::Unseen { .. } => None,
        }
    }
}
