//! When nothing goes to the quarantine: the relay holds, for somebody must look first.
//!
//! Invariant: one success between is enough to tell a poisonous event from a broken world.

/// Why the relay holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldCause {
    /// So many events in a row were found poisonous without one success (`quarantine.burst_events`).
    Burst,
    /// `quarantine.scope` is `halt`.
    Halt,
}

/// Counts what is found.
#[derive(Debug)]
pub(crate) struct Hold {
    halts: bool,
    /// 0 for no limit.
    burst_events: u32,
    found: u32,
    /// Events that wait here instead of in the quarantine.
    pub(crate) events: usize,
}

impl Hold {
    pub(crate) fn new(halts: bool, burst_events: u32) -> Self {
        Self { halts, burst_events, found: 0, events: 0 }
    }

    /// Why the next poisonous event is not to be quarantined, if so.
    pub(crate) fn cause(&self) -> Option<HoldCause> {
        if self.halts {
            return Some(HoldCause::Halt);
        }
        (self.burst_events > 0 && self.found >= self.burst_events).then_some(HoldCause::Burst)
    }

    /// Why the relay holds now.
    pub(crate) fn present(&self) -> Option<HoldCause> {
        self.cause().filter(|cause| *cause == HoldCause::Burst || self.events > 0)
    }

    /// An event was found poisonous, and goes to the quarantine.
    pub(crate) fn found(&mut self) {
        self.found = self.found.saturating_add(1);
    }

    /// An event was confirmed; whether that ends a hold.
    pub(crate) fn succeeded(&mut self) -> bool {
        let held = self.cause() == Some(HoldCause::Burst);
        self.found = 0;
        held
    }

    /// Whether nothing fresh may go out: under `halt`, until what is held is delivered.
    pub(crate) fn stops_fresh(&self) -> bool {
        self.halts && self.events > 0
    }
}
