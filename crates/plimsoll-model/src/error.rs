//! What can be wrong with a model folder, each as a fact: which file, which place, what was expected, what was found.
//!
//! Invariant: no variant holds advice or a free text of ours; the remedy is the business of whoever prints it.

use std::io;
use std::path::PathBuf;

use plimsoll_plan::spec::SpecError;
use safetensors::Dtype;

/// A fact that stopped reading or writing a model.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by what they hold, and the message shows each in its place")]
pub enum ModelError {
    /// The system refused; the message names the path.
    #[error(transparent)]
    Io(#[from] io::Error),

    /// The folder has no config.json.
    #[error("`{}` has no `config.json`; it holds {}", dir.display(), list(found))]
    ConfigMissing { dir: PathBuf, found: Vec<String> },

    /// A JSON file is not what JSON allows, or not of the form expected.
    #[error("`{}` is not valid: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },

    /// A JSON file holds something else than an object.
    #[error("`{}` must hold a JSON object, found {found}", path.display())]
    NotAnObject { path: PathBuf, found: String },

    /// A key of config.json has a value that no model can have, or that is not supported.
    #[error("`{}`: key `{key}` must be {expected}, found `{found}`", path.display())]
    ConfigKey { path: PathBuf, key: &'static str, expected: String, found: String },

    /// A key of a model of series has a value that no model can have.
    #[error("`{}{}`: {wrong}", path.display(), at(place))]
    Spec { path: PathBuf, place: Option<(usize, usize)>, wrong: Box<SpecError> },

    /// A description is not what TOML allows, or not of the form expected.
    #[error("`{}:{line}:{column}` is not valid: {message}", path.display())]
    Toml { path: PathBuf, line: usize, column: usize, message: String },

    /// A model of series that reads other windows than the data have.
    #[error("`{}` describes a model with {key} = {said}, the data have {data}", path.display())]
    OtherData { path: PathBuf, key: &'static str, said: usize, data: usize },

    /// Every number may be possible, the model is not.
    #[error("`{}` describes a model of {got_bytes} bytes in fp32; at most {limit_bytes} bytes are possible", path.display())]
    ModelTooLarge { path: PathBuf, got_bytes: u128, limit_bytes: u128 },

    /// The folder has no tokenizer.json.
    #[error("`{}` has no `tokenizer.json`; it holds {}", dir.display(), list(found))]
    TokenizerMissing { dir: PathBuf, found: Vec<String> },

    /// The folder has neither model.safetensors nor an index.
    #[error("`{}` has no `model.safetensors` and no `model.safetensors.index.json`; it holds {}", dir.display(), list(found))]
    WeightsMissing { dir: PathBuf, found: Vec<String> },

    /// A description has no weights.
    #[error("`{}` describes a model of series and has no weights; they are in model folders", path.display())]
    DescriptionWithoutWeights { path: PathBuf },

    /// A path that should be a plain file is something else.
    #[error("`{}` is not a plain file", path.display())]
    NotAFile { path: PathBuf },

    /// A file that should be text is not.
    #[error("`{}` is not UTF-8 text", path.display())]
    NotText { path: PathBuf },

    /// A JSON file is larger than any honest one.
    #[error("`{}` has {got_bytes} bytes; at most {limit_bytes} are expected of such a file", path.display())]
    FileTooLarge { path: PathBuf, limit_bytes: u64, got_bytes: u64 },

    /// A safetensors file says that its header is longer than any honest one.
    #[error("`{}` announces a header of {got_bytes} bytes; at most {limit_bytes} are expected", path.display())]
    HeaderTooLong { path: PathBuf, limit_bytes: u64, got_bytes: u64 },

    /// A safetensors file ends inside its header.
    #[error("`{}` ends inside its header: expected at least {expected_bytes} bytes, found {got_bytes}", path.display())]
    HeaderTruncated { path: PathBuf, expected_bytes: u64, got_bytes: u64 },

    /// A header that is not the JSON it should be.
    #[error("`{}`: header is not valid: {source}", path.display())]
    HeaderNotJson { path: PathBuf, source: serde_json::Error },

    /// One file names a tensor twice.
    #[error("`{}`: header names tensor `{tensor}` twice", path.display())]
    HeaderNamesTwice { path: PathBuf, tensor: String },

    /// A header names a kind of element that the format does not have.
    #[error("`{}`: tensor `{tensor}` has the unknown dtype `{found}`", path.display())]
    DtypeUnknown { path: PathBuf, tensor: String, found: String },

    /// A tensor starts before the one ahead of it ends, after a hole, or ends before it starts.
    #[error("`{}`: tensor `{tensor}` has offsets [{begin}, {end}], expected it to begin at {expected_begin}", path.display())]
    Offsets { path: PathBuf, tensor: String, expected_begin: u64, begin: u64, end: u64 },

    /// Shape and dtype do not make the bytes that the offsets give.
    #[error("`{}`: tensor `{tensor}` of shape {shape:?} and dtype {dtype} needs {} bytes, its offsets give {got_bytes}",
        path.display(), expected_bytes.map_or("impossibly many".into(), |n| n.to_string()))]
    TensorBytes {
        path: PathBuf,
        tensor: String,
        shape: Vec<usize>,
        dtype: Dtype,
        expected_bytes: Option<u64>,
        got_bytes: u64,
    },

    /// The file is shorter than its header says.
    #[error("`{}` is truncated: its header describes {expected_bytes} bytes, the file has {got_bytes}", path.display())]
    FileTruncated { path: PathBuf, expected_bytes: u64, got_bytes: u64 },

    /// The file is longer than its header says.
    #[error("`{}` is too long: its header describes {expected_bytes} bytes, the file has {got_bytes}", path.display())]
    FileTooLong { path: PathBuf, expected_bytes: u64, got_bytes: u64 },

    /// The index points outside its own folder.
    #[error("`{}`: tensor `{tensor}` is said to be in `{file}`, expected the name of a file in the same folder", path.display())]
    IndexFileName { path: PathBuf, tensor: String, file: String },

    /// The index names a shard that is not there.
    #[error("`{}` names the shard `{shard}`, which is not in the folder", path.display())]
    ShardMissing { path: PathBuf, shard: String },

    /// The index promises a tensor that its shard does not hold.
    #[error("`{}`: tensor `{tensor}` is said to be in `{shard}`, which does not hold it", path.display())]
    NotInShard { path: PathBuf, tensor: String, shard: String },

    /// Two shards hold the same tensor.
    #[error("tensor `{tensor}` is both in `{}` and in `{}`", first.display(), second.display())]
    InTwoShards { tensor: String, first: PathBuf, second: PathBuf },

    /// A parameter that the config asks for is not in the weights.
    #[error("`{}` has no tensor `{tensor}` (one of {missing} missing), expected by the config with shape {shape:?}", path.display())]
    TensorMissing { path: PathBuf, tensor: String, shape: Vec<usize>, missing: usize },

    /// A tensor asked for by name is not there.
    #[error("`{}` has no tensor `{tensor}`", path.display())]
    NoSuchTensor { path: PathBuf, tensor: String },

    /// A parameter has another shape than the config gives it.
    #[error("`{}`: tensor `{tensor}` must have shape {expected:?}, found {got:?}", path.display())]
    Shape { path: PathBuf, tensor: String, expected: Vec<usize>, got: Vec<usize> },

    /// A parameter is stored as something that is no plain float.
    #[error("`{}`: tensor `{tensor}` must be F32, F16 or BF16, found {got}", path.display())]
    DtypeRefused { path: PathBuf, tensor: String, got: Dtype },

    /// A number of batches that is less than none.
    #[error("`{}`: tensor `{tensor}` must count from 0, found {got}", path.display())]
    CountRefused { path: PathBuf, tensor: String, got: i64 },

    /// A number of batches to be saved that is no whole number.
    #[error("tensor `{tensor}` must be a whole number of 0 or more, given as {got}")]
    CountGiven { tensor: String, got: f32 },

    /// The weights hold trained parts that the config has no place for.
    #[error("`{}` holds trained tensors that the config has no place for: {}", path.display(), list(tensors))]
    TrainedExtras { path: PathBuf, tensors: Vec<String> },

    /// Encoder and decoder have embeddings of their own, which no T5 has.
    #[error("`{}`: tensor `{tensor}` differs from `{shared}`, but a T5 has one embedding table", path.display())]
    EmbeddingsDiffer { path: PathBuf, tensor: String, shared: String },

    /// The slice lent for a tensor has another number of elements.
    #[error("tensor `{tensor}` has {expected} elements, the slice given for it has {got}")]
    SliceLength { tensor: String, expected: usize, got: usize },

    /// Elements were asked for that a tensor does not have.
    #[error("tensor `{tensor}` has {elements} elements; {got} from {first} on were asked for")]
    PartRange { tensor: String, elements: usize, first: usize, got: usize },

    /// A storage that model folders do not have.
    #[error("a model is saved as f32 or bf16, not as `{dtype:?}`")]
    DtypeNotSaved { dtype: plimsoll_plan::dtype::Dtype },

    /// A spec that is not, and cannot become, what the config says.
    #[error("`{}` describes another model than the one to be saved", path.display())]
    SpecNotSaid { path: PathBuf },

    /// The folder has not both files of an adapter.
    #[error("`{}` has no `{file}`; it holds {}", dir.display(), list(found))]
    AdapterMissing { dir: PathBuf, file: &'static str, found: Vec<String> },

    /// A key of adapter_config.json asks for something that we do not know.
    #[error("`{}`: key `{key}` is not known here, and is set to `{found}`", path.display())]
    AdapterKey { path: PathBuf, key: String, found: String },

    /// None of the modules that an adapter is for is a module of the model.
    #[error("none of the modules {} is a matrix product of the model's blocks", list(targets))]
    NoSuchModules { targets: Vec<String> },

    /// A tensor to be written is given twice.
    #[error("tensor `{tensor}` is given twice")]
    GivenTwice { tensor: String },

    /// A name that the format keeps for itself.
    #[error("`{tensor}` cannot be the name of a tensor")]
    ReservedName { tensor: String },

    /// A tensor to be saved is no parameter of the model.
    #[error("tensor `{tensor}` is no parameter of the model to be saved")]
    NoParameter { tensor: String },

    /// A parameter of the model was not given to be saved.
    #[error("parameter `{tensor}` of the model to be saved was not given")]
    NotGiven { tensor: String },

    /// A parameter was given to be saved with another shape.
    #[error("parameter `{tensor}` must have shape {expected:?}, given with {got:?}")]
    GivenShape { tensor: String, expected: Vec<usize>, got: Vec<usize> },

    /// The folder to be written is there already.
    #[error("`{}` exists already", dir.display())]
    Exists { dir: PathBuf },

    /// The path to be written is not, or cannot be, a folder.
    #[error("`{}` cannot be a model folder: expected a folder or a free name", dir.display())]
    NotAFolder { dir: PathBuf },

    /// What was written to could not take it.
    #[error("writing tensors failed: {0}")]
    Sink(#[source] io::Error),
}

/// `:line:column`, where they are known.
fn at(place: &Option<(usize, usize)>) -> String {
    place.map_or_else(String::new, |(line, column)| format!(":{line}:{column}"))
}

/// At most eight names, then how many more.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    if names.is_empty() {
        return "nothing".into();
    }
    let mut text = names.iter().take(SHOWN).map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}
