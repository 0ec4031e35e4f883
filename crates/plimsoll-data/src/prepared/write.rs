//! Prepares data: every row tokenised once, in threads, written in shards.
//!
//! Blocks are read one at a time, tokenised by whichever thread is free, and written in their order by the caller's thread; threads run
//! ahead by two blocks each at most. Invariants: memory depends on the largest block and the threads, not on the rows; the bytes
//! depend on data, tokenizer, recipe and lengths alone; what a process that was killed leaves behind is whole shards, which the
//! next call goes on from, and one beginning, which it removes. It knows no order of training.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};

use fs_err::File;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::maker::{MadeAt, Maker, Reach};
use super::manifest::{self, LengthsOf, MadeBy, Manifest, Origin, identity};
use super::open::{all_there, facts};
use super::report::PreparedReport;
use super::shard::{self, Header, Shard, ShardWriter};
use super::words::{BodyBuilder, WordForm};
use crate::error::panic_message;
use crate::lengths::visit;
use crate::loader::{LOADER_STACK_BYTES, ThreadHook};
use crate::pairs::lock;
use crate::sources::ReadScratch;
use crate::window::{RowPlace, Texts};
use crate::{DataError, Kind, Recipe, Sources, TextTokenizer};

/// Bytes of a shard unless told otherwise: what a kill loses at most, in some seconds of work.
pub const SHARD_BYTES: u64 = 64 << 20;
/// Rows that the estimate looks at.
const ESTIMATE_ROWS: usize = 500;

/// How to prepare.
#[derive(Clone)]
pub struct PrepareSettings {
    /// The lengths of source and target that training will have; of documents both are the same.
    pub lengths: [usize; 2],
    /// Threads that tokenise.
    pub threads: usize,
    /// A shard is ended when it has so many bytes.
    pub shard_bytes: u64,
    /// Called first in each thread.
    pub on_thread_start: Option<ThreadHook>,
}

/// What all parts of the work know.
struct Task<'a> {
    sources: &'a Sources,
    tokenizer: &'a TextTokenizer,
    recipe: &'a Recipe,
    at: [MadeAt; 2],
    form: WordForm,
}

/// One block, tokenised.
struct Done {
    body: Vec<u8>,
    tokens: u64,
    reach: [Reach; 2],
}

/// What the threads share.
struct State {
    /// The next block to take, and the next to write.
    next: usize,
    written: usize,
    done: BTreeMap<usize, Done>,
    /// The earliest error, with its block.
    failed: Option<(usize, DataError)>,
    stop: bool,
}

/// Bytes that the prepared set will take on the disk, judged by some rows.
pub fn estimate_prepared(
    sources: &Sources,
    tokenizer: &TextTokenizer,
    recipe: &Recipe,
    lengths: [usize; 2],
) -> Result<u64, DataError> {
    let task = Task::new(sources, tokenizer, recipe, lengths)?;
    let (mut maker, mut body) = (Maker::new(tokenizer, recipe, task.at), BodyBuilder::new(task.form));
    let (mut text, mut rows) = (0, 0u64);
    visit(sources, ESTIMATE_ROWS, |place, source, target| {
        text += (source.len() + target.len()) as u64;
        rows += 1;
        maker.row(source, target, &mut body).map_err(|error| sources.named(place, error))
    })?;
    let blocks = sources.blocks();
    let all: u64 = blocks.iter().map(|block| u64::from(block.text_bytes)).sum();
    let directories = |rows: u64| rows * super::words::DIRECTORY_BYTES as u64;
    let words = (body.len() as u64 - directories(rows)) as f64 / text.max(1) as f64 * all as f64;
    Ok(words as u64 + directories(sources.rows()) + blocks.len() as u64 * shard::ENTRY + shard::HEADER + shard::TAIL)
}

/// Removes prepared data, or what was begun of them, and nothing else.
pub fn forget_prepared(folder: &Path) -> Result<(), DataError> {
    let manifest = folder.join(manifest::NAME);
    if manifest.is_file() {
        fs_err::remove_file(manifest)?;
    }
    remove_shards(folder, |_, _| true)
}

