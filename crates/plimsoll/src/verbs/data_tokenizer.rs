//! `plimsoll data tokenizer`: a tokenizer trained on the data.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use plimsoll_data::{DataError, Phase, Vocabulary, VocabularyModel, VocabularySettings, train_tokenizer};
use plimsoll_machine::Bytes;
use plimsoll_recover::atomic_write;
use serde::Serialize;

use super::data::{ColumnsTold, bar, open};
use crate::args::TokenizerArgs;
use crate::render::{self, Fail};
use crate::settings::kind_name;

/// What is told of the tokenizer.
#[derive(Serialize)]
struct Report {
    model: VocabularyModel,
    kind: &'static str,
    columns: ColumnsTold,
    #[serde(flatten)]
    found: Vocabulary,
    vocab: u64,
    seed: u64,
    memory_bytes: u64,
    eos_id: u32,
    pad_id: u32,
    files: [PathBuf; 2],
}

/// Does what was asked.
pub(super) fn run(args: &TokenizerArgs) -> Result<(), Fail> {
    let model = model_named(&args.model)?;
    let files = ["tokenizer.json", "tokenizer_config.json"].map(|name| args.out.join(name));
    refuse_existing(&files, args.force)?;
    let (sources, kind) = open(&args.files, &args.rows_of)?;
    let usual = if model == VocabularyModel::Unigram { 1 } else { 2 };
    let settings = VocabularySettings {
        model,
        vocab: args.vocab.0,
        special: args.special.clone(),
        min_frequency: args.min_frequency.map_or(usual, |n| n.0),
        memory: args.memory.0,
        rows: args.rows.map(|n| n.0),
        seed: args.seed,
    };
    let mut progress = bar(sources.rows());
    let trained = train_tokenizer(&sources, &settings, &mut |phase| match phase {
        Phase::Counting(rows) => progress.set_position(rows),
        Phase::Training(words) => {
            progress.finish_and_clear();
            progress = spinner(words);
        }
    });
    progress.finish_and_clear();
    let (texts, found) = trained.map_err(remedied)?;

    fs_err::create_dir_all(&args.out)?;
    // Somebody may have written there meanwhile; training takes its time.
    refuse_existing(&files, args.force)?;
    atomic_write(&files[1], texts.config.as_bytes())?;
    atomic_write(&files[0], texts.tokenizer.as_bytes())?;

    let report = Report {
        model,
        kind: kind_name(kind),
        columns: ColumnsTold::of(&sources),
        found,
        vocab: settings.vocab,
        seed: settings.seed,
        memory_bytes: settings.memory,
        eos_id: texts.eos_id,
        pad_id: texts.pad_id,
        files,
    };
    if args.json { render::json(&report) } else { render::data(&report) }
}

fn model_named(name: &str) -> Result<VocabularyModel, Fail> {
    match name {
        "bpe" => Ok(VocabularyModel::Bpe),
        "unigram" => Ok(VocabularyModel::Unigram),
        "wordpiece" => Ok(VocabularyModel::WordPiece),
        _ => Err(Fail::usage(format!("`--model` must be `bpe`, `unigram` or `wordpiece`, found `{name}`"))),
    }
}

fn refuse_existing(files: &[PathBuf], force: bool) -> Result<(), Fail> {
    let there = |path: &&PathBuf| Path::symlink_metadata(path).is_ok();
    match files.iter().find(there) {
        Some(path) if !force => {
            let fact = format!("expected to write `{}`, found that it is there", path.display());
            Err(Fail::usage(fact).hint("another `--out`, or `--force` to write over it"))
        }
        _ => Ok(()),
    }
}

/// The error, with what to do about it.
fn remedied(error: DataError) -> Fail {
    let hint = match &error {
        DataError::VocabularyTooSmall { expected, .. } => Some(format!("`--vocab {expected}` or more")),
        DataError::BadVocabularySetting { setting: "memory", .. } => Some("another `--memory` or `--vocab`".into()),
        _ => None,
    };
    let exit = match error {
        DataError::NotTrained { .. } => render::Exit::Failed,
        _ => render::Exit::BadInput,
    };
    let fail = Fail::new(exit, error);
    match hint {
        Some(hint) => fail.hint(hint),
        None => fail,
    }
}

/// That the trainer is at work, on a terminal: it does not say how far it is.
fn spinner(words: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} training on {msg} words, {elapsed}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
    let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style);
    spinner.set_message(words.to_string());
    spinner.enable_steady_tick(Duration::from_millis(200));
    spinner
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { model, kind, columns, found, vocab, .. } = self;
        let Vocabulary { tokens, fed, occurrences, words, pruned, left_out, divided_by, characters } = found;
        let share = |part: u64| 100.0 * part as f64 / (*occurrences).max(1) as f64;
        let drawn = if fed.rows < fed.of_rows { format!(", drawn by seed {}", self.seed) } else { String::new() };
        let rows = format!("{} of {} rows{drawn}", fed.rows, fed.of_rows);
        writeln!(f, "read: {rows}, {} of text; kind: {kind}; columns: {columns}", Bytes(fed.text_bytes))?;
        writeln!(f, "words: {occurrences} in all, trained on {words} different ones")?;
        if pruned.words > 0 {
            writeln!(
                f,
                "pruned while counting, for {} of memory: {} rare words, {:.3} % of all; no count is short by more than {}",
                Bytes(self.memory_bytes),
                pruned.words,
                share(pruned.occurrences),
                pruned.most_short
            )?;
        }
        if left_out.words > 0 {
            writeln!(
                f,
                "not trained on: {} words that occur up to {} time(s), {:.3} % of all",
                left_out.words,
                left_out.commonest,
                share(left_out.occurrences)
            )?;
        }
        if fed.long_words > 0 {
            writeln!(f, "counted in parts: {} very long words", fed.long_words)?;
        }
        if *divided_by > 1 {
            writeln!(f, "counts were divided by {divided_by}: the trainer adds up in 32 bits")?;
        }
        if let Some(of) = characters {
            write!(f, "characters: {} with a token of their own", of.kept)?;
            if of.left_out > 0 {
                let share = 100.0 * of.left_out_share;
                write!(f, "; {} others, {share:.3} % of the text, are read as unknown", of.left_out)?;
            }
            writeln!(f)?;
        }
        let fewer =
            if tokens < vocab { format!(" of {vocab} asked for: the data have no more") } else { String::new() };
        let name = match model {
            VocabularyModel::Bpe => "bpe",
            VocabularyModel::Unigram => "unigram",
            VocabularyModel::WordPiece => "wordpiece",
        };
        writeln!(f, "{name}: {tokens} tokens{fewer}; end of sequence {}, padding {}", self.eos_id, self.pad_id)?;
        let [tokenizer, config] = &self.files;
        writeln!(f, "wrote {} and {}", tokenizer.display(), config.display())
    }
}
