//! Poisonous events and their way into the quarantine, and what comes back from there.
//!
//! Invariant: an event leaves its aggregate for the quarantine only from the head, and its debt is paid only when
//! its row is committed.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Now, Relay};
use crate::aggregate::{AggregateId, Next};
use crate::effect::Notice;
use crate::hold::HoldCause;
use crate::mapping::AggregateKey;
use crate::message::Broker;
use crate::pending::{Condemned, Content, Debt, Pending, Poison};
use crate::quarantine::{Done, ParkedKey, PutBack, Released, Scope, Work, WorkId};
use crate::reason::Reason;
use crate::releases::{Delivery, ordered_by};
use crate::settings::{QuarantineScope, Unrouted};
use crate::works::{Item, Waiting};

impl Relay {
    /// Places every aggregate whose head's fate is open.
    pub(super) fn sentence(&mut self, now: Now) {
        loop {
            if let Some(id) = self.aggregates.next_poisoned() {
                self.judge(now, id);
            } else if let Some(id) = self.aggregates.next_aside() {
                self.wait_for_route(id);
            } else {
                break;
            }
        }
        if matches!(self.broker, Broker::Ready(_)) {
            // A probe of a route without confirms keeps a stray channel for as long as the confirm timeout.
            let unconfirmed = self.windows.strays() < (self.settings.lanes / 2).max(1);
            for id in self.routes.due(now.mono, unconfirmed) {
                if let Some(message) = self.aggregates.head(id).message().cloned() {
                    self.routes.probing(&message);
                }
                self.aggregates.resume(id, Next::Suspect);
            }
        }
    }

    pub(super) fn wait_for_route(&mut self, id: AggregateId) {
        let head = self.aggregates.head(id);
        let (message, tried) = (head.message().cloned(), head.attempts > 0);
        if !message.is_some_and(|message| self.routes.wait(&message, id, tried)) {
            self.aggregates.resume(id, Next::Ready);
        }
    }

    /// The head of this aggregate is poisonous.
    fn judge(&mut self, now: Now, id: AggregateId) {
        let head = self.aggregates.head(id);
        let poison = head.poison.as_deref().cloned().expect("its head is poisonous");
        let position = head.position;
        if let Some(message) = head.message().cloned() {
            self.routes.undecided(&message);
            let waiters = self.exchanges.unmet(&message);
            self.resume(waiters);
        }
        if matches!(self.aggregates.head(id).debt, Debt::Row(..)) {
            return self.put_back(id, poison);
        }
        if let Some(cause) = self.hold.cause() {
            return self.hold(now, id, poison, cause);
        }
        self.hold.found();
        let scope = match (poison.reason, self.settings.unrouted) {
            (Reason::Unrouted, Unrouted::Event) => Scope::Event,
            (Reason::Unrouted, Unrouted::Key | Unrouted::Accept) => Scope::Key,
            _ if self.settings.scope == QuarantineScope::Event => Scope::Event,
            _ => Scope::Key,
        };
        let Poison { reason, detail } = poison.clone();
        let followers = self.condemn(id, scope, poison);
        self.tell(Notice::Quarantined { position, reason, detail, followers });
    }

    /// The head goes to the quarantine, under [`Scope::Key`] with everything behind it. Returns how much that is.
    fn condemn(&mut self, id: AggregateId, scope: Scope, poison: Poison) -> usize {
        if scope == Scope::Event {
            let (aggregate, head) = self.aggregates.take_head(id);
            self.store(head, aggregate, None, scope, poison);
            return 0;
        }
        let (aggregate, queue) = self.aggregates.take_queue(id);
        let key = aggregate.as_ref().map(ParkedKey::of);
        if let (Some(key), Some(head)) = (key, queue.front()) {
            self.parked.park(key, head.position);
        }
        let followers = queue.len() - 1;
        let mut first = Some(poison);
        for mut pending in queue {
            let poison = first.take().unwrap_or_else(|| self.own_poison(&mut pending));
            self.store(pending, aggregate.clone(), key, scope, poison);
        }
        followers
    }

    /// Why an event is parked behind another: it may be poisonous itself, and then it is told like any other.
    pub(super) fn own_poison(&mut self, pending: &mut Pending) -> Poison {
        let Some(poison) = pending.poison.take() else { return follower() };
        let Poison { reason, detail } = (*poison).clone();
        self.tell(Notice::Quarantined { position: pending.position, reason, detail, followers: 0 });
        *poison
    }

    fn store(
        &mut self,
        pending: Pending,
        aggregate: Option<AggregateKey>,
        key: Option<ParkedKey>,
        scope: Scope,
        poison: Poison,
    ) {
        if pending.held {
            self.hold.events -= 1;
        }
        self.works.push(Item::Row(Box::new(Condemned { pending, aggregate, key, scope, poison })));
    }

    /// The relay holds: the event waits here, and is tried again if that can help.
    fn hold(&mut self, now: Now, id: AggregateId, poison: Poison, cause: HoldCause) {
        let wait = self.settings.backoff.wait(self.aggregates.head(id).failures, &mut self.random);
        let head = self.aggregates.head_mut(id);
        let position = head.position;
        let news = !std::mem::replace(&mut head.held, true);
        let sendable = matches!(head.content, Content::Message(_)) && poison.reason != Reason::HeaderTooLarge;
        let Poison { reason, detail } = poison;
        if sendable {
            head.poison = None;
            let routed = matches!(reason, Reason::Unrouted | Reason::Unconfirmed);
            self.aggregates.resume(id, if routed { Next::Aside } else { Next::Waiting(now.mono + wait) });
        } else {
            self.aggregates.shelve(id);
        }
        if news {
            self.hold.events += 1;
            *self.counters.held.entry(reason).or_default() += 1;
            self.tell(Notice::Held { position, reason, detail, cause });
        }
    }

