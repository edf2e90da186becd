//! What a seed decides, and a count of what came of it.

use std::collections::BTreeMap;

/// Everything that must have happened somewhere in a run of many seeds.
pub(crate) const FAULTS: [&str; 30] = [
    "answer after its window was void",
    "broker blocked",
    "broker down",
    "channel closed",
    "check unreachable",
    "connection closed by a message",
    "confirm overdue",
    "crash of the relay",
    "crash of the server, slot position lost",
    "duplicate delivered",
    "keepalive inside a transaction",
    "keepalive while owing",
    "limit full",
    "message returned",
    "message returned and accepted",
    "nack",
    "poison held",
    "poison quarantined",
    "publication altered, events skipped",
    "quarantine: discard asked",
    "quarantine: event read again, paid by its row",
    "quarantine: position page turned",
    "quarantine: retry asked",
    "quarantine: row put back",
    "quarantine: row delivered",
    "quarantine: work done, and nobody told",
    "quarantine: work lost",
    "rolled over by a new session",
    "stale keepalive",
    "window stalled",
];

/// Every draw of a world is made here, in one order: a seed is one world.
pub(crate) struct Fate {
    pub(crate) random: fastrand::Rng,
    /// Whether anything goes wrong at all.
    pub(crate) faults: bool,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

impl Fate {
    pub(crate) fn new(random: fastrand::Rng) -> Self {
        Self { random, faults: true, counts: BTreeMap::new() }
    }

    pub(crate) fn count(&mut self, fault: &'static str) {
        *self.counts.entry(fault).or_default() += 1;
    }
}
