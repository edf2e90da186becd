//! Exchanges that rows name: whether one exists is found out by one event alone.
//!
//! Invariant: an event to an exchange that has not answered on this connection has no other behind it on its
//! channel. The broker closes the channel over a missing exchange, and a client that is still writing to a channel
//! which is closed loses the whole connection (AMQP 0-9-1 section 4.7, reply code 504).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::aggregate::AggregateId;
use crate::lsn::Position;
use crate::message::Message;

/// So many names are remembered; an event to any other is tried like the first.
const EXCHANGES_MAX: usize = 1024;

#[derive(Debug)]
enum Exchange {
    /// This event finds out; these aggregates wait for it.
    Tried(Position, VecDeque<AggregateId>),
    /// It has taken an event.
    Known,
}

/// How an event to an exchange stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquaintance {
    Known,
    /// It is the one that finds out.
    First,
    /// Nobody has tried.
    Stranger,
    /// Another is trying.
    Waits,
}

/// The exchanges of this connection.
#[derive(Debug)]
pub(crate) struct Exchanges {
    /// The publisher sees to this one when it connects.
    own: Arc<str>,
    /// Sorted, so that a simulated world replays.
    others: BTreeMap<Arc<str>, Exchange>,
}

impl Exchanges {
    pub(crate) fn new(own: Arc<str>) -> Self {
        Self { own, others: BTreeMap::new() }
    }

    pub(crate) fn acquaintance(&self, message: &Message) -> Acquaintance {
        if message.exchange == self.own {
            return Acquaintance::Known;
        }
        match self.others.get(&message.exchange) {
            None => Acquaintance::Stranger,
            Some(Exchange::Known) => Acquaintance::Known,
            Some(Exchange::Tried(first, _)) if *first == message.position => Acquaintance::First,
            Some(Exchange::Tried(..)) => Acquaintance::Waits,
        }
    }

    /// This message is the first to its exchange.
    pub(crate) fn try_first(&mut self, message: &Message) {
        if self.others.len() >= EXCHANGES_MAX {
            self.others.retain(|_, exchange| matches!(exchange, Exchange::Tried(..)));
        }
        let tried = Exchange::Tried(message.position, VecDeque::new());
        self.others.insert(Arc::clone(&message.exchange), tried);
    }

    /// The aggregate, whose head is this message, waits.
    pub(crate) fn wait(&mut self, message: &Message, id: AggregateId) {
        if let Some(Exchange::Tried(_, waiters)) = self.others.get_mut(&message.exchange) {
            waiters.push_back(id);
        }
    }

    /// The broker has answered to this message, or has had time to close the channel over it: who waits no longer.
    pub(crate) fn met(&mut self, message: &Message) -> VecDeque<AggregateId> {
        match self.others.get_mut(&message.exchange) {
            Some(exchange @ Exchange::Tried(..)) => waiters(std::mem::replace(exchange, Exchange::Known)),
            Some(Exchange::Known) | None => VecDeque::new(),
        }
    }

    /// The message came back without telling, or its exchange is missing: the next one tries.
    pub(crate) fn unmet(&mut self, message: &Message) -> VecDeque<AggregateId> {
        match self.acquaintance(message) {
            Acquaintance::First => self.others.remove(&message.exchange).map(waiters).unwrap_or_default(),
            Acquaintance::Known | Acquaintance::Stranger | Acquaintance::Waits => VecDeque::new(),
        }
    }

    /// The channel was closed while this message was out: its exchange may be missing.
    pub(crate) fn doubt(&mut self, message: &Message) -> VecDeque<AggregateId> {
        self.others.remove(&message.exchange).map(waiters).unwrap_or_default()
    }

    /// The connection is gone, and with it what was known: who waits no longer.
    pub(crate) fn forget(&mut self) -> Vec<AggregateId> {
        std::mem::take(&mut self.others).into_values().flat_map(waiters).collect()
    }
}

fn waiters(exchange: Exchange) -> VecDeque<AggregateId> {
    match exchange {
        Exchange::Tried(_, waiters) => waiters,
        Exchange::Known => VecDeque::new(),
    }
}
