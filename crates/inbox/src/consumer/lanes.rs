//! What waits: a lane for each aggregate, one message of it at work at a time.
//!
//! Invariant: of a lane's queue only the first is handed out, so that none overtakes its elders; what came
//! early waits beside the queue, by its number. Between lanes the eldest goes first, so that none starves.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::event::Event;
use super::parking::Parking;

/// How long a message that came early waits before it is tried again without cause: another process may have
/// handled what was missing.
const EARLY_PAUSE: Duration = Duration::from_secs(1);

/// What stays in order: the messages of an aggregate; or one message that has none, by its delivery tag.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Aggregate(String),
    Alone(u64),
}

/// A delivery on its way.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) tag: u64,
    pub(super) event: Arc<Event>,
    /// When it was delivered.
    pub(super) since: Instant,
    /// When it may be tried.
    pub(super) not_before: Instant,
    /// When it was first found early.
    pub(super) early_since: Option<Instant>,
    /// It is only to be parked.
    pub(super) parking: Option<Parking>,
    /// How often peers were away in a row.
    pub(super) outages: u32,
}

#[derive(Debug, Default)]
struct Lane {
    busy: bool,
    queue: VecDeque<Item>,
    held: BTreeMap<i64, Item>,
}

#[derive(Debug, Default)]
pub(super) struct Lanes(HashMap<Key, Lane>);

impl Lanes {
    pub(super) fn push(&mut self, item: Item) {
        let key = item.event.aggregate().map_or(Key::Alone(item.tag), Key::Aggregate);
        self.0.entry(key).or_default().queue.push_back(item);
    }

    /// The next message to work on; its lane is busy until it comes back or is settled.
    pub(super) fn next(&mut self, now: Instant) -> Option<(Key, Item)> {
        let ready = self.0.iter().filter_map(|(key, lane)| Some((lane.next(now)?.tag, key)));
        let key = ready.min_by_key(|(tag, _)| *tag)?.1.clone();
        let lane = self.lane(&key);
        let item = lane.take_next(now)?;
        lane.busy = true;
        Some((key, item))
    }

    /// Messages that waited too long for the ones before them; their lane is busy until they come back.
    pub(super) fn next_gap(&mut self, now: Instant, wait: Duration) -> Option<(Key, Vec<Item>)> {
        self.0.iter_mut().find_map(|(key, lane)| {
            (lane.gap_at(wait)? <= now).then(|| {
                lane.busy = true;
                (key.clone(), std::mem::take(&mut lane.held).into_values().collect())
            })
        })
    }

    /// When something is to be done, if nothing else happens.
    pub(super) fn deadline(&self, early_wait: Duration) -> Option<Instant> {
        self.0.values().filter_map(|lane| lane.deadline(early_wait)).min()
    }

    /// When the first of what waits was delivered.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.0.values().filter_map(Lane::oldest).min()
    }

    /// The message is done with. If it was handled, the next number may follow.
    pub(super) fn settled(&mut self, key: &Key, now: Instant) {
        let lane = self.lane(key);
        lane.busy = false;
        if let Some(mut early) = lane.held.first_entry() {
            early.get_mut().not_before = now;
        }
        if lane.queue.is_empty() && lane.held.is_empty() {
            self.0.remove(key);
        }
    }

    /// To be tried again, before all others of the lane and in this order.
    pub(super) fn give_back(&mut self, key: &Key, items: Vec<Item>) {
        let lane = self.lane(key);
        lane.busy = false;
        for item in items.into_iter().rev() {
            lane.queue.push_front(item);
        }
    }

    /// It came early. The one that already waits under its number, if there is one, is returned.
    pub(super) fn hold(&mut self, key: &Key, mut item: Item, now: Instant) -> Option<Item> {
        let lane = self.lane(key);
        lane.busy = false;
        item.early_since.get_or_insert(now);
        item.not_before = now + EARLY_PAUSE;
        lane.held.insert(item.event.aggregate_seq.unwrap_or_default(), item)
    }

    fn lane(&mut self, key: &Key) -> &mut Lane {
        self.0.get_mut(key).expect("a lane is there as long as anything of it")
    }
}

impl Lane {
    fn next(&self, now: Instant) -> Option<&Item> {
        if self.busy {
            return None;
        }
        self.next_held(now).or_else(|| self.queue.front().filter(|item| item.not_before <= now))
    }

    fn take_next(&mut self, now: Instant) -> Option<Item> {
        self.next(now)?;
        match self.next_held(now) {
            Some(_) => self.held.pop_first().map(|(_, item)| item),
            None => self.queue.pop_front(),
        }
    }

    fn next_held(&self, now: Instant) -> Option<&Item> {
        self.held.first_key_value().map(|(_, item)| item).filter(|item| item.not_before <= now)
    }

    /// When its gap is to be closed: never while one that may close it is here.
    fn gap_at(&self, wait: Duration) -> Option<Instant> {
        let (first, item) = self.held.first_key_value()?;
        let hope = |item: &Item| item.event.aggregate_seq.is_some_and(|seq| seq < *first);
        (!self.busy && !self.queue.iter().any(hope)).then(|| item.early_since.unwrap_or(item.since) + wait)
    }

    fn deadline(&self, early_wait: Duration) -> Option<Instant> {
        if self.busy {
            return None;
        }
        let retry = self.queue.front().map(|item| item.not_before);
        let early = self.held.first_key_value().map(|(_, item)| item.not_before);
        [retry, early, self.gap_at(early_wait)].into_iter().flatten().min()
    }

    fn oldest(&self) -> Option<Instant> {
        self.queue.iter().chain(self.held.values()).map(|item| item.since).min()
    }
}
