//! The shared memory: a header of counters, then slots, each with one round for all ranks of the node.
//!
//! One process, the leader, writes a round and then publishes it; each rank copies its part out and then counts it as taken; a slot
//! is written again when every rank has taken it or is out. So a rank that keeps a batch keeps a copy, which nobody changes,
//! and the ring goes on. Batches lie here as the loader packs them, in 8 bytes a token and unpadded; they must be widened to
//! tensors of 16 to 32 bytes a position anyway, and that is the copy.
//!
//! Invariant: all of the memory is read and written as atomics. Seals keep it from shrinking under a reader. A rank that is put out
//! while it copies finds that out when it counts, and drops what it copied. It knows no sockets and no waiting.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use plimsoll_plan::batch::BatchShape;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::line::Process;
use crate::making::Place;
use crate::slot::{Counts, Share, Slot, Tokens};

/// Which words a ring begins with: one of another build of this crate is not one of ours.
const MARK: u64 = u64::from_le_bytes(*b"plimrng1");

/// Words of the header, in 64 bits, before those of the seats.
const MARKED: usize = 0;
const SEATS: usize = 1;
const SLOTS: usize = 2;
const SEAT_WORDS: usize = 3;
const LEADER: usize = 4;
const PUBLISHED: usize = 5;
const STATE: usize = 6;
const OF_SEATS: usize = 8;

/// Words of a seat in the header.
const TAKEN: usize = 0;
const ASKING: usize = 1;
const PROCESS: usize = 2;
const OF_A_SEAT: usize = 3;

/// Who has a seat and has no number here.
const UNNUMBERED: u64 = u64::MAX;

/// A seat that is out has taken so many rounds.
const OUT: u64 = u64::MAX;

/// Words of a slot before the parts of its seats: where the stream is behind the round.
const PLACE_WORDS: usize = 8;
/// Words of a part before its lengths and tokens: how many there are of each.
const COUNT_WORDS: usize = 4;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// How far the pass is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Running,
    /// No more rounds.
    Ended,
    /// The leader's loader failed; whoever loads from the same place will see why.
    Failed,
}

/// How large a ring is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape {
    /// Ranks of the node.
    pub seats: usize,
    /// Rounds that can lie in it.
    pub slots: usize,
    /// Words of the largest batch.
    pub seat_words: usize,
}

impl RingShape {
    /// For batches of `shape`.
    pub fn new(seats: usize, slots: usize, shape: BatchShape) -> RingShape {
        let tokens = shape.samples * (shape.source_len + shape.target_len);
        RingShape { seats, slots, seat_words: COUNT_WORDS + shape.most_documents() + shape.samples + tokens }
    }

    fn header_bytes(&self) -> Option<usize> {
        self.seats.checked_mul(OF_A_SEAT)?.checked_add(OF_SEATS)?.checked_mul(8)
    }

    fn slot_words(&self) -> Option<usize> {
        self.seats.checked_mul(self.seat_words)?.checked_add(PLACE_WORDS)
    }

    /// Bytes of the whole ring; none where that is more than there can be.
    pub fn bytes(&self) -> Option<usize> {
        let slots = self.slot_words()?.checked_mul(self.slots)?.checked_mul(4)?;
        self.header_bytes()?.checked_add(slots).filter(|bytes| isize::try_from(*bytes).is_ok())
    }
}

/// A mapped ring.
pub struct Ring {
    memory: NonNull<u8>,
    bytes: usize,
    shape: RingShape,
    header_bytes: usize,
    slot_words: usize,
}

