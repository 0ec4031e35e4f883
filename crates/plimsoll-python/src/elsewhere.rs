//! Data that lie elsewhere: the stores of plimsoll-mirror, for the loader of plimsoll-data, which knows no network.
//!
//! Invariant: what reads belongs to one process; a fork reads with connections of its own. Python's lock is only ever asked for by a
//! thread that came from Python: those of a loader leave what there is to tell, and whoever waits for a batch tells it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_data::{GiveUp, PerProcess, RemoteFault, RemoteFile, RemoteFiles};
use plimsoll_machine::Bytes;
use plimsoll_mirror::{Object, ObjectError, Objects, READING};

use crate::signals::Signals;
use crate::telling::tell;

/// Reads files of stores and HTTP servers. Nothing is started and nobody is asked before the first read.
#[derive(Debug, Default)]
pub struct Stores(PerProcess<OfProcess>);

/// What one process has of it.
#[derive(Debug)]
struct OfProcess {
    objects: Objects,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// While data are opened, by whom; there is nobody else who reads then.
    opening: Mutex<Option<Signals>>,
    /// How many passes are ending: nobody waits for what they read.
    ending: AtomicUsize,
    news: Mutex<Vec<String>>,
    /// There are some.
    new: AtomicBool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("State")
    }
}

impl State {
    /// Whether what is waited for is not wanted any more.
    fn asked_to_end(&self) -> bool {
        let opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.ending.load(Ordering::Acquire) > 0
            || opening.is_some_and(|signals| {
                self.tell();
                signals.came()
            })
    }

    fn hear(&self, told: &str) {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).push(told.to_string());
        self.new.store(true, Ordering::Release);
    }

    /// Hands what there is to tell to Python's logging. Not by a thread of a loader.
    fn tell(&self) {
        if !self.new.swap(false, Ordering::AcqRel) {
            return;
        }
        let news = std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner));
        news.into_iter().for_each(tell);
    }
}

impl Default for OfProcess {
    fn default() -> Self {
        let state = Arc::new(State::default());
        let (asked, heard) = (state.clone(), state.clone());
        let objects = Objects::new(move || asked.asked_to_end(), move |told| heard.hear(told));
        OfProcess { objects, state }
    }
}

impl Stores {
    fn own(&self) -> &OfProcess {
        self.0.get(OfProcess::default)
    }

    /// Runs `open`, during which `signals` may end all waiting.
    pub fn opening<T>(&self, signals: &Signals, open: impl FnOnce() -> T) -> T {
        let state = &self.own().state;
        let set = |who: Option<Signals>| *state.opening.lock().unwrap_or_else(PoisonError::into_inner) = who;
        set(Some(signals.clone()));
        let opened = open();
        set(None);
        state.tell();
        opened
    }

    /// Runs `end`, which waits for threads that read: they do not wait for stores any more.
    pub fn ending<T>(&self, end: impl FnOnce() -> T) -> T {
        let ending = &self.own().state.ending;
        ending.fetch_add(1, Ordering::AcqRel);
        let ended = end();
        ending.fetch_sub(1, Ordering::AcqRel);
        ended
    }

    /// As `give_up`, asked by somebody who waits for a batch, who is told meanwhile what there is to tell.
    pub fn telling(&self, give_up: GiveUp) -> GiveUp {
        let state = self.own().state.clone();
        Arc::new(move || {
            state.tell();
            give_up()
        })
    }
}

fn fault(error: ObjectError) -> RemoteFault {
    match error {
        ObjectError::Changed { found } => RemoteFault::Changed { found },
        ObjectError::Refused { problem, hint } => RemoteFault::Refused { problem, hint },
        ObjectError::Stopped => RemoteFault::Stopped,
    }
}

fn file(Object { url, bytes, version }: Object) -> RemoteFile {
    RemoteFile { url, bytes: bytes.0, version }
}

impl RemoteFiles for Stores {
    fn list(&self, prefix: &str) -> Result<Vec<RemoteFile>, RemoteFault> {
        self.own().objects.list(prefix).map(|found| found.into_iter().map(file).collect()).map_err(fault)
    }

    fn look(&self, url: &str) -> Result<RemoteFile, RemoteFault> {
        self.own().objects.look(url).map(file).map_err(fault)
    }

    fn read(
        &self,
        file: &RemoteFile,
        part: Range<u64>,
        take: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<std::io::Result<()>, RemoteFault> {
        let (url, version) = (file.url.clone(), file.version.clone());
        self.own().objects.read(&Object { url, bytes: Bytes(file.bytes), version }, part, take).map_err(fault)
    }

    fn heap_bytes(&self) -> u64 {
        READING.0
    }
}
