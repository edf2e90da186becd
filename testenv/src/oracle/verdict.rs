//! What the oracle found.

use std::fmt;

use anyhow::{Result, bail};

use super::quarantine::Kept;
use super::truth::{Event, Truth};
use crate::consumer::Delivery;

/// How many offenders of a kind are named.
const NAMED: usize = 5;

/// What the oracle found; its text is a table, and names the first few offenders of each kind.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Events in committed transactions, by the database.
    pub committed: usize,
    /// Events written and rolled back, by the ledger's sequence, which no rollback turns back.
    pub rolled_back: u64,
    /// Committed events that arrived at least once.
    pub delivered: usize,
    /// Committed events that never arrived and stand in quarantine.
    pub quarantined: usize,
    /// Everything that arrived from the relay, copies and ghosts too.
    pub deliveries: usize,
    /// What the broker handed out again because the consumer's own connection was lost.
    pub redelivered: usize,
    /// Copies, allowed ones too.
    pub duplicates: usize,
    /// Committed, never delivered (P1).
    pub lost: Vec<Offender>,
    /// Delivered, never committed (P2).
    pub ghosts: Vec<Offender>,
    /// First deliveries behind a younger event of their aggregate (P3).
    pub out_of_order: Vec<Offender>,
    /// Copies of what the slot had passed before the last fault, or without any fault (P4).
    pub forbidden: Vec<Offender>,
    /// Deliveries whose body, aggregate or position is not what the database says.
    pub altered: Vec<Offender>,
}

/// One event, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offender {
    /// The aggregate and the event's number in it, such as `order/17 #3`.
    pub event: String,
    /// What is wrong.
    pub what: String,
    /// Its message id.
    pub message_id: String,
}

impl Verdict {
    pub(super) fn new(truth: &Truth) -> Self {
        Self { committed: truth.len(), rolled_back: truth.rolled_back(), ..Self::default() }
    }

    /// Whether every promise was kept: allowed duplicates are all it forgives.
    pub fn is_clean(&self) -> bool {
        self.kinds().iter().all(|(_, offenders)| offenders.is_empty())
    }

    /// An error that holds the whole verdict unless it is clean, and something was written and judged at all.
    pub fn expect_clean(&self) -> Result<()> {
        if self.committed == 0 {
            bail!("judge the relay: nothing was committed");
        }
        if !self.is_clean() {
            bail!("find every promise kept:\n{self}");
        }
        Ok(())
    }

    fn kinds(&self) -> [(&'static str, &[Offender]); 5] {
        [
            ("lost", &self.lost),
            ("ghosts", &self.ghosts),
            ("out of order", &self.out_of_order),
            ("forbidden duplicates", &self.forbidden),
            ("altered", &self.altered),
        ]
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            ("committed", self.committed as u64),
            ("rolled back", self.rolled_back),
            ("delivered", self.delivered as u64),
            ("in quarantine", self.quarantined as u64),
            ("duplicates", self.duplicates as u64),
            ("broker redeliveries", self.redelivered as u64),
        ];
        for (name, count) in counts {
            writeln!(f, "{name:<22}{count:>9}")?;
        }
        for (name, offenders) in self.kinds() {
            writeln!(f, "{name:<22}{:>9}", offenders.len())?;
            for offender in offenders.iter().take(NAMED) {
                writeln!(f, "    {offender}")?;
            }
            if offenders.len() > NAMED {
                writeln!(f, "    and {} more", offenders.len() - NAMED)?;
            }
        }
        Ok(())
    }
}

impl Offender {
    pub(super) fn new(event: &Event, what: impl Into<String>) -> Self {
        let name = format!("{}/{} #{}", event.aggregate_type, event.aggregate_id, event.aggregate_seq);
        Self { event: name, what: what.into(), message_id: event.id.clone() }
    }

    /// A row in quarantine of an event that is not committed.
    pub(super) fn kept(row: &Kept) -> Self {
        Self {
            event: format!("the row at {}", row.position),
            what: format!("{} in quarantine, never committed", row.state),
            message_id: row.message_id.clone().unwrap_or_default(),
        }
    }

    pub(super) fn ghost(delivery: &Delivery) -> Self {
        let name = ["aggregate_type", "aggregate_id"].map(|name| delivery.text(name).unwrap_or("?"));
        Self {
            event: name.join("/"),
            what: format!("delivered with routing key {}, never committed", delivery.routing_key),
            message_id: delivery.message_id().to_owned(),
        }
    }
}

impl fmt::Display for Offender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.event, self.message_id, self.what)
    }
}
