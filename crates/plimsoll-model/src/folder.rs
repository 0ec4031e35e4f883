//! A model folder: its config, its tokenizer file, and the one question that only config and weights together answer. A model of
//! series may also be a description in TOML, which has no weights.
//!
//! Invariant: config.json has been read and found possible before a `ModelFolder` exists. The raw config is kept as it
//! was, so that keys we do not know survive to the saved model.

use std::path::{Path, PathBuf};

use plimsoll_plan::spec::ModelSpec;
use serde_json::Value;

use crate::chat::{self, ChatTemplate};
use crate::config::{self, Said};
use crate::description::{self, SeriesInput};
use crate::names::{HEAD, SHARED, T5_TABLES};
use crate::{ModelError, WeightFiles, normalisation, small_file};

/// A folder with a valid config.json, or a valid description.
#[derive(Debug)]
pub struct ModelFolder {
    dir: PathBuf,
    /// What says what the model is.
    file: PathBuf,
    raw: Value,
    said: Said,
}

impl ModelFolder {
    /// Reads config.json and nothing else: the door for training from random weights. `spec().tied` is then what the
    /// config says. A TOML file is read as the description of a model of series that says how many features a step has.
    pub fn open(path: impl AsRef<Path>) -> Result<ModelFolder, ModelError> {
        ModelFolder::open_for(path, None)
    }

    /// The same, for data of which so much is known: a description may leave open what they say, and nothing may differ from it.
    pub fn open_for(path: impl AsRef<Path>, data: Option<SeriesInput>) -> Result<ModelFolder, ModelError> {
        let path = path.as_ref();
        if !is_description(path) {
            let folder = ModelFolder::open_dir(path)?;
            data.map_or(Ok(()), |data| folder.must_take(data))?;
            return Ok(folder);
        }
        let spec = description::read(path, data)?;
        let raw = config::series::config_of(&spec);
        // By the one door of configs, so that both have the same limits.
        let said = config::read(path, &raw)?;
        Ok(ModelFolder { dir: parent_of(path).into(), file: path.into(), raw, said })
    }

    fn open_dir(dir: &Path) -> Result<ModelFolder, ModelError> {
        let path = dir.join("config.json");
        if !path.try_exists()? {
            return Err(ModelError::ConfigMissing { dir: dir.into(), found: small_file::names_in(dir)? });
        }
        let (raw, said) = config::read_text(&path, &small_file::read(&path)?)?;
        Ok(ModelFolder { dir: dir.into(), file: path, raw, said })
    }

    /// Reads config.json and the weights' headers, and checks one against the other: the door for training from given
    /// weights. Whether the head is tied is then what transformers 5 makes of the same files. A T5's head is a
    /// parameter of its own if and only if the files hold one and it differs from the embedding table; a decoder's
    /// also where the config says so.
    /// A model of series has each tensor of its PyTorch module and no other.
    pub fn open_with_weights(dir: impl AsRef<Path>) -> Result<(ModelFolder, WeightFiles), ModelError> {
        let dir = dir.as_ref();
        if is_description(dir) {
            return Err(ModelError::DescriptionWithoutWeights { path: dir.into() });
        }
        let mut folder = ModelFolder::open_dir(dir)?;
        let mut weights = WeightFiles::open(&folder.dir)?;
        let table = match &folder.said.spec {
            ModelSpec::T5(_) => SHARED,
            ModelSpec::Decoder(spec) => spec.table_name(),
            // No table, and nothing that could be tied to it.
            ModelSpec::Series(_) => "",
        };
        let may_tie = match &folder.said.spec {
            ModelSpec::T5(_) => true,
            ModelSpec::Decoder(spec) => spec.tied,
            ModelSpec::Series(_) => false,
        };
        if may_tie {
            weights.read_table_from_head(table);
            folder.set_tied(!weights.has_head_beside(table));
        }
        weights.check(&folder.spec().params())?;
        if folder.spec().series().is_some() {
            weights.nothing_else(&folder.spec().params())?;
        }
        // Only now are weights read: a table for each name that may be, or may not be, another name of the embedding.
        if may_tie && weights.has_head_beside(table) && weights.same_as_table(HEAD, table)? {
            folder.set_tied(true);
            weights.head_is_the_table();
        }
        if folder.spec().t5().is_some() {
            for name in T5_TABLES {
                if weights.contains(name) && !weights.same_as_table(name, table)? {
                    return Err(weights.embeddings_differ(name, table));
                }
            }
        }
        Ok((folder, weights))
    }

    fn set_tied(&mut self, tied: bool) {
        match &mut self.said.spec {
            ModelSpec::T5(spec) => spec.tied = tied,
            ModelSpec::Decoder(spec) => spec.tied = tied,
            ModelSpec::Series(_) => {}
        }
    }

    /// Refuses data whose windows are not those of the model, where it is one of series.
    pub fn must_take(&self, data: SeriesInput) -> Result<(), ModelError> {
        self.spec().series().map_or(Ok(()), |spec| data.fits(&self.file, spec))
    }

    /// The text by which the features of a model of series are normalised, where the folder has one.
    pub fn normalisation(&self) -> Result<Option<String>, ModelError> {
        match self.file == self.dir.join("config.json") {
            true => normalisation::read(&self.dir),
            // A description lies beside whatever there is, and nothing of it is its own.
            false => Ok(None),
        }
    }

    /// The model, as config.json (and the weights, where they were opened too) states it.
    pub fn spec(&self) -> &ModelSpec {
        &self.said.spec
    }

    /// The model, with every token that generation_config.json ends an answer at: chat models often name more there than in
    /// config.json. What is no token of the vocabulary is passed over.
    pub fn answering_spec(&self) -> ModelSpec {
        let mut spec = self.said.spec.clone();
        if let ModelSpec::Decoder(decoder) = &mut spec {
            let path = self.dir.join("generation_config.json");
            let said = small_file::read(&path).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
            let ends = match said.as_ref().and_then(|map| map.get("eos_token_id")) {
                Some(Value::Array(several)) => several.iter().filter_map(Value::as_u64).collect(),
                Some(one) => one.as_u64().into_iter().collect(),
                None => Vec::new(),
            };
            for id in ends.into_iter().filter(|id| *id < decoder.vocab as u64).map(|id| id as u32) {
                if !decoder.eos_ids.contains(&id) {
                    decoder.eos_ids.push(id);
                }
            }
        }
        spec
    }

    /// config.json as it is.
    pub fn config(&self) -> &Value {
        &self.raw
    }

    /// The folder; of a description, that which it lies in.
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

    /// The template that turns a conversation into text, where the folder has one: `chat_template.jinja`, else
    /// `chat_template` of tokenizer_config.json (of several, the one called `default`).
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, ModelError> {
        chat::read(&self.dir)
    }
}

/// Whether this is a TOML file, not a folder.
fn is_description(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "toml") && !path.is_dir()
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// tokenizer.json in this folder, or what is there instead.
pub(crate) fn tokenizer_in(dir: &Path) -> Result<PathBuf, ModelError> {
    let path = dir.join("tokenizer.json");
    match path.is_file() {
        true => Ok(path),
        false => Err(ModelError::TokenizerMissing { dir: dir.into(), found: small_file::names_in(dir)? }),
    }
}
