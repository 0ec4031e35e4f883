//! Whether swap would have helped a death for want of memory. Pure; the answer itself is `plimsoll_launch`'s.

use plimsoll_launch::failure::{FailureKind, Killer};
use plimsoll_launch::swap::{SwapFacts, SwapVerdict, swap};
use plimsoll_machine::Bytes;
use plimsoll_recover::cause::Kind;

/// Who is killed at a limit wanted more than it had got; how much is not known, and so much more is reckoned with.
const MORE: u64 = 8;

/// What ran short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Short {
    /// The machine's RAM.
    Host,
    /// The run's own cgroup, which is given no swap.
    OwnLimit,
    /// A card.
    Card,
}

/// After a death of somebody else's trainer that took `demand` of RAM at most, under `limit`.
pub fn after_foreign(
    kind: &FailureKind,
    demand: Option<Bytes>,
    limit: Option<Bytes>,
    machine: Option<&SwapFacts>,
) -> Option<SwapVerdict> {
    let short = match kind {
        FailureKind::HostOom { by: Killer::Cgroup, .. } => Short::OwnLimit,
        FailureKind::HostOom { .. } => Short::Host,
        kind if kind.is_of_the_card() => Short::Card,
        _ => return None,
    };
    Some(verdict(short, demand.or(limit)?, limit, machine?))
}

/// After a death of our own worker, whose plan was `planned`.
pub fn after_native(kind: &Kind, planned: Option<Bytes>, machine: Option<&SwapFacts>) -> Option<SwapVerdict> {
    match kind {
        Kind::KernelOomOfTheHost => Some(verdict(Short::Host, planned?, None, machine?)),
        Kind::CudaOutOfMemory => Some(verdict(Short::Card, planned.unwrap_or_default(), None, machine?)),
        _ => None,
    }
}

fn verdict(short: Short, demand: Bytes, limit: Option<Bytes>, machine: &SwapFacts) -> SwapVerdict {
    let wanted = demand.saturating_add(Bytes(demand.0 / MORE));
    match short {
        Short::Card => swap(&SwapFacts { vram_short: true, ..machine.clone() }),
        Short::Host => swap(&SwapFacts { pageable: wanted, ..machine.clone() }),
        Short::OwnLimit => {
            let ram = limit.unwrap_or(demand);
            let pageable = wanted.max(ram.saturating_add(Bytes(ram.0 / MORE)));
            let mut verdict = swap(&SwapFacts { ram, pageable, swap_allowed: Some(Bytes::ZERO), ..machine.clone() });
            verdict.reasons.push(format!(
                "the limit of {ram} is the run's own: a higher `--ram` gives it real memory where the machine has some"
            ));
            verdict
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_launch::failure::Victim;
    use plimsoll_launch::swap::Helps;

    use super::*;

    fn machine() -> SwapFacts {
        SwapFacts { ram: Bytes::gib(16), disk_free: Some(Bytes::gib(200)), ..SwapFacts::default() }
    }

    fn oom(by: Killer) -> FailureKind {
        FailureKind::HostOom { by, victim: Victim::Rank }
    }

    #[test]
    fn swap_helps_a_short_machine_but_no_card_and_not_at_the_runs_own_limit() {
        let facts = machine();
        let after = |kind: &FailureKind, limit| after_foreign(kind, Some(Bytes::gib(15)), limit, Some(&facts)).unwrap();
        let host = after(&oom(Killer::Host), None);
        assert_eq!(host.helps, Helps::Yes, "{host}");
        assert!(host.to_string().contains("sudo swapon /swapfile"), "{host}");
        let own = after(&oom(Killer::Cgroup), Some(Bytes::gib(15)));
        assert_eq!((own.helps, own.commands.len()), (Helps::No, 0), "{own}");
        assert!(own.to_string().contains("`--ram`"), "{own}");
        let card = after(&FailureKind::CardOom, None);
        assert_eq!((card.helps, card.commands.len()), (Helps::No, 0), "{card}");
        assert_eq!(after_foreign(&FailureKind::BadSetting, Some(Bytes::gib(1)), None, Some(&facts)), None);
    }

    #[test]
    fn our_own_plan_is_reckoned_with_after_a_kill_for_the_machines_sake() {
        let found = after_native(&Kind::KernelOomOfTheHost, Some(Bytes::gib(16)), Some(&machine())).unwrap();
        assert_eq!(found.short, Bytes::gib(2), "{found}");
        assert_eq!(after_native(&Kind::KernelOomInOurCgroup, Some(Bytes::gib(16)), Some(&machine())), None);
    }
}
