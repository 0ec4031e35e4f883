//! Batches of documents ahead of the step: threads read and tokenise row by row, the caller assembles in order.
//!
//! Invariant: packing depends on lengths that only tokenising tells, so documents go through a tube in the order of the
//! stream, and one assembler, in the caller's thread, makes samples of them. A long text is taken in parts, so that no
//! thread holds all of it. It knows no device and no engine.

use std::sync::{Arc, Mutex};

use plimsoll_plan::batch::{BatchShape, BatchSlot};

use crate::assemble::Assembler;
use crate::buckets::GROUP_BATCHES;
use crate::crew::Crew;
use crate::dealer::Dealer;
use crate::document::{self, Part, Tokens, part_end};
use crate::loader::{BatchFacts, LoaderSettings, Until};
use crate::pairs::lock;
use crate::patience::GiveUp;
use crate::prepared::Fit;
use crate::tokenizer::clip;
use crate::tube::{Ending, Tube, TubeRoom};
use crate::window::{RowPlace, Stream};
use crate::{Cursor, DataError, Kind, Long, Order, Recipe, Sources, TextTokenizer};

/// The running loader of documents.
pub(crate) struct DocumentLoader {
    shared: Arc<Shared>,
    crew: Crew,
    dealer: Dealer<Assembler>,
}

struct Shared {
    feed: Mutex<Feed>,
    tube: Tube,
    sources: Arc<Sources>,
    tokenizer: Arc<TextTokenizer>,
    recipe: Recipe,
    /// Of prepared data: how rows are cut.
    fit: Option<Fit>,
    /// Rows of a sample.
    rows: usize,
    until: Until,
}

/// The stream, and what comes next of it.
struct Feed {
    stream: Stream,
    ticket: u64,
    /// The row that is being taken in parts: where its next part begins.
    within: Option<usize>,
    /// The number of the row in its pass.
    position: u64,
    over: bool,
}

/// A part of a row, in a thread's hands.
struct Taken {
    ticket: u64,
    part: Part,
    ends_epoch: bool,
    place: RowPlace,
}

/// Room for what is ready; of samples that are sorted by length a group, so that threads go on while one is handed out.
pub(crate) fn tube_room(shape: BatchShape, prefetch_batches: usize, by_length: bool) -> TubeRoom {
    let group = if by_length { shape.samples * GROUP_BATCHES } else { 0 };
    TubeRoom::new(shape.source_len, group.max(prefetch_batches * shape.samples))
}

impl DocumentLoader {
    pub fn start(
        sources: Arc<Sources>,
        order: Order,
        tokenizer: Arc<TextTokenizer>,
        recipe: Recipe,
        settings: LoaderSettings,
        until: Until,
    ) -> Result<DocumentLoader, DataError> {
        let LoaderSettings { shape, prefetch_batches, cursor, .. } = settings;
        let fit = sources.fit(&tokenizer, &recipe, [shape.source_len, shape.target_len])?;
        let stream = Stream::start(sources.clone(), order, cursor);
        let assembler = Assembler::new(shape, cursor, recipe.is_by_length());
        let shared = Arc::new(Shared {
            feed: Mutex::new(Feed { stream, ticket: 0, within: None, position: cursor.position, over: false }),
            tube: Tube::new(tube_room(shape, prefetch_batches, recipe.is_by_length())),
            sources,
            tokenizer,
            recipe,
            fit,
            rows: shape.source_len,
            until,
        });
        let dealer = Dealer::new(assembler, &settings);
        let mut loader = DocumentLoader { shared, crew: Crew::default(), dealer };
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

impl Drop for DocumentLoader {
    fn drop(&mut self) {
        self.shared.tube.stop();
        self.crew.end();
    }
}

/// Takes one part after the other: the text under the feed's lock, the tokenising outside of it.
fn produce(shared: &Shared) {
    let mut text = String::new();
    let tokenises = shared.recipe.kind() == Kind::Text && shared.fit.is_none();
    let memo = if tokenises { shared.tokenizer.memo() } else { None };
    let mut tokens = Tokens { memo, ..Tokens::default() };
    loop {
        let (taken, cut) = match shared.take(&mut text, &mut tokens) {
            Ok(Some(taken)) => taken,
            Ok(None) => return,
            Err((ticket, error)) => return shared.tube.fail(ticket, error),
        };
        let Taken { ticket, part, ends_epoch, place } = taken;
        if shared.fit.is_none() {
            let encoded = document::encode(&shared.recipe, &shared.tokenizer, shared.rows, &text, part, &mut tokens);
            if let Err(error) = encoded {
                return shared.tube.fail(ticket, shared.sources.named(place, error));
            }
        }
        let cut = tokens.cut | cut;
        // A row without tokens is one that was left out.
        let dropped = cut && shared.recipe.long() == Long::Drop;
        let words = if dropped { &[] } else { &tokens.words[..] };
        let ending = Ending { row: part.last, epoch: part.last && ends_epoch, cut };
        if !shared.tube.send(ticket, words, ending) {
            return;
        }
    }
}

impl Shared {
    /// The next part of the stream, its text in `text` (of prepared data its tokens in `tokens`), and whether more of the row is left
    /// out. `None`: it is over.
    fn take(&self, text: &mut String, tokens: &mut Tokens) -> Result<Option<(Taken, bool)>, (u64, DataError)> {
        let feed = &mut *lock(&self.feed);
        if feed.over {
            return Ok(None);
        }
        let ticket = feed.ticket;
        let start = match feed.within {
            Some(start) => start,
            None => {
                feed.stream.step().map_err(|error| {
                    feed.over = true;
                    (ticket, error)
                })?;
                0
            }
        };
        let (end, cut) = match &self.fit {
            Some(fit) => (fit.document(feed.stream.tokens(), start, tokens), false),
            None => self.take_text(&feed.stream.current().0[start..], start, text),
        };
        let place = feed.stream.place();
        let ends_epoch = feed.position + 1 == self.sources.rows();
        feed.within = end;
        feed.ticket += 1;
        if end.is_none() {
            feed.position = if ends_epoch { 0 } else { feed.position + 1 };
            if ends_epoch && self.until == Until::EpochEnd {
                feed.over = true;
                self.tube.end_at(feed.ticket);
            }
        }
        let part = Part { first: start == 0, last: end.is_none() };
        Ok(Some((Taken { ticket, part, ends_epoch, place }, cut)))
    }

    /// Copies what may be looked at of `rest`, which begins at `start` of its row. Where the next part begins, and whether more is left out.
    fn take_text(&self, rest: &str, start: usize, text: &mut String) -> (Option<usize>, bool) {
        let (seen, end) = match self.recipe.kind() {
            Kind::Text if self.recipe.splits() => {
                let end = part_end(rest, self.rows);
                (&rest[..end], (end < rest.len()).then_some(start + end))
            }
            Kind::Text => (clip(rest, self.rows + 1), None),
            Kind::Pairs | Kind::Chat => (rest, None),
        };
        text.clear();
        text.push_str(seen);
        (end, end.is_none() && seen.len() < rest.len())
    }
}
