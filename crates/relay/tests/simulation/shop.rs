//! Who writes the outbox: numbered events of a few aggregates, poison among them.

use std::collections::BTreeMap;

use crate::wal::{ELSEWHERE, Event};

pub(crate) struct Shop {
    next_seq: BTreeMap<u32, u32>,
    poison_left: u32,
    /// Little is written, so that often nothing is owed.
    pub(crate) is_quiet: bool,
}

impl Shop {
    pub(crate) fn new(random: &mut fastrand::Rng, may_poison: bool) -> Self {
        let poison_left = if !may_poison || random.bool() { 0 } else { random.u32(1..4) };
        Self { next_seq: BTreeMap::new(), poison_left, is_quiet: random.u32(..4) == 0 }
    }

    /// The rows of one transaction.
    pub(crate) fn rows(&mut self, random: &mut fastrand::Rng) -> Vec<Option<Event>> {
        let rows = random.usize(1..6);
        let row = |_| {
            if random.u32(..10) == 0 {
                return None;
            }
            let aggregate = aggregate(random);
            let seq = self.next_seq.entry(aggregate).or_default();
            *seq += 1;
            let poison = self.poison_left > 0 && random.u32(..30) == 0;
            if poison {
                self.poison_left -= 1;
            }
            Some(Event { aggregate, seq: *seq, poison })
        };
        (0..rows).map(row).collect()
    }
}

pub(crate) fn aggregate(random: &mut fastrand::Rng) -> u32 {
    match random.u32(..12) {
        other @ 9.. => ELSEWHERE + other,
        own => own,
    }
}
