//! Numbers from Arrow files and streams: a stretch of rows of a batch at a time, one column after the other.
//!
//! Invariant: of a batch only places are kept, and of one column at a time a chunk of its buffers is held; a packed one is unpacked from
//! its beginning for each stretch. What a place or a number of a dictionary says is checked before it is followed.

use std::path::Path;
use std::sync::Arc;

use arrow_ipc::{DateUnit, Field, Precision, TimeUnit, Type};

use super::error::SeriesError;
use super::names::Names;
use super::read::{Chunk, Role, Rows, Wanted};
use super::time::TimeForm;
use crate::arrow_buffer::{Access, Buffer, BufferFault, Spot};
use crate::arrow_cells::{ArrowCells, Dictionary};
use crate::arrow_messages::{Head, Messages};
use crate::arrow_places::{Body, Places};
use crate::arrow_shape::{At, LeafShape, Shape, type_name};
use crate::input::{Input, Origin};
use crate::row_text::RowText;
use crate::{ChosenColumns, DataError, Kind, Style};

/// How a cell becomes a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaf {
    Bool,
    /// Of so many bytes; so many nanoseconds are one, where it is an instant.
    Whole {
        width: usize,
        signed: bool,
        unit: Option<i64>,
    },
    Float,
    Double,
}

impl Leaf {
    fn bits(self) -> u64 {
        match self {
            Leaf::Bool => 1,
            Leaf::Whole { width, .. } => 8 * width as u64,
            Leaf::Float => 32,
            Leaf::Double => 64,
        }
    }

    fn is_plain_whole(self) -> bool {
        matches!(self, Leaf::Whole { unit: None, .. })
    }

    fn time_form(self) -> TimeForm {
        match self {
            Leaf::Whole { unit: Some(_), .. } => TimeForm::Instant,
            _ => TimeForm::Number,
        }
    }
}

/// A column, and where it is in a batch.
struct Column<'a> {
    name: &'a str,
    role: Role,
    of: Stored,
}

enum Stored {
    Numbers {
        leaf: Leaf,
        at: At,
    },
    /// Texts, by the reader of texts.
    Texts {
        shape: Shape,
        names: ChosenColumns,
    },
}

/// Where a column of the batch at work lies.
enum Lies {
    Numbers { validity: Option<Spot>, values: Spot },
    Texts(Places),
}

pub(crate) struct ArrowRows<'a> {
    path: &'a Path,
    wanted: Wanted<'a>,
    messages: Messages<'a>,
    columns: Vec<Column<'a>>,
    /// None, and the one of the column of texts, where it has one.
    dictionaries: [Arc<Dictionary>; 2],
    /// Places and rows of the batch at work, and the next row of it.
    batch: Vec<Lies>,
    rows: u64,
    at: u64,
    /// The number of its first row in the file.
    before: u64,
}

