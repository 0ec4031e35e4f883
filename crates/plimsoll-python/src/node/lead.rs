//! The process that makes the rounds of its node: one thread that fills the ring and looks after the other ranks.
//!
//! Invariant: it never waits for a rank that is not there to take. One that ended is out at once. One that takes nothing, while another
//! asks for a round that there is no room for, is out when the patience is over, and so is one that never came; it goes
//! on by itself. A thread belongs to a `Lead` and ends with it, and so do all lines.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use plimsoll_data::{DataError, Kind};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};

use super::line::{Ended, Line, Packet, Peer, Process, SLICE, ended, wait};
use super::meeting::{HELLO_BYTES, LATE, TAKEN, WELCOME, seat_of};
use super::ring::{Ring, RingShape, State};
use crate::making::Making;

/// Callers whose first packet is waited for.
const MOST_CALLERS: usize = 64;

/// How long the first round waits for ranks that have not come. Not longer: where the last round of a pass is not for all of
/// them, a rank that has a batch of it may go on only when the others have one of the next pass.
const COURTESY: Duration = Duration::from_secs(1);

/// The thread that leads.
pub struct Lead {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

/// How the thread is told to end.
pub struct Stop {
    said: AtomicBool,
    bell: OwnedFd,
}

impl Stop {
    pub fn new() -> io::Result<Arc<Stop>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Stop { said: AtomicBool::new(false), bell }))
    }

    pub fn said(&self) -> bool {
        self.said.load(Ordering::Acquire)
    }
}

/// What the rounds are made of: a loader that asks `stop` while it waits, for batches of one rank with so many samples.
pub struct Work {
    pub making: Making,
    pub kind: Kind,
    pub samples: usize,
}

/// A rank of the node.
enum Rank {
    /// Has not come yet; its process, where that is known and can be watched.
    Awaited(Option<OwnedFd>),
    Here(Line),
    Out,
}

/// Why a round cannot be written yet.
#[derive(PartialEq, Eq)]
struct Held {
    /// Seats that have still to take what lies in its slot.
    late: Vec<usize>,
    /// What each has taken: where that changes, it is not the same wait any more.
    taken: Vec<Option<u64>>,
    /// Whether somebody asks for it.
    asked: bool,
}

impl Held {
    fn of(round: u64, ring: &Ring) -> Held {
        let taken: Vec<Option<u64>> = (0..ring.seats()).map(|seat| ring.taken(seat)).collect();
        let asks = |seat: usize| ring.asks(seat) && taken[seat].is_some_and(|taken| taken >= round);
        Held {
            late: (0..ring.seats()).filter(|seat| ring.holds_back(*seat, round)).collect(),
            asked: (0..ring.seats()).any(asks),
            taken,
        }
    }
}

struct Desk {
    listener: OwnedFd,
    ring: Arc<Ring>,
    /// The ring's memory, to be handed to those who come.
    memory: OwnedFd,
    ranks: Vec<Rank>,
    callers: Vec<Line>,
    stop: Arc<Stop>,
    patience: Duration,
}

impl Lead {
    /// Starts to lead. `gone` are out from the beginning, and so is whoever had a seat by the list of `processes` and has ended. Also
    /// the ring, and our own end of the line to our own seat.
    pub fn start(
        listener: OwnedFd,
        shape: RingShape,
        own_seat: usize,
        gone: &[usize],
        processes: &[Option<Process>],
        patience: Duration,
        stop: Arc<Stop>,
        work: Work,
    ) -> io::Result<(Lead, Arc<Ring>, Line)> {
        let (ring, memory) = Ring::create(shape, own_seat)?;
        let ring = Arc::new(ring);
        let (ours, theirs) = Line::pair()?;
        let mut ranks = Vec::with_capacity(shape.seats);
        for seat in 0..shape.seats {
            let known = processes.get(seat).copied().flatten().map(Process::watch);
            ranks.push(match known.unwrap_or(Ok(None)) {
                Ok(process) if !gone.contains(&seat) || seat == own_seat => Rank::Awaited(process),
                Ok(_) | Err(Ended) => {
                    ring.put_out(seat);
                    Rank::Out
                }
            });
        }
        ring.set_here(own_seat, theirs.peer());
        ranks[own_seat] = Rank::Here(theirs);
        let desk =
            Desk { listener, ring: ring.clone(), memory, ranks, callers: Vec::new(), stop: stop.clone(), patience };
        let thread = std::thread::Builder::new().name("plimsoll-lead".into()).spawn(move || desk.run(work))?;
        Ok((Lead { stop, thread: Some(thread) }, ring, ours))
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.stop.said.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.stop.bell, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // Its lines end with it, however it ended, and whoever is at them sees that.
            let _ = thread.join();
        }
    }
}

impl Desk {
    fn run(mut self, work: Work) {
        let outcome = self.rounds(work);
        // Where we are told to stop the pass is neither over nor wrong: the others go on with it.
        if !self.stop.said() {
            self.ring.end(if outcome.is_ok() { State::Ended } else { State::Failed });
            self.ring_all();
        }
        // Who comes late is still let in, while we are here.
        while !self.stop.said() {
            wait(self.watched(), Duration::from_secs(3600));
            self.serve();
        }
    }

