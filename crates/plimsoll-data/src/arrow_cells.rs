//! The wanted columns of one Arrow record batch, read row by row.
//!
//! Invariant: of each buffer a chunk is held; every offset, view and number is checked before it is followed, and a row is whole or
//! names what is wrong with it. It knows nothing of blocks and files.

use std::path::Path;
use std::sync::Arc;

use crate::arrow_buffer::{Access, Buffer, BufferFault, Spot};
use crate::arrow_places::{ListPlaces, Places};
use crate::arrow_shape::{Coded, LeafShape, Shape, TextShape};
use crate::input::Input;
use crate::jsonl_row::{Want, WantedCell};
use crate::layout::MAX_ROW_BYTES;
use crate::messages::{self, ConversationWriter, MessageFault, NotMessages};
use crate::row_text::RowText;
use crate::{ChosenColumns, DataError};

/// What is wrong with a row.
pub(crate) enum RowFault {
    Buffer(BufferFault),
    /// A cell (by its number) is not a text, but this.
    NotAString(usize, &'static str),
    NotMessages(&'static str),
    Message(MessageFault),
}

impl From<BufferFault> for RowFault {
    fn from(fault: BufferFault) -> RowFault {
        RowFault::Buffer(fault)
    }
}

impl RowFault {
    /// The fault, with its place.
    pub fn at(self, path: &Path, place: String, names: &ChosenColumns) -> DataError {
        let path = path.to_path_buf();
        match self {
            RowFault::Buffer(fault) => fault.at(&path, place),
            RowFault::NotAString(which, found) => {
                let column = names.wants()[which].name.into();
                DataError::NotAString { path, place, column, found: found.into() }
            }
            RowFault::NotMessages(found) => {
                DataError::NotMessages { path, place, column: names.source.clone(), found: found.into() }
            }
            RowFault::Message(fault) => fault.at(path, place, names.source.clone()),
        }
    }
}

impl BufferFault {
    /// The fault, with its place.
    pub fn at(self, path: &Path, place: String) -> DataError {
        let path = path.to_path_buf();
        match self {
            BufferFault::Io(error) => match DataError::from(error) {
                DataError::Io(error) => DataError::BadArrow { path, place, reason: error.to_string() },
                other => other,
            },
            BufferFault::Broken(reason) => DataError::BadArrow { path, place, reason },
            BufferFault::TooLong => DataError::RowTooLong { path, place, limit: MAX_ROW_BYTES },
        }
    }
}

/// The values of one dictionary: its first batch, and those that added to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dictionary {
    /// How many values are before each.
    pieces: Vec<(u64, Places)>,
    values: u64,
}

impl Dictionary {
    pub fn push(&mut self, piece: Places) {
        let first = self.values;
        self.values = first.saturating_add(piece.rows);
        self.pieces.push((first, piece));
    }

    /// Heap of what is kept, in bytes.
    pub fn heap_bytes(&self) -> u64 {
        let pieces = (self.pieces.capacity() * size_of::<(u64, Places)>()) as u64;
        pieces + self.pieces.iter().map(|(_, piece)| piece.heap_bytes()).sum::<u64>()
    }
}

/// The wanted columns of a batch.
pub(crate) struct ArrowCells {
    leaves: Vec<Leaf>,
    nested: bool,
}

impl ArrowCells {
    /// Reads nothing yet.
    pub fn open(file: &Arc<Input>, shape: &Shape, places: &[Places], dictionaries: &[Arc<Dictionary>]) -> ArrowCells {
        let leaf = |(shape, places): (&LeafShape, &Places)| Leaf {
            list: places.list.as_deref().zip(shape.list).map(|(list, shape)| List::open(list, shape.width, file)),
            values: Values::open(shape, places, &dictionaries[places.dictionary], file),
        };
        ArrowCells { leaves: shape.leaves.iter().zip(places).map(leaf).collect(), nested: shape.nested }
    }

    /// The most heap that reading took so far, in bytes.
    pub fn heap_bytes(&self) -> u64 {
        let leaf = |leaf: &Leaf| leaf.values.heap_bytes() + leaf.list.as_ref().map_or(0, List::heap_bytes);
        self.leaves.iter().map(leaf).sum::<u64>() + (self.leaves.capacity() * size_of::<Leaf>()) as u64
    }