impl<'a> ArrowRows<'a> {
    /// Reads footer or schema.
    pub fn open(origin: &'a Origin, wanted: &Wanted<'a>) -> Result<ArrowRows<'a>, DataError> {
        let (path, messages) = (origin.path(), Messages::open(origin)?);
        let walked = messages.walked()?;
        let mut columns = Vec::new();
        for (name, role) in wanted.roles() {
            let (field, at) = walked.find(path, name)?;
            let leaf = leaf(field).filter(|leaf| match role {
                Role::Number(_) => leaf.time_form() == TimeForm::Number,
                Role::Time => matches!(leaf, Leaf::Whole { .. }),
                Role::By => leaf.is_plain_whole(),
            });
            let of = match (leaf, role) {
                (Some(leaf), _) => Stored::Numbers { leaf, at },
                (None, Role::By) => {
                    let names = ChosenColumns {
                        source: name.into(),
                        style: Style::Text,
                        kind: Kind::Text,
                        ..ChosenColumns::default()
                    };
                    Stored::Texts { shape: walked.shape(path, &names)?, names }
                }
                (None, _) => {
                    let (path, column, found) = (path.into(), name.into(), type_name(field));
                    return Err(SeriesError::ColumnType { path, column, expected: role.expected(), found }.into());
                }
            };
            columns.push(Column { name, role, of });
        }
        drop(walked);
        let (wanted, dictionaries) = (wanted.clone(), [Arc::default(), Arc::default()]);
        Ok(ArrowRows { path, wanted, messages, columns, dictionaries, batch: Vec::new(), rows: 0, at: 0, before: 0 })
    }

    /// Goes on to the next batch that has rows; false at the end.
    fn next_batch(&mut self) -> Result<bool, DataError> {
        while let Some(head) = self.messages.next()? {
            self.message(&head).map_err(|fault| fault.at(self.path, head.place.clone()))?;
            if self.rows > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn message(&mut self, head: &Head) -> Result<(), BufferFault> {
        let file = self.messages.file.clone();
        let message = head.message().map_err(BufferFault::Broken)?;
        if let Some(said) = message.header_as_dictionary_batch() {
            let texts = self.columns.iter().find_map(|column| match &column.of {
                Stored::Texts { shape, .. } => shape.leaves.first(),
                Stored::Numbers { .. } => None,
            });
            let leaf = texts.filter(|leaf| leaf.coded.is_some_and(|coded| coded.dictionary == said.id()));
            let (Some(leaf), Some(batch)) = (leaf, said.data()) else { return Ok(()) };
            let values = LeafShape { list: None, at: At::default(), coded: None, ..*leaf };
            let body = Body { file: &file, start: head.body, bytes: head.body_bytes, batch };
            let piece = body.places(&values, body.rows()?, 0)?.held(&file)?;
            if !said.isDelta() {
                self.dictionaries[1] = Arc::default();
            }
            Arc::make_mut(&mut self.dictionaries[1]).push(piece);
            return Ok(());
        }
        let Some(batch) = message.header_as_record_batch() else {
            let found = message.header_type().variant_name().unwrap_or("something unknown");
            return Err(BufferFault::Broken(format!("expected a record batch, found {found}")));
        };
        let body = Body { file: &file, start: head.body, bytes: head.body_bytes, batch };
        let rows = body.rows()?;
        let lies = |column: &Column<'_>| match &column.of {
            Stored::Numbers { leaf, at } => {
                let (validity, values) = body.numbers(*at, rows, leaf.bits())?;
                Ok(Lies::Numbers { validity, values })
            }
            Stored::Texts { shape, .. } => {
                let leaf = &shape.leaves[0];
                Ok(Lies::Texts(body.places(leaf, rows, usize::from(leaf.coded.is_some()))?))
            }
        };
        let batch: Vec<Lies> = self.columns.iter().map(lies).collect::<Result<_, BufferFault>>()?;
        (self.batch, self.rows, self.at) = (batch, rows, 0);
        Ok(())
    }
}

impl Rows for ArrowRows<'_> {
    fn next(&mut self, chunk: &mut Chunk, names: &mut Names) -> Result<(), DataError> {
        chunk.clear();
        if self.at == self.rows {
            self.before += self.rows;
            (self.rows, self.at) = (0, 0);
            if !self.next_batch()? {
                return Ok(());
            }
        }
        let rows = (self.rows - self.at).min(chunk.most() as u64) as usize;
        let first = self.before + self.at;
        for column in &self.columns {
            if let (Role::Time, Stored::Numbers { leaf, .. }) = (column.role, &column.of) {
                chunk.time_form(leaf.time_form(), self.path, format!("row {first}"), column.name)?;
            }
        }
        // A batch may say that it has more rows than there can be; of numbers their buffers are known to be long enough.
        chunk.begin(first, rows, &self.wanted);
        let stretch = Stretch { path: self.path, file: &self.messages.file, at: self.at, first, rows };
        for (column, lies) in self.columns.iter().zip(&self.batch) {
            match (lies, &column.of) {
                (Lies::Numbers { validity, values }, Stored::Numbers { leaf, .. }) => {
                    stretch.numbers(column, *leaf, (validity.as_ref(), values), chunk, names)?;
                }
                (Lies::Texts(places), Stored::Texts { shape, names: chosen }) => {
                    stretch.texts((shape, chosen), places, &self.dictionaries, chunk, names)?;
                }
                _ => {}
            }
        }
        self.at += rows as u64;
        Ok(())
    }

    fn word(&self) -> &'static str {
        "row"
    }
}

/// Rows of a batch.
struct Stretch<'a> {
    path: &'a Path,
    file: &'a Arc<Input>,
    at: u64,
    /// The number of the first one in the file.
    first: u64,
    rows: usize,
}

