//! Where CUDA's libraries are: toolkit folders, pip's nvidia packages, the loader's own paths.
//!
//! Found libraries are opened by their full path, once. Whoever asks the loader for them by name later gets the same:
//! it knows what is loaded by its soname.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::error::CudaError;

/// A library that is opened at run time.
struct Library {
    /// Stem: `lib{name}.so`.
    name: &'static str,
    remedy: &'static str,
}

const DRIVER: Library = Library { name: "cuda", remedy: "install the NVIDIA driver (580 or later for CUDA 13)" };
const NVRTC: Library = Library { name: "nvrtc", remedy: "`pip install nvidia-cuda-nvrtc` or install the CUDA toolkit" };
const CUBLASLT: Library =
    Library { name: "cublasLt", remedy: "`pip install nvidia-cublas` or install the CUDA toolkit" };

/// Versions that a library's name may end in, newest first.
const VERSIONS: [&str; 4] = [".13", ".12", ".1", ""];

/// Opens the driver, NVRTC and cuBLASLt.
pub(crate) fn open_libraries() -> Result<(), CudaError> {
    let folders = folders();
    [DRIVER, NVRTC, CUBLASLT].iter().try_for_each(|library| open(library, &folders))
}

/// Opens NVRTC alone.
#[cfg(test)]
pub(crate) fn open_compiler() -> Result<(), CudaError> {
    open(&NVRTC, &folders())
}

fn open(library: &Library, folders: &[PathBuf]) -> Result<(), CudaError> {
    let names = || VERSIONS.iter().map(|version| format!("lib{}.so{version}", library.name));
    // The loader's own paths (LD_LIBRARY_PATH, ld.so.cache) come first: who set them meant it.
    if names().any(|name| load(Path::new(&name))) {
        return Ok(());
    }
    let found = folders.iter().flat_map(|folder| names().map(move |name| folder.join(name)));
    if found.into_iter().any(|path| path.exists() && load(&path)) {
        return Ok(());
    }
    Err(CudaError::Missing { library: library.name, looked: folders.to_vec(), remedy: library.remedy })
}

fn load(path: &Path) -> bool {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: a terminated string. What the library does when it is opened is NVIDIA's affair; it stays open for good.
    !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }.is_null()
}

/// Folders with libraries.
fn folders() -> Vec<PathBuf> {
    let each = |root: PathBuf| ["lib64", "lib", "targets/x86_64-linux/lib"].map(|tail| root.join(tail));
    let mut all: Vec<PathBuf> = roots().into_iter().flat_map(each).filter(|folder| folder.is_dir()).collect();
    all.extend(["/usr/lib/x86_64-linux-gnu", "/usr/local/nvidia/lib64", "/usr/lib64"].map(PathBuf::from));
    all
}

/// Folders that hold a toolkit, or one of pip's packages.
fn roots() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let mut roots: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| variable(name)).collect();
    roots.push("/usr/local/cuda".into());
    roots.extend(children(Path::new("/usr/local"), |name| name.starts_with("cuda-")));
    for prefix in pythons() {
        for python in children(&prefix.join("lib"), |name| name.starts_with("python3")) {
            for packages in ["site-packages", "dist-packages"] {
                // One folder for all since CUDA 13 (`cu13`), one for each package before.
                roots.extend(children(&python.join(packages).join("nvidia"), |_| true));
            }
        }
    }
    roots.push("/usr".into());
    roots
}

/// Prefixes of the Pythons that somebody uses here: the active environment, then whatever `python3` is.
fn pythons() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(PathBuf::from).collect();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).filter(|bin| bin.join("python3").exists());
    all.extend(found.filter_map(|bin| bin.parent().map(Path::to_path_buf)));
    all.extend(["/usr/local".into(), "/usr".into()]);
    let mut seen = std::collections::HashSet::new();
    all.retain(|prefix| seen.insert(prefix.clone()));
    all
}

/// Folders in a folder, last name first: the newest version.
fn children(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = fs_err::read_dir(folder) else { return Vec::new() };
    let mut all: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(&wanted))
        .map(|entry| entry.path())
        .collect();
    all.sort();
    all.reverse();
    all
}
