//! From rows to samples: what a row is, how long samples are, how many an epoch has.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_data::{
    ChatTemplate, Columns, DataError, DataSet, Elsewhere, Kind, Largest, Lengths, Long, Opening, Order, Recipe,
    SAMPLE_ROWS, Set, Sources, TextTokenizer, Weight, count_samples, prepared_kind, suggest_length, suggest_lengths,
};
use plimsoll_machine::{Bytes, Headroom, Root};
use plimsoll_model::ModelFolder;
use plimsoll_plan::program::Job;
use plimsoll_plan::spec::ModelSpec;

use super::loader_hook;
use crate::elsewhere;
use crate::rates::cache_folder;
use crate::render::{self, Fail, OrFail};
use crate::settings::{Settings, kind_name};

/// Most tokens of a sample that nobody gave a length for.
const LONGEST_SAMPLE: usize = 1024;
/// Most new tokens of an answer to a chat's prompt during evaluation.
const NEW_TOKENS: usize = 64;

/// How much may be taken to read data.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// Most of the disk for parts of what lies elsewhere; `None`: as there is room.
    pub cache: Option<Bytes>,
    /// The largest rows and pages.
    pub largest: Largest,
    /// Packed files are read in their own order.
    pub in_order: bool,
}

impl Reading {
    /// As a job says. A ceiling that nobody asked for makes no row too large.
    pub fn of(settings: &Settings) -> Reading {
        let skip = settings.skip_oversized;
        let within = |ceiling: Bytes| Largest::within(ceiling.0, skip);
        let largest = settings.data_memory.map_or(Largest { skip, ..Largest::default() }, within);
        Reading { cache: settings.cache, largest, in_order: !settings.unpack }
    }
}

/// Opens data; what is packed is unpacked into the cache, where it stays for the next run, as do parts of what lies elsewhere: `cache`
/// of them at most, where it is said. The kernel may keep files in half of the memory that can be had: what is larger would only push
/// out other pages, and in a cgroup those of the run itself.
pub fn open(files: &[PathBuf], kind: Kind, columns: Columns, reading: Reading) -> Result<Sources, DataError> {
    open_sets(&[DataSet { files: files.to_vec(), columns, weight: Weight::ONE }], kind, reading)
}

/// As [`open`], several sets with their weights.
pub fn open_sets(sets: &[DataSet], kind: Kind, reading: Reading) -> Result<Sources, DataError> {
    let (folder, cached) = (cache_folder().join("data"), cached_bytes());
    let parts = elsewhere::cache(reading.cache, &folder).0;
    let elsewhere = Some(Elsewhere { files: elsewhere::files(|told| render::talk(told)), cache: parts });
    Sources::open_mixture(
        sets,
        kind,
        Opening { folder: Some(&folder), cached, elsewhere, largest: reading.largest, in_order: reading.in_order },
    )
}

/// Bytes of data that the kernel may keep in memory for us.
pub fn cached_bytes() -> u64 {
    let usable = Headroom::find(&Root::system()).and_then(|headroom| headroom.read());
    usable.map_or(u64::MAX, |bytes| bytes.0 / 2)
}

/// What parts of data elsewhere, of so many bytes, take of the disk: as much as they are, or as much as they may.
pub fn fetched(there: u64, cache: Option<Bytes>) -> Bytes {
    Bytes(there).min(elsewhere::cache(cache, &cache_folder().join("data")))
}

