//! Everything that can be wrong with the data, as facts: which file, which place, what was expected, what was found.
//!
//! Invariant: no variant is a bare text of ours; texts from other libraries are carried in a `reason` field.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

/// Why the data cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The file system said no; the message names the path.
    #[error(transparent)]
    Io(std::io::Error),
    /// Numbers that are no series.
    #[error(transparent)]
    Series(Box<crate::series::SeriesError>),
    /// A file elsewhere where this program reads local files only, or has no folder for parts of it.
    #[error(
        "`{path}` lies elsewhere, and there is no way to read it from here; expected a local file, or a store and a folder for parts of it"
    )]
    NoStore {
        /// Its URL.
        path: PathBuf,
    },
    /// A file elsewhere that cannot be read.
    #[error("`{path}` {problem}; {hint}")]
    Remote {
        /// Its URL.
        path: PathBuf,
        /// What is wrong, as it stands behind the URL.
        problem: String,
        /// What to do about it.
        hint: String,
    },
    /// A pattern is not a valid glob.
    #[error("`{pattern}` is not a valid file pattern: {reason}")]
    BadPattern {
        /// The pattern.
        pattern: String,
        /// What the matcher said.
        reason: String,
    },
    /// A pattern or path that names no file.
    #[error("`{pattern}` matches no file")]
    NoFiles {
        /// The pattern.
        pattern: String,
    },
    /// A file whose extension is not known.
    #[error(
        "`{path}` has an unknown extension; expected `.jsonl`, `.ndjson`, `.json` (one object a line), `.csv`, `.tsv`, `.txt` (one text a line), `.parquet`, `.arrow`, `.arrows` or `.feather`"
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// A file packed in a way that is not read.
    #[error("`{path}` is packed; expected a plain file, or `.gz` or `.zst` of `.jsonl`, `.csv`, `.tsv` or `.txt`")]
    Packed {
        /// The file.
        path: PathBuf,
    },
    /// A packed file where there is no folder to unpack it into.
    #[error("`{path}` is packed, and there is no folder for its unpacked rows; unpack it first")]
    NoFolder {
        /// The file.
        path: PathBuf,
    },
    /// A packed file that is broken.
    #[error("`{path}`, {place}: expected more packed rows, found what cannot be unpacked: {reason}")]
    BadPacking {
        /// The file.
        path: PathBuf,
        /// `line 7`.
        place: String,
        /// What the library said.
        reason: String,
    },
    /// All files together hold no row.
    #[error("no rows in {files} file(s), the first is `{path}`{}", told_left_out(*.oversized))]
    NoRows {
        /// How many files were read.
        files: usize,
        /// Rows that were left out as too large.
        oversized: u64,
        /// The first of them.
        path: PathBuf,
    },
    /// A weight so small that a pass would have no row of its set.
    #[error(
        "set {set} of the mixture (`{path}` ...) has {rows} rows, and a weight of {weight} leaves none of them; give it a larger one"
    )]
    NothingLeft {
        /// Which set, from 1.
        set: usize,
        /// Its first file.
        path: PathBuf,
        /// Its rows.
        rows: u64,
        /// Its weight.
        weight: f64,
    },
    /// Source and target are the same column.
    #[error("source and target are both the column `{column}`")]
    SameColumn {
        /// The column.
        column: String,
    },
    /// No pair of usual names was found.
    #[error(
        "`{path}`: cannot guess the source and target columns among `{present}`; name them, as in columns = {{ source = \"prompt\", target = \"response\" }}"
    )]
    ColumnsNotGuessed {
        /// The file.
        path: PathBuf,
        /// The columns that are there.
        present: String,
    },
    /// No column of a usual name was found.
    #[error("`{path}`: cannot guess the column of {wanted} among `{present}`; name it as the source")]
    ColumnNotGuessed {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        wanted: &'static str,
        /// The columns that are there.
        present: String,
    },
    /// A cell that is no list of messages.
    #[error("`{path}`, {place}: expected a list of messages in column `{column}`, found {found}")]
    NotMessages {
        /// The file.
        path: PathBuf,
        /// `line 7` or `row 6`.
        place: String,
        /// The column.
        column: String,
        /// What was found.
        found: String,
    },
    /// A message that is wrong, or a conversation without any.
    #[error("`{path}`, {place} of column `{column}`: expected {expected}, found {found}")]
    BadMessage {
        /// The file.
        path: PathBuf,
        /// `line 7, message 2`.
        place: String,
        /// The column.
        column: String,
        /// What must be there.
        expected: &'static str,
        /// What was found.
        found: String,
    },
    /// A chat template that cannot be understood.
    #[error("the chat template is not valid: {reason}")]
    BadTemplate {
        /// What the template engine said.
        reason: String,
    },
    /// A chat template that refused a conversation.
    #[error("the chat template failed: {reason}")]
    NotRendered {
        /// What the template engine, or the template itself, said.
        reason: String,
    },
    /// A template by which the assistant's part cannot be found.
    #[error(
        "the chat template writes message {message} in another way when more follows, so the assistant's part cannot be told from the rest; mark it by `{{% generation %}}` in the template"
    )]
    PrefixesDoNotNest {
        /// The assistant's message, from 1.
        message: usize,
    },
    /// A row that could not be turned into tokens.
    #[error("`{path}`, {place}: {error}")]
    Row {
        /// The file.
        path: PathBuf,
        /// `line 7` or `row 6`.
        place: String,
        /// What went wrong with it.
        error: Box<DataError>,
    },
    /// A recipe for other data than these.
    #[error("the data were opened as {opened:?}, but the recipe is for {asked:?}")]
    OtherKind {
        /// How the sources were opened.
        opened: crate::Kind,
        /// What the recipe makes.
        asked: crate::Kind,
    },
    /// A wanted column is not there.
    #[error("`{path}`, {place}: expected the column `{column}`, found `{present}`")]
    MissingColumn {
        /// The file.
        path: PathBuf,
        /// `line 7` or `schema`.
        place: String,
        /// The wanted column.
        column: String,
        /// The columns that are there.
        present: String,
    },
    /// A record with another number of cells than the header has columns.
    #[error("`{path}`, line {line}: expected {expected} cells, as the header has, found {found}")]
    Cells {
        /// The file.
        path: PathBuf,
        /// The line at which the record begins, from 1.
        line: u64,
        /// Columns of the header.
        expected: usize,
        /// Cells of the record.
        found: usize,
    },
    /// Bytes that are no text.
    #[error("`{path}`, line {line}{}: expected UTF-8, found other bytes", .column.as_ref().map(|c| format!(", column `{c}`")).unwrap_or_default())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The line at which the row begins, from 1.
        line: u64,
        /// The column, where there are several.
        column: Option<String>,
    },
    /// A last record whose quotes are not closed.
    #[error("`{path}`, line {line}: expected the quotes of this record to be closed, found the end of the file")]
    OpenQuote {
        /// The file.
        path: PathBuf,
        /// The line at which the record begins, from 1.
        line: u64,
    },
    /// A wanted column occurs twice.
    #[error("`{path}`, line {line}: expected the key `{column}` once, found it twice")]
    DuplicateColumn {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The key.
        column: String,
    },
    /// A line that is not JSON.
    #[error("`{path}`, line {line}: expected a JSON object, found text that is not JSON: {reason}")]
    NotJson {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What the parser said.
        reason: String,
    },
    /// A line that is JSON, but not an object.
    #[error("`{path}`, line {line}: expected a JSON object, found {found}")]
    NotAnObject {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What was found.
        found: &'static str,
    },
    /// A cell that is not a string.
    #[error("`{path}`, {place}: expected a string in column `{column}`, found {found}")]
    NotAString {
        /// The file.
        path: PathBuf,
        /// `line 7` or `row 6`.
        place: String,
        /// The column.
        column: String,
        /// What was found.
        found: String,
    },
    /// A packed file that is only read in its own order, and an order that shuffles.
    #[error(
        "`{path}` can only be entered at its beginning: expected `data.shuffle = false`, or `data.unpack = true`, with which it is packed anew in parts, found neither"
    )]
    InOrder {
        /// The file.
        path: PathBuf,
    },
    /// A Parquet page larger than the limit.
    #[error(
        "`{path}`, {place}: expected pages of at most {limit} bytes in column `{column}`, found one of {bytes}; a larger `data.memory` reads it, `data.oversized = \"skip\"` leaves its rows out, and a writer with smaller pages makes both needless"
    )]
    PageTooLarge {
        /// The file.
        path: PathBuf,
        /// `row 6`.
        place: String,
        /// The column.
        column: String,
        /// The page, unpacked.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A line or row longer than the limit.
    #[error(
        "`{path}`, {place}: expected at most {limit} bytes, found more; `data.oversized = \"skip\"` leaves such rows out"
    )]
    RowTooLong {
        /// The file.
        path: PathBuf,
        /// `line 7` or `row 6`.
        place: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// A Parquet file that cannot be read.
    #[error("`{path}`, {place}: not a readable Parquet file: {reason}")]
    BadParquet {
        /// The file.
        path: PathBuf,
        /// `footer`, `row group 3`, `row 77`.
        place: String,
        /// What the reader said.
        reason: String,
    },
    /// An Arrow file or stream that cannot be read.
    #[error("`{path}`, {place}: not a readable Arrow file: {reason}")]
    BadArrow {
        /// The file.
        path: PathBuf,
        /// `footer`, `schema`, `message 3`, `row 77`.
        place: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A Parquet or Arrow column of another type.
    #[error("`{path}`: expected a column of strings in `{column}`, found {found}")]
    ColumnType {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// Its type.
        found: String,
    },
    /// The file is not what it was when it was indexed.
    #[error("`{path}` changed after it was opened: at {place}, expected {expected}, found {found}")]
    Changed {
        /// The file.
        path: PathBuf,
        /// Where.
        place: String,
        /// What the index says.
        expected: String,
        /// What is there now.
        found: String,
    },
    /// A tokenizer file that cannot be read.
    #[error("`{path}` is not a readable tokenizer: {reason}")]
    BadTokenizer {
        /// The file.
        path: PathBuf,
        /// What the library said.
        reason: String,
    },
    /// A token that the model has no embedding for.
    #[error("`{path}`: token `{token}` has the id {id}, but the model's vocabulary has {vocab} entries")]
    TokenOutsideVocabulary {
        /// The tokenizer file.
        path: PathBuf,
        /// The token.
        token: String,
        /// Its id.
        id: u32,
        /// The model's vocabulary.
        vocab: usize,
    },
    /// The end-of-sequence id is no token.
    #[error("`{path}`: the end-of-sequence id {id} is no token of this tokenizer")]
    NoSuchToken {
        /// The tokenizer file.
        path: PathBuf,
        /// The id.
        id: u32,
    },
    /// The tokenizer could not encode or decode.
    #[error("the tokenizer failed on `{start}`: {reason}")]
    NotTokenised {
        /// The beginning of the text, or the ids.
        start: String,
        /// What the library said.
        reason: String,
    },
    /// A special token that cannot be one.
    #[error("special token `{token}`: expected {expected}")]
    BadSpecialToken {
        /// The token.
        token: String,
        /// What it must be.
        expected: &'static str,
    },
    /// A vocabulary that has no room for what each must have.
    #[error("a vocabulary of {vocab} tokens is too small: expected at least {expected} ({needs})")]
    VocabularyTooSmall {
        /// Tokens that were asked for.
        vocab: u64,
        /// The least.
        expected: u64,
        /// What they are needed for.
        needs: String,
    },
    /// A vocabulary was asked for with something that cannot be.
    #[error("`{setting}` is {found}, expected {expected}")]
    BadVocabularySetting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        found: u64,
        /// What it must be.
        expected: String,
    },
    /// Rows without a word to train on.
    #[error("expected words to train on, found none in {rows} rows that occur at least {rarer_than} time(s)")]
    NoWords {
        /// Rows that were read.
        rows: u64,
        /// Least occurrences that were asked for.
        rarer_than: u64,
    },
    /// The tokenizer library could not train.
    #[error("the tokenizer library could not train a vocabulary: {reason}")]
    NotTrained {
        /// What it said.
        reason: String,
    },
    /// The loader was asked for something that cannot be.
    #[error("the loader's `{setting}` is {found}, expected {expected}")]
    BadSetting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        found: u64,
        /// What it must be.
        expected: String,
    },
    /// A slot that cannot hold the batch.
    #[error("the slot's `{part}` holds {found} entries, expected at least {expected}")]
    SlotTooSmall {
        /// Which slice.
        part: &'static str,
        /// Entries needed.
        expected: usize,
        /// Entries lent.
        found: usize,
    },
    /// A loader thread panicked.
    #[error("a loader thread panicked: {reason}")]
    ThreadPanicked {
        /// The panic message.
        reason: String,
    },
    /// A whole pass over the data left no row.
    #[error("all {rows} rows are longer than {tokens} tokens, and such rows are dropped")]
    AllDropped {
        /// Rows.
        rows: u64,
        /// Tokens of a sample.
        tokens: usize,
    },
    /// A whole pass over pairs left none.
    #[error(
        "all {rows} rows have a source of more than {source_len} or a target of more than {target_len} tokens, and such rows are dropped"
    )]
    AllPairsDropped {
        /// Rows.
        rows: u64,
        /// Tokens of a source.
        source_len: usize,
        /// Tokens of a target.
        target_len: usize,
    },
    /// The loader has stopped after an error that was already handed out, or because it was told to.
    #[error("the loader has stopped: it was told to, or after an earlier error")]
    Stopped,
    /// A row number past the end.
    #[error("row {row} does not exist; there are {rows} rows")]
    NoSuchRow {
        /// The row asked for.
        row: u64,
        /// The rows there are.
        rows: u64,
    },
    /// Prepared data that are not as they were written.
    #[error("`{path}`, {place}: expected {expected}, found {found}; prepare the data again (`plimsoll data prepare`)")]
    BadPrepared {
        /// The manifest or the shard.
        path: PathBuf,
        /// `table`, `block 3 at byte 77`.
        place: String,
        /// What it says itself, or must be.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Prepared data whose tokens are not those that are asked for.
    #[error(
        "`{path}` was prepared with {what} {prepared}, and is asked for with {asked}; prepare the data again, or name the original files"
    )]
    PreparedOtherwise {
        /// The folder.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// As it was then.
        prepared: String,
        /// As it is now.
        asked: String,
    },
    /// Prepared data from which samples of a length do not follow.
    #[error(
        "`{path}` cannot give samples of {asked} tokens just as the original files would: it serves {serves}; prepare the data again for this length, or name the original files"
    )]
    PreparedLength {
        /// The folder.
        path: PathBuf,
        /// The length in tokens.
        asked: usize,
        /// The lengths that it serves.
        serves: String,
    },
    /// Texts were asked of prepared data.
    #[error("`{path}` holds tokens, and here texts are needed; name the original files")]
    NoTexts {
        /// The folder.
        path: PathBuf,
    },
    /// Preparing was begun and not finished.
    #[error(
        "`{path}`: the data here are not prepared to their end; run the same `plimsoll data prepare` again, it goes on"
    )]
    UnfinishedPrepared {
        /// The folder.
        path: PathBuf,
    },
    /// Prepared data and others.
    #[error(
        "`{path}` is prepared data, which cannot be read together with other files or URLs, in a mixture or with a weight; name it alone"
    )]
    PreparedNotAlone {
        /// The folder.
        path: PathBuf,
    },
    /// A mixture is to be prepared.
    #[error(
        "a mixture cannot be prepared: expected one set of weight 1, found {sets} set(s), the first of `{path}`; prepare and train from one set, or train from the original files"
    )]
    MixturePrepared {
        /// How many sets there are.
        sets: usize,
        /// The first file.
        path: PathBuf,
    },
    /// There is another prepared set already.
    #[error(
        "`{path}` holds data that were prepared from other files or with other settings; name another folder, or remove it"
    )]
    OtherPrepared {
        /// The folder.
        path: PathBuf,
    },
    /// Two processes prepare into one folder.
    #[error("`{path}`: another process is preparing data there now")]
    PreparingElsewhere {
        /// The folder.
        path: PathBuf,
    },
}

fn told_left_out(oversized: u64) -> String {
    match oversized {
        0 => String::new(),
        rows => format!(": {rows} were left out as too large (`oversized`); give the loader more memory"),
    }
}

/// Readers of bytes can only give errors of the system; those of ours travel inside of them, and come out here.
impl From<std::io::Error> for DataError {
    fn from(error: std::io::Error) -> DataError {
        error.downcast::<DataError>().unwrap_or_else(DataError::Io)
    }
}

impl From<crate::series::SeriesError> for DataError {
    fn from(error: crate::series::SeriesError) -> DataError {
        DataError::Series(Box::new(error))
    }
}

/// Libraries panic on some damaged files; for us that is a bad file like any other, by `bad`. What `work` was writing to is dropped by
/// the caller together with the error.
pub(crate) fn guarded<T>(
    work: impl FnOnce() -> Result<T, DataError>,
    bad: impl FnOnce(String) -> DataError,
) -> Result<T, DataError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(bad(format!("its reader panicked: {}", panic_message(panic)))))
}

/// What a caught panic said.
pub(crate) fn panic_message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
