//! Objects and files of HTTP servers, read by position: for data that lie elsewhere.
//!
//! Invariant: what is read is of the version that was looked at, or an error; what passes (timeouts, answers of 429 and 5xx,
//! connections that break) is tried again from the byte where it broke off, and the caller waits. What only a person can
//! cure is told at once. No body is held: its pieces are handed on as they come. It knows nothing of what is in them.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use object_store::{
    ClientConfigKey, Error as StoreError, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt,
};
use plimsoll_machine::Bytes;
use tokio::runtime::{Builder, Runtime};

use crate::address::Address;
use crate::patience::wait;
use crate::remote::{Service, retries};
use crate::report::Mode;
use crate::send::next_chunk;
use crate::source;
use crate::trouble::{Nature, trouble};
use crate::wire::{Connector, Redirects};

/// Heap of reading: a connection, what is buffered of it, certificates, the runtime. Measured without TLS: 1.1 MiB
/// (`cargo test -p plimsoll --test remote_heap -- --nocapture`).
pub const READING: Bytes = Bytes::mib(4);

/// How long somebody who opens data is kept waiting for a store that does not answer.
const LOOKING: Duration = Duration::from_secs(2 * 60);
/// How long a read waits: a network that is gone for a while costs a run nothing but that while.
const WAITING: Duration = Duration::from_secs(30 * 60);
/// How often it is asked whether to go on.
const ASK: Duration = Duration::from_millis(200);

/// How long what is on its way may take when it is.
const GRACE: Duration = Duration::from_secs(3);

/// An object as it was when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Where it is.
    pub url: String,
    /// Its length.
    pub bytes: Bytes,
    /// What tells this version from others: its entity tag, or when it was changed; empty where the server says neither.
    pub version: String,
}

/// Why an object cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// It is not what it was.
    #[error("it changed: found {found}")]
    Changed {
        /// What is there now.
        found: String,
    },
    /// It cannot be read, as it stands behind its URL, and what to do about it.
    #[error("{problem}; {hint}")]
    Refused {
        /// What is wrong.
        problem: String,
        /// The remedy.
        hint: String,
    },
    /// Asked to end while it waited.
    #[error("asked to end")]
    Stopped,
}

pub(crate) fn refused(problem: impl Into<String>, hint: impl Into<String>) -> ObjectError {
    ObjectError::Refused { problem: problem.into(), hint: hint.into() }
}

/// Asks whether to end.
type Ask = Box<dyn Fn() -> bool + Send + Sync>;
/// Hears of a trouble that is waited for, and of its end.
type Hear = Box<dyn Fn(&str) + Send + Sync>;

/// Reads objects. Nothing is started and nothing is asked before the first call.
pub struct Objects {
    runtime: OnceLock<Runtime>,
    stores: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
    asked_to_end: Ask,
    hear: Hear,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Objects")
    }
}

/// What tells versions of an object apart; nothing where the server says neither a tag nor a time.
fn version(meta: &ObjectMeta) -> String {
    let time = || {
        // The library says the beginning of the epoch where there is no time.
        let is_said = meta.last_modified.timestamp() != 0;
        is_said.then(|| format!("changed {}", meta.last_modified.to_rfc3339()))
    };
    meta.e_tag.clone().or_else(time).unwrap_or_default()
}

/// How one try to read ended before all was read.
enum Broke {
    Store(StoreError),
    Here(io::Error),
    Changed(String),
    Early,
}

impl Objects {
    /// `asked_to_end` is asked while something is waited for; `hear` is told of a trouble once, and when it is over.
    pub fn new(
        asked_to_end: impl Fn() -> bool + Send + Sync + 'static,
        hear: impl Fn(&str) + Send + Sync + 'static,
    ) -> Objects {
        let (asked_to_end, hear) = (Box::new(asked_to_end), Box::new(hear));
        Objects { runtime: OnceLock::new(), stores: Mutex::default(), asked_to_end, hear }
    }

    /// All objects whose URL begins with `prefix`, sorted.
    pub fn list(&self, prefix: &str) -> Result<Vec<Object>, ObjectError> {
        let folder = prefix.rsplit_once('/').map_or(prefix, |(folder, _)| folder);
        let folder = if folder.ends_with("/") { prefix } else { folder };
        let (address, store) = self.reach(folder)?;
        if Service::named(&address.scheme).is_none() {
            return Err(refused("has no list of its files", "name each file"));
        }
        let all = async || {
            let (mut stream, mut found) = (store.list(Some(&address.key)), Vec::new());
            while let Some(meta) = stream.next().await.transpose()? {
                let url = format!("{}/{}", address.home, meta.location);
                if url.starts_with(prefix) {
                    found.push(Object { url, bytes: Bytes(meta.size), version: version(&meta) });
                }
            }
            Ok(found)
        };
        let mut found = self.block_on(self.persist(&address, prefix, all))?;
        found.sort_unstable_by(|one, other| one.url.cmp(&other.url));
        Ok(found)
    }