/// Prepares `sources` into `folder`, or goes on with what is there. `tell` gets how many rows are done.
pub fn prepare(
    sources: &Sources,
    tokenizer: &TextTokenizer,
    recipe: &Recipe,
    settings: &PrepareSettings,
    folder: &Path,
    tell: &mut dyn FnMut(u64),
) -> Result<PreparedReport, DataError> {
    let task = Task::new(sources, tokenizer, recipe, settings.lengths)?;
    let (made_by, origin) = (MadeBy::of(tokenizer, recipe), Origin::of(sources));
    let identity = identity(&made_by, task.at, &origin, task.form.bytes);
    fs_err::create_dir_all(folder)?;
    // Held by the kernel for this process alone, and gone with it.
    let own = File::open(folder)?;
    match flock(own.file(), FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(DataError::PreparingElsewhere { path: folder.into() }),
        // A file system without locks, say.
        Err(other) => {
            let told = format!("cannot be locked: `{}`: {other}", folder.display());
            return Err(DataError::Io(std::io::Error::new(std::io::Error::from(other).kind(), told)));
        }
    }
    if folder.join(manifest::NAME).is_file() {
        let there = Manifest::read(folder)?;
        if there.identity() != identity {
            return Err(DataError::OtherPrepared { path: folder.into() });
        }
        if all_there(folder, &there) {
            tell(origin.rows);
            return Ok(PreparedReport::of(&there));
        }
        // A shard was lost or changed: from there on it is made again, and until it is, the set is not whole.
        fs_err::remove_file(folder.join(manifest::NAME))?;
    }
    // What a process that is gone had begun.
    remove_shards(folder, |_, part| part)?;
    let mut shards = whole_shards(folder, identity)?;
    let mut rows: u64 = shards.iter().map(|shard| shard.rows).sum();
    tell(rows);
    let first = shards.iter().map(|shard| shard.blocks.len()).sum();
    if first < sources.blocks().len() {
        let mut writer = None;
        task.run(settings, first, &mut |number, done| {
            let original = sources.blocks()[number];
            let out: &mut ShardWriter = match &mut writer {
                Some(out) => out,
                None => writer.insert(ShardWriter::start(
                    folder,
                    Header {
                        identity,
                        number: shards.len() as u32,
                        word_bytes: task.form.bytes,
                        first_block: number as u64,
                        first_row: rows,
                    },
                )?),
            };
            out.block(original, &done.body, done.tokens, done.reach)?;
            rows += u64::from(original.rows);
            if out.body_bytes() >= settings.shard_bytes || number + 1 == sources.blocks().len() {
                shards.extend(writer.take().map(ShardWriter::finish).transpose()?);
            }
            tell(rows);
            Ok(())
        })?;
    }
    remove_shards(folder, |number, _| number as usize >= shards.len())?;
    let all = |side: usize| shards.iter().fold(Reach::default(), |sum, shard| sum.and(shard.reach[side]));
    let lengths = [0, 1].map(|side| LengthsOf::new(task.at[side], all(side)));
    let manifest = Manifest::new(made_by, lengths, task.form.bytes, origin, shards.iter().map(facts).collect());
    manifest.write(folder)?;
    Ok(PreparedReport::of(&manifest))
}

/// The whole shards of this set that are there, from the first on. Those behind a damaged one are made again.
fn whole_shards(folder: &Path, identity: u64) -> Result<Vec<Shard>, DataError> {
    let mut shards: Vec<Shard> = Vec::new();
    loop {
        let path = folder.join(shard::name(shards.len() as u32));
        if !path.is_file() {
            return Ok(shards);
        }
        let Ok(shard) = shard::read(&path) else { return Ok(shards) };
        if shard.header.identity != identity {
            return Err(DataError::OtherPrepared { path: folder.into() });
        }
        let before: usize = shards.iter().map(|shard| shard.blocks.len()).sum();
        if shard.header.number as usize != shards.len()
            || shard.header.first_block != before as u64
            || !is_whole(&path, &shard)?
        {
            return Ok(shards);
        }
        shards.push(shard);
    }
}

