//! The opened files of one data set: found, checked, indexed.
//!
//! Invariant: what opens is whole: each row of each file was seen, now or when its index was kept, and is what its kind says. Opened
//! sources hold no file open and no text. They know nothing of order, tokens and batches.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::arrow_file::{self, ArrowScratch};
use crate::block_cache::BlockCache;
use crate::columns::{ChosenColumns, Columns};
use crate::data_file::{DataFile, Kept, Look, format};
use crate::input::{Origin, Reach};
use crate::kept_index::Indices;
use crate::layout::{Block, DataFacts, Largest, block_target};
use crate::mixture::{DataSet, Set, Weight};
use crate::order::mix;
use crate::packed::Packing;
use crate::page_cache::{self, LET_GO_EVERY, Pages, READ_AHEAD};
use crate::parquet_file;
use crate::patterns::expand;
use crate::prepared::{self, Prepared};
use crate::remote::{RemoteFiles, remote_url};
use crate::rows::{self, RowScratch};
use crate::visits::{Deal, Laid, largest};
use crate::window::{RowPlace, Texts};
use crate::{DataError, Kind, Order};

/// Files of rows, checked and indexed.
#[derive(Debug)]
pub struct Sources {
    files: Box<[DataFile]>,
    blocks: Box<[Block]>,
    /// In the order of their blocks; one, where there is no mixture.
    sets: Box<[Set]>,
    facts: DataFacts,
    /// Bytes that were read since pages were let go, where they are.
    read: Option<AtomicU64>,
    /// The tokens of the rows, instead of files.
    prepared: Option<Prepared>,
}

/// How files are opened.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// Where packed files are unpacked to, and where parts of files that lie elsewhere and what was found out about files are kept.
    pub folder: Option<&'a Path>,
    /// Bytes of files that the kernel may keep in memory for us. Where the files are larger, hardly any of them stay.
    pub cached: u64,
    /// How files that lie elsewhere are read.
    pub elsewhere: Option<Elsewhere<'a>>,
    /// What is too large to be read.
    pub largest: Largest,
    /// Packed files that cannot be entered where they lie are read in their own order, from the beginning for each pass and at each start,
    /// and take no disk. Only for an order that does not shuffle.
    pub in_order: bool,
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
        Opening { folder: None, cached: u64::MAX, elsewhere: None, largest: Largest::default(), in_order: false }
    }
}

