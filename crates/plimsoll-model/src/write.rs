//! Tensors into a safetensors stream: header first, then each tensor's bytes.
//!
//! Two ways: as whoever holds them gives them, never copied (checkpoints), and out of a [`TensorSource`] through one buffer
//! of 256 KiB, as f32 or bf16 (models and adapters; counts of batches as I64). Invariant: nothing that grows with the weights is
//! allocated. It knows no names: any tensors, any texts of metadata.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write;

use half::bf16;
use plimsoll_plan::dtype::Dtype;
use safetensors::Dtype as FileDtype;

use crate::ModelError;
use crate::header::{LENGTH_BYTES, METADATA_KEY};
use crate::source::TensorSource;

/// Elements that are held at once on the way from a source.
const AT_ONCE: usize = 64 << 10;

/// One tensor to be written.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// Its shape.
    pub shape: &'a [usize],
    /// Its elements, as many as the shape says.
    pub data: &'a [f32],
}

/// One tensor to be written as it is stored, in f32 or bf16.
#[derive(Clone, Copy, Debug)]
pub struct StoredTensor<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// Its shape.
    pub shape: &'a [usize],
    /// How its elements are stored.
    pub dtype: Dtype,
}

/// Writes tensors as they are stored, in the order given: `give` writes the bytes of the nth, in this machine's order.
/// Returns the number of bytes written.
pub fn write_stored(
    sink: &mut dyn Write,
    tensors: &[StoredTensor<'_>],
    mut give: impl FnMut(usize, &mut dyn Write) -> std::io::Result<()>,
) -> Result<u64, ModelError> {
    let kinds = tensors.iter().map(|tensor| in_files(tensor.dtype)).collect::<Result<Vec<_>, _>>()?;
    let header = header(&[], tensors.iter().zip(&kinds).map(|(t, kind)| (t.name, t.shape, *kind)))?;
    let mut written = begin(sink, &header)?;
    for (nth, StoredTensor { name, shape, .. }) in tensors.iter().enumerate() {
        let mut counted = Counted { sink, bytes: 0 };
        give(nth, &mut counted).map_err(ModelError::Sink)?;
        let (got, width, expected) = (counted.bytes, kinds[nth].bitsize() / 8, shape.iter().product());
        if got != width * expected {
            return Err(ModelError::SliceLength { tensor: name.to_string(), expected, got: got / width });
        }
        written += got as u64;
    }
    sink.flush().map_err(ModelError::Sink)?;
    Ok(written)
}

/// How files call a storage that models are saved in.
fn in_files(dtype: Dtype) -> Result<FileDtype, ModelError> {
    match dtype {
        Dtype::F32 => Ok(FileDtype::F32),
        Dtype::Bf16 => Ok(FileDtype::BF16),
        dtype => Err(ModelError::DtypeNotSaved { dtype }),
    }
}

/// A sink that counts.
struct Counted<'a> {
    sink: &'a mut dyn Write,
    bytes: usize,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = self.sink.write(bytes)?;
        self.bytes += n;
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.sink.flush()
    }
}

/// One tensor to be written from a source.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    /// Its name in the file.
    pub name: String,
    /// Its name at the source.
    pub from: String,
    pub shape: Vec<usize>,
    /// It is a whole number, and written as one, whatever the others are written as.
    pub count: bool,
}