/// Whether the blocks of a shard have their checksums.
fn is_whole(path: &Path, shard: &Shard) -> Result<bool, DataError> {
    let mut from = std::io::BufReader::with_capacity(256 << 10, File::open(path)?);
    let mut body = vec![0; shard::HEADER as usize];
    std::io::Read::read_exact(&mut from, &mut body)?;
    for block in &shard.blocks {
        body.resize(block.bytes as usize, 0);
        std::io::Read::read_exact(&mut from, &mut body)?;
        if crc32fast::hash(&body) != block.crc {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes shards by their number, and whether they were only begun.
fn remove_shards(folder: &Path, which: impl Fn(u32, bool) -> bool) -> Result<(), DataError> {
    if !folder.is_dir() {
        return Ok(());
    }
    let begun: PathBuf = format!("{}.part", manifest::NAME).into();
    for entry in fs_err::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(shard::number_of);
        let part = name.to_str().is_some_and(|name| name.ends_with(".part"));
        if number.is_some_and(|number| which(number, part)) || name == *begun.as_os_str() {
            fs_err::remove_file(entry.path())?;
        }
    }
    Ok(())
}

impl Task<'_> {
    fn new<'a>(
        sources: &'a Sources,
        tokenizer: &'a TextTokenizer,
        recipe: &'a Recipe,
        lengths: [usize; 2],
    ) -> Result<Task<'a>, DataError> {
        if sources.kind() != recipe.kind() {
            return Err(DataError::OtherKind { opened: sources.kind(), asked: recipe.kind() });
        }
        if let Some(prepared) = sources.prepared() {
            return Err(DataError::NoTexts { path: prepared.folder().into() });
        }
        if sources.is_mixture() {
            return Err(DataError::MixturePrepared {
                sets: sources.sets().len(),
                path: sources.sets()[0].path.clone(),
            });
        }
        if lengths.contains(&0) {
            return Err(DataError::BadSetting { setting: "length", found: 0, expected: "at least 1".into() });
        }
        // Documents have one side.
        let [source, target] = if recipe.kind() == Kind::Pairs { lengths } else { [lengths[0], 1] };
        let at = [MadeAt::length(source), MadeAt::length(target)];
        Ok(Task { sources, tokenizer, recipe, at, form: Maker::form(tokenizer, recipe) })
    }

    /// Tokenises all blocks from `first` on and hands them to `write` in their order.
    fn run(
        &self,
        settings: &PrepareSettings,
        first: usize,
        write: &mut dyn FnMut(usize, Done) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let threads = settings.threads.max(1);
        let open = State { next: first, written: first, done: BTreeMap::new(), failed: None, stop: false };
        let (state, room, ready) = (Mutex::new(open), Condvar::new(), Condvar::new());
        // One reads at a time, as in the loader.
        let reader = Mutex::new(ReadScratch::for_sources(self.sources));
        std::thread::scope(|scope| {
            let work = || {
                let worked = catch_unwind(AssertUnwindSafe(|| {
                    if let Some(hook) = &settings.on_thread_start {
                        hook();
                    }
                    self.work(threads, &reader, &state, &room, &ready);
                }));
                if let Err(panic) = worked {
                    lock(&state).failed = Some((0, DataError::ThreadPanicked { reason: panic_message(panic) }));
                    ready.notify_all();
                }
            };
            let mut started = Ok(());
            for number in 0..threads {
                let builder = std::thread::Builder::new().name(format!("prepare-{number}"));
                if let Err(error) = builder.stack_size(LOADER_STACK_BYTES).spawn_scoped(scope, work) {
                    started = Err(DataError::Io(error));
                }
            }
            let written = started.and_then(|()| self.write_all(first, &state, (&room, &ready), write));
            lock(&state).stop = true;
            room.notify_all();
            written
        })
    }

    fn write_all(
        &self,
        first: usize,
        state: &Mutex<State>,
        (room, ready): (&Condvar, &Condvar),
        write: &mut dyn FnMut(usize, Done) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        for number in first..self.sources.blocks().len() {
            let mut now = lock(state);
            let done = loop {
                if let Some(done) = now.done.remove(&number) {
                    break done;
                }
                // An error of a later block waits until those before it are written.
                if now.failed.as_ref().is_some_and(|(at, _)| *at <= number) {
                    return Err(now.failed.take().map_or(DataError::Stopped, |(_, error)| error));
                }
                now = ready.wait(now).unwrap_or_else(PoisonError::into_inner);
            };
            drop(now);
            write(number, done)?;
            lock(state).written = number + 1;
            room.notify_all();
        }
        Ok(())
    }

    /// Takes one block after the other.
    fn work(&self, threads: usize, reader: &Mutex<ReadScratch>, state: &Mutex<State>, room: &Condvar, ready: &Condvar) {
        let mut texts = Texts::default();
        let mut maker = Maker::new(self.tokenizer, self.recipe, self.at);
        loop {
            let mut scratch = lock(reader);
            let mut now = lock(state);
            while !now.stop && now.failed.is_none() && now.next >= now.written + 2 * threads {
                now = room.wait(now).unwrap_or_else(PoisonError::into_inner);
            }
            let number = now.next;
            if now.stop || now.failed.is_some() || number == self.sources.blocks().len() {
                return;
            }
            now.next += 1;
            drop(now);
            texts.clear();
            let read = self.sources.read_block(number, &mut scratch, &mut texts);
            drop(scratch);
            let made = read.and_then(|()| self.block(number, &texts, &mut maker));
            let mut now = lock(state);
            match made {
                Ok(done) => drop(now.done.insert(number, done)),
                Err(error) if now.failed.as_ref().is_none_or(|(at, _)| number < *at) => {
                    now.failed = Some((number, error));
                }
                Err(_) => {}
            }
            drop(now);
            ready.notify_all();
        }
    }

    fn block(&self, number: usize, texts: &Texts, maker: &mut Maker<'_>) -> Result<Done, DataError> {
        let mut body = BodyBuilder::new(self.form);
        maker.reach = Default::default();
        for row in 0..texts.len() {
            let (source, target) = texts.pair(row);
            let place = RowPlace { block: number as u32, row: row as u32 };
            maker.row(source, target, &mut body).map_err(|error| self.sources.named(place, error))?;
        }
        let tokens = body.tokens;
        Ok(Done { tokens, reach: maker.reach, body: body.finish() })
    }
}
