//! One record batch: where its wanted buffers lie, checked against the file.
//!
//! Invariant: every place is inside the batch's body and the body inside the file, and every buffer is long enough for its rows; what
//! is in the buffers is checked when it is read. It knows nothing of texts.

use std::sync::Arc;

use arrow_ipc::{BodyCompressionMethod, CompressionType, RecordBatch};

use crate::arrow_buffer::{BufferFault, Codec, Span, Spot};
use crate::arrow_shape::{At, LeafShape, ListShape, TextShape};
use crate::input::Input;

/// The buffers of one column of texts, or of numbers of a dictionary's values.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub rows: u64,
    pub validity: Option<Spot>,
    /// Ends, views or numbers.
    pub first: Spot,
    /// Bytes of texts.
    pub bytes: Box<[Spot]>,
    /// Which dictionary its numbers mean.
    pub dictionary: usize,
    pub list: Option<Box<ListPlaces>>,
}

/// The buffers of a list around texts.
#[derive(Clone, Debug)]
pub(crate) struct ListPlaces {
    pub around: Option<Spot>,
    pub validity: Option<Spot>,
    pub offsets: Spot,
    /// Validity of the structs in it.
    pub item: Option<Spot>,
}

impl Places {
    fn spots(&self) -> impl Iterator<Item = &Spot> {
        self.validity.iter().chain([&self.first]).chain(&self.bytes)
    }

    /// Whether anything of it is packed.
    pub fn is_packed(&self) -> bool {
        self.spots().chain(self.list.iter().map(|list| &list.offsets)).any(Spot::is_packed)
    }

    /// The same with what is packed unpacked, in memory.
    pub fn held(self, file: &Arc<Input>) -> Result<Places, BufferFault> {
        let validity = self.validity.map(|spot| spot.held(file)).transpose()?;
        let bytes = self.bytes.into_iter().map(|spot| spot.held(file)).collect::<Result<_, _>>()?;
        Ok(Places { validity, first: self.first.held(file)?, bytes, ..self })
    }

    /// Heap of what is kept, in bytes.
    pub fn heap_bytes(&self) -> u64 {
        let held = |spot: &Spot| if let Spot::Held(held) = spot { held.len() as u64 + 16 } else { 0 };
        let list = if self.list.is_some() { size_of::<ListPlaces>() as u64 } else { 0 };
        size_of_val(&*self.bytes) as u64 + list + self.spots().map(held).sum::<u64>()
    }
}

/// A batch's metadata and where its body lies.
pub(crate) struct Body<'a> {
    pub file: &'a Arc<Input>,
    pub start: u64,
    pub bytes: u64,
    pub batch: RecordBatch<'a>,
}

