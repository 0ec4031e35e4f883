//! Texts, opened: rows, tokenizer, lengths, and what reading them costs.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use plimsoll_data::{
    Columns, LOADER_CEILING, LoadFacts, Order, RowTexts, Sources, TextTokenizer, documents_of, loader_heap, stacks,
    threads_within, tokenizer_effort,
};
use plimsoll_engine::simd;
use plimsoll_machine::{Bytes, Root, own_memory};
use plimsoll_plan::batch::BatchShape;
use plimsoll_plan::cost::half_octave;
use plimsoll_plan::program::{EvalJob, Job};

use super::data::{RunData, Texts};
use super::{Bound, DataCosts, Opened, PREFETCH, as_begun, device, open_model, samples};
use crate::heap;
use crate::render::{Fail, OrFail};
use crate::settings::{RunLength, Settings};

/// Rows that the loader's rate is measured on.
const RATE_ROWS: u64 = 64;
/// Passes over them: the first warms caches, the best counts.
const RATE_PASSES: usize = 3;

/// Opens model and texts.
pub(super) fn open(settings: &Settings, bound: &Bound, remarks: &mut Vec<String>) -> Result<Opened, Fail> {
    let root = &Root::system();
    let (folder, weights) = open_model(settings, None)?;
    let mut spec = folder.answering_spec();
    if let Some(dropout) = settings.dropout {
        spec.set_dropout(dropout as f32);
    }
    let (sources, kind) = samples::open_sources(settings, &spec, remarks)?;
    let eval = match &settings.eval_data {
        Some(path) => {
            let said = settings.eval_columns();
            let other = sources.is_mixture() && said != Columns::default();
            let same = if other { said } else { sources.columns().again() };
            let reading = samples::Reading::of(settings);
            Some(Arc::new(samples::open(std::slice::from_ref(path), kind, same, reading).or_usage()?))
        }
        None => None,
    };
    if let Some(path) = sources.in_order().next().filter(|_| settings.shuffle) {
        let fail = Fail::usage(format!(
            "`{}` can only be read from its beginning, and `data.unpack` is false",
            path.display()
        ));
        return Err(fail.hint("give `data.shuffle = false` (`--no-shuffle`), or leave out `data.unpack`: then it is packed anew, once, in parts"));
    }
    let left_out = sources.facts().oversized + eval.as_ref().map_or(0, |of| of.facts().oversized);
    if left_out > 0 {
        remarks.push(samples::told_left_out(left_out));
    }
    let tokenizer_path = folder.tokenizer_path().or_usage()?;
    heap::trim();
    let before_tokenizer = own_memory(root)?.rss_anon;
    let tokenizer =
        Arc::new(TextTokenizer::load(&tokenizer_path, spec.vocab(), spec.eos_id(), spec.pad_id()).or_usage()?);
    heap::trim();
    let tokenizer_bytes = own_memory(root)?.rss_anon.saturating_sub(before_tokenizer);
    let recipe = samples::recipe_for(kind, settings.long, &folder, &tokenizer)?;
    remarks.extend(recipe.remark());
    let (source_len, target_len) = samples::lengths(settings, &spec, &sources, &tokenizer, &recipe, remarks)?;
    sources.check_fit(&tokenizer, &recipe, [source_len, target_len]).or_usage()?;
    let effective_batch = settings.effective_batch as usize;
    let documents = documents_of(settings.packed, source_len);
    let ceiling = settings.data_memory.unwrap_or(Bytes(LOADER_CEILING));
    let asked = Order::new(settings.seed, settings.shuffle).with_window(settings.window as usize);
    let order = asked.within(&sources, ceiling.0);
    if order != asked {
        let (window, asked) = (order.window_blocks(), asked.window_blocks());
        remarks.push(format!("shuffle: windows of {window} blocks instead of {asked}, so that their texts take half of {ceiling} at most (`data.memory`)"));
    }
    let job = Job {
        train: settings.train_spec(&spec)?,
        allow: settings.allowed(&spec)?,
        storage: settings.storage(weights.as_ref()),
        spec,
        source_len,
        target_len,
        documents,
        effective_batch,
        optimizer: settings.optimizer.clone(),
        clip: settings.clip_norm.is_some(),
        eval: eval.as_ref().map(|_| EvalJob { beams: 1, max_new: samples::new_tokens(kind, target_len) }),
        threads: settings.threads,
        simd: simd::detect(),
        device: device(settings),
    };
    let lens = (source_len, target_len);
    let job = as_begun(job, bound)?;
    let (source_len, target_len) = (job.source_len, job.target_len);
    let steps = match settings.length {
        RunLength::Steps(n) => n,
        RunLength::Epochs(n) => {
            let samples = samples::of_an_epoch(&sources, order, &tokenizer, &recipe, &job)?;
            (n * samples).div_ceil(settings.effective_batch)
        }
    };
    let loader_rate = loader_rate(&sources, &tokenizer, source_len)?;
    let effort = tokenizer_effort(&tokenizer, &|work| heap::peak_of(work));
    heap::trim();
    let memo = tokenizer.memo_bytes();
    let load_facts =
        |of: &Sources, order| of.load_facts(order).with_recipe(&recipe).with_effort(effort).with_memo(memo);
    let facts = load_facts(&sources, order);
    let eval_facts = eval.as_ref().map(|of| load_facts(of, Order::new(0, false)));
    let evaluation = eval_facts.as_ref().map_or(Bytes::ZERO, |f| Bytes(f.row_texts_bytes()) + Bytes::kib(256));
    let heap_of = move |facts: &LoadFacts, samples: usize, threads: usize| {
        let shape = BatchShape { samples, source_len, target_len, documents };
        Bytes(loader_heap(facts, shape, threads, PREFETCH).total_bytes())
    };
    let loader = move |samples: usize, threads: usize| {
        let eval = eval_facts.as_ref().map_or(Bytes::ZERO, |f| heap_of(f, samples, 1));
        heap_of(&facts, samples, threads) + eval
    };
    let most_loader_threads = match settings.data_memory {
        None => job.threads,
        Some(ceiling) => {
            let heap_of = |threads: usize| (tokenizer_bytes + loader(effective_batch, threads)).0;
            let least = settings.pins.loader_threads.unwrap_or(1) as usize;
            let most = threads_within(ceiling.0, &heap_of, job.threads.max(least)).filter(|most| *most >= least);
            most.ok_or_else(|| above_ceiling(ceiling, tokenizer_bytes, loader(effective_batch, least), least))?
        }
    };
    let opened: Vec<&Sources> = std::iter::once(&*sources).chain(eval.as_deref()).collect();
    let costs = DataCosts {
        tokenizer: tokenizer_bytes,
        rows: Bytes::ZERO,
        loader: Box::new(loader),
        loader_rate,
        most_loader_threads,
        evaluation,
        values: 0,
        cells: 0,
        unpacked: Bytes(opened.iter().map(|of| of.unpacked_bytes()).sum()),
        fetched: samples::fetched(opened.iter().map(|of| of.remote_bytes()).sum(), settings.cache),
        side_files: side_files(&settings.model)?,
    };
    let data = RunData::Texts(Texts { sources, eval, tokenizer, recipe, order, lens });
    Ok(Opened { folder, weights, data, job, steps, costs })
}

