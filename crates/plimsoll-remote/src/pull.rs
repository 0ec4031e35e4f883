//! Files from the far side: what differs of them, block by block; the mirror image of `push`.
//!
//! Invariant: a file here is whole or as it was before. One that the far side goes on writing to (a journal) is taken as
//! it was when it was listed, where it only grew, and else fetched again.

use std::path::Path;

use fs_err::File;
use plimsoll_machine::{Bytes, space_of};

use crate::file_blocks::{Receiver, blocks_of, read_block};
use crate::link::unexpected;
use crate::push::{Pushed, digests};
use crate::wire::{Answer, Ask, BLOCK, Listed, unpack};
use crate::{FarPath, Link, RemoteError, digest_of};

/// Blocks that may be under way.
const UNDER_WAY: usize = 8;
/// Listings that may hold a file that has changed when it is fetched.
const TRIES: u32 = 5;

/// The files below a far folder.
pub fn list(link: &Link, folder: &FarPath, exclude: &[String]) -> Result<Vec<Listed>, RemoteError> {
    let mut found: Vec<Listed> = Vec::new();
    loop {
        let after = found.last().map(|file| file.path.clone());
        match link.ask(&Ask::List { path: folder.clone(), exclude: exclude.to_vec(), after: after.clone() })?.0 {
            Answer::Files { files, more } => {
                let goes_on = files.first().is_none_or(|first| after.is_none_or(|after| first.path > after));
                if !goes_on || (more && files.is_empty()) {
                    return Err(unexpected("files behind the last one", &Answer::Files { files, more }).into());
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
    let files = list(link, folder, exclude)?;
    fs_err::create_dir_all(into)?;
    let mut receiver = Receiver::into_folder(into);
    let total = Bytes(files.iter().map(|file| file.stamp.length).sum());
    let mut pulled = Pushed { total, ..Pushed::default() };
    let differs = |file: &&Listed| receiver.there(&file.path).stamp != Some(file.stamp);
    let needed = |file: &Listed| file.stamp.length.saturating_sub(receiver.there(&file.path).part);
    let needed = Bytes(files.iter().filter(differs).map(needed).sum());
    let free = space_of(into).map_err(|error| RemoteError::Io(std::io::Error::other(error.to_string())))?.available;
    if needed > free {
        return Err(RemoteError::NoRoom { place: into.display().to_string(), needed, free });
    }
    for file in &files {
        if receiver.there(&file.path).stamp == Some(file.stamp) {
            pulled.unchanged += 1;
            pulled.done += Bytes(file.stamp.length);
        } else {
            fetch(link, folder, file, &mut receiver, &mut pulled, told)?;
        }
        pulled.files += 1;
        told(&pulled);
    }
    Ok(pulled)
}

fn fetch(
    link: &Link,
    folder: &FarPath,
    file: &Listed,
    receiver: &mut Receiver,
    pulled: &mut Pushed,
    told: &mut dyn FnMut(&Pushed),
) -> Result<(), RemoteError> {
    let (path, far) = (&file.path, folder.join(&file.path)?);
    let (length, there) = (file.stamp.length, receiver.begin(path)?);
    let mut wanted = Vec::new();
    // Where there is nothing to compare with, nothing is compared.
    let page = |from: u64| if there == 0 { Ok(Vec::new()) } else { digests(link, &far, false, from) };
    let own = File::open(receiver.part(path))?;
    let (mut digests, mut from, mut bytes) = (page(0)?, 0, Vec::new());
    for block in 0..blocks_of(length) {
        if there > 0 && block >= from + digests.len() as u64 {
            (digests, from) = (page(block)?, block);
        }
        read_block(&own, block, &mut bytes)?;
        // The last block of a file that has grown since differs on the far side, and is asked for.
        let same =
            digests.get((block - from) as usize) == Some(&digest_of(&bytes)) && bytes.len() == span(length, block);
        match same {
            true => pulled.done += Bytes(bytes.len() as u64),
            false => wanted.push(block),
        }
    }
    let (mut asked, mut came, mut changed) = (0, 0, false);
    // Whatever was asked for is answered, also where the file has changed: the next question is for another file.
    while came < asked || (came < wanted.len() && !changed) {
        while asked < wanted.len() && asked - came < UNDER_WAY && !changed {
            link.tell(&Ask::Get { path: far.clone(), block: wanted[asked] }, &[])?;
            asked += 1;
        }
        match link.answer()? {
            (Answer::Block { digest, packed }, body) => {
                pulled.sent += Bytes(body.len() as u64);
                let bytes = unpack(&far, body, packed, &digest)?;
                match bytes.get(..span(length, wanted[came])) {
                    Some(bytes) => {
                        receiver.put(path, wanted[came], bytes)?;
                        pulled.done += Bytes(bytes.len() as u64);
                    }
                    None => changed = true,
                }
                came += 1;
                told(pulled);
            }
            (other, _) => return Err(unexpected("`block`", &other).into()),
        }
    }
    if changed {
        return Err(RemoteError::Changed { path: far.to_string() });
    }
    // What was rewritten while we read may be a mixture; what only grew is not.
    let now = match link.ask(&Ask::Look { paths: vec![far.clone()] })?.0 {
        Answer::Seen { files } => files.first().and_then(|there| there.stamp),
        other => return Err(unexpected("`seen`", &other).into()),
    };
    let grown = [".jsonl", ".log"].iter().any(|end| path.as_str().ends_with(end));
    match now {
        Some(now) if now == file.stamp || (grown && now.length >= length) => Ok(receiver.finish(path, &file.stamp)?),
        _ => Err(RemoteError::Changed { path: far.to_string() }),
    }
}

/// Bytes of one block of a file of `length`.
fn span(length: u64, block: u64) -> usize {
    length.saturating_sub(block * BLOCK as u64).min(BLOCK as u64) as usize
}
