//! A batch as torch wants it: rectangles of int64, padded, in one buffer that Python's tensors look into.
//!
//! The loader's rows have no padding and each its label beside it; here they become what Hugging Face's models take.
//! Invariant: one allocation a batch, freed with the last tensor that looks into it; Rust never touches it after it was made.
//! It knows no torch: the buffer protocol is all.

use std::cell::UnsafeCell;
use std::ffi::c_int;

use plimsoll_data::Kind;
use plimsoll_plan::batch::{BatchShape, IGNORE};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// What Hugging Face's losses leave out.
const LEFT_OUT: i64 = -100;

/// Where the label of a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labels {
    /// At the next position: the model shifts, as Hugging Face's do.
    Unshifted,
    /// At its own position.
    Shifted,
}

/// How batches are laid out.
pub struct Layout {
    pub kind: Kind,
    pub packed: bool,
    pub labels: Labels,
    /// Widths are a multiple of it.
    pub multiple: usize,
    pub pad_id: u32,
}

/// One batch as the loader has it, without entries that are not used.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    pub source: &'a [u32],
    pub target: &'a [u32],
    pub source_lens: &'a [u32],
    pub target_lens: &'a [u32],
}

/// Name, type, first byte and shape of a tensor.
type Part = (&'static str, &'static str, usize, Vec<usize>);

/// The tensors of one batch.
#[pyclass(frozen, module = "plimsoll._plimsoll")]
pub struct Batch {
    words: Box<[UnsafeCell<i64>]>,
    parts: Vec<Part>,
}

// SAFETY: Rust neither reads nor writes the words once the batch is made; they belong to whoever holds a view of the buffer,
// under Python's rules.
unsafe impl Sync for Batch {}

#[pymethods]
impl Batch {
    /// What is in the buffer.
    #[getter]
    fn parts(&self) -> Vec<Part> {
        self.parts.clone()
    }

    // SAFETY: called by the interpreter alone, with a view of its own.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let words = &slf.get().words;
        let bytes = size_of_val(&**words) as ffi::Py_ssize_t;
        // SAFETY: the words live as long as the object, which the view keeps; they may be written through a shared reference.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), words.as_ptr().cast_mut().cast(), bytes, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

impl Batch {
    /// Lays a batch out.
    pub fn new(layout: &Layout, rows: Rows<'_>) -> Batch {
        let mut sheet = Sheet::default();
        match layout.kind {
            Kind::Pairs => pairs(layout, rows, &mut sheet),
            Kind::Chat | Kind::Text => documents(layout, rows, &mut sheet),
        }
        Batch { words: sheet.words.into_iter().map(UnsafeCell::new).collect(), parts: sheet.parts }
    }

    /// The most heap of laying out a batch of `shape`, in bytes: itself, and lists of its lines and documents.
    pub fn heap_bytes(layout: &Layout, shape: BatchShape) -> u64 {
        let wide = |len: usize| len.checked_next_multiple_of(layout.multiple).unwrap_or(usize::MAX);
        let shift = usize::from(layout.labels == Labels::Unshifted);
        let (source, target) = (wide(shape.source_len.saturating_add(shift)), wide(shape.target_len));
        let boundaries = 1 + shape.most_documents() + shape.samples;
        let words = layout.words(shape.samples, [source, target], boundaries);
        let lists = shape.samples * LINE_BYTES + boundaries * BOUNDARY_BYTES + PARTS_BYTES;
        words.saturating_mul(size_of::<i64>()).saturating_add(lists) as u64
    }
}

/// Heap beside the words of a batch while it is laid out: a line's place and lengths, a boundary in a buffer that doubles, the parts.
const LINE_BYTES: usize = 40;
const BOUNDARY_BYTES: usize = 3 * size_of::<i32>();
const PARTS_BYTES: usize = 1 << 10;

impl Layout {
    /// Words of a batch with lines so wide, of source and target, and of documents so many boundaries.
    fn words(&self, samples: usize, [source, target]: [usize; 2], boundaries: usize) -> usize {
        let rectangles = match self.kind {
            Kind::Pairs => source.saturating_mul(2).saturating_add(target),
            Kind::Chat | Kind::Text => source.saturating_mul(if self.packed { 3 } else { 4 }),
        };
        let list = if self.packed { boundaries.div_ceil(2) } else { 0 };
        rectangles.saturating_mul(samples).saturating_add(list)
    }
}

/// A buffer that tensors are added to.
#[derive(Default)]
struct Sheet {
    words: Vec<i64>,
    parts: Vec<Part>,
}

impl Sheet {
    /// Takes the room of all tensors at once.
    fn reserve(&mut self, words: usize) {
        self.words.reserve_exact(words);
    }

    /// One more tensor of `samples` times `width`, all `value`; returns it to be written.
    fn rectangle(&mut self, name: &'static str, samples: usize, width: usize, value: i64) -> &mut [i64] {
        let start = self.words.len();
        self.parts.push((name, "int64", start * size_of::<i64>(), vec![samples, width]));
        self.words.resize(start + samples * width, value);
        &mut self.words[start..]
    }