/// The most that one window of an order holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowRoom {
    pub text_bytes: u64,
    pub rows: u64,
    pub visits: u64,
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
        opening: Opening<'_>,
    ) -> Result<Sources, DataError> {
        let set = DataSet { files: patterns.to_vec(), columns: wanted, weight: Weight::ONE };
        Sources::open_mixture(&[set], kind, opening)
    }

    /// As [`Sources::open_with`], several sets of rows of one kind, each with its columns and its weight.
    pub fn open_mixture(
        sets: &[DataSet],
        kind: Kind,
        Opening { folder, cached, elsewhere, largest, in_order }: Opening<'_>,
    ) -> Result<Sources, DataError> {
        if let Some(prepared) = prepared::open(sets, kind, cached)? {
            return Ok(prepared);
        }
        let mut paths = Vec::new();
        for (number, set) in sets.iter().enumerate() {
            let found = expand(&set.files, elsewhere.map(|elsewhere| &**elsewhere.files))?;
            paths.extend(found.into_iter().map(|path| (number, path)));
        }
        let remote = paths.iter().any(|(_, path)| remote_url(path).is_some());
        let reach = match (elsewhere, folder) {
            (Some(Elsewhere { files, cache }), Some(folder)) if remote => {
                Some(Reach { files: files.clone(), cache: Arc::new(BlockCache::open(folder, cache)?) })
            }
            _ => None,
        };
        let (mut bytes, mut stored) = (0, 0);
        let mut origins = Vec::with_capacity(paths.len());
        for (_, path) in &paths {
            let (_, packing) = format(path)?;
            // A .zst may have frames of its own, which is seen when it is opened.
            if packing == Some(Packing::Gzip) && folder.is_none() && !in_order {
                return Err(DataError::NoFolder { path: path.clone() });
            }
            let origin = Origin::find(path, reach.as_ref())?;
            bytes += origin.bytes() * if packing.is_some() { UNPACKED } else { 1 };
            stored += origin.bytes();
            origins.push(origin);
        }
        let read = (stored > cached).then(|| AtomicU64::new(0));
        let pages = if read.is_some() { Pages::Go } else { Pages::Stay };
        origins.iter_mut().for_each(|origin| origin.keep(pages));
        if let Some(reach) = &reach {
            reach.cache.keep(pages);
        }
        let mut facts = DataFacts::default();
        if let Some(reach) = &reach {
            facts.remote_bytes = BlockCache::heap_bytes() + reach.files.heap_bytes();
        }
        let indices = folder.map(Indices::open);
        let look =
            Look { kind, folder, in_order, largest, pages, target: block_target(bytes), indices: indices.as_ref() };
        let (mut blocks, mut opened) = (Vec::new(), Vec::with_capacity(sets.len()));
        let mut chosen = None;
        let mut files: Vec<DataFile> = Vec::with_capacity(paths.len());
        for (number, origin) in origins.into_iter().enumerate() {
            let set = paths[number].0;
            let (kept, index) = look.at(&origin, &sets[set].columns, &mut chosen)?;
            files.push(DataFile { origin, kept });
            facts.join(&index.facts);
            blocks.extend(index.blocks.into_iter().map(|block| Block { file: number as u32, ..block }));
            if paths.get(number + 1).is_none_or(|(next, _)| *next != set) {
                let so_far = (blocks.len(), &facts);
                opened.push(end_set(&opened, chosen.take(), &files, so_far, sets[set].weight)?);
            }
        }
        facts.files = files.len() as u64;
        let blocks = blocks.into_boxed_slice();
        let mut sources = Sources { files: files.into(), blocks, sets: opened.into(), facts, read, prepared: None };
        if sources.is_mixture() {
            let marks = sources.sets.iter().flat_map(|set| [set.rows, set.weight.parts()]);
            sources.facts.mixture = marks.fold(1, |state, word| mix(state ^ mix(word)));
        }
        Ok(sources)
    }

    /// Prepared data in `folder`, with the blocks of the files that they were made from.
    pub(crate) fn of_prepared(
        folder: &Path,
        prepared: Prepared,
        blocks: Box<[Block]>,
        columns: ChosenColumns,
        facts: DataFacts,
    ) -> Sources {
        let DataFacts { rows, files, .. } = facts;
        let (path, weight, all) = (folder.to_path_buf(), Weight::ONE, 0..blocks.len());
        let set = Set { columns, path, files, rows, weight, pass_rows: rows, blocks: all };
        Sources { files: Box::default(), blocks, sets: [set].into(), facts, read: None, prepared: Some(prepared) }
    }

    /// The tokens of the rows, where these are prepared data.
    pub(crate) fn prepared(&self) -> Option<&Prepared> {
        self.prepared.as_ref()
    }

    /// Rows of one pass: those of all files, unless they have weights.
    pub fn rows(&self) -> u64 {
        self.sets.iter().map(|set| set.pass_rows).sum()
    }

    /// The data sets; one, where there is no mixture.
    pub fn sets(&self) -> &[Set] {
        &self.sets
    }

    /// There are several sets, or one whose rows do not come once each.
    pub fn is_mixture(&self) -> bool {
        self.laid().is_mixture()
    }

    /// What a row is.
    pub fn kind(&self) -> Kind {
        self.columns().kind
    }

    /// Which columns are read, and whether they were guessed; of a mixture those of its first set.
    pub fn columns(&self) -> &ChosenColumns {
        &self.sets[0].columns
    }

    /// What was found out, for the plan.
    pub fn facts(&self) -> &DataFacts {
        &self.facts
    }

    /// The files, in order, with their lengths in bytes.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = (&Path, u64)> {
        self.files.iter().map(|f| (f.origin.path(), f.origin.bytes()))
    }

    /// The files, in order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|f| f.origin.path())
    }

    /// Tells these rows from others: a number of where each block lies, how long it is, of the columns that are read, and of weights.
    /// Copies of the files elsewhere have the same; a change that moves no row in its file is not seen.
    pub fn fingerprint(&self) -> u64 {
        let names = self.sets.iter().flat_map(|set| {
            let ChosenColumns { source, target, input, .. } = &set.columns;
            [source.as_str(), target.as_str(), input.as_deref().unwrap_or_default()]
        });
        let letters = names.flat_map(|name| name.bytes().map(u64::from).chain([u64::MAX]));
        let block = |b: &Block| {
            [b.place, u64::from(b.raw_bytes), u64::from(b.text_bytes), u64::from(b.rows), u64::from(b.file)]
        };
        let marks = Some(self.facts.mixture).filter(|_| self.is_mixture());
        let words = letters.chain(self.blocks.iter().flat_map(block)).chain(marks);
        words.fold(self.facts.rows, |state, word| mix(state ^ mix(word)))
    }

    /// The files that can be read in their own order only, of which a shuffle would read all for each block.
    pub fn in_order(&self) -> impl Iterator<Item = &Path> {
        let of = |f: &&DataFile| matches!(&f.kept, Kept::Rows(kept) if kept.is_in_order());
        self.files.iter().filter(of).map(|f| f.origin.path())
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

    /// Where the rows lie.
    pub(crate) fn laid(&self) -> Laid<'_> {
        Laid { blocks: &self.blocks, sets: &self.sets }
    }

    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Heap of the index itself, in bytes.
    pub(crate) fn index_bytes(&self) -> u64 {
        let paths: u64 = self.files.iter().map(|f| f.origin.heap_bytes()).sum();
        let kept = |f: &DataFile| if let Kept::Rows(kept) = &f.kept { kept.heap_bytes() } else { 0 };
        let headers: u64 = self.files.iter().map(kept).sum();
        let of_set = |set: &Set| {
            let ChosenColumns { source, target, input, .. } = &set.columns;
            let names = source.capacity() + target.capacity() + input.as_ref().map_or(0, String::capacity);
            names + set.path.capacity() + size_of::<Set>()
        };
        let names: usize = self.sets.iter().map(of_set).sum();
        size_of_val(&*self.blocks) as u64
            + size_of_val(&*self.files) as u64
            + paths
            + names as u64
            + headers
            + self.facts.row_group_bytes
            + self.prepared.as_ref().map_or(0, Prepared::heap_bytes)
    }

    /// The most that any window of `order` can hold: its N largest blocks, whichever they are.
    pub(crate) fn window_room(&self, order: Order) -> WindowRoom {
        if self.is_mixture() && order.shuffles() {
            return Deal::new(self.laid(), order).room(self.laid());
        }
        let texts = self.text_room(order);
        let Some(prepared) = &self.prepared else { return texts };
        let bytes = largest(0..self.blocks.len(), order.window_blocks(), |number| prepared.block_bytes(number));
        WindowRoom { text_bytes: bytes.into_iter().map(u64::from).sum(), ..texts }
    }

    /// As [`Sources::window_room`], of the texts of the rows, also where their tokens are read instead; not for mixtures.
    pub(crate) fn text_room(&self, order: Order) -> WindowRoom {
        let most = |of: fn(&Block) -> u32| -> u64 {
            largest(self.blocks.iter(), order.window_blocks(), of).into_iter().map(u64::from).sum()
        };
        let visits = order.window_blocks().min(self.blocks.len()) as u64;
        WindowRoom { text_bytes: most(|b| b.text_bytes), rows: most(|b| b.rows), visits }
    }

    /// `error`, with the file and the place of the row that it came of.
    pub(crate) fn named(&self, at: RowPlace, error: DataError) -> DataError {
        let block = self.blocks[at.block as usize];
        if let Some(prepared) = &self.prepared {
            let (path, place) = prepared.place(at.block as usize, at.row);
            return DataError::Row { path, place, error: Box::new(error) };
        }
        let file = &self.files[block.file as usize];
        let place = match &file.kept {
            Kept::Rows(kept) => rows::line_of(&file.origin, kept, block, at.row)
                .map_or_else(|_| format!("a row behind byte {}", block.place), |line| format!("line {line}")),
            Kept::Parquet(_) | Kept::Arrow(_) => format!("row {}", block.place + u64::from(at.row)),
        };
        DataError::Row { path: file.origin.path().into(), place, error: Box::new(error) }
    }

    /// Now and then lets the pages of all files go, where they are not to stay.
    fn let_go_behind(&self, bytes: u64) {
        let Some(read) = &self.read else { return };
        if read.fetch_add(bytes, Ordering::Relaxed) + bytes < LET_GO_EVERY {
            return;
        }
        read.store(0, Ordering::Relaxed);
        for file in &self.files {
            let frames = if let Kept::Rows(kept) = &file.kept { kept.frames_path() } else { None };
            // Blocks of what lies elsewhere are let go when they have been read.
            let local = (!file.origin.is_remote()).then(|| file.origin.path());
            if let Some(path) = frames.or(local) {
                page_cache::let_go(path);
            }
        }
    }

    /// Appends the rows of a block to `texts`. Prepared data have none; their tokens are read by [`Prepared::read_block`].
    pub(crate) fn read_block(
        &self,
        number: usize,
        scratch: &mut ReadScratch,
        texts: &mut Texts,
    ) -> Result<(), DataError> {
        let block = self.blocks[number];
        if let Some(prepared) = &self.prepared {
            return Err(DataError::NoTexts { path: prepared.folder().into() });
        }
        let file = &self.files[block.file as usize];
        let columns = &self.sets[self.sets.partition_point(|set| set.blocks.end <= number)].columns;
        let pages = [&self.facts.source_pages, &self.facts.target_pages, &self.facts.input_pages];
        let more = READ_AHEAD + pages.iter().map(|pages| pages.largest_stored).sum::<u64>();
        self.let_go_behind(u64::from(block.raw_bytes) + more);
        match &file.kept {
            Kept::Rows(kept) => rows::read(&file.origin, kept, columns, block, &mut scratch.rows, texts),
            Kept::Parquet(kept) => parquet_file::read(&file.origin, kept, columns, block, texts),
            Kept::Arrow(kept) => arrow_file::read(&file.origin, kept, columns, block, &mut scratch.arrow, texts),
        }
    }
}

/// The set of all files and blocks that are behind those of the sets before.
fn end_set(
    before: &[Set],
    columns: Option<ChosenColumns>,
    files: &[DataFile],
    (blocks, facts): (usize, &DataFacts),
    weight: Weight,
) -> Result<Set, DataError> {
    let gone: u64 = before.iter().map(|set| set.files).sum();
    let rows = facts.rows - before.iter().map(|set| set.rows).sum::<u64>();
    let blocks = before.last().map_or(0, |set| set.blocks.end)..blocks;
    let path = files[gone as usize].origin.path().to_path_buf();
    let count = files.len() as u64 - gone;
    match columns {
        Some(columns) if rows > 0 => {
            Set { columns, path, files: count, rows, weight, pass_rows: 0, blocks }.weighed(before.len())
        }
        _ => Err(DataError::NoRows { files: count as usize, oversized: facts.oversized, path }),
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

/// How much larger packed text usually is when it is unpacked.
const UNPACKED: u64 = 4;
