//! The quarantine of the simulation: its table, the work under way on it, and the operator.

use std::sync::Arc;

use postrider_relay::quarantine::{Done, Work, WorkId};
use postrider_relay::{Lsn, Position};

use crate::fate::Fate;
use crate::judge::Judge;
use crate::table::{State, Table};
use crate::wal::{Command, Wal};

/// The table, and one piece of work at a time.
#[derive(Default)]
pub(crate) struct Quarantine {
    pub(crate) table: Table,
    work: Option<(WorkId, Arc<Work>)>,
}

impl Quarantine {
    pub(crate) fn take(&mut self, id: WorkId, work: Arc<Work>) {
        assert!(self.work.is_none(), "two pieces of work at once");
        self.work = Some((id, work));
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.work.is_some()
    }

    /// The work under way comes to its end, or its connection does: then nobody is told.
    pub(crate) fn end_work(
        &mut self,
        fate: &mut Fate,
        judge: &Judge,
        slot: Lsn,
    ) -> Option<(WorkId, Option<Done>)> {
        let (id, work) = self.work.take()?;
        let end = if fate.faults { fate.random.u32(..6) } else { 9 };
        if end == 0 {
            fate.count("quarantine: work lost");
            return Some((id, None));
        }
        let done = self.perform(&work, fate, judge, slot);
        if end == 1 {
            fate.count("quarantine: work done, and nobody told");
            return Some((id, None));
        }
        Some((id, Some(done)))
    }

    /// Its connection ends with the session, before or after the commit.
    pub(crate) fn end_session(&mut self, fate: &mut Fate, judge: &Judge, slot: Lsn) {
        if let Some((_, work)) = self.work.take()
            && fate.random.bool()
        {
            self.perform(&work, fate, judge, slot);
        }
    }

    fn perform(&mut self, work: &Work, fate: &mut Fate, judge: &Judge, slot: Lsn) -> Done {
        match work {
            Work::Delivered(positions) => {
                for at in positions {
                    judge.marked_delivered(self.table.rows[at].event);
                }
                fate.count("quarantine: row delivered");
            }
            Work::Positions { .. } => fate.count("quarantine: position page turned"),
            _ => {}
        }
        // Small pages, so that they are turned.
        let small = |most: usize| most.min(5);
        let work = match work {
            Work::Open { positions } => Work::Open { positions: small(*positions) },
            Work::Positions { after, positions } => {
                Work::Positions { after: *after, positions: small(*positions) }
            }
            Work::Page { busy, busy_rows, rows, bytes } => {
                let (busy, busy_rows) = (busy.clone(), busy_rows.clone());
                Work::Page { busy, busy_rows, rows: small(*rows), bytes: *bytes }
            }
            other => other.clone(),
        };
        self.table.perform(&work, slot)
    }
}

/// Asks for parked rows, through the log.
#[derive(Default)]
pub(crate) struct Operator {
    requests: u32,
}

impl Operator {
    /// Asks for a row, or for all.
    pub(crate) fn ask(&mut self, fate: &mut Fate, table: &Table, wal: &mut Wal) {
        let parked = table.rows.iter().filter(|(_, row)| row.state == State::Parked);
        let parked: Vec<_> = parked.map(|(at, _)| *at).collect();
        if parked.is_empty() {
            return;
        }
        let all = fate.random.bool();
        let one = parked[fate.random.usize(..parked.len())];
        let positions = if all { parked } else { vec![one] };
        let verb = if fate.random.u32(..4) == 0 { "discard" } else { "retry" };
        self.request(verb, &positions, fate, wal);
    }

    /// Gives up what can never be sent, and then has the rest sent again.
    pub(crate) fn clear(&mut self, fate: &mut Fate, table: &Table, wal: &mut Wal) {
        let parked = |refused: bool| {
            let rows = table.rows.iter();
            let rows = rows.filter(|(_, row)| row.state == State::Parked && row.refused == refused);
            rows.map(|(at, _)| *at).collect::<Vec<_>>()
        };
        let (refused, parked) = (parked(true), parked(false));
        if !refused.is_empty() {
            self.request("discard", &refused, fate, wal);
        } else if !parked.is_empty() {
            self.request("retry", &parked, fate, wal);
        }
    }

    fn request(&mut self, verb: &'static str, positions: &[Position], fate: &mut Fate, wal: &mut Wal) {
        fate.count(if verb == "retry" { "quarantine: retry asked" } else { "quarantine: discard asked" });
        self.requests += 1;
        wal.commit_with(Vec::new(), Some(Command::new(self.requests, verb, positions)));
    }
}
