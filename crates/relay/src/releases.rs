//! Rows that are sent from the quarantine table, page by page.
//!
//! Invariant: a row of an aggregate is read only when none of that aggregate is on its way, so that they are sent
//! in the order of their positions; and what is read at once is bounded, beside the limits of the stream, for
//! which these rows do not wait.

use std::collections::{BTreeMap, BTreeSet};

use crate::lsn::Position;
use crate::quarantine::{ParkedKey, Scope, Work};

/// Rows in a page, and the bytes of bodies behind which a page ends.
const PAGE_ROWS: usize = 128;
const PAGE_BYTES: usize = 1 << 20;

/// What is on its way from the table.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    /// Others may be released in the table.
    more: bool,
    /// Aggregates with rows on their way, and how many; a row is, until it is marked.
    busy: BTreeMap<ParkedKey, usize>,
    /// Rows on their way that stand for themselves.
    rows: BTreeSet<Position>,
    loaded: usize,
    bytes: usize,
    /// Confirmed, and not yet marked.
    delivered: Vec<Delivery>,
}

/// A row that was confirmed, or given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivery {
    pub(crate) position: Position,
    pub(crate) aggregate: Option<ParkedKey>,
    pub(crate) bytes: usize,
}

/// By which aggregate a row of the table is sent; without one it stands for itself.
pub(crate) fn ordered_by(scope: Scope, aggregate: Option<ParkedKey>) -> Option<ParkedKey> {
    aggregate.filter(|_| scope == Scope::Key)
}

impl Releases {
    /// Rows may have been released.
    pub(crate) fn expect(&mut self) {
        self.more = true;
    }

    /// The next page, if there is room for one.
    pub(crate) fn page(&self) -> Option<Work> {
        let room = self.loaded <= PAGE_ROWS / 2 && self.bytes <= PAGE_BYTES / 2;
        (self.more && room).then(|| Work::Page {
            busy: self.busy.keys().copied().collect(),
            busy_rows: self.rows.iter().copied().collect(),
            rows: PAGE_ROWS - self.loaded,
            bytes: PAGE_BYTES,
        })
    }

    /// A page was read.
    pub(crate) fn read(&mut self, more: bool) {
        self.more = more;
    }

    /// A row is on its way; `bytes` is what it holds in memory.
    pub(crate) fn load(&mut self, key: Option<ParkedKey>, position: Position, bytes: usize) {
        match key {
            Some(key) => *self.busy.entry(key).or_default() += 1,
            None => {
                self.rows.insert(position);
            }
        }
        self.loaded += 1;
        self.bytes += bytes;
    }

    /// A row was confirmed, and is to be marked.
    pub(crate) fn delivered(&mut self, delivery: Delivery) {
        self.delivered.push(delivery);
    }

    /// What is to be marked now.
    pub(crate) fn take_delivered(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.delivered)
    }

    pub(crate) fn has_delivered(&self) -> bool {
        !self.delivered.is_empty()
    }

    /// A row is marked, or parked again: it is not on its way any more. Others of its aggregate may follow.
    pub(crate) fn unload(&mut self, delivery: Delivery) {
        match delivery.aggregate {
            Some(key) => {
                if let Some(rows) = self.busy.get_mut(&key) {
                    *rows -= 1;
                    if *rows == 0 {
                        self.busy.remove(&key);
                    }
                }
            }
            None => {
                self.rows.remove(&delivery.position);
            }
        }
        self.loaded -= 1;
        self.bytes -= delivery.bytes;
        self.more = true;
    }

    /// What is held in memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes
    }
}
