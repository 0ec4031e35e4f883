//! What was asked for, beside what really runs. Pure.
//!
//! Four silent wrong successes are on record, all with exit 0: `accelerate --cpu` that starts one process of two,
//! DeepSpeed that is configured and not used, a resume without the optimizer's state, a resume that begins at step 0.
//! The last two are kept from happening by choosing only whole checkpoints; all four are looked for.

use serde::{Deserialize, Serialize};

use crate::telling::Told;

/// A comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was compared: `world`, `deepspeed`, `restored`.
    pub what: &'static str,
    /// What was asked for.
    pub asked: String,
    /// What was seen.
    pub seen: String,
    /// Whether that is the same.
    pub fine: bool,
}

/// Ranks, asked and seen.
pub fn world(asked: u64, seen: u64) -> Finding {
    let ranks = |number: u64| format!("{number} rank{}", if number == 1 { "" } else { "s" });
    Finding { what: "world", asked: ranks(asked), seen: ranks(seen), fine: asked == seen }
}

/// A checkpoint, as far as DeepSpeed is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// None was written.
    Nothing,
    /// One with DeepSpeed's parts.
    Sharded,
    /// One without.
    Plain,
}

/// Whether DeepSpeed, which was asked for, is at work; `None` where nothing tells yet. A log without a word of it proves
/// nothing by itself: it speaks only when it warns.
pub fn deepspeed(told: &Told, saved: Saved) -> Option<Finding> {
    let finding = |seen: &str, fine| {
        Some(Finding { what: "deepspeed", asked: "DeepSpeed".to_string(), seen: seen.to_string(), fine })
    };
    match (saved, told.deepspeed) {
        (Saved::Plain, _) => finding("a checkpoint without its parts, so it is not used", false),
        (Saved::Sharded, _) => finding("a checkpoint with its parts", true),
        (Saved::Nothing, true) => finding("its words in the log", true),
        (Saved::Nothing, false) => None,
    }
}

/// Whether a resume took place, as far as the log tells so far; `None` where it does not tell yet. `counts_on` says that
/// the trainer's steps go on where the checkpoint ended.
pub fn restored(told: &Told, step: Option<u64>, counts_on: bool) -> Option<Finding> {
    let asked = step.map_or("a checkpoint".to_string(), |step| format!("the checkpoint of step {step}"));
    let finding = |seen: String, fine| Some(Finding { what: "restored", asked: asked.clone(), seen, fine });
    if let Some(line) = &told.not_restored {
        return finding(format!("`{line}`"), false);
    }
    if told.restored {
        return finding("it says that it took it up".to_string(), true);
    }
    match (told.first_step, step) {
        (Some(first), Some(step)) if counts_on => {
            finding(format!("the first step told is {first}"), first.saturating_add(1) >= step)
        }
        // Nothing that it tells could contradict.
        (Some(_), _) => finding("it says nothing of it".to_string(), true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_of_two_is_found() {
        assert!(!world(2, 1).fine && world(2, 2).fine);
        assert_eq!((world(2, 1).asked.as_str(), world(2, 1).seen.as_str()), ("2 ranks", "1 rank"));
    }

    #[test]
    fn a_plain_checkpoint_shows_that_deepspeed_is_not_used_and_silence_shows_nothing() {
        let spoke = Told { deepspeed: true, ..Told::default() };
        assert!(deepspeed(&spoke, Saved::Nothing).unwrap().fine);
        assert!(!deepspeed(&spoke, Saved::Plain).unwrap().fine);
        assert!(deepspeed(&Told::default(), Saved::Sharded).unwrap().fine);
        assert_eq!(deepspeed(&Told::default(), Saved::Nothing), None);
    }

    #[test]
    fn a_resume_that_begins_anew_is_found_at_its_first_step() {
        let began = |first| Told { first_step: Some(first), ..Told::default() };
        assert_eq!(restored(&Told::default(), Some(6), true), None);
        assert!(!restored(&began(0), Some(6), true).unwrap().fine);
        assert!(restored(&began(6), Some(6), true).unwrap().fine);
        assert!(restored(&began(7), Some(6), true).unwrap().fine);
        assert!(restored(&began(0), Some(6), false).unwrap().fine);
        assert!(restored(&began(u64::MAX), Some(6), true).unwrap().fine);
        let refused = Told { not_restored: Some("Unable to find latest".into()), restored: true, ..began(9) };
        assert!(!restored(&refused, Some(6), true).unwrap().fine);
    }
}
