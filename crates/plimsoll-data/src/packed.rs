//! Packed files of text (`.gz`, `.zst`), entered anywhere.
//!
//! Such a file can only be read from its beginning, unless it is a `.zst` of many frames (`zstd_frames.rs`), which is read where it lies.
//! So it is packed anew, once, in frames of [`FRAME`] bytes that each stand alone, into a folder of ours; the user's data are not touched.
//! Or, where the job says so, it is read in its own order only ([`InOrder`]). What is kept of it is where each frame begins. Invariants: a file of
//! frames is whole or not there (written beside, synced, renamed); it belongs to one version of its original (length and time of
//! change, or what a store says); one frame is held at a time. It knows nothing of rows.

use std::io::{self, BufRead, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fs_err::File;
use zstd::bulk::{Compressor, Decompressor};

use crate::DataError;
use crate::input::Origin;
use crate::zstd_frames;

/// Bytes of a frame before it is packed: as a large block of rows, so that one or two frames are unpacked for a block.
pub(crate) const FRAME: usize = 256 << 10;
/// Heap of reading frames: one packed, one unpacked, and the library's own.
pub(crate) const READ_HEAP: u64 = 2 * FRAME as u64 + (16 << 10) + (192 << 10);
/// How hard frames are packed: about as small as `.gz`, at hundreds of megabytes a second.
const LEVEL: i32 = 1;
const READ_BYTES: usize = 256 << 10;
/// The end of a file of frames: this, and before it the number of frames and of unpacked bytes.
const MAGIC: &[u8; 8] = b"PLIMFRM1";
const FOOTER: u64 = 24;

/// How a file is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    Gzip,
    Zstd,
}

impl Packing {
    /// By the end of a file's name; and the name without it.
    pub fn of(name: &str) -> Option<(Packing, &str)> {
        let endings = [(".gz", Packing::Gzip), (".zst", Packing::Zstd), (".zstd", Packing::Zstd)];
        endings.into_iter().find_map(|(ending, packing)| Some((packing, name.strip_suffix(ending)?)))
    }
}

/// A file packed in frames.
#[derive(Debug)]
pub(crate) struct Frames {
    path: PathBuf,
    /// Where each begins, and behind the last one.
    starts: Box<[u64]>,
    unpacked: u64,
    /// Of a file that is read where it lies.
    own: Option<Own>,
}

/// Frames that are the file itself.
#[derive(Debug)]
struct Own {
    origin: Origin,
    /// Where each begins when it is unpacked, and behind the last one.
    places: Box<[u64]>,
}

/// Buffers of reading frames.
pub(crate) struct FrameScratch {
    unpacker: Decompressor<'static>,
    packed: Vec<u8>,
    frame: Vec<u8>,
    /// Which frame is there, of which file.
    holds: Option<(PathBuf, usize)>,
}

impl FrameScratch {
    pub fn new() -> io::Result<FrameScratch> {
        Ok(FrameScratch {
            unpacker: Decompressor::new()?,
            packed: Vec::with_capacity(zstd::zstd_safe::compress_bound(FRAME)),
            frame: Vec::with_capacity(FRAME),
            holds: None,
        })
    }
}

impl Frames {
    /// The file that they lie in, where it is one of ours.
    pub fn path(&self) -> Option<&Path> {
        self.own.is_none().then_some(self.path.as_path())
    }

    /// Bytes of the file, unpacked.
    pub fn unpacked(&self) -> u64 {
        self.unpacked
    }

    /// The frames of `original`, if they were made before.
    pub fn find(original: &Origin, folder: &Path) -> Option<Frames> {
        Frames::open(place_of(original, folder).ok()?).ok()
    }

