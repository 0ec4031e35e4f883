//! One shard: blocks of rows of tokens behind each other, and a table of them at the end.
//!
//! Layout, all numbers little-endian: a header of [`HEADER`] bytes; the blocks; a table of [`ENTRY`] bytes a block, which has the
//! place of its rows in the original files and the checksum of its bytes; a tail of [`TAIL`] bytes with sums, and the checksum of
//! header, table and tail. Invariants: a shard is whole or not there (written beside, synced, renamed); what is read of a table
//! accounts for every byte of the file. It knows nothing of tokens.

use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fs_err::File;

use super::maker::Reach;
use super::words::DIRECTORY_BYTES;
use crate::DataError;
use crate::layout::{Block, MAX_BLOCK_ROWS};
use crate::page_cache;

const MAGIC: &[u8; 8] = b"PLIMTOK1";
const END: &[u8; 8] = b"PLIMEND1";
pub(crate) const HEADER: u64 = 40;
pub(crate) const ENTRY: u64 = 32;
pub(crate) const TAIL: u64 = 76;
const WRITE_BYTES: usize = 256 << 10;

/// What is said before the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// What made the set: data, tokenizer, template, lengths.
    pub identity: u64,
    pub number: u32,
    pub word_bytes: u32,
    pub first_block: u64,
    pub first_row: u64,
}

/// A block: where its rows lie in the original files, and what it is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub original: Block,
    pub bytes: u32,
    pub crc: u32,
}

/// All but the blocks themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    pub header: Header,
    pub blocks: Vec<Stored>,
    pub reach: [Reach; 2],
    pub tokens: u64,
    pub rows: u64,
    /// Of header, table and tail, and so, by the checksums of the blocks, of all.
    pub crc: u32,
    pub file_bytes: u64,
}

/// The name of a shard in its folder.
pub(crate) fn name(number: u32) -> String {
    format!("shard-{number:05}.tokens")
}

/// The number of a shard that is called so, or that is being written under this name.
pub(crate) fn number_of(name: &str) -> Option<u32> {
    let number = name.strip_suffix(".part").unwrap_or(name).strip_prefix("shard-")?.strip_suffix(".tokens")?;
    (number.len() >= 5 && number.bytes().all(|b| b.is_ascii_digit())).then(|| number.parse().ok()).flatten()
}

impl Header {
    fn bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.identity.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.word_bytes.to_le_bytes());
        out.extend_from_slice(&self.first_block.to_le_bytes());
        out.extend_from_slice(&self.first_row.to_le_bytes());
        out
    }
}

impl Stored {
    fn bytes(&self) -> Vec<u8> {
        let Block { place, raw_bytes, text_bytes, rows, file } = self.original;
        let mut out = place.to_le_bytes().to_vec();
        for number in [raw_bytes, text_bytes, rows, file, self.bytes, self.crc] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out
    }
}

fn reach_bytes(of: &Reach) -> Vec<u8> {
    let flags = u32::from(of.only_made) | u32::from(of.more) << 1;
    [&of.from.to_le_bytes()[..], &of.cut.to_le_bytes(), &flags.to_le_bytes()].concat()
}

/// Numbers one behind the other.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn u64(&mut self) -> u64 {
        let (head, rest) = self.0.split_at(8);
        self.0 = rest;
        u64::from_le_bytes(head.try_into().expect("eight bytes"))
    }

    fn u32(&mut self) -> u32 {
        let (head, rest) = self.0.split_at(4);
        self.0 = rest;
        u32::from_le_bytes(head.try_into().expect("four bytes"))
    }
}

/// What a shard says that cannot be.
pub(crate) struct ShardFault {
    pub place: &'static str,
    pub expected: String,
    pub found: String,
}

impl ShardFault {
    pub fn at(self, path: &Path) -> DataError {
        let ShardFault { place, expected, found } = self;
        DataError::BadPrepared { path: path.into(), place: place.into(), expected, found }
    }
}

