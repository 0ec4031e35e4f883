//! The kernel files, and their functions as they are asked for: a module is compiled or read, and loaded, when the first
//! of its functions is. Before the arena is taken every tape is rehearsed, so nothing is loaded in the middle of a step.

use std::collections::HashMap;
use std::ffi::CString;
use std::path::PathBuf;

use cudarc::driver::result;
use cudarc::driver::sys::{CUfunction, CUfunction_attribute_enum as Attribute, CUmodule};

use super::card::{Card, said};
use super::compile::{Target, cubin};
use super::error::CudaError;
use super::lt::Number;

/// One file of `kernels/`.
#[derive(Debug)]
pub(crate) struct KernelFile {
    pub name: &'static str,
    pub source: &'static str,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(KernelFile { name: $name, source: include_str!(concat!("../../kernels/", $name)) }),*]
    };
}

/// What the others include.
pub(crate) const HEADERS: &[KernelFile] = files![
    "adam.cuh",
    "adamw.cuh",
    "attention.cuh",
    "attention_mma.cuh",
    "attention_tile.cuh",
    "columns.cuh",
    "curve.cuh",
    "lstm.cuh",
    "mma.cuh",
    "number.cuh",
    "philox.cuh",
    "quant.cuh",
    "reduce.cuh",
    "step.cuh",
    "update.cuh",
];

/// The files that are compiled.
pub(crate) const FILES: &[KernelFile] = files![
    "adafactor.cu",
    "adamw.cu",
    "adamw16bit.cu",
    "adamw8bit.cu",
    "additive_pool.cu",
    "attention.cu",
    "attention_mma_128.cu",
    "attention_mma_64.cu",
    "attention_mma_any_128.cu",
    "attention_mma_any_64.cu",
    "attention_scores.cu",
    "batch_norm.cu",
    "bias.cu",
    "cache.cu",
    "column_sum.cu",
    "conv.cu",
    "copy.cu",
    "dequantise.cu",
    "embed.cu",
    "gated_gelu.cu",
    "gated_silu.cu",
    "gelu.cu",
    "gelu_erf.cu",
    "gradient_norm.cu",
    "head_norm.cu",
    "layer_norm.cu",
    "lion.cu",
    "loss.cu",
    "lstm.cu",
    "lstm_walk.cu",
    "norm.cu",
    "norm_pool.cu",
    "positions.cu",
    "relu.cu",
    "residual.cu",
    "rope.cu",
    "series_loss.cu",
    "sgd.cu",
    "summary.cu",
    "windows.cu",
];

/// A function, with the number types that its file is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    pub file: &'static str,
    pub name: &'static str,
    /// Activations.
    pub act: Number,
    /// Weights.
    pub wgt: Number,
}

type ModuleKey = (&'static str, Number, Number);

/// Loaded modules and functions.
#[derive(Debug)]
pub(crate) struct Kernels {
    arch: String,
    driver: i32,
    cache: Option<PathBuf>,
    modules: HashMap<ModuleKey, CUmodule>,
    functions: HashMap<Kernel, CUfunction>,
    /// Shared memory that a function was allowed beyond the usual 48 KiB.
    allowed: HashMap<Kernel, u32>,
}

// SAFETY: handles of the driver are good in every thread.
unsafe impl Send for Kernels {}

/// Shared memory that every function may have unasked.
const USUAL_SHARED: u32 = 48 << 10;

impl Kernels {
    /// None loaded. Machine code is kept in `cache`.
    pub fn new(card: &Card, cache: Option<PathBuf>) -> Kernels {
        let (modules, functions, allowed) = Default::default();
        Kernels { arch: card.arch(), driver: card.driver(), cache, modules, functions, allowed }
    }

    /// The function, loaded now if it was not; it may use so much shared memory.
    pub fn function(&mut self, kernel: Kernel, shared: u32) -> Result<CUfunction, CudaError> {
        let function = match self.functions.get(&kernel) {
            Some(function) => *function,
            None => {
                let module = self.module((kernel.file, kernel.act, kernel.wgt))?;
                let name = CString::new(kernel.name).expect("names hold no zero byte");
                // SAFETY: a loaded module.
                let found = unsafe { result::module::get_function(module, name) };
                let function = found.map_err(|_| CudaError::NoKernel { name: kernel.name })?;
                self.functions.insert(kernel, function);
                function
            }
        };
        if shared > USUAL_SHARED && self.allowed.get(&kernel).is_none_or(|most| *most < shared) {
            let which = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: a loaded function.
            let set = unsafe { result::function::set_function_attribute(function, which, shared as i32) };
            said("cuFuncSetAttribute", set)?;
            self.allowed.insert(kernel, shared);
        }
        Ok(function)
    }

    /// Blocks of a function that a processor runs at a time.
    pub fn at_a_time(&mut self, kernel: Kernel, block: u32, shared: u32) -> Result<usize, CudaError> {
        let function = self.function(kernel, shared)?;
        // SAFETY: a loaded function.
        let blocks =
            unsafe { result::occupancy::max_active_block_per_multiprocessor(function, block as i32, shared as usize) };
        Ok(said("cuOccupancyMaxActiveBlocksPerMultiprocessor", blocks)?.max(0) as usize)
    }

    fn module(&mut self, key: ModuleKey) -> Result<CUmodule, CudaError> {
        if let Some(module) = self.modules.get(&key) {
            return Ok(*module);
        }
        let (stem, act, wgt) = key;
        let file = FILES.iter().find(|file| file.name.strip_suffix(".cu") == Some(stem));
        let file = file.ok_or(CudaError::NoKernel { name: stem })?;
        let defines = vec![format!("-DACT={}", act.name()), format!("-DWGT={}", wgt.name())];
        // Warps multiply together in machine code of this very architecture alone.
        let own = stem.starts_with("attention_mma") && self.arch == "sm_90";
        let arch = if own { "sm_90a".into() } else { self.arch.clone() };
        let target = Target { arch, driver: self.driver, defines };
        let code = cubin(file, &target, self.cache.as_deref())?;
        // SAFETY: machine code for this architecture, whole in memory.
        let module = said("cuModuleLoadData", unsafe { result::module::load_data(code.as_ptr().cast()) })?;
        self.modules.insert(key, module);
        Ok(module)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        for module in self.modules.values() {
            // SAFETY: loaded by us; the engine waited for the stream.
            let _ = unsafe { result::module::unload(*module) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_file_is_in_the_list() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
        let listed: Vec<&str> = FILES.iter().chain(HEADERS).map(|file| file.name).collect();
        for entry in fs_err::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".cu") || name.ends_with(".cuh") {
                assert!(listed.contains(&name.as_str()), "{name}");
            }
        }
    }
}
