//! The rows of all series, each series in one piece: features normalised, as f32, and the cells that targets are made of, as f64.
//!
//! Held in memory where that fits its share, else in a file of the cache folder. Invariant: both give the same bits; a row is stored once,
//! windows never; a window is one range of memory, or one read. It knows nothing of samples and columns.

use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::cast_slice_mut;
use fs_err::File;

use super::file_of_rows::{CELL_BYTES, FEATURE_BYTES, HEADER, RowsWriter};
use crate::DataError;
use crate::page_cache::{LET_GO_EVERY, PagedFile, Pages, READ_AHEAD};

/// Cells that are read at a time where rows are asked for in order.
const AHEAD: usize = 8 << 10;

/// How much of what a row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowShape {
    pub features: usize,
    pub cells: usize,
}

impl RowShape {
    /// Bytes of `rows` rows; none where there cannot be as many.
    pub fn bytes(self, rows: u64) -> Option<u64> {
        let row = self.features as u64 * FEATURE_BYTES + self.cells as u64 * CELL_BYTES;
        rows.checked_mul(row).filter(|bytes| *bytes <= i64::MAX as u64 / 2)
    }
}

/// Rows that can be read at any place.
#[derive(Debug)]
pub(crate) struct Store {
    shape: RowShape,
    kept: Kept,
}

#[derive(Debug)]
enum Kept {
    Held {
        features: Box<[f32]>,
        cells: Box<[f64]>,
    },
    /// Kept open: who makes a file of another version removes this one.
    Filed {
        file: PagedFile,
        cells_at: u64,
        /// Bytes that were read since pages were let go, where they are.
        read: Option<AtomicU64>,
    },
}

/// Rows that are being put.
pub(crate) enum StoreWriter {
    Held { shape: RowShape, features: Box<[f32]>, cells: Box<[f64]> },
    Filed(Box<RowsWriter>),
}

impl StoreWriter {
    /// Takes the memory of all rows.
    pub fn held(shape: RowShape, rows: u64) -> StoreWriter {
        let features = vec![0.0; rows as usize * shape.features].into();
        StoreWriter::Held { shape, features, cells: vec![0.0; rows as usize * shape.cells].into() }
    }

    /// Puts a row; each place once, in any order.
    pub fn put(&mut self, row: u64, its_features: &[f32], its_cells: &[f64]) -> Result<(), DataError> {
        match self {
            StoreWriter::Held { shape, features, cells } => {
                let row = row as usize;
                features[row * shape.features..][..shape.features].copy_from_slice(its_features);
                cells[row * shape.cells..][..shape.cells].copy_from_slice(its_cells);
                Ok(())
            }
            StoreWriter::Filed(writer) => Ok(writer.put(row, its_features, its_cells)?),
        }
    }
}

impl Store {
    pub fn held(shape: RowShape, features: Box<[f32]>, cells: Box<[f64]>) -> Store {
        Store { shape, kept: Kept::Held { features, cells } }
    }

    /// A file of rows that is whole.
    pub fn filed(shape: RowShape, rows: u64, file: File, pages: Pages) -> Store {
        let cells_at = HEADER + rows * shape.features as u64 * FEATURE_BYTES;
        let read = (pages == Pages::Go).then(AtomicU64::default);
        Store { shape, kept: Kept::Filed { file: PagedFile::of(file, pages), cells_at, read } }
    }

    /// The same in memory.
    pub fn into_held(self, rows: u64) -> Result<Store, DataError> {
        let mut features: Box<[f32]> = vec![0.0; rows as usize * self.shape.features].into();
        let mut cells: Box<[f64]> = vec![0.0; rows as usize * self.shape.cells].into();
        self.features(0, &mut features)?;
        self.cells(0, &mut cells)?;
        Ok(Store::held(self.shape, features, cells))
    }

    pub fn is_held(&self) -> bool {
        matches!(self.kept, Kept::Held { .. })
    }

    /// Heap of it, in bytes.
    pub fn heap_bytes(&self) -> u64 {
        match &self.kept {
            Kept::Held { features, cells } => (size_of_val(&**features) + size_of_val(&**cells)) as u64,
            Kept::Filed { file, .. } => 2 * file.path().as_os_str().len() as u64 + 64,
        }
    }

    /// Features of the rows from `row` on, as many as `out` has room for.
    pub fn features(&self, row: u64, out: &mut [f32]) -> Result<(), DataError> {
        match &self.kept {
            Kept::Held { features, .. } => {
                out.copy_from_slice(&features[row as usize * self.shape.features..][..out.len()]);
            }
            Kept::Filed { file, read, .. } => {
                let_go_behind(read.as_ref(), file, size_of_val(out) as u64);
                let at = HEADER + row * self.shape.features as u64 * FEATURE_BYTES;
                file.read_exact_at(cast_slice_mut(out), at)?;
                if cfg!(target_endian = "big") {
                    out.iter_mut().for_each(|x| *x = f32::from_bits(x.to_bits().swap_bytes()));
                }
            }
        }
        Ok(())
    }

    /// Cells of `rows` rows, for one that looks at them in order.
    pub fn in_order(&self, rows: u64) -> CellsInOrder<'_> {
        CellsInOrder { store: self, rows, read: Vec::new(), first: 0 }
    }

    /// Cells of the rows from `row` on, as many as `out` has room for.
    pub fn cells(&self, row: u64, out: &mut [f64]) -> Result<(), DataError> {
        match &self.kept {
            Kept::Held { cells, .. } => {
                out.copy_from_slice(&cells[row as usize * self.shape.cells..][..out.len()]);
            }
            Kept::Filed { file, cells_at, .. } => {
                let at = cells_at + row * self.shape.cells as u64 * CELL_BYTES;
                file.read_exact_at(cast_slice_mut(out), at)?;
                if cfg!(target_endian = "big") {
                    out.iter_mut().for_each(|x| *x = f64::from_bits(x.to_bits().swap_bytes()));
                }
            }
        }
        Ok(())
    }
}

/// Cells of one row behind the other, read many at a time where they are in a file.
pub(crate) struct CellsInOrder<'a> {
    store: &'a Store,
    rows: u64,
    /// Cells that were read, and the first row of them.
    read: Vec<f64>,
    first: u64,
}

impl CellsInOrder<'_> {
    /// Cells of a row; rows before it are read again.
    pub fn row(&mut self, row: u64) -> Result<&[f64], DataError> {
        let width = self.store.shape.cells;
        let (file, read) = match &self.store.kept {
            Kept::Held { cells, .. } => return Ok(&cells[row as usize * width..][..width]),
            Kept::Filed { file, read, .. } => (file, read),
        };
        let there = (self.read.len() / width.max(1)) as u64;
        if !(self.first..self.first + there).contains(&row) {
            let count = ((AHEAD / width.max(1)).max(1) as u64).min(self.rows - row);
            self.read.resize(count as usize * width, 0.0);
            let_go_behind(read.as_ref(), file, size_of_val(&*self.read) as u64);
            self.store.cells(row, &mut self.read)?;
            self.first = row;
        }
        Ok(&self.read[(row - self.first) as usize * width..][..width])
    }
}

/// Now and then lets the pages of the file go, where they are not to stay.
fn let_go_behind(read: Option<&AtomicU64>, file: &PagedFile, bytes: u64) {
    let Some(read) = read else { return };
    let bytes = bytes + READ_AHEAD;
    if read.fetch_add(bytes, Ordering::Relaxed) + bytes >= LET_GO_EVERY {
        read.store(0, Ordering::Relaxed);
        file.let_go();
    }
}