/// Opens the training data as what the job says, or as what the model and the columns ask for.
pub fn open_sources(
    settings: &Settings,
    spec: &ModelSpec,
    remarks: &mut Vec<String>,
) -> Result<(Arc<Sources>, Kind), Fail> {
    let columns = Columns { source: settings.source.clone(), target: settings.target.clone() };
    let sets = match settings.mixture.is_empty() {
        true => vec![DataSet { files: settings.train_data.clone(), columns, weight: Weight::ONE }],
        false => settings.mixture.iter().map(|set| set.to_open(&columns)).collect(),
    };
    let open = |kind| open_sets(&sets, kind, Reading::of(settings));
    let made_of = || if let [set] = &sets[..] { prepared_kind(&set.files) } else { None };
    let said = settings.kind.or_else(made_of);
    let (sources, kind) = match (said, spec) {
        (None, ModelSpec::T5(_)) => (open(Kind::Pairs).or_usage()?, Kind::Pairs),
        (_, ModelSpec::Series(_)) => {
            let fact = "the data are texts, and the model is one of series";
            return Err(Fail::usage(fact).hint("a `cnn-lstm` reads windows of numbers"));
        }
        (Some(Kind::Pairs), ModelSpec::Decoder(_)) => {
            let fact = "`data.kind` = `pairs` is for encoder-decoder models, and the model is a decoder";
            return Err(Fail::usage(fact).hint("`chat` reads prompt and response columns too"));
        }
        (Some(kind @ (Kind::Chat | Kind::Text)), ModelSpec::T5(_)) => {
            let fact = format!("`data.kind` = `{}` is for decoder models, and the model is a T5", kind_name(kind));
            return Err(Fail::usage(fact).hint("`pairs` has a source and a target column"));
        }
        (Some(kind), _) => (open(kind).or_usage()?, kind),
        (None, ModelSpec::Decoder(_)) => match open(Kind::Chat) {
            Ok(sources) => (sources, Kind::Chat),
            Err(DataError::ColumnNotGuessed { .. }) => (open(Kind::Text).or_usage()?, Kind::Text),
            Err(other) => return Err(other).or_usage(),
        },
    };
    if settings.packed && kind == Kind::Pairs {
        return Err(Fail::usage("`data.packed` is for chat and text: pairs are never packed into one sample"));
    }
    if sources.is_prepared() {
        remarks.push(format!("data: {}, prepared: {} rows of tokens", kind_name(kind), sources.rows()));
    } else if settings.kind.is_none() && kind != Kind::Pairs {
        remarks.push(format!("data: {} (from its columns)", kind_name(kind)));
    }
    if settings.says("data.long") && settings.long == Long::Split && kind == Kind::Pairs {
        let fact = "`data.long` = `split` is for texts: the parts of a source would have no targets of their own";
        return Err(Fail::usage(fact).hint("`cut` keeps the beginning of a long pair, `drop` leaves it out"));
    }
    for (number, set) in sources.sets().iter().enumerate() {
        if sources.is_mixture() {
            remarks.push(SetTold::new(&sources, number).to_string());
        }
        if set.columns.guessed {
            let (source, target) = (&set.columns.source, &set.columns.target);
            remarks.push(match kind {
                Kind::Pairs => format!("columns: source `{source}`, target `{target}` (guessed from their names)"),
                _ if target.is_empty() => format!("column: `{source}` (guessed from its name)"),
                _ => format!("columns: `{source}` and `{target}` (guessed from their names)"),
            });
        }
    }
    Ok((Arc::new(sources), kind))
}

/// What is told of rows that are left out.
pub fn told_left_out(rows: u64) -> String {
    format!("data: {rows} rows are left out, because they or their pages are too large (`data.oversized`)")
}

/// What is told of a set of a mixture.
#[derive(serde::Serialize)]
pub struct SetTold {
    set: usize,
    path: PathBuf,
    files: u64,
    rows: u64,
    weight: f64,
    pass_rows: u64,
    share: f64,
    source: String,
    target: String,
}

impl SetTold {
    /// Of set `number`, from 0.
    pub fn new(sources: &Sources, number: usize) -> SetTold {
        let Set { columns, path, files, rows, weight, pass_rows, .. } = sources.sets()[number].clone();
        SetTold {
            set: number + 1,
            path,
            files,
            rows,
            weight: weight.get(),
            pass_rows,
            share: pass_rows as f64 / sources.rows() as f64,
            source: columns.source,
            target: columns.target,
        }
    }
}

impl std::fmt::Display for SetTold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SetTold { set, path, files, rows, weight, pass_rows, share, .. } = self;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let more = if *files > 1 { format!(" and {} more", files - 1) } else { String::new() };
        let share = 100.0 * share;
        write!(f, "set {set}: `{name}`{more}, {rows} rows, weight {weight}: {pass_rows} rows of a pass ({share:.1} %)")
    }
}

/// How rows of a kind become samples of a model.
pub fn recipe_for(kind: Kind, long: Long, folder: &ModelFolder, tokenizer: &TextTokenizer) -> Result<Recipe, Fail> {
    let drops = long == Long::Drop;
    Ok(match kind {
        Kind::Pairs if drops => Recipe::pairs().dropping(),
        Kind::Pairs => Recipe::pairs(),
        Kind::Text => Recipe::text(long, folder.spec().decoder().and_then(|d| d.bos_id)),
        Kind::Chat => {
            let recipe = match folder.chat_template().or_usage()? {
                Some(found) => Recipe::chat(Arc::new(ChatTemplate::new(&found.text, &found.tokens).or_usage()?)),
                None => Recipe::plain_chat(tokenizer, &BTreeMap::new()).or_usage()?,
            };
            if drops { recipe.dropping() } else { recipe }
        }
    })
}