    fn open(path: PathBuf) -> io::Result<Frames> {
        let file = File::open(&path)?;
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "not a whole file of frames");
        let end = file.metadata()?.len().checked_sub(FOOTER).ok_or_else(broken)?;
        let mut footer = [0; FOOTER as usize];
        file.file().read_exact_at(&mut footer, end)?;
        let number = |at: usize| u64::from_le_bytes(footer[at..at + 8].try_into().expect("eight bytes"));
        let (count, unpacked) = (number(0), number(8));
        let table =
            count.checked_add(1).and_then(|n| n.checked_mul(8)).filter(|bytes| *bytes <= end).ok_or_else(broken)?;
        if &footer[16..] != MAGIC || unpacked.div_ceil(FRAME as u64) != count {
            return Err(broken());
        }
        let mut bytes = vec![0; table as usize];
        file.file().read_exact_at(&mut bytes, end - table)?;
        let starts: Box<[u64]> =
            bytes.chunks_exact(8).map(|eight| u64::from_le_bytes(eight.try_into().expect("eight bytes"))).collect();
        let most = zstd::zstd_safe::compress_bound(FRAME) as u64;
        let good = |pair: &[u64]| pair[1].checked_sub(pair[0]).is_some_and(|length| length <= most);
        if starts.first() != Some(&0) || starts.last() != Some(&(end - table)) || !starts.windows(2).all(good) {
            return Err(broken());
        }
        Ok(Frames { path, starts, unpacked, own: None })
    }

    /// The frames of a `.zst` that has small ones of its own.
    pub fn own(original: &Origin) -> io::Result<Option<Frames>> {
        let (file, bytes) = (original.open()?, original.bytes());
        let Some(runs) = zstd_frames::find(&file, bytes, FRAME as u64)? else { return Ok(None) };
        Ok(Some(Frames {
            path: original.path().into(),
            starts: runs.iter().map(|run| run.packed).collect(),
            unpacked: runs.last().map_or(0, |run| run.unpacked),
            own: Some(Own { origin: original.clone(), places: runs.iter().map(|run| run.unpacked).collect() }),
        }))
    }

    /// Heap of reading them: one packed, one unpacked, and the library's own.
    pub fn read_heap(&self) -> u64 {
        let Some(own) = &self.own else { return READ_HEAP };
        let longest = |starts: &[u64]| starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        let packed = longest(&self.starts).max(zstd::zstd_safe::compress_bound(FRAME) as u64);
        READ_HEAP.max(packed + longest(&own.places).max(FRAME as u64) + (192 << 10))
    }

    /// The number of the frame that has unpacked byte `at`, and where it begins.
    fn holding(&self, at: u64) -> (usize, u64) {
        match &self.own {
            None => ((at / FRAME as u64) as usize, at - at % FRAME as u64),
            Some(own) => {
                let number = own.places.partition_point(|place| *place <= at).saturating_sub(1);
                (number, own.places[number])
            }
        }
    }

    /// Heap of what is kept, in bytes.
    pub fn heap_bytes(&self) -> u64 {
        let own = self.own.as_ref().map_or(0, |own| own.origin.heap_bytes() + size_of_val(&*own.places) as u64);
        (size_of_val(&*self.starts) + self.path.capacity()) as u64 + own
    }

    /// Bytes on the disk that were not there before.
    pub fn disk_bytes(&self) -> u64 {
        if self.own.is_some() {
            return 0;
        }
        self.starts.last().copied().unwrap_or(0) + size_of_val(&*self.starts) as u64 + FOOTER
    }

    /// Fills `out` from unpacked byte `place` on.
    pub fn read_exact_at(&self, scratch: &mut FrameScratch, place: u64, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < out.len() {
            let at = place + done as u64;
            let (frame, begins) = self.holding(at);
            if frame + 1 >= self.starts.len() {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "behind the last frame"));
            }
            self.load(scratch, frame)?;
            let from = scratch.frame.get((at - begins) as usize..).unwrap_or_default();
            if from.is_empty() {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a frame is shorter than it was"));
            }
            let count = from.len().min(out.len() - done);
            out[done..done + count].copy_from_slice(&from[..count]);
            done += count;
        }
        Ok(())
    }

    fn load(&self, scratch: &mut FrameScratch, frame: usize) -> io::Result<()> {
        if scratch.holds.as_ref().is_some_and(|(path, held)| *held == frame && *path == self.path) {
            return Ok(());
        }
        if scratch.holds.take().is_some_and(|(path, _)| path != self.path) {
            // What another file needed is not what this one was planned with.
            (scratch.packed, scratch.frame) = (Vec::new(), Vec::new());
        }
        let range = self.starts[frame]..self.starts[frame + 1];
        fresh(&mut scratch.packed, (range.end - range.start) as usize).resize((range.end - range.start) as usize, 0);
        match &self.own {
            None => {
                fresh(&mut scratch.frame, FRAME);
                File::open(&self.path)?.file().read_exact_at(&mut scratch.packed, range.start)?;
            }
            Some(own) => {
                own.origin.open()?.read_exact_at(&mut scratch.packed, range.start)?;
                fresh(&mut scratch.frame, (own.places[frame + 1] - own.places[frame]) as usize);
            }
        }
        scratch.unpacker.decompress_to_buffer(&scratch.packed[..], &mut scratch.frame)?;
        let whole = |own: &Own| scratch.frame.len() as u64 == own.places[frame + 1] - own.places[frame];
        if !self.own.as_ref().is_none_or(whole) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame unpacks to something else than it says"));
        }
        scratch.holds = Some((self.path.clone(), frame));
        Ok(())
    }
}

