//! The weights of a folder: one safetensors file, or an index and its shards. Opened, believed, checked.
//!
//! Invariant: every tensor known here lies inside its file and under one name in one file only. Opening and checking
//! read headers; `stream.rs` reads the weights themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use plimsoll_plan::spec::Param;
use safetensors::Dtype;

use crate::header::{self, Stored};
use crate::{ModelError, small_file};

/// The embedding table.
pub(crate) const SHARED: &str = "shared.weight";
/// The head, where it is written down; otherwise the embedding table serves.
pub(crate) const HEAD: &str = "lm_head.weight";
/// Other names of the embedding table in files of older writers.
pub(crate) const ENCODER_EMBEDDING: &str = "encoder.embed_tokens.weight";
/// See [`ENCODER_EMBEDDING`].
pub(crate) const DECODER_EMBEDDING: &str = "decoder.embed_tokens.weight";
/// Written by the first T5 checkpoints, read by nobody: cross attention has no position bias.
const IGNORED: &str = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";

/// Open files of weights, with the place of every tensor.
#[derive(Debug)]
pub struct WeightFiles {
    /// What was opened: a folder or a file.
    place: PathBuf,
    pub(crate) files: Vec<fs_err::File>,
    metadata: BTreeMap<String, String>,
    tensors: BTreeMap<String, (usize, Stored)>,
}

