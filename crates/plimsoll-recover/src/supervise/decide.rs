//! What the supervisor does about an event. Pure.

use super::Exit;

/// A signal that asks us to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// Ctrl-C.
    Interrupt,
    /// `kill`, a batch system, a shutdown.
    Terminate,
    /// The terminal closed.
    HangUp,
}

impl StopSignal {
    /// Its number.
    pub const fn number(self) -> i32 {
        match self {
            StopSignal::Interrupt => signal_hook::consts::SIGINT,
            StopSignal::Terminate => signal_hook::consts::SIGTERM,
            StopSignal::HangUp => signal_hook::consts::SIGHUP,
        }
    }
}

/// What whoever watches the worker wishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// Nothing.
    #[default]
    GoOn,
    /// A checkpoint, and then on.
    Save,
    /// A checkpoint, and an end: another worker is to go on, under another plan.
    HandOver,
}

/// Everything that the supervisor waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The worker ended.
    ChildExited(Exit),
    /// We were asked to stop.
    Signal(StopSignal),
    /// The watcher wishes something.
    Wish(Wish),
    /// The time that a stop may take is over.
    TimeIsUp,
}

/// What has been asked of the worker so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing: it trains.
    Running,
    /// To save and make room for another worker.
    HandingOver,
    /// To save and end.
    Stopping,
    /// It has been killed.
    Killing,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing; wait for the next event.
    Wait,
    /// Send the worker `SIGUSR1`: it saves and goes on.
    AskToSave,
    /// Send the worker `SIGUSR2`: it saves and ends with status 4.
    AskToHandOver,
    /// Send the worker `SIGTERM`: it saves, says so, and ends with status 4.
    AskToStop,
    /// Send the worker's group `SIGKILL`.
    KillNow,
    /// Report this end.
    Finish(Exit),
}

/// The next phase, and what to do. The first stop asks; a Ctrl-C after it insists, and so does the end of the time that a
/// stop may take. Other signals never insist: managers, traps and shells send several for one and the same stop. A stop
/// outweighs a handing over that has begun.
pub fn decide(phase: Phase, event: Event) -> (Phase, Action) {
    match (phase, event) {
        (phase, Event::ChildExited(exit)) => (phase, Action::Finish(exit)),
        (Phase::Running | Phase::HandingOver, Event::Signal(_)) => (Phase::Stopping, Action::AskToStop),
        (Phase::Stopping, Event::Signal(StopSignal::Interrupt) | Event::TimeIsUp) => (Phase::Killing, Action::KillNow),
        (Phase::Running, Event::Wish(Wish::Save)) => (Phase::Running, Action::AskToSave),
        (Phase::Running, Event::Wish(Wish::HandOver)) => (Phase::HandingOver, Action::AskToHandOver),
        (phase, Event::Signal(_) | Event::Wish(_) | Event::TimeIsUp) => (phase, Action::Wait),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNALS: [StopSignal; 3] = [StopSignal::Interrupt, StopSignal::Terminate, StopSignal::HangUp];
    const PHASES: [Phase; 4] = [Phase::Running, Phase::HandingOver, Phase::Stopping, Phase::Killing];

    #[test]
    fn the_first_stop_of_any_kind_asks_the_worker_to_save() {
        for signal in SIGNALS {
            for phase in [Phase::Running, Phase::HandingOver] {
                assert_eq!(decide(phase, Event::Signal(signal)), (Phase::Stopping, Action::AskToStop));
            }
        }
    }

    #[test]
    fn a_ctrl_c_after_the_first_stop_kills_and_a_third_changes_nothing() {
        let signal = Event::Signal(StopSignal::Interrupt);
        assert_eq!(decide(Phase::Stopping, signal), (Phase::Killing, Action::KillNow));
        assert_eq!(decide(Phase::Killing, signal), (Phase::Killing, Action::Wait));
    }

    #[test]
    fn a_terminal_that_closes_and_a_manager_that_repeats_itself_never_cost_the_save() {
        for signal in [StopSignal::HangUp, StopSignal::Terminate] {
            assert_eq!(decide(Phase::Stopping, Event::Signal(signal)), (Phase::Stopping, Action::Wait));
        }
    }

    #[test]
    fn time_that_is_up_ends_a_stop_and_nothing_else() {
        for phase in PHASES {
            let (next, action) = decide(phase, Event::TimeIsUp);
            assert_eq!(action == Action::KillNow, phase == Phase::Stopping);
            assert_eq!(next == Phase::Killing, [Phase::Stopping, Phase::Killing].contains(&phase));
        }
    }

    #[test]
    fn a_wish_is_granted_only_while_nothing_else_was_asked() {
        assert_eq!(decide(Phase::Running, Event::Wish(Wish::Save)), (Phase::Running, Action::AskToSave));
        let handed = decide(Phase::Running, Event::Wish(Wish::HandOver));
        assert_eq!(handed, (Phase::HandingOver, Action::AskToHandOver));
        for phase in [Phase::HandingOver, Phase::Stopping, Phase::Killing] {
            for wish in [Wish::GoOn, Wish::Save, Wish::HandOver] {
                assert_eq!(decide(phase, Event::Wish(wish)), (phase, Action::Wait));
            }
        }
    }

    #[test]
    fn the_workers_end_is_the_end_in_every_phase() {
        for phase in PHASES {
            let exit = Exit::Killed(9);
            assert_eq!(decide(phase, Event::ChildExited(exit)), (phase, Action::Finish(exit)));
        }
    }
}
