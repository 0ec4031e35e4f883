//! The forms that checkpoints have, and what makes one whole.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::SystemTime;

use fs_err as fs;
use regex::Regex;
use serde_json::Value;

use super::{Found, torch_file};
use crate::trainer::Form;

/// The checkpoint at `path`; `None` where there is none of that form.
pub(super) fn look(form: Form, path: &Path) -> Option<Found> {
    let (step, torn) = match form {
        Form::TorchFile if path.is_file() => (number_in(path), torch_file::torn(path)),
        Form::HfTrainer if path.is_dir() => hf_trainer(path),
        Form::DeepSpeed if path.is_dir() => deepspeed(path),
        Form::Accelerate if path.is_dir() => (number_in(path), accelerate(path)),
        _ => return None,
    };
    Some(Found { path: path.to_path_buf(), form, step, written: newest(path), torn })
}

/// `checkpoint-N`: the state of the trainer, weights or adapter, optimizer and schedule. With DeepSpeed the optimizer is
/// in a `global_stepN` folder instead.
fn hf_trainer(path: &Path) -> (Option<u64>, Option<String>) {
    let state = path.join("trainer_state.json");
    let step = match fs::read_to_string(&state).map(|text| serde_json::from_str::<Value>(&text)) {
        Ok(Ok(state)) => state.get("global_step").and_then(Value::as_u64),
        Ok(Err(error)) => return (number_in(path), Some(format!("`{}`: {error}", state.display()))),
        Err(_) => return (number_in(path), Some(missing(path, "trainer_state.json"))),
    };
    let sharded = list(path).into_iter().find(|one| named(one, "global_step"));
    let torn = weights(path).or_else(|| match sharded {
        Some(inner) => shards(&inner).or_else(|| latest(path, &inner)),
        None => ["optimizer.pt", "scheduler.pt"].iter().find_map(|name| whole_torch(path, name)),
    });
    (step.or_else(|| number_in(path)), torn)
}

/// `global_stepN`, named by `latest` beside it, with as many shards of the optimizer as ranks wrote it. `latest` is
/// written last, so it names the one before where a save was cut; one that it does not name is never loaded.
fn deepspeed(path: &Path) -> (Option<u64>, Option<String>) {
    let torn = shards(path).or_else(|| latest(path.parent()?, path));
    (number_in(path), torn)
}

/// Shards of DeepSpeed: the model's states, and a run of optimizer states without a gap.
fn shards(path: &Path) -> Option<String> {
    let files = list(path);
    let of =
        |end: &str| -> Vec<&PathBuf> { files.iter().filter(|file| file.to_string_lossy().ends_with(end)).collect() };
    let (models, optimizers) = (of("model_states.pt"), of("optim_states.pt"));
    if models.is_empty() {
        return Some(missing(path, "*model_states.pt"));
    }
    let mut ranks: Vec<u64> = optimizers.iter().filter_map(|file| after(file, "zero_pp_rank_")).collect();
    ranks.sort_unstable();
    ranks.dedup();
    if let Some((expected, _)) = ranks.iter().enumerate().find(|(at, rank)| *at as u64 != **rank) {
        return Some(format!("`{}` has no optimizer state of rank {expected}", path.display()));
    }
    models.into_iter().chain(optimizers).find_map(|file| torch_file::torn(file))
}

fn latest(folder: &Path, wanted: &Path) -> Option<String> {
    let name = wanted.file_name()?.to_string_lossy().into_owned();
    match fs::read_to_string(folder.join("latest")) {
        Ok(text) if text.trim() == name => None,
        Ok(text) => Some(format!("`{}` says `{}`", folder.join("latest").display(), text.trim())),
        Err(_) => Some(format!("{}; DeepSpeed would begin at step 0 without a word", missing(folder, "latest"))),
    }
}

/// `Accelerator.save_state`: weights, optimizer, random states.
fn accelerate(path: &Path) -> Option<String> {
    weights(path).or_else(|| whole_torch(path, "optimizer.bin"))
}

