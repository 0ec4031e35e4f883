//! What was found out about a file, kept in a folder of ours: so that the next start need not look at every row again.
//!
//! Invariants: an index belongs to one version of its file and one way to read it, and both are in it; it is whole or not there (written
//! beside, renamed; a checksum over all of it finds what a crash of the machine may have left). Whoever cannot find, believe or keep
//! one looks at the file again: nothing here is an error. It knows nothing of formats.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use fs_err::File;
use serde::{Deserialize, Serialize};

use crate::Kind;
use crate::columns::{ChosenColumns, Columns};
use crate::input::Origin;
use crate::layout::{Block, DataFacts, Largest, MAX_BLOCK_ROWS};
use crate::packed::sweep;
use crate::page_table::{PageAt, PageTable};

/// Goes up whenever a scan would find other blocks, facts or tables in the same file, or they are written in another way.
const EDITION: u32 = 1;
const MAGIC: &[u8; 8] = b"PLINDEX1";
/// Smaller files are looked at again in no more time than their index would take.
pub(crate) const LEAST_BYTES: u64 = 1 << 20;
/// Longest description in front of the numbers, in bytes. A CSV file may have thousands of columns.
const MOST_HEAD: u32 = 4 << 20;
/// Ways to read one file that are remembered.
const WAYS: usize = 8;
const BLOCK_BYTES: u64 = 20;
const ENTRY_BYTES: u64 = 16;

/// Indices that this process began to write.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// How a file is read: all that its index depends on, beside the file itself.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Way<'a> {
    /// In which format: one file may have names with several endings.
    pub format: &'a str,
    pub kind: Kind,
    pub columns: Asked<'a>,
    /// Bytes of a block.
    pub target: u32,
    #[serde(serialize_with = "limits")]
    pub largest: Largest,
    /// A packed file is read in its own order.
    pub in_order: bool,
}

/// Which columns are read.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) enum Asked<'a> {
    /// It is for the file to say what there is of these.
    #[serde(serialize_with = "both")]
    Wanted(&'a Columns),
    /// Those that files before it decided on.
    #[serde(serialize_with = "names")]
    Chosen(&'a ChosenColumns),
}

impl<'a> Asked<'a> {
    pub fn of(wanted: &'a Columns, chosen: Option<&'a ChosenColumns>) -> Asked<'a> {
        chosen.map_or(Asked::Wanted(wanted), Asked::Chosen)
    }
}

fn both<S: serde::Serializer>(wanted: &Columns, to: S) -> Result<S::Ok, S::Error> {
    (&wanted.source, &wanted.target).serialize(to)
}

/// Whether they were guessed changes nothing.
fn names<S: serde::Serializer>(chosen: &ChosenColumns, to: S) -> Result<S::Ok, S::Error> {
    ChosenColumns { guessed: false, ..chosen.clone() }.serialize(to)
}

fn limits<S: serde::Serializer>(Largest { row, page, skip }: &Largest, to: S) -> Result<S::Ok, S::Error> {
    (row, page, skip).serialize(to)
}

/// What a scan of one file found.
#[derive(Debug, Default)]
pub(crate) struct FileIndex {
    /// Their `file` is 0.
    pub blocks: Vec<Block>,
    pub facts: DataFacts,
    /// The columns that are read from here on.
    pub chosen: Option<ChosenColumns>,
}

/// What only some formats have, and what is kept of such a file has in its own way.
#[derive(Debug, Default)]
pub(crate) struct Special<H, T> {
    /// The columns, where the file itself names them once.
    pub header: H,
    /// Of Parquet: where pages lie.
    pub tables: T,
}

/// As it is lent to be written.
pub(crate) type Lent<'a> = Special<&'a [String], Vec<&'a PageTable>>;
/// As it was read.
pub(crate) type Read = Special<Vec<String>, Vec<PageTable>>;

/// What stands in front of the numbers.
#[derive(Serialize, Deserialize)]
struct Head {
    /// File and way, as [`Indices::place`] writes them.
    of: String,
    facts: DataFacts,
    chosen: Option<ChosenColumns>,
    header: Vec<String>,
    /// Entries of each table.
    tables: Vec<u32>,
}

/// A folder of indices.
#[derive(Debug)]
pub(crate) struct Indices {
    folder: PathBuf,
}