impl Stretch<'_> {
    fn place(&self, row: usize) -> String {
        format!("row {}", self.first + row as u64)
    }

    fn wrong(&self, column: &Column<'_>, row: usize, found: &str) -> DataError {
        let (path, place, name) = (self.path.to_path_buf(), self.place(row), column.name.into());
        let expected = if column.role == Role::By { "the name of a series" } else { "a time" };
        SeriesError::BadCell { path, place, column: name, expected: expected.into(), found: found.into() }.into()
    }

    fn numbers(
        &self,
        column: &Column<'_>,
        leaf: Leaf,
        (validity, values): (Option<&Spot>, &Spot),
        chunk: &mut Chunk,
        names: &mut Names,
    ) -> Result<(), DataError> {
        let mut validity = validity.map(|spot| Buffer::open(spot, self.file, Access::Forward));
        let mut values = Buffer::open(values, self.file, Access::Forward);
        let width = chunk.width;
        for row in 0..self.rows {
            let index = self.at + row as u64;
            let mut cell = || -> Result<Option<u64>, BufferFault> {
                if let Some(validity) = &mut validity
                    && !validity.bit(index)?
                {
                    return Ok(None);
                }
                Ok(Some(match leaf {
                    Leaf::Bool => u64::from(values.bit(index)?),
                    _ => values.number(index, leaf.bits() as usize / 8)?,
                }))
            };
            let cell = cell().map_err(|fault| fault.at(self.path, self.place(row)))?;
            let Some(bits) = cell else {
                match column.role {
                    Role::Number(_) => continue,
                    _ => return Err(self.wrong(column, row, "null")),
                }
            };
            let (number, whole) = match leaf {
                Leaf::Bool => (bits as f64, Some(bits as i64)),
                Leaf::Float => (f64::from(f32::from_bits(bits as u32)), None),
                Leaf::Double => (f64::from_bits(bits), None),
                Leaf::Whole { width, signed: true, .. } => {
                    let shift = 64 - 8 * width as u32;
                    let whole = ((bits << shift) as i64) >> shift;
                    (whole as f64, Some(whole))
                }
                Leaf::Whole { signed: false, .. } => (bits as f64, i64::try_from(bits).ok()),
            };
            match column.role {
                Role::Number(which) => chunk.numbers[row * width + which] = number,
                Role::Time => {
                    let unit = if let Leaf::Whole { unit, .. } = leaf { unit.unwrap_or(1) } else { 1 };
                    let time = whole.and_then(|whole| whole.checked_mul(unit));
                    chunk.times[row] = time.ok_or_else(|| self.wrong(column, row, "one that is too far from 1970"))?;
                }
                Role::By => {
                    let name = whole.map_or_else(|| bits.to_string(), |whole| whole.to_string());
                    chunk.series[row] = names.number(&name, self.path, || self.place(row))?;
                }
            }
        }
        Ok(())
    }

    fn texts(
        &self,
        (shape, chosen): (&Shape, &ChosenColumns),
        places: &Places,
        dictionaries: &[Arc<Dictionary>],
        chunk: &mut Chunk,
        names: &mut Names,
    ) -> Result<(), DataError> {
        let mut cells = ArrowCells::open(self.file, shape, std::slice::from_ref(places), dictionaries);
        let (wants, mut text) = (chosen.wants(), RowText::default());
        for row in 0..self.rows {
            let read = cells.row(self.at + row as u64, chosen, &wants, &mut text);
            read.map_err(|fault| fault.at(self.path, self.place(row), chosen))?;
            let name = text.texts(chosen).0.trim();
            if name.is_empty() {
                let (path, place, column) = (self.path.to_path_buf(), self.place(row), chosen.source.clone());
                let (expected, found) = ("the name of a series".into(), "nothing".into());
                return Err(SeriesError::BadCell { path, place, column, expected, found }.into());
            }
            chunk.series[row] = names.number(name, self.path, || self.place(row))?;
        }
        Ok(())
    }
}

fn leaf(field: Field<'_>) -> Option<Leaf> {
    if field.dictionary().is_some() {
        return None;
    }
    let whole = |width: usize, signed: bool, unit: Option<i64>| Leaf::Whole { width, signed, unit };
    match field.type_type() {
        Type::Bool => Some(Leaf::Bool),
        Type::Int => {
            let int = field.type_as_int()?;
            let bits = int.bitWidth();
            [8, 16, 32, 64].contains(&bits).then(|| whole(bits as usize / 8, int.is_signed(), None))
        }
        Type::FloatingPoint => match field.type_as_floating_point()?.precision() {
            Precision::SINGLE => Some(Leaf::Float),
            Precision::DOUBLE => Some(Leaf::Double),
            _ => None,
        },
        Type::Timestamp => {
            let unit = match field.type_as_timestamp()?.unit() {
                TimeUnit::SECOND => 1_000_000_000,
                TimeUnit::MILLISECOND => 1_000_000,
                TimeUnit::MICROSECOND => 1_000,
                TimeUnit::NANOSECOND => 1,
                _ => return None,
            };
            Some(whole(8, true, Some(unit)))
        }
        Type::Date => match field.type_as_date()?.unit() {
            DateUnit::DAY => Some(whole(4, true, Some(86_400_000_000_000))),
            DateUnit::MILLISECOND => Some(whole(8, true, Some(1_000_000))),
            _ => None,
        },
        _ => None,
    }
}
