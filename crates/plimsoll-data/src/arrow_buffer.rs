//! Buffers of Arrow record batches, read by position: plain ones where they lie, packed ones (lz4, zstd) by unpacking from their
//! beginning and passing over what is not asked for.
//!
//! Invariant: of a buffer at most a chunk is held, or the one value that is longer; nothing is read outside of it, and room is taken
//! only for bytes that came. Going forward costs what is read; going back in a packed buffer begins it again. It knows nothing of
//! rows and types.

use std::fmt;
use std::io::{self, BufReader, Read};
use std::sync::Arc;

use crate::DataError;
use crate::input::Input;
use crate::layout::MAX_ROW_BYTES;

/// Bytes that are read at a time: large enough that system calls cost little, small against a block.
pub(crate) const CHUNK: usize = 16 << 10;
/// The same where places are asked for in no order, as of a dictionary.
const SMALL_CHUNK: usize = 512;
/// Heap of unpacking zstd beside the window: the library's context, one block in and out.
const ZSTD_BYTES: u64 = 512 << 10;
/// Log of the largest window of zstd that is unpacked: what its levels up to 19 need.
const ZSTD_WINDOW_LOG: u32 = 23;

/// How buffers are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    Lz4,
    Zstd,
}

/// Where a buffer lies in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub start: u64,
    /// Bytes as stored.
    pub stored: u64,
    /// Bytes unpacked.
    pub bytes: u64,
    pub codec: Option<Codec>,
}

/// A buffer between reads: where it lies, or itself.
#[derive(Clone, Debug)]
pub(crate) enum Spot {
    Span(Span),
    /// Of a packed dictionary, whose values are asked for in no order.
    Held(Arc<[u8]>),
}

impl Spot {
    pub fn bytes(&self) -> u64 {
        match self {
            Spot::Span(span) => span.bytes,
            Spot::Held(held) => held.len() as u64,
        }
    }

    pub fn is_packed(&self) -> bool {
        matches!(self, Spot::Span(Span { codec: Some(_), .. }))
    }

    /// The whole buffer in memory, where it is packed and not long.
    pub fn held(self, file: &Arc<Input>) -> Result<Spot, BufferFault> {
        let Spot::Span(span @ Span { codec: Some(_), .. }) = self else { return Ok(self) };
        if span.bytes > MAX_ROW_BYTES as u64 {
            return Err(BufferFault::Broken(format!(
                "expected a packed dictionary of at most {MAX_ROW_BYTES} bytes, found {}; write the file without compression",
                span.bytes
            )));
        }
        let mut buffer = Buffer::open(&Spot::Span(span), file, Access::Forward);
        buffer.get(0, span.bytes as usize)?;
        Ok(Spot::Held(buffer.window.into()))
    }
}

/// Why a buffer does not give what was asked of it.
#[derive(Debug)]
pub(crate) enum BufferFault {
    Io(io::Error),
    /// What is wrong with the file.
    Broken(String),
    /// A value longer than [`MAX_ROW_BYTES`].
    TooLong,
}

impl From<io::Error> for BufferFault {
    fn from(error: io::Error) -> BufferFault {
        BufferFault::Io(error)
    }
}

/// In what order places will be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Forward,
    Anywhere,
}

/// A buffer that is being read.
pub(crate) struct Buffer {
    spot: Spot,
    file: Arc<Input>,
    access: Access,
    /// Of a packed buffer: gives the bytes behind the window.
    unpacker: Option<Box<dyn Read + Send>>,
    unpacker_bytes: u64,
    /// The bytes from `from` on that are here.
    window: Vec<u8>,
    from: u64,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("spot", &self.spot).field("from", &self.from).finish_non_exhaustive()
    }
}

impl Buffer {
    /// Reads nothing yet.
    pub fn open(spot: &Spot, file: &Arc<Input>, access: Access) -> Buffer {
        let (spot, file) = (spot.clone(), file.clone());
        Buffer { spot, file, access, unpacker: None, unpacker_bytes: 0, window: Vec::new(), from: 0 }
    }

    /// Heap of reading it, in bytes; a window that grows is there twice for a moment.
    pub fn heap_bytes(&self) -> u64 {
        2 * self.window.capacity() as u64 + self.unpacker_bytes
    }

    /// `count` bytes from `at` on.
    pub fn get(&mut self, at: u64, count: usize) -> Result<&[u8], BufferFault> {
        if count > MAX_ROW_BYTES {
            return Err(BufferFault::TooLong);
        }
        let bytes = self.spot.bytes();
        if at.checked_add(count as u64).is_none_or(|end| end > bytes) {
            return Err(BufferFault::Broken(format!(
                "expected {count} bytes at {at} of a buffer, found {bytes} bytes in all"
            )));
        }
        let here = at >= self.from && at + count as u64 <= self.from + self.window.len() as u64;
        match self.spot {
            Spot::Held(_) => {}
            Spot::Span(_) if here => {}
            Spot::Span(span) => match span.codec {
                None => self.fill(span, at, count)?,
                Some(codec) => self.unpack(span, codec, at, count)?,
            },
        }
        Ok(self.peek(at, count))
    }

    /// Bytes that the last [`Buffer::get`] gave.
    pub fn peek(&self, at: u64, count: usize) -> &[u8] {
        match &self.spot {
            Spot::Held(held) => &held[at as usize..at as usize + count],
            Spot::Span(_) => &self.window[(at - self.from) as usize..][..count],
        }
    }