/// New tokens of an answer during evaluation; texts are not answered.
pub fn new_tokens(kind: Kind, target_len: usize) -> usize {
    match kind {
        Kind::Pairs => target_len,
        Kind::Chat => target_len.min(NEW_TOKENS),
        Kind::Text => 0,
    }
}

/// Samples of one pass over the data: as many as rows, unless they are packed, split or dropped.
pub fn of_an_epoch(
    sources: &Arc<Sources>,
    order: Order,
    tokenizer: &Arc<TextTokenizer>,
    recipe: &Recipe,
    job: &Job,
) -> Result<u64, Fail> {
    let one_each = match recipe.long() {
        Long::Split => recipe.kind() != Kind::Text,
        Long::Cut => true,
        Long::Drop => false,
    };
    if job.documents == 1 && one_each {
        return Ok(sources.rows());
    }
    let (shape, hook) = (job.shape(1), Some(loader_hook()));
    let count = count_samples(sources, order, tokenizer, recipe, shape, 0, job.threads, hook).or_usage()?;
    Ok(count.samples.max(1))
}

/// Lengths from the job, or from a look at the data.
pub fn lengths(
    settings: &Settings,
    spec: &ModelSpec,
    sources: &Sources,
    tokenizer: &TextTokenizer,
    recipe: &Recipe,
    remarks: &mut Vec<String>,
) -> Result<(usize, usize), Fail> {
    if let Some(decoder) = spec.decoder() {
        let of_pairs = [("source", settings.max_source), ("target", settings.max_target)];
        if let Some((key, _)) = of_pairs.iter().find(|(_, given)| given.is_some()) {
            let fact = format!("`data.max_len.{key}` is for pairs, and the model is a decoder");
            return Err(Fail::usage(fact).hint("give `data.max_len.tokens` (`--max-len`)"));
        }
        let most = decoder.max_positions;
        if let Some(given) = settings.max_tokens.map(|n| n as usize) {
            if given > most {
                let fact = format!("`data.max_len.tokens` is {given}, and the model has {most} positions");
                return Err(Fail::usage(fact));
            }
            return Ok((given, given));
        }
        let found = suggest_length(sources, tokenizer, recipe, SAMPLE_ROWS, most.min(LONGEST_SAMPLE)).or_usage()?;
        let Lengths { source, sampled, truncated, .. } = found;
        remarks.push(format!("length: {source} tokens a sample (from {sampled} rows; {truncated} of them are longer)"));
        return Ok((source, source));
    }
    if settings.max_tokens.is_some() {
        let fact = "`data.max_len.tokens` is for chat and text, and the model is a T5";
        return Err(Fail::usage(fact).hint("give `data.max_len.source` and `data.max_len.target`"));
    }
    if let (Some(source), Some(target)) = (settings.max_source, settings.max_target) {
        return Ok((source as usize, target as usize));
    }
    let found = suggest_lengths(sources, tokenizer, SAMPLE_ROWS).or_usage()?;
    let source = settings.max_source.map_or(found.source, |n| n as usize);
    let target = settings.max_target.map_or(found.target, |n| n as usize);
    remarks.push(told_lengths(settings.max_source, settings.max_target, &found));
    Ok((source, target))
}

/// Lengths with their origin. How many rows a given length cuts has not been counted, so nothing is said about it.
fn told_lengths(max_source: Option<u64>, max_target: Option<u64>, found: &Lengths) -> String {
    let Lengths { source, target, sampled, truncated } = found;
    match (max_source, max_target) {
        (Some(given), _) => format!("lengths: source {given} tokens (given), target {target} (from {sampled} rows)"),
        (_, Some(given)) => format!("lengths: source {source} tokens (from {sampled} rows), target {given} (given)"),
        (None, None) => format!(
            "lengths: source {source}, target {target} tokens (from {sampled} rows; {truncated} of them would be cut)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_rows_are_counted_only_where_both_lengths_are_found() {
        let found = Lengths { source: 48, target: 512, sampled: 900, truncated: 7 };
        let both = told_lengths(None, None, &found);
        assert_eq!(both, "lengths: source 48, target 512 tokens (from 900 rows; 7 of them would be cut)");
        let source = told_lengths(Some(9), None, &found);
        assert_eq!(source, "lengths: source 9 tokens (given), target 512 (from 900 rows)");
        let target = told_lengths(None, Some(9), &found);
        assert_eq!(target, "lengths: source 48 tokens (from 900 rows), target 9 (given)");
    }
}