/// The loader takes more than the job allows it.
fn above_ceiling(ceiling: Bytes, tokenizer: Bytes, heap: Bytes, threads: usize) -> Fail {
    let stacks = Bytes(stacks(threads));
    let needed = tokenizer + heap + stacks;
    let s = if threads == 1 { "" } else { "s" };
    Fail::usage(format!(
        "`data.memory` is {ceiling}, but the loader takes {needed} with {threads} thread{s}: {tokenizer} for the tokenizer's tables, \
         {heap} for rows, pages and tokens in work, {stacks} for stacks"
    ))
    .hint(format!("`data.memory = \"{}MiB\"` is enough; so may be a smaller `data.window` or fewer `pin.loader_threads`", needed.0.div_ceil(1 << 20)))
}

/// What a model takes over from its source besides weights: every text and tokenizer file, so rather more than less.
fn side_files(model: &Path) -> Result<Bytes, Fail> {
    let mut total = Bytes::ZERO;
    for entry in fs_err::read_dir(model).or_usage()? {
        let path = entry.or_usage()?.path();
        let beside =
            path.extension().is_some_and(|e| ["json", "model", "jinja", "txt"].iter().any(|known| e == *known));
        if beside && path.is_file() {
            total += Bytes(fs_err::metadata(&path).or_usage()?.len());
        }
    }
    Ok(total)
}

/// Tokens a second that one thread makes, over the first rows, or, of prepared data, copies; to the nearest half octave, as the
/// engine's rates are, so that noise does not change a plan.
fn loader_rate(sources: &Arc<Sources>, tokenizer: &TextTokenizer, most: usize) -> Result<f64, Fail> {
    let mut rows = RowTexts::new(sources.clone());
    let (mut tokens, mut memo, mut best) = (Vec::new(), tokenizer.memo(), 1.0f64);
    for _ in 0..RATE_PASSES {
        let (start, mut made) = (Instant::now(), sources.copy_first_block(most).or_usage()?);
        let texts = if sources.is_prepared() { 0 } else { sources.facts().rows.min(RATE_ROWS) };
        for row in 0..texts {
            tokens.clear();
            tokenizer.encode_by(&mut memo, rows.pair(row).or_usage()?.0, most, &mut tokens).or_usage()?;
            made += tokens.len();
        }
        best = best.max(made as f64 / start.elapsed().as_secs_f64().max(1e-9));
    }
    Ok(half_octave(best))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_is_off_by_a_tenth_is_the_same_rate() {
        let rate = half_octave(1e6);
        assert_eq!((half_octave(0.95e6), half_octave(1.1e6)), (rate, rate));
        assert!((rate / 1e6 - 1.0).abs() < 0.2, "{rate}");
        assert!(half_octave(2e6) > rate);
    }

    #[test]
    fn weights_are_no_side_files() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in [("tokenizer.json", 700), ("spiece.model", 40), ("model.safetensors", 5000)] {
            fs_err::write(dir.path().join(name), vec![b' '; bytes]).unwrap();
        }
        assert_eq!(side_files(dir.path()).unwrap(), Bytes(740));
    }
}