/// Empties `buffer` and gives it room for `bytes`: what it had goes before more is taken.
fn fresh(buffer: &mut Vec<u8>, bytes: usize) -> &mut Vec<u8> {
    buffer.clear();
    if buffer.capacity() < bytes {
        *buffer = Vec::new();
        buffer.reserve_exact(bytes);
    }
    buffer
}

/// Where the frames of `original` as it is now lie, or will.
fn place_of(original: &Origin, folder: &Path) -> io::Result<PathBuf> {
    Ok(folder.join(format!("{}.frames", original.name()?)))
}

/// Removes the frames of earlier versions of a file; whoever still reads them is told that it changed in any case.
fn forget_earlier(folder: &Path, place: &Path) -> io::Result<()> {
    let of_path = |path: &Path| Some(path.file_name()?.to_str()?.split_once('-')?.0.to_string());
    for entry in fs_err::read_dir(folder)? {
        let other = entry?.path();
        let frames = other.extension().is_some_and(|ending| ending == "frames");
        if frames && other != place && of_path(&other) == of_path(place) {
            // Another process may have been quicker.
            let _ = fs_err::remove_file(other);
        }
    }
    Ok(())
}

/// Removes what processes that are gone had begun to write.
pub(crate) fn sweep(folder: &Path) -> io::Result<()> {
    for entry in fs_err::read_dir(folder)? {
        let path = entry?.path();
        let writer = || path.file_name()?.to_str()?.strip_suffix(".part")?.rsplit('.').next()?.parse::<u32>().ok();
        if writer().is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Another process may have been quicker.
            let _ = fs_err::remove_file(path);
        }
    }
    Ok(())
}

/// The unpacked bytes of a file, from its beginning; whatever is read is packed in frames behind it.
pub(crate) struct Unpacking {
    from: Box<dyn Read + Send>,
    frame: Vec<u8>,
    used: usize,
    packer: Compressor<'static>,
    out: BufWriter<File>,
    starts: Vec<u64>,
    unpacked: u64,
    /// Written here, then renamed.
    beside: PathBuf,
    place: PathBuf,
}

impl Unpacking {
    /// Begins at the beginning of `original`.
    pub fn start(original: &Origin, packing: Packing, folder: &Path) -> Result<Unpacking, DataError> {
        let place = place_of(original, folder)?;
        fs_err::create_dir_all(folder)?;
        sweep(folder)?;
        let beside = place.with_extension(format!("{}.part", std::process::id()));
        let from = unpacked(original, packing, None)?;
        let mut packer = Compressor::new(LEVEL)?;
        packer.set_parameter(zstd::zstd_safe::CParameter::ChecksumFlag(true))?;
        Ok(Unpacking {
            from,
            frame: Vec::with_capacity(FRAME),
            used: 0,
            packer,
            out: BufWriter::with_capacity(READ_BYTES, File::create(&beside)?),
            starts: vec![0],
            unpacked: 0,
            beside,
            place,
        })
    }

    /// Reads and packs the next frame; nothing is left in it at the end.
    fn next_frame(&mut self) -> io::Result<()> {
        self.frame.clear();
        self.used = 0;
        self.from.by_ref().take(FRAME as u64).read_to_end(&mut self.frame)?;
        if self.frame.is_empty() {
            return Ok(());
        }
        let packed = self.packer.compress(&self.frame)?;
        self.out.write_all(&packed)?;
        self.unpacked += self.frame.len() as u64;
        self.starts.push(self.starts.last().copied().unwrap_or(0) + packed.len() as u64);
        Ok(())
    }

    /// Keeps the frames; everything must have been read.
    pub fn finish(mut self) -> Result<Frames, DataError> {
        for start in &self.starts {
            self.out.write_all(&start.to_le_bytes())?;
        }
        self.out.write_all(&(self.starts.len() as u64 - 1).to_le_bytes())?;
        self.out.write_all(&self.unpacked.to_le_bytes())?;
        self.out.write_all(MAGIC)?;
        self.out.flush()?;
        self.out.get_ref().sync_all()?;
        fs_err::rename(&self.beside, &self.place)?;
        if let Some(folder) = self.place.parent() {
            forget_earlier(folder, &self.place)?;
            File::open(folder)?.sync_all()?;
        }
        Ok(Frames::open(self.place.clone())?)
    }
}

