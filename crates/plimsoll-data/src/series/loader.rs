//! Batches of windows ahead of the step: threads fill a fixed ring, the caller only waits and copies.
//!
//! Invariant: the stream of samples is a function of series, part, order and cursor; threads, prefetch, micro-batch and ranks change nothing but the
//! waiting and who gets what. Which sample comes when is computed (a permutation of its own for each pass), so any place is entered at
//! once. All buffers exist when `start` returns, `next` allocates nothing. The cursor counts what was handed out. It knows no device and
//! no engine.

use std::sync::{Arc, Mutex};

use plimsoll_plan::batch::IGNORE;
use plimsoll_plan::series_batch::{SeriesShape, SeriesSlot};

use super::{Cells, Part, Series};
use crate::crew::Crew;
use crate::order::{Draws, permuted};
use crate::pairs::lock;
use crate::patience::GiveUp;
use crate::share::Share;
use crate::turns::Turns;
use crate::{Cursor, DataError, Order, Ranks, ThreadHook};

/// How to load.
#[derive(Clone)]
pub struct SeriesSettings {
    /// Shape of one micro-batch; [`Series::shape`].
    pub shape: SeriesShape,
    /// Threads that read.
    pub threads: usize,
    /// Micro-batches held ready.
    pub prefetch_batches: usize,
    /// The first sample.
    pub cursor: Cursor,
    /// Stop after so many samples of the stream; the last batch may be smaller. `None`: endless.
    pub limit: Option<u64>,
    /// Whose batches are handed out.
    pub ranks: Ranks,
    /// Called first in each thread.
    pub on_thread_start: Option<ThreadHook>,
}

/// What a batch holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeriesBatch {
    /// Samples; 0 when a limited loader is at its end.
    pub samples: usize,
    /// Those whose class is known.
    pub classes: usize,
    /// Values that are known.
    pub values: usize,
    /// Samples of the whole round: of this batch and of those that the other ranks have.
    pub round_samples: usize,
    /// The place behind this batch, and behind those of its round that the other ranks have.
    pub cursor_after: Cursor,
}

/// The running loader.
pub struct SeriesLoader {
    shared: Arc<Shared>,
    crew: Crew,
    next_batch: u64,
}

struct Shared {
    series: Arc<Series>,
    part: Part,
    order: Order,
    shape: SeriesShape,
    share: Share,
    slots: Box<[Mutex<Slot>]>,
    /// The next batch to be made.
    next: Mutex<u64>,
    turns: Turns,
}

/// One place of the ring.
struct Slot {
    inputs: Box<[f32]>,
    classes: Box<[u32]>,
    values: Box<[f32]>,
}

/// Heap of a place of the ring, in bytes.
pub(super) fn slot_bytes(shape: SeriesShape) -> u64 {
    let SeriesShape { samples, window, features, values } = shape;
    (samples * (window * features + 1 + values) * 4 + size_of::<Mutex<Slot>>() + size_of::<bool>()) as u64
}

impl Slot {
    fn new(shape: SeriesShape) -> Slot {
        let SeriesShape { samples, window, features, values } = shape;
        Slot {
            inputs: vec![0.0; samples * window * features].into(),
            classes: vec![0; samples].into(),
            values: vec![0.0; samples * values].into(),
        }
    }
}

impl SeriesLoader {
    /// Starts the threads at `settings.cursor`.
    pub fn start(
        series: Arc<Series>,
        part: Part,
        order: Order,
        settings: SeriesSettings,
    ) -> Result<SeriesLoader, DataError> {
        let pass = series.samples(part);
        check(&settings, &series, pass)?;
        let SeriesSettings { shape, threads, prefetch_batches, cursor, limit, ranks, on_thread_start } = settings;
        let share = Share { samples: shape.samples, ranks, first: cursor.sample(pass), limit, pass };
        let shared = Arc::new(Shared {
            series,
            part,
            order,
            shape,
            share,
            slots: (0..prefetch_batches).map(|_| Mutex::new(Slot::new(shape))).collect(),
            next: Mutex::new(0),
            turns: Turns::new(prefetch_batches),
        });
        let mut loader = SeriesLoader { shared, crew: Crew::default(), next_batch: 0 };
        let asked = (threads, on_thread_start);
        loader.crew.begin(&loader.shared, asked, produce, |shared, error| shared.turns.fail(0, error))?;
        Ok(loader)
    }

    /// As [`SeriesLoader::start`], ending with the pass that `settings.cursor` is in: from then on batches have no samples.
    pub fn start_pass(
        series: Arc<Series>,
        part: Part,
        order: Order,
        settings: SeriesSettings,
    ) -> Result<SeriesLoader, DataError> {
        let left = series.samples(part).saturating_sub(settings.cursor.position);
        SeriesLoader::start(series, part, order, SeriesSettings { limit: Some(left), ..settings })
    }

