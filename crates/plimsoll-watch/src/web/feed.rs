//! The newest look at the run, shared by all who ask for it.
//!
//! Invariant: the run is looked at while somebody asks, and never more than once in `PAUSE`. A listener gets a view
//! when it differs from the one that it has, and a beat when nothing was said for long, so that a page can tell a
//! quiet run from a dead connection. A slow listener misses views in between, and costs no memory.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::response::sse::Event;
use futures_util::Stream;
use futures_util::stream::unfold;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use crate::{View, WatchError};

/// The time between two views to one listener.
const TICK: Duration = Duration::from_millis(500);
/// The least time between two looks: below a tick, so that a tick that comes a little early is not told old news.
const PAUSE: Duration = Duration::from_millis(400);
/// The longest silence of a stream.
const BEAT: Duration = Duration::from_secs(5);
/// How long a page waits before it connects again, as it is told.
const RETRY: Duration = Duration::from_millis(1000);
/// Pages that may listen at the same time.
const SEATS: usize = 32;

type Look = Box<dyn FnMut() -> Result<View, WatchError> + Send>;

/// A run as it was seen.
#[derive(Debug)]
pub(super) struct Told {
    /// The run's name.
    pub(super) name: Arc<str>,
    /// The view.
    pub(super) view: View,
    /// Name and view as JSON, in one line.
    pub(super) json: String,
    /// The same without what changes with the clock alone.
    still: String,
}

/// What the last look gave, and its number.
#[derive(Clone, Debug)]
pub(super) struct News {
    number: u64,
    /// The run, or why it cannot be seen.
    pub(super) told: Result<Arc<Told>, Arc<str>>,
}

/// Everybody's way to look at the run.
pub(super) struct Feed {
    eyes: Mutex<Eyes>,
    seats: Arc<Semaphore>,
}

struct Eyes {
    name: Arc<str>,
    look: Look,
    last: Option<(Instant, News)>,
}

impl Eyes {
    fn see(&mut self) -> Result<Told, WatchError> {
        let view = (self.look)()?;
        tell(Arc::clone(&self.name), view)
    }
}

impl Feed {
    pub(super) fn new(name: &str, look: impl FnMut() -> Result<View, WatchError> + Send + 'static) -> Arc<Feed> {
        let eyes = Mutex::new(Eyes { name: name.into(), look: Box::new(look), last: None });
        Arc::new(Feed { eyes, seats: Arc::new(Semaphore::new(SEATS)) })
    }

    /// The run as it was at most [`PAUSE`] ago.
    pub(super) fn news(&self) -> News {
        let mut eyes = self.eyes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let now = Instant::now();
        let before = match &eyes.last {
            Some((at, news)) if now.duration_since(*at) < PAUSE => return news.clone(),
            Some((_, news)) => Some(news.clone()),
            None => None,
        };
        let news = after(before, eyes.see().map_err(|error| error.to_string()));
        eyes.last = Some((now, news.clone()));
        news
    }

    /// What a page listens to, or nothing where all seats are taken.
    pub(super) fn listen(self: Arc<Feed>) -> Option<impl Stream<Item = Result<Event, Infallible>>> {
        let seat = Arc::clone(&self.seats).try_acquire_owned().ok()?;
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let listener = Listener { feed: self, ticks, heard: None, last_word: Instant::now(), _seat: seat };
        Some(unfold(listener, async |mut listener| {
            let event = listener.next().await;
            Some((Ok(event), listener))
        }))
    }
}

struct Listener {
    feed: Arc<Feed>,
    ticks: Interval,
    heard: Option<u64>,
    last_word: Instant,
    _seat: OwnedSemaphorePermit,
}