    /// A number of `width` bytes, without its sign, that has `index` others before it.
    pub fn number(&mut self, index: u64, width: usize) -> Result<u64, BufferFault> {
        let at = index.saturating_mul(width as u64);
        let bytes = self.get(at, width)?;
        let mut eight = [0; 8];
        eight[..width].copy_from_slice(bytes);
        Ok(u64::from_le_bytes(eight))
    }

    /// One bit of a bitmap.
    pub fn bit(&mut self, index: u64) -> Result<bool, BufferFault> {
        Ok(self.get(index / 8, 1)?[0] >> (index % 8) & 1 == 1)
    }

    fn fill(&mut self, span: Span, at: u64, count: usize) -> Result<(), BufferFault> {
        let (chunk, at) = match self.access {
            _ if span.bytes <= CHUNK as u64 => (CHUNK, 0),
            Access::Forward => (CHUNK, at),
            Access::Anywhere => (SMALL_CHUNK, at),
        };
        let wanted = (count.max(chunk) as u64).min(span.bytes - at) as usize;
        if self.window.capacity() < wanted {
            // Not beside the old one.
            self.window = Vec::new();
            self.window.reserve_exact(wanted);
        }
        self.window.resize(wanted, 0);
        self.from = at;
        let read = self.file.read_exact_at(&mut self.window, span.start + at);
        if read.is_err() {
            self.window.clear();
        }
        Ok(read?)
    }

    fn unpack(&mut self, span: Span, codec: Codec, at: u64, count: usize) -> Result<(), BufferFault> {
        if self.unpacker.is_none() || at < self.from {
            self.unpacker = None;
            self.window.clear();
            self.from = 0;
            self.unpacker = Some(self.begin(span, codec)?);
        }
        let end = self.from + self.window.len() as u64;
        let broken = |e: io::Error| match e.get_ref().is_some_and(|inner| inner.is::<DataError>()) {
            true => BufferFault::Io(e),
            false => BufferFault::Broken(format!("a buffer cannot be unpacked: {e}")),
        };
        let short = |found: u64| {
            BufferFault::Broken(format!("expected a buffer of {} bytes when unpacked, found {found}", span.bytes))
        };
        let Some(unpacker) = &mut self.unpacker else { return Ok(()) };
        if at < end {
            self.window.drain(..(at - self.from) as usize);
        } else {
            self.window.clear();
            let passed = io::copy(&mut unpacker.take(at - end), &mut io::sink()).map_err(broken)?;
            if passed < at - end {
                return Err(short(end + passed));
            }
        }
        self.from = at;
        let wanted = (count.max(CHUNK) as u64).min(span.bytes - at) as usize;
        while self.window.len() < wanted {
            // Twice as many each time, so that a length that lies takes no room.
            let had = self.window.len();
            let more = had.max(CHUNK).min(wanted - had);
            self.window.reserve_exact(more);
            let read = unpacker.take(more as u64).read_to_end(&mut self.window).map_err(broken)?;
            if read < more {
                return Err(short(at + self.window.len() as u64));
            }
        }
        Ok(())
    }

    fn begin(&mut self, span: Span, codec: Codec) -> Result<Box<dyn Read + Send>, BufferFault> {
        let section = Section { file: self.file.clone(), at: span.start, end: span.start + span.stored };
        let from = BufReader::with_capacity(CHUNK, section);
        let mut head = [0; 18];
        let known = span.stored.min(head.len() as u64) as usize;
        self.file.read_exact_at(&mut head[..known], span.start)?;
        Ok(match codec {
            Codec::Lz4 => {
                self.unpacker_bytes = CHUNK as u64 + lz4_bytes(&head);
                Box::new(lz4_flex::frame::FrameDecoder::new(from))
            }
            Codec::Zstd => {
                self.unpacker_bytes = CHUNK as u64 + zstd_window(&head) + ZSTD_BYTES;
                let mut decoder = zstd::Decoder::with_buffer(from)?.single_frame();
                decoder.window_log_max(ZSTD_WINDOW_LOG)?;
                Box::new(decoder)
            }
        })
    }
}

/// Heap of unpacking an lz4 frame that begins so: a stored block and an unpacked one, and where blocks refer to those before, one more and
/// 64 KiB.
fn lz4_bytes(head: &[u8; 18]) -> u64 {
    let old = head[..4] == [0x02, 0x21, 0x4c, 0x18];
    let block: u64 = match head[5] >> 4 & 7 {
        // The old form, without a header.
        _ if old => 8 << 20,
        ..=4 => 64 << 10,
        5 => 256 << 10,
        6 => 1 << 20,
        _ => 4 << 20,
    };
    let alone = !old && head[4] & 0x20 != 0;
    if alone { 2 * block } else { 3 * block + (64 << 10) }
}

/// The window of a zstd frame that begins so, in bytes, as far as one is unpacked.
fn zstd_window(head: &[u8; 18]) -> u64 {
    let flags = head[4];
    let window = if flags & 0x20 == 0 {
        let base = 1u64 << (10 + (head[5] >> 3));
        base + base / 8 * u64::from(head[5] & 7)
    } else {
        // One segment: its window is all of it.
        let at = 5 + [0, 1, 2, 4][usize::from(flags & 3)];
        let width = [1, 2, 4, 8][usize::from(flags >> 6)];
        let mut eight = [0; 8];
        eight[..width].copy_from_slice(&head[at..at + width]);
        u64::from_le_bytes(eight).saturating_add(256)
    };
    window.min(1 << ZSTD_WINDOW_LOG)
}

/// A part of a file, from its first byte to its last.
struct Section {
    file: Arc<Input>,
    at: u64,
    end: u64,
}

impl Read for Section {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let most = out.len().min((self.end - self.at) as usize);
        let read = self.file.read_at(&mut out[..most], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