/// The bytes of a packed file, from the first on. A `.zst` that looks back further than `window_log` says is refused.
fn unpacked(original: &Origin, packing: Packing, window_log: Option<u32>) -> io::Result<Box<dyn Read + Send>> {
    let file = original.reader(READ_BYTES)?;
    Ok(match packing {
        Packing::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
        Packing::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(file)?;
            window_log.map(|log| decoder.window_log_max(log)).transpose()?;
            Box::new(decoder)
        }
    })
}

/// Of what a `.zst` looks back at, 8 MiB: as far as the usual levels go.
const WINDOW_LOG: u32 = 23;

/// A packed file that is read from its beginning to its end, and from its beginning again where an earlier byte is asked for.
pub(crate) struct InOrder {
    path: PathBuf,
    from: Box<dyn Read + Send>,
    at: u64,
}

impl InOrder {
    /// Heap of reading one: the buffer, and what a packing looks back at, which more than the usual levels make longer than is planned for:
    /// such a file is refused here, and can be packed anew.
    pub fn heap_bytes(packing: Packing) -> u64 {
        READ_BYTES as u64
            + match packing {
                Packing::Gzip => 128 << 10,
                Packing::Zstd => (1 << WINDOW_LOG) + (1 << 20),
            }
    }

    /// Fills `out` from unpacked byte `place` on. `open` is what was read last, of any file.
    pub fn read_exact_at(
        open: &mut Option<InOrder>,
        original: &Origin,
        packing: Packing,
        place: u64,
        out: &mut [u8],
    ) -> io::Result<()> {
        let goes_on = |held: &InOrder| held.path == original.path() && held.at <= place;
        if !open.as_ref().is_some_and(goes_on) {
            *open = None;
            *open = Some(InOrder {
                path: original.path().into(),
                from: unpacked(original, packing, Some(WINDOW_LOG))?,
                at: 0,
            });
        }
        let Some(held) = open else { return Ok(()) };
        let between = place - held.at;
        held.at += io::copy(&mut held.from.by_ref().take(between), &mut io::sink())?;
        held.from.read_exact(out)?;
        held.at += out.len() as u64;
        Ok(())
    }

    /// The bytes of a file, from the first on.
    pub fn reader(original: &Origin, packing: Packing) -> io::Result<Box<dyn BufRead>> {
        Ok(Box::new(io::BufReader::with_capacity(READ_BYTES, unpacked(original, packing, Some(WINDOW_LOG))?)))
    }
}

/// Reads what a buffer has.
fn read_buffered(from: &mut impl BufRead, out: &mut [u8]) -> io::Result<usize> {
    let there = from.fill_buf()?;
    let count = there.len().min(out.len());
    out[..count].copy_from_slice(&there[..count]);
    from.consume(count);
    Ok(count)
}

impl Read for Unpacking {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        read_buffered(self, out)
    }
}

impl BufRead for Unpacking {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.used == self.frame.len() {
            self.next_frame()?;
        }
        Ok(&self.frame[self.used..])
    }

    fn consume(&mut self, count: usize) {
        self.used += count;
    }
}

impl Drop for Unpacking {
    fn drop(&mut self) {
        // Gone already where it was finished.
        let _ = fs_err::remove_file(&self.beside);
    }
}

/// The unpacked bytes of frames, from the first on.
pub(crate) struct FrameReader<'a> {
    frames: &'a Frames,
    scratch: FrameScratch,
    at: u64,
}

impl<'a> FrameReader<'a> {
    pub fn new(frames: &'a Frames) -> io::Result<FrameReader<'a>> {
        Ok(FrameReader { frames, scratch: FrameScratch::new()?, at: 0 })
    }
}

impl Read for FrameReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        read_buffered(self, out)
    }
}

