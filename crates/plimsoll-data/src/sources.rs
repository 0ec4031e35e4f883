//! The opened files of one data set: found, checked, indexed.
//!
//! Invariant: what opens is whole: each row of each file was seen and is what its kind says. Opened sources hold no file
//! open and no text. They know nothing of order, tokens and batches.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::arrow_file::{self, ArrowFile, ArrowScratch};
use crate::block_cache::BlockCache;
use crate::columns::{ChosenColumns, Columns};
use crate::form::Form;
use crate::input::{Origin, Reach};
use crate::layout::{Block, BlockBuilder, DataFacts, PARQUET_BLOCK, block_target};
use crate::order::mix;
use crate::packed::Packing;
use crate::page_cache::{self, LET_GO_EVERY, Pages, READ_AHEAD, ReadOnce};
use crate::parquet_file::{self, ParquetFile};
use crate::remote::{RemoteFiles, expand_url, remote_url};
use crate::rows::{self, RowFile, RowScratch, Scan};
use crate::window::{RowPlace, Texts};
use crate::{DataError, Kind, Order};

/// Files of rows, checked and indexed.
#[derive(Debug)]
pub struct Sources {
    files: Box<[DataFile]>,
    blocks: Box<[Block]>,
    columns: ChosenColumns,
    facts: DataFacts,
    /// Bytes that were read since pages were let go, where they are.
    read: Option<AtomicU64>,
}

/// How files are opened.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// Where packed files are unpacked to, and parts of files that lie elsewhere are kept.
    pub folder: Option<&'a Path>,
    /// Bytes of files that the kernel may keep in memory for us. Where the files are larger, hardly any of them stay.
    pub cached: u64,
    /// How files that lie elsewhere are read.
    pub elsewhere: Option<Elsewhere<'a>>,
}

/// How files that lie elsewhere (named by URLs) are read.
#[derive(Clone, Copy, Debug)]
pub struct Elsewhere<'a> {
    /// Who reads them.
    pub files: &'a Arc<dyn RemoteFiles>,
    /// The most bytes of them that lie in [`Opening::folder`], shared by all who use that folder; at least [`crate::LEAST_CACHE`].
    pub cache: u64,
}

impl Default for Opening<'_> {
    fn default() -> Self {
        Opening { folder: None, cached: u64::MAX, elsewhere: None }
    }
}

#[derive(Debug)]
struct DataFile {
    origin: Origin,
    kept: Kept,
}

/// What is kept of a file between reads.
#[derive(Debug)]
enum Kept {
    Rows(RowFile),
    Parquet(ParquetFile),
    Arrow(ArrowFile),
}

/// The most that one window of an order holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowRoom {
    pub text_bytes: u64,
    pub rows: u64,
}

impl Sources {
    /// Files of pairs; see [`Sources::open_kind`].
    pub fn open(patterns: &[PathBuf], wanted: Columns) -> Result<Sources, DataError> {
        Sources::open_kind(patterns, Kind::Pairs, wanted)
    }

    /// As [`Sources::open_with`], with no folder for what is unpacked.
    pub fn open_kind(patterns: &[PathBuf], kind: Kind, wanted: Columns) -> Result<Sources, DataError> {
        Sources::open_in(patterns, kind, wanted, None)
    }

    /// As [`Sources::open_with`]; all pages of files may stay.
    pub fn open_in(
        patterns: &[PathBuf],
        kind: Kind,
        wanted: Columns,
        folder: Option<&Path>,
    ) -> Result<Sources, DataError> {
        Sources::open_with(patterns, kind, wanted, Opening { folder, ..Opening::default() })
    }

