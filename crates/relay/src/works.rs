//! What is to be done on the quarantine table, in order.
//!
//! Invariants: one piece of work is under way at a time, and is done again until its end was seen; rows are stored
//! before a request that was read behind them is followed; what owes the slot pays only when its work is done.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::ledger::Ticket;
use crate::parked::{POSITIONS, Parked};
use crate::pending::Condemned;
use crate::quarantine::{ParkedKey, Parking, Work, WorkId};
use crate::releases::{Delivery, Releases};

/// Rows of one transaction, and the bytes of bodies behind which it ends.
const STORE_ROWS: usize = 500;
const STORE_BYTES: usize = 4 << 20;

/// One thing that waits for its turn.
#[derive(Debug)]
pub(crate) enum Item {
    /// An event to store.
    Row(Box<Condemned>),
    /// An operator's request; it owes the slot, and holds so many bytes.
    Request(Work, Ticket, usize),
    /// A released row that has failed, and those of its aggregate that are given up with it.
    PutBack(Work, Vec<Delivery>),
}

/// Who waits for the work under way.
#[derive(Debug)]
pub(crate) enum Waiting {
    Nobody,
    Rows(Vec<Condemned>),
    Request(Ticket, usize),
    Deliveries(Vec<Delivery>),
}

#[derive(Debug)]
struct UnderWay {
    id: WorkId,
    work: Arc<Work>,
    waiting: Waiting,
}

/// The work to be done.
#[derive(Debug, Default)]
pub(crate) struct Works {
    items: VecDeque<Item>,
    under_way: Option<UnderWay>,
    /// Rows that wait to be stored, or are being stored, by aggregate.
    rows: HashMap<ParkedKey, usize>,
    /// Failures in a row, and when the work is done again.
    failures: u32,
    again: Option<Duration>,
    last: u64,
    turn: u8,
}

impl Works {
    pub(crate) fn push(&mut self, item: Item) {
        if let Item::Row(row) = &item
            && let Some(key) = row.key
        {
            *self.rows.entry(key).or_default() += 1;
        }
        self.items.push_back(item);
    }

    /// The session is over: who waited is void, and an answer still to come is nobody's.
    pub(crate) fn void(&mut self) {
        *self = Self { last: self.last, ..Self::default() };
    }

    /// The next work, if none is under way. `reads`: the stream is read on, so that what is known of the table
    /// matters; `pages`: released rows can be sent.
    pub(crate) fn poll(
        &mut self,
        now: Duration,
        parked: &Parked,
        releases: &mut Releases,
        reads: bool,
        pages: bool,
    ) -> Option<(WorkId, Arc<Work>)> {
        if let Some(under_way) = &mut self.under_way {
            self.again.take_if(|again| *again <= now)?;
            self.last += 1;
            under_way.id = WorkId(self.last);
            return Some((under_way.id, Arc::clone(&under_way.work)));
        }
        let (work, waiting) = self.next(parked, releases, reads, pages)?;
        self.last += 1;
        let (id, work) = (WorkId(self.last), Arc::new(work));
        self.under_way = Some(UnderWay { id, work: Arc::clone(&work), waiting });
        Some((id, work))
    }

    fn next(
        &mut self,
        parked: &Parked,
        releases: &mut Releases,
        reads: bool,
        pages: bool,
    ) -> Option<(Work, Waiting)> {
        if !parked.is_open() {
            return reads.then_some((Work::Open { positions: POSITIONS }, Waiting::Nobody));
        }
        if let Some(after) = parked.wants_positions().filter(|_| reads) {
            return Some((Work::Positions { after, positions: POSITIONS }, Waiting::Nobody));
        }
        // In turn, so that a steady stream of rows does not keep those of the table from being sent.
        for _ in 0..3 {
            self.turn = (self.turn + 1) % 3;
            let next = match self.turn {
                0 if pages => releases.page().map(|page| (page, Waiting::Nobody)),
                0 => None,
                1 => delivered(releases.take_delivered()),
                _ => self.item(parked, releases),
            };
            if next.is_some() {
                return next;
            }
        }
        None
    }