#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl WeightFiles {
    /// Opens `model.safetensors`, or `model.safetensors.index.json` and its shards.
    pub fn open(dir: impl AsRef<Path>) -> Result<WeightFiles, ModelError> {
        let dir = dir.as_ref();
        let single = dir.join("model.safetensors");
        let index = dir.join("model.safetensors.index.json");
        let mut weights = if single.try_exists()? {
            WeightFiles::open_file(&single)?
        } else if index.try_exists()? {
            WeightFiles::open_index(dir, &index)?
        } else {
            return Err(ModelError::WeightsMissing { dir: dir.into(), found: small_file::names_in(dir)? });
        };
        weights.place = dir.into();
        Ok(weights)
    }

    /// Opens one safetensors file, whatever tensors it holds.
    pub fn open_file(path: impl AsRef<Path>) -> Result<WeightFiles, ModelError> {
        let path = path.as_ref();
        let mut weights =
            WeightFiles { place: path.into(), files: Vec::new(), metadata: BTreeMap::new(), tensors: BTreeMap::new() };
        weights.add(path)?;
        Ok(weights)
    }

    fn open_index(dir: &Path, path: &Path) -> Result<WeightFiles, ModelError> {
        let index: Index = serde_json::from_slice(&small_file::read(path)?)
            .map_err(|source| ModelError::Json { path: path.into(), source })?;
        for (tensor, file) in &index.weight_map {
            let mut parts = Path::new(file).components();
            if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
                let (tensor, file) = (tensor.clone(), file.clone());
                return Err(ModelError::IndexFileName { path: path.into(), tensor, file });
            }
        }
        let mut weights =
            WeightFiles { place: dir.into(), files: Vec::new(), metadata: BTreeMap::new(), tensors: BTreeMap::new() };
        for shard in index.weight_map.values().collect::<BTreeSet<_>>() {
            let file = dir.join(shard);
            if !file.try_exists()? {
                return Err(ModelError::ShardMissing { path: path.into(), shard: shard.clone() });
            }
            weights.add(&file)?;
        }
        for (tensor, shard) in index.weight_map {
            let held = weights.tensors.get(&tensor).map(|(file, _)| weights.files[*file].path());
            if held.and_then(Path::file_name) != Path::new(&shard).file_name() {
                return Err(ModelError::NotInShard { path: path.into(), tensor, shard });
            }
        }
        Ok(weights)
    }

    fn add(&mut self, path: &Path) -> Result<(), ModelError> {
        // Asked before opening: to open a pipe would wait for a writer.
        if !fs_err::metadata(path)?.is_file() {
            return Err(ModelError::NotAFile { path: path.into() });
        }
        let file = fs_err::File::open(path)?;
        let header = header::read(&file)?;
        self.metadata.extend(header.metadata);
        for stored in header.tensors {
            if let Some((first, _)) = self.tensors.get(&stored.name) {
                let first = self.files[*first].path().into();
                return Err(ModelError::InTwoShards { tensor: stored.name, first, second: path.into() });
            }
            self.tensors.insert(stored.name.clone(), (self.files.len(), stored));
        }
        self.files.push(file);
        Ok(())
    }

    /// Says whether every parameter is there, with its shape and as floats, and whether nothing trained is left over.
    /// Reads no weights.
    pub fn check(&self, params: &[Param]) -> Result<(), ModelError> {
        let missing = params.iter().filter(|p| self.source(&p.name).is_none());
        if let Some(first) = missing.clone().next() {
            return Err(ModelError::TensorMissing {
                path: self.place.clone(),
                tensor: first.name.clone(),
                shape: first.shape.clone(),
                missing: missing.count(),
            });
        }
        for param in params {
            let (file, stored) = self.stored(&param.name)?;
            if stored.shape != param.shape {
                return Err(ModelError::Shape {
                    path: file.path().into(),
                    tensor: stored.name.clone(),
                    expected: param.shape.clone(),
                    got: stored.shape.clone(),
                });
            }
            self.must_be_float(file, stored)?;
        }
        let trained: Vec<String> = self.extras(params).into_iter().filter(|name| is_trained(name)).collect();
        match trained.is_empty() {
            true => Ok(()),
            false => Err(ModelError::TrainedExtras { path: self.place.clone(), tensors: trained }),
        }
    }

    /// Tensors that none of these parameters reads. [`WeightFiles::check`] refuses those that are parts of a T5 (a
    /// seventh block under a config of six); the others (heads for other tasks, buffers) are worth a line to the user.
    pub fn extras(&self, params: &[Param]) -> Vec<String> {
        let used: BTreeSet<&str> = params.iter().map(|p| p.name.as_str()).collect();
        let other_names = [ENCODER_EMBEDDING, DECODER_EMBEDDING, HEAD];
        let known = |name: &str| {
            used.contains(name) || name == IGNORED || (used.contains(SHARED) && other_names.contains(&name))
        };
        self.tensors.keys().filter(|name| !known(name)).cloned().collect()
    }

    /// Every tensor's name, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether the files hold a tensor of exactly this name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The shape of a tensor.
    pub fn shape(&self, name: &str) -> Result<&[usize], ModelError> {
        Ok(&self.stored(name)?.1.shape)
    }

    /// A text of the header's metadata.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// Whether there is a head beside the table that `shared.weight` is read from.
    pub(crate) fn has_head_of_its_own_name(&self) -> bool {
        self.contains(HEAD) && self.source(SHARED).is_some_and(|(_, stored)| stored.name != HEAD)
    }

    pub(crate) fn embeddings_differ(&self, tensor: &str) -> ModelError {
        let shared = self.source(SHARED).map_or(SHARED, |(_, stored)| &stored.name).to_string();
        ModelError::EmbeddingsDiffer { path: self.place.clone(), tensor: tensor.into(), shared }
    }

    /// Where a parameter is read from: its own name, or another name of the embedding table.
    fn source(&self, name: &str) -> Option<&(usize, Stored)> {
        let others: &[&str] = if name == SHARED { &[ENCODER_EMBEDDING, DECODER_EMBEDDING, HEAD] } else { &[] };
        self.tensors.get(name).or_else(|| others.iter().find_map(|other| self.tensors.get(*other)))
    }

    pub(crate) fn stored(&self, name: &str) -> Result<(&fs_err::File, &Stored), ModelError> {
        let (file, stored) = self
            .source(name)
            .ok_or_else(|| ModelError::NoSuchTensor { path: self.place.clone(), tensor: name.into() })?;
        Ok((&self.files[*file], stored))
    }

    pub(crate) fn must_be_float(&self, file: &fs_err::File, stored: &Stored) -> Result<(), ModelError> {
        match stored.dtype {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 => Ok(()),
            got => Err(ModelError::DtypeRefused { path: file.path().into(), tensor: stored.name.clone(), got }),
        }
    }
}

/// Whether a left-over tensor is a part of an encoder-decoder that somebody trained.
fn is_trained(name: &str) -> bool {
    let part = ["encoder.", "decoder.", "shared.", "lm_head."].iter().any(|start| name.starts_with(start));
    part && (name.ends_with(".weight") || name.ends_with(".bias"))
}
