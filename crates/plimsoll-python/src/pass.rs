//! One pass over the data from a given place: batches of this rank, made here or taken from the ring of the node.
//!
//! Invariant: the stream does not depend on the number of ranks, nor on who makes it. In another process than the one that began it
//! (after a fork) a pass is left alone, since its threads are not there to be joined.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use plimsoll_data::{DataError, GiveUp, Order, Ranks, documents_of};
use plimsoll_plan::batch::{BatchShape, IGNORE};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::batch::{Batch, Labels, Layout};
use crate::crew::{Meeting, RingLost};
use crate::data::Data;
use crate::elsewhere::Stores;
use crate::fault::data_fault;
use crate::held::{Maker, NodeShape};
use crate::making::{Making, Place, Plan};
use crate::node::{Lead, Process, Ring, Role, Seat, Stop, Taken, Work};
use crate::signals::Signals;
use crate::slot::{Counts, Slot, Tokens};
use crate::telling::tell;
use crate::wording::Wording;

/// A rank that waits says so after this part of the patience.
const TOLD_AFTER: u32 = 10;

/// A running pass. What can be asked of it can be asked while a thread waits in `next`.
#[pyclass(frozen, module = "plimsoll._plimsoll")]
pub struct Pass {
    origin: Mutex<ManuallyDrop<Origin>>,
    ring: Option<Arc<Ring>>,
    leads: bool,
    process: u32,
    layout: Layout,
    tokens: Tokens,
    signals: Signals,
    give_up: GiveUp,
    stores: Arc<Stores>,
    /// The pass, and rows of the data.
    epoch: u64,
    rows: u64,
    /// Of the ranks of the node.
    first_rank: usize,
    patience: Duration,
    told_of_absent: AtomicBool,
}

/// Where batches come from.
enum Origin {
    Own(Box<Making>),
    Ring {
        seat: Seat,
        slot: Slot,
        /// Where this process makes the rounds. It ends with this.
        lead: Option<Lead>,
    },
}

