//! Cards and cores of a job: what was said, else what its ranks, threads and loaders take of the machine that it is planned for.
//!
//! It needs no estimate: a trainer whose memory nobody can tell wants its cards all the same. Where the machine is known, nothing asks for
//! more cores than it has: Slurm refuses such a job, and a pod waits for ever.

/// Cores for each rank on a card where neither its loader processes nor the machine are known: its own, and a few that read.
const CORES_A_RANK: u64 = 4;

/// What is known of a trainer and of the machine that it is planned for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Cards that were asked for.
    pub said_cards: Option<u64>,
    /// Cores that were asked for.
    pub said_cores: Option<u64>,
    /// Whether it computes on cards.
    pub on_card: bool,
    /// Its ranks; none where it starts one on every card that it finds.
    pub ranks: Option<u64>,
    /// Loader processes of a rank, where it is known how many.
    pub workers: Option<u64>,
    /// Cards of the machine.
    pub cards: u64,
    /// Cores of the machine, where it was looked at.
    pub cores: Option<u64>,
}

/// What it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// Cards.
    pub cards: u64,
    /// Cores.
    pub cores: u64,
    /// Ranks.
    pub ranks: u64,
}

/// What a trainer gets.
pub fn hardware(wants: Wants) -> Hardware {
    let Wants { said_cards, said_cores, on_card, ranks, workers, cards: there, cores } = wants;
    let on_card = said_cards.map_or(on_card, |said| said > 0);
    let everywhere = if on_card { said_cards.unwrap_or(there) } else { 1 };
    let ranks = ranks.unwrap_or(everywhere).max(1);
    let cards = match on_card {
        true => said_cards.unwrap_or(ranks),
        false => 0,
    };
    let counted = workers.map(|workers| ranks.saturating_mul(workers.saturating_add(1)));
    // One with fewer cards than it gets is not the machine that it will run on.
    let most = cores.filter(|_| cards <= there);
    let wanted = match (on_card, counted) {
        (true, Some(counted)) => counted,
        // Its cards' part of the machine.
        (true, None) if there > 0 && cores.is_some() => {
            (cores.unwrap_or(0).saturating_mul(cards.min(there)) / there).max(ranks)
        }
        (true, None) => ranks.saturating_mul(CORES_A_RANK),
        // Without a card it computes on all cores.
        (false, counted) => cores.or(counted).unwrap_or(CORES_A_RANK),
    };
    let wanted = most.map_or(wanted, |most| wanted.min(most));
    Hardware { cards, cores: said_cores.unwrap_or(wanted).max(1), ranks }
}

/// Cores of a job of our own: threads that compute, and those that read beside them as far as the machine has cores for both. More threads
/// than it has cores were asked for with another machine in mind.
pub fn cores(compute: u64, loader: u64, machine: u64) -> u64 {
    compute.saturating_add(loader).min(machine.max(compute)).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn both(wants: Wants) -> (u64, u64) {
        let Hardware { cards, cores, .. } = hardware(wants);
        (cards, cores)
    }

    #[test]
    fn ranks_on_cards_get_one_each_whether_or_not_anything_else_is_known() {
        let four = Wants { on_card: true, ranks: Some(4), ..Wants::default() };
        assert_eq!(both(four), (4, 16));
        assert_eq!(both(Wants { workers: Some(2), ..four }), (4, 12));
        assert_eq!(both(Wants { cards: 8, cores: Some(96), ..four }), (4, 48));
        // One rank on every card that is there.
        assert_eq!(both(Wants { ranks: None, cards: 8, cores: Some(96), ..four }), (8, 96));
    }

    #[test]
    fn without_a_card_it_computes_on_all_cores() {
        let alone = Wants { ranks: Some(1), cores: Some(16), ..Wants::default() };
        assert_eq!(both(alone), (0, 16));
        // As many ranks as there are cards is one where it uses none.
        assert_eq!(both(Wants { ranks: None, cards: 4, ..alone }), (0, 16));
    }

    #[test]
    fn what_was_said_holds_and_no_cards_is_said_too() {
        let wants =
            Wants { on_card: true, ranks: Some(1), workers: Some(1), cards: 1, cores: Some(8), ..Wants::default() };
        assert_eq!(both(Wants { said_cards: Some(2), said_cores: Some(3), ..wants }), (2, 3));
        assert_eq!(both(Wants { said_cards: Some(0), ..wants }), (0, 8));
        // Cards of a machine that was not looked at.
        let unseen = Wants { said_cards: Some(4), ranks: None, cores: Some(2), ..Wants::default() };
        assert_eq!(hardware(unseen), Hardware { cards: 4, cores: 16, ranks: 4 });
    }

    #[test]
    fn ranks_and_loaders_share_the_cores_where_there_are_fewer() {
        let four = Wants { on_card: true, ranks: Some(4), workers: Some(8), cards: 4, ..Wants::default() };
        assert_eq!(both(four), (4, 36));
        assert_eq!(both(Wants { cores: Some(32), ..four }), (4, 32));
        assert_eq!(both(Wants { cores: Some(2), workers: None, ..four }), (4, 2));
        // This is not the machine with the four cards.
        assert_eq!(both(Wants { cores: Some(32), cards: 1, ..four }), (4, 36));
        // What was said holds.
        assert_eq!(both(Wants { cores: Some(32), said_cores: Some(40), ..four }), (4, 40));
    }

    #[test]
    fn a_job_of_our_own_takes_the_cores_that_there_are_and_threads_that_were_asked_for() {
        assert_eq!(cores(4, 2, 8), 6);
        // All cores compute, and one more thread reads.
        assert_eq!(cores(8, 1, 8), 8);
        assert_eq!(cores(16, 2, 8), 16);
        assert_eq!(cores(0, 0, 0), 1);
    }

    proptest! {
        #[test]
        fn no_more_cores_than_the_machine_has(
            on_card: bool,
            ranks in proptest::option::of(0u64..9),
            workers in proptest::option::of(0u64..9),
            cores in 1u64..99,
        ) {
            let got = hardware(Wants { on_card, ranks, workers, cards: 8, cores: Some(cores), ..Wants::default() });
            prop_assert!(got.cores <= cores, "{got:?}");
        }

        #[test]
        fn a_core_at_least_and_a_card_wherever_it_computes_on_one(
            on_card: bool,
            ranks in proptest::option::of(0u64..9),
            workers in proptest::option::of(0u64..9),
            cards in 0u64..9,
            cores in proptest::option::of(0u64..99),
        ) {
            let got = hardware(Wants { on_card, ranks, workers, cards, cores, ..Wants::default() });
            prop_assert_eq!(got.cards > 0, on_card);
            prop_assert!(got.cores >= 1 && got.ranks >= 1);
        }
    }
}
