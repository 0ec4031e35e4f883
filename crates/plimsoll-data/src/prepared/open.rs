//! A prepared set, opened: checked against itself, and against what it is asked for.
//!
//! Invariant: what opens is consistent from the manifest to the table of every shard; the blocks themselves are checked each time one
//! is read, by checksum, directory and ids, before a token of them is used. Nothing is held open. It knows no order and no threads.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use fs_err::File;

use super::fit::Fit;
use super::maker::Reach;
use super::manifest::{self, Manifest, ShardFacts};
use super::shard::{self, HEADER, Shard};
use super::words::{BodyFault, TokenRows, WordForm};
use crate::layout::{Block, DataFacts};
use crate::page_cache::{self, LET_GO_EVERY, READ_AHEAD};
use crate::sources::Sources;
use crate::{DataError, DataSet, Kind, Lengths, Recipe, TextTokenizer, Weight};

/// What is kept of a set between reads.
#[derive(Debug)]
pub(crate) struct Prepared {
    folder: PathBuf,
    pub manifest: Manifest,
    bodies: Box<[Body]>,
    /// Bytes that were read since pages were let go, where they are.
    read: Option<AtomicU64>,
}

/// Where a block lies.
#[derive(Clone, Copy, Debug)]
struct Body {
    place: u64,
    shard: u32,
    bytes: u32,
    crc: u32,
}

/// Whether a path is a folder of prepared data.
pub fn is_prepared(path: &Path) -> bool {
    path.join(manifest::NAME).is_file()
}

/// Whether a path is a folder in which preparing was begun and not finished.
pub fn unfinished(path: &Path) -> bool {
    let first = shard::name(0);
    !is_prepared(path) && (path.join(&first).is_file() || path.join(first + ".part").is_file())
}

/// What the rows of prepared data are, where `patterns` are prepared data.
pub fn prepared_kind(patterns: &[PathBuf]) -> Option<Kind> {
    match patterns {
        [folder] if is_prepared(folder) => Some(Manifest::read(folder).ok()?.made_by.kind),
        _ => None,
    }
}

/// Opens the prepared data that `sets` are, if they are. The kernel may keep `cached` bytes of them.
pub(crate) fn open(sets: &[DataSet], kind: Kind, cached: u64) -> Result<Option<Sources>, DataError> {
    let mut paths = sets.iter().flat_map(|set| &set.files);
    let Some(folder) = paths.clone().find(|path| is_prepared(path)) else {
        return match paths.find(|path| unfinished(path)) {
            Some(path) => Err(DataError::UnfinishedPrepared { path: path.clone() }),
            None => Ok(None),
        };
    };
    let [DataSet { files, columns: wanted, weight: Weight::ONE }] = sets else {
        return Err(DataError::PreparedNotAlone { path: folder.clone() });
    };
    if files.len() > 1 {
        return Err(DataError::PreparedNotAlone { path: folder.clone() });
    }
    let manifest = Manifest::read(folder)?;
    if manifest.made_by.kind != kind {
        return Err(DataError::OtherKind { opened: manifest.made_by.kind, asked: kind });
    }
    let columns = &manifest.origin.columns;
    for (asked, there) in [(&wanted.source, &columns.source), (&wanted.target, &columns.target)] {
        if let Some(column) = asked.as_ref().filter(|asked| *asked != there) {
            return Err(DataError::MissingColumn {
                path: folder.clone(),
                place: "manifest".into(),
                column: column.clone(),
                present: [columns.source.as_str(), &columns.target].join(", "),
            });
        }
    }
    Prepared::open(folder, manifest, cached).map(Some)
}