    /// Makes the texts of a row, whose number in the batch is `row`.
    pub fn row(
        &mut self,
        row: u64,
        names: &ChosenColumns,
        wants: &[Want<'_>],
        text: &mut RowText,
    ) -> Result<(), RowFault> {
        if self.nested {
            self.conversation(row, &mut text.cells[0])?;
        } else {
            for (which, (leaf, want)) in self.leaves.iter_mut().zip(wants).enumerate() {
                let into = &mut text.cells[which];
                let cell = match leaf.values.load(row)? {
                    true => utf8(leaf.values.text()).ok_or(RowFault::NotAString(which, NOT_UTF8))?,
                    false if want.cell == WantedCell::TextOrNothing => "",
                    false => return Err(RowFault::NotAString(which, "null")),
                };
                if want.cell == WantedCell::Messages {
                    match messages::from_json(cell, into) {
                        None => {}
                        Some(NotMessages::Fault(fault)) => return Err(RowFault::Message(fault)),
                        Some(NotMessages::Other(found)) => return Err(RowFault::NotMessages(found)),
                    }
                } else {
                    into.clear();
                    into.push_str(cell);
                }
            }
        }
        text.make(names).map_err(RowFault::Message)
    }

    /// The messages of a row, as one conversation.
    fn conversation(&mut self, row: u64, out: &mut String) -> Result<(), RowFault> {
        let [roles, contents] = &mut self.leaves[..] else { return Ok(()) };
        let (role_at, content_at) = (roles.range(row)?, contents.range(row)?);
        let (count, others) = (role_at.end - role_at.start, content_at.end - content_at.start);
        if count != others {
            let found = format!("{count} and {others}");
            let expected = "as many roles as contents";
            return Err(RowFault::Message(MessageFault { number: None, expected, found }));
        }
        let mut writer = ConversationWriter::new(out);
        for (number, (role, content)) in role_at.zip(content_at).enumerate() {
            let role = roles.message_part(role, number, "a string as its role")?;
            let content = contents.message_part(content, number, "a string as its content")?;
            writer.push(role, content).map_err(RowFault::Message)?;
            if writer.bytes() > MAX_ROW_BYTES {
                return Err(BufferFault::TooLong.into());
            }
        }
        writer.finish().map_err(RowFault::Message)
    }
}

const NOT_UTF8: &str = "bytes that are not UTF-8";

fn utf8(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

fn broken(reason: String) -> BufferFault {
    BufferFault::Broken(reason)
}

/// One column of texts, and the list that they are in.
struct Leaf {
    list: Option<List>,
    values: Values,
}

impl Leaf {
    /// Which values belong to `row`.
    fn range(&mut self, row: u64) -> Result<std::ops::Range<u64>, BufferFault> {
        self.list.as_mut().map_or(Ok(0..0), |list| list.range(row, self.values.count))
    }

    /// Value `at`, which is role or content of message `number`, from 0.
    fn message_part(&mut self, at: u64, number: usize, expected: &'static str) -> Result<&str, RowFault> {
        let fault =
            |found: &str| RowFault::Message(MessageFault { number: Some(number + 1), expected, found: found.into() });
        let item = self.list.as_mut().and_then(|list| list.item.as_mut());
        let there = item.map_or(Ok(true), |item| item.bit(at))? && self.values.load(at)?;
        if !there {
            return Err(fault("null"));
        }
        utf8(self.values.text()).ok_or_else(|| fault(NOT_UTF8))
    }
}

struct List {
    around: Option<Buffer>,
    validity: Option<Buffer>,
    offsets: Buffer,
    width: usize,
    item: Option<Buffer>,
}

impl List {
    fn open(places: &ListPlaces, width: usize, file: &Arc<Input>) -> List {
        let open = |spot: &Spot| Buffer::open(spot, file, Access::Forward);
        List {
            around: places.around.as_ref().map(open),
            validity: places.validity.as_ref().map(open),
            offsets: open(&places.offsets),
            width,
            item: places.item.as_ref().map(open),
        }
    }

    fn heap_bytes(&self) -> u64 {
        let bitmaps = [&self.around, &self.validity, &self.item].into_iter().flatten();
        bitmaps.chain([&self.offsets]).map(Buffer::heap_bytes).sum()
    }

    /// Which of `count` values belong to `row`; none where there is no list.
    fn range(&mut self, row: u64, count: u64) -> Result<std::ops::Range<u64>, BufferFault> {
        for bitmap in [&mut self.around, &mut self.validity].into_iter().flatten() {
            if !bitmap.bit(row)? {
                return Ok(0..0);
            }
        }
        let start = self.offsets.number(row, self.width)?;
        let end = self.offsets.number(row + 1, self.width)?;
        if start > end || end > count {
            return Err(broken(format!("expected a list inside of {count} values, found one from {start} to {end}")));
        }
        Ok(start..end)
    }
}

/// Texts by their number.
struct Values {
    count: u64,
    validity: Option<Buffer>,
    stored: Stored,
}

/// How they are stored, and where the one that was asked for last is.
enum Stored {
    Flat { ends: Buffer, width: usize, bytes: Buffer, at: u64, length: usize },
    View { views: Buffer, view: [u8; 16], parts: Parts<Buffer> },
    Coded { numbers: Buffer, coded: Coded, dictionary: Arc<Dictionary>, text: TextShape, parts: Parts<Values> },
}

/// Of many things that could be read, the one that is.
struct Parts<T> {
    open: Option<(usize, Box<T>)>,
    file: Arc<Input>,
    places: Box<[Spot]>,
    /// The most heap that one of those before took.
    most_bytes: u64,
}

impl<T> Parts<T> {
    fn new(file: &Arc<Input>, places: Box<[Spot]>) -> Parts<T> {
        Parts { open: None, file: file.clone(), places, most_bytes: 0 }
    }

    /// Part `number`, by `make` where another was read before.
    fn part(
        &mut self,
        number: usize,
        heap: impl Fn(&T) -> u64,
        make: impl FnOnce(&Arc<Input>, &[Spot]) -> T,
    ) -> &mut T {
        if self.open.as_ref().is_some_and(|(open, _)| *open != number)
            && let Some((_, before)) = self.open.take()
        {
            self.most_bytes = self.most_bytes.max(heap(&before));
        }
        let (file, places) = (&self.file, &self.places);
        &mut self.open.get_or_insert_with(|| (number, Box::new(make(file, places)))).1
    }

    fn heap_bytes(&self, heap: impl Fn(&T) -> u64) -> u64 {
        let open = self.open.as_ref().map_or(0, |(_, part)| heap(part));
        self.most_bytes.max(open) + (size_of::<T>() + size_of_val(&*self.places)) as u64
    }
}

impl Values {
    fn open(shape: &LeafShape, places: &Places, dictionary: &Arc<Dictionary>, file: &Arc<Input>) -> Values {
        let first = Buffer::open(&places.first, file, Access::Forward);
        match shape.coded {
            None => Values::plain(shape.text, places, file, Access::Forward),
            Some(coded) => {
                let (dictionary, parts) = (dictionary.clone(), Parts::new(file, Box::default()));
                let stored = Stored::Coded { numbers: first, coded, dictionary, text: shape.text, parts };
                Values { count: places.rows, validity: bitmap(places, file, Access::Forward), stored }
            }
        }
    }

    fn plain(text: TextShape, places: &Places, file: &Arc<Input>, access: Access) -> Values {
        let first = Buffer::open(&places.first, file, access);
        let stored = match (text, &places.bytes[..]) {
            (TextShape::Flat { width }, [bytes]) => {
                Stored::Flat { ends: first, width, bytes: Buffer::open(bytes, file, access), at: 0, length: 0 }
            }
            (_, bytes) => Stored::View { views: first, view: [0; 16], parts: Parts::new(file, bytes.into()) },
        };
        Values { count: places.rows, validity: bitmap(places, file, access), stored }
    }

    fn heap_bytes(&self) -> u64 {
        let stored = match &self.stored {
            Stored::Flat { ends, bytes, .. } => ends.heap_bytes() + bytes.heap_bytes(),
            Stored::View { views, parts, .. } => views.heap_bytes() + parts.heap_bytes(Buffer::heap_bytes),
            Stored::Coded { numbers, parts, .. } => numbers.heap_bytes() + parts.heap_bytes(Values::heap_bytes),
        };
        stored + self.validity.as_ref().map_or(0, Buffer::heap_bytes)
    }

    /// Reads value `index`; false: there is none.
    fn load(&mut self, index: u64) -> Result<bool, BufferFault> {
        if index >= self.count {
            return Err(broken(format!("expected value {index} of a column, found {} values", self.count)));
        }
        if let Some(validity) = &mut self.validity
            && !validity.bit(index)?
        {
            return Ok(false);
        }
        match &mut self.stored {
            Stored::Flat { ends, width, bytes, at, length } => {
                let (start, end) = (ends.number(index, *width)?, ends.number(index + 1, *width)?);
                let count = end
                    .checked_sub(start)
                    .ok_or_else(|| broken(format!("expected offsets that grow, found {end} behind {start}")))?;
                let count = usize::try_from(count).map_err(|_| BufferFault::TooLong)?;
                (*at, *length) = (start, count);
                // An offset of 2^63 and more, which is a negative one, is outside of every buffer.
                bytes.get(start, count)?;
            }
            Stored::View { views, view, parts } => {
                let at = index.saturating_mul(16);
                view.copy_from_slice(views.get(at, 16)?);
                let View { length, part, at } = View::of(view);
                if length > 12 {
                    let parts_there = parts.places.len();
                    let outside = || broken(format!("expected a view into one of {parts_there} buffers, found {part}"));
                    let number = usize::try_from(part).ok().filter(|n| *n < parts_there).ok_or_else(outside)?;
                    let open =
                        |file: &Arc<Input>, places: &[Spot]| Buffer::open(&places[number], file, Access::Forward);
                    let length = usize::try_from(length).map_err(|_| BufferFault::TooLong)?;
                    parts.part(number, Buffer::heap_bytes, open).get(at, length)?;
                }
            }
            Stored::Coded { numbers, coded, dictionary, text, parts } => {
                let number = numbers.number(index, coded.width)?;
                let negative = coded.signed && number >> (8 * coded.width - 1) & 1 == 1;
                if negative || number >= dictionary.values {
                    let found = if negative { "a negative one".into() } else { number.to_string() };
                    let expected = dictionary.values;
                    return Err(broken(format!("expected a number of one of {expected} values, found {found}")));
                }
                let which = dictionary.pieces.partition_point(|(first, _)| *first <= number) - 1;
                let (first, places) = &dictionary.pieces[which];
                let open = |file: &Arc<Input>, _: &[Spot]| Values::plain(*text, places, file, Access::Anywhere);
                return parts.part(which, Values::heap_bytes, open).load(number - first);
            }
        }
        Ok(true)
    }

    /// The value that was loaded.
    fn text(&self) -> &[u8] {
        match &self.stored {
            Stored::Flat { bytes, at, length, .. } => bytes.peek(*at, *length),
            Stored::View { view, parts, .. } => match (View::of(view), &parts.open) {
                (View { length, .. }, _) if length <= 12 => &view[4..4 + length as usize],
                (View { length, at, .. }, Some((_, buffer))) => buffer.peek(at, length as usize),
                _ => &[],
            },
            Stored::Coded { parts, .. } => parts.open.as_ref().map_or(&[], |(_, values)| values.text()),
        }
    }
}

fn bitmap(places: &Places, file: &Arc<Input>, access: Access) -> Option<Buffer> {
    places.validity.as_ref().map(|spot| Buffer::open(spot, file, access))
}

/// A view: a text of at most 12 bytes itself, or in which buffer and where it is.
struct View {
    /// A negative one is longer than any row may be.
    length: u32,
    part: i32,
    at: u64,
}

impl View {
    fn of(view: &[u8; 16]) -> View {
        let four = |at: usize| [view[at], view[at + 1], view[at + 2], view[at + 3]];
        let at = u64::from(u32::from_le_bytes(four(12)));
        View { length: u32::from_le_bytes(four(0)), part: i32::from_le_bytes(four(8)), at }
    }
}
