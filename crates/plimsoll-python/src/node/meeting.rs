//! How ranks of a node find each other: whoever is first binds an abstract socket and leads, the others call there.
//!
//! The name has the user's number and a key of all that the stream depends on, the job and the place where the pass begins, so only
//! those meet who would make the same rounds. Where a name is of no use any more (held by a fork of a leader that has
//! ended, or by a ring in which our seat is taken by another loader of ours), all try the next number of it.
//!
//! Invariant: a meeting ends: as leader, as follower, or alone. It knows nothing of what is in the ring.

use std::os::fd::OwnedFd;
use std::time::Duration;

use plimsoll_plan::batch::BatchShape;
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind, connect, listen};
use rustix::process::geteuid;

use super::line::{Line, Packet, Peer, new_socket, wait};
use super::ring::Ring;

/// What a caller says first: a mark, and its seat.
pub const HELLO_BYTES: usize = 8;
const HELLO: [u8; 4] = *b"seat";
/// What it is told: it is in, its seat is taken, it comes too late.
pub const WELCOME: u8 = b'w';
pub const TAKEN: u8 = b't';
pub const LATE: u8 = b'l';

/// Names that are tried.
const NAMES: u32 = 16;
/// How often one name is tried, and how long between: another may be on the way from binding to listening, or to its end.
const TRIES: u32 = 20;
const BETWEEN: Duration = Duration::from_millis(10);

/// Who meets.
pub struct Meeting<'a> {
    pub key: &'a str,
    pub seat: usize,
    pub seats: usize,
    pub shape: BatchShape,
}

/// What we are after a meeting.
pub enum Role {
    /// We hold the name.
    Lead(OwnedFd),
    Follow(Ring, Line),
    /// For this reason.
    Alone(&'static str),
}

/// What came of one try.
enum Try {
    Is(Role),
    Again,
    NextName,
    GaveUp,
}

/// The seat that a caller says it has.
pub fn seat_of(hello: [u8; HELLO_BYTES]) -> Option<usize> {
    let number = hello.strip_prefix(&HELLO)?;
    usize::try_from(u32::from_le_bytes(number.try_into().ok()?)).ok()
}

impl Meeting<'_> {
    /// Meets the others. `None`: `give_up` said so.
    pub fn meet(&self, give_up: &dyn Fn() -> bool) -> std::io::Result<Option<Role>> {
        for name in 0..NAMES {
            for _ in 0..TRIES {
                match self.try_name(name, give_up)? {
                    Try::Is(role) => return Ok(Some(role)),
                    Try::GaveUp => return Ok(None),
                    Try::NextName => break,
                    Try::Again => wait(std::iter::empty(), BETWEEN),
                }
                if give_up() {
                    return Ok(None);
                }
            }
        }
        Ok(Some(Role::Alone("no name is left to meet the other ranks by")))
    }

    fn try_name(&self, name: u32, give_up: &dyn Fn() -> bool) -> std::io::Result<Try> {
        let text = format!("plimsoll-{}-{}-{name}", geteuid().as_raw(), self.key);
        let address = SocketAddrUnix::new_abstract_name(text.as_bytes())?;
        let socket = new_socket()?;
        match bind(&socket, &address) {
            Ok(()) => {
                listen(&socket, i32::try_from(self.seats).unwrap_or(i32::MAX))?;
                return Ok(Try::Is(Role::Lead(socket)));
            }
            Err(Errno::ADDRINUSE) => {}
            Err(other) => return Err(other.into()),
        }
        let socket = new_socket()?;
        if connect(&socket, &address).is_err() {
            return Ok(Try::Again);
        }
        let line = match Line::new(socket)? {
            (line, Peer::Ours) => line,
            (_, Peer::Dead) => return Ok(Try::NextName),
            (_, Peer::Stranger) => {
                return Ok(Try::Is(Role::Alone("another user holds the name to meet by")));
            }
        };
        self.call(line, give_up)
    }

    /// Asks to be let in. The leader answers between two rounds.
    fn call(&self, line: Line, give_up: &dyn Fn() -> bool) -> std::io::Result<Try> {
        let seat = u32::try_from(self.seat).unwrap_or(u32::MAX).to_le_bytes();
        let mut hello = [0; HELLO_BYTES];
        hello[..4].copy_from_slice(&HELLO);
        hello[4..].copy_from_slice(&seat);
        if line.send(&hello, None).is_err() {
            return Ok(Try::Again);
        }
        loop {
            let mut said = [0];
            match line.receive(&mut said) {
                Packet::Here(_, Some(memory)) if said[0] == WELCOME => {
                    let ring = Ring::open(&memory, self.seats, self.shape)?;
                    let unusable = Role::Alone("the shared ring is not one of this loader");
                    return Ok(Try::Is(ring.map_or(unusable, |ring| Role::Follow(ring, line))));
                }
                Packet::Here(..) if said[0] == TAKEN => return Ok(Try::NextName),
                Packet::Here(..) if said[0] == LATE => {
                    return Ok(Try::Is(Role::Alone("the other ranks went on without it")));
                }
                Packet::Here(..) => return Ok(Try::Is(Role::Alone("the other end speaks another language"))),
                Packet::End => return Ok(Try::Again),
                Packet::Nothing => line.wait(),
            }
            if give_up() {
                return Ok(Try::GaveUp);
            }
            if !line.is_alive() {
                return Ok(Try::Again);
            }
        }
    }
}
