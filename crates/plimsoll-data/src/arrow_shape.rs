//! Where in a record batch the wanted columns are: an Arrow schema walked once, in the order in which batches list their nodes and
//! buffers.
//!
//! Invariant: every type of column is counted, whatever is wanted of it; what is wanted is text, or a list of messages, or named with
//! what it is instead. It reads no file.

use std::path::Path;

use arrow_ipc::{Endianness, Field, MetadataVersion, Schema, Type, UnionMode};

use crate::jsonl_row::WantedCell;
use crate::{ChosenColumns, DataError};

/// The first node and buffer of a column. Columns of views have as many buffers as each batch says, so those before it are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct At {
    pub node: usize,
    pub buffer: usize,
    pub views: usize,
}

/// How texts are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextShape {
    /// Ends of texts, of so many bytes each, and their bytes.
    Flat { width: usize },
    /// Of each text its length and where it is, or itself.
    View,
}

/// The numbers of a dictionary's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Coded {
    pub dictionary: i64,
    /// Bytes of a number.
    pub width: usize,
    pub signed: bool,
}

/// A list of texts, or of structs with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListShape {
    /// A struct around it.
    pub around: Option<At>,
    pub list: At,
    /// Bytes of an offset.
    pub width: usize,
    /// The struct in it.
    pub item: Option<At>,
}

/// A column of texts, and how it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafShape {
    pub list: Option<ListShape>,
    pub at: At,
    pub text: TextShape,
    pub coded: Option<Coded>,
}

/// What a row is made of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub leaves: Vec<LeafShape>,
    /// The leaves are role and content of a list of messages.
    pub nested: bool,
}

/// What was decided when the schema was read.
pub(crate) struct Walked<'a> {
    fields: Vec<(Field<'a>, At)>,
    validity_of_unions: bool,
}

