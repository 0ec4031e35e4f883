//! Numbers from Parquet: a stretch of rows at a time, one column after the other.
//!
//! Invariant: pages of one column are held at a time, whatever the number of columns; for each stretch its readers are opened anew, and
//! pages before it are passed over by their headers. Places and counts of the footer are checked before they are followed; one for which
//! there is no room is refused, before it is unpacked and before it is kept.

use std::path::Path;
use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType, TimeUnit, Type as Physical};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{BoolType, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::reader::{ChunkReader, Length};
use parquet::schema::types::ColumnDescriptor;

use super::error::SeriesError;
use super::names::Names;
use super::read::{Chunk, Role, Room, Rows, Wanted};
use super::time::TimeForm;
use crate::DataError;
use crate::input::Origin;
use crate::oversized::large_pages;
use crate::page_table::pages_from;
use crate::pages::{CountedPages, PageFacts, PlacedFile};
use crate::parquet_file::{CHUNK_BYTES, GroupChunks, bad, chunks_of, footer};

/// Values that are read at a time; texts keep the page that they are of alive, and go at once.
const AT_ONCE: usize = 1024;

/// How many times its length a footer takes when it is unpacked; `tests/series_heap.rs` holds it against one without statistics, which
/// are the shortest.
const UNPACKED: u64 = 10;

/// The length of a footer; nothing where a file has none, which its reader says.
fn footer_bytes(file: &PlacedFile) -> u64 {
    let said = file.len().checked_sub(8).and_then(|at| file.get_bytes(at, 4).ok());
    said.and_then(|four| four[..].try_into().ok()).map_or(0, |four| u64::from(u32::from_le_bytes(four)))
}

/// How a cell becomes a number or a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaf {
    Bool,
    /// So many nanoseconds are one, where it is an instant.
    Int32 {
        unsigned: bool,
        unit: Option<i64>,
    },
    Int64 {
        unsigned: bool,
        unit: Option<i64>,
    },
    Float,
    Double,
    Text,
}

struct Column<'a> {
    name: &'a str,
    role: Role,
    leaf: Leaf,
    file: Arc<PlacedFile>,
}

pub(crate) struct ParquetRows<'a> {
    path: &'a Path,
    wanted: Wanted<'a>,
    columns: Vec<Column<'a>>,
    groups: Vec<GroupChunks>,
    room: Room,
    /// The row group that is read, the next row of it, and its first row's number in the file.
    group: usize,
    at: u64,
    before: u64,
}

impl<'a> ParquetRows<'a> {
    /// Reads the footer.
    pub fn open(origin: &'a Origin, wanted: &Wanted<'a>, room: Room) -> Result<ParquetRows<'a>, DataError> {
        let (path, placed) = (origin.path(), PlacedFile::open(origin)?);
        let fits = |bytes: u64, limit: u64, what: &'static str| match bytes <= limit {
            true => Ok(()),
            false => Err(SeriesError::FooterTooLarge { path: path.into(), what, bytes, limit }),
        };
        // Pages are read behind it.
        fits(UNPACKED * footer_bytes(&placed), room.footer + 4 * room.page, "unpacked")?;
        let footer = footer(path, &placed)?;
        let mut columns = Vec::new();
        let mut leaves = Vec::new();
        for (name, role) in wanted.roles() {
            let (number, leaf) = find(path, &footer, name, role)?;
            leaves.push(number);
            columns.push(Column { name, role, leaf, file: Arc::new(placed.twin()) });
        }
        fits((footer.num_row_groups() * leaves.len()) as u64 * CHUNK_BYTES, room.footer, "kept")?;
        let groups = chunks_of(path, &footer, &leaves, placed.len(), i64::eq)?;
        Ok(ParquetRows { path, wanted: wanted.clone(), columns, groups, room, group: 0, at: 0, before: 0 })
    }

    /// Refuses pages that are too large, before the first of a group is unpacked.
    fn check_pages(&self, group: &GroupChunks) -> Result<(), DataError> {
        for (column, chunk) in self.columns.iter().zip(&group.chunks) {
            let large = large_pages(&column.file, chunk, group.rows, self.room.page)
                .map_err(|e| bad(self.path, format!("row group {}", self.group), e))?;
            if let Some(page) = large.first() {
                return Err(DataError::PageTooLarge {
                    path: self.path.into(),
                    place: format!("row {}", self.before + page.rows.start),
                    column: column.name.into(),
                    bytes: page.bytes,
                    limit: self.room.page,
                });
            }
        }
        Ok(())
    }
}

