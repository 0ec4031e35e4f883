//! The memory limit of a job: what it is planned to take, and a margin.
//!
//! A run without a budget of its own leaves a twentieth of what it may use alone, and at least [`LEAST`]. So the limit is
//! made such that what is left of it is the plan: the same plan is found again inside, and no smaller one.

use plimsoll_machine::Bytes;
use serde::Serialize;

/// The least that is left alone.
pub const LEAST: Bytes = Bytes::mib(256);
/// What a reading of usable RAM may be off, and what the program's first pages take of a fresh limit.
const UNSEEN: Bytes = Bytes::mib(16);
const MIB: u64 = 1 << 20;

/// A limit on memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Limit {
    /// What the job takes at most, by its plan.
    pub planned: Bytes,
    /// What is on top.
    pub margin: Bytes,
    /// What the planned figure is.
    pub of: String,
}

impl Limit {
    /// The limit over a plan; `of` says in words whose plan.
    pub fn over(planned: Bytes, of: impl Into<String>) -> Limit {
        let share = Bytes(planned.0.div_ceil(19));
        let limit = planned.saturating_add(share.max(LEAST)).saturating_add(UNSEEN);
        let limit = Bytes(limit.0.checked_next_multiple_of(MIB).unwrap_or(limit.0));
        Limit { planned, margin: limit.saturating_sub(planned), of: of.into() }
    }

    /// The limit that a machine can hold: above what it has to give, it would never be met, and the machine would run out first.
    pub fn within(self, most: Bytes) -> Limit {
        let most = Bytes(most.0 / MIB * MIB);
        if self.bytes() <= most {
            return self;
        }
        let planned = most.saturating_sub(LEAST.max(Bytes(most.0 / 20)));
        let of = format!("what the machine has to give ({} would be {})", self.of, self.planned);
        Limit { planned, margin: most.saturating_sub(planned), of }
    }

    /// What a budget was made of: a run leaves a twentieth alone.
    pub fn whole(budget: Bytes) -> Bytes {
        budget.saturating_add(Bytes(budget.0 / 19))
    }

    /// Both together.
    pub fn bytes(&self) -> Bytes {
        self.planned.saturating_add(self.margin)
    }

    /// Both together; always whole.
    pub fn mib(&self) -> u64 {
        self.bytes().0.div_ceil(MIB)
    }

    /// Why it is what it is.
    pub fn says(&self) -> String {
        format!(
            "{}: {}, and {} on top: what a run leaves alone, page cache, rounding",
            self.of, self.planned, self.margin
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_a_run_would_take_of_the_limit_is_the_plan_at_least_and_the_limit_is_whole(planned in 0u64..1 << 46) {
            let limit = Limit::over(Bytes(planned), "plan");
            let all = limit.bytes();
            let left_alone = LEAST.max(Bytes(all.0 / 20));
            prop_assert!(all.saturating_sub(left_alone) >= Bytes(planned));
            prop_assert_eq!(all, Bytes::mib(limit.mib()));
            // And not much more than that.
            prop_assert!(all.0 <= planned + planned / 18 + LEAST.0 + UNSEEN.0 + MIB);
        }

        #[test]
        fn no_limit_is_above_what_the_machine_has_to_give(planned in 0u64..1 << 46, most in MIB..1 << 46) {
            let (limit, over) = (Limit::over(Bytes(planned), "plan").within(Bytes(most)), Limit::over(Bytes(planned), "plan"));
            prop_assert!(limit.bytes() <= Bytes(most) && limit.planned <= over.planned);
            prop_assert_eq!(limit.bytes(), Bytes::mib(limit.mib()));
            prop_assert_eq!(limit == over, over.bytes() <= Bytes(most));
            let budget = Bytes(most - most / 20);
            prop_assert!(Limit::whole(budget).0.abs_diff(most) <= 1);
        }
    }
}
