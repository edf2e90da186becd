//! Routes that do not take events: returned for want of a queue, or without a confirm.
//!
//! Invariant: of the events of such a route at most one is sent on purpose, its probe; the others wait here, or
//! go to the quarantine once the route is settled, so that one route cannot take the lanes from the others. One
//! confirm, and the route is as any other.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::aggregate::AggregateId;
use crate::lsn::Position;
use crate::message::Message;
use crate::reason::Reason;

/// So many bad routes are remembered; events of others wait one by one.
const ROUTES_MAX: usize = 4096;

#[derive(Debug)]
struct Route {
    reason: Reason,
    /// An event of it has used up its attempts.
    settled: bool,
    /// The event that is out, or about to go, to find out.
    probe: Option<Position>,
    /// When the next probe may go.
    due: Duration,
    waiters: VecDeque<AggregateId>,
}

/// How an event of a bad route stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It goes out to find out.
    Probe,
    /// It waits: a probe is out, or due, or the route may still recover.
    Wait,
    /// Nobody expects the route to take it.
    Settled(Reason),
}

/// The bad routes, by exchange and routing key.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// Sorted, so that a simulated world replays.
    known: BTreeMap<Arc<str>, BTreeMap<Box<str>, Route>>,
    len: usize,
    /// No probe is due before.
    earliest: Option<Duration>,
}

impl Routes {
    /// How an event of this message's route stands; `None` for a route that is not known as bad.
    pub(crate) fn standing(&self, message: &Message, now: Duration) -> Option<Standing> {
        let route = self.route(message)?;
        Some(if route.probe == Some(message.position) {
            Standing::Probe
        } else if route.settled && route.probe.is_none() && now < route.due {
            Standing::Settled(route.reason)
        } else {
            Standing::Wait
        })
    }

    /// Whether the route is settled for this reason.
    pub(crate) fn is_settled(&self, message: &Message, reason: Reason) -> bool {
        self.route(message).is_some_and(|route| route.settled && route.reason == reason)
    }

    /// The route did not take this event; the next probe goes at `due`. `settle`: from now on none is expected
    /// to be taken. Returns whether the route is remembered, whether it is news, and who must be judged anew.
    pub(crate) fn failed(
        &mut self,
        message: &Message,
        reason: Reason,
        due: Duration,
        settle: bool,
    ) -> Failed {
        let news = self.route(message).is_none_or(|route| settle && !route.settled);
        let Some(route) = self.remember(message, reason, due) else {
            return Failed { remembered: false, news: false, anew: VecDeque::new() };
        };
        if route.probe == Some(message.position) {
            route.probe = None;
        }
        route.reason = reason;
        route.settled |= settle;
        route.due = route.due.max(due);
        let anew = if route.settled { std::mem::take(&mut route.waiters) } else { VecDeque::new() };
        Failed { remembered: true, news, anew }
    }

    /// The event has no confirm yet, and others of its route should not follow it.
    pub(crate) fn stalled(&mut self, message: &Message, now: Duration) {
        if let Some(route) = self.remember(message, Reason::Unconfirmed, now) {
            route.probe.get_or_insert(message.position);
        }
    }

    /// The event came back, and that says nothing about its route.
    pub(crate) fn undecided(&mut self, message: &Message) {
        let position = message.position;
        if let Some(route) = self.route_mut(message).filter(|route| route.probe == Some(position)) {
            route.probe = None;
            let due = route.due;
            self.earlier(due);
        }
    }

    /// The route has taken an event: it is forgotten, and these wait no longer.
    pub(crate) fn confirmed(&mut self, message: &Message) -> VecDeque<AggregateId> {
        let Some(routes) = self.known.get_mut(&message.exchange) else { return VecDeque::new() };
        let Some(route) = routes.remove(&message.routing_key) else { return VecDeque::new() };
        if routes.is_empty() {
            self.known.remove(&message.exchange);
        }
        self.len -= 1;
        route.waiters
    }

