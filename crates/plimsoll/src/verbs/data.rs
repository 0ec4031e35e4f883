//! `plimsoll data`: what is in the data, before anything is trained on them.

use std::fmt;
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use plimsoll_data::{
    ChosenColumns, Columns, DataError, DataSet, Histogram, Inspection, Kind, Mixing, Order, Sources, TextTokenizer,
    Weight, inspect,
};
use plimsoll_machine::Bytes;
use plimsoll_model::ModelFolder;
use serde::Serialize;

use crate::args::{DataArgs, DataVerb, InspectArgs, RowArgs};
use crate::job::mixture::{JobData, data_of};
use crate::job::read::JobFile;
use crate::prepare::SeriesReading;
use crate::prepare::samples::{self, Reading, SetTold};
use crate::render::{self, Fail, OrFail};
use crate::settings::{kind_name, kind_named};
use crate::verbs::{data_prepare, data_series, data_tokenizer};

/// Does what was asked.
pub fn run(args: &DataArgs) -> Result<(), Fail> {
    match &args.verb {
        DataVerb::Inspect(args) => run_inspect(args),
        DataVerb::Tokenizer(args) => data_tokenizer::run(args),
        DataVerb::Prepare(args) => data_prepare::run(args),
    }
}

/// What is told of the data.
#[derive(Serialize)]
struct Report {
    kind: &'static str,
    columns: ColumnsTold,
    unpacked_bytes: u64,
    /// Of a mixture.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sets: Vec<SetTold>,
    #[serde(flatten)]
    found: Inspection,
    /// Tokens that were asked about, and how many sampled rows are longer.
    max_len: Option<Cut>,
}

/// Which columns are read.
#[derive(Serialize)]
pub(super) struct ColumnsTold {
    source: String,
    target: String,
    guessed: bool,
}

impl ColumnsTold {
    pub(super) fn of(sources: &Sources) -> ColumnsTold {
        ColumnsTold::chosen(sources.columns())
    }

    pub(super) fn chosen(columns: &ChosenColumns) -> ColumnsTold {
        let (source, target) = (columns.source.clone(), columns.target.clone());
        ColumnsTold { source, target, guessed: columns.guessed }
    }
}

impl fmt::Display for ColumnsTold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let guessed = if self.guessed { " (guessed from their names)" } else { "" };
        match self.target.as_str() {
            "" => write!(f, "`{}`{guessed}", self.source),
            target => write!(f, "source `{}`, target `{target}`{guessed}", self.source),
        }
    }
}

#[derive(Serialize)]
struct Cut {
    tokens: u64,
    longer: u64,
    of: u64,
}

fn run_inspect(args: &InspectArgs) -> Result<(), Fail> {
    let job = args.job.as_deref().map(|path| data_of(&JobFile::read(path)?)).transpose()?;
    if let Some(job) = job.as_ref().filter(|job| job.series.is_some()) {
        no_flags_of_texts(args)?;
        let reading = SeriesReading { memory: job.memory, cache: args.rows_of.data_cache };
        return data_series::inspect(job, reading, args.json);
    }
    let files = job.as_ref().map_or(&args.files, |job| &job.files);
    if let [folder] = &files[..]
        && plimsoll_data::is_prepared(folder)
    {
        return data_prepare::inspect(folder, args.json);
    }
    let (sources, kind) = match &job {
        Some(job) => open_job(job, &args.rows_of)?,
        None => open(&args.files, &args.rows_of)?,
    };
    let tokenizer = args.model.as_ref().map(|dir| tokenizer_of(&ModelFolder::open(dir).or_usage()?)).transpose()?;
    if args.max_len.is_some() && tokenizer.is_none() {
        return Err(Fail::usage("`--max-len` counts tokens").hint("say whose: `--model DIR`"));
    }
    let window = args.window.map(|n| n.0).or(job.and_then(|job| job.window));
    let order = Order::new(1, true).with_window(window.map_or(plimsoll_data::WINDOW_BLOCKS, |n| n as usize));
    let bar = bar(sources.facts().rows);
    let most = args.max_len.map(|most| most.0);
    let found = inspect(&sources, tokenizer.as_ref(), most, order, &mut |rows| bar.set_position(rows)).or_usage();
    bar.finish_and_clear();
    let found = found?;
    let of = found.tokens.as_ref().map_or(0, |[source, _]| source.count);
    let max_len = most.map(|tokens| Cut { tokens, longer: found.longer, of });
    let report = Report {
        kind: kind_name(kind),
        columns: ColumnsTold::of(&sources),
        unpacked_bytes: sources.unpacked_bytes(),
        sets: match sources.is_mixture() {
            true => (0..sources.sets().len()).map(|number| SetTold::new(&sources, number)).collect(),
            false => Vec::new(),
        },
        found,
        max_len,
    };
    if args.json { render::json(&report) } else { render::data(&report) }
}

/// Refuses flags that say something about texts, where a job is about series.
fn no_flags_of_texts(args: &InspectArgs) -> Result<(), Fail> {
    let RowArgs { kind, source, target, data_cache: _ } = &args.rows_of;
    let said = [
        ("--kind", kind.is_some()),
        ("--source", source.is_some()),
        ("--target", target.is_some()),
        ("--window", args.window.is_some()),
        ("--max-len", args.max_len.is_some()),
        ("--model", args.model.is_some()),
    ];
    match said.into_iter().find(|(_, said)| *said) {
        None => Ok(()),
        Some((flag, _)) => Err(Fail::usage(format!("`{flag}` is for texts, and the data of the job are series"))),
    }
}