    /// Makes rounds until the end, or until we are told to stop.
    fn rounds(&mut self, work: Work) -> Result<(), DataError> {
        let Work { mut making, kind, samples } = work;
        let mut round = 0;
        self.wait_for_all();
        while self.wait_for_room(round)
            && let Some((found, place)) = making.next()?
        {
            let shares = making.slot.shares(kind, found, samples);
            self.ring.publish(round, place, &making.slot, shares);
            self.ring_all();
            self.serve();
            round += 1;
        }
        Ok(())
    }

    /// Waits a moment for all ranks to come before anybody has a round. If the leader ends, all who are left then have the same
    /// ring or none of them has taken anything, and in both cases they meet again at one place.
    fn wait_for_all(&mut self) {
        let begun = Instant::now();
        self.serve();
        while !self.stop.said() && self.ranks.iter().any(|rank| matches!(rank, Rank::Awaited(_))) {
            let left = COURTESY.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return;
            }
            wait(self.watched(), left);
            self.serve();
        }
    }

    /// False: we are told to stop.
    fn wait_for_room(&mut self, round: u64) -> bool {
        let mut starved: Option<(Instant, Held)> = None;
        while !self.stop.said() {
            let held = Held::of(round, &self.ring);
            if held.late.is_empty() {
                return true;
            }
            starved = match starved {
                _ if !held.asked => None,
                Some((since, before)) if before == held => Some((since, before)),
                _ => Some((Instant::now(), held)),
            };
            match starved.as_ref().map(|(since, held)| (self.patience.saturating_sub(since.elapsed()), held)) {
                Some((Duration::ZERO, Held { late, .. })) => {
                    late.clone().into_iter().for_each(|seat| self.put_out(seat))
                }
                Some((left, _)) => wait(self.watched(), left),
                // Whoever begins to ask rings.
                None => wait(self.watched(), Duration::from_secs(3600)),
            }
            self.serve();
        }
        false
    }

    fn watched(&self) -> impl Iterator<Item = std::os::fd::BorrowedFd<'_>> {
        let lines = self.lines().flat_map(Line::watched);
        let awaited = self.ranks.iter().filter_map(|rank| match rank {
            Rank::Awaited(Some(process)) => Some(process.as_fd()),
            _ => None,
        });
        [self.listener.as_fd(), self.stop.bell.as_fd()].into_iter().chain(lines).chain(awaited)
    }

    /// To all who are here, or call.
    fn lines(&self) -> impl Iterator<Item = &Line> {
        let here = self.ranks.iter().filter_map(|rank| if let Rank::Here(line) = rank { Some(line) } else { None });
        here.chain(&self.callers)
    }

    fn ring_all(&self) {
        for rank in &self.ranks {
            if let Rank::Here(line) = rank {
                line.ring();
            }
        }
    }

    fn put_out(&mut self, seat: usize) {
        self.ring.put_out(seat);
        if let Rank::Here(line) = std::mem::replace(&mut self.ranks[seat], Rank::Out) {
            line.hang_up();
        }
    }

    /// Hears whoever rang, called or ended.
    fn serve(&mut self) {
        for seat in 0..self.ranks.len() {
            let gone = match &self.ranks[seat] {
                Rank::Here(line) => !line.listen(),
                Rank::Awaited(process) => process.as_ref().is_some_and(ended),
                Rank::Out => false,
            };
            if gone {
                self.put_out(seat);
            }
        }
        self.accept();
        for line in std::mem::take(&mut self.callers) {
            let mut hello = [0; HELLO_BYTES];
            match line.receive(&mut hello) {
                Packet::Here(HELLO_BYTES, _) => self.admit(line, seat_of(hello)),
                Packet::Nothing if line.is_alive() => self.callers.push(line),
                Packet::Nothing | Packet::Here(..) | Packet::End => {}
            }
        }
    }

    fn accept(&mut self) {
        loop {
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    if let Ok((line, Peer::Ours)) = Line::new(socket)
                        && self.callers.len() < MOST_CALLERS
                    {
                        self.callers.push(line);
                    }
                }
                Err(Errno::AGAIN) => return,
                // Too many open files, say. They still call, so without a pause we would be asked again at once.
                Err(_) => return wait(std::iter::empty(), SLICE),
            }
        }
    }

    fn admit(&mut self, line: Line, seat: Option<usize>) {
        let Some((seat, rank)) = seat.and_then(|seat| Some((seat, self.ranks.get_mut(seat)?))) else { return };
        let said = match rank {
            Rank::Awaited(_) => line.send(&[WELCOME], Some(self.memory.as_fd())),
            Rank::Here(_) => line.send(&[TAKEN], None),
            Rank::Out => line.send(&[LATE], None),
        };
        if said.is_ok() && matches!(rank, Rank::Awaited(_)) {
            self.ring.set_here(seat, line.peer());
            *rank = Rank::Here(line);
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        // A fork of this process may hold copies of the sockets; this ends them there too.
        let _ = shutdown(&self.listener, Shutdown::Both);
        self.lines().for_each(Line::hang_up);
    }
}
