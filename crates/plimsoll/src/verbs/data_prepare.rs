//! `plimsoll data prepare`: the rows of a job tokenised once, into a folder to train from; and what such a folder is.

use std::fmt;
use std::path::{Path, PathBuf};

use plimsoll_data::{
    DataError, PrepareSettings, PreparedReport, estimate_prepared, forget_prepared, prepare, verify_prepared,
};
use plimsoll_machine::{Bytes, space_of};
use plimsoll_model::ModelFolder;
use plimsoll_recover::shell_word;
use serde::Serialize;

use super::data::{ColumnsTold, bar, tokenizer_of};
use crate::args::PrepareArgs;
use crate::prepare::{loader_hook, samples};
use crate::render::{self, Exit, Fail, OrFail};
use crate::settings::{Settings, kind_name};

/// The estimate may be short by one part in so many.
const UNSURE: u64 = 20;

/// What is told of a prepared set.
#[derive(Serialize)]
struct Report {
    folder: PathBuf,
    columns: ColumnsTold,
    #[serde(flatten)]
    found: PreparedReport,
}

/// Does what was asked.
pub(super) fn run(args: &PrepareArgs) -> Result<(), Fail> {
    let settings = Settings::resolve(&args.job_flags())?;
    if settings.series.is_some() {
        let fact = "`plimsoll data prepare` makes tokens of texts, and the data of this job are series";
        return Err(Fail::usage(fact).hint(
            "train from the files as they are: rows that do not fit into memory are kept in the cache by themselves",
        ));
    }
    let model = ModelFolder::open(&settings.model).or_usage()?;
    let mut remarks = Vec::new();
    let (sources, kind) = samples::open_sources(&settings, &model.answering_spec(), &mut remarks)?;
    let left_out = sources.facts().oversized;
    if left_out > 0 {
        remarks.push(samples::told_left_out(left_out));
    }
    let tokenizer = tokenizer_of(&model)?;
    let recipe = samples::recipe_for(kind, settings.long, &model, &tokenizer)?;
    remarks.extend(recipe.remark());
    let spec = model.answering_spec();
    let (source, target) = samples::lengths(&settings, &spec, &sources, &tokenizer, &recipe, &mut remarks)?;
    let lengths = [source, target];
    remarks.iter().for_each(render::talk);
    let estimate = Bytes(estimate_prepared(&sources, &tokenizer, &recipe, lengths).or_usage()?);
    let there = if args.force { Bytes::ZERO } else { on_disk(&args.out) };
    let free = space_of(args.out.ancestors().find(|p| p.is_dir()).unwrap_or(Path::new(".")))?.available;
    let room = Room { estimate, there, free, budget: settings.disk };
    render::talk(room.check(&args.out)?);
    // Not before all that can be refused was.
    if args.force {
        forget_prepared(&args.out).or_usage()?;
    }

    let settings = PrepareSettings {
        lengths,
        threads: settings.threads,
        shard_bytes: args.shard.0.max(1),
        on_thread_start: Some(loader_hook()),
    };
    let progress = bar(sources.rows());
    let mut begun = false;
    let made = prepare(&sources, &tokenizer, &recipe, &settings, &args.out, &mut |rows| {
        progress.set_position(rows);
        if !std::mem::replace(&mut begun, true) {
            // What an earlier call has done says nothing of how fast this one is.
            progress.reset_eta();
        }
    });
    progress.finish_and_clear();
    let found = made.map_err(remedied)?;
    tell(args.out.clone(), found, args.json)
}

/// Reads all of a folder and says what it is.
pub(super) fn inspect(folder: &Path, json: bool) -> Result<(), Fail> {
    let (progress, mut rows) = (bar(0), 0);
    let found = verify_prepared(folder, samples::cached_bytes(), &mut |done| {
        rows = done;
        progress.set_position(done);
    });
    progress.finish_and_clear();
    let found = found.or_usage()?;
    if !json {
        render::talk(format!("checked: all {rows} rows are as they were written"));
    }
    tell(folder.to_path_buf(), found, json)
}

