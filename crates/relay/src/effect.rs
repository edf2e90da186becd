//! What the core wants done and told.

use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use crate::Relay;
use crate::hold::HoldCause;
use crate::ledger::Watermark;
use crate::lsn::Position;
use crate::message::Window;
use crate::quarantine::{Work, WorkId};
use crate::reason::Reason;
use crate::report::CheckId;

/// What the shell has to do.
#[derive(Debug)]
pub enum Effect {
    /// Publish this window on a free lane.
    Publish(Window),
    /// Do this on the quarantine table, and answer with [`Relay::quarantined`].
    Quarantine(WorkId, Arc<Work>),
    /// Check slot and publication, and answer with [`Relay::checked`].
    Check(CheckId),
    /// Acknowledge this position.
    Report(Watermark),
    /// Close the Postgres session and come back with the server.
    LeavePostgres,
    /// Events were confirmed.
    Delivered(Delivered),
    /// Something for the log.
    Notice(Notice),
}

/// Events of one window that were confirmed together.
#[derive(Debug)]
pub struct Delivered {
    /// From the hand-over to the broker to the confirm.
    pub publish: Duration,
    /// From the commit to the confirm, one for each event.
    pub delivery: Vec<Duration>,
}

/// Something an operator should read once; never with a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The event is poisonous and goes to the quarantine.
    Quarantined {
        /// Where the event stands.
        position: Position,
        /// Why.
        reason: Reason,
        /// What exactly, in words.
        detail: String,
        /// So many later events of its aggregate go with it.
        followers: usize,
    },
    /// The event should be in quarantine, but the relay holds: it is not paid and its aggregate waits.
    Held {
        /// Where the event stands.
        position: Position,
        /// Why it is poisonous.
        reason: Reason,
        /// What exactly, in words.
        detail: String,
        /// Why the relay holds.
        cause: HoldCause,
    },
    /// A success has ended the hold.
    Resumed,
    /// An event that was held has been confirmed.
    Released {
        /// Where the event stands.
        position: Position,
    },
    /// A released row could not be delivered, and is parked again.
    PutBack {
        /// Where the event stands.
        position: Position,
        /// Why.
        reason: Reason,
        /// What exactly, in words.
        detail: String,
    },
    /// A route takes nothing; `settled`: its events are not tried any more one by one.
    BadRoute {
        /// The exchange.
        exchange: Arc<str>,
        /// The routing key.
        routing_key: Box<str>,
        /// Whether it is [`Reason::Unrouted`] or [`Reason::Unconfirmed`].
        reason: Reason,
        /// An event of it has used up its attempts.
        settled: bool,
    },
    /// A request of an operator was followed.
    Followed {
        /// Its `id` in `postrider.command`.
        id: i64,
        /// `retry` or `discard`.
        verb: &'static str,
        /// Rows that it moved.
        rows: u64,
    },
    /// A row of `postrider.command` asks for what cannot be understood.
    BadCommand {
        /// Where it stands.
        position: Position,
        /// Why.
        why: String,
    },
    /// A header of this name is left out of every message because the name is ours.
    HeaderDropped {
        /// The name.
        name: String,
    },
    /// The stream has messages of a type that this version does not know.
    UnknownMessage {
        /// Its letter.
        letter: u8,
    },
}
