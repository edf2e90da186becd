//! What this session knows of the quarantine table.
//!
//! Invariants: no frame is read before the table has been; an event that the slot sends again and that has its
//! row is neither published nor stored a second time; while an aggregate has an undelivered row of scope `key`,
//! its events from that row on go to the table. At most 100 bytes are kept for each such aggregate.

use std::collections::{HashMap, VecDeque};

use crate::lsn::{Lsn, Position};
use crate::mapping::AggregateKey;
use crate::quarantine::{ParkedAggregate, ParkedKey, PositionPage};

/// Positions in a page.
pub(crate) const POSITIONS: usize = 4096;

/// What is known of the table.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    opened: bool,
    keys: HashMap<ParkedKey, Entry>,
    /// Positions of rows that the slot sends again, the next ones.
    stored: VecDeque<Position>,
    /// The last of the pages read so far.
    last: Position,
    /// There are no further pages.
    complete: bool,
    /// Rows parked or released.
    pub(crate) undelivered: u64,
}

/// The first undelivered position and whether rows are released, in 12 bytes: there may be a million.
#[derive(Clone, Copy, Debug)]
struct Entry([u32; 3]);

const RELEASING: u32 = 1 << 31;

impl Entry {
    fn new(first: Position, releasing: bool) -> Entry {
        let Lsn(lsn) = first.commit_lsn;
        #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
        let (high, low) = ((lsn >> 32) as u32, lsn as u32);
        Entry([high, low, first.index.min(RELEASING - 1) | if releasing { RELEASING } else { 0 }])
    }

    fn first(self) -> Position {
        let Entry([high, low, index]) = self;
        Position { commit_lsn: Lsn(u64::from(high) << 32 | u64::from(low)), index: index & !RELEASING }
    }

    fn is_releasing(self) -> bool {
        self.0[2] & RELEASING != 0
    }
}

impl Parked {
    /// A session begins: nothing is known.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn open(&mut self, parked: &[ParkedAggregate], undelivered: u64, page: PositionPage) {
        self.keys = HashMap::with_capacity(parked.len());
        self.keys.extend(parked.iter().map(|one| (one.key, Entry::new(one.first, one.releasing))));
        self.undelivered = undelivered;
        self.opened = true;
        self.turn(page);
    }

    /// The next page of positions.
    pub(crate) fn turn(&mut self, page: PositionPage) {
        self.last = page.positions.last().copied().unwrap_or(self.last);
        self.complete = page.complete;
        self.stored = page.positions.into();
    }

    /// Whether the table has been read.
    pub(crate) fn is_open(&self) -> bool {
        self.opened
    }

    /// Whether the next event can be judged.
    pub(crate) fn is_ready(&self) -> bool {
        self.opened && self.wants_positions().is_none()
    }

    /// Behind which position the next page begins, if it is needed.
    pub(crate) fn wants_positions(&self) -> Option<Position> {
        (self.opened && !self.complete && self.stored.is_empty()).then_some(self.last)
    }

    /// Whether the event at this position, which is the next of the stream, has a row.
    pub(crate) fn has_row(&mut self, position: Position) -> bool {
        while let Some(stored) = self.stored.front().copied()
            && stored <= position
        {
            self.stored.pop_front();
            if stored == position {
                return true;
            }
        }
        false
    }

    /// Whether an event of the aggregate at this position goes to the table.
    pub(crate) fn parks(&self, key: Option<&AggregateKey>, position: Position) -> bool {
        let Some(key) = key.filter(|_| !self.keys.is_empty()) else { return false };
        self.keys.get(&ParkedKey::of(key)).is_some_and(|entry| position >= entry.first())
    }

    /// From this position on the aggregate's events go to the table.
    pub(crate) fn park(&mut self, key: ParkedKey, first: Position) {
        self.keys.entry(key).or_insert(Entry::new(first, false));
    }

    /// Whether rows of the aggregate are being sent from the table.
    pub(crate) fn is_releasing(&self, key: ParkedKey) -> bool {
        self.keys.get(&key).is_some_and(|entry| entry.is_releasing())
    }

    pub(crate) fn set_releasing(&mut self, key: ParkedKey, releasing: bool) {
        if let Some(entry) = self.keys.get_mut(&key) {
            *entry = Entry::new(entry.first(), releasing);
        }
    }

    /// Nothing of the aggregate is undelivered: its events flow.
    pub(crate) fn unpark(&mut self, key: ParkedKey) {
        self.keys.remove(&key);
        if self.keys.is_empty() {
            self.keys.shrink_to_fit();
        }
    }

    /// Aggregates with undelivered rows.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// What is held in memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        // One byte of control for each place of the map, and the positions of a page.
        self.keys.capacity() * (size_of::<(ParkedKey, Entry)>() + 1)
            + self.stored.capacity() * size_of::<Position>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(lsn: u64, index: u32) -> Position {
        Position { commit_lsn: Lsn(lsn), index }
    }

    #[test]
    fn a_parked_aggregate_takes_less_than_a_hundred_bytes() {
        // Beside the map it is in the answer that made it; where a map has just grown, both tables are there.
        for parked in [1000u64, 1793, 14_337, 1_000_000] {
            let mut known = Parked::default();
            let one = |n: u64| {
                let mut key = [0; 16];
                key[..8].copy_from_slice(&n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
                ParkedAggregate { key: ParkedKey(key), first: at(n, 1), releasing: false }
            };
            let all: Vec<_> = (0..parked).map(one).collect();
            known.open(&all, parked, PositionPage { positions: Vec::new(), complete: true });
            assert!(known.memory_bytes() <= 100 * all.len(), "{} for {parked}", known.memory_bytes());
        }
    }

    #[test]
    fn an_entry_keeps_what_it_is_given() {
        for position in [at(0, 0), at(u64::MAX, RELEASING - 1), at(0x1_0000_0002, 7)] {
            for releasing in [false, true] {
                let entry = Entry::new(position, releasing);
                assert_eq!((entry.first(), entry.is_releasing()), (position, releasing));
            }
        }
    }

    #[test]
    fn a_row_pays_its_event_and_no_other() {
        let mut known = Parked::default();
        assert!(!known.is_ready());
        known.open(&[], 2, PositionPage { positions: vec![at(5, 1), at(7, 0)], complete: false });
        assert!(!known.has_row(at(5, 0)) && known.has_row(at(5, 1)) && !known.has_row(at(5, 2)));
        assert!(known.is_ready());
        assert!(known.has_row(at(7, 0)));
        assert_eq!(known.wants_positions(), Some(at(7, 0)));
        known.turn(PositionPage { positions: vec![at(9, 0)], complete: true });
        assert!(!known.has_row(at(10, 0)) && known.is_ready());
    }
}
