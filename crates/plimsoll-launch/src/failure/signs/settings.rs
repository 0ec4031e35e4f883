//! What a trainer refuses: arguments, settings, checkpoints, modules that are not there.

use super::super::kind::FailureKind;
use super::{Sign, is_raised};

/// Programs that trainers start by name.
const PROGRAMS: [&str; 9] = ["numactl", "ninja", "nvcc", "g++", "gcc", "mpirun", "espeak-ng", "ffmpeg", "git"];

/// Reads a line about a refusal.
pub(super) fn read(text: &str) -> Option<Sign> {
    checkpoint(text).or_else(|| missing(text)).or_else(|| setting(text))
}

fn checkpoint(text: &str) -> Option<Sign> {
    let has = |mark: &str| text.contains(mark);
    let broken = has("PytorchStreamReader failed")
        || has("failed finding central directory")
        || has("SafetensorError")
        || has("Error while deserializing header")
        || has("UnpicklingError")
        || has("used a DP world size of")
        || has("Error(s) in loading state_dict")
        || has("size mismatch for ")
        || text == "EOFError"
        || has("EOFError: Ran out of input");
    let absent = has("Can't find a valid checkpoint at")
        || has("No valid checkpoint found in output directory")
        || has("Checkpoint file not found")
        || (is_raised(text)
            && has("No such file or directory: '")
            && [".ckpt'", ".pt'", ".pth'"].iter().any(|e| has(e)))
        || has("Checkpoint directory does not exist");
    (broken || absent).then(|| Sign::root(FailureKind::BadCheckpoint)).flatten()
}

fn missing(text: &str) -> Option<Sign> {
    let has = |mark: &str| text.contains(mark);
    let of = |name: &str| Sign::root(FailureKind::MissingModule { name: name.to_string() });
    if text.starts_with("ModuleNotFoundError: ") || text.starts_with("ImportError: ") {
        if let Some((_, rest)) = text.split_once("No module named ") {
            return of(rest.trim_matches(['\'', '"', ' ', '.']));
        }
        let named = quoted(text).filter(|name| !name.contains(' ') && !name.is_empty());
        return named.map_or_else(
            || Sign::likely(FailureKind::MissingModule { name: "a Python module".into() }),
            |name| Sign::likely(FailureKind::MissingModule { name: name.to_string() }),
        );
    }
    if has("Ninja is required to load C++ extensions") {
        return of("ninja");
    }
    if let Some((_, rest)) = text.split_once("Unable to JIT load the ") {
        let op = rest.split(" op").next().unwrap_or(rest).trim();
        return Sign::root(FailureKind::MissingModule { name: format!("what DeepSpeed's op {op} is built from") });
    }
    if has("Found no NVIDIA driver on your system") {
        return of("the NVIDIA driver");
    }
    if has("Torch not compiled with CUDA enabled") {
        return of("a torch that is built with CUDA");
    }
    if has("CUDA_HOME environment variable is not set") || has("CUDA_HOME does not exist") {
        return of("the CUDA toolkit (nvcc)");
    }
    if let Some(name) = text.strip_suffix(": command not found").or_else(|| text.strip_suffix(": not found")) {
        let name = name.rsplit([' ', ':']).next().unwrap_or(name).trim();
        return if name.is_empty() { None } else { of(name) };
    }
    let absent = text.split_once("No such file or directory: '").and_then(|(_, rest)| rest.split('\'').next());
    let program = absent.filter(|name| is_raised(text) && PROGRAMS.contains(name));
    program.and_then(of)
}

fn setting(text: &str) -> Option<Sign> {
    let has = |mark: &str| text.contains(mark);
    let parser = has("error: unrecognized arguments:")
        || has("error: argument ")
        || has("error: the following arguments are required")
        || has("error: no such option")
        || has("Error: No such option")
        || has("error: Validation failed:")
        || has("error: Parser key \"")
        || has("error: Key \"")
        || has("are not used by the HfArgumentParser")
        || has("can't open file '");
    let refused = has("is not supported for manual optimization")
        || has("MisconfigurationException:")
        || has("DeepSpeedConfigError")
        || has("Check batch related parameters")
        || has("zero_force_ds_cpu_optimizer")
        || has("for DeepSpeedConfig")
        || has("for DeepSpeedZeroConfig")
        || has("Please correct the following DeepSpeed config values");
    let keyword = has("got an unexpected keyword argument")
        && ["TrainingArguments", "Trainer.__init__", "LoraConfig", "Accelerator"].iter().any(|name| has(name));
    let option = is_raised(text)
        && (has("requires `load_best_model_at_end`")
            || has("--load_best_model_at_end requires")
            || has("mixed precision"));
    (parser || refused || keyword || option).then(|| Sign::root(FailureKind::BadSetting)).flatten()
}

fn quoted(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once(['\'', '`', '"'])?;
    rest.split(['\'', '`', '"']).next()
}