/// Where the index of a file lies, or will.
pub(crate) struct IndexPlace {
    path: PathBuf,
    of: String,
    version: String,
}

impl Indices {
    /// Those in `folder`; what processes that are gone had begun to write is removed.
    pub fn open(folder: &Path) -> Indices {
        let folder = folder.join("index");
        let _ = sweep(&folder);
        Indices { folder }
    }

    /// Where the index of a file lies if it is read in this way. Nothing where the file is small, or might change without that it shows.
    pub fn place(&self, origin: &Origin, way: Way<'_>) -> Option<IndexPlace> {
        if origin.bytes() < LEAST_BYTES {
            return None;
        }
        let version = origin.version()?;
        let name = origin.name().ok()?;
        let of = serde_json::to_string(&(EDITION, env!("CARGO_PKG_VERSION"), &version, way)).ok()?;
        let number = |text: &str| {
            let mut hasher = DefaultHasher::new();
            text.hash(&mut hasher);
            hasher.finish()
        };
        let (path, _) = name.split_once('-')?;
        let file = format!("{path}-{:016x}-{:016x}.index", number(&version), number(&of));
        Some(IndexPlace { path: self.folder.join(file), of, version })
    }

    /// Keeps what a scan found, unless the file changed meanwhile, and forgets earlier versions of the file.
    pub fn keep(&self, place: &IndexPlace, origin: &Origin, index: &FileIndex, special: &Lent<'_>) {
        if origin.version().as_ref() == Some(&place.version) && self.write(place, index, special).is_ok() {
            self.forget(place);
        }
    }

    fn write(&self, place: &IndexPlace, index: &FileIndex, special: &Lent<'_>) -> io::Result<()> {
        fs_err::create_dir_all(&self.folder)?;
        // Loaders of one process may open the same file at the same time.
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let beside = place.path.with_extension(format!("{number}.{}.part", std::process::id()));
        let written = File::create(&beside).and_then(|file| {
            let mut out = Summed { inner: BufWriter::new(file), sum: crc32fast::Hasher::new() };
            write_to(&mut out, &place.of, index, special)?;
            let sum = out.sum.finalize();
            out.inner.write_all(&sum.to_le_bytes())?;
            out.inner.flush()
        });
        let written = written.and_then(|()| fs_err::rename(&beside, &place.path));
        if written.is_err() {
            let _ = fs_err::remove_file(&beside);
        }
        written
    }

    /// Removes indices of earlier versions of a file, and the oldest where there are many ways to read it.
    fn forget(&self, place: &IndexPlace) {
        let parts = |path: &Path| {
            let (file, rest) = path.file_name()?.to_str()?.strip_suffix(".index")?.split_once('-')?;
            Some((file.to_string(), rest.split_once('-')?.0.to_string()))
        };
        let Some((file, version)) = parts(&place.path) else { return };
        let Ok(entries) = fs_err::read_dir(&self.folder) else { return };
        let mut same = Vec::new();
        for path in entries.flatten().map(|entry| entry.path()) {
            match parts(&path) {
                Some((of, other)) if of == file && other == version => same.push(path),
                // Another process may have been quicker.
                Some((of, _)) if of == file => drop(fs_err::remove_file(path)),
                _ => {}
            }
        }
        let age = |path: &PathBuf| fs_err::metadata(path).map(|facts| (facts.mtime(), facts.mtime_nsec())).ok();
        same.sort_by_cached_key(age);
        let many = same.len().saturating_sub(WAYS);
        same.into_iter().take(many).filter(|path| *path != place.path).for_each(|path| drop(fs_err::remove_file(path)));
    }
}

impl IndexPlace {
    /// The index that was kept here, if it is whole.
    pub fn find(&self) -> Option<(FileIndex, Read)> {
        let file = File::open(&self.path).ok()?;
        let bytes = file.metadata().ok()?.len();
        let mut from = Summed { inner: BufReader::new(file), sum: crc32fast::Hasher::new() };
        let found = read_from(&mut from, bytes, &self.of).ok().flatten()?;
        let sum = from.sum.finalize();
        let mut said = [0; 4];
        io::Read::read_exact(&mut from.inner, &mut said).ok()?;
        (said == sum.to_le_bytes()).then_some(found)
    }
}