/// The files as what was said, or as the first kind that their columns are.
pub(super) fn open(files: &[PathBuf], rows: &RowArgs) -> Result<(Sources, Kind), Fail> {
    let columns = Columns { source: rows.source.clone(), target: rows.target.clone() };
    open_sets(&[DataSet { files: files.to_vec(), columns, weight: Weight::ONE }], kind_said(rows)?, rows.data_cache)
}

/// The data of a job, as it or a flag says.
fn open_job(job: &JobData, rows: &RowArgs) -> Result<(Sources, Kind), Fail> {
    let source = rows.source.clone().or(job.columns.source.clone());
    let target = rows.target.clone().or(job.columns.target.clone());
    let columns = Columns { source, target };
    let sets: Vec<DataSet> = match job.mixture.is_empty() {
        true => vec![DataSet { files: job.files.clone(), columns, weight: Weight::ONE }],
        false => job.mixture.iter().map(|set| set.to_open(&columns)).collect(),
    };
    open_sets(&sets, kind_said(rows)?.or(job.kind), rows.data_cache)
}

fn kind_said(rows: &RowArgs) -> Result<Option<Kind>, Fail> {
    let wrong = |name: &String| Fail::usage(format!("`--kind` must be `pairs`, `chat` or `text`, found `{name}`"));
    rows.kind.as_ref().map(|name| kind_named(name).ok_or_else(|| wrong(name))).transpose()
}

fn open_sets(sets: &[DataSet], kind: Option<Kind>, cache: Option<Bytes>) -> Result<(Sources, Kind), Fail> {
    let open = |kind: Kind| samples::open_sets(sets, kind, Reading { cache, ..Reading::default() });
    if let Some(kind) = kind {
        return Ok((open(kind).or_usage()?, kind));
    }
    let unclear = |e: &DataError| matches!(e, DataError::ColumnsNotGuessed { .. } | DataError::ColumnNotGuessed { .. });
    let mut first = None;
    for kind in [Kind::Pairs, Kind::Chat, Kind::Text] {
        match open(kind) {
            Ok(sources) => return Ok((sources, kind)),
            Err(e) if unclear(&e) => first = first.or(Some(e)),
            Err(other) => return Err(other).or_usage(),
        }
    }
    Err(first.expect("no kind was clear")).or_usage()
}

pub(super) fn tokenizer_of(folder: &ModelFolder) -> Result<TextTokenizer, Fail> {
    let (path, spec) = (folder.tokenizer_path().or_usage()?, folder.answering_spec());
    TextTokenizer::load(&path, spec.vocab(), spec.eos_id(), spec.pad_id()).or_usage()
}

/// How far it is, on a terminal.
pub(super) fn bar(rows: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{human_pos} of {human_len} rows {wide_bar} {per_sec}, {eta} left");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(rows), ProgressDrawTarget::stderr()).with_style(style)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { kind, columns, found, .. } = self;
        writeln!(f, "{} rows in {} file(s), {} of text", found.rows, found.files, Bytes(found.bytes.sum))?;
        writeln!(f, "kind: {kind}; columns: {columns}")?;
        self.sets.iter().try_for_each(|set| writeln!(f, "{set}"))?;
        if self.unpacked_bytes > 0 {
            writeln!(f, "unpacked: {} on disk", Bytes(self.unpacked_bytes))?;
        }
        lengths(f, "bytes of a row", &found.bytes)?;
        if let Some([source, target]) = &found.tokens {
            let sampled = if source.count < found.rows { format!(", of {} rows", source.count) } else { String::new() };
            lengths(f, &format!("tokens of a source{sampled}"), source)?;
            if !columns.target.is_empty() && *kind == "pairs" {
                lengths(f, &format!("tokens of a target{sampled}"), target)?;
            }
        }
        if let Some(Cut { tokens, longer, of }) = &self.max_len {
            let share = 100.0 * *longer as f64 / (*of).max(1) as f64;
            writeln!(f, "longer than {tokens} tokens: {longer} of {of} rows ({share:.1} %)")?;
        }
        let how = if found.repeats.one_of > 1 {
            format!(" (from one row of {})", found.repeats.one_of)
        } else {
            String::new()
        };
        writeln!(f, "repeated: {:.2} % of the rows equal an earlier one{how}", 100.0 * found.repeats.share)?;
        let Mixing { blocks, window, excess, needed } = found.mixing;
        match needed {
            None if blocks <= window => {
                writeln!(f, "order: all {blocks} blocks are in one window; any order of the files will do")
            }
            None => writeln!(f, "order: windows of {window} of {blocks} blocks mix the rows well"),
            Some(needed) => writeln!(
                f,
                "order: rows that lie together are alike: with windows of {window} of {blocks} blocks, batches of 32 differ from \
                 the whole by {:.0} % more than independent draws; a window of {needed} would mix them: --window {needed}",
                100.0 * excess
            ),
        }
    }
}

/// A histogram: a line for each power of two.
fn lengths(f: &mut fmt::Formatter<'_>, what: &str, of: &Histogram) -> fmt::Result {
    let at = |share: f64| of.quantile(share);
    writeln!(
        f,
        "{what}: half up to {}, 90 % up to {}, 99 % up to {}, longest {}",
        at(0.5),
        at(0.9),
        at(0.99),
        of.longest
    )?;
    let powers = of.by_powers();
    let most = powers.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
    for (first, count) in powers {
        let bar = "#".repeat((40 * count).div_ceil(most) as usize);
        writeln!(f, "  {first:>10}+ {count:>10} {bar}")?;
    }
    Ok(())
}