// SAFETY: the memory is used as atomics alone, from any thread.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// Makes the memory of a ring, and what others open it by.
    pub fn create(shape: RingShape, leader: usize) -> io::Result<(Ring, OwnedFd)> {
        let bytes = shape.bytes().ok_or(io::ErrorKind::OutOfMemory)?;
        let file = memfd_create("plimsoll-ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        let ring = Ring::map(&file, bytes, shape)?;
        for (word, value) in
            [(SEATS, shape.seats), (SLOTS, shape.slots), (SEAT_WORDS, shape.seat_words), (LEADER, leader)]
        {
            ring.header(word).store(value as u64, Ordering::Relaxed);
        }
        ring.header(MARKED).store(MARK, Ordering::Release);
        Ok((ring, file))
    }

    /// Maps the ring of another process. None where it is not one for `seats` seats with batches of `shape`.
    pub fn open(file: &OwnedFd, seats: usize, shape: BatchShape) -> io::Result<Option<Ring>> {
        if !fcntl_get_seals(file)?.contains(SEALS) {
            return Ok(None);
        }
        let Ok(bytes) = usize::try_from(fstat(file)?.st_size) else { return Ok(None) };
        let mut expected = RingShape::new(seats, 0, shape);
        let (Some(header), Some(slot)) = (expected.header_bytes(), expected.slot_words()) else { return Ok(None) };
        // How many slots there are is the leader's choice; all else follows from settings that we share.
        let Some(slots) = bytes.checked_sub(header).filter(|rest| rest.is_multiple_of(slot * 4)) else {
            return Ok(None);
        };
        expected.slots = slots / (slot * 4);
        if expected.slots == 0 {
            return Ok(None);
        }
        let ring = Ring::map(file, bytes, expected)?;
        let said = |word: usize, value: usize| ring.header(word).load(Ordering::Acquire) == value as u64;
        let ours = ring.header(MARKED).load(Ordering::Acquire) == MARK
            && said(SEATS, seats)
            && said(SLOTS, expected.slots)
            && said(SEAT_WORDS, expected.seat_words);
        Ok(ours.then_some(ring))
    }

    fn map(file: &OwnedFd, bytes: usize, shape: RingShape) -> io::Result<Ring> {
        let (Some(header_bytes), Some(slot_words)) = (shape.header_bytes(), shape.slot_words()) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; the file has these bytes and is sealed against losing them.
        let memory = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file.as_fd(), 0)? };
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Ring { memory, bytes, shape, header_bytes, slot_words })
    }

    fn header(&self, word: usize) -> &AtomicU64 {
        assert!(word < self.header_bytes / 8);
        // SAFETY: inside the mapping, aligned to 8 as the mapping is to a page, and only ever used as an atomic.
        unsafe { self.memory.cast::<AtomicU64>().add(word).as_ref() }
    }

    fn slots(&self) -> &[AtomicU32] {
        // SAFETY: the mapping has these words behind its header, aligned to 4, and they are only ever used as atomics.
        unsafe {
            let first = self.memory.add(self.header_bytes).cast::<AtomicU32>();
            std::slice::from_raw_parts(first.as_ptr(), self.slot_words * self.shape.slots)
        }
    }

    fn slot(&self, round: u64) -> &[AtomicU32] {
        let number = (round % self.shape.slots as u64) as usize;
        &self.slots()[number * self.slot_words..][..self.slot_words]
    }

    fn part(&self, round: u64, seat: usize) -> &[AtomicU32] {
        &self.slot(round)[PLACE_WORDS + seat * self.shape.seat_words..][..self.shape.seat_words]
    }

    fn seat(&self, seat: usize, word: usize) -> &AtomicU64 {
        self.header(OF_SEATS + seat * OF_A_SEAT + word)
    }

    /// Ranks of the node.
    pub fn seats(&self) -> usize {
        self.shape.seats
    }

    /// Rounds that were published.
    pub fn published(&self) -> u64 {
        self.header(PUBLISHED).load(Ordering::Acquire)
    }

    /// How far the pass is; what has no meaning is a failure.
    pub fn state(&self) -> State {
        match self.header(STATE).load(Ordering::Acquire) {
            0 => State::Running,
            1 => State::Ended,
            _ => State::Failed,
        }
    }

    /// Seats whose ranks do not take from this ring any more, of which the leader is one once it is gone.
    pub fn gone_without_leader(&self) -> Vec<usize> {
        let leader = self.header(LEADER).load(Ordering::Relaxed);
        (0..self.seats()).filter(|seat| self.taken(*seat).is_none() || *seat as u64 == leader).collect()
    }

    /// Rounds that a seat has taken; none: it is out.
    pub fn taken(&self, seat: usize) -> Option<u64> {
        Some(self.seat(seat, TAKEN).load(Ordering::Acquire)).filter(|taken| *taken != OUT)
    }

    /// Whether the rank of a seat waits for a round.
    pub fn asks(&self, seat: usize) -> bool {
        self.seat(seat, ASKING).load(Ordering::Acquire) != 0
    }

    /// Says whether the rank of a seat waits for a round.
    pub fn set_asking(&self, seat: usize, asking: bool) {
        self.seat(seat, ASKING).store(u64::from(asking), Ordering::Release);
    }

    /// The process that has a seat, where that is known.
    pub fn process(&self, seat: usize) -> Option<Process> {
        Process::from_number(self.seat(seat, PROCESS).load(Ordering::Relaxed))
    }

    /// Seats whose ranks have not come, and are still waited for.
    pub fn awaited(&self) -> impl Iterator<Item = usize> + '_ {
        let came = |seat: usize| self.seat(seat, PROCESS).load(Ordering::Relaxed) != 0;
        (0..self.seats()).filter(move |seat| !came(*seat) && self.taken(*seat).is_some())
    }

    // The leader.

    /// Says that the rank of a seat has come, and with which process, where that is known.
    pub fn set_here(&self, seat: usize, process: Option<Process>) {
        self.seat(seat, PROCESS).store(process.map_or(UNNUMBERED, Process::number), Ordering::Relaxed);
    }

    /// Whether a seat has still to take what lies in the slot of `round`.
    pub fn holds_back(&self, seat: usize, round: u64) -> bool {
        self.taken(seat).is_some_and(|taken| taken.saturating_add(self.shape.slots as u64) <= round)
    }

    /// Puts a seat out. What its rank copies at this moment does not count.
    pub fn put_out(&self, seat: usize) {
        // An exchange, so that a copy that was counted before it was also over before it.
        self.seat(seat, TAKEN).swap(OUT, Ordering::AcqRel);
    }

    /// Writes a round and publishes it. There must be room for it.
    pub fn publish(&self, round: u64, place: Place, slot: &Slot, shares: impl Iterator<Item = Share>) {
        let (epoch, position, piece, sample) = place;
        let numbers = [epoch, position, piece, sample];
        for (word, part) in self.slot(round).iter().zip(numbers.iter().flat_map(|n| [*n as u32, (*n >> 32) as u32])) {
            word.store(part, Ordering::Relaxed);
        }
        for (seat, share) in shares.enumerate() {
            let Share { source, target, source_lens, target_lens } = share;
            let counts = [source_lens.len(), target_lens.len(), source.len(), target.len()].map(|count| count as u32);
            let all = [&counts[..], &slot.source_lens[source_lens], &slot.target_lens[target_lens]];
            let all = all.into_iter().chain([&slot.source[source], &slot.target[target]]).flatten();
            for (word, value) in self.part(round, seat).iter().zip(all) {
                word.store(*value, Ordering::Relaxed);
            }
        }
        self.header(PUBLISHED).store(round + 1, Ordering::Release);
    }

    /// Says that there will be no more rounds.
    pub fn end(&self, state: State) {
        self.header(STATE).store(state as u64, Ordering::Release);
    }

    // A seat.

    /// Copies a seat's part of a published round. None where it cannot be one.
    pub fn copy(&self, tokens: Tokens, round: u64, seat: usize, slot: &mut Slot) -> Option<(Counts, Place)> {
        let read = |word: &AtomicU32| word.load(Ordering::Relaxed);
        let words: Vec<u64> = self.slot(round)[..PLACE_WORDS].iter().map(|word| u64::from(read(word))).collect();
        let number = |n: usize| words[2 * n] | words[2 * n + 1] << 32;
        let place = (number(0), number(1), number(2), number(3));
        let (counts, mut rest) = self.part(round, seat).split_at(COUNT_WORDS);
        let [documents, samples, source, target] = [0, 1, 2, 3].map(|n| read(&counts[n]) as usize);
        let parts = [
            (documents, &mut slot.source_lens),
            (samples, &mut slot.target_lens),
            (source, &mut slot.source),
            (target, &mut slot.target),
        ];
        for (count, into) in parts {
            let (now, later) = rest.split_at_checked(count)?;
            for (to, from) in into.get_mut(..count)?.iter_mut().zip(now) {
                *to = read(from);
            }
            rest = later;
        }
        let found = Counts { samples, documents };
        slot.holds(tokens, found, source, target).then_some((found, place))
    }

    /// Counts a round as taken. False: the seat was put out before, and what was copied may be of another round.
    pub fn take(&self, seat: usize, round: u64) -> bool {
        // The copying is over before the leader can see that it is.
        let counted = self.seat(seat, TAKEN).compare_exchange(round, round + 1, Ordering::AcqRel, Ordering::Acquire);
        counted.is_ok()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody uses from here on.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}
