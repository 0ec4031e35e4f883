//! The bytes of the next batch: pairs, chats and texts from JSONL, CSV, plain text, Parquet and Arrow, shuffled, tokenised,
//! resumable; and text scores.
//!
//! Files are opened once for a checking, indexing pass ([`Sources`]); then an [`Order`] says which row comes when, and a
//! [`Loader`]'s threads read and tokenise ahead of the step. Invariant: memory depends on block, window, row and batch
//! sizes, never on the number of rows beyond 24 bytes a block; the stream is a pure function of files, seed and
//! [`Cursor`]. Numbers in time are [`series`]. [`prepare`] tokenises once and writes shards, which open as [`Sources`] too. It knows no devices and no engine.

mod arrow_buffer;
mod arrow_cells;
mod arrow_file;
mod arrow_messages;
mod arrow_places;
mod arrow_shape;
mod assemble;
mod block_cache;
mod block_shelf;
mod buckets;
mod ceiling;
mod chat_template;
mod columns;
mod count;
mod crew;
mod cursor;
mod data_file;
mod date;
mod dealer;
mod document;
mod documents;
mod effort;
mod error;
mod evaluate;
mod form;
mod generation_tags;
mod heap;
mod input;
mod inspect;
mod jsonl_row;
mod kept_index;
mod kind;
mod layout;
mod lengths;
mod loader;
mod memo;
mod messages;
mod mixture;
mod order;
mod oversized;
mod pack;
mod packed;
mod page_cache;
mod page_table;
mod pages;
mod pair_groups;
mod paired;
mod pairs;
mod parquet_cells;
mod parquet_file;
mod patience;
mod patterns;
mod per_process;
mod prepared;
mod recipe;
mod remote;
mod ring;
mod row_text;
mod rows;
pub mod score;
mod seams;
pub mod series;
mod share;
mod sources;
mod template_json;
mod tokenizer;
mod tube;
mod turns;
mod visits;
mod vocabulary;
mod window;
mod zstd_frames;

pub use block_cache::{LEAST_CACHE, cache_ceiling};
pub use ceiling::{LEAST_CEILING, LOADER_CEILING, stacks, threads_within};
pub use chat_template::ChatTemplate;
pub use columns::{ChosenColumns, Columns, Style};
pub use count::{PassCount, count_samples};
pub use cursor::Cursor;
pub use date::Date;
pub use effort::{hard_texts, tokenizer_effort};
pub use error::DataError;
pub use evaluate::{Conversation, EvalBatches, RowTexts, eval_batches};
pub use heap::{LoadFacts, LoaderHeap, TOKENIZER_BYTES_PER_TEXT_BYTE, loader_heap};
pub use inspect::{Histogram, Inspection, Mixing, Repeats, inspect};
pub use kind::Kind;
pub use layout::{ColumnPages, DataFacts, Largest, MAX_ROW_BYTES};
pub use lengths::{Lengths, SAMPLE_ROWS, suggest_length, suggest_lengths};
pub use loader::{BatchFacts, LOADER_STACK_BYTES, Loader, LoaderSettings, Ranks, ThreadHook};
pub use memo::Memo;
pub use messages::Message;
pub use mixture::{DataSet, Set, Weight};
pub use order::{Order, WINDOW_BLOCKS};
pub use pack::documents_of;
pub use patience::GiveUp;
pub use per_process::PerProcess;
pub use prepared::{
    PrepareSettings, PreparedLengths, PreparedReport, SHARD_BYTES, estimate_prepared, forget_prepared, is_prepared,
    prepare, prepared_kind, unfinished, verify_prepared,
};
pub use recipe::{Long, Recipe};
pub use remote::{RemoteFault, RemoteFile, RemoteFiles, expand_url, refuse_secrets, remote_url};
pub use sources::{Elsewhere, Opening, Sources};
pub use tokenizer::{TEXT_BYTES_PER_TOKEN, TextTokenizer};
pub use vocabulary::{
    Characters, Dropped, Fed, Phase, Pruned, TokenizerFiles, Vocabulary, VocabularyModel, VocabularySettings,
    train_tokenizer,
};
