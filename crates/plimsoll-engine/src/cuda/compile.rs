//! Kernel files become machine code for one architecture: by NVRTC at the first start, from a folder ever after.
//!
//! Machine code, not PTX, is kept: the driver would compile PTX again in every process. A file's name holds a hash of
//! everything that its content depends on (source, headers, options, compiler and driver), so a stale one is never read.

use std::ffi::{CString, c_char};
use std::path::Path;

use cudarc::nvrtc::result::{NvrtcError, compile_program, destroy_program, get_program_log};
use cudarc::nvrtc::sys;

use super::error::CudaError;
use super::kernels::{HEADERS, KernelFile};

/// What a kernel file is compiled for.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// `sm_90`.
    pub arch: String,
    /// Version of the driver's interface.
    pub driver: i32,
    /// `-D...`: the precision.
    pub defines: Vec<String>,
}

fn said<T>(call: &'static str, result: Result<T, NvrtcError>) -> Result<T, CudaError> {
    result.map_err(|e| CudaError::Compiler { call, reason: format!("{e:?}") })
}

/// Machine code of one kernel file.
pub(crate) fn cubin(file: &KernelFile, target: &Target, cache: Option<&Path>) -> Result<Vec<u8>, CudaError> {
    let kept = cache.map(|folder| folder.join(cached_name(file, target)));
    if let Some(code) =
        kept.as_ref().and_then(|path| fs_err::read(path).ok()).filter(|code| code.starts_with(b"\x7fELF"))
    {
        return Ok(code);
    }
    let code = compile(file, target)?;
    // A cache that cannot be written costs time, not the run.
    if let Some(path) = kept {
        keep(&path, &code);
    }
    Ok(code)
}

fn cached_name(file: &KernelFile, target: &Target) -> String {
    let mut hash = Fnv::default();
    let (mut major, mut minor) = (0, 0);
    // SAFETY: two numbers to write to.
    let _ = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    hash.add(file.source.as_bytes());
    HEADERS.iter().for_each(|header| hash.add(header.source.as_bytes()));
    options(target).iter().for_each(|option| hash.add(option.as_bytes()));
    hash.add(format!("{} {major}.{minor}", target.driver).as_bytes());
    format!("{}-{}-{:032x}.cubin", file.name.trim_end_matches(".cu"), target.arch, hash.0)
}

/// Written beside its place, then moved there: another process never reads half a file.
fn keep(path: &Path, code: &[u8]) {
    let Some(folder) = path.parent() else { return };
    let beside = path.with_extension(format!("{}.part", std::process::id()));
    let written = fs_err::create_dir_all(folder).and_then(|()| fs_err::write(&beside, code));
    if written.and_then(|()| fs_err::rename(&beside, path)).is_err() {
        let _ = fs_err::remove_file(&beside);
    }
}

fn options(target: &Target) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture={}", target.arch),
        "--std=c++17".into(),
        "--fmad=true".into(),
        "-default-device".into(),
    ];
    options.extend(target.defines.iter().cloned());
    options
}

fn compile(file: &KernelFile, target: &Target) -> Result<Vec<u8>, CudaError> {
    let text = |s: &str| CString::new(s).expect("kernel files hold no zero byte");
    let (source, name) = (text(file.source), text(file.name));
    let headers: Vec<(CString, CString)> = HEADERS.iter().map(|h| (text(h.source), text(h.name))).collect();
    let sources: Vec<*const c_char> = headers.iter().map(|h| h.0.as_ptr()).collect();
    let names: Vec<*const c_char> = headers.iter().map(|h| h.1.as_ptr()).collect();
    let mut program = std::ptr::null_mut();
    // SAFETY: terminated strings that outlive the call; the program is destroyed below.
    let made = unsafe {
        sys::nvrtcCreateProgram(
            &mut program,
            source.as_ptr(),
            name.as_ptr(),
            headers.len() as i32,
            sources.as_ptr(),
            names.as_ptr(),
        )
    };
    said("nvrtcCreateProgram", made.result())?;
    // SAFETY: the program was just made.
    let code = unsafe { compile_program(program, &options(target)) }
        .map_err(|_| {
            // SAFETY: as above.
            let log = unsafe { get_program_log(program) }.unwrap_or_default();
            let log = log.iter().map(|c| *c as u8 as char).collect::<String>();
            let log = log.trim_end_matches('\0').trim().to_string();
            CudaError::Compile { file: file.name, arch: target.arch.clone(), log }
        })
        .and_then(|()| machine_code(program));
    // SAFETY: nobody uses it any more.
    let _ = unsafe { destroy_program(program) };
    code
}

fn machine_code(program: sys::nvrtcProgram) -> Result<Vec<u8>, CudaError> {
    let mut size = 0;
    // SAFETY: a compiled program, a number to write to.
    said("nvrtcGetCUBINSize", unsafe { sys::nvrtcGetCUBINSize(program, &mut size) }.result())?;
    let mut code = vec![0u8; size];
    // SAFETY: as many bytes as it asked for.
    said("nvrtcGetCUBIN", unsafe { sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()) }.result())?;
    Ok(code)
}

/// FNV-1a, 128 bits: the same on every machine and in every build.
struct Fnv(u128);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        // The length goes in too, so that text cannot move from one part to the next unnoticed.
        for byte in (bytes.len() as u64).to_le_bytes().iter().chain(bytes) {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a compiler it says so and passes. All architectures with `PLIMSOLL_ALL_ARCHS=1`: that takes minutes.
    #[test]
    fn every_kernel_file_compiles() {
        if let Err(e) = super::super::find::open_compiler() {
            println!("skipped: {e}");
            return;
        }
        let all = std::env::var_os("PLIMSOLL_ALL_ARCHS").is_some();
        let archs = if all {
            &["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100"][..]
        } else {
            &["sm_90", "sm_90a"]
        };
        for file in super::super::kernels::FILES {
            for arch in archs.iter().filter(|arch| **arch != "sm_90a" || file.name.starts_with("attention_mma")) {
                for act in ["float", "bf16", "f16"] {
                    let defines = vec![format!("-DACT={act}"), "-DWGT=float".into()];
                    let target = Target { arch: arch.to_string(), driver: 0, defines };
                    if let Err(e) = compile(file, &target) {
                        panic!("{act}: {e}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_hash_is_fnv_and_knows_where_parts_end() {
        let of = |parts: &[&str]| {
            let mut hash = Fnv::default();
            parts.iter().for_each(|part| hash.add(part.as_bytes()));
            hash.0
        };
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
    }
}
