//! The loader alone, in a process of its own, for `bench/loader`: batches of texts from files, as fast as they come.
//!
//!     loader_speed FILE... --tokenizer FOLDER/tokenizer.json [--length 256] [--batch 32] [--threads 2] [--seconds 8] [--order file]
//!
//! Prints `began` with the first batch, then a line of JSON with rows and tokens a second.

#![allow(clippy::print_stdout)] // the figures

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use plimsoll_data::{
    Columns, Cursor, Kind, Loader, LoaderSettings, Long, Order, Ranks, Recipe, Sources, TextTokenizer,
};
use plimsoll_plan::batch::{BatchShape, BatchSlot};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut files, mut said) = (Vec::new(), std::collections::BTreeMap::new());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.strip_prefix("--") {
            Some(name) => drop(said.insert(name.to_string(), words.next().unwrap_or_default())),
            None => files.push(PathBuf::from(word)),
        }
    }
    let number = |name: &str, default: usize| said.get(name).map_or(Ok(default), |n| n.parse::<usize>());
    let (length, batch) = (number("length", 256)?, number("batch", 32)?);
    let seconds = number("seconds", 8)? as f64;
    let tokenizer = PathBuf::from(said.get("tokenizer").ok_or("--tokenizer is missing")?);
    let tokenizer = Arc::new(TextTokenizer::load(&tokenizer, usize::MAX, 1, 0)?);
    let sources = Arc::new(Sources::open_kind(&files, Kind::Text, Columns::default())?);
    let shape = BatchShape { samples: batch, source_len: length, target_len: length, documents: 1 };
    let settings = LoaderSettings {
        shape,
        effective_batch: batch,
        threads: number("threads", 2)?,
        prefetch_batches: 4,
        cursor: Cursor::default(),
        limit: None,
        ranks: Ranks::ONE,
        on_thread_start: None,
    };
    let order = Order::new(1, said.get("order").is_none_or(|order| order != "file"));
    let mut loader = Loader::start(sources, order, tokenizer, Recipe::text(Long::Cut, None), settings)?;
    let mut buffers = [vec![0; batch * length], vec![0; batch * length], vec![0; batch], vec![0; batch]];
    let [source, target, source_lens, target_lens] = &mut buffers;
    let (mut began, mut rows, mut tokens) = (None, 0, 0);
    loop {
        let facts = loader.next(BatchSlot { source, target, source_lens, target_lens })?;
        let Some(began) = began else {
            began = Some(Instant::now());
            println!("began");
            continue;
        };
        rows += facts.samples;
        tokens += facts.source_tokens;
        let passed = Instant::now().duration_since(began).as_secs_f64();
        if passed > seconds {
            println!("{{\"rows\": {:.1}, \"tokens\": {:.1}}}", rows as f64 / passed, tokens as f64 / passed);
            return Ok(());
        }
    }
}
