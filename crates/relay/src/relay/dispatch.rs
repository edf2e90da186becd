//! Which events go to the broker next.

use std::time::Duration;

use super::{Now, Relay};
use crate::aggregate::{AggregateId, Course, Next, Taken};
use crate::effect::Effect;
use crate::exchanges::{Acquaintance, Exchanges};
use crate::ledger::Ledger;
use crate::message::{Broker, BrokerLimits, Window};
use crate::pending::{Debt, Pending, Poison};
use crate::reason::Reason;
use crate::routes::{Routes, Standing};
use crate::settings::Unrouted;

/// A window takes no further event once it holds so many bytes: the client copies what it publishes.
const WINDOW_BYTES: usize = 1 << 20;

/// Whether an event goes into the window that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Goes,
    /// Only in a window of its own.
    Alone,
    /// Its transaction cannot be acknowledged any more: it would only be a duplicate.
    Withheld,
    /// Its route does not take events.
    Aside,
    /// Its route does not take events, and nobody waits for that to change.
    Unwelcome(Reason),
    /// Nobody has tried its exchange.
    Stranger,
    /// Its exchange is being tried.
    Behind,
    /// Its headers do not fit into a frame.
    Oversized,
    /// It is no message.
    Refused,
}

/// What the way of an event depends on.
struct Gate<'a> {
    routes: &'a Routes,
    exchanges: &'a Exchanges,
    ledger: &'a Ledger,
    course: Course,
    frame_max: usize,
    now: Duration,
    /// Events of the open transaction stay back.
    withholds: bool,
    /// Nothing goes to the quarantine.
    holds: bool,
    /// Events that no queue takes are paid.
    accepts: bool,
}

impl Gate<'_> {
    fn way(&self, head: &Pending) -> Way {
        if self.withholds && is_open(self.ledger, head) {
            return Way::Withheld;
        }
        let Some(message) = head.message() else { return Way::Refused };
        if head.header_bytes > self.frame_max {
            return Way::Oversized;
        }
        if head.alone && self.course != Course::Suspect {
            return Way::Alone;
        }
        match self.exchanges.acquaintance(message) {
            Acquaintance::Known => {}
            Acquaintance::First if self.course == Course::Suspect => {}
            Acquaintance::First => return Way::Alone,
            Acquaintance::Stranger => return Way::Stranger,
            Acquaintance::Waits => return Way::Behind,
        }
        match self.routes.standing(message, self.now) {
            None => Way::Goes,
            // In a window of its own, so that it does not keep others waiting.
            Some(Standing::Probe) if self.course == Course::Suspect => Way::Goes,
            Some(Standing::Probe) => Way::Alone,
            Some(Standing::Settled(Reason::Unrouted)) if self.accepts => Way::Goes,
            // A row of the quarantine may go back there.
            Some(Standing::Settled(reason)) if !self.holds || matches!(head.debt, Debt::Row(..)) => {
                Way::Unwelcome(reason)
            }
            Some(Standing::Settled(_) | Standing::Wait) => Way::Aside,
        }
    }
}

fn is_open(ledger: &Ledger, pending: &Pending) -> bool {
    matches!(&pending.debt, Debt::Ticket(ticket) if ledger.is_open(ticket))
}

impl Relay {
    /// Makes the next window, if there is a lane and something to put in it.
    pub(super) fn window(&mut self, now: Now) -> Option<Effect> {
        let Broker::Ready(limits) = self.broker else { return None };
        if self.windows.lanes() >= self.settings.lanes {
            return None;
        }
        let retries = self.windows.lanes_of_retries() < (self.settings.lanes / 2).max(1);
        // Suspects last again: the others may have turned out to be some.
        let courses = if self.retries_first {
            [Course::Suspect, Course::Retry, Course::Fresh, Course::Suspect]
        } else {
            [Course::Fresh, Course::Suspect, Course::Retry, Course::Suspect]
        };
        let fresh = !self.hold.stops_fresh();
        let allowed =
            courses.into_iter().filter(|course| if *course == Course::Fresh { fresh } else { retries });
        for course in allowed {
            let items = self.collect(now, course, limits);
            if !items.is_empty() {
                self.retries_first = course == Course::Fresh;
                let messages = items.iter().flatten().filter_map(|(_, pending)| pending.message().cloned());
                let messages = messages.collect();
                return Some(Effect::Publish(Window { id: self.windows.insert(items, course), messages }));
            }
        }
        None
    }

    fn collect(
        &mut self,
        now: Now,
        course: Course,
        limits: BrokerLimits,
    ) -> Vec<Option<(AggregateId, Pending)>> {
        let most = if course == Course::Suspect { 1 } else { self.settings.window_events };
        let allowance = self.pace.allowance(now.mono, most);
        let withholds = self.draining && !self.finishing();
        let mut items = Vec::new();
        let mut bytes = 0;
        while items.len() < allowance && bytes < WINDOW_BYTES {
            let per_aggregate = self.settings.events_per_key.min(allowance - items.len());
            let gate = Gate {
                routes: &self.routes,
                exchanges: &self.exchanges,
                ledger: &self.ledger,
                course,
                frame_max: limits.frame_max as usize,
                now: now.mono,
                withholds,
                holds: self.hold.cause().is_some(),
                accepts: self.settings.unrouted == Unrouted::Accept,
            };
            let goes = |head: &Pending| gate.way(head) == Way::Goes;
            let taken = self.aggregates.take(course, per_aggregate, goes, |id, pending| {
                bytes += pending.bytes;
                self.transaction.is_out |= is_open(gate.ledger, &pending);
                items.push(Some((id, pending)));
            });
            match taken {
                Taken::Events => {}
                Taken::Nothing => break,
                Taken::Stepped(id) => {
                    let way = gate.way(self.aggregates.head(id));
                    self.step_aside(id, way, limits);
                }
            }
        }
        self.pace.spend(items.len());
        items
    }

    /// An aggregate left its list, and its head does not go.
    fn step_aside(&mut self, id: AggregateId, way: Way, limits: BrokerLimits) {
        let (reason, detail) = match way {
            // On no list any more: the relay ends.
            Way::Withheld => return,
            Way::Alone => return self.aggregates.resume(id, Next::Suspect),
            Way::Aside => {
                let message = self.aggregates.head(id).message().expect("only messages have routes");
                let waiters = self.exchanges.unmet(message);
                self.resume(waiters);
                return self.wait_for_route(id);
            }
            Way::Stranger => {
                let message = self.aggregates.head(id).message().expect("only messages have exchanges");
                self.exchanges.try_first(message);
                return self.aggregates.resume(id, Next::Suspect);
            }
            Way::Behind => {
                let message = self.aggregates.head(id).message().expect("only messages have exchanges");
                return self.exchanges.wait(message, id);
            }
            Way::Unwelcome(reason) => {
                let message = self.aggregates.head(id).message().expect("only messages have routes");
                let (exchange, key) = (&message.exchange, &message.routing_key);
                let detail = format!(
                    "not tried, for others of its route were in vain: exchange {exchange:?}, routing key {key:?}"
                );
                (reason, detail)
            }
            Way::Oversized => {
                let (size, max) = (self.aggregates.head(id).header_bytes, limits.frame_max);
                let detail = format!("its headers take {size} bytes, the broker's frame_max is {max}");
                (Reason::HeaderTooLarge, detail)
            }
            Way::Goes | Way::Refused => {
                unreachable!("it would have gone, or stood on the list of the poisoned")
            }
        };
        self.aggregates.head_mut(id).poison = Some(Box::new(Poison { reason, detail }));
        self.aggregates.resume(id, Next::Ready);
    }
}
