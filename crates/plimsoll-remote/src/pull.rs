//! Files from the far side: what differs of them, block by block; the mirror image of `push`.
//!
//! Invariant: a file here is whole or as it was before. One that the far side goes on writing to (a journal) is taken as
//! it was when it was listed, where it only grew, and else fetched again. Whatever the far side lists, it takes a bounded part of
//! our memory, and no more of our disk than is free.

use std::path::Path;

use fs_err::File;
use plimsoll_machine::{Bytes, space_of};

use crate::file_blocks::{Receiver, blocks_of, read_block};
use crate::link::unexpected;
use crate::push::{Pushed, digests};
use crate::select::Excludes;
use crate::wire::{Answer, Ask, BLOCK, Listed, MOST_DIGESTS, Stamp, unpack};
use crate::{FarPath, Link, RemoteError, digest_of};

/// Blocks that may be under way.
const UNDER_WAY: usize = 8;
/// Most bytes that a listing takes here.
const MOST_LISTED: usize = 128 << 20;
/// Listings that may hold a file that has changed when it is fetched.
const TRIES: u32 = 5;

/// The files below a far folder.
pub fn list(link: &Link, folder: &FarPath, exclude: &[String]) -> Result<Vec<Listed>, RemoteError> {
    let (mut found, mut size): (Vec<Listed>, usize) = (Vec::new(), 0);
    loop {
        let after = found.last().map(|file| file.path.clone());
        match link.ask(&Ask::List { path: folder.clone(), exclude: exclude.to_vec(), after: after.clone() })?.0 {
            Answer::Files { files, more } => {
                let goes_on = files.first().is_none_or(|first| after.is_none_or(|after| first.path > after));
                if !goes_on || (more && files.is_empty()) {
                    return Err(unexpected("files behind the last one", &Answer::Files { files, more }).into());
                }
                size += files.iter().map(|file| file.path.as_str().len() + size_of::<Listed>()).sum::<usize>();
                if size > MOST_LISTED {
                    let (host, most) = (link.host().to_string(), Bytes(MOST_LISTED as u64).to_string());
                    return Err(RemoteError::TooMuch { host, what: "names of files", most });
                }
                found.extend(files);
                if !more {
                    return Ok(found);
                }
            }
            other => return Err(unexpected("`files`", &other).into()),
        }
    }
}

/// Brings what is missing of a far folder into `into`; `told` hears how far it is.
pub fn pull(
    link: &Link,
    folder: &FarPath,
    exclude: &[String],
    into: &Path,
    told: &mut dyn FnMut(&Pushed),
) -> Result<Pushed, RemoteError> {
    for _ in 1..TRIES {
        match pull_listed(link, folder, exclude, into, told) {
            Err(RemoteError::Changed { .. }) => {}
            other => return other,
        }
    }
    pull_listed(link, folder, exclude, into, told)
}

fn pull_listed(
    link: &Link,
    folder: &FarPath,
    exclude: &[String],
    into: &Path,
    told: &mut dyn FnMut(&Pushed),
) -> Result<Pushed, RemoteError> {
    let mut files = list(link, folder, exclude)?;
    // Whatever is listed: what was left out is not written over.
    let left_out = Excludes::new(exclude)?;
    files.retain(|file| !left_out.leaves_out(file.path.as_str()));
    fs_err::create_dir_all(into)?;
    let mut receiver = Receiver::into_folder(into);
    let sum = |lengths: &mut dyn Iterator<Item = u64>| Bytes(lengths.fold(0, u64::saturating_add));
    let total = sum(&mut files.iter().map(|file| file.stamp.length));
    let mut pulled = Pushed { total, ..Pushed::default() };
    let is_here = |receiver: &Receiver, file: &Listed| {
        receiver.there(&file.path).stamp.is_some_and(|here| file.stamp.is_met_by(&here))
    };
    let needed = |file: &Listed| file.stamp.length.saturating_sub(receiver.there(&file.path).part);
    let needed = sum(&mut files.iter().filter(|file| !is_here(&receiver, file)).map(needed));
    let free = space_of(into).map_err(|error| RemoteError::Io(std::io::Error::other(error.to_string())))?.available;
    if needed > free {
        return Err(RemoteError::NoRoom { place: into.display().to_string(), needed, free });
    }
    for file in &files {
        if is_here(&receiver, file) {
            pulled.unchanged += 1;
            pulled.done += Bytes(file.stamp.length);
        } else {
            let (path, far, length) = (&file.path, folder.join(&file.path)?, file.stamp.length);
            let (receiver, pulled) = (&mut receiver, &mut pulled);
            Fetch { link, path, far, length, receiver, pulled, told }.all(&file.stamp)?;
        }
        pulled.files += 1;
        told(&pulled);
    }
    Ok(pulled)
}

