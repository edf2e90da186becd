//! When a position that may be acknowledged is reported.
//!
//! Invariant: a watermark is reported only after a check of slot and publication that *began* after the
//! watermark was reached. A publication that was dropped or altered makes the server skip events in
//! silence (PostgreSQL 18 for a missing one, all versions for a missing table), and what it skipped must
//! not be acknowledged.

use std::time::Duration;

use crate::ledger::Watermark;

/// Names a check of slot and publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckId(u64);

/// What a check found. A check that finds a reason to stop is the caller's to act upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// Slot and publication are the recorded ones, and the publication covers our tables.
    Sound,
    /// The server could not be asked.
    Unreachable,
    /// The server is shutting down.
    ShuttingDown,
}

/// What is to be done about reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Check(CheckId),
    Report(Watermark),
    Leave,
}

/// So many keepalives that want an answer within a second are a server that waits for us to shut down:
/// a healthy one sends at most a few a second.
const RUSH: u32 = 50;

/// The interval of checks while the relay ends.
const HASTY: Duration = Duration::from_millis(20);

/// Checks and reports of one session.
#[derive(Debug)]
pub(crate) struct Reports {
    every: Duration,
    next_check: Duration,
    checking: Option<(CheckId, Option<Watermark>)>,
    last_id: u64,
    due: Option<Watermark>,
    reported: Option<Watermark>,
    rush_since: Duration,
    asked: u32,
    leave: bool,
}

impl Reports {
    pub(crate) fn new(every: Duration) -> Self {
        Self {
            every,
            next_check: Duration::ZERO,
            checking: None,
            last_id: 0,
            due: None,
            reported: None,
            rush_since: Duration::ZERO,
            asked: 0,
            leave: false,
        }
    }

    /// A new session: nothing is reported yet, an old check's answer counts for nothing.
    pub(crate) fn clear(&mut self, now: Duration) {
        *self = Self { next_check: now, last_id: self.last_id, ..Self::new(self.every) };
    }

    /// From now on whatever is reached is checked and reported at once.
    pub(crate) fn hasten(&mut self) {
        self.every = self.every.min(HASTY);
        self.next_check = Duration::ZERO;
    }

    /// The server wants an answer; one that is shutting down asks without pause.
    pub(crate) fn asked(&mut self, now: Duration) {
        if now >= self.rush_since + Duration::from_secs(1) {
            self.rush_since = now;
            self.asked = 0;
        }
        self.asked += 1;
        if self.asked == RUSH {
            self.next_check = now;
        }
    }

    pub(crate) fn checked(&mut self, now: Duration, id: CheckId, checked: Checked) {
        let Some((_, reached)) = self.checking.take_if(|(checking, _)| *checking == id) else { return };
        self.next_check = now + self.every;
        match checked {
            Checked::Sound => self.due = self.due.max(reached),
            Checked::Unreachable => self.leave |= self.rushing(now),
            Checked::ShuttingDown => self.leave = true,
        }
    }

    /// `owes`: something reached us and is not paid.
    pub(crate) fn poll(&mut self, now: Duration, reached: Option<Watermark>, owes: bool) -> Option<Due> {
        if let Some(watermark) = self.due.take()
            && self.reported < Some(watermark)
        {
            self.reported = Some(watermark);
            return Some(Due::Report(watermark));
        }
        let stuck = owes && self.rushing(now);
        if std::mem::take(&mut self.leave) || stuck {
            self.asked = 0;
            return Some(Due::Leave);
        }
        if self.checking.is_none() && now >= self.next_check {
            self.last_id += 1;
            let id = CheckId(self.last_id);
            self.checking = Some((id, reached));
            return Some(Due::Check(id));
        }
        None
    }

    pub(crate) fn reported(&self) -> Option<Watermark> {
        self.reported
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.checking.is_none().then_some(self.next_check)
    }

    fn rushing(&self, now: Duration) -> bool {
        self.asked >= RUSH && now < self.rush_since + Duration::from_secs(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;
    use crate::lsn::Lsn;

    fn watermark(lsn: u64) -> Option<Watermark> {
        let mut ledger = Ledger::default();
        ledger.keepalive(Lsn(lsn));
        ledger.watermark()
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_reached_during_a_check_waits_for_the_next() {
        let mut reports = Reports::new(SECOND);
        let Some(Due::Check(first)) = reports.poll(Duration::ZERO, watermark(10), false) else { panic!() };
        reports.checked(Duration::ZERO, first, Checked::Sound);
        let due = reports.poll(Duration::ZERO, watermark(20), false);
        assert_eq!(due, Some(Due::Report(watermark(10).unwrap())));
        assert_eq!(reports.poll(Duration::ZERO, watermark(20), false), None);
        let Some(Due::Check(second)) = reports.poll(SECOND, watermark(20), false) else { panic!() };
        reports.checked(SECOND, first, Checked::Sound);
        assert_eq!(reports.poll(SECOND, watermark(20), false), None, "an old check's answer");
        reports.checked(SECOND, second, Checked::Unreachable);
        assert_eq!(reports.poll(SECOND, watermark(20), false), None, "nobody was asked");
    }

    #[test]
    fn a_server_that_shuts_down_is_left() {
        let mut reports = Reports::new(SECOND);
        for _ in 0..RUSH {
            reports.asked(Duration::ZERO);
        }
        assert_eq!(reports.poll(Duration::ZERO, None, true), Some(Due::Leave), "something is owed");

        let mut reports = Reports::new(SECOND);
        let Some(Due::Check(id)) = reports.poll(Duration::ZERO, watermark(10), false) else { panic!() };
        reports.checked(Duration::ZERO, id, Checked::ShuttingDown);
        assert_eq!(reports.poll(Duration::ZERO, watermark(10), false), Some(Due::Leave));
    }

    #[test]
    fn a_drain_does_not_wait_for_the_interval() {
        let mut reports = Reports::new(SECOND);
        let Some(Due::Check(id)) = reports.poll(Duration::ZERO, None, false) else { panic!() };
        reports.checked(Duration::ZERO, id, Checked::Sound);
        assert_eq!(reports.poll(Duration::ZERO, watermark(10), false), None);
        reports.hasten();
        assert!(matches!(reports.poll(Duration::ZERO, watermark(10), false), Some(Due::Check(_))));
    }
}