impl Prepared {
    /// Reads the tables of all shards; gives the whole as sources.
    fn open(folder: &Path, manifest: Manifest, cached: u64) -> Result<Sources, DataError> {
        let identity = manifest.identity();
        let (mut blocks, mut bodies) = (Vec::new(), Vec::new());
        let (mut rows, mut stored) = (0, 0);
        let mut reach = [Reach::default(); 2];
        for (number, told) in manifest.shards.iter().enumerate() {
            let path = folder.join(shard::name(number as u32));
            let shard = read_shard(&path, number as u32, told)?;
            let header =
                (shard.header.identity, shard.header.word_bytes, shard.header.first_block, shard.header.first_row);
            let expected = (identity, manifest.word_bytes, blocks.len() as u64, rows);
            if header != expected {
                return Err(bad(&path, "header", format!("{expected:x?}"), format!("{header:x?}")));
            }
            let mut place = HEADER;
            for block in &shard.blocks {
                blocks.push(block.original);
                bodies.push(Body { place, shard: number as u32, bytes: block.bytes, crc: block.crc });
                place += u64::from(block.bytes);
            }
            rows += shard.rows;
            stored += shard.file_bytes;
            reach = [0, 1].map(|side| reach[side].and(shard.reach[side]));
        }
        let path = folder.join(manifest::NAME);
        let certain = manifest.lengths.map(|side| side.reach());
        if certain != reach {
            return Err(bad(&path, "lengths", format!("{reach:?}, as the shards say"), format!("{certain:?}")));
        }
        let (origin, there) = (&manifest.origin, (rows, blocks.len() as u64));
        if there != (origin.rows, origin.blocks) || rows == 0 {
            let expected = format!("{} rows in {} blocks", origin.rows, origin.blocks);
            return Err(bad(&path, "shards", expected, format!("{} in {}", there.0, there.1)));
        }
        let columns = crate::ChosenColumns { guessed: false, ..origin.columns.clone() };
        // What is true of the rows, so that a run knows them again. Nothing that reading texts would take is in it.
        let facts = DataFacts {
            rows,
            blocks: there.1,
            files: origin.files.len() as u64,
            longest_source: origin.longest_source,
            longest_target: origin.longest_target,
            ..DataFacts::default()
        };
        let expected = origin.fingerprint.clone();
        let read = (stored > cached).then(|| AtomicU64::new(0));
        let prepared = Prepared { folder: folder.into(), manifest, bodies: bodies.into(), read };
        let sources = Sources::of_prepared(folder, prepared, blocks.into(), columns, facts);
        let found = format!("{:016x}", sources.fingerprint());
        if found != expected {
            return Err(bad(&path, "fingerprint of the original rows", expected, found));
        }
        Ok(sources)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn form(&self) -> WordForm {
        WordForm { bytes: self.manifest.word_bytes, kind: self.manifest.made_by.kind }
    }

    /// Bytes of a block.
    pub fn block_bytes(&self, number: usize) -> u32 {
        self.bodies[number].bytes
    }

    /// Heap of what is kept, in bytes.
    pub fn heap_bytes(&self) -> u64 {
        let Manifest { origin, shards, .. } = &self.manifest;
        let names: usize = origin.files.iter().map(|file| file.name.capacity() + size_of_val(file)).sum();
        let shards: usize = shards.iter().map(|shard| shard.file.capacity() + size_of_val(shard)).sum();
        // Lists that were read grow by doubling.
        (size_of_val(&*self.bodies) + 2 * (names + shards) + self.folder.capacity() + 1024) as u64
    }

    /// The lengths that the set was made for.
    pub fn lengths(&self) -> Lengths {
        let [source, target] = &self.manifest.lengths;
        let (cut, made) = (source.cut.max(target.cut) as usize, |side: &manifest::LengthsOf| side.made as usize);
        let target = if self.manifest.made_by.kind == Kind::Pairs { made(target) } else { made(source) };
        Lengths { source: made(source), target, sampled: self.manifest.origin.rows as usize, truncated: cut }
    }

    /// How rows are cut to these lengths, if the set was made by the same tokenizer and recipe and serves them.
    pub fn fit(&self, tokenizer: &TextTokenizer, recipe: &Recipe, lengths: [usize; 2]) -> Result<Fit, DataError> {
        let asked = manifest::MadeBy::of(tokenizer, recipe);
        let made_by = &self.manifest.made_by;
        if let Some((what, prepared, asked)) = made_by.differs(&asked) {
            return Err(DataError::PreparedOtherwise { path: self.folder.clone(), what, prepared, asked });
        }
        let sides = if made_by.kind == Kind::Pairs { 2 } else { 1 };
        for (of, length) in self.manifest.lengths.iter().zip(lengths).take(sides) {
            if !of.reach().serves(of.at(), length) {
                return Err(DataError::PreparedLength { path: self.folder.clone(), asked: length, serves: of.told() });
            }
        }
        let at = self.manifest.lengths.map(|side| side.at());
        Ok(Fit::new(at, lengths, made_by.eos_id, made_by.splits))
    }

    /// Appends the rows of a block, which has `original.rows` of them, to `rows`.
    pub fn read_block(&self, number: usize, original: Block, rows: &mut TokenRows) -> Result<(), DataError> {
        let Body { place, shard, bytes, crc } = self.bodies[number];
        self.let_go_behind(u64::from(bytes) + READ_AHEAD);
        let path = self.folder.join(shard::name(shard));
        let told = &self.manifest.shards[shard as usize];
        let file = File::open(&path)?;
        let now = file.metadata()?.len();
        if now != told.bytes {
            return Err(bad(&path, "length", format!("{} bytes", told.bytes), format!("{now}")));
        }
        let room = rows.room(bytes as usize);
        file.file().read_exact_at(room, place)?;
        let at = || format!("block {number} at byte {place}");
        let computed = crc32fast::hash(room);
        if computed != crc {
            return Err(bad(&path, &at(), format!("the checksum {crc:08x}"), format!("{computed:08x}")));
        }
        let taken = rows.take_in(bytes as usize, original.rows, self.manifest.made_by.most_id);
        taken.map_err(|BodyFault { expected, found }| bad(&path, &at(), expected, found))
    }

    /// The name of a row, for messages.
    pub fn place(&self, block: usize, row: u32) -> (PathBuf, String) {
        let Body { shard, .. } = self.bodies[block];
        (self.folder.join(shard::name(shard)), format!("row {row} of block {block}"))
    }

    /// Now and then lets the pages of all shards go, where they are not to stay.
    fn let_go_behind(&self, bytes: u64) {
        let Some(read) = &self.read else { return };
        if read.fetch_add(bytes, Ordering::Relaxed) + bytes < LET_GO_EVERY {
            return;
        }
        read.store(0, Ordering::Relaxed);
        for number in 0..self.manifest.shards.len() {
            page_cache::let_go(&self.folder.join(shard::name(number as u32)));
        }
    }
}

/// Whether all shards are there, with the tables that the manifest says.
pub(super) fn all_there(folder: &Path, manifest: &Manifest) -> bool {
    let shards = (0..).zip(&manifest.shards);
    shards.into_iter().all(|(number, told)| read_shard(&folder.join(shard::name(number)), number, told).is_ok())
}

/// A shard that is as the manifest says.
fn read_shard(path: &Path, number: u32, told: &ShardFacts) -> Result<Shard, DataError> {
    // Before room is taken for what the file says of itself.
    let bytes = fs_err::metadata(path)?.len();
    if bytes != told.bytes {
        return Err(bad(path, "length", format!("{} bytes", told.bytes), format!("{bytes}")));
    }
    let shard = shard::read(path)?;
    let found = facts(&shard);
    if found != *told || shard.header.number != number {
        return Err(bad(path, "table", format!("{told:?}"), format!("{found:?}")));
    }
    Ok(shard)
}

/// What a manifest says of a shard.
pub(super) fn facts(shard: &Shard) -> ShardFacts {
    ShardFacts {
        file: shard::name(shard.header.number),
        rows: shard.rows,
        blocks: shard.blocks.len() as u64,
        tokens: shard.tokens,
        bytes: shard.file_bytes,
        crc: shard.crc,
    }
}

fn bad(path: &Path, place: &str, expected: String, found: String) -> DataError {
    DataError::BadPrepared { path: path.into(), place: place.into(), expected, found }
}