impl Rows for ParquetRows<'_> {
    fn next(&mut self, chunk: &mut Chunk, names: &mut Names) -> Result<(), DataError> {
        chunk.clear();
        while self.groups.get(self.group).is_some_and(|group| self.at == group.rows) {
            self.before += self.at;
            (self.group, self.at) = (self.group + 1, 0);
        }
        let Some(group) = self.groups.get(self.group) else { return Ok(()) };
        if self.at == 0 {
            self.check_pages(group)?;
        }
        let rows = (group.rows - self.at).min(chunk.most() as u64);
        let first = self.before + self.at;
        let stretch = Stretch { path: self.path, group_rows: group.rows, skip: self.at, rows: rows as usize, first };
        for column in &self.columns {
            if column.role == Role::Time {
                let form = column.leaf.time_form();
                chunk.time_form(form, self.path, format!("row {first}"), column.name)?;
            }
        }
        chunk.begin(first, rows as usize, &self.wanted);
        for (column, of) in self.columns.iter().zip(&group.chunks) {
            stretch.fill(column, of, chunk, names)?;
        }
        self.at += rows;
        Ok(())
    }

    fn word(&self) -> &'static str {
        "row"
    }
}

impl Leaf {
    fn time_form(self) -> TimeForm {
        match self {
            Leaf::Int32 { unit: Some(_), .. } | Leaf::Int64 { unit: Some(_), .. } => TimeForm::Instant,
            _ => TimeForm::Number,
        }
    }
}

/// Takes a value, or that there is none, by its number.
type Put<'a, T> = &'a mut dyn FnMut(usize, Option<&<T as DataType>::T>) -> Result<(), DataError>;

/// Rows of a group.
struct Stretch<'a> {
    path: &'a Path,
    group_rows: u64,
    skip: u64,
    rows: usize,
    /// The number of the first one in the file.
    first: u64,
}

