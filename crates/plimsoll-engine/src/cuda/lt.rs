//! Matrix products by cuBLASLt. Each shape is looked up once: descriptors and the algorithm are kept, the library's guess
//! or what was found by trial (`tuned`).
//!
//! Our matrices are row-major; cuBLASLt's are column-major. So the product is asked for transposed: out' = b' a'.

use std::collections::HashMap;
use std::ffi::c_void;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{self, cublasLtMatmulDescAttributes_t as Attribute};
use plimsoll_plan::dtype::Dtype;

use super::card::{Address, Card};
use super::error::CudaError;
use super::tuned::{Algorithm, Tuned};

/// Number type of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Number {
    F32,
    Bf16,
    F16,
}

impl Number {
    /// Bytes of one.
    pub fn bytes(self) -> usize {
        if self == Number::F32 { 4 } else { 2 }
    }

    /// As the kernels call it.
    pub fn name(self) -> &'static str {
        match self {
            Number::F32 => "float",
            Number::Bf16 => "bf16",
            Number::F16 => "f16",
        }
    }

    /// The type of a plain form.
    pub fn of(dtype: Dtype) -> Number {
        match dtype {
            Dtype::Bf16 => Number::Bf16,
            Dtype::F16 => Number::F16,
            Dtype::F32 | Dtype::Int8 | Dtype::Nf4 => Number::F32,
        }
    }

    fn data_type(self) -> sys::cudaDataType {
        match self {
            Number::F32 => sys::cudaDataType::CUDA_R_32F,
            Number::Bf16 => sys::cudaDataType::CUDA_R_16BF,
            Number::F16 => sys::cudaDataType::CUDA_R_16F,
        }
    }
}

/// A matrix on the card, row-major with rows `stride` long; `transposed`: what is stored is its transpose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub at: Address,
    pub stride: usize,
    pub transposed: bool,
}

/// Where a product goes: `out = alpha * a b + beta * out + bias`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Into {
    pub at: Address,
    pub stride: usize,
    pub number: Number,
    pub alpha: f32,
    pub add: bool,
    /// One number a column, of the output's type.
    pub bias: Option<Address>,
}

/// Products of one shape, as many as `count`: numbers from one's operand to the next one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Each {
    pub count: usize,
    pub a: usize,
    pub b: usize,
    pub out: usize,
}

impl Each {
    /// A single product.
    pub const ONE: Each = Each { count: 1, a: 0, b: 0, out: 0 };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    size: (usize, usize, usize),
    a: (usize, bool),
    b: (usize, bool),
    out: usize,
    number: Number,
    out_number: Number,
    bias: bool,
    add: bool,
    each: Each,
    /// Trailing zero bits of the addresses of a, b and out, up to 256 bytes.
    aligned: [u32; 3],
}

struct Made {
    desc: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    algo: sys::cublasLtMatmulAlgo_t,
    /// What else the library would take, best guess first.
    others: Vec<sys::cublasLtMatmulAlgo_t>,
    /// Operands that it was last asked for with.
    asked: (Operand, Operand, Into),
}

/// Algorithms that are tried.
const CANDIDATES: usize = 8;
/// Runs of each, of which the best counts.
const TRIES: usize = 3;
/// How much faster than the library's guess another must be.
const WORTH: f32 = 0.98;

/// The library and what was looked up.
pub(crate) struct Products {
    handle: sys::cublasLtHandle_t,
    made: HashMap<Key, Made>,
    workspace: Address,
    workspace_bytes: usize,
    /// Products of f32 may use TF32.
    tf32: bool,
}

impl std::fmt::Debug for Products {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Products").field("shapes", &self.made.len()).finish()
    }
}

// SAFETY: the handle is used by one thread at a time.
unsafe impl Send for Products {}

impl Products {
    /// Opens the library. `lend` gives it its workspace.
    pub fn open(tf32: bool) -> Result<Products, CudaError> {
        let handle = result::create_handle()
            .map_err(|e| CudaError::Driver { call: "cublasLtCreate", reason: format!("{e:?}") })?;
        Ok(Products { handle, made: HashMap::new(), workspace: 0, workspace_bytes: 0, tf32 })
    }

    /// Gives the library the planned workspace.
    pub fn lend(&mut self, at: Address, bytes: usize) {
        (self.workspace, self.workspace_bytes) = (at, bytes);
    }