impl<'a> Walked<'a> {
    /// Counts the columns of `schema`.
    pub fn new(schema: Schema<'a>, version: MetadataVersion) -> Result<Walked<'a>, String> {
        if schema.endianness() != Endianness::Little {
            return Err("expected numbers with their low byte first, found the other order".into());
        }
        let mut walked = Walked { fields: Vec::new(), validity_of_unions: version == MetadataVersion::V4 };
        let mut at = At::default();
        for field in schema.fields().into_iter().flatten() {
            walked.fields.push((field, at));
            at = walked.behind(field, at)?;
        }
        Ok(walked)
    }

    /// Names of the top-level columns.
    pub fn present(&self) -> Vec<String> {
        self.fields.iter().map(|(field, _)| field.name().unwrap_or_default().to_string()).collect()
    }

    /// Where the column behind `field` begins.
    fn behind(&self, field: Field<'a>, at: At) -> Result<At, String> {
        let coded = field.dictionary().is_some();
        let mut next = At { node: at.node + 1, ..at };
        next.buffer += match field.type_type() {
            _ if coded => 2,
            Type::Null | Type::RunEndEncoded => 0,
            Type::Struct_ | Type::FixedSizeList => 1,
            Type::Int
            | Type::FloatingPoint
            | Type::Bool
            | Type::Decimal
            | Type::Date
            | Type::Time
            | Type::Timestamp
            | Type::Interval
            | Type::Duration
            | Type::FixedSizeBinary
            | Type::List
            | Type::LargeList
            | Type::Map => 2,
            Type::Utf8 | Type::LargeUtf8 | Type::Binary | Type::LargeBinary | Type::ListView | Type::LargeListView => 3,
            Type::Utf8View | Type::BinaryView => {
                next.views += 1;
                2
            }
            Type::Union => {
                let dense = field.type_as_union().is_some_and(|union| union.mode() == UnionMode::Dense);
                1 + usize::from(dense) + usize::from(self.validity_of_unions)
            }
            other => {
                let name = field.name().unwrap_or_default();
                return Err(format!("column `{name}` has a type that is not known: {other:?}"));
            }
        };
        if coded {
            return Ok(next);
        }
        for child in field.children().into_iter().flatten() {
            next = self.behind(child, next)?;
        }
        Ok(next)
    }

    /// Where each child of `field` begins.
    fn children(&self, field: Field<'a>, at: At) -> Result<Vec<(Field<'a>, At)>, String> {
        let none = self.behind_own(field, at);
        let mut next = none;
        let mut children = Vec::new();
        for child in field.children().into_iter().flatten() {
            children.push((child, next));
            next = self.behind(child, next)?;
        }
        Ok(children)
    }

    /// Behind the nodes and buffers of a list or struct itself.
    fn behind_own(&self, field: Field<'a>, at: At) -> At {
        let buffers = if field.type_type() == Type::Struct_ { 1 } else { 2 };
        At { node: at.node + 1, buffer: at.buffer + buffers, views: at.views }
    }

    /// The one top-level column of this name, and where it begins.
    pub fn find(&self, path: &Path, name: &str) -> Result<(Field<'a>, At), DataError> {
        let mut of_name = self.fields.iter().filter(|(field, _)| field.name() == Some(name));
        match (of_name.next(), of_name.next()) {
            (Some((field, at)), None) => Ok((*field, *at)),
            (Some(_), Some(_)) => {
                let (path, column, found) = (path.into(), name.into(), "two of that name".into());
                Err(DataError::ColumnType { path, column, found })
            }
            (None, _) => Err(DataError::MissingColumn {
                path: path.into(),
                place: "schema".into(),
                column: name.into(),
                present: self.present().join(", "),
            }),
        }
    }

    /// The leaves of the wanted columns.
    pub fn shape(&self, path: &Path, names: &ChosenColumns) -> Result<Shape, DataError> {
        let wants = names.wants();
        let mut leaves = Vec::with_capacity(2);
        for want in &wants {
            let wrong = |found: String| DataError::ColumnType { path: path.into(), column: want.name.into(), found };
            let (field, at) = self.find(path, want.name)?;
            match (text(field, at, None), want.cell) {
                (Some(leaf), _) => leaves.push(leaf),
                (None, WantedCell::Messages) => {
                    let leaves = self.messages(field, at).map_err(&wrong)?.ok_or_else(|| {
                        wrong(format!("{} without lists of texts `role` and `content`", type_name(field)))
                    })?;
                    return Ok(Shape { leaves, nested: true });
                }
                (None, _) => return Err(wrong(type_name(field))),
            }
        }
        Ok(Shape { leaves, nested: false })
    }

    /// Role and content of a list of structs, or of a struct of lists.
    fn messages(&self, field: Field<'a>, at: At) -> Result<Option<Vec<LeafShape>>, String> {
        if field.dictionary().is_some() {
            return Ok(None);
        }
        let children = match field.type_type() {
            Type::Struct_ => {
                let mut found = Vec::new();
                for (child, place) in self.children(field, at)? {
                    let Some(width) = list_width(child) else { continue };
                    let list = ListShape { around: Some(at), list: place, width, item: None };
                    if let [(leaf, place)] = self.children(child, place)?[..] {
                        found.push((child.name(), text(leaf, place, Some(list))));
                    }
                }
                found
            }
            _ => {
                let Some(width) = list_width(field) else { return Ok(None) };
                let [(item, place)] = self.children(field, at)?[..] else { return Ok(None) };
                if item.type_type() != Type::Struct_ || item.dictionary().is_some() {
                    return Ok(None);
                }
                let list = ListShape { around: None, list: at, width, item: Some(place) };
                let leaves = self.children(item, place)?;
                leaves.into_iter().map(|(leaf, place)| (leaf.name(), text(leaf, place, Some(list)))).collect()
            }
        };
        let find = |names: [&str; 2]| {
            let named = |(name, leaf): &(Option<&str>, Option<LeafShape>)| {
                if name.is_some_and(|name| names.contains(&name)) { *leaf } else { None }
            };
            children.iter().find_map(named)
        };
        Ok(find(["role", "from"]).zip(find(["content", "value"])).map(|(role, content)| vec![role, content]))
    }
}

/// Bytes of an offset, where `field` is a list.
fn list_width(field: Field<'_>) -> Option<usize> {
    match field.type_type() {
        _ if field.dictionary().is_some() => None,
        Type::List => Some(4),
        Type::LargeList => Some(8),
        _ => None,
    }
}

/// The leaf, where `field` is one of texts.
fn text(field: Field<'_>, at: At, list: Option<ListShape>) -> Option<LeafShape> {
    let text = match field.type_type() {
        Type::Utf8 => TextShape::Flat { width: 4 },
        Type::LargeUtf8 => TextShape::Flat { width: 8 },
        Type::Utf8View => TextShape::View,
        _ => return None,
    };
    let coded = match field.dictionary() {
        None => None,
        Some(dictionary) => {
            // 32 bits with a sign, where nothing is said.
            let (bits, signed) = dictionary.indexType().map_or((32, true), |int| (int.bitWidth(), int.is_signed()));
            let width = [8, 16, 32, 64].contains(&bits).then_some(bits as usize / 8)?;
            Some(Coded { dictionary: dictionary.id(), width, signed })
        }
    };
    Some(LeafShape { list, at, text, coded })
}

/// What a column is, in words.
pub(crate) fn type_name(field: Field<'_>) -> String {
    let name = field.type_type().variant_name().unwrap_or("an unknown type").trim_end_matches('_');
    if field.dictionary().is_some() { format!("a dictionary of {name}") } else { name.into() }
}
