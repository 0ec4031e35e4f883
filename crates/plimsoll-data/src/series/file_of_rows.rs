//! A file of normalised rows in the cache folder: made once for a version of the files and what of a spec their rows follow from, found again
//! by the next run, and removed when a newer version takes its place or nobody has opened it for [`UNUSED`].
//!
//! A header of [`HEADER`] bytes, features of all rows (f32), cells of all rows (f64), a description (JSON); low bytes first. Invariants: a file is whole
//! or not there (written beside, synced, renamed), and is only taken where its length and the checksums of header, rows and description are right; else it
//! is made anew. Rows may be put in any order; those that follow each other are written together.

use std::fs::FileTimes;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fs_err::{File, OpenOptions};

use super::error::SeriesError;
use super::store::RowShape;
use crate::DataError;
use crate::packed::sweep;

/// Bytes of a feature and of a cell.
pub(crate) const FEATURE_BYTES: u64 = size_of::<f32>() as u64;
pub(crate) const CELL_BYTES: u64 = size_of::<f64>() as u64;
/// Bytes before the first row: 4096, so that rows begin at a page.
pub(crate) const HEADER: u64 = 4096;
const MAGIC: &[u8; 8] = b"PLSERIE2";
/// What a header says: magic, rows, features, cells, bytes of the description, checksums of rows and description, and of all this.
const SAID: usize = 8 + 8 + 8 + 8 + 8 + 4 + 4 + 4;
/// Bytes of rows that are gathered before they are written.
const GATHERED: usize = 4 << 20;
const ENDING: &str = "series";
/// How long a file is kept that nobody opens.
const UNUSED: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Where the file of a name lies, or will. The part of a name before its first dash is the same for all versions.
pub(crate) fn place(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.{ENDING}"))
}

static WRITERS: AtomicU64 = AtomicU64::new(0);

/// Writes a file of rows. One that is not finished leaves nothing behind.
pub(crate) struct RowsWriter {
    shape: RowShape,
    rows: u64,
    file: File,
    beside: PathBuf,
    place: PathBuf,
    /// Rows that were not written yet: where each belongs, and what it has.
    places: Vec<u64>,
    features: Vec<f32>,
    cells: Vec<f64>,
    /// The bytes of rows that follow each other.
    bytes: Vec<u8>,
    most: usize,
}

impl RowsWriter {
    pub fn start(folder: &Path, place: PathBuf, shape: RowShape, rows: u64) -> Result<RowsWriter, DataError> {
        fs_err::create_dir_all(folder)?;
        sweep(folder)?;
        forget_unused(folder, SystemTime::now())?;
        let needed = HEADER + shape.bytes(rows).unwrap_or(0);
        check_room(folder, needed, free(folder))?;
        // Two of one process do not write to the same.
        let number = WRITERS.fetch_add(1, Ordering::Relaxed);
        let beside = place.with_extension(format!("{number}.{}.part", std::process::id()));
        let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&beside)?;
        file.set_len(needed)?;
        let most = (GATHERED / shape.bytes(1).unwrap_or(1).max(1) as usize).max(1);
        Ok(RowsWriter {
            shape,
            rows,
            file,
            beside,
            place,
            places: Vec::with_capacity(most),
            features: Vec::with_capacity(most * shape.features),
            cells: Vec::with_capacity(most * shape.cells),
            bytes: Vec::with_capacity(most * shape.features.max(2 * shape.cells) * 4),
            most,
        })
    }

    pub fn put(&mut self, row: u64, features: &[f32], cells: &[f64]) -> io::Result<()> {
        self.places.push(row);
        self.features.extend_from_slice(features);
        self.cells.extend_from_slice(cells);
        if self.places.len() == self.most { self.write() } else { Ok(()) }
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("cannot write `{}`: {e}", self.beside.display()));
        self.file.file().write_all_at(bytes, at).map_err(named)
    }

    fn write(&mut self) -> io::Result<()> {
        let mut order: Vec<usize> = (0..self.places.len()).collect();
        order.sort_by_key(|at| self.places[*at]);
        let cells_at = HEADER + self.rows * self.shape.features as u64 * FEATURE_BYTES;
        let RowShape { features, cells } = self.shape;
        let mut rest = &order[..];
        while let Some(first) = rest.first() {
            let from = self.places[*first];
            let follow = rest.iter().zip(from..).take_while(|(at, row)| self.places[**at] == *row).count();
            let (run, behind) = rest.split_at(follow);
            self.bytes.clear();
            for at in run {
                let row = &self.features[at * features..][..features];
                row.iter().for_each(|x| self.bytes.extend_from_slice(&x.to_le_bytes()));
            }
            self.write_at(&self.bytes, HEADER + from * features as u64 * FEATURE_BYTES)?;
            self.bytes.clear();
            for at in run {
                let row = &self.cells[at * cells..][..cells];
                row.iter().for_each(|x| self.bytes.extend_from_slice(&x.to_le_bytes()));
            }
            self.write_at(&self.bytes, cells_at + from * cells as u64 * CELL_BYTES)?;
            rest = behind;
        }
        self.places.clear();
        self.features.clear();
        self.cells.clear();
        Ok(())
    }

    /// Writes what is left, the description behind it, and puts all in its place; the file, open: another process may remove it as soon as
    /// it has made one of another version.
    pub fn finish(mut self, description: &[u8]) -> io::Result<File> {
        self.write()?;
        let end = HEADER + self.shape.bytes(self.rows).unwrap_or(0);
        let rows_checksum = checksum(&self.file, HEADER..end)?;
        self.write_at(description, end)?;
        let said = said(self.shape, self.rows, description.len() as u64, [rows_checksum, crc32fast::hash(description)]);
        self.write_at(&said, 0)?;
        self.file.sync_all()?;
        fs_err::rename(&self.beside, &self.place)?;
        if let Some(folder) = self.place.parent() {
            forget_earlier(folder, &self.place)?;
            File::open(folder)?.sync_all()?;
        }
        Ok(File::from_parts(self.file.file().try_clone()?, &self.place))
    }
}

