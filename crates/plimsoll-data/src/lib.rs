//! The bytes of the next batch: pairs from JSONL and Parquet, shuffled, tokenised, resumable; and text scores.
//!
//! Files are opened once for a checking, indexing pass ([`Sources`]); then an [`Order`] says which row comes when, and a
//! [`Loader`]'s threads read and tokenise ahead of the step. Invariant: memory depends on block, window, row and batch
//! sizes, never on the number of rows beyond 28 bytes a block; the stream is a pure function of files, seed and
//! [`Cursor`]. It knows no devices and no engine.

mod columns;
mod cursor;
mod error;
mod evaluate;
mod heap;
mod jsonl;
mod jsonl_row;
mod layout;
mod lengths;
mod loader;
mod order;
mod pages;
mod parquet_file;
mod ring;
pub mod score;
mod sources;
mod tokenizer;
mod window;

pub use columns::{ChosenColumns, Columns};
pub use cursor::Cursor;
pub use error::DataError;
pub use evaluate::{EvalBatches, RowTexts, eval_batches};
pub use heap::{LoadFacts, LoaderHeap, TOKENIZER_BYTES_PER_TEXT_BYTE, loader_heap};
pub use layout::{ColumnPages, DataFacts, MAX_ROW_BYTES};
pub use lengths::{Lengths, SAMPLE_ROWS, suggest_lengths};
pub use loader::{BatchFacts, LOADER_STACK_BYTES, Loader, LoaderSettings, ThreadHook};
pub use order::{Order, WINDOW_BLOCKS};
pub use sources::Sources;
pub use tokenizer::{TEXT_BYTES_PER_TOKEN, TextTokenizer};