    /// Finds the files of `patterns` (paths, URLs or globs, in the order given, each glob sorted), checks and indexes them. Packed ones
    /// are unpacked once into a folder, in frames that can be entered anywhere; what lies elsewhere is read by blocks that are kept there.
    pub fn open_with(
        patterns: &[PathBuf],
        kind: Kind,
        wanted: Columns,
        Opening { folder, cached, elsewhere }: Opening<'_>,
    ) -> Result<Sources, DataError> {
        let paths = expand(patterns, elsewhere.map(|elsewhere| &**elsewhere.files))?;
        let reach = match (elsewhere, folder) {
            (Some(Elsewhere { files, cache }), Some(folder)) if paths.iter().any(|path| remote_url(path).is_some()) => {
                Some(Reach { files: files.clone(), cache: Arc::new(BlockCache::open(folder, cache)?) })
            }
            _ => None,
        };
        let (mut bytes, mut stored) = (0, 0);
        let mut origins = Vec::with_capacity(paths.len());
        for path in &paths {
            let (_, packing) = format(path)?;
            if packing.is_some() && folder.is_none() {
                return Err(DataError::NoFolder { path: path.clone() });
            }
            let origin = Origin::find(path, reach.as_ref())?;
            bytes += origin.bytes() * if packing.is_some() { UNPACKED } else { 1 };
            stored += origin.bytes();
            origins.push(origin);
        }
        let read = (stored > cached).then(|| AtomicU64::new(0));
        let pages = if read.is_some() { Pages::Go } else { Pages::Stay };
        if let Some(reach) = &reach {
            reach.cache.keep(pages);
        }
        let target = block_target(bytes);
        let mut builder = BlockBuilder::new(target);
        let mut chosen = None;
        let mut files = Vec::with_capacity(paths.len());
        if let Some(reach) = &reach {
            builder.facts.remote_bytes = BlockCache::heap_bytes() + reach.files.heap_bytes();
        }
        for (number, mut origin) in origins.into_iter().enumerate() {
            let file = number as u32;
            let (chosen, builder) = (&mut chosen, &mut builder);
            let (format, packing) = format(origin.path())?;
            origin.keep(pages);
            let once = pages == Pages::Go && !origin.is_remote();
            builder.read_once = once.then(|| ReadOnce::new(origin.path())).transpose()?;
            builder.aim_at(if matches!(format, Format::Parquet) { target.max(PARQUET_BLOCK) } else { target });
            let kept = match format {
                Format::Rows(form) => {
                    let packed = packing.zip(folder);
                    Kept::Rows(rows::scan(
                        Scan { origin: &origin, file, form, packed, kind, wanted: &wanted },
                        chosen,
                        builder,
                    )?)
                }
                Format::Parquet => Kept::Parquet(parquet_file::scan(&origin, file, kind, &wanted, chosen, builder)?),
                Format::Arrow => Kept::Arrow(arrow_file::scan(&origin, file, kind, &wanted, chosen, builder)?),
            };
            files.push(DataFile { origin, kept });
        }
        let (blocks, mut facts) = builder.finish();
        facts.files = files.len() as u64;
        match chosen {
            Some(columns) if facts.rows > 0 => Ok(Sources { files: files.into(), blocks, columns, facts, read }),
            _ => Err(DataError::NoRows {
                files: files.len(),
                path: files.first().map(|f| f.origin.path().into()).unwrap_or_default(),
            }),
        }
    }

    /// Rows in all files.
    pub fn rows(&self) -> u64 {
        self.facts.rows
    }

    /// What a row is.
    pub fn kind(&self) -> Kind {
        self.columns.kind
    }

    /// Which columns are read, and whether they were guessed.
    pub fn columns(&self) -> &ChosenColumns {
        &self.columns
    }

    /// What was found out, for the plan.
    pub fn facts(&self) -> &DataFacts {
        &self.facts
    }

