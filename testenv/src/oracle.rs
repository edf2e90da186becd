//! The judge of every fault test: what Postgres says was committed against what the consumer received.
//!
//! It believes nothing the relay says of itself: the truth is read from the database, the deliveries from a
//! queue, and even `postrider_position` is checked against what the writer saw of the log.

mod commits;
mod order;
mod position;
mod quarantine;
mod slot;
mod truth;
mod verdict;

use std::collections::HashMap;

use tokio_postgres::types::PgLsn;

use crate::consumer::Delivery;

pub use commits::{Commit, Commits};
pub use quarantine::{Kept, Quarantine, State};
pub use slot::Slot;
pub use truth::{Event, Place, Truth};
pub use verdict::{Offender, Verdict};

/// A moment after which copies of owed events may arrive: a crash, a cut, an overdue confirm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// How many deliveries had arrived at most when it happened.
    pub arrived: usize,
    /// The slot's `confirmed_flush_lsn` at that moment or earlier: what was reported paid by then may not
    /// arrive again.
    pub persisted: PgLsn,
}

/// Judges `deliveries`, in the order in which they arrived, against the truth.
///
/// Marks among the deliveries ([`crate::consumer::Queue::mark`]) count as faults beside those in `faults`; where
/// neither came before, no event may arrive twice. An event that was ever in quarantine ([`Truth::with`]) is sent
/// from there whatever the slot has passed: behind any fault it may arrive again. What the broker itself handed out
/// twice, because the consumer's connection was lost in between, is nobody's fault.
pub fn judge(truth: &Truth, deliveries: &[Delivery], faults: &[Fault]) -> Verdict {
    let mut verdict = Verdict::new(truth);
    let mut floor = Floor { faults, seen: 0, persisted: None };
    let mut first_copies: HashMap<&str, &Delivery> = HashMap::new();
    let mut order = order::Order::default();
    let mut positions = position::Positions::default();
    for (index, delivery) in deliveries.iter().enumerate() {
        floor.advance(index);
        if let Some(persisted) = delivery.mark() {
            floor.persisted = Some(persisted);
            continue;
        }
        let first = first_copies.get(delivery.message_id()).copied();
        if first.is_some_and(|first| delivery.redelivered && delivery.session > first.session) {
            verdict.redelivered += 1;
            continue;
        }
        verdict.deliveries += 1;
        let Some(event) = truth.event(delivery.message_id()) else {
            verdict.ghosts.push(Offender::ghost(delivery));
            continue;
        };
        verdict.altered.extend(event.differences(delivery));
        verdict.altered.extend(positions.check(event, delivery));
        if let Some(first) = first {
            verdict.duplicates += 1;
            verdict.altered.extend(copy_differences(event, first, delivery));
            verdict.forbidden.extend(floor.forbids(event, delivery, truth.kept(&event.id).is_some()));
        } else {
            verdict.delivered += 1;
            verdict.out_of_order.extend(order.first_delivery(event));
            first_copies.insert(delivery.message_id(), delivery);
        }
    }
    for event in truth.events().filter(|event| !first_copies.contains_key(event.id.as_str())) {
        let lost = match truth.kept(&event.id) {
            None => "committed, never delivered",
            Some(kept) if kept.state == State::Delivered => {
                "delivered by its row in quarantine, and it never arrived"
            }
            Some(kept) => {
                verdict.quarantined += 1;
                let holds_back = kept.holds_back && kept.state != State::Discarded;
                verdict.out_of_order.extend(order.stays_back(event).filter(|_| holds_back));
                continue;
            }
        };
        verdict.lost.push(Offender::new(event, lost));
    }
    verdict.ghosts.extend(truth.uncommitted().map(Offender::kept));
    verdict.lost.sort();
    verdict
}

/// The lowest position that may still arrive again.
struct Floor<'a> {
    faults: &'a [Fault],
    seen: usize,
    persisted: Option<PgLsn>,
}

impl Floor<'_> {
    /// Takes in the faults that happened before delivery `index` arrived.
    fn advance(&mut self, index: usize) {
        while let Some(fault) = self.faults.get(self.seen).filter(|fault| fault.arrived <= index) {
            self.persisted = Some(fault.persisted);
            self.seen += 1;
        }
    }

    /// A later copy is allowed only if its commit was not yet passed by the slot at the last fault.
    fn forbids(&self, event: &Event, copy: &Delivery, was_kept: bool) -> Option<Offender> {
        let Some(persisted) = self.persisted else {
            return Some(Offender::new(event, "delivered again though nothing had failed"));
        };
        // A missing position is reported with the differences.
        let position = copy.position()?;
        // A slot that stands at a commit record sends that transaction again; behind it, it does not.
        (position.commit_lsn < persisted && !was_kept).then(|| {
            let what = format!("delivered again at {position}, though the slot stood at {persisted}");
            Offender::new(event, what)
        })
    }
}

/// A copy has the same body and the same position as the first.
fn copy_differences(event: &Event, first: &Delivery, copy: &Delivery) -> Vec<Offender> {
    let mut differences = Vec::new();
    if first.body != copy.body {
        differences.push(Offender::new(event, "a copy has another body than the first"));
    }
    if first.position() != copy.position() {
        let positions = [first, copy].map(|d| d.text("postrider_position").unwrap_or("none").to_owned());
        differences
            .push(Offender::new(event, format!("a copy has another position: {}", positions.join(", "))));
    }
    differences
}

#[cfg(test)]
mod tests;
