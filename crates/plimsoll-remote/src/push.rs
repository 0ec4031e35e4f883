//! Files to the far side: what differs of them, block by block.
//!
//! Invariant: a file that has the same length and date on both sides is not sent; of others only blocks that differ are,
//! many under way at once. The far disk is asked before anything is sent. Ended anywhere, by whatever, the next push goes
//! on from the blocks that are there.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use fs_err::File;
use plimsoll_machine::Bytes;

use crate::digest::DIGEST_BYTES;
use crate::file_blocks::{blocks_of, read_block, stamp_of};
use crate::link::unexpected;
use crate::pull::list;
use crate::wire::{Answer, Ask, BLOCK, MOST_DIGESTS, Stamp, There, pack};
use crate::{Digest, FarPath, Link, RemoteError, digest_of};

/// Blocks that may be under way.
pub(crate) const UNDER_WAY: usize = 16;
/// Files that are asked about at once.
const LOOKED_AT: usize = 256;
/// A block that packing did not help is followed by so many that are not tried.
const NOT_TRIED: u32 = 15;

/// A file that shall be on the far side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Where it is.
    pub from: PathBuf,
    /// Where it shall be.
    pub to: FarPath,
}

/// What a push came to, or how far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Files that are there.
    pub files: u64,
    /// Of them, those that were there before.
    pub unchanged: u64,
    /// Bytes of all files.
    pub total: Bytes,
    /// Bytes of them that are there.
    pub done: Bytes,
    /// Bytes that were sent, as they were packed.
    pub sent: Bytes,
}

/// How a push is done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Care {
    /// Compare all blocks, also where length and date are the same.
    pub compare_all: bool,
}

/// Sends what is missing of `items`; `told` hears how far it is.
pub fn push(link: &Link, items: &[Item], care: Care, told: &mut dyn FnMut(&Pushed)) -> Result<Pushed, RemoteError> {
    let mut stamps = Vec::with_capacity(items.len());
    for item in items {
        stamps.push(stamp_of(&item.from)?);
    }
    let mut pushed = Pushed { total: Bytes(stamps.iter().map(|stamp| stamp.length).sum()), ..Pushed::default() };
    link.have_done(&Ask::Lock {})?;
    let there = look(link, items)?;
    has_room(
        link,
        Bytes(stamps.iter().zip(&there).map(|(stamp, there)| needed(stamp, there)).fold(0, u64::saturating_add)),
    )?;
    let mut sender = Sender { link, under_way: Vec::new(), pushed, told, skip: 0 };
    for ((item, stamp), there) in items.iter().zip(&stamps).zip(&there) {
        let same = there.stamp.is_some_and(|there| stamp.is_met_by(&there));
        if same && (!care.compare_all || (stamp.length > BLOCK as u64 && sender.is_same(item, stamp)?)) {
            sender.pushed.unchanged += 1;
            sender.pushed.done += Bytes(stamp.length);
        } else if stamp.length <= BLOCK as u64 {
            sender.small(item, stamp)?;
        } else {
            if same {
                sender.drain(0)?;
                has_room(link, Bytes(stamp.length))?;
            }
            sender.large(item, stamp)?;
        }
        sender.pushed.files += 1;
        (sender.told)(&sender.pushed);
    }
    sender.drain(0)?;
    pushed = sender.pushed;
    told(&pushed);
    Ok(pushed)
}

/// Removes what `folder` holds besides `items`: a file that is not here any more may be read there in place of another. What
/// `exclude` leaves out is neither sent nor removed. How many files went.
pub fn nothing_else(link: &Link, folder: &FarPath, exclude: &[String], items: &[Item]) -> Result<u64, RemoteError> {
    link.have_done(&Ask::Lock {})?;
    let sent: BTreeSet<&FarPath> = items.iter().map(|item| &item.to).collect();
    let mut old = Vec::new();
    for file in list(link, folder, exclude)? {
        let path = folder.join(&file.path)?;
        if !sent.contains(&path) {
            old.push(path);
        }
    }
    for some in old.chunks(LOOKED_AT) {
        link.have_done(&Ask::Remove { paths: some.to_vec() })?;
    }
    Ok(old.len() as u64)
}

