//! How the relay is: published by the session loop, read by the pages for machines.
//!
//! Invariant: readers never make the loop wait, and a loop that stands still is seen, because each
//! publication stamps the time of the turn that made it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use postrider_relay::{Lsn, Snapshot, Trouble};
use tokio::sync::watch;

/// The relay at one moment, as far as an operator asks.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    /// Whether events flow, and if not, why.
    pub(crate) ready: Result<(), NotReady>,
    /// The same in words, with the way out where there is one; empty when all is well.
    pub(crate) detail: String,
    /// What the core tells; `None` before it exists.
    pub(crate) relay: Option<Snapshot>,
    /// What the server tells about the slot; `None` until it was asked.
    pub(crate) slot: Option<SlotFigures>,
}

/// Why the relay is not ready; the words are those of `/readyz`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReady {
    /// Nothing has been tried yet.
    Starting,
    /// Another relay has the slot.
    Standby,
    /// The slot does not stream.
    Postgres,
    /// No connection to the broker.
    Broker,
    /// The broker takes nothing (`connection.blocked`).
    Blocked,
    /// An event is held.
    Held,
    /// A debt is older than `http.stalled_after_ms`.
    Stalled,
    /// A limit is full and nothing moves.
    Saturated,
    /// The relay is ending.
    Draining,
}

/// The slot as `pg_replication_slots` has it, and how far the server's log is ahead of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotFigures {
    /// Where the server writes (`pg_current_wal_lsn()`).
    pub(crate) wal_lsn: Lsn,
    /// What has been acknowledged, as far as the server keeps it.
    pub(crate) confirmed_flush_lsn: Option<Lsn>,
    /// From where on the log is kept for this slot.
    pub(crate) restart_lsn: Option<Lsn>,
    /// How much may still be written before the slot is lost; `None` without `max_slot_wal_keep_size`.
    pub(crate) safe_bytes: Option<i64>,
}

impl NotReady {
    /// Every reason.
    pub(crate) const ALL: [NotReady; 9] = [
        NotReady::Starting,
        NotReady::Standby,
        NotReady::Postgres,
        NotReady::Broker,
        NotReady::Blocked,
        NotReady::Held,
        NotReady::Stalled,
        NotReady::Saturated,
        NotReady::Draining,
    ];

    /// The word of `/readyz` and of the metric's label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            NotReady::Starting => "starting",
            NotReady::Standby => "standby",
            NotReady::Postgres => "postgres",
            NotReady::Broker => "broker",
            NotReady::Blocked => "blocked",
            NotReady::Held => "held",
            NotReady::Stalled => "stalled",
            NotReady::Saturated => "saturated",
            NotReady::Draining => "draining",
        }
    }
}

impl From<Trouble> for NotReady {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Draining => NotReady::Draining,
            Trouble::Broker => NotReady::Broker,
            // Out of reach like the slot: the same server.
            Trouble::Quarantine => NotReady::Postgres,
            Trouble::Blocked => NotReady::Blocked,
            Trouble::Held => NotReady::Held,
            Trouble::Stalled => NotReady::Stalled,
            Trouble::Saturated => NotReady::Saturated,
        }
    }
}

impl SlotFigures {
    /// How far the acknowledged position is behind the server's log, in bytes.
    pub(crate) fn lag_bytes(&self) -> Option<u64> {
        self.confirmed_flush_lsn.map(|lsn| self.wal_lsn.0.saturating_sub(lsn.0))
    }

    /// How much log the server keeps for this slot, in bytes.
    pub(crate) fn retained_bytes(&self) -> Option<u64> {
        self.restart_lsn.map(|lsn| self.wal_lsn.0.saturating_sub(lsn.0))
    }
}

/// A loop whose last turn is older than this stands still.
const STANDS_STILL: Duration = Duration::from_secs(10);

/// Where the session loop writes how it is.
#[derive(Debug)]
pub(crate) struct Board {
    health: watch::Sender<Health>,
    started: Instant,
    /// The last turn, and the last change of `ready`, in milliseconds after `started`.
    turned_ms: AtomicU64,
    since_ms: AtomicU64,
}

impl Board {
    /// A board that says `starting`.
    pub(crate) fn new() -> Self {
        let ready = Err(NotReady::Starting);
        let health = Health { ready, detail: String::new(), relay: None, slot: None };
        Self {
            health: watch::Sender::new(health),
            started: Instant::now(),
            turned_ms: AtomicU64::new(0),
            since_ms: AtomicU64::new(0),
        }
    }

    /// The loop has turned and this is how it is; also said where nothing changed, at least every few
    /// seconds.
    pub(crate) fn publish(&self, health: Health) {
        self.turn();
        let ready = health.ready;
        if self.health.send_replace(health).ready != ready {
            self.since_ms.store(self.elapsed_ms(), Ordering::Relaxed);
        }
    }

    /// The loop has turned, and is as it was.
    pub(crate) fn turn(&self) {
        self.turned_ms.store(self.elapsed_ms(), Ordering::Relaxed);
    }

    /// The last publication; the loop can publish only once the reference is dropped.
    pub(crate) fn read(&self) -> watch::Ref<'_, Health> {
        self.health.borrow()
    }

    /// Whether the loop turns.
    pub(crate) fn turns(&self) -> bool {
        let turned = Duration::from_millis(self.turned_ms.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(turned) < STANDS_STILL
    }

    /// How long the process runs.
    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// For how long the relay has been ready, or not ready for this reason.
    pub(crate) fn since(&self) -> Duration {
        self.started.elapsed().saturating_sub(Duration::from_millis(self.since_ms.load(Ordering::Relaxed)))
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
