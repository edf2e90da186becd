//! What a consumer counts, for whatever metrics its program has.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counters that only grow, but for `in_progress`.
#[derive(Debug, Default)]
pub struct Tally {
    pub(super) handled: AtomicU64,
    pub(super) duplicates: AtomicU64,
    pub(super) mismatches: AtomicU64,
    pub(super) early: AtomicU64,
    pub(super) stale: AtomicU64,
    pub(super) retries: AtomicU64,
    pub(super) parked: AtomicU64,
    pub(super) unique_violations: AtomicU64,
    pub(super) in_progress: AtomicU64,
    pub(super) handler_us: AtomicU64,
}

/// What a [`Tally`] says at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages whose work was done and committed.
    pub handled: u64,
    /// Deliveries of messages that were completed before.
    pub duplicates: u64,
    /// Deliveries of a completed id with other content.
    pub mismatches: u64,
    /// Claims that came before a message that they follow; one message can be early many times.
    pub early: u64,
    /// Deliveries whose number was not above the last one handled.
    pub stale: u64,
    /// Failures that are followed by another attempt.
    pub retries: u64,
    /// Messages parked.
    pub parked: u64,
    /// Failures of the handler by a unique constraint: often a duplicate under another id.
    pub unique_violations: u64,
    /// Messages being handled now.
    pub in_progress: u64,
    /// The time spent in the handler.
    pub handler: Duration,
}

impl Tally {
    /// The counts now.
    pub fn counts(&self) -> Counts {
        Counts {
            handled: self.handled.load(Relaxed),
            duplicates: self.duplicates.load(Relaxed),
            mismatches: self.mismatches.load(Relaxed),
            early: self.early.load(Relaxed),
            stale: self.stale.load(Relaxed),
            retries: self.retries.load(Relaxed),
            parked: self.parked.load(Relaxed),
            unique_violations: self.unique_violations.load(Relaxed),
            in_progress: self.in_progress.load(Relaxed),
            handler: Duration::from_micros(self.handler_us.load(Relaxed)),
        }
    }

    pub(super) fn handler_took(&self, time: Duration) {
        self.handler_us.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }
}

/// One more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