/// A file on its way here.
struct Fetch<'a> {
    link: &'a Link,
    path: &'a FarPath,
    /// The same over there.
    far: FarPath,
    length: u64,
    receiver: &'a mut Receiver,
    pulled: &'a mut Pushed,
    told: &'a mut dyn FnMut(&Pushed),
}

impl Fetch<'_> {
    fn all(&mut self, listed: &Stamp) -> Result<(), RemoteError> {
        let there = self.receiver.begin(self.path, listed.private)?;
        let own = File::open(self.receiver.part(self.path))?;
        let (mut bytes, blocks) = (Vec::new(), blocks_of(self.length));
        // Page by page, so that a file of any length takes no more memory than one of a few GiB.
        for first in (0..blocks).step_by(MOST_DIGESTS as usize) {
            // Where there is nothing to compare with, nothing is compared.
            let digests = if there == 0 { Vec::new() } else { digests(self.link, &self.far, false, first)? };
            let mut wanted = Vec::new();
            for block in first..blocks.min(first + u64::from(MOST_DIGESTS)) {
                // The last block of a file that has grown since differs on the far side, and is asked for.
                if let Some(digest) = digests.get((block - first) as usize) {
                    read_block(&own, block, &mut bytes)?;
                    if *digest == digest_of(&bytes) && bytes.len() == span(self.length, block) {
                        self.pulled.done += Bytes(bytes.len() as u64);
                        continue;
                    }
                }
                wanted.push(block);
            }
            self.bring(&wanted)?;
        }
        // What was rewritten while we read may be a mixture; what only grew is not.
        let now = match self.link.ask(&Ask::Look { paths: vec![self.far.clone()] })?.0 {
            Answer::Seen { files } => files.first().and_then(|there| there.stamp),
            other => return Err(unexpected("`seen`", &other).into()),
        };
        let grows = [".jsonl", ".log"].iter().any(|end| self.path.as_str().ends_with(end));
        match now {
            Some(now) if now == *listed || (grows && now.length >= self.length) => {
                Ok(self.receiver.finish(self.path, listed)?)
            }
            _ => Err(self.changed()),
        }
    }

    fn bring(&mut self, wanted: &[u64]) -> Result<(), RemoteError> {
        let (mut asked, mut came, mut changed) = (0, 0, false);
        // Whatever was asked for is answered, also where the file has changed: the next question is for another file.
        while came < asked || (came < wanted.len() && !changed) {
            while asked < wanted.len() && asked - came < UNDER_WAY && !changed {
                self.link.tell(&Ask::Get { path: self.far.clone(), block: wanted[asked] }, &[])?;
                asked += 1;
            }
            match self.link.answer()? {
                (Answer::Block { digest, packed }, body) => {
                    self.pulled.sent += Bytes(body.len() as u64);
                    let bytes = unpack(&self.far, body, packed, &digest)?;
                    match bytes.get(..span(self.length, wanted[came])) {
                        Some(bytes) => {
                            let put = self.receiver.put(self.path, wanted[came], bytes);
                            put.map_err(|error| {
                                let part = self.receiver.part(self.path);
                                std::io::Error::new(error.kind(), format!("cannot write `{}`: {error}", part.display()))
                            })?;
                            self.pulled.done += Bytes(bytes.len() as u64);
                        }
                        None => changed = true,
                    }
                    came += 1;
                    (self.told)(self.pulled);
                }
                (other, _) => return Err(unexpected("`block`", &other).into()),
            }
        }
        if changed { Err(self.changed()) } else { Ok(()) }
    }

    fn changed(&self) -> RemoteError {
        RemoteError::Changed { path: self.far.to_string() }
    }
}

/// Bytes of one block of a file of `length`.
fn span(length: u64, block: u64) -> usize {
    length.saturating_sub(block * BLOCK as u64).min(BLOCK as u64) as usize
}