    fn item(&mut self, parked: &Parked, releases: &mut Releases) -> Option<(Work, Waiting)> {
        match self.items.pop_front()? {
            Item::Row(row) => Some(self.store(*row, parked)),
            Item::Request(work, ticket, bytes) => Some((work, Waiting::Request(ticket, bytes))),
            Item::PutBack(work, rows) => {
                // What was confirmed before is marked before, so that it is not parked with the rest.
                if let Some(first) = delivered(releases.take_delivered()) {
                    self.items.push_front(Item::PutBack(work, rows));
                    return Some(first);
                }
                Some((work, Waiting::Deliveries(rows)))
            }
        }
    }

    fn store(&mut self, first: Condemned, parked: &Parked) -> (Work, Waiting) {
        let mut bytes = first.pending.bytes;
        let mut rows = vec![first];
        while rows.len() < STORE_ROWS
            && bytes < STORE_BYTES
            && matches!(self.items.front(), Some(Item::Row(_)))
        {
            let Some(Item::Row(row)) = self.items.pop_front() else { unreachable!("it was looked at") };
            bytes += row.pending.bytes;
            rows.push(*row);
        }
        let parkings = rows.iter().map(|row| parking(row, parked)).collect();
        (Work::Store(parkings), Waiting::Rows(rows))
    }

    /// The work is done: who waited for it. `None` for work that is not under way any more.
    pub(crate) fn done(&mut self, id: WorkId) -> Option<(Arc<Work>, Waiting)> {
        let under_way = self.under_way.take_if(|under_way| under_way.id == id && self.again.is_none())?;
        self.failures = 0;
        if let Waiting::Rows(rows) = &under_way.waiting {
            for key in rows.iter().filter_map(|row| row.key) {
                if let Entry::Occupied(mut waiting) = self.rows.entry(key) {
                    *waiting.get_mut() -= 1;
                    if *waiting.get() == 0 {
                        waiting.remove();
                    }
                }
            }
        }
        Some((under_way.work, under_way.waiting))
    }

    /// The work's end was not seen; `wait` tells from the failures in a row when it is done again.
    pub(crate) fn failed(&mut self, id: WorkId, wait: impl FnOnce(u32) -> Duration) {
        if self.under_way.as_ref().is_some_and(|under_way| under_way.id == id) && self.again.is_none() {
            self.failures = self.failures.saturating_add(1);
            self.again = Some(wait(self.failures));
        }
    }

    /// Whether the last attempt has failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// Whether anything waits for the table.
    pub(crate) fn owes(&self) -> bool {
        let waiting =
            self.under_way.as_ref().is_some_and(|under_way| !matches!(under_way.waiting, Waiting::Nobody));
        waiting || !self.items.is_empty()
    }

    /// Whether an event of the aggregate waits to be stored.
    pub(crate) fn stores(&self, key: ParkedKey) -> bool {
        self.rows.contains_key(&key)
    }

    /// When failed work is done again.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.again
    }
}

fn delivered(rows: Vec<Delivery>) -> Option<(Work, Waiting)> {
    let positions: Vec<_> = rows.iter().map(|row| row.position).collect();
    (!rows.is_empty()).then_some((Work::Delivered(positions), Waiting::Deliveries(rows)))
}

fn parking(row: &Condemned, parked: &Parked) -> Parking {
    let Condemned { pending, aggregate, key, scope, poison } = row;
    Parking {
        position: pending.position,
        scope: *scope,
        released: key.is_some_and(|key| parked.is_releasing(key)),
        reason: poison.reason,
        detail: poison.detail.clone(),
        attempts: pending.attempts,
        aggregate: aggregate.clone(),
        committed_us: pending.committed_us,
        draft: pending.draft(),
    }
}