/// Writes a file there that is in memory here.
pub fn write(link: &Link, path: &FarPath, bytes: &[u8]) -> Result<(), RemoteError> {
    link.have_done(&Ask::Lock {})?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, nanos) = (now.as_secs() as i64, now.subsec_nanos());
    let stamp = Stamp { length: bytes.len() as u64, seconds, nanos, executable: false, private: false };
    let tell = |ask: &Ask, body: &[u8]| {
        link.tell(ask, body)?;
        match link.answer()?.0 {
            Answer::Done {} | Answer::Begun { .. } => Ok(()),
            other => Err(RemoteError::from(unexpected("`done`", &other))),
        }
    };
    let path = path.clone();
    if bytes.len() <= BLOCK {
        return tell(&Ask::Write { path, stamp, digest: digest_of(bytes), packed: false }, bytes);
    }
    tell(&Ask::Begin { path: path.clone(), private: stamp.private }, &[])?;
    for (block, bytes) in bytes.chunks(BLOCK).enumerate() {
        let ask = Ask::Put { path: path.clone(), block: block as u64, digest: digest_of(bytes), packed: false };
        tell(&ask, bytes)?;
    }
    tell(&Ask::Finish { path, stamp }, &[])
}

/// Room that a file takes while it is sent: what came of it is gone on with, what was there before it stays until it is whole,
/// and a large one begins as a copy of that. One that looks the same takes none, unless blocks of it turn out to differ.
fn needed(stamp: &Stamp, there: &There) -> u64 {
    match there.stamp {
        Some(before) if stamp.is_met_by(&before) => 0,
        Some(before) if there.part == 0 && stamp.length > BLOCK as u64 => stamp.length.max(before.length),
        _ => stamp.length.saturating_sub(there.part),
    }
}

/// Refuses what the far disk has no room for.
fn has_room(link: &Link, needed: Bytes) -> Result<(), RemoteError> {
    match link.ask(&Ask::Room {})?.0 {
        Answer::Room { free } if needed.0 > free => {
            let place = format!("{}:{}", link.host(), link.dir());
            Err(RemoteError::NoRoom { place, needed, free: Bytes(free) })
        }
        Answer::Room { .. } => Ok(()),
        other => Err(unexpected("`room`", &other).into()),
    }
}

fn look(link: &Link, items: &[Item]) -> Result<Vec<There>, RemoteError> {
    let mut there = Vec::with_capacity(items.len());
    for some in items.chunks(LOOKED_AT) {
        let paths = some.iter().map(|item| item.to.clone()).collect();
        match link.ask(&Ask::Look { paths })?.0 {
            Answer::Seen { files } if files.len() == some.len() => there.extend(files),
            other => return Err(unexpected("`seen` of as many files as were asked about", &other).into()),
        }
    }
    Ok(there)
}

struct Sender<'a> {
    link: &'a Link,
    /// Bytes of files of what has no answer yet.
    under_way: Vec<u64>,
    pushed: Pushed,
    told: &'a mut dyn FnMut(&Pushed),
    /// Blocks of this file that are not tried to be packed.
    skip: u32,
}

