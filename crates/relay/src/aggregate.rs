//! Events waiting for the broker, aggregate by aggregate.
//!
//! Invariant: an aggregate is a queue with one state. It stands on exactly one list (ready, retry, suspect,
//! waiting, aside, poisoned, shelved), or waits for its route, or is out in a window; while it is out it is on no
//! list, so no later event of it can be published when an earlier one is rejected.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use crate::mapping::AggregateKey;
use crate::pending::Pending;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AggregateId(usize);

/// What becomes of an aggregate whose events have come back. A poisonous head overrides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Goes out again as soon as there is a lane.
    Ready,
    /// Goes out again at this time, with other retries.
    Waiting(Duration),
    /// May have closed its channel: goes out alone.
    Suspect,
    /// Its head's route takes nothing.
    Aside,
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
    aside: VecDeque<AggregateId>,
    poisoned: VecDeque<AggregateId>,
    shelved: Vec<AggregateId>,
}

impl Aggregates {
    /// Appends an event to its aggregate. Without a key it is an aggregate of its own.
    pub(crate) fn push(&mut self, key: Option<AggregateKey>, pending: Pending) {
        if let Some(id) = key.as_ref().and_then(|key| self.by_key.get(key)) {
            self.slots[id.0].queue.push_back(pending);
            return;
        }
        self.open(key, VecDeque::from([pending]));
    }

    /// A new aggregate; one without a key is found by nobody, so that nothing is appended to it.
    pub(crate) fn open(&mut self, key: Option<AggregateKey>, queue: VecDeque<Pending>) {
        let aggregate = Aggregate { key: key.clone(), queue, out: 0, next: Next::Ready };
        let id = AggregateId(self.slots.insert(aggregate));
        if let Some(key) = key {
            self.by_key.insert(key, id);
        }
        self.place(id);
    }

    pub(crate) fn has(&self, course: Course) -> bool {
        !self.list(course).is_empty()
    }

    /// Takes up to `per_aggregate` events from the head of the next aggregate of this course, as long as
    /// `goes` says yes to each.
    pub(crate) fn take(
        &mut self,
        course: Course,
        per_aggregate: usize,
        goes: impl Fn(&Pending) -> bool,
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
        while aggregate.out < per_aggregate && aggregate.queue.front().is_some_and(&goes) {
            let head = aggregate.queue.pop_front().expect("the head was there");
            aggregate.out += 1;
            out(id, head);
        }
        if aggregate.out == 0 { Taken::Stepped(id) } else { Taken::Events }
    }

    /// The first event of an aggregate that is not out.
    pub(crate) fn head(&self, id: AggregateId) -> &Pending {
        self.slots[id.0].queue.front().expect("an aggregate that is not out has a head")
    }

    /// The same, to be changed.
    pub(crate) fn head_mut(&mut self, id: AggregateId) -> &mut Pending {
        self.slots[id.0].queue.front_mut().expect("an aggregate that is not out has a head")
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

    /// Puts an aggregate that is on no list where its head and `next` say.
    pub(crate) fn resume(&mut self, id: AggregateId, next: Next) {
        self.slots[id.0].next = next;
        self.place(id);
    }

    /// An aggregate whose head cannot be judged now; it is on no list.
    pub(crate) fn shelve(&mut self, id: AggregateId) {
        self.shelved.push(id);
    }

    /// Whatever was shelved is to be judged again.
    pub(crate) fn unshelve(&mut self) {
        self.poisoned.extend(self.shelved.drain(..));
    }

    /// Whether the fate of some head is open.
    pub(crate) fn has_open_fates(&self) -> bool {
        !self.poisoned.is_empty() || !self.aside.is_empty()
    }

    /// The next aggregate whose head is poisonous; it is on no list then.
    pub(crate) fn next_poisoned(&mut self) -> Option<AggregateId> {
        self.poisoned.pop_front()
    }

    /// The next aggregate whose head waits for its route; it is on no list then.
    pub(crate) fn next_aside(&mut self) -> Option<AggregateId> {
        self.aside.pop_front()
    }

    /// Takes the head out of an aggregate that is on no list; the rest goes on.
    pub(crate) fn take_head(&mut self, id: AggregateId) -> (Option<AggregateKey>, Pending) {
        let aggregate = &mut self.slots[id.0];
        let head = aggregate.queue.pop_front().expect("an aggregate that is not out has a head");
        let key = aggregate.key.clone();
        self.resume(id, Next::Ready);
        (key, head)
    }

    /// Takes everything out of an aggregate that is on no list; it is forgotten.
    pub(crate) fn take_queue(&mut self, id: AggregateId) -> (Option<AggregateKey>, VecDeque<Pending>) {
        let queue = std::mem::take(&mut self.slots[id.0].queue);
        (self.forget(id), queue)
    }

    /// Lets aggregates go whose wait is over.
    pub(crate) fn wake(&mut self, now: Duration) {
        while let Some(Reverse((until, id))) = self.waiting.peek().copied()
            && until <= now
        {
            self.waiting.pop();
            self.resume(AggregateId(id), Next::Ready);
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

    fn list(&self, course: Course) -> &VecDeque<AggregateId> {
        match course {
            Course::Fresh => &self.ready,
            Course::Retry => &self.retry,
            Course::Suspect => &self.suspects,
        }
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
        let aggregate = &self.slots[id.0];
        let Some(head) = aggregate.queue.front() else {
            self.forget(id);
            return;
        };
        match aggregate.next {
            _ if head.poison.is_some() => self.poisoned.push_back(id),
            Next::Suspect => self.suspects.push_back(id),
            Next::Ready if head.alone => self.suspects.push_back(id),
            Next::Ready if head.failures > 0 => self.retry.push_back(id),
            Next::Ready => self.ready.push_back(id),
            Next::Waiting(until) => self.waiting.push(Reverse((until, id.0))),
            Next::Aside => self.aside.push_back(id),
        }
    }

    fn forget(&mut self, id: AggregateId) -> Option<AggregateKey> {
        let key = self.slots.remove(id.0).key;
        if let Some(key) = &key {
            self.by_key.remove(key);
        }
        key
    }
}

/// What [`Aggregates::take`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Events were handed out.
    Events,
    /// The head of this aggregate does not go; the aggregate is on no list now.
    Stepped(AggregateId),
    /// The list has nothing for this window.
    Nothing,
}