impl Listener {
    async fn next(&mut self) -> Event {
        loop {
            self.ticks.tick().await;
            let news = self.feed.news();
            let event = match &news.told {
                Ok(told) if self.heard != Some(news.number) => Event::default().event("view").data(&told.json),
                Err(why) if self.heard != Some(news.number) => Event::default().event("trouble").data(why),
                _ if self.last_word.elapsed() >= BEAT => Event::default().event("beat").data("still here"),
                _ => continue,
            };
            self.heard = Some(news.number);
            self.last_word = Instant::now();
            return event.retry(RETRY);
        }
    }
}

fn tell(name: Arc<str>, mut view: View) -> Result<Told, WatchError> {
    #[derive(Serialize)]
    struct Named<'a> {
        name: &'a str,
        #[serde(flatten)]
        view: &'a View,
    }
    let text = |view: &View| serde_json::to_string(&Named { name: &name, view }).map_err(std::io::Error::from);
    let json = text(&view)?;
    let clock = (view.now_unix_ms, view.running_seconds, view.eta_seconds);
    (view.now_unix_ms, view.running_seconds, view.eta_seconds) = (0, 0.0, None);
    let still = text(&view)?;
    (view.now_unix_ms, view.running_seconds, view.eta_seconds) = clock;
    Ok(Told { name, view, json, still })
}

/// The news after a look: a new number where more has changed than the clock.
fn after(before: Option<News>, told: Result<Told, String>) -> News {
    let same = before.as_ref().is_some_and(|news| match (&news.told, &told) {
        (Ok(old), Ok(new)) => old.still == new.still,
        (Err(old), Err(new)) => **old == **new,
        _ => false,
    });
    let number = before.map_or(0, |news| news.number + u64::from(!same));
    News { number, told: told.map(Arc::new).map_err(Arc::from) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event as Happening, Record};

    fn seen(message: &str, now_unix_ms: u64) -> Result<Told, String> {
        let event = Happening::Warning { step: 1, message: message.into() };
        let view = View::of(&[Record { unix_ms: 1, event }], &[], now_unix_ms, true);
        tell("chat-1".into(), view).map_err(|error| error.to_string())
    }

    #[test]
    fn only_more_than_a_later_hour_is_news_but_who_asks_gets_the_hour() {
        let first = after(None, seen("a", 1000));
        let later = after(Some(first.clone()), seen("a", 9000));
        assert_eq!(later.number, first.number);
        assert_eq!(later.told.as_ref().unwrap().view.now_unix_ms, 9000);
        assert!(later.told.as_ref().unwrap().json.contains("\"now_unix_ms\":9000"));
        let other = after(Some(later), seen("b", 9000));
        assert_eq!(other.number, first.number + 1);
        let trouble = after(Some(other), Err("no such file".into()));
        assert_eq!(trouble.number, first.number + 2);
        let same = after(Some(trouble), Err("no such file".into()));
        assert_eq!(same.number, first.number + 2);
        assert_eq!(after(Some(same), seen("b", 9001)).number, first.number + 3);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn however_many_ask_at_once_the_run_is_looked_at_once() {
        let looks = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = Arc::clone(&looks);
        let feed = Feed::new("chat-1", move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(View::of(&[], &[], 1, true))
        });
        tokio::time::pause();
        (0..1000).for_each(|_| drop(feed.news()));
        assert_eq!(looks.load(std::sync::atomic::Ordering::Relaxed), 1);
        tokio::time::advance(PAUSE).await;
        (0..1000).for_each(|_| drop(feed.news()));
        assert_eq!(looks.load(std::sync::atomic::Ordering::Relaxed), 2);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn no_more_pages_listen_than_there_are_seats_and_a_page_that_leaves_frees_its_seat() {
        let feed = Feed::new("chat-1", || Ok(View::of(&[], &[], 1, true)));
        let mut seated: Vec<_> = (0..SEATS).map(|_| Arc::clone(&feed).listen().unwrap()).collect();
        assert!(Arc::clone(&feed).listen().is_none());
        drop(seated.pop());
        assert!(Arc::clone(&feed).listen().is_some());
    }
}
