//! One file of a data set: in which format it is, and looking at it: all of its rows, or what was found out about them before.
//!
//! Invariant: what is kept of a file is the same in both ways. It knows nothing of other files but the columns that they decided on.

use std::path::Path;

use crate::arrow_file::{self, ArrowFile};
use crate::columns::{ChosenColumns, Columns};
use crate::form::Form;
use crate::input::Origin;
use crate::kept_index::{Asked, FileIndex, Indices, Lent, Read, Way};
use crate::layout::{BlockBuilder, Largest, PARQUET_BLOCK};
use crate::packed::Packing;
use crate::page_cache::{Pages, ReadOnce};
use crate::parquet_file::{self, ParquetFile};
use crate::rows::{self, RowFile, Scan};
use crate::{DataError, Kind};

/// A file that was looked at.
#[derive(Debug)]
pub(crate) struct DataFile {
    pub origin: Origin,
    pub kept: Kept,
}

/// What is kept of a file between reads.
#[derive(Debug)]
pub(crate) enum Kept {
    Rows(RowFile),
    Parquet(ParquetFile),
    Arrow(ArrowFile),
}

impl Kept {
    /// What is kept of a file that was looked at before. Nothing where that was another one.
    fn reopen<'a>(
        origin: &'a Origin,
        format: Format,
        scan: impl FnOnce(Form) -> Scan<'a>,
        special: Read,
        index: &FileIndex,
    ) -> Result<Option<Kept>, DataError> {
        let named = || index.chosen.clone().unwrap_or_default();
        let kept = match format {
            Format::Rows(form) => rows::reopen(scan(form), special.header)?.map(Kept::Rows),
            Format::Parquet => parquet_file::reopen(origin, &named(), special.tables)?.map(Kept::Parquet),
            Format::Arrow => Some(Kept::Arrow(arrow_file::reopen(origin, &named())?)),
        };
        let is_of = |kept: &Kept| match kept {
            Kept::Rows(kept) => index.is_of(kept.unpacked(), |block| block.raw_bytes),
            Kept::Parquet(kept) => index.is_of(Some(kept.rows()), |block| block.rows),
            Kept::Arrow(kept) => index.is_of(Some(kept.rows()), |block| block.rows),
        };
        Ok(kept.filter(is_of))
    }

    /// What only its format has.
    fn special(&self) -> Lent<'_> {
        match self {
            Kept::Rows(kept) => Lent { header: kept.header(), tables: Vec::new() },
            Kept::Parquet(kept) => Lent { header: &[], tables: kept.tables().collect() },
            Kept::Arrow(_) => Lent::default(),
        }
    }
}

/// How a file is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Format {
    Rows(Form),
    Parquet,
    Arrow,
}

/// By the end of a file's name.
pub(crate) fn format(path: &Path) -> Result<(Format, Option<Packing>), DataError> {
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

/// How files are looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look<'a> {
    pub kind: Kind,
    /// For frames of packed files.
    pub folder: Option<&'a Path>,
    /// Packed files that cannot be entered where they lie are read in their own order.
    pub in_order: bool,
    pub largest: Largest,
    pub pages: Pages,
    /// Bytes of a block.
    pub target: u32,
    /// Where it is kept what was found out.
    pub indices: Option<&'a Indices>,
}

impl Look<'_> {
    /// Looks at a file. `chosen` are the columns that files before it decided on, and then those that files behind it have to have.
    pub fn at(
        &self,
        origin: &Origin,
        wanted: &Columns,
        chosen: &mut Option<ChosenColumns>,
    ) -> Result<(Kept, FileIndex), DataError> {
        let (format, packing) = format(origin.path())?;
        let target = if matches!(format, Format::Parquet) { self.target.max(PARQUET_BLOCK) } else { self.target };
        let Look { kind, largest, in_order, .. } = *self;
        let named = format!("{format:?}, {packing:?}");
        let place_of = |columns: Asked<'_>| {
            let way = Way { format: &named, kind, columns, target, largest, in_order };
            self.indices?.place(origin, way)
        };
        let place = place_of(Asked::of(wanted, chosen.as_ref()));
        let scan = |form| {
            let packed = packing.map(|packing| (packing, self.folder));
            Scan { origin, form, packed, in_order, kind, wanted }
        };
        if let Some((index, special)) = place.as_ref().and_then(|place| place.find())
            // A file that cannot be opened as it was is looked at again, which says why.
            && let Ok(Some(kept)) = Kept::reopen(origin, format, scan, special, &index)
        {
            *chosen = chosen.take().or_else(|| index.chosen.clone());
            return Ok((kept, index));
        }
        let was_open = chosen.is_none();
        let mut builder = BlockBuilder::new(target);
        builder.largest = largest;
        let once = self.pages == Pages::Go && !origin.is_remote();
        builder.read_once = once.then(|| ReadOnce::new(origin.path())).transpose()?;
        let kept = match format {
            Format::Rows(form) => Kept::Rows(rows::scan(scan(form), chosen, &mut builder)?),
            Format::Parquet => Kept::Parquet(parquet_file::scan(origin, kind, wanted, chosen, &mut builder)?),
            Format::Arrow => Kept::Arrow(arrow_file::scan(origin, kind, wanted, chosen, &mut builder)?),
        };
        let (blocks, facts) = builder.finish();
        let mut index = FileIndex { blocks, facts, chosen: chosen.clone() };
        if let (Some(indices), Some(place)) = (self.indices, place) {
            indices.keep(&place, origin, &index, &kept.special());
            if was_open && let Some(found) = &index.chosen {
                // A run that goes on asks for the columns that were found.
                let told = ChosenColumns { guessed: false, ..found.clone() };
                let again = told.again();
                if again != *wanted
                    && let Some(place) = place_of(Asked::Wanted(&again))
                {
                    index.chosen = Some(told);
                    indices.keep(&place, origin, &index, &kept.special());
                }
            }
        }
        Ok((kept, index))
    }
}