/// What came next.
enum Next {
    Batch(Batch, Place),
    Over,
    /// See [`RingLost`].
    Lost(Option<Vec<usize>>, Option<&'static str>),
}

#[pymethods]
impl Pass {
    /// Starts at `place`: with threads of its own, or as what `meeting` made of this rank. Only who makes rounds needs a wording.
    #[new]
    #[pyo3(signature = (data, wording, *, place, seed, shuffle, window, batch_size, source_len, target_len, packed, hf_labels,
        multiple, pad_id, most_id, threads, prefetch, memory, rank, world_size, drop_last, meeting=None))]
    fn new(
        py: Python<'_>,
        data: &Data,
        wording: Option<&Wording>,
        place: Place,
        seed: u64,
        shuffle: bool,
        window: Option<usize>,
        batch_size: usize,
        source_len: usize,
        target_len: usize,
        packed: bool,
        hf_labels: bool,
        multiple: usize,
        pad_id: u32,
        most_id: Option<u32>,
        threads: usize,
        prefetch: usize,
        memory: Option<u64>,
        rank: usize,
        world_size: usize,
        drop_last: bool,
        meeting: Option<&Meeting>,
    ) -> PyResult<Pass> {
        let documents = documents_of(packed, source_len);
        let shape = BatchShape { samples: batch_size, source_len, target_len, documents };
        let order = Order::new(seed, shuffle);
        let order = window.map_or(order, |blocks| order.with_window(blocks));
        let signals = Signals::default();
        let give_up = data.stores().telling(signals.give_up());
        let labels = if hf_labels { Labels::Unshifted } else { Labels::Shifted };
        let layout = Layout { kind: data.sources().kind(), packed, labels, multiple, pad_id };
        let node = meeting.map(|meeting| NodeShape::new(shape, meeting.seats, prefetch));
        let threads = match memory {
            Some(memory) => {
                let mut facts = data.sources().load_facts(order);
                if let Some(wording) = wording {
                    facts = facts.with_recipe(wording.recipe()).with_memo(wording.tokenizer().memo_bytes());
                }
                let maker = match (node, wording) {
                    (None, _) => Maker::Own { prefetch },
                    (Some(node), Some(_)) => Maker::Leader(node),
                    (Some(node), None) => Maker::Other(node),
                };
                let fits = maker.threads_below(memory, &facts, &layout, shape, threads);
                fits.map_err(|needed| too_little(memory, needed))?
            }
            None => threads,
        };
        let plan = wording.map(|wording| Plan {
            sources: data.sources().clone(),
            order,
            tokenizer: wording.tokenizer().clone(),
            recipe: wording.recipe().clone(),
            shape,
            threads,
            prefetch,
            ranks: Ranks { rank, of: world_size },
            drop_last,
        });
        let begin = || match (meeting, plan) {
            (Some(meeting), plan) => join(meeting, plan, data, shape, place),
            (None, Some(plan)) => {
                let making = Making::start(plan, place, give_up.clone()).map_err(data_fault)?;
                Ok(Origin::Own(Box::new(making)))
            }
            (None, None) => Err(no_wording()),
        };
        let origin = py.detach(begin)?;
        let (ring, leads) = match &origin {
            Origin::Own(_) => (None, false),
            Origin::Ring { seat, lead, .. } => (Some(seat.ring.clone()), lead.is_some()),
        };
        Ok(Pass {
            origin: Mutex::new(ManuallyDrop::new(origin)),
            ring,
            leads,
            process: std::process::id(),
            layout,
            // Without a vocabulary's size all numbers are ids, but for the mark of labels that are left out.
            tokens: Tokens { kind: data.sources().kind(), most_id: most_id.unwrap_or(IGNORE - 1) },
            signals,
            give_up,
            stores: data.stores().clone(),
            epoch: place.0,
            rows: data.sources().rows(),
            first_rank: meeting.map_or(rank, |meeting| rank.saturating_sub(meeting.seat)),
            patience: meeting.map_or(Duration::MAX, |meeting| meeting.patience),
            told_of_absent: AtomicBool::new(false),
        })
    }

    /// Waits for the next batch, and says where the stream is behind its round. `None`: the pass is over.
    fn next(&self, py: Python<'_>) -> PyResult<Option<(Batch, Place)>> {
        let next = py.detach(|| match self.origin.try_lock() {
            Ok(mut origin) => Some(self.round(&mut origin)),
            Err(_) => None,
        });
        let next = next.ok_or_else(|| PyRuntimeError::new_err("another thread waits for a batch of this pass"))?;
        if let Some(raised) = self.signals.raised() {
            return Err(raised);
        }
        match next.map_err(data_fault)? {
            Next::Batch(batch, place) => Ok(Some((batch, place))),
            Next::Over => Ok(None),
            Next::Lost(gone, reason) => Err(RingLost::new_err((gone, reason))),
        }
    }

    /// The processes of all seats of the ring, as far as they came (else 0).
    #[getter]
    fn processes(&self) -> Vec<u64> {
        let Some(ring) = &self.ring else { return Vec::new() };
        (0..ring.seats()).map(|seat| ring.process(seat).map_or(0, Process::number)).collect()
    }

    /// Whether this process makes the batches of other ranks too.
    #[getter]
    fn leads(&self) -> bool {
        self.leads
    }
}

fn too_little(memory: u64, needed: u64) -> PyErr {
    let reason = format!(
        "`memory` is {memory} bytes, but one thread takes {needed} of rows, pages and tokens in work, with the batches beside it"
    );
    PyValueError::new_err(reason)
}