impl Drop for RowsWriter {
    fn drop(&mut self) {
        // Of one that is finished it has another name by now.
        let _ = fs_err::remove_file(&self.beside);
    }
}

fn said(shape: RowShape, rows: u64, description: u64, checksums: [u32; 2]) -> Vec<u8> {
    let mut said = MAGIC.to_vec();
    for number in [rows, shape.features as u64, shape.cells as u64, description] {
        said.extend_from_slice(&number.to_le_bytes());
    }
    checksums.iter().for_each(|checksum| said.extend_from_slice(&checksum.to_le_bytes()));
    let own = crc32fast::hash(&said);
    said.extend_from_slice(&own.to_le_bytes());
    said
}

/// Bytes that are read at a time for a checksum.
const READ_BACK: usize = 1 << 20;

fn checksum(file: &File, range: std::ops::Range<u64>) -> io::Result<u32> {
    let (mut hasher, mut buffer, mut at) = (crc32fast::Hasher::new(), vec![0; READ_BACK], range.start);
    while at < range.end {
        let count = READ_BACK.min((range.end - at) as usize);
        file.file().read_exact_at(&mut buffer[..count], at)?;
        hasher.update(&buffer[..count]);
        at += count as u64;
    }
    Ok(hasher.finalize())
}

/// Free bytes of the disk of a folder; none where nobody says.
fn free(folder: &Path) -> Option<u64> {
    rustix::fs::statvfs(folder).ok().map(|space| space.f_bavail.saturating_mul(space.f_frsize))
}

/// Refuses a file that the disk has no room for, before any of it is written.
fn check_room(folder: &Path, needed: u64, free: Option<u64>) -> Result<(), SeriesError> {
    match free {
        Some(free) if free < needed => Err(SeriesError::NoRoom { folder: folder.into(), needed, free }),
        _ => Ok(()),
    }
}

/// The file at `place`, its rows and its description, where there is one, whole, of this shape, with a description of at most `longest` bytes.
pub(crate) fn find(place: &Path, shape: RowShape, longest: u64) -> Option<(File, u64, Vec<u8>)> {
    let file = File::open(place).ok()?;
    let bytes = file.metadata().ok()?.len();
    let mut head = [0; SAID];
    file.file().read_exact_at(&mut head, 0).ok()?;
    let eight = |at: usize| head[at..at + 8].try_into().map(u64::from_le_bytes).ok();
    let four = |at: usize| head[at..at + 4].try_into().map(u32::from_le_bytes).ok();
    let (rows, described) = (eight(8)?, eight(32)?);
    if described > longest || head[..] != said(shape, rows, described, [four(40)?, four(44)?])[..] {
        return None;
    }
    let end = HEADER.checked_add(shape.bytes(rows)?)?;
    if end.checked_add(described)? != bytes || checksum(&file, HEADER..end).ok()? != four(40)? {
        return None;
    }
    let mut description = vec![0; described as usize];
    file.file().read_exact_at(&mut description, end).ok()?;
    // Its time of reading alone; where that cannot be set, it is made anew some day.
    let _ = file.file().set_times(FileTimes::new().set_accessed(SystemTime::now()));
    (crc32fast::hash(&description) == four(44)?).then_some((file, rows, description))
}