    /// Waits for the next batch and copies it into `slot`. What a smaller batch leaves is 0, [`IGNORE`] and NaN. Allocates nothing.
    pub fn next(&mut self, slot: SeriesSlot<'_>) -> Result<SeriesBatch, DataError> {
        let (shared, batch) = (&*self.shared, self.next_batch);
        check_slot(&slot, shared.shape)?;
        let samples = shared.share.of_batch(batch);
        let round_samples = shared.share.of_round(batch);
        if samples > 0 {
            shared.turns.wait_for(batch, batch + 1)?;
            let made = lock(&shared.slots[shared.turns.place(batch)]);
            slot.inputs[..made.inputs.len()].copy_from_slice(&made.inputs);
            slot.classes[..made.classes.len()].copy_from_slice(&made.classes);
            slot.values[..made.values.len()].copy_from_slice(&made.values);
            drop(made);
            shared.turns.took(batch);
        }
        // Also where only others have samples of the last round, so that all are at the same place behind it.
        self.next_batch += u64::from(round_samples > 0);
        let SeriesShape { window, features, values, .. } = shared.shape;
        slot.inputs[samples * window * features..].fill(0.0);
        slot.classes[samples..].fill(IGNORE);
        slot.values[samples * values..].fill(f32::NAN);
        Ok(SeriesBatch {
            samples,
            classes: slot.classes[..samples].iter().filter(|class| **class != IGNORE).count(),
            values: slot.values[..samples * values].iter().filter(|value| !value.is_nan()).count(),
            round_samples,
            cursor_after: self.cursor(),
        })
    }

    /// Asks `asked` now and then while [`SeriesLoader::next`] waits. Where it says yes, `next` fails with [`DataError::Stopped`], and the
    /// loader is of no further use. Only the first call counts.
    pub fn give_up_when(&self, asked: GiveUp) {
        self.shared.turns.give_up_when(asked);
    }

    /// The next sample that was not handed out, to any rank.
    pub fn cursor(&self) -> Cursor {
        self.shared.share.cursor(self.next_batch)
    }
}

impl Drop for SeriesLoader {
    fn drop(&mut self) {
        self.shared.turns.stop();
        self.crew.end();
    }
}

impl Shared {
    /// Which sample has this number in the endless stream.
    fn sample(&self, number: u64) -> u64 {
        let pass = self.share.pass;
        let Cursor { epoch, position, .. } = Cursor::at(number, pass);
        match self.order.shuffles() {
            true => permuted(Draws::new([self.order.seed(), epoch, SERIES]).key(), position, pass),
            false => position,
        }
    }

    /// Waits until there is room for another batch; its number, or none when there is nothing more to do.
    fn take(&self) -> Option<u64> {
        let mut next = lock(&self.next);
        let batch = *next;
        if self.share.of_batch(batch) == 0 || !self.turns.wait_for_room(batch) {
            return None;
        }
        *next += 1;
        Some(batch)
    }

    fn fill(&self, batch: u64, cells: &mut Cells, slot: &mut Slot) -> Result<(), DataError> {
        let SeriesShape { window, features, values, .. } = self.shape;
        let first = self.share.first + self.share.before(batch);
        for at in 0..self.share.of_batch(batch) {
            let number = self.sample(first + at as u64);
            let inputs = &mut slot.inputs[at * window * features..][..window * features];
            let its_values = &mut slot.values[at * values..][..values];
            slot.classes[at] = self.series.fill(self.part, number, cells, inputs, its_values)?;
        }
        Ok(())
    }
}

/// Keys the permutation of samples, apart from other draws of the same seed.
const SERIES: u64 = 0x7365_7269_6573;

/// Makes one batch after the other.
fn produce(shared: &Shared) {
    let mut cells = shared.series.scratch();
    while let Some(batch) = shared.take() {
        if let Err(error) = shared.fill(batch, &mut cells, &mut lock(&shared.slots[shared.turns.place(batch)])) {
            // Whole batches are what is counted here.
            return shared.turns.fail(batch, error);
        }
        shared.turns.completed(batch);
    }
}

fn check(settings: &SeriesSettings, series: &Series, pass: u64) -> Result<(), DataError> {
    let SeriesSettings { shape, threads, prefetch_batches, cursor, ranks, .. } = settings;
    let at_least_one = [
        ("samples", shape.samples),
        ("threads", *threads),
        ("prefetch_batches", *prefetch_batches),
        ("ranks", ranks.of),
    ];
    for (setting, found) in at_least_one {
        if found == 0 {
            return Err(DataError::BadSetting { setting, found: 0, expected: "at least 1".into() });
        }
    }
    let own = series.shape(shape.samples);
    let same = [
        ("window", shape.window, own.window),
        ("features", shape.features, own.features),
        ("values", shape.values, own.values),
    ];
    for (setting, found, expected) in same {
        if found != expected {
            let (found, expected) = (found as u64, format!("the {expected} of the series"));
            return Err(DataError::BadSetting { setting, found, expected });
        }
    }
    if ranks.rank >= ranks.of {
        let expected = format!("below the {} ranks", ranks.of);
        return Err(DataError::BadSetting { setting: "rank", found: ranks.rank as u64, expected });
    }
    if cursor.position >= pass {
        let expected = format!("below the {pass} samples of a pass");
        return Err(DataError::BadSetting { setting: "cursor.position", found: cursor.position, expected });
    }
    Ok(())
}

/// Says whether `slot` can take any batch of `shape`.
fn check_slot(slot: &SeriesSlot<'_>, shape: SeriesShape) -> Result<(), DataError> {
    let SeriesShape { samples, window, features, values } = shape;
    let parts = [
        ("inputs", slot.inputs.len(), samples * window * features),
        ("classes", slot.classes.len(), samples),
        ("values", slot.values.len(), samples * values),
    ];
    match parts.into_iter().find(|(_, found, expected)| found < expected) {
        Some((part, found, expected)) => Err(DataError::SlotTooSmall { part, expected, found }),
        None => Ok(()),
    }
}
