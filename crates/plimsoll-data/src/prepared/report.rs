//! What a prepared set is, for people and programs; and whether every byte of it is still as it was written.

use std::path::Path;

use serde::Serialize;

use super::manifest::{LengthsOf, Manifest};
use super::words::TokenRows;
use crate::{ChosenColumns, Columns, DataError, Kind, Opening, Sources};

/// Which lengths are served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PreparedLengths {
    /// Tokens that the set was made for.
    pub made_for: u64,
    /// Rows of which something is left out at that length.
    pub cut: u64,
    /// All lengths that it serves, in words.
    pub serves: String,
}

/// What a prepared set is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PreparedReport {
    /// What a row is.
    pub kind: Kind,
    /// Rows.
    pub rows: u64,
    /// Tokens of all rows.
    pub tokens: u64,
    /// Shards.
    pub shards: u64,
    /// Bytes on the disk.
    pub bytes: u64,
    /// Bytes of a token.
    pub word_bytes: u32,
    /// Of source and target; of documents the first alone.
    pub lengths: Vec<PreparedLengths>,
    /// Tells the tokenizer from others.
    pub tokenizer: String,
    /// Tells the chat template from others.
    pub template: Option<String>,
    /// Long texts are split.
    pub splits: bool,
    /// Names of the original files.
    pub files: Vec<String>,
    /// Bytes of text in them.
    pub text_bytes: u64,
    /// Columns of the original files.
    #[serde(skip)]
    pub columns: ChosenColumns,
    /// Tells the rows from others, as it does for the original files.
    pub fingerprint: String,
}

impl PreparedReport {
    pub(super) fn of(manifest: &Manifest) -> PreparedReport {
        let Manifest { made_by, lengths, word_bytes, origin, shards, .. } = manifest;
        let sides = if made_by.kind == Kind::Pairs { 2 } else { 1 };
        let told = |of: &LengthsOf| PreparedLengths { made_for: of.made, cut: of.cut, serves: of.told() };
        PreparedReport {
            kind: made_by.kind,
            rows: origin.rows,
            tokens: shards.iter().map(|shard| shard.tokens).sum(),
            shards: shards.len() as u64,
            bytes: shards.iter().map(|shard| shard.bytes).sum(),
            word_bytes: *word_bytes,
            lengths: lengths.iter().take(sides).map(told).collect(),
            tokenizer: made_by.tokenizer.clone(),
            template: made_by.template.clone(),
            splits: made_by.splits,
            files: origin.files.iter().map(|file| file.name.clone()).collect(),
            text_bytes: origin.text_bytes,
            columns: origin.columns.clone(),
            fingerprint: origin.fingerprint.clone(),
        }
    }
}

/// Reads all of a prepared set and says what it is, or what is wrong with it. `tell` gets how many rows were read. The kernel may
/// keep `cached` bytes of it.
pub fn verify_prepared(folder: &Path, cached: u64, tell: &mut dyn FnMut(u64)) -> Result<PreparedReport, DataError> {
    let manifest = Manifest::read(folder)?;
    let opening = Opening { cached, ..Opening::default() };
    let sources = Sources::open_with(&[folder.to_path_buf()], manifest.made_by.kind, Columns::default(), opening)?;
    let mut done = 0;
    if let Some(prepared) = sources.prepared() {
        let mut rows = TokenRows::with_room(prepared.form(), 0, 0);
        for (number, block) in sources.blocks().iter().enumerate() {
            rows.clear();
            prepared.read_block(number, *block, &mut rows)?;
            done += u64::from(block.rows);
            tell(done);
        }
    }
    Ok(PreparedReport::of(&manifest))
}