/// Takes the seat that a meeting gave; as its leader, starts to make rounds.
fn join(meeting: &Meeting, plan: Option<Plan>, data: &Data, shape: BatchShape, place: Place) -> PyResult<Origin> {
    let Meeting { seat: number, seats, gone, processes, patience, .. } = meeting;
    let (number, seats) = (*number, *seats);
    let (ring, line, lead) = match meeting.take_role() {
        Some(Role::Follow(ring, line)) => (Arc::new(ring), line, None),
        Some(Role::Lead(listener)) => {
            let plan = plan.ok_or_else(no_wording)?;
            let NodeShape { round, prefetch, ring } = NodeShape::new(shape, seats, plan.prefetch);
            let Ranks { rank, of } = plan.ranks;
            let plan = Plan { shape: round, ranks: Ranks { rank: rank / seats, of: of / seats }, prefetch, ..plan };
            let alone = |error: std::io::Error| {
                RingLost::new_err((None::<Vec<usize>>, Some(format!("no ring can be made: {error}"))))
            };
            let stop = Stop::new().map_err(alone)?;
            let asked = stop.clone();
            let making = Making::start(plan, place, Arc::new(move || asked.said())).map_err(data_fault)?;
            let work = Work { making, kind: data.sources().kind(), samples: shape.samples };
            let started = Lead::start(listener, ring, number, gone, processes, *patience, stop, work);
            let (lead, ring, line) = started.map_err(alone)?;
            (ring, line, Some(lead))
        }
        Some(Role::Alone(reason)) => return Err(RingLost::new_err((None::<Vec<usize>>, Some(reason)))),
        None => return Err(PyValueError::new_err("the meeting was already used")),
    };
    let seat = Seat { ring, line, number, round: 0 };
    Ok(Origin::Ring { seat, slot: Slot::new(shape), lead })
}

fn no_wording() -> PyErr {
    PyValueError::new_err("a pass that makes batches needs a wording")
}

impl Pass {
    fn round(&self, origin: &mut Origin) -> Result<Next, DataError> {
        match origin {
            Origin::Own(making) => Ok(match making.next()? {
                Some((found, place)) => lay_out(&self.layout, &making.slot, found, place),
                None => Next::Over,
            }),
            Origin::Ring { seat, slot, .. } => {
                let waiting = Waiting::new(self, seat.ring.clone());
                let taken = seat.take(self.tokens, slot, &|| waiting.give_up());
                Ok(match taken {
                    Taken::Round(_, (epoch, position, ..)) if epoch != self.epoch || position > self.rows => {
                        Next::Lost(None, Some("the shared ring is at a place that cannot be"))
                    }
                    // The last round of a pass may have nothing for us.
                    Taken::Round(Counts { samples: 0, .. }, _) | Taken::Over => Next::Over,
                    Taken::Round(found, place) => lay_out(&self.layout, slot, found, place),
                    Taken::Leaderless(gone) => Next::Lost(Some(gone), None),
                    Taken::Out(reason) => Next::Lost(None, reason),
                    Taken::GaveUp => return Err(DataError::Stopped),
                })
            }
        }
    }
}

/// A rank that waits for a round.
struct Waiting<'a> {
    pass: &'a Pass,
    ring: Arc<Ring>,
    since: Instant,
}

impl<'a> Waiting<'a> {
    fn new(pass: &'a Pass, ring: Arc<Ring>) -> Waiting<'a> {
        Waiting { pass, ring, since: Instant::now() }
    }

    /// Whether to wait no longer. Says once for whom it waits where these have not come, since they may never: what they load, or where
    /// they run, may be something else.
    fn give_up(&self) -> bool {
        let Pass { told_of_absent, first_rank, patience, give_up, .. } = self.pass;
        if self.since.elapsed() >= *patience / TOLD_AFTER && !told_of_absent.load(Ordering::Relaxed) {
            let absent: Vec<String> = self.ring.awaited().map(|seat| (first_rank + seat).to_string()).collect();
            if !absent.is_empty() && !told_of_absent.swap(true, Ordering::Relaxed) {
                let (absent, seconds) = (absent.join(", "), patience.as_secs_f64());
                tell(format!(
                    "waiting for rank {absent} of this node, which did not come to share a loader; after {seconds} seconds the others \
                     go on alone. Ranks meet with the same files, tokenizer and settings, in one network namespace; where they \
                     cannot, give `shared=False`"
                ));
            }
        }
        give_up()
    }
}

fn lay_out(layout: &Layout, slot: &Slot, found: Counts, place: Place) -> Next {
    Next::Batch(Batch::new(layout, slot.rows(found)), place)
}

impl Drop for Pass {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            let held = self.origin.get_mut().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: it is taken here only, and not used after.
            let mut origin = Some(unsafe { ManuallyDrop::take(held) });
            // Its threads are joined, and not with Python's lock in hand; without an interpreter there is no lock.
            let _ = Python::try_attach(|py| py.detach(|| self.stores.ending(|| drop(origin.take()))));
            self.stores.ending(|| drop(origin));
        }
    }
}
