//! Batches of pairs ahead of the step: threads read and tokenise into a fixed ring, the caller only waits and copies. Each row is
//! the next sample; where it is not, `paired.rs` is at work.
//!
//! Invariant: the stream of batches is a function of sources, order, cursor and shape; threads and prefetch change
//! nothing but the waiting. All buffers exist when `start` returns, `next` allocates nothing. The cursor counts what was
//! handed out. It knows no device and no engine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_plan::batch::{BatchShape, BatchSlot};

use crate::crew::Crew;
use crate::loader::{BatchFacts, LoaderSettings};
use crate::patience::GiveUp;
use crate::prepared::Fit;
use crate::ring::Slot;
use crate::share::Share;
use crate::tokenizer::{clip, clip_bytes};
use crate::turns::Turns;
use crate::window::Stream;
use crate::{Cursor, DataError, Order, Recipe, Sources, TextTokenizer};

/// The running loader of pairs.
pub(crate) struct PairLoader {
    shared: Arc<Shared>,
    crew: Crew,
    next_batch: u64,
}

struct Shared {
    feed: Mutex<Feed>,
    slots: Box<[Mutex<Slot>]>,
    turns: Turns,
    tokenizer: Arc<TextTokenizer>,
    /// Of prepared data: how rows are cut.
    fit: Option<Fit>,
    shape: BatchShape,
    share: Share,
    /// Bytes of the longest source and target that are looked at.
    longest_texts: [usize; 2],
}

/// The stream and the number of the next sample, counted from the start of this loader, those of other ranks left out.
struct Feed {
    stream: Stream,
    ticket: u64,
}

impl PairLoader {
    /// Starts the threads at `settings.cursor`.
    pub fn start(
        sources: Arc<Sources>,
        order: Order,
        tokenizer: Arc<TextTokenizer>,
        settings: LoaderSettings,
    ) -> Result<PairLoader, DataError> {
        let LoaderSettings { shape, threads, prefetch_batches, cursor, limit, ranks, on_thread_start, .. } = settings;
        let facts = *sources.facts();
        let fit = sources.fit(&tokenizer, &Recipe::pairs(), [shape.source_len, shape.target_len])?;
        let (samples, pass) = (shape.samples, sources.rows());
        let share = Share { samples, ranks, first: cursor.sample(pass), limit, pass };
        let mut stream = Stream::start(sources, order, cursor);
        stream.skip((ranks.rank * shape.samples) as u64);
        let shared = Arc::new(Shared {
            longest_texts: match &fit {
                Some(_) => [0, 0],
                None => [
                    clip_bytes(shape.source_len).min(facts.longest_source as usize),
                    clip_bytes(shape.target_len).min(facts.longest_target as usize),
                ],
            },
            share,
            feed: Mutex::new(Feed { stream, ticket: 0 }),
            slots: (0..prefetch_batches).map(|_| Mutex::new(Slot::new(shape))).collect(),
            turns: Turns::new(prefetch_batches),
            tokenizer,
            fit,
            shape,
        });
        let mut loader = PairLoader { shared, crew: Crew::default(), next_batch: 0 };
        let asked = (threads, on_thread_start);
        loader.crew.begin(&loader.shared, asked, produce, |shared, error| shared.turns.fail(0, error))?;
        Ok(loader)
    }

    /// Waits for the next batch and copies it into `slot`, packed. Allocates nothing.
    pub fn next(&mut self, slot: BatchSlot<'_>) -> Result<BatchFacts, DataError> {
        let shared = &*self.shared;
        let batch = self.next_batch;
        let samples = shared.share.of_batch(batch);
        if samples == 0 {
            slot.source_lens.fill(0);
            slot.target_lens.fill(0);
            let round_samples = shared.share.of_round(batch);
            // The last round is over for those too who have nothing in it.
            self.next_batch += u64::from(round_samples > 0);
            return Ok(BatchFacts { round_samples, cursor_after: self.cursor(), ..BatchFacts::default() });
        }
        shared.turns.wait_for(batch, (batch + 1) * shared.shape.samples as u64)?;
        let mut facts = lock(&shared.slots[shared.turns.place(batch)]).take(samples, shared.shape, slot);
        shared.turns.took(batch);
        self.next_batch += 1;
        facts.round_samples = shared.share.of_round(batch);
        facts.cursor_after = self.cursor();
        Ok(facts)
    }

    pub fn give_up_when(&self, asked: GiveUp) {
        self.shared.turns.give_up_when(asked);
    }

    /// The next sample that was not handed out, to any rank.
    pub fn cursor(&self) -> Cursor {
        self.shared.share.cursor(self.next_batch)
    }
}

impl Drop for PairLoader {
    fn drop(&mut self) {
        self.shared.turns.stop();
        self.crew.end();
    }
}

/// Takes one sample after the other: the text under the feed's lock, the tokenising outside of it.
fn produce(shared: &Shared) {
    let shape = shared.shape;
    let mut source = String::with_capacity(shared.longest_texts[0]);
    let mut target = String::with_capacity(shared.longest_texts[1]);
    let mut source_tokens = Vec::with_capacity(shape.source_len);
    let mut target_tokens = Vec::with_capacity(shape.target_len);
    let mut memo = if shared.fit.is_none() { shared.tokenizer.memo() } else { None };
    loop {
        let mut feed = lock(&shared.feed);
        let ticket = feed.ticket;
        let (batch, row) = (ticket / shape.samples as u64, (ticket % shape.samples as u64) as usize);
        if row >= shared.share.of_batch(batch) || !shared.turns.wait_for_room(batch) {
            return;
        }
        if row == 0 && batch > 0 {
            feed.stream.skip(((shared.share.ranks.of - 1) * shape.samples) as u64);
        }
        let mut cut = false;
        if let Err(error) = feed.stream.step() {
            drop(feed);
            return shared.turns.fail(ticket, error);
        }
        match &shared.fit {
            Some(fit) => cut = fit.pair(feed.stream.tokens(), [&mut source_tokens, &mut target_tokens]),
            None => {
                let (s, t) = feed.stream.current();
                cut |= copy(clip(s, shape.source_len), s, &mut source);
                cut |= copy(clip(t, shape.target_len), t, &mut target);
            }
        }
        feed.ticket += 1;
        drop(feed);

        if shared.fit.is_none() {
            let tokenizer = &shared.tokenizer;
            let encoded = tokenizer
                .encode_by(&mut memo, &source, shape.source_len, &mut source_tokens)
                .and_then(|s| Ok(s | tokenizer.encode_by(&mut memo, &target, shape.target_len, &mut target_tokens)?));
            match encoded {
                Ok(truncated) => cut |= truncated,
                Err(error) => return shared.turns.fail(ticket, error),
            }
        }
        let slot = &shared.slots[shared.turns.place(batch)];
        let done = lock(slot).put(row, shape, &source_tokens, &target_tokens, cut);
        if done == shared.share.of_batch(batch) {
            shared.turns.completed(batch);
        }
    }
}

/// Puts `part` into `into`; whether it is less than the whole.
pub(crate) fn copy(part: &str, whole: &str, into: &mut String) -> bool {
    into.clear();
    into.push_str(part);
    part.len() < whole.len()
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