/// Reads and checks all but the blocks.
pub(crate) fn read(path: &Path) -> Result<Shard, DataError> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let at = |offset: u64, bytes: u64| -> io::Result<Vec<u8>> {
        let mut out = vec![0; bytes as usize];
        file.file().read_exact_at(&mut out, offset)?;
        Ok(out)
    };
    let fault = |place: &'static str, expected: String, found: String| {
        Err::<Shard, DataError>(ShardFault { place, expected, found }.at(path))
    };
    if length < HEADER + TAIL {
        return fault("length", format!("at least {} bytes", HEADER + TAIL), format!("{length}"));
    }
    let (header_bytes, tail) = (at(0, HEADER)?, at(length - TAIL, TAIL)?);
    if header_bytes[..8] != MAGIC[..] || tail[68..] != END[..] {
        return fault("length", "a whole shard of tokens".into(), "another file, or a part of one".into());
    }
    let mut numbers = Numbers(&tail);
    let mut side = || {
        let (from, cut, flags) = (numbers.u64(), numbers.u64(), numbers.u32());
        Reach { from, cut, only_made: flags & 1 != 0, more: flags & 2 != 0 }
    };
    let reach = [side(), side()];
    let (tokens, rows, count, crc) = (numbers.u64(), numbers.u64(), numbers.u64(), numbers.u32());
    let table_bytes = count.checked_mul(ENTRY).filter(|bytes| *bytes <= length - HEADER - TAIL);
    let Some(table_bytes) = table_bytes else {
        return fault("tail", format!("a table that fits into {length} bytes"), format!("one of {count} blocks"));
    };
    let table = at(length - TAIL - table_bytes, table_bytes)?;
    let mut hasher = crc32fast::Hasher::new();
    for part in [&header_bytes[..], &table, &tail[..64]] {
        hasher.update(part);
    }
    let computed = hasher.finalize();
    if computed != crc {
        return fault("table", format!("the checksum {crc:08x}"), format!("{computed:08x}"));
    }
    let mut numbers = Numbers(&header_bytes[8..]);
    let (identity, number, word_bytes) = (numbers.u64(), numbers.u32(), numbers.u32());
    let header = Header { identity, number, word_bytes, first_block: numbers.u64(), first_row: numbers.u64() };
    let mut numbers = Numbers(&table);
    let (mut blocks, mut row_sum, mut byte_sum) = (Vec::with_capacity(count as usize), 0u64, HEADER);
    for _ in 0..count {
        let place = numbers.u64();
        let mut next = || numbers.u32();
        let original = Block { place, raw_bytes: next(), text_bytes: next(), rows: next(), file: next() };
        let stored = Stored { original, bytes: next(), crc: next() };
        let least = u64::from(original.rows) * DIRECTORY_BYTES as u64;
        if original.rows == 0 || original.rows > MAX_BLOCK_ROWS || u64::from(stored.bytes) < least {
            let found = format!("{} rows in {} bytes", original.rows, stored.bytes);
            return fault("table", format!("1 to {MAX_BLOCK_ROWS} rows, and room for them, in a block"), found);
        }
        row_sum += u64::from(original.rows);
        byte_sum += u64::from(stored.bytes);
        blocks.push(stored);
    }
    if row_sum != rows || byte_sum + table_bytes + TAIL != length || !matches!(word_bytes, 2 | 4) {
        let found = format!("{row_sum} rows, {} bytes, tokens of {word_bytes}", byte_sum + table_bytes + TAIL);
        return fault("table", format!("{rows} rows, {length} bytes, tokens of 2 or 4"), found);
    }
    Ok(Shard { header, blocks, reach, tokens, rows, crc, file_bytes: length })
}

/// A shard while it is written.
pub(crate) struct ShardWriter {
    out: BufWriter<File>,
    header: Header,
    blocks: Vec<Stored>,
    reach: [Reach; 2],
    tokens: u64,
    rows: u64,
    body_bytes: u64,
    /// Written here, then renamed.
    beside: PathBuf,
    place: PathBuf,
}

impl ShardWriter {
    pub fn start(folder: &Path, header: Header) -> Result<ShardWriter, DataError> {
        let place = folder.join(name(header.number));
        let beside = folder.join(name(header.number) + ".part");
        let mut out = BufWriter::with_capacity(WRITE_BYTES, File::create(&beside)?);
        out.write_all(&header.bytes())?;
        let reach = Default::default();
        Ok(ShardWriter { out, header, blocks: Vec::new(), reach, tokens: 0, rows: 0, body_bytes: 0, beside, place })
    }