/// Removes files that nobody has opened for long.
fn forget_unused(folder: &Path, now: SystemTime) -> io::Result<()> {
    for entry in fs_err::read_dir(folder)? {
        let path = entry?.path();
        let opened = || fs_err::metadata(&path).and_then(|facts| facts.accessed()).ok();
        let unused = |at: SystemTime| now.duration_since(at).is_ok_and(|since| since > UNUSED);
        if path.extension().is_some_and(|ending| ending == ENDING) && opened().is_some_and(unused) {
            // Another process may have been quicker.
            let _ = fs_err::remove_file(path);
        }
    }
    Ok(())
}

/// Removes the files of earlier versions; whoever reads one has it open, and never looks for it by its name again.
fn forget_earlier(folder: &Path, place: &Path) -> io::Result<()> {
    let of_name = |path: &Path| Some(path.file_name()?.to_str()?.split_once('-')?.0.to_string());
    for entry in fs_err::read_dir(folder)? {
        let other = entry?.path();
        let ours = other.extension().is_some_and(|ending| ending == ENDING);
        if ours && other != place && of_name(&other) == of_name(place) {
            // Another process may have been quicker.
            let _ = fs_err::remove_file(other);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_put_in_any_order_lie_in_theirs_and_damage_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let shape = RowShape { features: 3, cells: 1 };
        let path = place(folder.path(), "name-1");
        fs_err::write(place(folder.path(), "name-0"), "an earlier one").unwrap();
        let mut writer = RowsWriter::start(folder.path(), path.clone(), shape, 50).unwrap();
        writer.most = 7;
        for at in 0..50u64 {
            let row = at * 17 % 50;
            writer.put(row, &[row as f32, 0.5, -1.0], &[row as f64 / 3.0]).unwrap();
        }
        // Another one of this process, that is given up.
        drop(RowsWriter::start(folder.path(), path.clone(), shape, 50).unwrap());
        assert_eq!(writer.finish(b"what it is").unwrap().path(), path);
        assert!(!place(folder.path(), "name-0").exists());
        assert_eq!(fs_err::read_dir(folder.path()).unwrap().count(), 1);
        let found = |shape: RowShape| find(&path, shape, 10).map(|(_, rows, description)| (rows, description));
        assert_eq!(found(shape), Some((50, b"what it is".to_vec())));
        assert_eq!(found(RowShape { features: 1, cells: 2 }), None);
        assert!(find(&path, shape, 9).is_none());
        let bytes = fs_err::read(&path).unwrap();
        for row in 0..50usize {
            let four = &bytes[HEADER as usize + row * 12..][..4];
            assert_eq!(four, (row as f32).to_le_bytes());
            let eight = &bytes[HEADER as usize + 600 + row * 8..][..8];
            assert_eq!(eight, (row as f64 / 3.0).to_le_bytes());
        }
        let changed = |at: usize| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 4;
            bytes
        };
        let damaged = [
            changed(3),
            changed(9),
            changed(41),
            changed(4100),
            changed(bytes.len() - 1),
            bytes[..bytes.len() - 1].to_vec(),
        ];
        for bytes in damaged {
            fs_err::write(&path, bytes).unwrap();
            assert_eq!(found(shape), None);
        }
    }

    #[test]
    fn what_the_disk_has_no_room_for_is_refused_with_both_numbers() {
        let told = check_room(Path::new("cache"), 1001, Some(1000)).unwrap_err().to_string();
        assert!(told.contains("`cache`") && told.contains("1001 bytes") && told.contains("1000"), "{told}");
        assert!(check_room(Path::new("cache"), 1001, Some(1001)).is_ok());
        assert!(check_room(Path::new("cache"), u64::MAX, None).is_ok());
        // More than any disk.
        let (folder, shape) = (tempfile::tempdir().unwrap(), RowShape { features: 1, cells: 0 });
        let place = place(folder.path(), "name-1");
        assert!(RowsWriter::start(folder.path(), place, shape, 1 << 58).is_err());
        assert_eq!(fs_err::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_nobody_opened_for_a_month_goes_and_one_that_was_found_stays() {
        let folder = tempfile::tempdir().unwrap();
        let shape = RowShape { features: 1, cells: 1 };
        let make = |name: &str| {
            let path = place(folder.path(), name);
            let mut writer = RowsWriter::start(folder.path(), path.clone(), shape, 1).unwrap();
            writer.put(0, &[1.0], &[2.0]).unwrap();
            writer.finish(b"{}").unwrap();
            path
        };
        let (used, unused) = (make("a-1"), make("b-1"));
        let long_ago = SystemTime::now() - 2 * UNUSED;
        for path in [&used, &unused] {
            let file = File::open(path).unwrap();
            file.file().set_times(FileTimes::new().set_accessed(long_ago)).unwrap();
        }
        assert!(find(&used, shape, 2).is_some());
        let new = make("c-1");
        assert!(used.exists() && !unused.exists() && new.exists());
    }
}