    /// `out[m, n] = alpha * a[m, k] b[k, n] + beta * out`, all operands of one number type; as many times as `each` says.
    pub fn product(
        &mut self,
        card: &Card,
        number: Number,
        size: (usize, usize, usize),
        (a, b, into): (Operand, Operand, Into),
        each: Each,
    ) -> Result<(), CudaError> {
        let refused = |e: CublasError| refusal(number, size, into, e);
        self.prepare(number, size, (a, b, into), each)?;
        let Some(made) = self.made.get(&key(number, size, (a, b, into), each)) else { return Ok(()) };
        if let Some(bias) = into.bias {
            set(made.desc, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias).map_err(refused)?;
        }
        let (alpha, beta) = (into.alpha, if into.add { 1.0f32 } else { 0.0 });
        let pointer = |at: Address| at as *mut c_void;
        // SAFETY: descriptors made for exactly these shapes; addresses of the arena, which hold so many numbers.
        unsafe {
            result::matmul(
                self.handle,
                made.desc,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                pointer(b.at),
                made.b,
                pointer(a.at),
                made.a,
                pointer(into.at),
                made.out,
                pointer(into.at),
                made.out,
                &made.algo,
                pointer(self.workspace),
                self.workspace_bytes,
                card.stream.cast(),
            )
        }
        .map_err(refused)
    }

    /// Looks a product up, so that doing it needs nothing more.
    pub fn prepare(
        &mut self,
        number: Number,
        size: (usize, usize, usize),
        (a, b, into): (Operand, Operand, Into),
        each: Each,
    ) -> Result<(), CudaError> {
        let key = key(number, size, (a, b, into), each);
        if size.0 == 0 || size.1 == 0 || each.count == 0 {
            return Ok(());
        }
        match self.made.get_mut(&key) {
            Some(made) => made.asked = (a, b, into),
            None => {
                let made = self.make(&key, (a, b, into)).map_err(|e| refusal(number, size, into, e))?;
                self.made.insert(key, made);
            }
        }
        Ok(())
    }

    /// Finds the fastest algorithm of every product that was prepared with addresses of the arena, whose content is lost.
    /// `of` names card and driver.
    pub fn tune(&mut self, card: &Card, tuned: &mut Tuned, of: &str) -> Result<(), CudaError> {
        if !tuned.keeps() {
            return Ok(());
        }
        // SAFETY: no arguments.
        let library = unsafe { sys::cublasLtGetVersion() };
        let mut keys: Vec<Key> = self.made.keys().copied().collect();
        keys.sort_by_key(|key| format!("{key:?}"));
        for key in keys {
            let tf32 = if self.tf32 { ",tf32" } else { "" };
            let name = format!("{of},{library},{}{tf32},{}", self.workspace_bytes, key.name());
            let found = match tuned.get(&name).filter(|algorithm| self.can(&key, *algorithm)) {
                Some(found) => found,
                None => {
                    let fastest = self.fastest(card, &key)?;
                    if !tuned.keep(name, fastest) {
                        return Ok(());
                    }
                    fastest
                }
            };
            if let Some(made) = self.made.get_mut(&key) {
                made.algo.data = found;
            }
        }
        Ok(())
    }

    /// Whether the library can do a product so, with the workspace that there is.
    fn can(&self, key: &Key, algorithm: Algorithm) -> bool {
        let Some(made) = self.made.get(key) else { return false };
        let algo = sys::cublasLtMatmulAlgo_t { data: algorithm };
        let mut result = std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
        // SAFETY: descriptors made for exactly this shape; a result to write to.
        let checked = unsafe {
            sys::cublasLtMatmulAlgoCheck(
                self.handle,
                made.desc,
                made.b,
                made.a,
                made.out,
                made.out,
                &algo,
                result.as_mut_ptr(),
            )
        };
        // SAFETY: zeroed at first, which is a value of every field.
        let needed = unsafe { result.assume_init() }.workspaceSize;
        checked == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS && needed <= self.workspace_bytes
    }

    /// Times all candidates.
    fn fastest(&mut self, card: &Card, key: &Key) -> Result<Algorithm, CudaError> {
        let Some(made) = self.made.get(key) else { return Ok([0; 8]) };
        let ((a, b, into), guess, others) = (made.asked, made.algo, made.others.clone());
        let mut best = (f32::INFINITY, guess);
        for (nth, algo) in std::iter::once(guess).chain(others).enumerate() {
            if let Some(made) = self.made.get_mut(key) {
                made.algo = algo;
            }
            let mut least = f32::INFINITY;
            for _ in 0..=TRIES {
                let clock = card.clock()?;
                // A candidate that is refused is no candidate.
                if self.product(card, key.number, key.size, (a, b, into), key.each).is_err() {
                    least = f32::INFINITY;
                    break;
                }
                least = least.min(clock.seconds()?);
            }
            if least < best.0 * if nth == 0 { 1.0 } else { WORTH } {
                best = (least, algo);
            }
        }
        if let Some(made) = self.made.get_mut(key) {
            made.algo = best.1;
        }
        Ok(best.1.data)
    }

