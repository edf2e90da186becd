//! What a relay is told: its limits and habits.

use std::time::Duration;

use crate::mapping;
use crate::retry::Backoff;

/// The limits and habits of a relay.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How rows become messages.
    pub mapping: mapping::Settings,
    /// Windows at the broker at once.
    pub lanes: usize,
    /// Events in a window.
    pub window_events: usize,
    /// Events of one aggregate at the broker at once; more than 1 gives up the order on a rejection.
    pub events_per_key: usize,
    /// Reading stops at so many unpaid events.
    pub in_flight_events: usize,
    /// Reading stops at so many bytes of unpaid events; the last one may go over it.
    pub in_flight_bytes: usize,
    /// Events handed to the broker in a second, 0 for no limit.
    pub events_per_second: u32,
    /// The slot's name: requests for other slots are not ours.
    pub slot: String,
    /// The wait after a rejection.
    pub backoff: Backoff,
    /// So many rejections, nacks not counted, and the event is poisonous.
    pub attempts: u32,
    /// What goes into quarantine with a poisonous event.
    pub scope: QuarantineScope,
    /// What becomes of an event that no queue takes.
    pub unrouted: Unrouted,
    /// So many events found poisonous without one success between, and the relay holds; 0 for no limit.
    pub burst_events: u32,
    /// How often slot and publication are checked and the watermark is reported.
    pub report_every: Duration,
    /// The seed of the jitter.
    pub seed: u64,
}

/// `quarantine.scope`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuarantineScope {
    /// The later events of its aggregate are parked behind it.
    Key,
    /// Only the event.
    Event,
    /// Nothing: the relay holds at the first.
    Halt,
}

/// `quarantine.unrouted`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrouted {
    /// Quarantined, and the later events of its aggregate behind it.
    Key,
    /// Quarantined alone.
    Event,
    /// Paid and counted.
    Accept,
}