    /// The files, in order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|f| f.origin.path())
    }

    /// Tells these rows from others: a number of where each block lies, how long it is, and of the columns that are read. Copies of
    /// the files elsewhere have the same; a change that moves no row in its file is not seen.
    pub fn fingerprint(&self) -> u64 {
        let ChosenColumns { source, target, input, .. } = &self.columns;
        let names = [source.as_str(), target.as_str(), input.as_deref().unwrap_or_default()];
        let letters = names.iter().flat_map(|name| name.bytes().map(u64::from).chain([u64::MAX]));
        let block = |b: &Block| {
            [b.place, u64::from(b.raw_bytes), u64::from(b.text_bytes), u64::from(b.rows), u64::from(b.file)]
        };
        letters.chain(self.blocks.iter().flat_map(block)).fold(self.rows(), |state, word| mix(state ^ mix(word)))
    }

    /// Bytes on the disk that were needed to unpack.
    pub fn unpacked_bytes(&self) -> u64 {
        let of = |f: &DataFile| if let Kept::Rows(kept) = &f.kept { kept.disk_bytes() } else { 0 };
        self.files.iter().map(of).sum()
    }

    /// Bytes of files that lie elsewhere: so much of the disk is taken for parts of them, as far as that may be.
    pub fn remote_bytes(&self) -> u64 {
        self.files.iter().filter(|f| f.origin.is_remote()).map(|f| f.origin.bytes()).sum()
    }

    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Heap of the index itself, in bytes.
    pub(crate) fn index_bytes(&self) -> u64 {
        let paths: u64 = self.files.iter().map(|f| f.origin.heap_bytes()).sum();
        let kept = |f: &DataFile| if let Kept::Rows(kept) = &f.kept { kept.heap_bytes() } else { 0 };
        let headers: u64 = self.files.iter().map(kept).sum();
        let ChosenColumns { source, target, input, .. } = &self.columns;
        let names = source.capacity() + target.capacity() + input.as_ref().map_or(0, String::capacity);
        size_of_val(&*self.blocks) as u64
            + size_of_val(&*self.files) as u64
            + paths
            + names as u64
            + headers
            + self.facts.row_group_bytes
    }

    /// The most that any window of `order` can hold: its N largest blocks, whichever they are.
    pub(crate) fn window_room(&self, order: Order) -> WindowRoom {
        let most = |of: fn(&Block) -> u32| -> u64 {
            let n = order.window_blocks().min(self.blocks.len());
            // A heap of the N largest, smallest on top: no copy of the index.
            let mut top = std::collections::BinaryHeap::with_capacity(n + 1);
            for block in &self.blocks {
                top.push(std::cmp::Reverse(of(block)));
                if top.len() > n {
                    top.pop();
                }
            }
            top.iter().map(|v| u64::from(v.0)).sum()
        };
        WindowRoom { text_bytes: most(|b| b.text_bytes), rows: most(|b| b.rows) }
    }

    /// `error`, with the file and the place of the row that it came of.
    pub(crate) fn named(&self, at: RowPlace, error: DataError) -> DataError {
        let block = self.blocks[at.block as usize];
        let file = &self.files[block.file as usize];
        let place = match &file.kept {
            Kept::Rows(kept) => rows::line_of(&file.origin, kept, block, at.row)
                .map_or_else(|_| format!("a row behind byte {}", block.place), |line| format!("line {line}")),
            Kept::Parquet(_) | Kept::Arrow(_) => format!("row {}", block.place + u64::from(at.row)),
        };
        DataError::Row { path: file.origin.path().into(), place, error: Box::new(error) }
    }

    /// Now and then lets the pages of all files go, where they are not to stay.
    fn let_go_behind(&self, bytes: u64) -> Result<(), DataError> {
        let Some(read) = &self.read else { return Ok(()) };
        if read.fetch_add(bytes, Ordering::Relaxed) + bytes < LET_GO_EVERY {
            return Ok(());
        }
        read.store(0, Ordering::Relaxed);
        for file in &self.files {
            let frames = if let Kept::Rows(kept) = &file.kept { kept.frames_path() } else { None };
            // Blocks of what lies elsewhere are let go when they have been read.
            let local = (!file.origin.is_remote()).then(|| file.origin.path());
            frames.or(local).map(page_cache::let_go).transpose()?;
        }
        Ok(())
    }

    /// Appends the rows of a block to `texts`.
    pub(crate) fn read_block(
        &self,
        number: usize,
        scratch: &mut ReadScratch,
        texts: &mut Texts,
    ) -> Result<(), DataError> {
        let block = self.blocks[number];
        let file = &self.files[block.file as usize];
        let pages = [&self.facts.source_pages, &self.facts.target_pages, &self.facts.input_pages];
        let more = READ_AHEAD + pages.iter().map(|pages| pages.largest_stored).sum::<u64>();
        self.let_go_behind(u64::from(block.raw_bytes) + more)?;
        match &file.kept {
            Kept::Rows(kept) => rows::read(&file.origin, kept, &self.columns, block, &mut scratch.rows, texts),
            Kept::Parquet(kept) => parquet_file::read(&file.origin, kept, &self.columns, block, texts),
            Kept::Arrow(kept) => arrow_file::read(&file.origin, kept, &self.columns, block, &mut scratch.arrow, texts),
        }
    }
}

