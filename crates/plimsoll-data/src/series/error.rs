//! Everything that can be wrong with series, as facts: which file, which place, what was expected, what was found.
//!
//! Invariant: what is wrong with a file as a file (it cannot be read, it changed) is [`crate::DataError`]'s to say; here is only what makes
//! readable numbers no series.

use std::path::PathBuf;

/// Why series cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SeriesError {
    /// Something was asked for that cannot be.
    #[error("`data.series.{key}` is {found}, expected {expected}")]
    BadSpec {
        /// The key of the job.
        key: String,
        /// Its value.
        found: String,
        /// What it must be.
        expected: String,
    },
    /// A file whose extension is not known.
    #[error(
        "`{path}` has an extension that is not read as series; expected `.csv`, `.tsv` (also `.gz` or `.zst` of them), `.parquet`, `.arrow`, `.arrows` or `.feather`"
    )]
    Format {
        /// The file.
        path: PathBuf,
    },
    /// A column of another type.
    #[error("`{path}`: expected {expected} in column `{column}`, found {found}")]
    ColumnType {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// What it must hold.
        expected: &'static str,
        /// Its type.
        found: String,
    },
    /// A cell that is something else.
    #[error("`{path}`, {place}: expected {expected} in column `{column}`, found {found}")]
    BadCell {
        /// The file.
        path: PathBuf,
        /// `line 7` or `row 6`.
        place: String,
        /// The column.
        column: String,
        /// What must be there.
        expected: String,
        /// What is.
        found: String,
    },
    /// A value that is missing, where that is refused or nothing can stand for it.
    #[error("`{path}`, {place}: expected a number in column `{column}`, found none; {hint}")]
    MissingValue {
        /// The file.
        path: PathBuf,
        /// `line 7` or `row 6`.
        place: String,
        /// The column.
        column: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// A row that is not later than the one before it.
    #[error(
        "`{path}`, {place}: expected a time in column `{column}` after {}, as {series} goes on, found {}", times[0], times[1]
    )]
    TimeOrder {
        /// The file.
        path: PathBuf,
        /// `line 7` or `row 6`.
        place: String,
        /// The column of times.
        column: String,
        /// Which one, in words.
        series: String,
        /// The time of the row before, and that of this row.
        times: Box<[String; 2]>,
    },
    /// Instants and plain numbers in one column of times.
    #[error("`{path}`, {place}: expected {expected} in column `{column}`, as in all rows before, found {found}")]
    MixedTimes {
        /// The file.
        path: PathBuf,
        /// `line 7` or `row 6`.
        place: String,
        /// The column of times.
        column: String,
        /// What came before.
        expected: &'static str,
        /// What is here.
        found: &'static str,
    },
    /// More series than are told apart, or a name that is too long.
    #[error(
        "`{path}`, {place}: expected at most {most} series with names of at most {longest} bytes, and as many as `data.memory` has room for, found one behind {so_far}"
    )]
    TooManySeries {
        /// The file.
        path: PathBuf,
        /// `line 7` or `row 6`.
        place: String,
        /// How many came before.
        so_far: usize,
        /// How many there may be.
        most: usize,
        /// How long a name may be.
        longest: usize,
    },
    /// A row whose time is trained on stands beside one that is foretold and earlier.
    #[error(
        "training would see the future: its latest row has the time {training}, and the earliest row of the validation {validation}"
    )]
    Leak {
        /// The latest time of training.
        training: String,
        /// The earliest time of the validation.
        validation: String,
    },
    /// Nothing that could be learnt, or be judged by.
    #[error(
        "column `{column}` says nothing of what is to be foretold in any of the {samples} windows{part}: {what} is missing, or cannot be said, in all of them"
    )]
    NothingKnown {
        /// ` of training`, ` of validation`, or nothing.
        part: &'static str,
        /// `its class` or `its value`.
        what: &'static str,
        /// The column that it is made of.
        column: String,
        /// Windows of the part.
        samples: u64,
    },
    /// No series is long enough.
    #[error(
        "no windows{part}: a window of {window} steps that foretells {horizon} ahead needs {needed} rows of one series, and the longest has {longest} there"
    )]
    NoSamples {
        /// ` of training`, ` of validation`, or nothing.
        part: &'static str,
        /// Steps of a window.
        window: usize,
        /// Steps ahead.
        horizon: usize,
        /// Rows of the shortest series that has one.
        needed: u64,
        /// Rows of the longest.
        longest: u64,
    },
    /// Numbers that take more than they may, and no folder to put them.
    #[error(
        "the series take {bytes} bytes, and {share} of `data.memory` are theirs; a larger one holds them, or a folder for a file of them"
    )]
    TooLarge {
        /// What they take.
        bytes: u64,
        /// What they may.
        share: u64,
    },
    /// A footer of Parquet that there is no room for.
    #[error(
        "`{path}`: expected a footer that takes at most {limit} bytes when it is {what}, found {bytes}; a larger `data.memory` has room for it, or write larger row groups"
    )]
    FooterTooLarge {
        /// The file.
        path: PathBuf,
        /// `unpacked` or `kept`.
        what: &'static str,
        /// What it takes.
        bytes: u64,
        /// What it may.
        limit: u64,
    },
    /// More rows than the disk has room for.
    #[error(
        "`{folder}` needs room for {needed} bytes of rows, and the disk has {free} free; make room, or give `data.memory` twice that much"
    )]
    NoRoom {
        /// Where they would be kept.
        folder: PathBuf,
        /// What they take.
        needed: u64,
        /// What is free.
        free: u64,
    },
    /// A normalisation that was fitted on other columns.
    #[error("the normalisation was fitted on {found}, and is asked for with {expected}")]
    OtherNormalisation {
        /// The columns of the job.
        expected: String,
        /// Its own.
        found: String,
    },
    /// A normalisation that cannot be read.
    #[error("`{path}` is not a readable normalisation: {reason}")]
    BadNormalisation {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Sums of a column left the numbers that there are.
    #[error("column `{column}` has values so large that their spread is not finite; scale it first")]
    NoSpread {
        /// The column.
        column: String,
    },
}
