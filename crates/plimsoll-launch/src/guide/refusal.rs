//! What is refused before anything starts.

use thiserror::Error;

/// Why a command or a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// One flag, two values: the last would win without a word.
    #[error("duplicate flag `{flag}`: `{first}`, then `{second}`")]
    DuplicateFlag {
        /// The flag, with its dashes.
        flag: String,
        /// Its first value.
        first: String,
        /// Its second value.
        second: String,
    },
    /// A flag that the trainer does not have.
    #[error("unknown flag `{flag}`, refused before training starts{}", meant(.nearest))]
    UnknownFlag {
        /// The flag, with its dashes.
        flag: String,
        /// The one that was probably meant.
        nearest: Option<String>,
    },
    /// Accumulation where the trainer steps its optimizers by hand.
    #[error(
        "accumulation `{accumulation}` cannot start: Lightning stops with `Automatic gradient accumulation is not \
         supported for manual optimization`"
    )]
    ManualOptimization {
        /// What was asked for.
        accumulation: u64,
    },
}

fn meant(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|flag| format!("; perhaps `{flag}` was meant")).unwrap_or_default()
}

/// Whether Lightning will start: a module that optimises by hand (Piper's two optimizers) takes no accumulation.
pub fn manual_optimization(accumulation: u64, automatic_optimization: bool) -> Result<(), Refusal> {
    if !automatic_optimization && accumulation != 1 {
        return Err(Refusal::ManualOptimization { accumulation });
    }
    Ok(())
}
