//! The broker's word on one event: paid, or tried again, or poisonous.

use super::{Now, Relay};
use crate::aggregate::{AggregateId, Next};
use crate::effect::Notice;
use crate::lsn::Position;
use crate::message::{Verdict, WindowEnd};
use crate::pending::{Debt, Pending, Poison};
use crate::reason::Reason;
use crate::releases::{Delivery, ordered_by};
use crate::routes::Failed;
use crate::settings::Unrouted;

impl Relay {
    /// The event was confirmed.
    pub(super) fn confirm(&mut self, now: Now, id: AggregateId, pending: Pending) {
        if let Some(message) = pending.message() {
            let waiters = self.routes.confirmed(message);
            self.resume(waiters);
            let waiters = self.exchanges.met(message);
            self.resume(waiters);
        }
        if self.hold.succeeded() {
            self.tell(Notice::Resumed);
            self.aggregates.unshelve();
            // What was mended may be all of it: each route is asked before anything else is given up.
            self.routes.recheck(now.mono);
        }
        if pending.held {
            self.tell(Notice::Released { position: pending.position });
        }
        self.pay(now, id, pending);
    }

    /// An event that was out is owed no more.
    fn pay(&mut self, now: Now, id: AggregateId, pending: Pending) {
        self.moved = now.mono;
        if pending.held {
            self.hold.events -= 1;
        }
        if matches!(pending.debt, Debt::Ticket(_)) {
            self.release_room(pending.bytes);
        }
        self.settle_debt(pending.debt, pending.position, pending.bytes);
        self.aggregates.paid(id);
    }

    pub(super) fn release_room(&mut self, bytes: usize) {
        self.events -= 1;
        self.bytes -= bytes;
    }

    pub(super) fn settle_debt(&mut self, debt: Debt, position: Position, bytes: usize) {
        match debt {
            Debt::Ticket(ticket) => self.ledger.pay(ticket),
            Debt::Row(scope, aggregate) => {
                let aggregate = ordered_by(scope, aggregate);
                self.releases.delivered(Delivery { position, aggregate, bytes });
            }
        }
    }

    /// An event came back without a confirm. `single`: it was alone in its window, so what happened to the
    /// channel is its doing.
    pub(super) fn reject(
        &mut self,
        now: Now,
        id: AggregateId,
        mut pending: Pending,
        verdict: Verdict,
        end: &WindowEnd,
        single: bool,
    ) {
        let next = match (verdict, end) {
            (Verdict::Confirmed, _) => unreachable!("a confirm pays"),
            (Verdict::Returned { code }, _) => {
                let said = format!("returned with {code}: no queue is bound for its route");
                return self.misrouted(now, id, pending, Reason::Unrouted, &said);
            }
            (Verdict::Unanswered, WindowEnd::Complete | WindowEnd::Stalled | WindowEnd::Overdue) => {
                return self.misrouted(now, id, pending, Reason::Unconfirmed, "no confirm came in time");
            }
            (Verdict::Nacked, _) => {
                self.retried(Reason::Nacked);
                pending.failures = pending.failures.saturating_add(1);
                Next::Waiting(now.mono + self.settings.backoff.wait(pending.failures, &mut self.random))
            }
            (Verdict::Unanswered, WindowEnd::Disconnected) => Next::Ready,
            (Verdict::Unanswered, WindowEnd::ChannelClosed { code, text }) => {
                self.retried(Reason::ChannelClosed);
                if single {
                    pending.alone = true;
                    pending.attempt();
                    let detail = format!("the broker closes the channel over it: {code} {text}");
                    pending.poison = Some(Box::new(Poison { reason: Reason::ChannelClosed, detail }));
                }
                Next::Suspect
            }
            (Verdict::Unanswered, WindowEnd::ConnectionClosed { code, text }) => {
                self.retried(Reason::ConnectionClosed);
                pending.strikes += 1;
                pending.alone |= pending.strikes >= 2;
                if single && pending.strikes > 2 {
                    pending.attempt();
                    let detail = format!("the broker closes the connection over it: {code} {text}");
                    pending.poison = Some(Box::new(Poison { reason: Reason::ConnectionClosed, detail }));
                }
                if pending.alone { Next::Suspect } else { Next::Ready }
            }
        };
        if let Some(message) = pending.message() {
            self.routes.undecided(message);
            let waiters = match end {
                _ if verdict == Verdict::Nacked => self.exchanges.met(message),
                WindowEnd::ChannelClosed { .. } => self.exchanges.doubt(message),
                _ => self.exchanges.unmet(message),
            };
            self.resume(waiters);
        }
        self.aggregates.put_back(id, pending, next);
    }

    /// The event's route did not take it: an attempt.
    fn misrouted(&mut self, now: Now, id: AggregateId, mut pending: Pending, reason: Reason, said: &str) {
        self.retried(reason);
        pending.attempt();
        let message = pending.message().expect("what was out is a message").clone();
        let used_up = pending.attempts >= self.settings.attempts || self.routes.is_settled(&message, reason);
        let wait = if used_up {
            self.settings.backoff.max
        } else {
            self.settings.backoff.wait(pending.attempts, &mut self.random)
        };
        let due = now.mono + wait;
        let Failed { remembered, news, anew } = self.routes.failed(&message, reason, due, used_up);
        self.resume(anew);
        let waiters = self.exchanges.met(&message);
        self.resume(waiters);
        if news {
            let (exchange, routing_key) = (message.exchange.clone(), message.routing_key.clone());
            let once = format!("route {reason} {used_up} {exchange} {routing_key}");
            self.tell_once(&once, Notice::BadRoute { exchange, routing_key, reason, settled: used_up });
        }
        if used_up && reason == Reason::Unrouted && self.settings.unrouted == Unrouted::Accept {
            self.counters.unrouted += 1;
            return self.pay(now, id, pending);
        }
        if used_up {
            let (exchange, key) = (&message.exchange, &message.routing_key);
            let detail = format!("{said}: exchange {exchange:?}, routing key {key:?}");
            pending.poison = Some(Box::new(Poison { reason, detail }));
        }
        let next = if remembered { Next::Aside } else { Next::Waiting(due) };
        self.aggregates.put_back(id, pending, next);
    }
}
