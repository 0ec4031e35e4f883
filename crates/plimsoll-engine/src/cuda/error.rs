//! What can go wrong with a card: only at the start, or by a fault that ends the run.

use std::path::PathBuf;

/// Why a card cannot be used, or failed.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// A shared library is nowhere to be found.
    #[error(
        "`{library}` was not found (looked in {}); {remedy}",
        .looked.iter().map(|p| format!("`{}`", p.display())).collect::<Vec<_>>().join(", ")
    )]
    Missing {
        /// Its name without version.
        library: &'static str,
        /// Folders that were looked in, besides the loader's own.
        looked: Vec<PathBuf>,
        /// What to do about it.
        remedy: &'static str,
    },
    /// There is no card, or not so many.
    #[error("there is no card number {index}: the driver sees {count}")]
    NoCard {
        /// The one asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// The card is older than the kernels.
    #[error("`{name}` has compute capability {major}.{minor}; 7.5 (Turing) is the least")]
    TooOld {
        /// The card.
        name: String,
        /// Its capability.
        major: i32,
        /// Its capability.
        minor: i32,
    },
    /// A call of the driver failed.
    #[error("`{call}` failed on the card: {reason}")]
    Driver {
        /// Which.
        call: &'static str,
        /// The driver's words.
        reason: String,
    },
    /// A kernel does not compile.
    #[error("kernel file `{file}` does not compile for `{arch}`: {log}")]
    Compile {
        /// The file.
        file: &'static str,
        /// The architecture.
        arch: String,
        /// The compiler's words.
        log: String,
    },
    /// The compiler has another fault.
    #[error("nvrtc failed at `{call}`: {reason}")]
    Compiler {
        /// Which call.
        call: &'static str,
        /// Its words.
        reason: String,
    },
    /// A kernel that the executor launches is in no file.
    #[error("no kernel is called `{name}`")]
    NoKernel {
        /// The name.
        name: &'static str,
    },
    /// A matrix product was refused.
    #[error("cuBLASLt refuses the product {m} x {n} x {k} ({types}): {reason}")]
    Product {
        /// Rows.
        m: usize,
        /// Columns.
        n: usize,
        /// Depth.
        k: usize,
        /// Types of the operands.
        types: String,
        /// The library's words.
        reason: String,
    },
    /// The card does not give the planned memory.
    #[error("the card did not give the planned {bytes} bytes ({free} bytes are free): {reason}")]
    ArenaRefused {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes free.
        free: u64,
        /// The driver's words.
        reason: String,
    },
    /// The tape has an op that runs on the CPU only.
    #[error("`{op}` does not run on a card yet")]
    Unsupported {
        /// The op.
        op: &'static str,
    },
}
