//! The header of a safetensors file: eight bytes of length, JSON, then the tensors back to back.
//!
//! Invariant: `read` is the only door. What it returns lies inside the file, covers it without hole or overlap, and has
//! the bytes that its shapes and dtypes need. Nothing is allocated by a length that the file itself does not have.
//! (The `safetensors` crate's own `read_metadata` wants the whole file in memory; it is the judge in our tests.)

use std::collections::BTreeMap;
use std::fmt;

use fs_err::os::unix::fs::FileExt;
use safetensors::Dtype;
use serde::de::value::StrDeserializer;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use std::path::Path;

use crate::ModelError;
use crate::small_file::LIMIT_BYTES;

/// Bytes of the length in front of the header.
pub(crate) const LENGTH_BYTES: u64 = 8;
/// The key that holds texts instead of a tensor.
pub(crate) const METADATA_KEY: &str = "__metadata__";

/// A header that agrees with its file.
#[derive(Debug)]
pub(crate) struct Header {
    /// Free texts.
    pub metadata: BTreeMap<String, String>,
    /// Every tensor, in the order of its bytes.
    pub tensors: Vec<Stored>,
}

/// Where one tensor lies.
#[derive(Debug, PartialEq)]
pub(crate) struct Stored {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// From the start of the file.
    pub start: u64,
    pub bytes: u64,
}

/// Reads and validates the header of an open file.
pub(crate) fn read(file: &fs_err::File) -> Result<Header, ModelError> {
    let path = file.path();
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(ModelError::NotAFile { path: path.into() });
    }
    let file_bytes = facts.len();
    let truncated =
        |expected_bytes| ModelError::HeaderTruncated { path: path.into(), expected_bytes, got_bytes: file_bytes };
    if file_bytes < LENGTH_BYTES {
        return Err(truncated(LENGTH_BYTES));
    }
    let mut length = [0; LENGTH_BYTES as usize];
    file.read_exact_at(&mut length, 0)?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > LIMIT_BYTES {
        return Err(ModelError::HeaderTooLong { path: path.into(), limit_bytes: LIMIT_BYTES, got_bytes: header_bytes });
    }
    let data_start = LENGTH_BYTES + header_bytes;
    if data_start > file_bytes {
        return Err(truncated(data_start));
    }
    let mut json = vec![0; header_bytes as usize];
    file.read_exact_at(&mut json, LENGTH_BYTES)?;
    parse(path, &json, file_bytes)
}

/// Validates a header's JSON against the length of the file that it came from.
fn parse(path: &Path, json: &[u8], file_bytes: u64) -> Result<Header, ModelError> {
    let said: Said =
        serde_json::from_slice(json).map_err(|source| ModelError::HeaderNotJson { path: path.into(), source })?;
    let data_start = LENGTH_BYTES + json.len() as u64;
    let mut entries = said.tensors;
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    if let Some(pair) = entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(ModelError::HeaderNamesTwice { path: path.into(), tensor: pair[0].0.clone() });
    }
    entries.sort_by_key(|(_, entry)| entry.data_offsets);

    let mut expected_begin = 0;
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, Entry { dtype, shape, data_offsets: [begin, end] }) in entries {
        let kind = Dtype::deserialize(StrDeserializer::<serde::de::value::Error>::new(&dtype))
            .map_err(|_| ModelError::DtypeUnknown { path: path.into(), tensor: name.clone(), found: dtype.clone() })?;
        if begin != expected_begin || end < begin {
            return Err(ModelError::Offsets { path: path.into(), tensor: name, expected_begin, begin, end });
        }
        let needed = bytes_of(kind, &shape);
        if needed != Some(end - begin) {
            return Err(ModelError::TensorBytes {
                path: path.into(),
                tensor: name,
                shape,
                dtype: kind,
                expected_bytes: needed,
                got_bytes: end - begin,
            });
        }
        tensors.push(Stored { name, dtype: kind, shape, start: data_start.saturating_add(begin), bytes: end - begin });
        expected_begin = end;
    }

    let expected_bytes = data_start.saturating_add(expected_begin);
    if file_bytes < expected_bytes {
        return Err(ModelError::FileTruncated { path: path.into(), expected_bytes, got_bytes: file_bytes });
    }
    if file_bytes > expected_bytes {
        return Err(ModelError::FileTooLong { path: path.into(), expected_bytes, got_bytes: file_bytes });
    }
    Ok(Header { metadata: said.metadata, tensors })
}

/// Bytes of a tensor; none where they are more than can be counted, or no whole number.
fn bytes_of(dtype: Dtype, shape: &[usize]) -> Option<u64> {
    let elements = shape.iter().try_fold(1usize, |n, &side| n.checked_mul(side))?;
    let bits = elements.checked_mul(dtype.bitsize())?;
    bits.is_multiple_of(8).then_some(bits as u64 / 8)
}

