//! What a consumer counts: for its program to read, and for the program's metrics by the `metrics` facade.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Label};

/// Counters that only grow, but for `in_progress`.
#[derive(Debug)]
pub struct Tally {
    pub(super) handled: Meter,
    pub(super) duplicates: Meter,
    pub(super) mismatches: Meter,
    pub(super) early: Meter,
    pub(super) stale: Meter,
    pub(super) retries: Meter,
    pub(super) parked: Meter,
    pub(super) unique_violations: Meter,
    in_progress: AtomicU64,
    in_progress_metric: Gauge,
    connected: Gauge,
    handler_us: AtomicU64,
    handler_seconds: Histogram,
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
    /// All at zero, also in the recorder that is installed now.
    #[expect(clippy::disallowed_macros, reason = "this is the one file that makes series")]
    pub(super) fn new(consumer: &str, queue: &str) -> Self {
        let labels = [("consumer", consumer), ("queue", queue)]
            .map(|(name, value)| Label::new(name, value.to_owned()))
            .to_vec();
        let meter = |name: &'static str, help: &'static str| {
            metrics::describe_counter!(name, help);
            let metric = metrics::counter!(name, labels.clone());
            metric.increment(0);
            Meter { count: AtomicU64::new(0), metric }
        };
        let (in_progress, handler) = ("postrider_inbox_in_progress", "postrider_inbox_handler_seconds");
        metrics::describe_gauge!(in_progress, "Messages being handled now.");
        metrics::describe_histogram!(handler, "The time that the handler took, whatever came of it.");
        let connected = "postrider_inbox_connected";
        metrics::describe_gauge!(
            connected,
            "1 while it consumes, 0 while it waits for the broker or the database."
        );
        let gauge = |name: &'static str| {
            let metric = metrics::gauge!(name, labels.clone());
            metric.set(0);
            metric
        };
        Self {
            handled: meter("postrider_inbox_handled_total", "Messages whose work was committed."),
            duplicates: meter(
                "postrider_inbox_duplicates_total",
                "Deliveries of messages that were completed before.",
            ),
            mismatches: meter(
                "postrider_inbox_mismatches_total",
                "Deliveries of a completed id with other content: a bug of the sender.",
            ),
            early: meter(
                "postrider_inbox_early_total",
                "Claims before a message that they follow; one message can be early many times.",
            ),
            stale: meter(
                "postrider_inbox_stale_total",
                "Deliveries whose number was not above the last one handled.",
            ),
            retries: meter("postrider_inbox_retries_total", "Failures that are followed by another attempt."),
            parked: meter("postrider_inbox_parked_total", "Messages parked."),
            unique_violations: meter(
                "postrider_inbox_unique_violations_total",
                "Failures of the handler by a unique constraint: often a duplicate under another id.",
            ),
            in_progress: AtomicU64::new(0),
            in_progress_metric: gauge(in_progress),
            connected: gauge(connected),
            handler_us: AtomicU64::new(0),
            handler_seconds: metrics::histogram!(handler, labels.clone()),
        }
    }

    /// The counts now.
    pub fn counts(&self) -> Counts {
        Counts {
            handled: self.handled.get(),
            duplicates: self.duplicates.get(),
            mismatches: self.mismatches.get(),
            early: self.early.get(),
            stale: self.stale.get(),
            retries: self.retries.get(),
            parked: self.parked.get(),
            unique_violations: self.unique_violations.get(),
            in_progress: self.in_progress.load(Relaxed),
            handler: Duration::from_micros(self.handler_us.load(Relaxed)),
        }
    }

    pub(super) fn handler_took(&self, time: Duration) {
        self.handler_us.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Relaxed);
        self.handler_seconds.record(time);
    }

    pub(super) fn at_work(&self, messages: usize) {
        self.in_progress.store(messages as u64, Relaxed);
        #[expect(clippy::cast_precision_loss, reason = "so many messages are exact in f64")]
        self.in_progress_metric.set(messages as f64);
    }

    pub(super) fn connected(&self, connected: bool) {
        self.connected.set(u32::from(connected));
    }
}

/// A counter that its own program can read.
#[derive(Debug)]
pub(super) struct Meter {
    count: AtomicU64,
    metric: Counter,
}

impl Meter {
    /// One more.
    pub(super) fn up(&self) {
        self.count.fetch_add(1, Relaxed);
        self.metric.increment(1);
    }

    fn get(&self) -> u64 {
        self.count.load(Relaxed)
    }
}
