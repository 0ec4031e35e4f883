//! What DeepSpeed compiles on first use, and whether that is done already.

use std::path::{Path, PathBuf};

use plimsoll_launch::{Knob, Settings};

/// Ops that a command needs and that are not built; `None` where nobody can say which it needs.
pub fn unbuilt(settings: &Settings, on_card: bool, env: impl Fn(&str) -> Option<String>) -> Option<Vec<String>> {
    let place = |knob| settings.get(&knob).and_then(|value| value.word());
    let mut needed = Vec::new();
    let on_processors = !on_card || env("DS_ACCELERATOR").as_deref() == Some("cpu");
    if on_processors {
        needed.push("deepspeed_shm_comm");
    }
    match place(Knob::OffloadOptimizer) {
        Some("cpu") => needed.push("cpu_adam"),
        Some("nvme") => needed.extend(["cpu_adam", "async_io"]),
        _ => {}
    }
    // On a card its optimizer decides, which is in the script.
    if needed.is_empty() {
        return None;
    }
    let built = extensions(&env).map(|folder| move |op: &str| is_built(&folder, op));
    let missing = needed.into_iter().filter(|op| built.as_ref().is_none_or(|built| !built(op)));
    Some(missing.map(str::to_string).collect())
}

/// Where torch keeps what it has compiled.
fn extensions(env: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let own = env("TORCH_EXTENSIONS_DIR").map(PathBuf::from);
    let cache =
        || env("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(PathBuf::from(env("HOME")?).join(".cache")));
    own.or_else(|| Some(cache()?.join("torch_extensions")))
}

/// Whether an op lies there, for any version of Python: `py311_cpu/cpu_adam/cpu_adam.so`.
fn is_built(folder: &Path, op: &str) -> bool {
    let library = format!("{op}.so");
    let direct = folder.join(op).join(&library).exists();
    let entries = fs_err::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    direct || entries.map(|entry| entry.path().join(op).join(&library)).any(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offloaded_needs_its_op_and_what_is_built_is_not_built_again() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().display().to_string();
        let env = |name: &str| (name == "TORCH_EXTENSIONS_DIR").then(|| root.clone());
        let offload: Settings = [(Knob::OffloadOptimizer, "cpu".into())].into();
        assert_eq!(unbuilt(&offload, true, env), Some(vec!["cpu_adam".to_string()]));
        fs_err::create_dir_all(dir.path().join("py311_cu132/cpu_adam")).unwrap();
        fs_err::write(dir.path().join("py311_cu132/cpu_adam/cpu_adam.so"), "").unwrap();
        assert_eq!(unbuilt(&offload, true, env), Some(Vec::new()));
        assert_eq!(unbuilt(&Settings::new(), true, env), None);
        assert_eq!(unbuilt(&Settings::new(), false, env), Some(vec!["deepspeed_shm_comm".to_string()]));
    }
}