/// What a header says, unchecked; names may come twice.
struct Said {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, Entry)>,
}

#[derive(serde::Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

impl<'de> Deserialize<'de> for Said {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Said, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Said;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Said, A::Error> {
                let mut metadata = None;
                let mut tensors = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    if key == METADATA_KEY {
                        if metadata.is_some() {
                            return Err(A::Error::duplicate_field(METADATA_KEY));
                        }
                        metadata = Some(map.next_value::<Option<BTreeMap<String, String>>>()?.unwrap_or_default());
                    } else {
                        let entry = map.next_value().map_err(|e| A::Error::custom(format!("tensor `{key}`: {e}")))?;
                        tensors.push((key, entry));
                    }
                }
                Ok(Said { metadata: metadata.unwrap_or_default(), tensors })
            }
        }
        from.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use safetensors::SafeTensors;

    const HONEST: &str = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"none":{"dtype":"F32","shape":[0],"data_offsets":[32,32]}}"#;

    /// The whole file that this header would stand in.
    fn file_of(json: &[u8], data_bytes: usize) -> Vec<u8> {
        let mut file = (json.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(json);
        file.resize(file.len() + data_bytes, 0);
        file
    }

    fn judge(json: &[u8], data_bytes: usize) -> Result<Header, ModelError> {
        let ours = parse(Path::new("x"), json, LENGTH_BYTES + (json.len() + data_bytes) as u64);
        if let Ok(header) = &ours {
            let file = file_of(json, data_bytes);
            let theirs = SafeTensors::deserialize(&file).expect("what we accept, the format's own crate accepts");
            assert_eq!(theirs.len(), header.tensors.len());
            for stored in &header.tensors {
                let view = theirs.tensor(&stored.name).unwrap();
                assert_eq!((view.dtype(), view.shape()), (stored.dtype, &stored.shape[..]));
                assert_eq!(view.data().as_ptr() as u64 - file.as_ptr() as u64, stored.start);
                assert_eq!(view.data().len() as u64, stored.bytes);
            }
        }
        ours
    }

    #[test]
    fn an_honest_header_is_read_with_its_texts_and_places() {
        let header = judge(HONEST.as_bytes(), 32).unwrap();
        assert_eq!(header.metadata["format"], "pt");
        let start = LENGTH_BYTES + HONEST.len() as u64;
        let b = Stored { name: "b".into(), dtype: Dtype::BF16, shape: vec![4], start: start + 24, bytes: 8 };
        assert_eq!(header.tensors[1], b);
    }

    /// Bytes of a JSON-like text, so that mutations reach past the JSON parser.
    fn piece() -> impl Strategy<Value = String> {
        prop_oneof![
            Just("0".to_string()),
            Just("18446744073709551615".to_string()),
            Just("-1".to_string()),
            Just("9223372036854775807".to_string()),
            Just("1e400".to_string()),
            Just("\"F4\"".to_string()),
            Just("null".to_string()),
            Just("[".repeat(300)),
            "[ -~]{0,8}",
            any::<u64>().prop_map(|n| n.to_string()),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn a_mutated_header_never_panics_and_is_never_more_trusting_than_the_formats_own_crate(
            edits in prop::collection::vec((0..HONEST.len(), 0usize..6, piece()), 1..4),
            data_bytes in prop_oneof![Just(32usize), 0usize..64],
        ) {
            let mut json = HONEST.as_bytes().to_vec();
            for (at, removed, text) in edits {
                let at = at.min(json.len());
                let end = (at + removed).min(json.len());
                json.splice(at..end, text.into_bytes());
            }
            let _ = judge(&json, data_bytes);
        }

        #[test]
        fn shapes_and_offsets_drawn_at_random_are_judged_as_the_formats_own_crate_judges_them(
            entries in prop::collection::vec((prop::collection::vec(0usize..4, 0..3), 0u64..40, 0u64..40, any::<bool>()), 0..4),
            data_bytes in 0usize..80,
        ) {
            let mut at = 0u64;
            let fields: Vec<String> = entries.iter().enumerate().map(|(i, (shape, begin, end, honest))| {
                let bytes = 4 * shape.iter().product::<usize>() as u64;
                let (b, e) = if *honest { (at, at + bytes) } else { (*begin, *end) };
                at = e;
                format!(r#""t{i}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{b},{e}]}}"#)
            }).collect();
            let json = format!("{{{}}}", fields.join(","));
            for data_bytes in [data_bytes, at as usize] {
                let theirs = SafeTensors::deserialize(&file_of(json.as_bytes(), data_bytes)).is_ok();
                prop_assert_eq!(judge(json.as_bytes(), data_bytes).is_ok(), theirs);
            }
        }
    }
}
