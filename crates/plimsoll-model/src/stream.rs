//! From a file into a slice that somebody lends.
//!
//! F32 is read straight into its place. F16 and BF16 are read into the upper half of their place and widened from the
//! bottom: element i is written to bytes [4i, 4i+4), and what is still to be read begins at 2n + 2i + 2, never below
//! 4i + 4 while i < n. A count of batches (I64) becomes the nearest f32, exact up to 2^24. Invariant: `fill` allocates nothing; a comparison holds two buffers of 512 KiB.

use std::io;

use fs_err::os::unix::fs::FileExt;
use half::{bf16, f16};
use safetensors::Dtype;

use crate::header::Stored;
use crate::{ModelError, WeightFiles};

/// Elements of one comparison buffer; two make 1 MiB.
const COMPARED_AT_ONCE: usize = 128 << 10;

impl WeightFiles {
    /// Reads a tensor into `out`, as f32. It is also found under the other names that files have for it: without the
    /// model's prefix, as one of T5's embeddings, or with PEFT's prefix.
    pub fn fill(&self, name: &str, out: &mut [f32]) -> Result<(), ModelError> {
        let (file, stored) = self.stored(name)?;
        self.must_be_float(file, stored)?;
        let expected = stored.elements();
        if out.len() != expected {
            return Err(ModelError::SliceLength { tensor: name.into(), expected, got: out.len() });
        }
        read_elements(file, stored, 0, out)
    }

    /// Reads elements of a tensor, from `first` on, as many as `out` has.
    pub fn fill_part(&self, name: &str, first: usize, out: &mut [f32]) -> Result<(), ModelError> {
        let (file, stored) = self.stored(name)?;
        self.must_be_float(file, stored)?;
        let elements = stored.elements();
        if first.checked_add(out.len()).is_none_or(|end| end > elements) {
            return Err(ModelError::PartRange { tensor: name.into(), elements, first, got: out.len() });
        }
        read_elements(file, stored, first, out)
    }

    /// Whether a tensor holds the same numbers as the embedding table; as torch compares, so that 0 and -0 are the same.
    pub(crate) fn same_as_table(&self, name: &str, table: &str) -> Result<bool, ModelError> {
        let (file, stored) = self.stored(name)?;
        let (shared_file, shared) = self.stored(table)?;
        if stored.name == shared.name {
            return Ok(true);
        }
        self.must_be_float(file, stored)?;
        self.must_be_float(shared_file, shared)?;
        if stored.shape != shared.shape {
            return Ok(false);
        }
        let elements = stored.elements();
        let mut a = vec![0.0; COMPARED_AT_ONCE.min(elements)];
        let mut b = a.clone();
        for first in (0..elements).step_by(COMPARED_AT_ONCE) {
            let count = COMPARED_AT_ONCE.min(elements - first);
            read_elements(file, stored, first, &mut a[..count])?;
            read_elements(shared_file, shared, first, &mut b[..count])?;
            if a[..count] != b[..count] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Stored {
    fn elements(&self) -> usize {
        self.bytes as usize / self.element_bytes()
    }

    fn element_bytes(&self) -> usize {
        match self.dtype {
            Dtype::I64 => 8,
            Dtype::F32 => 4,
            _ => 2,
        }
    }
}

/// Reads `out.len()` elements of a float tensor, from element `first` on.
fn read_elements(file: &fs_err::File, stored: &Stored, first: usize, out: &mut [f32]) -> Result<(), ModelError> {
    if stored.dtype == Dtype::I64 {
        return (first..).zip(out).try_for_each(|(nth, x)| read_count(file, stored, nth).map(|count| *x = count));
    }
    let n = out.len();
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(out);
    let place = bytes.len() - n * stored.element_bytes();
    read_bytes(file, stored, first, &mut bytes[place..])?;
    match stored.dtype {
        Dtype::F16 => widen(bytes, n, |half| f16::from_bits(half).to_f32()),
        Dtype::BF16 => widen(bytes, n, |half| bf16::from_bits(half).to_f32()),
        _ => {
            for x in out.iter_mut() {
                *x = f32::from_bits(u32::from_le(x.to_bits()));
            }
        }
    }
    Ok(())
}

/// Reads the bytes of elements, from element `first` on.
fn read_bytes(file: &fs_err::File, stored: &Stored, first: usize, bytes: &mut [u8]) -> Result<(), ModelError> {
    let start = stored.start + (first * stored.element_bytes()) as u64;
    file.read_exact_at(bytes, start).map_err(|error| match error.kind() {
        // It was long enough when it was opened.
        io::ErrorKind::UnexpectedEof => ModelError::FileTruncated {
            path: file.path().into(),
            expected_bytes: stored.start + stored.bytes,
            got_bytes: file.metadata().map_or(0, |facts| facts.len()),
        },
        _ => error.into(),
    })
}

fn read_count(file: &fs_err::File, stored: &Stored, nth: usize) -> Result<f32, ModelError> {
    let mut bytes = [0; 8];
    read_bytes(file, stored, nth, &mut bytes)?;
    match i64::from_le_bytes(bytes) {
        count if count >= 0 => Ok(count as f32),
        got => Err(ModelError::CountRefused { path: file.path().into(), tensor: stored.name.clone(), got }),
    }
}

/// Turns the upper `2 n` of `4 n` bytes into `n` floats in place.
fn widen(bytes: &mut [u8], n: usize, to_f32: impl Fn(u16) -> f32) {
    for i in 0..n {
        let at = 2 * n + 2 * i;
        let value = to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        bytes[4 * i..4 * i + 4].copy_from_slice(&value.to_ne_bytes());
    }
}