    /// The aggregate, whose head is this message, waits. `first`: it is the next probe. False for a route that
    /// is not known as bad.
    pub(crate) fn wait(&mut self, message: &Message, id: AggregateId, first: bool) -> bool {
        let Some(route) = self.route_mut(message) else { return false };
        if first {
            route.waiters.push_front(id);
        } else {
            route.waiters.push_back(id);
        }
        let due = route.due;
        self.earlier(due);
        true
    }

    /// Aggregates whose heads are to be probes now; the caller names each by [`Routes::probing`].
    /// `unconfirmed`: also for routes that do not confirm, whose probe takes a lane for a while.
    pub(crate) fn due(&mut self, now: Duration, unconfirmed: bool) -> Vec<AggregateId> {
        let mut due = Vec::new();
        if self.earliest.is_none_or(|earliest| now < earliest) {
            return due;
        }
        self.earliest = None;
        for route in self.known.values_mut().flat_map(BTreeMap::values_mut) {
            if route.probe.is_some() || route.waiters.is_empty() {
                continue;
            }
            let allowed = unconfirmed || route.reason != Reason::Unconfirmed;
            if route.due <= now && allowed {
                due.extend(route.waiters.pop_front());
            } else {
                // Where a lane is missing it is asked again soon.
                let again = if allowed { route.due } else { route.due.max(now + Duration::from_millis(100)) };
                self.earliest = Some(self.earliest.map_or(again, |earliest| earliest.min(again)));
            }
        }
        due
    }

    /// This message is its route's probe.
    pub(crate) fn probing(&mut self, message: &Message) {
        let position = message.position;
        if let Some(route) = self.route_mut(message) {
            route.probe = Some(position);
        }
    }

    /// When a probe is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.earliest
    }

    /// Somebody may have mended routes: each is probed at once.
    pub(crate) fn recheck(&mut self, now: Duration) {
        for route in self.known.values_mut().flat_map(BTreeMap::values_mut) {
            route.due = route.due.min(now);
        }
        self.earlier(now);
    }

    /// The session is over: nobody waits and nothing is out, but what is known of the routes stays true.
    pub(crate) fn void(&mut self) {
        for route in self.known.values_mut().flat_map(BTreeMap::values_mut) {
            (route.probe, route.waiters) = (None, VecDeque::new());
        }
        self.earliest = None;
    }

    /// Bad routes known.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn earlier(&mut self, due: Duration) {
        self.earliest = Some(self.earliest.map_or(due, |earliest| earliest.min(due)));
    }

    fn route(&self, message: &Message) -> Option<&Route> {
        if self.len == 0 {
            return None;
        }
        self.known.get(&message.exchange)?.get(&message.routing_key)
    }

    fn route_mut(&mut self, message: &Message) -> Option<&mut Route> {
        if self.len == 0 {
            return None;
        }
        self.known.get_mut(&message.exchange)?.get_mut(&message.routing_key)
    }

    fn remember(&mut self, message: &Message, reason: Reason, due: Duration) -> Option<&mut Route> {
        if self.route(message).is_none() {
            if self.len >= ROUTES_MAX {
                return None;
            }
            let route = Route { reason, settled: false, probe: None, due, waiters: VecDeque::new() };
            let routes = self.known.entry(Arc::clone(&message.exchange)).or_default();
            routes.insert(message.routing_key.clone(), route);
            self.len += 1;
        }
        self.route_mut(message)
    }
}

/// What [`Routes::failed`] says.
#[derive(Debug)]
pub(crate) struct Failed {
    /// The route is known as bad; else the event waits by itself.
    pub(crate) remembered: bool,
    /// It was not known before, or not as settled.
    pub(crate) news: bool,
    /// Aggregates that waited and have no reason to any more.
    pub(crate) anew: VecDeque<AggregateId>,
}