    /// One more tensor of 32-bit numbers.
    fn list(&mut self, name: &'static str, numbers: &[i32]) {
        self.parts.push((name, "int32", self.words.len() * size_of::<i64>(), vec![numbers.len()]));
        let two = |pair: &[i32]| {
            let (first, second) = (pair[0].to_ne_bytes(), pair.get(1).copied().unwrap_or(0).to_ne_bytes());
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&first);
            bytes[4..].copy_from_slice(&second);
            i64::from_ne_bytes(bytes)
        };
        self.words.extend(numbers.chunks(2).map(two));
    }
}

fn widest(layout: &Layout, lens: impl Iterator<Item = usize>) -> usize {
    lens.max().unwrap_or(0).next_multiple_of(layout.multiple)
}

fn write(into: &mut [i64], tokens: &[u32]) {
    for (place, token) in into.iter_mut().zip(tokens) {
        *place = i64::from(*token);
    }
}

fn write_labels(into: &mut [i64], labels: &[u32]) {
    for (place, label) in into.iter_mut().zip(labels) {
        *place = if *label == IGNORE { LEFT_OUT } else { i64::from(*label) };
    }
}

/// Source and target, each a rectangle of its own.
fn pairs(layout: &Layout, rows: Rows<'_>, sheet: &mut Sheet) {
    let samples = rows.target_lens.len();
    let lens = |lens: &[u32]| -> Vec<usize> { lens.iter().map(|len| *len as usize).collect() };
    let (sources, targets) = (lens(rows.source_lens), lens(rows.target_lens));
    let width = widest(layout, sources.iter().copied());
    let target_width = widest(layout, targets.iter().copied());
    sheet.reserve(layout.words(samples, [width, target_width], 0));
    let ids = sheet.rectangle("input_ids", samples, width, i64::from(layout.pad_id));
    let mut at = 0;
    for (line, len) in ids.chunks_mut(width).zip(&sources) {
        write(line, &rows.source[at..at + len]);
        at += len;
    }
    mask(sheet, &sources, width);
    let labels = sheet.rectangle("labels", samples, target_width, LEFT_OUT);
    at = 0;
    for (line, len) in labels.chunks_mut(target_width).zip(&targets) {
        write(line, &rows.target[at..at + len]);
        at += len;
    }
}

/// Rows and labels of the same shape.
///
/// Unshifted, a label is one position behind its row. So a sample has one position more than rows, for the last token, which is
/// only a label (without a loss at it there is no such position); and at the first position of a document that is packed
/// behind another is the label of the other's last row. The model's own shift brings each back to its row.
fn documents(layout: &Layout, rows: Rows<'_>, sheet: &mut Sheet) {
    let samples = rows.target_lens.len();
    let shift = usize::from(layout.labels == Labels::Unshifted);
    let mut spans = Vec::with_capacity(samples);
    let mut at = 0;
    for len in rows.target_lens {
        let end = at + *len as usize;
        let closed = shift == 1 && rows.target[end - 1] != IGNORE;
        spans.push((at, end, end - at + usize::from(closed)));
        at = end;
    }
    let lens: Vec<usize> = spans.iter().map(|(_, _, len)| *len).collect();
    let width = widest(layout, lens.iter().copied());
    let boundaries = boundaries(rows, &lens, width);
    sheet.reserve(layout.words(samples, [width, 0], boundaries.len()));
    let ids = sheet.rectangle("input_ids", samples, width, i64::from(layout.pad_id));
    for (line, &(start, end, len)) in ids.chunks_mut(width).zip(&spans) {
        write(line, &rows.source[start..end]);
        write(&mut line[end - start..len], &rows.target[end - 1..end]);
    }
    let labels = sheet.rectangle("labels", samples, width, LEFT_OUT);
    for (line, &(start, end, len)) in labels.chunks_mut(width).zip(&spans) {
        write_labels(&mut line[shift..len], &rows.target[start..end]);
    }
    let positions = sheet.rectangle("position_ids", samples, width, 0);
    for pair in boundaries.windows(2) {
        for (position, place) in positions[pair[0] as usize..pair[1] as usize].iter_mut().enumerate() {
            *place = position as i64;
        }
    }
    if layout.packed {
        sheet.list("cu_seqlens", &boundaries);
    } else {
        mask(sheet, &lens, width);
    }
}

/// Where each document begins in the rectangle read line by line, the padding of a line being one of its own; and the end.
fn boundaries(rows: Rows<'_>, lens: &[usize], width: usize) -> Vec<i32> {
    let mut found = vec![0];
    let mut documents = rows.source_lens.iter().map(|len| *len as usize);
    for (sample, (len, in_rows)) in lens.iter().zip(rows.target_lens).enumerate() {
        let (line, mut left, mut at) = (sample * width, *in_rows as usize, 0);
        while left > 0 {
            let Some(document) = documents.next() else { break };
            left -= document.min(left);
            at += document;
            // The last one of a line has the position of the closing token too.
            found.push((line + if left == 0 { *len } else { at }) as i32);
        }
        if *len < width {
            found.push((line + width) as i32);
        }
    }
    found
}

fn mask(sheet: &mut Sheet, lens: &[usize], width: usize) {
    let mask = sheet.rectangle("attention_mask", lens.len(), width, 0);
    for (line, len) in mask.chunks_mut(width).zip(lens) {
        line[..*len].fill(1);
    }
}
