//! Tensors out of lent slices into a safetensors stream: header first, then each slice's own bytes.
//!
//! Invariant: the weights are never copied; what is allocated is the header. Used for final models and for checkpoints
//! alike, so it knows no names: any tensors, any texts of metadata.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write;

use crate::ModelError;
use crate::header::{LENGTH_BYTES, METADATA_KEY};

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

/// Writes tensors in the order given. `metadata` are free texts; `("format", "pt")` is what transformers asks for and is
/// added where it is not given. Returns the number of bytes written.
pub fn write_safetensors(
    sink: &mut dyn Write,
    metadata: &[(&str, &str)],
    tensors: &[TensorView<'_>],
) -> Result<u64, ModelError> {
    let header = header(metadata, tensors)?;
    let mut written = LENGTH_BYTES + header.len() as u64;
    sink.write_all(&(header.len() as u64).to_le_bytes()).map_err(ModelError::Sink)?;
    sink.write_all(header.as_bytes()).map_err(ModelError::Sink)?;
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
    Ok(LENGTH_BYTES + header(metadata, tensors)?.len() as u64 + data)
}

/// The header's JSON, padded with spaces so that the data begin at a multiple of eight.
fn header(metadata: &[(&str, &str)], tensors: &[TensorView<'_>]) -> Result<String, ModelError> {
    let mut texts: serde_json::Map<String, serde_json::Value> =
        metadata.iter().map(|(key, value)| (key.to_string(), (*value).into())).collect();
    texts.entry("format").or_insert("pt".into());
    let mut header = format!("{{{}:{}", quoted(METADATA_KEY), serde_json::Value::Object(texts));

    let mut names = BTreeSet::new();
    let mut begin = 0;
    for tensor in tensors {
        if tensor.name == METADATA_KEY {
            return Err(ModelError::ReservedName { tensor: tensor.name.into() });
        }
        if !names.insert(tensor.name) {
            return Err(ModelError::GivenTwice { tensor: tensor.name.into() });
        }
        let expected = tensor.shape.iter().product();
        if tensor.data.len() != expected {
            return Err(ModelError::SliceLength { tensor: tensor.name.into(), expected, got: tensor.data.len() });
        }
        let end = begin + 4 * expected as u64;
        // Writing into a String cannot fail.
        let _ = write!(
            header,
            r#",{}:{{"dtype":"F32","shape":{:?},"data_offsets":[{begin},{end}]}}"#,
            quoted(tensor.name),
            tensor.shape
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