impl Stretch<'_> {
    fn fill(
        &self,
        column: &Column<'_>,
        of: &ColumnChunkMetaData,
        chunk: &mut Chunk,
        names: &mut Names,
    ) -> Result<(), DataError> {
        match column.leaf {
            Leaf::Bool => self.values::<BoolType>(column, of, &mut |at, value| {
                self.put_number(column, chunk, at, value.map_or(f64::NAN, |on| f64::from(u8::from(*on))));
                Ok(())
            }),
            Leaf::Float => self.values::<FloatType>(column, of, &mut |at, value| {
                self.put_number(column, chunk, at, value.map_or(f64::NAN, |number| f64::from(*number)));
                Ok(())
            }),
            Leaf::Double => self.values::<DoubleType>(column, of, &mut |at, value| {
                self.put_number(column, chunk, at, value.map_or(f64::NAN, |number| *number));
                Ok(())
            }),
            Leaf::Int32 { unsigned, unit } => self.values::<Int32Type>(column, of, &mut |at, value| {
                let whole = |n: i32| if unsigned { i64::from(n as u32) } else { i64::from(n) };
                self.put_whole(column, chunk, names, at, (value.map(|n| whole(*n)), false, unit))
            }),
            Leaf::Int64 { unsigned, unit } => self.values::<Int64Type>(column, of, &mut |at, value| {
                self.put_whole(column, chunk, names, at, (value.copied(), unsigned, unit))
            }),
            Leaf::Text => self.values::<ByteArrayType>(column, of, &mut |at, value| {
                let text = value.map(|bytes| std::str::from_utf8(bytes.data()).map(str::trim));
                let name = match text {
                    Some(Ok(text)) if !text.is_empty() => text,
                    Some(Ok(_)) => return Err(self.wrong(column, at, "nothing")),
                    Some(Err(_)) => return Err(self.wrong(column, at, "bytes that are not UTF-8")),
                    None => return Err(self.wrong(column, at, "null")),
                };
                chunk.series[at] = names.number(name, self.path, || self.place(at))?;
                Ok(())
            }),
        }
    }

    fn place(&self, at: usize) -> String {
        format!("row {}", self.first + at as u64)
    }

    fn wrong(&self, column: &Column<'_>, at: usize, found: &str) -> DataError {
        let (path, place, name) = (self.path.to_path_buf(), self.place(at), column.name.into());
        let expected = match column.role {
            Role::By => "the name of a series",
            _ => "a time",
        };
        SeriesError::BadCell { path, place, column: name, expected: expected.into(), found: found.into() }.into()
    }

    fn put_number(&self, column: &Column<'_>, chunk: &mut Chunk, at: usize, number: f64) {
        if let Role::Number(which) = column.role {
            let width = chunk.width;
            chunk.numbers[at * width + which] = number;
        }
    }

    fn put_whole(
        &self,
        column: &Column<'_>,
        chunk: &mut Chunk,
        names: &mut Names,
        at: usize,
        (value, unsigned, unit): (Option<i64>, bool, Option<i64>),
    ) -> Result<(), DataError> {
        match (column.role, value) {
            (Role::Number(_), None) => {}
            (Role::Number(_), Some(n)) => {
                self.put_number(column, chunk, at, if unsigned { n as u64 as f64 } else { n as f64 });
            }
            (_, None) => return Err(self.wrong(column, at, "null")),
            (Role::Time, Some(n)) => {
                let time = if unsigned && n < 0 { None } else { n.checked_mul(unit.unwrap_or(1)) };
                chunk.times[at] = time.ok_or_else(|| self.wrong(column, at, "one that is too far from 1970"))?;
            }
            (Role::By, Some(n)) => {
                let name = if unsigned { (n as u64).to_string() } else { n.to_string() };
                chunk.series[at] = names.number(&name, self.path, || self.place(at))?;
            }
        }
        Ok(())
    }

    /// Hands each value of the stretch to `put`, with its number in it.
    fn values<T: DataType>(
        &self,
        column: &Column<'_>,
        of: &ColumnChunkMetaData,
        put: Put<'_, T>,
    ) -> Result<(), DataError> {
        let wrong = |at: usize, error: ParquetError| bad(self.path, self.place(at), error);
        column.file.expect_pages_of(of.uncompressed_size());
        let pages = pages_from(&column.file, of, self.group_rows as usize, None).map_err(|e| wrong(0, e))?;
        let pages = CountedPages::new(pages, Arc::new(PageFacts::default()));
        let descriptor = of.column_descr_ptr();
        let full = descriptor.max_def_level();
        let mut reader = ColumnReaderImpl::<T>::new(descriptor, Box::new(pages));
        let skip = self.skip as usize;
        if skip > 0 && reader.skip_records(skip).map_err(|e| wrong(0, e))? != skip {
            return Err(wrong(0, ParquetError::EOF(format!("expected {skip} rows before it, found fewer"))));
        }
        let most = if column.leaf == Leaf::Text { 1 } else { AT_ONCE.min(self.rows) };
        let (mut values, mut defined) = (Vec::with_capacity(most), Vec::with_capacity(most));
        let mut at = 0;
        while at < self.rows {
            values.clear();
            defined.clear();
            let (records, ..) = reader
                .read_records(most.min(self.rows - at), Some(&mut defined), None, &mut values)
                .map_err(|e| wrong(at, e))?;
            if records == 0 {
                let short = "expected one more row, found the end of the column";
                return Err(wrong(at, ParquetError::EOF(short.into())));
            }
            let mut there = values.iter();
            for record in 0..records {
                let is_there = full == 0 || defined.get(record).is_some_and(|level| *level == full);
                let value = if is_there { there.next() } else { None };
                if is_there && value.is_none() {
                    return Err(wrong(at, ParquetError::EOF("expected a value, found the end of the column".into())));
                }
                put(at, value)?;
                at += 1;
            }
        }
        Ok(())
    }
}