fn tell(folder: PathBuf, found: PreparedReport, json: bool) -> Result<(), Fail> {
    let report = Report { folder, columns: ColumnsTold::chosen(&found.columns), found };
    if json { render::json(&report) } else { render::data(&report) }
}

fn remedied(error: DataError) -> Fail {
    let full = matches!(&error, DataError::Io(e) if e.kind() == std::io::ErrorKind::StorageFull);
    let other = matches!(error, DataError::OtherPrepared { .. });
    let fail = Fail::new(if full { Exit::Failed } else { Exit::BadInput }, error);
    match (full, other) {
        (true, _) => fail.hint("make room and run the same again: it goes on from the last whole shard"),
        (_, true) => fail.hint("another `--out`, or `--force` to write over it"),
        _ => fail,
    }
}

/// What the set takes on the disk, and what there is.
struct Room {
    estimate: Bytes,
    there: Bytes,
    free: Bytes,
    budget: Option<Bytes>,
}

impl Room {
    /// Says that it fits, or that it does not.
    fn check(&self, folder: &Path) -> Result<String, Fail> {
        let Room { estimate, there, free, budget } = *self;
        let needed = Bytes(estimate.0 + estimate.0 / UNSURE);
        let (most, whose) = match budget {
            Some(budget) if budget < free + there => (budget, "the disk budget"),
            _ => (free + there, "free there"),
        };
        if needed > most {
            let fact = format!("expected room for about {needed} in `{}`, found {most} ({whose})", folder.display());
            return Err(
                Fail::new(Exit::DoesNotFit, anyhow::anyhow!("{fact}")).hint("another `--out`, or a larger `--disk`")
            );
        }
        let done = if there > Bytes::ZERO { format!(", {there} of it there already") } else { String::new() };
        Ok(format!("disk: about {estimate}{done}, of {most} ({whose})"))
    }
}

/// What lies in a folder already.
fn on_disk(folder: &Path) -> Bytes {
    let Ok(entries) = fs_err::read_dir(folder) else { return Bytes::ZERO };
    entries.flatten().filter_map(|entry| Some(Bytes(entry.metadata().ok()?.len()))).sum()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { folder, columns, found } = self;
        let PreparedReport { rows, tokens, shards, bytes, word_bytes, text_bytes, files, .. } = found;
        let (on_disk, text) = (Bytes(*bytes), Bytes(*text_bytes));
        writeln!(f, "{rows} rows of {} file(s), {text} of text: {tokens} tokens of {word_bytes} bytes", files.len())?;
        writeln!(f, "kind: {}; columns: {columns}", kind_name(found.kind))?;
        writeln!(f, "on disk: {on_disk} in {shards} shard(s)")?;
        let sides = if found.lengths.len() > 1 { &["source", "target"][..] } else { &["samples"] };
        for (side, of) in sides.iter().zip(&found.lengths) {
            let cut = if found.splits { String::new() } else { format!(", where {} rows are cut", of.cut) };
            writeln!(f, "{side}: made for {} tokens{cut}; serves {}", of.made_for, of.serves)?;
        }
        writeln!(f, "train from it: --data {}", shell_word(&folder.to_string_lossy()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_checked_against_what_is_free_and_what_was_allowed() {
        let room = Room { estimate: Bytes::mib(100), there: Bytes::ZERO, free: Bytes::mib(104), budget: None };
        let fail = room.check(Path::new("out")).unwrap_err();
        assert_eq!(fail.exit, Exit::DoesNotFit);
        let said = fail.fact.unwrap().to_string();
        assert!(said.contains("105 MiB") && said.contains("104 MiB (free there)"), "{said}");
        // What is there already need not be written.
        let half = Room { there: Bytes::mib(50), ..room };
        assert!(half.check(Path::new("out")).unwrap().contains("50.0 MiB of it there already"));
        let bound = Room { budget: Some(Bytes::mib(60)), ..half };
        assert!(bound.check(Path::new("out")).unwrap_err().fact.unwrap().to_string().contains("the disk budget"));
    }
}
