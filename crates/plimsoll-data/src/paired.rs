//! Batches of pairs where a sample is not simply the next row: long pairs are left out, or samples of like length put together.
//!
//! Which pairs make a batch depends on lengths that only tokenising tells, so, as with documents, they go through a tube in the
//! order of the stream, and one assembler, in the caller's thread, makes batches of them. Invariant: as of `pairs.rs`, which is for all
//! other pairs, and where a rank need not tokenise what others get. It knows no device and no engine.

use std::sync::{Arc, Mutex};

use plimsoll_plan::batch::{BatchShape, BatchSlot};

use crate::crew::Crew;
use crate::dealer::Dealer;
use crate::loader::{BatchFacts, LoaderSettings, Until};
use crate::pair_groups::{PairAssembler, group_samples};
use crate::pairs::{copy, lock};
use crate::patience::GiveUp;
use crate::prepared::Fit;
use crate::tokenizer::{clip, clip_bytes};
use crate::tube::{Ending, Tube, TubeRoom};
use crate::window::{RowPlace, Stream};
use crate::{Cursor, DataError, Long, Order, Recipe, Sources, TextTokenizer};

/// The running loader of such pairs.
pub(crate) struct PairedLoader {
    shared: Arc<Shared>,
    crew: Crew,
    dealer: Dealer<PairAssembler>,
}

struct Shared {
    feed: Mutex<Feed>,
    tube: Tube,
    sources: Arc<Sources>,
    tokenizer: Arc<TextTokenizer>,
    /// Of prepared data: how rows are cut.
    fit: Option<Fit>,
    shape: BatchShape,
    drops: bool,
    until: Until,
}

/// The stream, and what comes next of it.
struct Feed {
    stream: Stream,
    ticket: u64,
    /// The number of the row in its pass.
    position: u64,
    over: bool,
}

/// A row, in a thread's hands.
struct Taken {
    ticket: u64,
    ends_epoch: bool,
    place: RowPlace,
    cut: bool,
}

/// Room for what is ready: a group at least, so that threads go on while one is handed out.
pub(crate) fn tube_room(shape: BatchShape, prefetch_batches: usize, by_length: bool) -> TubeRoom {
    let samples = (prefetch_batches * shape.samples).max(group_samples(shape, by_length));
    TubeRoom::new(shape.source_len + shape.target_len, samples)
}

impl PairedLoader {
    pub fn start(
        sources: Arc<Sources>,
        order: Order,
        tokenizer: Arc<TextTokenizer>,
        recipe: &Recipe,
        settings: LoaderSettings,
        until: Until,
    ) -> Result<PairedLoader, DataError> {
        let LoaderSettings { shape, prefetch_batches, cursor, .. } = settings;
        let fit = sources.fit(&tokenizer, recipe, [shape.source_len, shape.target_len])?;
        let stream = Stream::start(sources.clone(), order, cursor);
        let shared = Arc::new(Shared {
            feed: Mutex::new(Feed { stream, ticket: 0, position: cursor.position, over: false }),
            tube: Tube::new(tube_room(shape, prefetch_batches, recipe.is_by_length())),
            sources,
            tokenizer,
            fit,
            shape,
            drops: recipe.long() == Long::Drop,
            until,
        });
        let dealer = Dealer::new(PairAssembler::new(shape, cursor, recipe.is_by_length()), &settings);
        let mut loader = PairedLoader { shared, crew: Crew::default(), dealer };
        let asked = (settings.threads, settings.on_thread_start);
        loader.crew.begin(&loader.shared, asked, produce, |shared, error| shared.tube.fail_now(error))?;
        Ok(loader)
    }

    pub fn next(&mut self, slot: BatchSlot<'_>) -> Result<BatchFacts, DataError> {
        self.dealer.next(&self.shared.tube, slot)
    }

    pub fn give_up_when(&self, asked: GiveUp) {
        self.shared.tube.patience.ends_when(asked);
    }

    pub fn cursor(&self) -> Cursor {
        self.dealer.cursor()
    }
}

impl Drop for PairedLoader {
    fn drop(&mut self) {
        self.shared.tube.stop();
        self.crew.end();
    }
}

/// Takes one row after the other: the texts under the feed's lock, the tokenising outside of it.
fn produce(shared: &Shared) {
    let (shape, facts) = (shared.shape, shared.sources.facts());
    let tokenises = shared.fit.is_none();
    let text = |len: usize, longest: u64| match tokenises {
        true => String::with_capacity(clip_bytes(len).min(longest as usize)),
        false => String::new(),
    };
    let mut texts = [text(shape.source_len, facts.longest_source), text(shape.target_len, facts.longest_target)];
    let mut tokens = [Vec::with_capacity(shape.source_len), Vec::with_capacity(shape.target_len)];
    let mut words = Vec::with_capacity(1 + shape.source_len + shape.target_len);
    let mut memo = if tokenises { shared.tokenizer.memo() } else { None };
    loop {
        let taken = match shared.take(&mut texts, &mut tokens) {
            Ok(Some(taken)) => taken,
            Ok(None) => return,
            Err((ticket, error)) => return shared.tube.fail(ticket, error),
        };
        let Taken { ticket, ends_epoch, place, mut cut } = taken;
        words.clear();
        let [source, target] = &mut tokens;
        // What is left out anyway need not be tokenised.
        if tokenises && !(cut && shared.drops) {
            let tokenizer = &shared.tokenizer;
            let encoded = tokenizer
                .encode_by(&mut memo, &texts[0], shape.source_len, source)
                .and_then(|s| Ok(s | tokenizer.encode_by(&mut memo, &texts[1], shape.target_len, target)?));
            match encoded {
                Ok(truncated) => cut |= truncated,
                Err(error) => return shared.tube.fail(ticket, shared.sources.named(place, error)),
            }
        }
        // A row without words is one that was left out.
        if !(cut && shared.drops) {
            words.push(source.len() as u32);
            words.extend_from_slice(source);
            words.extend_from_slice(target);
        }
        if !shared.tube.send(ticket, &words, Ending { row: true, epoch: ends_epoch, cut }) {
            return;
        }
    }
}

impl Shared {
    /// The next row of the stream, its texts in `texts`, as much of them as may be looked at; of prepared data its tokens in `tokens`.
    /// `None`: it is over.
    fn take(&self, texts: &mut [String; 2], tokens: &mut [Vec<u32>; 2]) -> Result<Option<Taken>, (u64, DataError)> {
        let feed = &mut *lock(&self.feed);
        if feed.over {
            return Ok(None);
        }
        let ticket = feed.ticket;
        let mut cut = false;
        if let Err(error) = feed.stream.step() {
            feed.over = true;
            return Err((ticket, error));
        }
        match &self.fit {
            Some(fit) => cut = fit.pair(feed.stream.tokens(), tokens.each_mut()),
            None => {
                let (source, target) = feed.stream.current();
                cut |= copy(clip(source, self.shape.source_len), source, &mut texts[0]);
                cut |= copy(clip(target, self.shape.target_len), target, &mut texts[1]);
            }
        }
        let ends_epoch = feed.position + 1 == self.sources.rows();
        feed.ticket += 1;
        feed.position = if ends_epoch { 0 } else { feed.position + 1 };
        if ends_epoch && self.until == Until::EpochEnd {
            feed.over = true;
            self.tube.end_at(feed.ticket);
        }
        Ok(Some(Taken { ticket, ends_epoch, place: feed.stream.place(), cut }))
    }
}
