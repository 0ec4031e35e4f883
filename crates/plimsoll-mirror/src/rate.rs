//! The bandwidth cap: a bucket of bytes that fills at a rate, and that whoever sends takes from first.
//!
//! Invariant: in no ten seconds is more taken than ten times the rate. The bucket fills a little more slowly than asked
//! for, to make room for what it can hold when the ten seconds begin.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use plimsoll_machine::Bytes;

/// What the bucket fills with of the rate; with [`HELD_SECONDS`] it makes ten seconds hold at most ten times the rate.
const FILL: f64 = 0.97;
/// What the bucket can hold, in seconds of the rate.
const HELD_SECONDS: f64 = 0.25;
/// The most that is taken at a time.
const PIECE: u64 = 64 << 10;

/// The bucket. Time is what the caller says it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    rate: f64,
    held: f64,
    at: Duration,
}

impl Bucket {
    /// A bucket that is empty at `now`.
    pub(crate) fn new(rate: Bytes, now: Duration) -> Bucket {
        Bucket { rate: rate.0.max(1) as f64, held: 0.0, at: now }
    }

    /// The most that can be asked for at a time.
    pub(crate) fn piece(&self) -> u64 {
        ((self.rate * HELD_SECONDS / 2.0) as u64).clamp(1, PIECE)
    }

    /// Takes `bytes`, at most [`Bucket::piece`]; or takes nothing and says how long it will be until they are there.
    pub(crate) fn take(&mut self, bytes: u64, now: Duration) -> Duration {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        // A rate of a few bytes a second must be able to hold a piece, too.
        let most = (self.rate * HELD_SECONDS).max(1.0);
        self.held = (self.held + passed * self.rate * FILL).min(most);
        self.at = self.at.max(now);
        let lacking = bytes as f64 - self.held;
        if lacking <= 0.0 {
            self.held -= bytes as f64;
            return Duration::ZERO;
        }
        Duration::from_secs_f64(lacking / (self.rate * FILL)) + Duration::from_micros(1)
    }
}

/// A bucket in real time, shared by all that is sent.
#[derive(Debug)]
pub(crate) struct Pace {
    bucket: Mutex<Bucket>,
    began: Instant,
}

impl Pace {
    pub(crate) fn new(rate: Bytes) -> Pace {
        Pace { bucket: Mutex::new(Bucket::new(rate, Duration::ZERO)), began: Instant::now() }
    }

    pub(crate) fn piece(&self) -> u64 {
        self.lock().piece()
    }

    /// Waits until `bytes` may be sent.
    pub(crate) async fn pay(&self, bytes: u64) {
        let piece = self.piece();
        let mut left = bytes;
        while left > 0 {
            let part = left.min(piece);
            loop {
                let wait = self.lock().take(part, self.began.elapsed());
                if wait.is_zero() {
                    break;
                }
                tokio::time::sleep(wait).await;
            }
            left -= part;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Bucket> {
        self.bucket.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Everything that a sender in a hurry sends within `seconds`, and when.
    fn hurry(rate: u64, idle: f64, seconds: f64) -> Vec<(f64, u64)> {
        let mut bucket = Bucket::new(Bytes(rate), Duration::ZERO);
        let (mut now, mut sent) = (Duration::from_secs_f64(idle), Vec::new());
        while now.as_secs_f64() < seconds {
            let piece = bucket.piece();
            let wait = bucket.take(piece, now);
            if wait.is_zero() {
                sent.push((now.as_secs_f64(), piece));
            }
            now += wait;
        }
        sent
    }

    proptest! {
        #[test]
        fn no_ten_seconds_hold_more_than_ten_times_the_rate(rate in 8u64..5_000_000, idle in 0.0f64..20.0) {
            let sent = hurry(rate, idle, 45.0);
            let (mut first, mut inside) = (0, 0);
            for last in 0..sent.len() {
                inside += sent[last].1;
                while sent[last].0 - sent[first].0 > 10.0 {
                    inside -= sent[first].1;
                    first += 1;
                }
                prop_assert!(inside <= rate * 10, "{inside} of {}", rate * 10);
            }
        }

        #[test]
        fn the_rate_is_made_use_of(rate in 8u64..5_000_000) {
            let all: u64 = hurry(rate, 0.0, 60.0).iter().map(|(_, bytes)| bytes).sum();
            prop_assert!(all as f64 > rate as f64 * 60.0 * 0.9, "{all}");
        }
    }

    #[test]
    fn an_hour_of_rest_is_not_made_up_for() {
        let first: u64 = hurry(1_000_000, 3600.0, 3600.0 + 1e-9).iter().map(|(_, bytes)| bytes).sum();
        assert!(first <= 250_000, "{first}");
    }
}