    fn make(&self, key: &Key, asked: (Operand, Operand, Into)) -> Result<Made, CublasError> {
        let (m, n, k) = key.size;
        let compute = match (key.number, self.tf32) {
            (Number::F32, true) => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        let desc = result::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F)?;
        // cublasOperation_t: 0 as it is, 1 transposed.
        let op = i32::from;
        set(desc, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &op(key.b.1))?;
        set(desc, Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &op(key.a.1))?;
        if key.bias {
            set(desc, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS)?;
        }
        // A row-major matrix of r rows and c columns is a column-major one of c rows and r columns.
        let layout = |number: Number, (rows, cols): (usize, usize), stride: usize| {
            result::create_matrix_layout(number.data_type(), cols as u64, rows as u64, stride as i64)
        };
        let stored = |rows: usize, cols: usize, transposed: bool| if transposed { (cols, rows) } else { (rows, cols) };
        let a = layout(key.number, stored(m, k, key.a.1), key.a.0)?;
        let b = layout(key.number, stored(k, n, key.b.1), key.b.0)?;
        let out = layout(key.out_number, (m, n), key.out)?;
        if key.each.count > 1 {
            type Layout = sys::cublasLtMatrixLayoutAttribute_t;
            let count = key.each.count as i32;
            for (layout, apart) in [(a, key.each.a), (b, key.each.b), (out, key.each.out)] {
                let apart = apart as i64;
                // SAFETY: the layout was just made; the values have so many bytes.
                unsafe {
                    let batch = (&raw const count).cast();
                    result::set_matrix_layout_attribute(layout, Layout::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batch, 4)?;
                    let which = Layout::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
                    result::set_matrix_layout_attribute(layout, which, (&raw const apart).cast(), 8)?;
                }
            }
        }
        let preference = result::create_matmul_pref()?;
        type Preference = sys::cublasLtMatmulPreferenceAttributes_t;
        let prefer = |which, value: *const c_void, bytes: usize| {
            // SAFETY: the preference was just made, and the value has so many bytes.
            unsafe { result::set_matmul_pref_attribute(preference, which, value, bytes) }
        };
        let bytes = self.workspace_bytes as u64;
        prefer(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const bytes).cast(), 8)?;
        for (which, shift) in [
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.aligned[1]),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.aligned[0]),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.aligned[2]),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.aligned[2]),
        ] {
            let least = 1u32 << shift;
            prefer(which, (&raw const least).cast(), 4)?;
        }
        // SAFETY: results that zeros are values of.
        let mut found: [sys::cublasLtMatmulHeuristicResult_t; CANDIDATES] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        // SAFETY: everything was made above; there is room for so many results.
        let asked_for = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                desc,
                b,
                a,
                out,
                out,
                preference,
                CANDIDATES as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        // SAFETY: made above, used no more.
        unsafe { result::destroy_matmul_pref(preference)? };
        asked_for.result()?;
        let good =
            |result: &&sys::cublasLtMatmulHeuristicResult_t| result.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS;
        let mut found = found[..count.max(0) as usize].iter().filter(good).map(|result| result.algo);
        let none = CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED);
        let algo = found.next().ok_or(none)?;
        Ok(Made { desc, a, b, out, algo, others: found.collect(), asked })
    }
}

impl Key {
    /// One word.
    fn name(&self) -> String {
        format!("{self:?}").chars().filter(|c| !c.is_whitespace()).collect()
    }
}

fn key(number: Number, size: (usize, usize, usize), (a, b, into): (Operand, Operand, Into), each: Each) -> Key {
    let bytes = number.bytes();
    let places = [(a.at, each.a * bytes), (b.at, each.b * bytes), (into.at, each.out * into.number.bytes())];
    Key {
        size,
        a: (a.stride, a.transposed),
        b: (b.stride, b.transposed),
        out: into.stride,
        number,
        out_number: into.number,
        bias: into.bias.is_some(),
        add: into.add,
        each,
        aligned: places.map(|(at, apart)| (at | apart as u64).trailing_zeros().min(8)),
    }
}

fn refusal(number: Number, (m, n, k): (usize, usize, usize), into: Into, e: CublasError) -> CudaError {
    let types = format!("{number:?} to {:?}", into.number);
    CudaError::Product { m, n, k, types, reason: format!("{e:?}") }
}

fn set<T>(desc: sys::cublasLtMatmulDesc_t, which: Attribute, value: &T) -> Result<(), CublasError> {
    // SAFETY: the descriptor is ours; the value has the size of its type.
    unsafe { result::set_matmul_desc_attribute(desc, which, (&raw const *value).cast(), size_of::<T>()) }
}

impl Drop for Products {
    fn drop(&mut self) {
        // SAFETY: all ours, and nothing runs any more.
        unsafe {
            for made in self.made.values() {
                let _ = result::destroy_matmul_desc(made.desc);
                [made.a, made.b, made.out].into_iter().for_each(|layout| {
                    let _ = result::destroy_matrix_layout(layout);
                });
            }
            let _ = result::destroy_handle(self.handle);
        }
    }
}
