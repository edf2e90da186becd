//! What must hold in a world: after every publish, delivery and report, and at the end.
//!
//! No event is acknowledged unpaid, none overtakes an elder of its aggregate, none goes out after its confirm or
//! while the quarantine holds it, and at the end each has been delivered or was given up by an operator.

use std::collections::BTreeSet;

use postrider_relay::quarantine::Scope;
use postrider_relay::{Lsn, Position, QuarantineScope, Settings, Snapshot, Unrouted, Window};

use crate::fate::Fate;
use crate::table::{Row, State, Table};
use crate::wal::{Event, Wal, event};

pub(crate) struct Judge {
    seed: u64,
    settings: Settings,
    delivered: BTreeSet<Event>,
    /// Returned, and not expected to be delivered.
    accepted: BTreeSet<Event>,
    /// Found poisonous.
    condemned: BTreeSet<Event>,
    /// What the broker has confirmed to this relay, by the session in which it did.
    confirmed: BTreeSet<Event>,
    confirmed_in_session: BTreeSet<Event>,
}

impl Judge {
    pub(crate) fn new(seed: u64, settings: Settings) -> Self {
        let (delivered, accepted, condemned) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (confirmed, confirmed_in_session) = (BTreeSet::new(), BTreeSet::new());
        Self { seed, settings, delivered, accepted, condemned, confirmed, confirmed_in_session }
    }

    pub(crate) fn published(&self, window: &Window, table: &Table) {
        for message in &window.messages {
            let event = event(&message.message_id);
            assert!(!self.confirmed_in_session.contains(&event), "{event:?} is published after its confirm");
            let state = table.rows.get(&message.position).map(|row| row.state);
            assert!(
                state.is_none_or(|state| state == State::Released),
                "{event:?} is published, and in the quarantine it is {state:?}"
            );
        }
    }

    pub(crate) fn confirmed(&mut self, events: Vec<Event>) {
        self.confirmed.extend(events.iter().copied());
        self.confirmed_in_session.extend(events);
    }

    /// The relay knows no more what was confirmed to it.
    pub(crate) fn new_session(&mut self) {
        self.confirmed_in_session.clear();
    }

    pub(crate) fn returned(&mut self, event: Event) {
        if self.settings.unrouted == Unrouted::Accept {
            self.accepted.insert(event);
        }
    }

    pub(crate) fn condemned(&mut self, event: Option<Event>) {
        self.condemned.extend(event);
    }

    /// The server has skipped it, and the operator knows: its number is not missed.
    pub(crate) fn skipped(&mut self, event: Event) {
        self.delivered.insert(Event { poison: false, ..event });
    }

    pub(crate) fn marked_delivered(&self, event: Event) {
        assert!(self.confirmed.contains(&event), "{event:?} is marked delivered unconfirmed");
    }

    pub(crate) fn stored(&mut self, event: Event, table: &Table, fate: &mut Fate) {
        if !self.delivered.insert(event) {
            fate.count("duplicate delivered");
            return;
        }
        let elders = (1..event.seq).map(|seq| Event { seq, ..event });
        let missing: Vec<_> = elders.filter(|elder| !self.delivered.contains(elder)).collect();
        if missing.is_empty() {
            return;
        }
        let excused = self.excused(event.aggregate, table);
        if let Some(elder) = missing.iter().find(|elder| !excused.contains(elder)) {
            let row = table
                .rows
                .iter()
                .find(|(_, row)| row.event.aggregate == elder.aggregate && row.event.seq == elder.seq);
            panic!("{event:?} overtook {elder:?}, of which the quarantine has {row:?}; {:?}", self.settings);
        }
    }

    /// What is given up, or was quarantined alone, is not waited for.
    fn excused(&self, aggregate: u32, table: &Table) -> BTreeSet<Event> {
        // Its row may not be there yet.
        let alone =
            self.settings.scope == QuarantineScope::Event || self.settings.unrouted == Unrouted::Event;
        let excused = |row: &Row| row.state == State::Discarded || row.scope == Scope::Event;
        let rows = table.rows.values().filter(|row| row.event.aggregate == aggregate && excused(row));
        rows.map(|row| Event { poison: false, ..row.event })
            .chain(self.accepted.iter().copied())
            .chain(self.condemned.iter().copied().filter(|_| alone))
            .collect()
    }

    pub(crate) fn reported(&self, position: Lsn, wal: &Wal, table: &Table) {
        assert!(position.0 <= wal.end, "reported a position that was never written");
        for transaction in wal.transactions.iter().filter(|transaction| transaction.commit_lsn < position) {
            assert!(!transaction.skipped, "a skipped event at {} was passed over", transaction.commit_lsn);
            // A stale keepalive names any old position.
            let whole = transaction.end_lsn <= position || position <= wal.reported;
            assert!(whole, "a position inside a transaction was reported");
            for (index, event) in (0..).zip(&transaction.rows) {
                let Some(event) = event else { continue };
                let at = Position { commit_lsn: transaction.commit_lsn, index };
                let paid = self.confirmed.contains(event)
                    || table.rows.contains_key(&at)
                    || self.accepted.contains(event);
                assert!(paid, "{event:?} was acknowledged unpaid at {position}");
            }
        }
    }

    /// Nothing is owed any more, and nothing was lost.
    pub(crate) fn end(&self, snapshot: &Snapshot, wal: &Wal, table: &Table) {
        let seed = self.seed;
        for transaction in &wal.transactions {
            for (index, event) in (0..).zip(&transaction.rows) {
                let Some(event) = event else { continue };
                let at = Position { commit_lsn: transaction.commit_lsn, index };
                let state = table.rows.get(&at).map(|row| row.state);
                assert!(
                    matches!(state, None | Some(State::Delivered | State::Discarded)),
                    "seed {seed}: {event:?} is still {state:?}"
                );
                let given_up = state == Some(State::Discarded) || self.accepted.contains(event);
                assert!(given_up || self.delivered.contains(event), "seed {seed}: {event:?} is lost");
            }
        }
        assert_eq!(wal.reported.0, wal.end, "seed {seed}: the slot does not follow the log");
        let left = (snapshot.quarantine_events, snapshot.parked_aggregates, snapshot.held_events);
        assert_eq!(left, (0, 0, 0), "seed {seed}: counted in quarantine, parked, held");
    }
}
