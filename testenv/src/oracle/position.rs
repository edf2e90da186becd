//! The header `postrider_position` against what the writer saw of the log, so that it can be believed.

use std::collections::{BTreeMap, HashMap};

use tokio_postgres::types::PgLsn;

use super::truth::Event;
use super::verdict::Offender;
use crate::consumer::Delivery;

/// Which commit record belongs to which transaction, as far as deliveries have told.
#[derive(Default)]
pub(super) struct Positions {
    commits: HashMap<u32, PgLsn>,
    transactions: BTreeMap<PgLsn, u32>,
}

impl Positions {
    /// Takes in a delivery, and objects if its position cannot be right.
    pub(super) fn check(&mut self, event: &Event, delivery: &Delivery) -> Option<Offender> {
        let Some(position) = delivery.position() else {
            let sent = delivery.headers.get("postrider_position");
            return Some(Offender::new(event, format!("postrider_position is unreadable: {sent:?}")));
        };
        let place = event.place?;
        let commit_lsn = *self.commits.entry(place.xid).or_insert(position.commit_lsn);
        let xid = *self.transactions.entry(position.commit_lsn).or_insert(place.xid);
        let objection = if position.index != place.index {
            format!("it is number {} of its transaction", place.index)
        } else if position.commit_lsn < place.written_lsn {
            format!("it was inserted after {}", place.written_lsn)
        } else if let Some(next_lsn) = place.next_lsn.filter(|next_lsn| position.commit_lsn >= *next_lsn) {
            format!("the aggregate's next event was inserted after its commit, at {next_lsn}")
        } else if position.commit_lsn != commit_lsn {
            format!("another event of its transaction has {commit_lsn}")
        } else if xid != place.xid {
            format!("an event of transaction {xid} has it too, its own is {}", place.xid)
        } else {
            return None;
        };
        Some(Offender::new(event, format!("postrider_position is {position}, but {objection}")))
    }
}