    /// Length and version of an object.
    pub fn look(&self, url: &str) -> Result<Object, ObjectError> {
        let (address, store) = self.reach(url)?;
        let meta = self.block_on(self.persist(&address, url, async || store.head(&address.key).await))?;
        Ok(Object { url: url.into(), bytes: Bytes(meta.size), version: version(&meta) })
    }

    /// Gives a part of an object to `take`, in pieces; an error of `take` is the inner one.
    pub fn read(
        &self,
        object: &Object,
        part: Range<u64>,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<io::Result<()>, ObjectError> {
        let (address, store) = self.reach(&object.url)?;
        self.block_on(self.read_part(&address, &*store, object, part, take))
    }

    /// The store of a URL, made once.
    fn reach(&self, url: &str) -> Result<(Address, Arc<dyn ObjectStore>), ObjectError> {
        let address = Address::of(url)?;
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(&address.home) {
            return Ok((address, store.clone()));
        }
        let connector = |redirects| Connector { pace: None, redirects };
        let made: Result<Arc<dyn ObjectStore>, StoreError> = match Service::named(&address.scheme) {
            Some(service) => {
                let bucket = address.home.rsplit('/').next().unwrap_or_default();
                let made = service.bucket(bucket, connector(Redirects::Refuse));
                made.map_err(|error| refused(format!("cannot be used: {error}"), address.hint()))?
                    .map(|(store, _)| store)
            }
            None => HttpBuilder::new()
                .with_url(address.home.as_str())
                .with_config(ClientConfigKey::AllowHttp, (address.scheme == "http").to_string())
                .with_retry(retries())
                .with_http_connector(connector(Redirects::Follow))
                .build()
                .map(|store| Arc::new(store) as _),
        };
        let store =
            made.map_err(|error| refused(format!("cannot be used: {}", trouble(&error).problem), address.hint()))?;
        stores.insert(address.home.clone(), store.clone());
        Ok((address, store))
    }

    /// Runs to the end, or to when it is asked to end.
    fn block_on<T>(&self, work: impl Future<Output = Result<T, ObjectError>>) -> Result<T, ObjectError> {
        let runtime = match self.runtime.get() {
            Some(runtime) => runtime,
            None => {
                // Names are looked up in a thread of its own, which does not stay: whoever forks has no other then.
                let made = Builder::new_current_thread().thread_keep_alive(Duration::ZERO).enable_all().build();
                let made = made.map_err(|error| refused(format!("cannot be read: {error}"), "try again"))?;
                self.runtime.get_or_init(|| made)
            }
        };
        let asked = async {
            while !(self.asked_to_end)() {
                tokio::time::sleep(ASK).await;
            }
            // What comes now still comes.
            tokio::time::sleep(GRACE).await;
        };
        runtime.block_on(async {
            tokio::select! {
                done = work => done,
                () = asked => Err(ObjectError::Stopped),
            }
        })
    }

    /// Does `deed` until it is done, or for as long as somebody who opens data waits.
    async fn persist<T>(
        &self,
        address: &Address,
        url: &str,
        mut deed: impl AsyncFnMut() -> Result<T, StoreError>,
    ) -> Result<T, ObjectError> {
        let mut patience = Waits::new(self, address, url, LOOKING);
        loop {
            match deed().await {
                Ok(done) => {
                    patience.well();
                    return Ok(done);
                }
                Err(error) => patience.weather(&error).await?,
            }
        }
    }

    async fn read_part(
        &self,
        address: &Address,
        store: &dyn ObjectStore,
        object: &Object,
        part: Range<u64>,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<io::Result<()>, ObjectError> {
        let mut at = part.start;
        let mut patience = Waits::new(self, address, &object.url, WAITING);
        while at < part.end {
            let before = at;
            let broke = match stream_part(store, &address.key, object, &mut at, part.end, take).await {
                Ok(()) => break,
                Err(broke) => broke,
            };
            if at > before {
                patience.well();
            }
            let error = match broke {
                Broke::Here(error) => return Ok(Err(error)),
                Broke::Changed(found) => return Err(ObjectError::Changed { found }),
                Broke::Early => early(),
                Broke::Store(StoreError::Precondition { .. }) => {
                    return Err(ObjectError::Changed { found: "another one".into() });
                }
                Broke::Store(error) => error,
            };
            // A shorter file answers with odd errors; a look tells.
            if let Ok(now) = store.head(&address.key).await
                && (now.size != object.bytes.0 || version(&now) != object.version)
            {
                return Err(ObjectError::Changed { found: told(&now) });
            }
            patience.weather(&error).await?;
        }
        patience.well();
        Ok(Ok(()))
    }
}

fn told(meta: &ObjectMeta) -> String {
    format!("one of {} bytes, `{}`", meta.size, version(meta))
}

fn early() -> StoreError {
    StoreError::Generic { store: "HTTP", source: "the answer ended before its end".into() }
}

/// What is wrong with an answer that will be the same the next time, since it is of a server that does not do what is asked of it. The
/// store's client says so in words alone.
fn unusable(error: &StoreError) -> Option<&'static str> {
    let said = error.to_string();
    let says = |words: &[&str]| words.iter().any(|words| said.contains(words));
    if matches!(error, StoreError::NotSupported { .. }) || says(&["non-partial response"]) {
        Some("does not give parts of files: the server ignores `Range`")
    } else if says(&["Content-Length Header missing", "Invalid content length"]) {
        Some("does not say how long it is: the server's answer has no `Content-Length` that is a number")
    } else if says(&["Content-Range header", "CONTENT_RANGE header", "Requested "]) && !says(&["status code"]) {
        Some("does not give the part that was asked for: the server's answer has no `Content-Range` that says so")
    } else if says(&["Invalid last modified", "non-ASCII data"]) {
        Some("cannot be told from other versions: `Last-Modified` or `ETag` of the server's answer is not one")
    } else {
        None
    }
}

/// Reads from `at` on, which moves.
async fn stream_part(
    store: &dyn ObjectStore,
    key: &Key,
    object: &Object,
    at: &mut u64,
    end: u64,
    take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), Broke> {
    // A weak tag matches nothing, by the rules of HTTP; it is compared below.
    let tag = Some(object.version.clone()).filter(|tag| tag.starts_with('"'));
    let options = GetOptions { range: Some(GetRange::Bounded(*at..end)), if_match: tag, ..GetOptions::default() };
    let got = store.get_opts(key, options).await.map_err(Broke::Store)?;
    if got.meta.size != object.bytes.0 || version(&got.meta) != object.version {
        return Err(Broke::Changed(told(&got.meta)));
    }
    let mut stream = got.into_stream();
    while let Some(chunk) = next_chunk(&mut stream).await.map_err(Broke::Store)? {
        let chunk = &chunk[..chunk.len().min((end - *at) as usize)];
        take(chunk).map_err(Broke::Here)?;
        *at += chunk.len() as u64;
    }
    if *at < end { Err(Broke::Early) } else { Ok(()) }
}

/// Waiting for a trouble to pass.
struct Waits<'a> {
    objects: &'a Objects,
    address: &'a Address,
    url: &'a str,
    most: Duration,
    /// When it began, and how often it was tried since.
    since: Option<(Instant, u32)>,
}

