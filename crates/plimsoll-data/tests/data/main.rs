//! What the data crate promises, on real files made here: one binary, because linking is what takes the time.

mod arrow;
mod arrow_peer;
mod chat;
mod chat_peer;
mod csv;
mod documents;
mod equality;
mod fixture;
mod jsonl;
mod kept_index;
mod lengths;
mod mixture;
#[path = "../other_folder/mod.rs"]
mod other_folder;
mod oversized;
mod packed;
mod paired;
mod parquet;
mod prepared;
mod prepared_faults;
mod pyarrow;
mod remote;
mod stream;
mod tokenizer;
mod vocabulary;
mod waiting;
mod words;