    /// A released row cannot be delivered: it is parked again, and what was read of its aggregate with it.
    fn put_back(&mut self, id: AggregateId, poison: Poison) {
        let (_, queue) = self.aggregates.take_queue(id);
        let head = queue.front().expect("an aggregate on a list has a head");
        let (position, attempts) = (head.position, head.attempts);
        let Poison { reason, detail } = poison;
        let work = PutBack { position, reason, detail: detail.clone(), attempts };
        let rows: Vec<_> = queue.iter().filter_map(delivery).collect();
        self.works.push(Item::PutBack(Work::PutBack(work), rows));
        self.tell(Notice::PutBack { position, reason, detail });
    }

    /// A piece of work is done.
    pub(super) fn work_done(&mut self, now: Now, id: WorkId, done: Done) {
        let Some((work, waiting)) = self.works.done(id) else { return };
        match (done, waiting) {
            (Done::Opened { parked, undelivered, released, page }, _) => {
                self.parked.open(&parked, undelivered, page);
                if released {
                    self.releases.expect();
                }
            }
            (Done::Positions(page), _) => self.parked.turn(page),
            (Done::Stored { new }, Waiting::Rows(rows)) => {
                self.parked.undelivered += new;
                self.moved = now.mono;
                if rows.iter().any(|row| row.key.is_some_and(|key| self.parked.is_releasing(key))) {
                    self.releases.expect();
                }
                for Condemned { pending, poison, .. } in rows {
                    *self.counters.quarantined.entry(poison.reason).or_default() += 1;
                    self.release_room(pending.bytes);
                    self.settle_debt(pending.debt, pending.position, pending.bytes);
                }
            }
            (Done::Released { rows, aggregates }, Waiting::Request(ticket, bytes)) => {
                for key in aggregates {
                    self.parked.set_releasing(key, true);
                }
                self.releases.expect();
                // Somebody has mended something, or wants to know whether it is mended.
                self.routes.recheck(now.mono);
                self.release_room(bytes);
                self.ledger.pay(ticket);
                self.followed(&work, rows);
            }
            (Done::Discarded { rows, free }, Waiting::Request(ticket, bytes)) => {
                self.parked.undelivered = self.parked.undelivered.saturating_sub(rows);
                self.unpark(&free);
                self.release_room(bytes);
                self.ledger.pay(ticket);
                self.followed(&work, rows);
            }
            (Done::Page { rows, more }, _) => {
                self.releases.read(more);
                self.load(rows);
            }
            (Done::Delivered { rows, free }, Waiting::Deliveries(deliveries)) => {
                self.parked.undelivered = self.parked.undelivered.saturating_sub(rows);
                for delivery in deliveries {
                    self.releases.unload(delivery);
                }
                self.unpark(&free);
            }
            (Done::PutBack, Waiting::Deliveries(given_up)) => {
                // Only now: another request may have been followed before.
                if let Some(key) = given_up.first().and_then(|row| row.aggregate) {
                    self.parked.set_releasing(key, false);
                }
                for row in given_up {
                    self.releases.unload(row);
                }
            }
            (done, waiting) => panic!("{done:?} is no answer to work for which {waiting:?} waits"),
        }
    }

    fn followed(&mut self, work: &Arc<Work>, rows: u64) {
        let (id, verb) = match &**work {
            Work::Release(request) => (request.id, "retry"),
            Work::Discard(request) => (request.id, "discard"),
            _ => return,
        };
        self.tell(Notice::Followed { id, verb, rows });
    }

    /// Nothing of these aggregates is undelivered in the table; where nothing is on its way there, they flow.
    fn unpark(&mut self, free: &[ParkedKey]) {
        for &key in free {
            if !self.works.stores(key) {
                self.parked.unpark(key);
            }
        }
    }

    /// Rows of the table go to the broker, those of an aggregate in their order.
    fn load(&mut self, rows: Vec<Released>) {
        let mut groups: Vec<(Option<ParkedKey>, VecDeque<Pending>)> = Vec::new();
        for row in rows {
            let key = ordered_by(row.scope, row.aggregate);
            let position = row.position;
            let pending = Pending::released(row, self.settings.mapping.message_bytes_max);
            self.releases.load(key, position, pending.bytes);
            match groups.iter_mut().find(|(other, _)| key.is_some() && *other == key) {
                Some((_, queue)) => queue.push_back(pending),
                None => groups.push((key, VecDeque::from([pending]))),
            }
        }
        for (_, queue) in groups {
            self.aggregates.open(None, queue);
        }
    }
}

/// Why an event is parked that has nothing wrong with it.
fn follower() -> Poison {
    Poison { reason: Reason::Follower, detail: "an earlier event of its aggregate is parked".to_owned() }
}

fn delivery(pending: &Pending) -> Option<Delivery> {
    match pending.debt {
        Debt::Ticket(_) => None,
        Debt::Row(scope, aggregate) => Some(Delivery {
            position: pending.position,
            aggregate: ordered_by(scope, aggregate),
            bytes: pending.bytes,
        }),
    }
}
