//! What `/status` says, and `postrider status` reads: one JSON object with these keys.

use std::collections::BTreeMap;

use postrider_relay::{Broker, Lsn, Reason};
use serde::{Deserialize, Serialize};

use crate::health::{Board, NotReady, SlotFigures};

/// The page. Keys are only ever added.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Postrider's version.
    pub(crate) version: String,
    /// The slot it reads.
    pub(crate) slot: String,
    /// Whether events flow.
    pub(crate) ready: bool,
    /// Why not, in the words of `/readyz`.
    pub(crate) reason: Option<String>,
    /// The same for people; empty when all is well.
    pub(crate) detail: String,
    /// For how long it has been so, in seconds.
    pub(crate) since_s: u64,
    /// How long the process runs, in seconds.
    pub(crate) uptime_s: u64,
    /// `down`, `blocked` or `ready`.
    pub(crate) broker: Option<String>,
    /// What is owed; null before the first session.
    pub(crate) owed: Option<Owed>,
    /// What is in quarantine, as the relay knows it; null before the first session.
    #[serde(default)]
    pub(crate) quarantine: Option<Quarantined>,
    /// Positions, as Postgres prints them.
    pub(crate) lsn: Positions,
    /// Distances of the slot, in bytes.
    pub(crate) slot_bytes: Distances,
    /// What has been counted since the start.
    pub(crate) events: Events,
}

/// What the relay has read and not yet paid.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Owed {
    /// Events in memory.
    pub(crate) events: usize,
    /// Their bytes.
    pub(crate) bytes: usize,
    /// Aggregates they belong to.
    pub(crate) aggregates: usize,
    /// Events among them that are held.
    pub(crate) held: usize,
    /// All that the relay holds of events and of the quarantine, in bytes.
    #[serde(default)]
    pub(crate) memory_bytes: usize,
    /// Routes that do not take events, which are tried one at a time.
    #[serde(default)]
    pub(crate) bad_routes: usize,
    /// Windows at the broker.
    pub(crate) windows: usize,
    /// The age of the oldest debt, in seconds; null when nothing is owed.
    pub(crate) oldest_s: Option<f64>,
    /// Events confirmed and not yet reported to Postgres.
    pub(crate) unreported: u64,
}

/// What is in quarantine.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Quarantined {
    /// Events that are parked or being sent.
    pub(crate) events: u64,
    /// Aggregates whose events go there.
    pub(crate) aggregates: usize,
}

/// Positions in the log; null where unknown.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Positions {
    /// Up to here everything is paid.
    pub(crate) reached: Option<String>,
    /// This was reported to Postgres.
    pub(crate) reported: Option<String>,
    /// This the slot has stored.
    pub(crate) confirmed_flush: Option<String>,
    /// From here on the server keeps its log.
    pub(crate) restart: Option<String>,
    /// Here the server writes.
    pub(crate) server: Option<String>,
}

/// Distances of the slot; null where unknown.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Distances {
    /// From `confirmed_flush` to `server`.
    pub(crate) lag: Option<u64>,
    /// From `restart` to `server`.
    pub(crate) retained: Option<u64>,
    /// What may still be written before the slot is lost; null also without such a limit.
    pub(crate) safe: Option<i64>,
}

/// Counts since the start of the process.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Events {
    /// Confirmed and routed.
    pub(crate) published: u64,
    /// Tries that failed, by reason.
    pub(crate) retried: BTreeMap<String, u64>,
    /// Held, by reason.
    pub(crate) held: BTreeMap<String, u64>,
    /// Quarantined, by reason.
    #[serde(default)]
    pub(crate) quarantined: BTreeMap<String, u64>,
    /// Accepted though no queue took them.
    #[serde(default)]
    pub(crate) unrouted: u64,
    /// What was no event, by kind.
    pub(crate) ignored: BTreeMap<String, u64>,
}

impl Status {
    /// The page as the board has it.
    pub(crate) fn new(slot: &str, board: &Board) -> Self {
        let health = board.read();
        let text = |lsn: Lsn| lsn.to_string();
        let relay = health.relay.as_ref();
        let figures = health.slot.as_ref();
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            slot: slot.to_owned(),
            ready: health.ready.is_ok(),
            reason: health.ready.err().map(|reason| NotReady::as_str(reason).to_owned()),
            detail: health.detail.clone(),
            since_s: board.since().as_secs(),
            uptime_s: board.uptime().as_secs(),
            broker: relay.map(|relay| broker(relay.broker).to_owned()),
            owed: relay.map(|relay| Owed {
                events: relay.in_flight_events,
                bytes: relay.in_flight_bytes,
                aggregates: relay.aggregates,
                held: relay.held_events,
                memory_bytes: relay.memory_bytes,
                bad_routes: relay.bad_routes,
                windows: relay.windows,
                oldest_s: relay.oldest.map(|age| age.as_secs_f64()),
                unreported: relay.unreported_events,
            }),
            quarantine: relay.map(|relay| Quarantined {
                events: relay.quarantine_events,
                aggregates: relay.parked_aggregates,
            }),
            lsn: Positions {
                reached: relay.and_then(|relay| relay.reached).map(|watermark| text(watermark.lsn())),
                reported: relay.and_then(|relay| relay.reported).map(|watermark| text(watermark.lsn())),
                confirmed_flush: figures.and_then(|slot| slot.confirmed_flush_lsn).map(text),
                restart: figures.and_then(|slot| slot.restart_lsn).map(text),
                server: figures.map(|slot| text(slot.wal_lsn)),
            },
            slot_bytes: Distances {
                lag: figures.and_then(SlotFigures::lag_bytes),
                retained: figures.and_then(SlotFigures::retained_bytes),
                safe: figures.and_then(|slot| slot.safe_bytes),
            },
            events: relay.map_or_else(Events::default, |relay| Events {
                published: relay.counters.published,
                retried: by_reason(&relay.counters.retried),
                held: by_reason(&relay.counters.held),
                quarantined: by_reason(&relay.counters.quarantined),
                unrouted: relay.counters.unrouted,
                ignored: relay
                    .counters
                    .ignored
                    .iter()
                    .map(|(op, count)| ((*op).to_owned(), *count))
                    .collect(),
            }),
        }
    }
}

fn broker(broker: Broker) -> &'static str {
    match broker {
        Broker::Down => "down",
        Broker::Blocked => "blocked",
        Broker::Ready(_) => "ready",
    }
}

fn by_reason(counts: &BTreeMap<Reason, u64>) -> BTreeMap<String, u64> {
    counts.iter().map(|(reason, count)| (reason.as_str().to_owned(), *count)).collect()
}
