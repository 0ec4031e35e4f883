//! The weights of a folder: one safetensors file, or an index and its shards. Opened, believed, checked.
//!
//! Invariant: every tensor known here lies inside its file and under one name in one file only. Opening and checking
//! read headers; `stream.rs` reads the weights themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::spec::Param;
use safetensors::Dtype as FileDtype;

use crate::header::{self, Stored};
use crate::names::{self, HEAD};
use crate::{ModelError, small_file};

/// Open files of weights, with the place of every tensor.
#[derive(Debug)]
pub struct WeightFiles {
    /// What was opened: a folder or a file.
    place: PathBuf,
    pub(crate) files: Vec<fs_err::File>,
    metadata: BTreeMap<String, String>,
    tensors: BTreeMap<String, (usize, Stored)>,
    /// The table that is read from the head, where the files hold a tied model's head and not its table.
    table_as_head: Option<&'static str>,
    /// The head was compared, and is the table once more.
    head_is_table: bool,
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
        let mut weights = WeightFiles::empty(path);
        weights.add(path)?;
        Ok(weights)
    }

    fn empty(place: &Path) -> WeightFiles {
        WeightFiles {
            place: place.into(),
            files: Vec::new(),
            metadata: BTreeMap::new(),
            tensors: BTreeMap::new(),
            table_as_head: None,
            head_is_table: false,
        }
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
        let mut weights = WeightFiles::empty(dir);
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
        let trained: Vec<String> = self.extras(params).into_iter().filter(|name| names::is_trained(name)).collect();
        match trained.is_empty() {
            true => Ok(()),
            false => Err(ModelError::TrainedExtras { path: self.place.clone(), tensors: trained }),
        }
    }

    /// Refuses any tensor that none of these parameters reads, as PyTorch does with `strict=True`.
    pub(crate) fn nothing_else(&self, params: &[Param]) -> Result<(), ModelError> {
        match self.extras(params) {
            extras if extras.is_empty() => Ok(()),
            tensors => Err(ModelError::TrainedExtras { path: self.place.clone(), tensors }),
        }
    }

    /// Tensors that none of these parameters reads. [`WeightFiles::check`] refuses those that are parts of a model (a
    /// seventh block under a config of six); the others (heads for other tasks) are worth a line to the user.
    pub fn extras(&self, params: &[Param]) -> Vec<String> {
        let used: BTreeSet<&str> =
            params.iter().filter_map(|p| self.source(&p.name)).map(|(_, stored)| stored.name.as_str()).collect();
        let tables: BTreeSet<&str> = params.iter().flat_map(|p| names::other_tables(&p.name)).copied().collect();
        let known = |name: &str| {
            let table = tables.contains(name) || (self.head_is_table && name == HEAD);
            used.contains(name) || table || names::is_buffer(name)
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

    /// How the file stores a tensor's numbers; F32 for a count of batches, which is a whole number there.
    pub fn dtype(&self, name: &str) -> Result<Dtype, ModelError> {
        let (file, stored) = self.stored(name)?;
        float(stored).ok_or_else(|| refused(file, stored))
    }

    /// How the matrices are stored, if all in one way; buffers are not counted.
    pub fn float_dtype(&self) -> Option<Dtype> {
        let matrices = self.tensors.values().filter(|(_, s)| s.shape.len() >= 2 && !names::is_buffer(&s.name));
        let mut kinds = matrices.map(|(_, stored)| float(stored));
        let first = kinds.next()??;
        kinds.all(|kind| kind == Some(first)).then_some(first)
    }

    /// A text of the header's metadata.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// Lets the embedding table be read from the head, where the files hold only that.
    pub(crate) fn read_table_from_head(&mut self, table: &'static str) {
        if self.source(table).is_none() {
            self.table_as_head = Some(table);
        }
    }

    /// The head need not be read: it equals the table.
    pub(crate) fn head_is_the_table(&mut self) {
        self.head_is_table = true;
    }

    /// Whether there is a head beside what `table` is read from.
    pub(crate) fn has_head_beside(&self, table: &str) -> bool {
        self.contains(HEAD) && self.source(table).is_some_and(|(_, stored)| stored.name != HEAD)
    }

    pub(crate) fn embeddings_differ(&self, tensor: &str, table: &str) -> ModelError {
        let shared = self.source(table).map_or(table, |(_, stored)| &stored.name).to_string();
        ModelError::EmbeddingsDiffer { path: self.place.clone(), tensor: tensor.into(), shared }
    }

    /// What was opened, for messages.
    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    /// Where a parameter is read from: its own name, or another that files have for it.
    fn source(&self, name: &str) -> Option<&(usize, Stored)> {
        let found = self.tensors.get(name).or_else(|| self.tensors.get(names::without_prefix(name)?));
        let found = found.or_else(|| names::other_tables(name).iter().find_map(|other| self.tensors.get(*other)));
        let found = found.or_else(|| self.tensors.get(&names::in_adapter(name)?));
        found.or_else(|| self.tensors.get(HEAD).filter(|_| self.table_as_head == Some(name)))
    }

    pub(crate) fn stored(&self, name: &str) -> Result<(&fs_err::File, &Stored), ModelError> {
        let (file, stored) = self
            .source(name)
            .ok_or_else(|| ModelError::NoSuchTensor { path: self.place.clone(), tensor: name.into() })?;
        Ok((&self.files[*file], stored))
    }

    pub(crate) fn must_be_float(&self, file: &fs_err::File, stored: &Stored) -> Result<(), ModelError> {
        float(stored).map(|_| ()).ok_or_else(|| refused(file, stored))
    }
}

/// The plain floats; a count is held as one.
fn float(stored: &Stored) -> Option<Dtype> {
    match stored.dtype {
        FileDtype::I64 if names::is_count(&stored.name) => Some(Dtype::F32),
        FileDtype::F32 => Some(Dtype::F32),
        FileDtype::F16 => Some(Dtype::F16),
        FileDtype::BF16 => Some(Dtype::Bf16),
        _ => None,
    }
}

fn refused(file: &fs_err::File, stored: &Stored) -> ModelError {
    ModelError::DtypeRefused { path: file.path().into(), tensor: stored.name.clone(), got: stored.dtype }
}
