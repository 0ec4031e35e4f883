//! Why the far side does not do what it is asked for.

use crate::FarPath;
use crate::wire::Fault;

/// A refusal, which becomes an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The fact.
    pub fact: String,
    /// The file whose disk is full, where that is why.
    pub full: Option<FarPath>,
    /// What is at fault.
    pub fault: Fault,
}

impl Refusal {
    /// Of something that cannot be asked for.
    pub fn of_asked(fact: impl Into<String>) -> Refusal {
        Refusal { fact: fact.into(), full: None, fault: Fault::Asked }
    }

    /// Of something that cannot be done there now.
    pub fn of_machine(fact: impl Into<String>) -> Refusal {
        Refusal { fact: fact.into(), full: None, fault: Fault::Machine }
    }
}

impl<E: std::error::Error> From<E> for Refusal {
    fn from(error: E) -> Refusal {
        Refusal::of_machine(error.to_string())
    }
}
