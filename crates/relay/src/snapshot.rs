//! What the relay tells about itself: figures for gauges, `/status` and `/readyz`.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::hold::HoldCause;
use crate::ledger::Watermark;
use crate::message::Broker;
use crate::reason::Reason;

/// The relay at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The broker as the relay knows it.
    pub broker: Broker,
    /// Events read and not yet paid.
    pub in_flight_events: usize,
    /// What those events hold in memory, in bytes.
    pub in_flight_bytes: usize,
    /// Aggregates with something owed.
    pub aggregates: usize,
    /// Events that should be in quarantine, and are not because the relay holds.
    pub held_events: usize,
    /// Why the relay holds, if it does.
    pub hold: Option<HoldCause>,
    /// The quarantine table has not been read in this session, so that no event can be; or the last work on it
    /// was not done.
    pub quarantine_away: bool,
    /// Rows of the quarantine that are parked or released.
    pub quarantine_events: u64,
    /// Aggregates whose events go to the quarantine.
    pub parked_aggregates: usize,
    /// Routes that do not take events.
    pub bad_routes: usize,
    /// What the relay holds of events, of the quarantine and about it, in bytes.
    pub memory_bytes: usize,
    /// The age of the oldest transaction that owes, since it began to arrive.
    pub oldest: Option<Duration>,
    /// Events confirmed whose transaction has not been reported: after a crash they would be sent again.
    pub unreported_events: u64,
    /// The highest position that may be acknowledged.
    pub reached: Option<Watermark>,
    /// The highest position that was reported.
    pub reported: Option<Watermark>,
    /// Windows at the broker, strays included.
    pub windows: usize,
    /// Windows without progress, awaited on their old channels.
    pub strays: usize,
    /// A limit is full and nothing has been paid for a second.
    pub saturated: bool,
    /// The relay is ending.
    pub draining: bool,
    /// What has been counted since the start.
    pub counters: Counters,
}

/// Counts since the start of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events confirmed and routed.
    pub published: u64,
    /// Rejections by reason; each is followed by another try.
    pub retried: BTreeMap<Reason, u64>,
    /// Events quarantined, by reason.
    pub quarantined: BTreeMap<Reason, u64>,
    /// Events paid though no queue took them.
    pub unrouted: u64,
    /// Events that were sent again and found in the quarantine.
    pub stored_before: u64,
    /// Events held, by reason.
    pub held: BTreeMap<Reason, u64>,
    /// What is no event, by kind.
    pub ignored: BTreeMap<&'static str, u64>,
    /// Headers left out because their name is ours.
    pub headers_dropped: u64,
    /// Answers for windows of an earlier session or connection.
    pub dead_answers: u64,
}

/// Why the relay is not ready, as far as the core knows; in the order in which it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It is ending.
    Draining,
    /// No connection to the broker.
    Broker,
    /// The broker is blocked.
    Blocked,
    /// The quarantine is out of reach.
    Quarantine,
    /// The relay holds.
    Held,
    /// A debt is older than allowed.
    Stalled,
    /// A limit is full and nothing moves.
    Saturated,
}

impl Snapshot {
    /// Why the relay is not ready, if it is not.
    pub fn trouble(&self, stalled_after: Duration) -> Option<Trouble> {
        let told = [
            (self.draining, Trouble::Draining),
            (self.broker == Broker::Down, Trouble::Broker),
            (self.broker == Broker::Blocked, Trouble::Blocked),
            (self.quarantine_away, Trouble::Quarantine),
            (self.hold.is_some(), Trouble::Held),
            (self.oldest.is_some_and(|age| age > stalled_after), Trouble::Stalled),
            (self.saturated, Trouble::Saturated),
        ];
        told.into_iter().find(|(holds, _)| *holds).map(|(_, trouble)| trouble)
    }
}