impl BufRead for FrameReader<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at >= self.frames.unpacked {
            return Ok(&[]);
        }
        let (frame, begins) = self.frames.holding(self.at);
        self.frames.load(&mut self.scratch, frame)?;
        Ok(self.scratch.frame.get((self.at - begins) as usize..).unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        self.at += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|i| b"abc def\n"[(i * i / 7 + i) % 8]).collect()
    }

    fn gz(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn any_part_of_a_packed_file_is_read_from_its_frames() {
        let dir = tempfile::tempdir().unwrap();
        for bytes in [0, 1, FRAME, FRAME + 1, 3 * FRAME - 5] {
            let want = text(bytes);
            // Several members behind each other are one stream.
            let (first, second) = want.split_at(bytes / 3);
            let zst = [zstd::encode_all(first, 3).unwrap(), zstd::encode_all(second, 3).unwrap()].concat();
            for (name, packing, packed) in
                [("a.gz", Packing::Gzip, [gz(first), gz(second)].concat()), ("a.zst", Packing::Zstd, zst)]
            {
                let (path, folder) = (dir.path().join(format!("{bytes}-{name}")), dir.path().join("cache"));
                fs_err::write(&path, packed).unwrap();
                let found = Origin::find(&path, None).unwrap();
                let mut unpacking = Unpacking::start(&found, packing, &folder).unwrap();
                let mut read = Vec::new();
                unpacking.read_to_end(&mut read).unwrap();
                assert!(read == want);
                unpacking.finish().unwrap();
                let frames = Frames::find(&found, &folder).unwrap();
                assert_eq!(frames.unpacked, bytes as u64);
                let mut again = Vec::new();
                FrameReader::new(&frames).unwrap().read_to_end(&mut again).unwrap();
                assert!(again == want);
                let mut scratch = FrameScratch::new().unwrap();
                for (from, to) in [
                    (0, bytes),
                    (bytes / 2, bytes),
                    (bytes.saturating_sub(1), bytes),
                    (FRAME.min(bytes) / 2, bytes.min(FRAME + 9)),
                ] {
                    let mut part = vec![0; to - from];
                    frames.read_exact_at(&mut scratch, from as u64, &mut part).unwrap();
                    assert!(part == want[from..to], "{bytes}: {from}..{to}");
                }
                assert!(frames.read_exact_at(&mut scratch, bytes as u64, &mut [0]).is_err());
                // Another version of the file has frames of its own.
                fs_err::write(&path, gz(b"other")).unwrap();
                assert!(Frames::find(&found, &folder).is_none());
            }
        }
    }

    #[test]
    fn what_a_process_that_is_gone_had_begun_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gz");
        fs_err::write(&path, gz(b"text")).unwrap();
        // No process has a number above the kernel's highest.
        let (gone, ours) =
            (dir.path().join("1-2-3.4194305.part"), dir.path().join(format!("1-2-3.{}.part", std::process::id())));
        [&gone, &ours].into_iter().for_each(|part| fs_err::write(part, "").unwrap());
        drop(Unpacking::start(&Origin::find(&path, None).unwrap(), Packing::Gzip, dir.path()).unwrap());
        assert!(!gone.exists() && ours.exists());
    }

    #[test]
    fn the_library_takes_no_more_than_is_planned_for_it() {
        let packed = zstd::bulk::compress(&text(FRAME), LEVEL).unwrap();
        let mut unpacker = zstd::zstd_safe::DCtx::create();
        unpacker.decompress(&mut vec![0; FRAME][..], &packed).unwrap();
        let bound = zstd::zstd_safe::compress_bound(FRAME) + FRAME + unpacker.sizeof();
        assert!(bound as u64 <= READ_HEAP, "{bound} of {READ_HEAP}");
    }

    #[test]
    fn a_damaged_file_of_frames_is_not_taken_for_one_or_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gz");
        fs_err::write(&path, gz(&text(2 * FRAME))).unwrap();
        let mut unpacking = Unpacking::start(&Origin::find(&path, None).unwrap(), Packing::Gzip, dir.path()).unwrap();
        std::io::copy(&mut unpacking, &mut std::io::sink()).unwrap();
        let place = unpacking.place.clone();
        assert!(!place.exists(), "not there before it is whole");
        unpacking.finish().unwrap();
        let whole = fs_err::read(&place).unwrap();
        for at in 0..whole.len() {
            // Every byte of the tables, and some of the frames.
            if at + 64 < whole.len() && at % 997 != 0 {
                continue;
            }
            let mut bytes = whole.clone();
            bytes[at] ^= 0x41;
            fs_err::write(&place, &bytes).unwrap();
            let Some(frames) = Frames::find(&Origin::find(&path, None).unwrap(), dir.path()) else { continue };
            let mut all = Vec::new();
            assert!(FrameReader::new(&frames).unwrap().read_to_end(&mut all).is_err(), "byte {at}");
        }
        fs_err::write(&place, &whole[..whole.len() - 1]).unwrap();
        assert!(Frames::find(&Origin::find(&path, None).unwrap(), dir.path()).is_none());
    }
}