    /// Bytes of blocks so far.
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    pub fn block(&mut self, original: Block, body: &[u8], tokens: u64, reach: [Reach; 2]) -> Result<(), DataError> {
        let limit = u32::MAX as usize;
        let bytes = u32::try_from(body.len()).map_err(|_| DataError::RowTooLong {
            path: self.place.clone(),
            place: format!("block {}", self.blocks.len()),
            limit,
        })?;
        self.out.write_all(body)?;
        self.blocks.push(Stored { original, bytes, crc: crc32fast::hash(body) });
        self.reach = [0, 1].map(|side| self.reach[side].and(reach[side]));
        self.tokens += tokens;
        self.rows += u64::from(original.rows);
        self.body_bytes += u64::from(bytes);
        Ok(())
    }

    /// Makes it whole, and durable.
    pub fn finish(mut self) -> Result<Shard, DataError> {
        let table: Vec<u8> = self.blocks.iter().flat_map(Stored::bytes).collect();
        let mut tail = [reach_bytes(&self.reach[0]), reach_bytes(&self.reach[1])].concat();
        for number in [self.tokens, self.rows, self.blocks.len() as u64] {
            tail.extend_from_slice(&number.to_le_bytes());
        }
        let mut hasher = crc32fast::Hasher::new();
        for part in [&self.header.bytes()[..], &table, &tail] {
            hasher.update(part);
        }
        let crc = hasher.finalize();
        tail.extend_from_slice(&crc.to_le_bytes());
        tail.extend_from_slice(END);
        self.out.write_all(&table)?;
        self.out.write_all(&tail)?;
        self.out.flush()?;
        self.out.get_ref().sync_all()?;
        fs_err::rename(&self.beside, &self.place)?;
        if let Some(folder) = self.place.parent() {
            File::open(folder)?.sync_all()?;
        }
        // It is on the disk; its pages are of no use to us.
        page_cache::let_go(&self.place);
        let file_bytes = HEADER + self.body_bytes + table.len() as u64 + TAIL;
        let blocks = std::mem::take(&mut self.blocks);
        Ok(Shard {
            header: self.header,
            blocks,
            reach: self.reach,
            tokens: self.tokens,
            rows: self.rows,
            crc,
            file_bytes,
        })
    }
}

impl Drop for ShardWriter {
    fn drop(&mut self) {
        // Gone already where it was finished.
        let _ = fs_err::remove_file(&self.beside);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_read_as_it_was_written_and_no_byte_of_its_table_may_change() {
        let dir = tempfile::tempdir().unwrap();
        let header = Header { identity: 7, number: 3, word_bytes: 2, first_block: 5, first_row: 90 };
        let mut writer = ShardWriter::start(dir.path(), header).unwrap();
        let place = dir.path().join(name(3));
        let reach = [Reach { from: 9, cut: 2, only_made: true, more: false }, Reach::default()];
        for rows in 1..4 {
            let original = Block { place: 100 * u64::from(rows), raw_bytes: 11, text_bytes: 9, rows, file: 1 };
            writer.block(original, &vec![0; 8 * rows as usize + 6], 3, reach).unwrap();
        }
        assert!(!place.exists(), "not there before it is whole");
        let made = writer.finish().unwrap();
        assert_eq!((made.rows, made.tokens, made.reach[0].cut), (6, 9, 6));
        assert_eq!(read(&place).unwrap(), made);
        let names: Vec<_> = fs_err::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), 1, "{names:?}");
        let whole = fs_err::read(&place).unwrap();
        let blocks = HEADER as usize..whole.len() - (TAIL + 3 * ENTRY) as usize;
        for at in (0..whole.len()).filter(|at| !blocks.contains(at)) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            fs_err::write(&place, &bytes).unwrap();
            let said = read(&place).unwrap_err().to_string();
            assert!(said.contains("shard-00003.tokens"), "{said}");
        }
        for end in 0..whole.len() {
            fs_err::write(&place, &whole[..end]).unwrap();
            assert!(read(&place).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn names_of_shards_are_known() {
        assert_eq!((number_of(&name(0)), number_of(&name(123_456))), (Some(0), Some(123_456)));
        assert_eq!(number_of("shard-00012.tokens.part"), Some(12));
        for other in ["shard-1.tokens", "shard-0000x.tokens", "a", "shard-00001.json", "prepared.json"] {
            assert_eq!(number_of(other), None, "{other}");
        }
    }
}
