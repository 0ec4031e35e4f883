//! The process: signals, the look once a second, and what is copied in which order.
//!
//! Invariant: beside a run the first stop means "finish what is there", the second "end now"; for somebody who waits
//! the first one already does. Whenever it ends, the next one goes on.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use fs_err as fs;
use futures_util::future::select_all;
use object_store::ObjectStoreExt;
use plimsoll_recover::RunLock;
use serde::{Deserialize, Serialize};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::MirrorError;
use crate::layout::{DESCRIPTION, IDENTITY, JOB, JOURNAL, PLAN, SUMMARY};
use crate::patience::{Patience, SLOW};
use crate::remote::{Missing, Remote};
use crate::report::{End, Mode, Report, Wish};
use crate::send::{Meter, Mirror};
use crate::state::{self, FOLDER};

/// How often it is looked for new checkpoints.
const LOOK: Duration = Duration::from_secs(1);

/// `mirror.json`: whose mirror it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// The run's name.
    pub run: String,
}

/// Copies what is missing and returns. `SIGTERM`, `SIGINT` and `SIGHUP` end it at once.
pub fn once(wish: &Wish, report: &mut dyn FnMut(Report)) -> Result<End, MirrorError> {
    run(wish, Mode::Once, report)
}

/// Copies beside a run, until a first signal (`SIGTERM`, `SIGINT`, `SIGHUP`) makes it finish what is there and return;
/// a second one ends it at once.
pub fn follow(wish: &Wish, report: &mut dyn FnMut(Report)) -> Result<End, MirrorError> {
    run(wish, Mode::Following, report)
}

fn run(wish: &Wish, mode: Mode, report: &mut dyn FnMut(Report)) -> Result<End, MirrorError> {
    let own = wish.run.join(FOLDER);
    fs::create_dir_all(&own)?;
    // Two that write one state would undo each other's work.
    let _lock = RunLock::take(&own, Duration::ZERO)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let end = runtime.block_on(async {
        let (change, now) = watch::channel(mode);
        let stops = stops()?;
        let work = work(wish, Patience::new(&wish.url, now, report));
        tokio::select! {
            end = work => end,
            () = told_to_end(stops, &change) => Ok(End::Interrupted),
        }
    });
    runtime.shutdown_background();
    end
}

/// Copies. Beside a run nothing ends it but a stop: what only a person can cure (a wrong URL, credentials, another run's
/// mirror) is told, and tried again slowly with what the person may have changed.
async fn work<'a>(wish: &'a Wish, patience: Patience<'a>) -> Result<End, MirrorError> {
    let mut told = None;
    loop {
        let end = match Mirror::open(wish, patience.clone()) {
            Ok(mirror) => mirror.work().await,
            Err(error) => Err(error),
        };
        match end {
            Err(error) if patience.mode() == Mode::Following => {
                let message = Some(error.to_string());
                if told != message {
                    patience.tell(Report::Trouble { message: error.to_string() });
                    told = message;
                }
                patience.rest(SLOW).await;
            }
            end => return end,
        }
    }
}

/// The signals that stop it. One that was being ignored when the process started (`nohup`) stays ignored.
fn stops() -> Result<Vec<Signal>, MirrorError> {
    let ignored = ignored_signals();
    let mut stops = Vec::new();
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
        if kind == SignalKind::terminate() || ignored & (1 << (kind.as_raw_value() - 1)) == 0 {
            stops.push(signal(kind)?);
        }
    }
    Ok(stops)
}

/// The signals that this process ignores, as the kernel tells it: bit n for signal n + 1.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Returns when it shall end at once.
async fn told_to_end(mut stops: Vec<Signal>, change: &watch::Sender<Mode>) {
    loop {
        select_all(stops.iter_mut().map(|stop| Box::pin(stop.recv()))).await;
        if *change.borrow() != Mode::Following {
            return;
        }
        change.send_replace(Mode::Finishing);
    }
}

impl<'a> Mirror<'a> {
    fn open(wish: &'a Wish, patience: Patience<'a>) -> Result<Mirror<'a>, MirrorError> {
        let remote = Remote::open(&wish.url, wish.rate, Missing::Make)?;
        let mut state = state::read(&wish.run)
            .or_else(|error| match error {
                // It can be made again from what is at both ends.
                MirrorError::StateText { .. } => {
                    patience.trouble(format!("begins anew, because {error}"));
                    Ok(Default::default())
                }
                other => Err(other),
            })?
            .at(&remote.url);
        if state.run.is_empty() {
            state.run = crate::source::new_name();
        }
        let (refused, problems) = (Vec::new(), BTreeMap::new());
        Ok(Mirror { wish, remote, patience, state, refused, problems, seen: None, meter: Meter::default() })
    }

    async fn work(mut self) -> Result<End, MirrorError> {
        self.identify().await?;
        loop {
            let last = self.patience.mode() != Mode::Following;
            self.round(last).await?;
            if last {
                break;
            }
            self.patience.rest(LOOK).await;
        }
        match self.problems.is_empty() {
            true => Ok(End::AllThere),
            false => Ok(End::Without(self.problems.into_values().collect())),
        }
    }

    /// Makes sure that the other end is this run's, or nobody's yet.
    async fn identify(&mut self) -> Result<(), MirrorError> {
        let (key, store) = (self.remote.key(IDENTITY), &self.remote.store);
        let there = self.patience.persist(async || store.get(&key).await?.bytes().await).await?;
        let there = there.and_then(|text| serde_json::from_slice::<Identity>(&text).ok());
        match there {
            Some(identity) if identity.run == self.state.run => Ok(()),
            Some(identity) => Err(MirrorError::OtherRun {
                url: self.remote.url.clone(),
                expected: self.state.run.clone(),
                found: identity.run,
            }),
            None => {
                self.save();
                let identity = Identity { run: self.state.run.clone() };
                let text = serde_json::to_vec_pretty(&identity).map_err(io::Error::from)?;
                let crc32 = crc32fast::hash(&text);
                self.put(IDENTITY, text.into(), crc32).await.map(drop)
            }
        }
    }

    /// Copies what there is; in the last round the journal, too.
    async fn round(&mut self, last: bool) -> Result<(), MirrorError> {
        self.file(JOB).await?;
        self.file(DESCRIPTION).await?;
        self.file(PLAN).await?;
        self.base().await?;
        self.checkpoints().await?;
        self.model().await?;
        self.file(SUMMARY).await?;
        if last {
            self.file(JOURNAL).await?;
        }
        Ok(())
    }
}