impl<'a> Waits<'a> {
    fn new(objects: &'a Objects, address: &'a Address, url: &'a str, most: Duration) -> Waits<'a> {
        Waits { objects, address, url, most, since: None }
    }

    /// Something came.
    fn well(&mut self) {
        if self.since.take().is_some_and(|(_, tries)| tries > 1) {
            (self.objects.hear)(&format!("`{}` answers again", self.url));
        }
    }

    /// Waits, where that may help.
    async fn weather(&mut self, error: &StoreError) -> Result<(), ObjectError> {
        if let Some(problem) = unusable(error) {
            return Err(refused(problem, "copy it here, or to a server that gives parts of files"));
        }
        let found = trouble(error);
        let (began, tries) = self.since.map_or((Instant::now(), 1), |(began, tries)| (began, tries + 1));
        self.since = Some((began, tries));
        match found.nature {
            Nature::Absent => {
                let hint = "look at the name, and at the bucket or server that it is looked for in";
                return Err(refused("is not there", hint));
            }
            Nature::Lasting | Nature::Gone => return Err(refused(found.problem, self.address.hint())),
            Nature::Passing if began.elapsed() >= self.most => {
                let minutes = self.most.as_secs() / 60;
                let hint =
                    format!("it was tried for {minutes} minutes; begin again, or resume, when it can be reached");
                return Err(refused(found.problem, hint));
            }
            Nature::Passing => {}
        }
        // The first failure is common, and tried again at once or nearly so.
        if tries == 2 {
            let most = self.most.as_secs() / 60;
            (self.objects.hear)(&format!(
                "`{}` {}; it is tried again for up to {most} minutes",
                self.url, found.problem
            ));
        }
        let time = wait(Nature::Passing, tries, Mode::Following, source::chance()).unwrap_or(ASK);
        tokio::time::sleep(time).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> StoreError {
        StoreError::Generic { store: "HTTP", source: text.to_string().into() }
    }

    #[test]
    fn an_answer_that_will_never_be_right_is_told_from_one_that_may_be_right_soon() {
        for (text, told) in [
            ("Received non-partial response when range requested", "ignores `Range`"),
            ("Content-Length Header missing from response", "`Content-Length`"),
            ("Content-Range header not present in partial response", "`Content-Range`"),
            ("Failed to parse value for CONTENT_RANGE header: \"bytes\"", "`Content-Range`"),
            ("Requested 0..5, got 0..3", "`Content-Range`"),
        ] {
            assert!(unusable(&said(text)).is_some_and(|problem| problem.contains(told)), "{text}");
        }
        let busy = "Error performing GET http://h/Requested in 1s - Server returned non-2xx status code: 503";
        for text in ["connection closed before message completed", busy] {
            assert_eq!(unusable(&said(text)), None, "{text}");
        }
    }
}
