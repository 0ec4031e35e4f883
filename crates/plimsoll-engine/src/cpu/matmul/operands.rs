//! What a product reads and where it goes.

use crate::cpu::weights::Weights;

/// A matrix to read: element (i, j) is at `i * row_stride + j * col_stride`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// First element.
    pub data: *const f32,
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// Elements from one column to the next.
    pub col_stride: usize,
}

// SAFETY: only read while a product runs; the caller keeps the memory alive and unwritten.
unsafe impl Send for Matrix {}
// SAFETY: as above.
unsafe impl Sync for Matrix {}

impl Matrix {
    /// A row-major matrix in a slice.
    pub fn rows(data: &[f32], stride: usize) -> Matrix {
        Matrix { data: data.as_ptr(), row_stride: stride, col_stride: 1 }
    }

    /// The same numbers, transposed.
    pub fn transposed(self) -> Matrix {
        Matrix { row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }
}

/// The right-hand side of a product: numbers in memory, or weights that are decoded while they are packed.
#[derive(Clone, Copy, Debug)]
pub enum Right<'a> {
    /// Plain numbers.
    Plain(Matrix),
    /// Weights in their storage.
    Stored(Stored<'a>),
}

/// A matrix of stored weights: row i of W begins at element `first + i * stride`.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    pub(super) weights: Weights<'a>,
    pub(super) first: usize,
    pub(super) stride: usize,
    /// The product is with W^T: what is contiguous is the depth.
    pub(super) transposed: bool,
}

impl<'a> Right<'a> {
    /// Weights as a row-major matrix whose first row begins at element `first`.
    pub fn weights(weights: Weights<'a>, first: usize, stride: usize) -> Right<'a> {
        match weights.plain() {
            Some(values) => Right::Plain(Matrix::rows(&values[first..], stride)),
            None => Right::Stored(Stored { weights, first, stride, transposed: false }),
        }
    }

    /// The same numbers, transposed.
    pub fn transposed(self) -> Right<'a> {
        match self {
            Right::Plain(matrix) => Right::Plain(matrix.transposed()),
            Right::Stored(stored) => Right::Stored(Stored { transposed: !stored.transposed, ..stored }),
        }
    }

    /// Each column is contiguous.
    pub(super) fn deep_rows(&self) -> bool {
        match self {
            Right::Plain(matrix) => matrix.row_stride == 1,
            Right::Stored(stored) => stored.transposed,
        }
    }
}

impl From<Matrix> for Right<'_> {
    fn from(matrix: Matrix) -> Self {
        Right::Plain(matrix)
    }
}

/// Where a product goes.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// First element.
    pub data: *mut f32,
    /// Elements from one row to the next; columns are contiguous.
    pub stride: usize,
    /// Adds to what is there.
    pub add: bool,
    /// Factor on the product.
    pub scale: f32,
    /// A number a column, added to the product; only where nothing else is (`add` is not set).
    pub bias: Option<*const f32>,
}

// SAFETY: tasks of one product write disjoint tiles of it.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

impl Output {
    /// Rows of `stride` elements, overwritten with the product as it is.
    pub fn rows(data: *mut f32, stride: usize) -> Output {
        Output { data, stride, add: false, scale: 1.0, bias: None }
    }

    /// The same place for the part of the sum that starts at depth `from`: what comes after the first adds.
    pub(super) fn adding_from(self, from: usize) -> Output {
        Output { add: self.add || from > 0, ..self }
    }

    /// The bias of the columns from `col` on.
    pub(super) fn bias_from(self, col: usize) -> Output {
        Output { bias: self.bias.map(|bias| bias.wrapping_add(col)), ..self }
    }
}
