//! The loader alone, in a process of its own, for `bench/loader`: batches of texts from files, as fast as they come.
//!
//!     loader_speed FILE... --tokenizer FOLDER/tokenizer.json [--length 256] [--batch 32] [--threads 2] [--window 64]
//!                  [--memory MIB] [--seconds 8 | --passes N] [--cache FOLDER] [--row N]
//!
//! Prints `began` with the first batch, and how long it took to open the files and to get it (from row N of the pass on; with a folder in which
//! what is found out about the files is kept), then a line of JSON: rows and tokens a second, and the MiB that the process has at its end and had
//! at its peak above those that it had before it opened anything. With `--passes`, a line after each pass. With `--memory`, window and
//! threads are what that ceiling leaves, and pages of the files do not stay in the page cache.

#![allow(clippy::print_stdout)] // the figures

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use plimsoll_data::{
    Columns, Cursor, Kind, LOADER_CEILING, Loader, LoaderSettings, Long, Opening, Order, Ranks, Recipe, Sources,
    TextTokenizer, loader_heap, threads_within,
};
use plimsoll_plan::batch::{BatchShape, BatchSlot};

const PREFETCH: usize = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let before = resident("VmRSS:")?;
    let (mut files, mut said) = (Vec::new(), BTreeMap::new());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.strip_prefix("--") {
            Some(name) => drop(said.insert(name.to_string(), words.next().unwrap_or_default())),
            None => files.push(PathBuf::from(word)),
        }
    }
    let number = |name: &str, default: usize| said.get(name).map_or(Ok(default), |n| n.parse::<usize>());
    let (length, batch) = (number("length", 256)?, number("batch", 32)?);
    let (seconds, passes) = (number("seconds", 8)? as f64, number("passes", 0)? as u64);
    let ceiling = number("memory", 0)? as u64 * (1 << 20);

    let tokenizer = PathBuf::from(said.get("tokenizer").ok_or("--tokenizer is missing")?);
    let tokenizer = Arc::new(TextTokenizer::load(&tokenizer, usize::MAX, 1, 0)?);
    let tables = (resident("VmRSS:")? - before) * 1024;
    let folder = said.get("cache").map(PathBuf::from);
    let cached = if ceiling > 0 { 0 } else { u64::MAX };
    let opening = Opening { folder: folder.as_deref(), cached, ..Opening::default() };
    let start = Instant::now();
    let sources = Arc::new(Sources::open_with(&files, Kind::Text, Columns::default(), opening)?);
    let opened = start.elapsed().as_secs_f64();
    let shape = BatchShape { samples: batch, source_len: length, target_len: length, documents: 1 };
    let recipe = Recipe::text(Long::Cut, None);
    let order = Order::new(1, true).with_window(number("window", 64)?);
    let order = order.within(&sources, if ceiling > 0 { ceiling } else { LOADER_CEILING });
    let facts = sources.load_facts(order).with_recipe(&recipe).with_memo(tokenizer.memo_bytes());
    let heap = |threads: usize| tables + loader_heap(&facts, shape, threads, PREFETCH).total_bytes();
    let mut threads = number("threads", 2)?;
    if ceiling > 0 {
        let most = threads_within(ceiling, &heap, threads);
        threads = most.ok_or_else(|| format!("one thread takes {} MiB", heap(1) >> 20))?;
    }
    println!("planned {} MiB: {} blocks a window, {threads} threads", heap(threads) >> 20, order.window_blocks());

    let settings = LoaderSettings {
        shape,
        effective_batch: batch,
        threads,
        prefetch_batches: PREFETCH,
        cursor: Cursor { position: number("row", 0)? as u64, ..Cursor::default() },
        limit: None,
        ranks: Ranks::ONE,
        on_thread_start: None,
    };
    let mut loader = Loader::start(sources, order, tokenizer, recipe, settings)?;
    let mut buffers = [vec![0; batch * length], vec![0; batch * length], vec![0; batch], vec![0; batch]];
    let [source, target, source_lens, target_lens] = &mut buffers;
    let (mut began, mut rows, mut tokens, mut pass) = (None, 0, 0, 0);
    loop {
        let facts = loader.next(BatchSlot { source, target, source_lens, target_lens })?;
        let Some(began) = began else {
            began = Some(Instant::now());
            println!("began: {opened:.3} s to open, {:.3} s to the first batch", start.elapsed().as_secs_f64());
            continue;
        };
        rows += facts.samples;
        tokens += facts.source_tokens;
        let passed = Instant::now().duration_since(began).as_secs_f64();
        let over = if passes > 0 { facts.cursor_after.epoch >= passes } else { passed > seconds };
        if over || (passes > 0 && facts.cursor_after.epoch > pass) {
            pass = facts.cursor_after.epoch;
            let mib = |name: &str| Ok::<_, Box<dyn std::error::Error>>((resident(name)? - before) >> 10);
            println!(
                "{{\"rows\": {:.1}, \"tokens\": {:.1}, \"mib\": {}, \"peak_mib\": {}}}",
                rows as f64 / passed,
                tokens as f64 / passed,
                mib("VmRSS:")?,
                mib("VmHWM:")?
            );
        }
        if over {
            return Ok(());
        }
    }
}

/// A line of this process's status, in KiB.
fn resident(name: &str) -> Result<u64, Box<dyn std::error::Error>> {
    let status = fs_err::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