impl FileIndex {
    /// Whether blocks are such as a scan makes of a file that ends at `end`, in units of [`Block::place`]; `length` says how long one is.
    pub fn is_of(&self, end: Option<u64>, length: fn(&Block) -> u32) -> bool {
        let (mut at, mut rows, mut largest) = (0u64, 0u64, 0);
        for block in &self.blocks {
            let behind = block.place.checked_add(u64::from(length(block)));
            let Some(behind) = behind.filter(|_| block.place >= at && (1..=MAX_BLOCK_ROWS).contains(&block.rows))
            else {
                return false;
            };
            (at, rows, largest) = (behind, rows + u64::from(block.rows), largest.max(block.raw_bytes));
        }
        let facts = &self.facts;
        let counted = (rows, self.blocks.len() as u64, u64::from(largest));
        end.is_none_or(|end| at <= end) && counted == (facts.rows, facts.blocks, facts.largest_block)
    }
}

/// A stream and the checksum of what passed.
struct Summed<T> {
    inner: T,
    sum: crc32fast::Hasher,
}

impl<T: Write> Summed<T> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.inner.write_all(bytes)
    }
}

impl<T: io::Read> Summed<T> {
    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes)?;
        self.sum.update(&bytes);
        Ok(bytes)
    }
}

fn write_to(out: &mut Summed<impl Write>, of: &str, index: &FileIndex, special: &Lent<'_>) -> io::Result<()> {
    let head = Head {
        of: of.into(),
        facts: index.facts,
        chosen: index.chosen.clone(),
        header: special.header.to_vec(),
        tables: special.tables.iter().map(|table| table.entries().len() as u32).collect(),
    };
    let head = serde_json::to_vec(&head)?;
    if head.len() > MOST_HEAD as usize {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too much to be kept"));
    }
    out.put(MAGIC)?;
    out.put(&(head.len() as u32).to_le_bytes())?;
    out.put(&head)?;
    for block in &index.blocks {
        out.put(&block.place.to_le_bytes())?;
        for number in [block.raw_bytes, block.text_bytes, block.rows] {
            out.put(&number.to_le_bytes())?;
        }
    }
    for entry in special.tables.iter().flat_map(|table| table.entries()) {
        out.put(&entry.offset.to_le_bytes())?;
        out.put(&entry.first_row.to_le_bytes())?;
        out.put(&u32::from(entry.dictionary).to_le_bytes())?;
    }
    Ok(())
}

/// Nothing where the file, of so many bytes, is not the index of `of`. No more room is taken than the file's length accounts for.
fn read_from(from: &mut Summed<impl io::Read>, bytes: u64, of: &str) -> io::Result<Option<(FileIndex, Read)>> {
    if from.take::<8>()? != *MAGIC {
        return Ok(None);
    }
    let length = u32::from_le_bytes(from.take()?);
    if length > MOST_HEAD || u64::from(length) > bytes {
        return Ok(None);
    }
    let mut head = vec![0; length as usize];
    from.inner.read_exact(&mut head)?;
    from.sum.update(&head);
    let Ok(head) = serde_json::from_slice::<Head>(&head) else { return Ok(None) };
    let entries: u64 = head.tables.iter().copied().map(u64::from).sum();
    let body = head.facts.blocks.checked_mul(BLOCK_BYTES).and_then(|body| body.checked_add(entries * ENTRY_BYTES));
    let whole = body.and_then(|body| body.checked_add(8 + 4 + u64::from(length) + 4));
    if head.of != of || whole != Some(bytes) {
        return Ok(None);
    }
    let mut blocks = Vec::with_capacity(head.facts.blocks as usize);
    for _ in 0..head.facts.blocks {
        let place = u64::from_le_bytes(from.take()?);
        let mut number = || from.take().map(u32::from_le_bytes);
        let (raw_bytes, text_bytes, rows) = (number()?, number()?, number()?);
        blocks.push(Block { place, raw_bytes, text_bytes, rows, file: 0 });
    }
    let mut tables = Vec::with_capacity(head.tables.len());
    for count in head.tables {
        let mut entries = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let offset = u64::from_le_bytes(from.take()?);
            let (first_row, dictionary) = (u32::from_le_bytes(from.take()?), from.take()? != [0; 4]);
            entries.push(PageAt { offset, first_row, dictionary });
        }
        tables.push(PageTable::of(entries));
    }
    let index = FileIndex { blocks, facts: head.facts, chosen: head.chosen };
    Ok(Some((index, Special { header: head.header, tables })))
}