/// Weights in any of the usual files; those that are there must be whole.
fn weights(path: &Path) -> Option<String> {
    let files = list(path);
    let tensors: Vec<&PathBuf> =
        files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "safetensors")).collect();
    let bins = files.iter().filter(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("pytorch_model") && name.ends_with(".bin") || name == "adapter_model.bin"
    });
    let bins: Vec<&PathBuf> = bins.collect();
    if tensors.is_empty() && bins.is_empty() {
        return Some(missing(path, "*.safetensors` or `pytorch_model*.bin"));
    }
    for index in files.iter().filter(|file| file.to_string_lossy().ends_with(".index.json")) {
        let text = fs::read_to_string(index).unwrap_or_default();
        let Ok(index) = serde_json::from_str::<Value>(&text) else {
            return Some(format!("`{}` is no JSON", index.display()));
        };
        let names = index.get("weight_map").and_then(Value::as_object).into_iter().flatten();
        if let Some((_, lacks)) = names.into_iter().find(|(_, file)| !path.join(file.as_str().unwrap_or("")).is_file())
        {
            return Some(missing(path, lacks.as_str().unwrap_or("a shard")));
        }
    }
    tensors
        .into_iter()
        .find_map(|file| safetensors(file))
        .or_else(|| bins.into_iter().find_map(|f| torch_file::torn(f)))
}

/// A safetensors file ends where its header says.
fn safetensors(path: &Path) -> Option<String> {
    const LONGEST: u64 = 100 << 20;
    let read = || -> std::io::Result<Option<String>> {
        let mut file = fs::File::open(path)?;
        let length = file.metadata()?.len();
        let mut eight = [0u8; 8];
        if length < 8 {
            return Ok(Some("is cut".to_string()));
        }
        file.read_exact(&mut eight)?;
        let header = u64::from_le_bytes(eight);
        if header > LONGEST || header + 8 > length {
            return Ok(Some("is cut: its header lies outside of it".to_string()));
        }
        let mut text = vec![0u8; header as usize];
        file.read_exact(&mut text)?;
        let Ok(header_json) = serde_json::from_slice::<Value>(&text) else {
            return Ok(Some("has a header that is no JSON".to_string()));
        };
        let ends = header_json
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(_, tensor)| tensor.get("data_offsets")?.get(1)?.as_u64());
        let expected = ends.max().unwrap_or(0).saturating_add(8 + header);
        Ok((expected != length).then(|| format!("should be {expected} bytes long and is {length}")))
    };
    match read() {
        Ok(None) => None,
        Ok(Some(problem)) => Some(format!("`{}` {problem}", path.display())),
        Err(error) => Some(error.to_string()),
    }
}

fn whole_torch(folder: &Path, name: &str) -> Option<String> {
    let path = folder.join(name);
    if path.is_file() { torch_file::torn(&path) } else { Some(missing(folder, name)) }
}

fn missing(folder: &Path, name: &str) -> String {
    format!("`{}` has no `{name}`", folder.display())
}

fn list(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.sort();
    found
}

fn named(path: &Path, start: &str) -> bool {
    path.is_dir() && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start))
}

/// The number behind `mark` in a file's name.
fn after(path: &Path, mark: &str) -> Option<u64> {
    let name = path.file_name()?.to_string_lossy().into_owned();
    let rest = &name[name.find(mark)? + mark.len()..];
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The step in a name: the number behind `step`, or the last whole number that is no epoch's and no figure's
/// (`epoch=3-val_mel=0.51` has none).
fn number_in(path: &Path) -> Option<u64> {
    let by_word = ["step=", "step-", "step_", "step"].iter().find_map(|word| after(path, word));
    by_word.or_else(|| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        let stem = [".ckpt", ".pth", ".pt", ".bin"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
        NUMBER.captures_iter(stem).filter_map(|found| found.name("whole")).last()?.as_str().parse().ok()
    })
}

/// Numbers, those of epochs and figures apart.
static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
    let text = r"(?i:epoch|(?:\b|_)(?:ep|version|v))[ =_-]?\d+(?:\.\d+)?|\d+\.\d+|\w+=\d+(?:\.\d+)?|(?P<whole>\d+)";
    Regex::new(text).expect("a pattern that is a constant")
});

/// When the newest file of it was written.
fn newest(path: &Path) -> SystemTime {
    let of = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    if path.is_file() { of(path) } else { list(path).iter().map(|file| of(file)).max().unwrap_or_else(|| of(path)) }
}