/// The leaf number of a top-level column, and how it is read.
fn find(path: &Path, footer: &ParquetMetaData, name: &str, role: Role) -> Result<(usize, Leaf), DataError> {
    let fields = footer.file_metadata().schema().get_fields();
    if !fields.iter().any(|field| field.name() == name) {
        let present: Vec<&str> = fields.iter().map(|field| field.name()).collect();
        let (path, place, column) = (path.into(), "schema".into(), name.into());
        return Err(DataError::MissingColumn { path, place, column, present: present.join(", ") });
    }
    let wrong = |found: String| SeriesError::ColumnType {
        path: path.into(),
        column: name.into(),
        expected: role.expected(),
        found,
    };
    let descriptor = footer.file_metadata().schema_descr();
    let mut of_name = (0..descriptor.num_columns()).filter(|number| {
        let column = descriptor.column(*number);
        column.path().parts().len() == 1 && column.name() == name
    });
    let number = match (of_name.next(), of_name.next()) {
        (Some(number), None) => number,
        (Some(_), Some(_)) => return Err(wrong("two of that name".into()).into()),
        (None, _) => return Err(wrong("a list, map or struct".into()).into()),
    };
    let column = descriptor.column(number);
    if column.max_rep_level() != 0 {
        return Err(wrong("a repeated column".into()).into());
    }
    let leaf = leaf(&column).filter(|leaf| match role {
        Role::Number(_) => leaf.time_form() == TimeForm::Number && *leaf != Leaf::Text,
        Role::Time => matches!(leaf, Leaf::Int32 { .. } | Leaf::Int64 { .. }),
        Role::By => {
            let whole = matches!(leaf, Leaf::Int32 { .. } | Leaf::Int64 { .. });
            *leaf == Leaf::Text || (whole && leaf.time_form() == TimeForm::Number)
        }
    });
    let leaf = leaf.ok_or_else(|| {
        let logical = column.logical_type_ref().map(|logical| format!(" ({logical:?})"));
        wrong(format!("{}{}", column.physical_type(), logical.unwrap_or_default()))
    })?;
    Ok((number, leaf))
}

fn leaf(column: &ColumnDescriptor) -> Option<Leaf> {
    const DAY: i64 = 86_400_000_000_000;
    let whole = match (column.logical_type_ref(), column.converted_type()) {
        (Some(LogicalType::Integer(int)), _) => Some((!int.is_signed, None)),
        (Some(LogicalType::Timestamp(said)), _) => {
            let unit = match said.unit {
                TimeUnit::MILLIS => 1_000_000,
                TimeUnit::MICROS => 1_000,
                TimeUnit::NANOS => 1,
            };
            Some((false, Some(unit)))
        }
        (Some(LogicalType::Date), _) | (None, ConvertedType::DATE) => Some((false, Some(DAY))),
        (None, ConvertedType::TIMESTAMP_MILLIS) => Some((false, Some(1_000_000))),
        (None, ConvertedType::TIMESTAMP_MICROS) => Some((false, Some(1_000))),
        (None, ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64) => {
            Some((true, None))
        }
        (None, ConvertedType::NONE | ConvertedType::INT_8 | ConvertedType::INT_16) => Some((false, None)),
        (None, ConvertedType::INT_32 | ConvertedType::INT_64) => Some((false, None)),
        _ => None,
    };
    match column.physical_type() {
        Physical::BOOLEAN => Some(Leaf::Bool),
        Physical::INT32 => whole.map(|(unsigned, unit)| Leaf::Int32 { unsigned, unit }),
        Physical::INT64 => whole.map(|(unsigned, unit)| Leaf::Int64 { unsigned, unit }),
        Physical::FLOAT => Some(Leaf::Float),
        Physical::DOUBLE => Some(Leaf::Double),
        Physical::BYTE_ARRAY => Some(Leaf::Text),
        Physical::INT96 | Physical::FIXED_LEN_BYTE_ARRAY => None,
    }
}