/// Buffers for reading blocks of any kind.
pub(crate) struct ReadScratch {
    rows: RowScratch,
    arrow: ArrowScratch,
}

impl ReadScratch {
    /// Buffers that fit each block of `sources`.
    pub fn for_sources(sources: &Sources) -> ReadScratch {
        let facts = sources.facts();
        let any = sources.files.iter().any(|f| matches!(f.kept, Kept::Rows(_)));
        let room = |bytes: u64| if any { bytes as usize } else { 0 };
        ReadScratch {
            rows: RowScratch::with_room(
                room(facts.largest_block),
                room(facts.longest_line),
                room(facts.longest_source),
                room(facts.longest_target),
            ),
            arrow: ArrowScratch::default(),
        }
    }
}

enum Format {
    Rows(Form),
    Parquet,
    Arrow,
}

/// How much larger packed text usually is when it is unpacked.
const UNPACKED: u64 = 4;

fn format(path: &Path) -> Result<(Format, Option<Packing>), DataError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let (packing, inner) = Packing::of(&name).map_or((None, name.as_str()), |(packing, inner)| (Some(packing), inner));
    let ends = |endings: &[&str]| endings.iter().any(|e| inner.ends_with(e));
    let format = if ends(&[".jsonl", ".ndjson", ".jsonlines", ".json"]) {
        Format::Rows(Form::Json)
    } else if ends(&[".csv"]) {
        Format::Rows(Form::Csv { delimiter: b',' })
    } else if ends(&[".tsv", ".tab"]) {
        Format::Rows(Form::Csv { delimiter: b'\t' })
    } else if ends(&[".txt", ".text"]) {
        Format::Rows(Form::Line)
    } else if ends(&[".parquet"]) && packing.is_none() {
        Format::Parquet
    } else if ends(&[".arrow", ".arrows", ".feather"]) && packing.is_none() {
        Format::Arrow
    } else if packing.is_some() || ends(&[".bz2", ".xz", ".lz4", ".zip", ".7z"]) {
        return Err(DataError::Packed { path: path.into() });
    } else {
        return Err(DataError::UnknownFormat { path: path.into() });
    };
    Ok((format, packing))
}

fn expand(patterns: &[PathBuf], files: Option<&dyn RemoteFiles>) -> Result<Vec<PathBuf>, DataError> {
    let mut paths = Vec::new();
    for pattern in patterns {
        if let (Some(url), Some(files)) = (remote_url(pattern), files) {
            paths.extend(expand_url(url, files)?);
            continue;
        }
        let text = pattern.to_string_lossy().into_owned();
        if remote_url(pattern).is_some() || pattern.is_file() || !text.contains(['*', '?', '[']) {
            paths.push(pattern.clone());
            continue;
        }
        let before = paths.len();
        let found =
            glob::glob(&text).map_err(|e| DataError::BadPattern { pattern: text.clone(), reason: e.to_string() })?;
        for path in found {
            let path = path.map_err(|e| DataError::Io(e.into()))?;
            if path.is_file() {
                paths.push(path);
            }
        }
        if paths.len() == before {
            return Err(DataError::NoFiles { pattern: text });
        }
    }
    if paths.is_empty() {
        return Err(DataError::NoFiles { pattern: String::new() });
    }
    Ok(paths)
}