impl Body<'_> {
    /// Its rows.
    pub fn rows(&self) -> Result<u64, BufferFault> {
        u64::try_from(self.batch.length()).map_err(|_| broken("a negative number of rows"))
    }

    /// The buffers of a column of `rows` rows.
    pub fn places(&self, leaf: &LeafShape, rows: u64, dictionary: usize) -> Result<Places, BufferFault> {
        let list = leaf.list.map(|list| self.list(list, rows)).transpose()?;
        let (values, validity) = self.node(leaf.at, list.is_none().then_some(rows))?;
        let first = self.buffer_at(leaf.at, 1)?;
        let needed = match (leaf.coded, leaf.text) {
            (Some(coded), _) => values.checked_mul(coded.width as u64),
            (None, TextShape::Flat { .. }) if values == 0 => Some(0),
            (None, TextShape::Flat { width }) => values.checked_add(1).and_then(|n| n.checked_mul(width as u64)),
            (None, TextShape::View) => values.checked_mul(16),
        };
        long_enough(&first, needed)?;
        let bytes: Box<[Spot]> = match (leaf.coded, leaf.text) {
            (Some(_), _) => Box::default(),
            (None, TextShape::Flat { .. }) => Box::new([self.buffer_at(leaf.at, 2)?]),
            (None, TextShape::View) => {
                let counts = self.batch.variadicBufferCounts();
                let count = counts.filter(|all| leaf.at.views < all.len()).map(|all| all.get(leaf.at.views));
                let there = self.batch.buffers().map_or(0, |all| all.len());
                let count = count.and_then(|n| usize::try_from(n).ok()).filter(|n| *n <= there);
                let count = count.ok_or_else(|| broken("a column of views does not say how many buffers it has"))?;
                (0..count).map(|i| self.buffer_at(leaf.at, 2 + i)).collect::<Result<_, _>>()?
            }
        };
        Ok(Places { rows: values, validity, first, bytes, dictionary, list: list.map(Box::new) })
    }

    /// Which values of a column of `rows` numbers of so many bits are there, where some are not, and the numbers.
    pub fn numbers(&self, at: At, rows: u64, bits: u64) -> Result<(Option<Spot>, Spot), BufferFault> {
        let (values, validity) = self.node(at, Some(rows))?;
        let numbers = self.buffer_at(at, 1)?;
        long_enough(&numbers, values.checked_mul(bits).map(|bits| bits.div_ceil(8)))?;
        Ok((validity, numbers))
    }

    fn list(&self, list: ListShape, rows: u64) -> Result<ListPlaces, BufferFault> {
        let around = list.around.map(|at| self.node(at, Some(rows))).transpose()?.and_then(|(_, validity)| validity);
        let (_, validity) = self.node(list.list, Some(rows))?;
        let offsets = self.buffer_at(list.list, 1)?;
        let needed = if rows == 0 { Some(0) } else { (rows + 1).checked_mul(list.width as u64) };
        long_enough(&offsets, needed)?;
        let item = list.item.map(|at| self.node(at, None)).transpose()?.and_then(|(_, validity)| validity);
        Ok(ListPlaces { around, validity, offsets, item })
    }

    /// How many values a column has, and which of them are there.
    fn node(&self, at: At, rows: Option<u64>) -> Result<(u64, Option<Spot>), BufferFault> {
        let nodes = self.batch.nodes().filter(|nodes| at.node < nodes.len());
        let node = nodes
            .map(|nodes| nodes.get(at.node))
            .ok_or_else(|| broken("a batch with fewer columns than the schema"))?;
        let values = u64::try_from(node.length()).ok();
        let values = values.filter(|n| rows.is_none_or(|rows| rows == *n)).ok_or_else(|| {
            let rows = rows.map_or("not less than 0".to_string(), |rows| rows.to_string());
            broken(&format!("expected a column of {rows} values, found {}", node.length()))
        })?;
        if node.null_count() == 0 || values == 0 {
            return Ok((values, None));
        }
        let validity = self.buffer_at(at, 0)?;
        long_enough(&validity, Some(values.div_ceil(8)))?;
        Ok((values, Some(validity)))
    }

    /// Buffer `which` of the column at `at`.
    fn buffer_at(&self, at: At, which: usize) -> Result<Spot, BufferFault> {
        let short = || broken("a batch with fewer buffers than the schema");
        let of_views = self.batch.variadicBufferCounts();
        let counts = of_views.iter().flat_map(|all| all.iter());
        let before = counts.take(at.views).try_fold(0usize, |sum, n| sum.checked_add(usize::try_from(n).ok()?));
        let number = before.and_then(|n| n.checked_add(at.buffer + which)).ok_or_else(short)?;
        let buffers = self.batch.buffers().filter(|buffers| number < buffers.len()).ok_or_else(short)?;
        let buffer = buffers.get(number);
        let (offset, stored) = (u64::try_from(buffer.offset()), u64::try_from(buffer.length()));
        let (Ok(offset), Ok(stored)) = (offset, stored) else { return Err(broken("a buffer at a negative place")) };
        if offset.checked_add(stored).is_none_or(|end| end > self.bytes) {
            return Err(broken(&format!(
                "expected {stored} bytes of a buffer at {offset}, found a body of {} bytes",
                self.bytes
            )));
        }
        let plain = Span { start: self.start + offset, stored, bytes: stored, codec: None };
        Ok(Spot::Span(match self.codec()? {
            Some(codec) if stored > 0 => self.packed(plain, codec)?,
            _ => plain,
        }))
    }

    /// A buffer that begins with its length when unpacked, or with -1 where it is not packed.
    fn packed(&self, plain: Span, codec: Codec) -> Result<Span, BufferFault> {
        let stored = plain.stored.checked_sub(8).ok_or_else(|| broken("a packed buffer without its length"))?;
        let mut eight = [0; 8];
        self.file.read_exact_at(&mut eight, plain.start)?;
        let start = plain.start + 8;
        Ok(match i64::from_le_bytes(eight) {
            -1 => Span { start, stored, bytes: stored, codec: None },
            bytes => {
                let bytes = u64::try_from(bytes).map_err(|_| broken("a packed buffer of a negative length"))?;
                Span { start, stored, bytes, codec: Some(codec) }
            }
        })
    }

    fn codec(&self) -> Result<Option<Codec>, BufferFault> {
        let Some(compression) = self.batch.compression() else { return Ok(None) };
        match (compression.method(), compression.codec()) {
            (BodyCompressionMethod::BUFFER, CompressionType::LZ4_FRAME) => Ok(Some(Codec::Lz4)),
            (BodyCompressionMethod::BUFFER, CompressionType::ZSTD) => Ok(Some(Codec::Zstd)),
            _ => Err(broken("expected batches that are not compressed, or with lz4 or zstd, found another way")),
        }
    }
}

fn long_enough(spot: &Spot, needed: Option<u64>) -> Result<(), BufferFault> {
    if needed.is_some_and(|needed| needed <= spot.bytes()) {
        return Ok(());
    }
    let needed = needed.map_or("more bytes than there can be".into(), |n| format!("{n} bytes"));
    Err(broken(&format!("expected {needed} of a buffer, found {}", spot.bytes())))
}

fn broken(reason: &str) -> BufferFault {
    BufferFault::Broken(reason.into())
}
