//! A model folder: its config, its tokenizer file, and the one question that only config and weights together answer.
//!
//! Invariant: config.json has been read and found possible before a `ModelFolder` exists. The raw config is kept as it
//! was, so that keys we do not know survive to the saved model.

use std::path::{Path, PathBuf};

use plimsoll_plan::spec::{T5Spec, t5_params};
use serde_json::Value;

use crate::config::{self, Said};
use crate::weights::{DECODER_EMBEDDING, ENCODER_EMBEDDING, HEAD};
use crate::{ModelError, WeightFiles, small_file};

/// A folder with a valid config.json.
#[derive(Debug)]
pub struct ModelFolder {
    dir: PathBuf,
    raw: Value,
    said: Said,
}

impl ModelFolder {
    /// Reads config.json and nothing else: the door for training from random weights. `spec().tied` is then what the
    /// config says.
    pub fn open(dir: impl AsRef<Path>) -> Result<ModelFolder, ModelError> {
        let dir = dir.as_ref();
        let path = dir.join("config.json");
        if !path.try_exists()? {
            return Err(ModelError::ConfigMissing { dir: dir.into(), found: small_file::names_in(dir)? });
        }
        let raw: Value = serde_json::from_slice(&small_file::read(&path)?)
            .map_err(|source| ModelError::Json { path: path.clone(), source })?;
        let said = config::read(&path, &raw)?;
        Ok(ModelFolder { dir: dir.into(), raw, said })
    }

    /// Reads config.json and the weights' headers, and checks one against the other: the door for training from given
    /// weights. `spec().tied` is then what transformers 5 makes of the same files: the head is a parameter of its own
    /// if and only if the files hold one and it differs from the embedding table.
    pub fn open_with_weights(dir: impl AsRef<Path>) -> Result<(ModelFolder, WeightFiles), ModelError> {
        let mut folder = ModelFolder::open(dir)?;
        let weights = WeightFiles::open(&folder.dir)?;
        let spec = &mut folder.said.spec;
        spec.tied = !weights.has_head_of_its_own_name();
        weights.check(&t5_params(spec))?;
        // Only now are weights read: a table for each name that may be, or may not be, another name of the embedding.
        spec.tied = spec.tied || weights.same_as_shared(HEAD)?;
        for name in [ENCODER_EMBEDDING, DECODER_EMBEDDING] {
            if weights.contains(name) && !weights.same_as_shared(name)? {
                return Err(weights.embeddings_differ(name));
            }
        }
        Ok((folder, weights))
    }

    /// The model, as config.json (and the weights, where they were opened too) states it.
    pub fn spec(&self) -> &T5Spec {
        &self.said.spec
    }

    /// config.json as it is.
    pub fn config(&self) -> &Value {
        &self.raw
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The config's `initializer_factor`, for [`crate::init::fill_random_scaled`]. One in all published models.
    pub fn init_factor(&self) -> f32 {
        self.said.init_factor
    }

    /// Where tokenizer.json is.
    pub fn tokenizer_path(&self) -> Result<PathBuf, ModelError> {
        tokenizer_in(&self.dir)
    }
}

/// tokenizer.json in this folder, or what is there instead.
pub(crate) fn tokenizer_in(dir: &Path) -> Result<PathBuf, ModelError> {
    let path = dir.join("tokenizer.json");
    match path.is_file() {
        true => Ok(path),
        false => Err(ModelError::TokenizerMissing { dir: dir.into(), found: small_file::names_in(dir)? }),
    }
}