impl Sender<'_> {
    /// A file of one block, in one message.
    fn small(&mut self, item: &Item, stamp: &Stamp) -> Result<(), RemoteError> {
        let mut bytes = Vec::new();
        read_block(&File::open(&item.from)?, 0, &mut bytes)?;
        unchanged(item, stamp)?;
        let (packed, body) = pack(&bytes);
        let ask = Ask::Write { path: item.to.clone(), stamp: *stamp, digest: digest_of(&bytes), packed };
        self.tell(&ask, &body, bytes.len())
    }

    /// Whether all blocks of a file are there as they are here.
    fn is_same(&mut self, item: &Item, stamp: &Stamp) -> Result<bool, RemoteError> {
        self.drain(0)?;
        let file = File::open(&item.from)?;
        let (mut page, mut page_from, mut bytes) = (Vec::new(), 0, Vec::new());
        for block in 0..blocks_of(stamp.length) {
            if block >= page_from + page.len() as u64 {
                (page, page_from) = (digests(self.link, &item.to, false, block)?, block);
            }
            read_block(&file, block, &mut bytes)?;
            if page.get((block - page_from) as usize) != Some(&digest_of(&bytes)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A file of many, of which some may be there.
    fn large(&mut self, item: &Item, stamp: &Stamp) -> Result<(), RemoteError> {
        self.drain(0)?;
        self.skip = 0;
        let file = File::open(&item.from)?;
        let mut there = match self.link.ask(&Ask::Begin { path: item.to.clone(), private: stamp.private })?.0 {
            Answer::Begun { length } => blocks_of(length),
            other => return Err(unexpected("`begun`", &other).into()),
        };
        let (mut page, mut page_from) = (Vec::new(), 0);
        let mut bytes = Vec::new();
        for block in 0..blocks_of(stamp.length) {
            if block < there && block >= page_from + page.len() as u64 {
                self.drain(0)?;
                (page, page_from) = (digests(self.link, &item.to, true, block)?, block);
                // It was shorter than it said.
                there = if page.is_empty() { 0 } else { there };
            }
            read_block(&file, block, &mut bytes)?;
            let digest = digest_of(&bytes);
            let same = block >= page_from && page.get((block - page_from) as usize) == Some(&digest);
            if same {
                self.pushed.done += Bytes(bytes.len() as u64);
                continue;
            }
            let (packed, body) = self.packed(&bytes);
            self.tell(&Ask::Put { path: item.to.clone(), block, digest, packed }, &body, bytes.len())?;
        }
        self.drain(0)?;
        unchanged(item, stamp)?;
        self.link.have_done(&Ask::Finish { path: item.to.clone(), stamp: *stamp })
    }

    fn packed<'b>(&mut self, bytes: &'b [u8]) -> (bool, std::borrow::Cow<'b, [u8]>) {
        if self.skip > 0 {
            self.skip -= 1;
            return (false, bytes.into());
        }
        let (packed, body) = pack(bytes);
        if !packed && bytes.len() == BLOCK {
            self.skip = NOT_TRIED;
        }
        (packed, body)
    }

    fn tell(&mut self, ask: &Ask, body: &[u8], stands_for: usize) -> Result<(), RemoteError> {
        if let Err(error) = self.link.tell(ask, body) {
            // A far side that refused and went away has said why before.
            return Err(self.drain(0).err().filter(|told| !told.is_cut()).unwrap_or(error));
        }
        self.under_way.push(stands_for as u64);
        self.pushed.sent += Bytes(body.len() as u64);
        self.drain(UNDER_WAY)
    }

    /// Waits for answers until so many are left.
    fn drain(&mut self, left: usize) -> Result<(), RemoteError> {
        while self.under_way.len() > left {
            match self.link.answer()?.0 {
                Answer::Done {} => self.pushed.done += Bytes(self.under_way.remove(0)),
                other => return Err(unexpected("`done`", &other).into()),
            }
            (self.told)(&self.pushed);
        }
        Ok(())
    }
}

/// A page of digests of a file on the far side.
pub fn digests(link: &Link, path: &FarPath, part: bool, from: u64) -> Result<Vec<Digest>, RemoteError> {
    let ask = Ask::Digests { path: path.clone(), part, from, count: MOST_DIGESTS };
    match link.ask(&ask)? {
        (Answer::Digests { count }, body) if body.len() == count as usize * DIGEST_BYTES && count <= MOST_DIGESTS => {
            let digest = |bytes: &[u8]| bytes.try_into().ok().map(Digest);
            Ok(body.chunks_exact(DIGEST_BYTES).filter_map(digest).collect())
        }
        (other, _) => Err(unexpected("`digests`", &other).into()),
    }
}

/// A file that somebody wrote to meanwhile is not the one that was looked at.
fn unchanged(item: &Item, stamp: &Stamp) -> Result<(), RemoteError> {
    match stamp_of(&item.from)? == *stamp {
        true => Ok(()),
        false => Err(RemoteError::Changed { path: item.from.display().to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_asked_for_what_will_be_written_beside_what_is_there() {
        let stamp =
            |length: usize| Stamp { length: length as u64, seconds: 1, nanos: 0, executable: false, private: false };
        let there = |stamp, part: usize| There { stamp, part: part as u64 };
        let large = stamp(9 * BLOCK);
        for (there, expected) in [
            (there(None, 0), 9 * BLOCK),
            (there(None, 4 * BLOCK), 5 * BLOCK),
            // It looks the same, however it is compared.
            (there(Some(large), 0), 0),
            // The one before it is copied first.
            (there(Some(stamp(12 * BLOCK)), 0), 12 * BLOCK),
            (there(Some(stamp(3 * BLOCK)), 0), 9 * BLOCK),
            (there(Some(stamp(3 * BLOCK)), 3 * BLOCK), 6 * BLOCK),
            (there(None, 20 * BLOCK), 0),
        ] {
            assert_eq!(needed(&large, &there), expected as u64, "{there:?}");
        }
        assert_eq!(needed(&stamp(100), &there(Some(stamp(99 * BLOCK)), 0)), 100);
    }
}