/// Writes tensors in the order given. `metadata` are free texts; `("format", "pt")` is what transformers asks for and is
/// added where it is not given. Returns the number of bytes written.
pub fn write_safetensors(
    sink: &mut dyn Write,
    metadata: &[(&str, &str)],
    tensors: &[TensorView<'_>],
) -> Result<u64, ModelError> {
    let header = header_of_views(metadata, tensors)?;
    let mut written = begin(sink, &header)?;
    for tensor in tensors {
        write_floats(sink, tensor.data).map_err(ModelError::Sink)?;
        written += 4 * tensor.data.len() as u64;
    }
    sink.flush().map_err(ModelError::Sink)?;
    Ok(written)
}

/// What [`write_safetensors`] would write, in bytes: for the plan's disk line.
pub fn safetensors_bytes(metadata: &[(&str, &str)], tensors: &[TensorView<'_>]) -> Result<u64, ModelError> {
    let data: u64 = tensors.iter().map(|t| 4 * t.data.len() as u64).sum();
    Ok(LENGTH_BYTES + header_of_views(metadata, tensors)?.len() as u64 + data)
}

/// Writes tensors in the order given, counts before all others so that each lies at a multiple of its size; they are read piece by
/// piece and in order. Returns the number of bytes written.
pub(crate) fn write_from(
    sink: &mut dyn Write,
    dtype: Dtype,
    tensors: &[Outgoing],
    source: &mut dyn TensorSource,
) -> Result<u64, ModelError> {
    let kind = in_files(dtype)?;
    let (counts, floats): (Vec<&Outgoing>, Vec<&Outgoing>) = tensors.iter().partition(|tensor| tensor.count);
    let of = |t: &&'_ Outgoing| if t.count { FileDtype::I64 } else { kind };
    let tensors = || counts.iter().chain(&floats);
    let header = header(&[], tensors().map(|t| (t.name.as_str(), &t.shape[..], of(t))))?;
    let mut written = begin(sink, &header)?;
    let most = tensors().map(|t| t.shape.iter().product()).max().unwrap_or(0);
    let mut buffer = vec![0.0f32; AT_ONCE.min(most)];
    for tensor in tensors() {
        let (elements, kind): (usize, FileDtype) = (tensor.shape.iter().product(), of(tensor));
        for first in (0..elements).step_by(AT_ONCE) {
            let piece = &mut buffer[..AT_ONCE.min(elements - first)];
            source.read(&tensor.from, first, piece)?;
            match kind {
                FileDtype::I64 => write_counts(sink, &tensor.name, piece)?,
                FileDtype::BF16 => sink.write_all(narrow(piece)).map_err(ModelError::Sink)?,
                _ => write_floats(sink, piece).map_err(ModelError::Sink)?,
            }
            written += (piece.len() * kind.bitsize() / 8) as u64;
        }
    }
    sink.flush().map_err(ModelError::Sink)?;
    Ok(written)
}

fn write_counts(sink: &mut dyn Write, tensor: &str, counts: &[f32]) -> Result<(), ModelError> {
    for count in counts {
        // A float below 2^63: it is the whole number itself.
        if !(0.0..9.2e18).contains(count) || count.fract() != 0.0 {
            return Err(ModelError::CountGiven { tensor: tensor.into(), got: *count });
        }
        sink.write_all(&(*count as i64).to_le_bytes()).map_err(ModelError::Sink)?;
    }
    Ok(())
}

/// Rounds to bf16 in place: element i is read from bytes [4i, 4i+4) and written to [2i, 2i+2), which are read already.
fn narrow(piece: &mut [f32]) -> &[u8] {
    let n = piece.len();
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(piece);
    for i in 0..n {
        let value = f32::from_ne_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]);
        bytes[2 * i..2 * i + 2].copy_from_slice(&bf16::from_f32(value).to_bits().to_le_bytes());
    }
    &bytes[..2 * n]
}

fn begin(sink: &mut dyn Write, header: &str) -> Result<u64, ModelError> {
    sink.write_all(&(header.len() as u64).to_le_bytes()).map_err(ModelError::Sink)?;
    sink.write_all(header.as_bytes()).map_err(ModelError::Sink)?;
    Ok(LENGTH_BYTES + header.len() as u64)
}

fn header_of_views(metadata: &[(&str, &str)], tensors: &[TensorView<'_>]) -> Result<String, ModelError> {
    for tensor in tensors {
        let expected = tensor.shape.iter().product();
        if tensor.data.len() != expected {
            return Err(ModelError::SliceLength { tensor: tensor.name.into(), expected, got: tensor.data.len() });
        }
    }
    header(metadata, tensors.iter().map(|t| (t.name, t.shape, FileDtype::F32)))
}

/// The header's JSON, padded with spaces so that the data begin at a multiple of eight.
fn header<'a>(
    metadata: &[(&str, &str)],
    tensors: impl Iterator<Item = (&'a str, &'a [usize], FileDtype)>,
) -> Result<String, ModelError> {
    let mut texts: serde_json::Map<String, serde_json::Value> =
        metadata.iter().map(|(key, value)| (key.to_string(), (*value).into())).collect();
    texts.entry("format").or_insert("pt".into());
    let mut header = format!("{{{}:{}", quoted(METADATA_KEY), serde_json::Value::Object(texts));

    let mut names = BTreeSet::new();
    let mut begin = 0;
    for (name, shape, dtype) in tensors {
        if name == METADATA_KEY {
            return Err(ModelError::ReservedName { tensor: name.into() });
        }
        if !names.insert(name) {
            return Err(ModelError::GivenTwice { tensor: name.into() });
        }
        let end = begin + (dtype.bitsize() / 8 * shape.iter().product::<usize>()) as u64;
        // Writing into a String cannot fail.
        let _ = write!(
            header,
            r#",{}:{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#,
            quoted(name),
        );
        begin = end;
    }
    header.push('}');
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    Ok(header)
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(target_endian = "little")]
fn write_floats(sink: &mut dyn Write, data: &[f32]) -> std::io::Result<()> {
    sink.write_all(bytemuck::cast_slice(data))
}

#[cfg(target_endian = "big")]
fn write_floats(sink: &mut dyn Write, data: &[f32]) -> std::io::Result<()> {
    data.iter().try_for_each(|x| sink.write_all(&x.to_le_bytes()))
}
