//! Events waiting for the broker, aggregate by aggregate.
//!
//! Invariant: an aggregate is a queue with one state. It stands on exactly one list (ready, retry,
//! suspect, waiting), or is out in a window, or is held; while it is out it is on no list, so no later
//! event of it can be published when an earlier one is rejected.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::ledger::Ticket;
use crate::lsn::Position;
use crate::mapping::AggregateKey;
use crate::message::Message;
use crate::reason::Reason;

/// One event that is owed.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) position: Position,
    /// Complete, unless the row could not be mapped: then the event is held for ever.
    pub(crate) message: Option<Arc<Message>>,
    pub(crate) ticket: Ticket,
    /// When its transaction was committed, microseconds since the Unix epoch.
    pub(crate) committed_us: i64,
    /// What it counts against `in_flight_bytes`.
    pub(crate) bytes: usize,
    /// The size of its header frame.
    pub(crate) header_bytes: usize,
    /// Rejections so far; an outage is none.
    pub(crate) failures: u32,
    /// How often the broker closed the connection while it was out.
    pub(crate) strikes: u32,
    /// It has closed a channel or a connection before, so it goes out alone.
    pub(crate) alone: bool,
    /// Why it is held, once it is.
    pub(crate) held: Option<Reason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AggregateId(usize);

/// What becomes of an aggregate whose events have come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Goes out again as soon as there is a lane.
    Ready,
    /// Goes out again at this time, with other retries.
    Waiting(Duration),
    /// May have closed its channel: goes out alone.
    Suspect,
    /// Nothing that happens in this session lets its head go.
    Held,
}

#[derive(Debug)]
struct Aggregate {
    key: Option<AggregateKey>,
    queue: VecDeque<Pending>,
    /// Events out in a window.
    out: usize,
    /// Where the aggregate goes when the last of them has come back.
    next: Next,
}

/// Which aggregates a window takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    /// Never rejected.
    Fresh,
    /// Rejected before; never in a window with fresh ones.
    Retry,
    /// Alone.
    Suspect,
}

/// All aggregates with something owed; one without is forgotten.
#[derive(Debug, Default)]
pub(crate) struct Aggregates {
    slots: slab::Slab<Aggregate>,
    by_key: HashMap<AggregateKey, AggregateId>,
    ready: VecDeque<AggregateId>,
    retry: VecDeque<AggregateId>,
    suspects: VecDeque<AggregateId>,
    waiting: BinaryHeap<Reverse<(Duration, usize)>>,
}

impl Aggregates {
    /// Appends an event to its aggregate. Without a readable key it is an aggregate of its own.
    pub(crate) fn push(&mut self, key: Option<AggregateKey>, pending: Pending) {
        if let Some(id) = key.as_ref().and_then(|key| self.by_key.get(key)) {
            self.slots[id.0].queue.push_back(pending);
            return;
        }
        let next = if pending.message.is_some() { Next::Ready } else { Next::Held };
        let queue = VecDeque::from([pending]);
        let id = AggregateId(self.slots.insert(Aggregate { key: key.clone(), queue, out: 0, next }));
        if let Some(key) = key {
            self.by_key.insert(key, id);
        }
        self.place(id);
    }

    pub(crate) fn has(&self, course: Course) -> bool {
        match course {
            Course::Fresh => !self.ready.is_empty(),
            Course::Retry => !self.retry.is_empty(),
            Course::Suspect => !self.suspects.is_empty(),
        }
    }

    /// Takes up to `per_aggregate` events from the head of the next aggregate of this course, as
    /// long as `wanted` says yes to each. An aggregate whose first event is not wanted steps aside
    /// as `wanted` says.
    pub(crate) fn take(
        &mut self,
        course: Course,
        per_aggregate: usize,
        mut wanted: impl FnMut(&mut Pending) -> Wanted,
        mut out: impl FnMut(AggregateId, Pending),
    ) -> Taken {
        let list = match course {
            Course::Fresh => &mut self.ready,
            Course::Retry => &mut self.retry,
            Course::Suspect => &mut self.suspects,
        };
        let Some(id) = list.pop_front() else { return Taken::Nothing };
        let aggregate = &mut self.slots[id.0];
        aggregate.next = Next::Ready;
        while aggregate.out < per_aggregate {
            let Some(head) = aggregate.queue.front_mut() else { break };
            match wanted(head) {
                Wanted::Yes => {}
                Wanted::Never if aggregate.out == 0 => {
                    aggregate.next = Next::Held;
                    return Taken::Stepped;
                }
                Wanted::Alone if aggregate.out == 0 => {
                    self.suspects.push_back(id);
                    return Taken::Stepped;
                }
                Wanted::Never | Wanted::Alone => break,
            }
            let head = aggregate.queue.pop_front().expect("the head was there");
            aggregate.out += 1;
            out(id, head);
        }
        Taken::Events
    }

    /// The event is paid: nothing comes back.
    pub(crate) fn paid(&mut self, id: AggregateId) {
        self.returned(id);
    }

    /// The event was not taken: it goes back before its younger ones.
    pub(crate) fn put_back(&mut self, id: AggregateId, pending: Pending, next: Next) {
        let aggregate = &mut self.slots[id.0];
        let at = aggregate.queue.iter().take_while(|other| other.position < pending.position).count();
        aggregate.queue.insert(at, pending);
        if at == 0 {
            aggregate.next = next;
        }
        self.returned(id);
    }

    /// Lets aggregates go whose wait is over.
    pub(crate) fn wake(&mut self, now: Duration) {
        while let Some(Reverse((until, id))) = self.waiting.peek().copied()
            && until <= now
        {
            self.waiting.pop();
            let id = AggregateId(id);
            let alone = self.slots[id.0].queue.front().is_some_and(|head| head.alone);
            if alone { self.suspects.push_back(id) } else { self.retry.push_back(id) }
        }
    }

    /// When the next wait is over.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.waiting.peek().map(|Reverse((until, _))| *until)
    }

    /// Aggregates with something owed.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    fn returned(&mut self, id: AggregateId) {
        let aggregate = &mut self.slots[id.0];
        aggregate.out = aggregate.out.checked_sub(1).expect("only what is out comes back");
        if aggregate.out == 0 {
            self.place(id);
        }
    }

    /// Puts an aggregate with nothing out where it belongs.
    fn place(&mut self, id: AggregateId) {
        let aggregate = &mut self.slots[id.0];
        let Some(head) = aggregate.queue.front() else {
            let aggregate = self.slots.remove(id.0);
            if let Some(key) = aggregate.key {
                self.by_key.remove(&key);
            }
            return;
        };
        if head.message.is_none() {
            aggregate.next = Next::Held;
        }
        match aggregate.next {
            Next::Ready if head.alone => self.suspects.push_back(id),
            Next::Ready => self.ready.push_back(id),
            Next::Waiting(until) => self.waiting.push(Reverse((until, id.0))),
            Next::Suspect => self.suspects.push_back(id),
            Next::Held => {}
        }
    }
}

/// Whether the head of an aggregate goes into the window that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Yes,
    /// Not in this session.
    Never,
    /// Only in a window of its own.
    Alone,
}

/// What [`Aggregates::take`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Events were handed out.
    Events,
    /// The aggregate left the list without going out.
    Stepped,
    /// The list has nothing for this window.
    Nothing,
}
