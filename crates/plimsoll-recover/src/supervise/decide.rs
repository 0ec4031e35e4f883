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

/// Everything that the supervisor waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The worker ended.
    ChildExited(Exit),
    /// We were asked to stop.
    Signal(StopSignal),
}

/// What has been asked of the worker so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing: it trains.
    Running,
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
    /// Send the worker `SIGTERM`: it saves and ends with status 4.
    AskToStop,
    /// Send the worker's group `SIGKILL`.
    KillNow,
    /// Report this end.
    Finish(Exit),
}

/// The next phase, and what to do. The first stop asks, the second insists; a closing terminal never insists, since the
/// kernel and the shell each send their `SIGHUP` for one and the same closing.
pub fn decide(phase: Phase, event: Event) -> (Phase, Action) {
    match (phase, event) {
        (phase, Event::ChildExited(exit)) => (phase, Action::Finish(exit)),
        (Phase::Running, Event::Signal(_)) => (Phase::Stopping, Action::AskToStop),
        (Phase::Stopping, Event::Signal(StopSignal::HangUp)) => (Phase::Stopping, Action::Wait),
        (Phase::Stopping, Event::Signal(_)) => (Phase::Killing, Action::KillNow),
        (Phase::Killing, Event::Signal(_)) => (Phase::Killing, Action::Wait),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNALS: [StopSignal; 3] = [StopSignal::Interrupt, StopSignal::Terminate, StopSignal::HangUp];

    #[test]
    fn the_first_stop_of_any_kind_asks_the_worker_to_save() {
        for signal in SIGNALS {
            assert_eq!(decide(Phase::Running, Event::Signal(signal)), (Phase::Stopping, Action::AskToStop));
        }
    }

    #[test]
    fn the_second_stop_kills_and_a_third_changes_nothing() {
        for signal in [StopSignal::Interrupt, StopSignal::Terminate] {
            assert_eq!(decide(Phase::Stopping, Event::Signal(signal)), (Phase::Killing, Action::KillNow));
            assert_eq!(decide(Phase::Killing, Event::Signal(signal)), (Phase::Killing, Action::Wait));
        }
    }

    #[test]
    fn a_terminal_that_closes_never_costs_the_save() {
        let hang_up = Event::Signal(StopSignal::HangUp);
        assert_eq!(decide(Phase::Stopping, hang_up), (Phase::Stopping, Action::Wait));
    }

    #[test]
    fn the_workers_end_is_the_end_in_every_phase() {
        for phase in [Phase::Running, Phase::Stopping, Phase::Killing] {
            let exit = Exit::Killed(9);
            assert_eq!(decide(phase, Event::ChildExited(exit)), (phase, Action::Finish(exit)));
        }
    }
}
