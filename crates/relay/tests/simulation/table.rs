//! The quarantine table of the simulation: what a real one does with each piece of work, on a map.

use std::collections::{BTreeMap, BTreeSet};

use postrider_relay::quarantine::{
    Done, Draft, ParkedAggregate, ParkedKey, Parking, PositionPage, Released, Request, Scope, Work,
};
use postrider_relay::{Lsn, Position};

use crate::wal::{Event, event};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Parked,
    Released,
    Delivered,
    Discarded,
}

#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) event: Event,
    pub(crate) scope: Scope,
    pub(crate) state: State,
    /// It never became a message.
    pub(crate) refused: bool,
    key: Option<ParkedKey>,
    committed_us: i64,
    draft: Draft,
    command: Option<Position>,
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) rows: BTreeMap<Position, Row>,
}

impl Row {
    pub(crate) fn is_undelivered(&self) -> bool {
        matches!(self.state, State::Parked | State::Released)
    }

    fn ordered_by(&self) -> Option<ParkedKey> {
        self.key.filter(|_| self.scope == Scope::Key)
    }
}

impl Table {
    pub(crate) fn perform(&mut self, work: &Work, slot: Lsn) -> Done {
        match work {
            Work::Open { positions } => self.open(*positions, slot),
            Work::Positions { after, positions } => Done::Positions(page(
                self.rows.range(after..).map(|(at, _)| *at).skip_while(|at| at == after),
                *positions,
            )),
            Work::Store(parkings) => {
                Done::Stored { new: parkings.iter().map(|parking| u64::from(self.store(parking))).sum() }
            }
            Work::Release(request) => {
                let rows = self.meant(request, true);
                let aggregates: BTreeSet<_> =
                    rows.iter().filter_map(|at| self.rows[at].ordered_by()).collect();
                self.move_to(&rows, State::Released, Some(request.position));
                Done::Released { rows: rows.len() as u64, aggregates: aggregates.into_iter().collect() }
            }
            Work::Discard(request) => {
                let rows = self.meant(request, false);
                self.move_to(&rows, State::Discarded, Some(request.position));
                Done::Discarded { rows: rows.len() as u64, free: self.free(&rows) }
            }
            Work::Page { busy, busy_rows, rows, .. } => {
                let wanted = |at: &Position, row: &Row| {
                    let free = row.ordered_by().is_none_or(|key| !busy.contains(&key));
                    row.state == State::Released && free && !busy_rows.contains(at)
                };
                let all = self.rows.iter().filter(|(at, row)| wanted(at, row));
                let mut all: Vec<_> = all.map(|(at, row)| released(*at, row)).collect();
                let more = all.len() > *rows;
                all.truncate(*rows);
                Done::Page { rows: all, more }
            }
            Work::Delivered(positions) => {
                let now: Vec<_> =
                    positions.iter().filter(|at| self.rows[at].state == State::Released).copied().collect();
                self.move_to(&now, State::Delivered, None);
                Done::Delivered { rows: now.len() as u64, free: self.free(positions) }
            }
            Work::PutBack(put_back) => {
                let key = self.rows[&put_back.position].ordered_by();
                let back = |(at, row): (&Position, &Row)| {
                    let meant = *at == put_back.position || (key.is_some() && row.ordered_by() == key);
                    (meant && row.state == State::Released).then_some(*at)
                };
                let rows: Vec<_> = self.rows.iter().filter_map(back).collect();
                self.move_to(&rows, State::Parked, None);
                Done::PutBack
            }
        }
    }

    fn open(&self, positions: usize, slot: Lsn) -> Done {
        let mut parked: BTreeMap<ParkedKey, ParkedAggregate> = BTreeMap::new();
        for (at, row) in self.rows.iter().filter(|(_, row)| row.is_undelivered()) {
            let Some(key) = row.ordered_by() else { continue };
            let one = parked.entry(key).or_insert(ParkedAggregate { key, first: *at, releasing: false });
            one.releasing |= row.state == State::Released;
        }
        Done::Opened {
            parked: parked.into_values().collect(),
            undelivered: self.rows.values().filter(|row| row.is_undelivered()).count() as u64,
            released: self.rows.values().any(|row| row.state == State::Released),
            page: page(self.rows.keys().copied().filter(|at| at.commit_lsn >= slot), positions),
        }
    }

    /// Whether it is new.
    fn store(&mut self, parking: &Parking) -> bool {
        if self.rows.contains_key(&parking.position) {
            return false;
        }
        let message_id = parking.draft.message_id.as_deref().expect("every event here has an id");
        let refused = parking.draft.event_type.is_none();
        let row = Row {
            event: Event { poison: refused, ..event(message_id) },
            scope: parking.scope,
            state: if parking.released { State::Released } else { State::Parked },
            refused,
            key: parking.aggregate.as_ref().map(ParkedKey::of),
            committed_us: parking.committed_us,
            draft: parking.draft.clone(),
            command: None,
        };
        self.rows.insert(parking.position, row);
        true
    }

    /// The parked rows that a request means; `whole`: with a row of an aggregate all of it.
    fn meant(&self, request: &Request, whole: bool) -> Vec<Position> {
        let named = |at: &Position| request.positions.contains(at);
        let keys: BTreeSet<_> =
            self.rows.iter().filter(|(at, _)| named(at)).filter_map(|(_, row)| row.ordered_by()).collect();
        let meant = |at: &Position, row: &Row| {
            let by_key = row
                .ordered_by()
                .is_some_and(|key| request.aggregates.contains(&key) || (whole && keys.contains(&key)));
            let before =
                *at < request.position && row.command.is_none_or(|command| command < request.position);
            row.state == State::Parked && before && (by_key || named(at))
        };
        self.rows.iter().filter(|(at, row)| meant(at, row)).map(|(at, _)| *at).collect()
    }

    fn move_to(&mut self, rows: &[Position], state: State, command: Option<Position>) {
        for at in rows {
            let row = self.rows.get_mut(at).expect("it was found");
            row.state = state;
            row.command = command.or(row.command);
        }
    }

    /// Aggregates of these rows with nothing undelivered.
    fn free(&self, rows: &[Position]) -> Vec<ParkedKey> {
        let keys: BTreeSet<_> = rows.iter().filter_map(|at| self.rows[at].ordered_by()).collect();
        let busy = |key: &ParkedKey| {
            self.rows.values().any(|row| row.is_undelivered() && row.ordered_by() == Some(*key))
        };
        keys.into_iter().filter(|key| !busy(key)).collect()
    }
}

fn page(mut positions: impl Iterator<Item = Position>, most: usize) -> PositionPage {
    let page: Vec<_> = positions.by_ref().take(most).collect();
    PositionPage { positions: page, complete: positions.next().is_none() }
}

fn released(position: Position, row: &Row) -> Released {
    Released {
        position,
        scope: row.scope,
        aggregate: row.key,
        committed_us: row.committed_us,
        draft: row.draft.clone(),
        fault: None,
    }
}
