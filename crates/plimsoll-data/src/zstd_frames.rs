//! Where the frames of a `.zst` file begin, by their headers alone (RFC 8878): a file of many small frames, as seekable and parallel
//! writers make them, can be entered at each of them where it lies.
//!
//! Invariant: nothing is unpacked. Frames that do not say how long they are, or are long, make the file one that cannot be entered. It
//! knows nothing of rows.

use std::io;

use crate::input::Input;

/// The longest frame that is unpacked for a block of rows, in bytes.
pub(crate) const LONGEST: u64 = 4 << 20;

/// Of a frame of that length: a writer that flushes often makes small ones.
const MOST_BLOCKS: usize = 1 << 14;

/// Frames that are unpacked together: where they begin, packed and unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub packed: u64,
    pub unpacked: u64,
}

const MAGIC: u32 = 0xfd2f_b528;
/// Of frames with something else in them, in the upper 28 bits.
const SKIPPABLE: u32 = 0x184d_2a50;

/// What a header says of its frame.
struct Header {
    /// Of itself.
    bytes: u64,
    content: u64,
    checksum: bool,
}

/// Runs of about `run` unpacked bytes, and the end of the last; `None`: the file cannot be entered.
pub(crate) fn find(file: &Input, length: u64, run: u64) -> io::Result<Option<Vec<Run>>> {
    let (mut at, mut unpacked) = (0, 0);
    let mut runs = vec![Run { packed: 0, unpacked: 0 }];
    while at < length {
        let mut head = [0; 18];
        let there = (length - at).min(head.len() as u64) as usize;
        file.read_exact_at(&mut head[..there], at)?;
        let head = &head[..there];
        let Some(magic) = number(head, 4) else { return Ok(None) };
        if magic as u32 & !15 == SKIPPABLE {
            let Some(bytes) = head.get(4..).and_then(|rest| number(rest, 4)) else { return Ok(None) };
            at += 8 + bytes;
            if at.saturating_sub(runs[runs.len() - 1].packed) > 2 * LONGEST {
                return Ok(None);
            }
            continue;
        }
        let Some(header) = (magic as u32 == MAGIC).then(|| header(&head[4..])).flatten() else { return Ok(None) };
        if header.content > LONGEST {
            return Ok(None);
        }
        let Some(end) = end_of_blocks(file, at + 4 + header.bytes, length)? else { return Ok(None) };
        let last = runs[runs.len() - 1];
        // What lies between frames is read with them, and packed bytes may be more than the unpacked.
        if end - last.packed > 2 * LONGEST {
            return Ok(None);
        }
        // A run ends before the frame that would make it long.
        if last.unpacked < unpacked && unpacked + header.content - last.unpacked > run {
            runs.push(Run { packed: at, unpacked });
        }
        unpacked += header.content;
        at = end + if header.checksum { 4 } else { 0 };
    }
    runs.push(Run { packed: length, unpacked });
    Ok((at == length).then_some(runs))
}

/// A number of the first bytes, the lowest first.
fn number(bytes: &[u8], count: usize) -> Option<u64> {
    Some(bytes.get(..count)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// `None` where it does not say how long its content is, or needs a dictionary that nobody has.
fn header(bytes: &[u8]) -> Option<Header> {
    let descriptor = *bytes.first()?;
    let single = descriptor & 0x20 != 0;
    let window = usize::from(!single);
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size = match descriptor >> 6 {
        0 if single => 1,
        0 => return None,
        1 => 2,
        2 => 4,
        _ => 8,
    };
    let behind = 1 + window;
    if dictionary > 0 && number(bytes.get(behind..)?, dictionary)? != 0 {
        return None;
    }
    let content = number(bytes.get(behind + dictionary..)?, size)? + if size == 2 { 256 } else { 0 };
    Some(Header { bytes: (behind + dictionary + size) as u64, content, checksum: descriptor & 4 != 0 })
}

/// Where the blocks of a frame, the first of which is at `at`, end. A frame that is not long has few of them.
fn end_of_blocks(file: &Input, mut at: u64, length: u64) -> io::Result<Option<u64>> {
    for _ in 0..MOST_BLOCKS {
        let mut head = [0; 3];
        if at + 3 > length {
            return Ok(None);
        }
        file.read_exact_at(&mut head, at)?;
        let Some(head) = number(&head, 3) else { return Ok(None) };
        at += 3 + match head >> 1 & 3 {
            // One byte, many times.
            1 => 1,
            3 => return Ok(None),
            _ => head >> 3,
        };
        if head & 1 == 1 {
            return Ok((at <= length).then_some(at));
        }
    }
    Ok(None)
}
