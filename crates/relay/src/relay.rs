//! The relay: frames in, windows out, answers in, watermarks out.
//!
//! Invariants: only the broker's confirm, or a committed row of the quarantine, pays an event; a failure at the
//! broker never ends the Postgres session (its events go back to the heads of their queues); a new Postgres
//! session voids everything.

mod dispatch;
mod intake;
mod sentence;
mod settle;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::aggregate::{AggregateId, Aggregates, Course, Next};
use crate::change::{Ignored, Mapper};
use crate::effect::{Delivered, Effect, Notice};
use crate::exchanges::Exchanges;
use crate::frame::Frame;
use crate::hold::Hold;
use crate::ledger::{Ledger, ProtocolError};
use crate::message::{Answer, Broker, Verdict, WindowEnd};
use crate::pace::Pace;
use crate::parked::Parked;
use crate::quarantine::{Done, WorkId};
use crate::reason::Reason;
use crate::releases::Releases;
use crate::report::{CheckId, Checked, Due, Reports};
use crate::routes::Routes;
use crate::settings::{QuarantineScope, Settings};
use crate::snapshot::{Counters, Snapshot};
use crate::window::Windows;
use crate::works::Works;

/// Time is an argument.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// A clock that never goes back, from any origin.
    pub mono: Duration,
    /// Microseconds since the Unix epoch.
    pub unix_us: i64,
}

/// Work on the quarantine table that failed is done again after no longer than this.
const WORK_AGAIN_MAX: Duration = Duration::from_secs(5);

/// The relay's decisions; it does nothing itself.
#[derive(Debug)]
pub struct Relay {
    settings: Settings,
    mapper: Mapper,
    ledger: Ledger,
    aggregates: Aggregates,
    windows: Windows,
    reports: Reports,
    pace: Pace,
    routes: Routes,
    exchanges: Exchanges,
    hold: Hold,
    parked: Parked,
    releases: Releases,
    works: Works,
    broker: Broker,
    transaction: Transaction,
    events: usize,
    bytes: usize,
    /// Events paid below the last reported watermark, in this session.
    reported_events: u64,
    /// When something was paid last, or there was room.
    moved: Duration,
    retries_first: bool,
    draining: bool,
    effects: VecDeque<Effect>,
    counters: Counters,
    told: BTreeSet<String>,
    random: fastrand::Rng,
}

/// What the frames of the open transaction need of its begin.
#[derive(Clone, Copy, Debug, Default)]
struct Transaction {
    index: u32,
    committed_us: i64,
    /// Some of its events have been handed to the broker.
    is_out: bool,
}

impl Relay {
    /// A relay without a session, its broker down.
    pub fn new(settings: Settings) -> Self {
        Self {
            mapper: Mapper::new(settings.mapping.clone()),
            ledger: Ledger::default(),
            aggregates: Aggregates::default(),
            windows: Windows::default(),
            reports: Reports::new(settings.report_every),
            pace: Pace::new(settings.events_per_second),
            routes: Routes::default(),
            exchanges: Exchanges::new(Arc::clone(&settings.mapping.exchange)),
            hold: Hold::new(settings.scope == QuarantineScope::Halt, settings.burst_events),
            parked: Parked::default(),
            releases: Releases::default(),
            works: Works::default(),
            broker: Broker::Down,
            transaction: Transaction::default(),
            events: 0,
            bytes: 0,
            reported_events: 0,
            moved: Duration::ZERO,
            retries_first: false,
            draining: false,
            effects: VecDeque::new(),
            counters: Counters::default(),
            told: BTreeSet::new(),
            random: fastrand::Rng::with_seed(settings.seed),
            settings,
        }
    }

    /// A new Postgres session: all debts, queues and windows are void, the slot sends them again.
    pub fn session(&mut self, now: Now) {
        self.mapper.reset();
        self.ledger.clear();
        self.aggregates = Aggregates::default();
        self.windows.void();
        self.routes.void();
        self.exchanges.forget();
        self.hold.events = 0;
        self.parked.forget();
        self.releases = Releases::default();
        self.works.void();
        self.reports.clear(now.mono);
        self.transaction = Transaction::default();
        (self.events, self.bytes, self.reported_events) = (0, 0, 0);
        self.moved = now.mono;
        if self.draining {
            self.reports.hasten();
        }
    }

    /// Takes one frame of the stream.
    pub fn ingest(&mut self, now: Now, frame: Frame) -> Result<(), ProtocolError> {
        match frame {
            Frame::Begin { commit_lsn, committed_us } => {
                self.ledger.begin(now.mono, commit_lsn)?;
                self.transaction = Transaction { index: 0, committed_us, is_out: false };
            }
            Frame::Change(bytes) => self.change(&bytes)?,
            Frame::Message { .. } => self.ignored(Ignored::Message),
            Frame::Commit { commit_lsn, end_lsn } => self.ledger.commit(commit_lsn, end_lsn)?,
            Frame::Keepalive { wal_end, reply_requested } => {
                self.ledger.keepalive(wal_end);
                if reply_requested {
                    self.reports.asked(now.mono);
                }
            }
        }
        if self.has_room() {
            self.moved = now.mono;
        }
        Ok(())
    }

    /// The broker's state. `Down` returns the events of open windows to the heads of their queues.
    pub fn broker(&mut self, now: Now, broker: Broker) {
        if matches!((self.broker, broker), (Broker::Down, Broker::Ready(_))) {
            // It may have come back with other queues.
            self.routes.recheck(now.mono);
        }
        self.broker = broker;
        if broker == Broker::Down {
            let waiters = self.exchanges.forget();
            self.resume(waiters);
            for (id, pending) in self.windows.take_all().flat_map(|open| open.items).flatten() {
                if let Some(message) = pending.message() {
                    self.routes.undecided(message);
                }
                self.aggregates.put_back(id, pending, Next::Ready);
            }
        }
    }

    /// The broker's word on a window; for a window of an ended session or connection it pays nothing.
    pub fn answer(&mut self, now: Now, answer: &Answer) {
        let Some(mut open) = self.windows.remove(answer.window) else {
            self.counters.dead_answers += 1;
            return;
        };
        if open.items.is_empty() {
            self.counters.dead_answers += 1;
        } else {
            assert_eq!(open.items.len(), answer.verdicts.len(), "one verdict for each message");
        }
        let single = open.items.len() == 1;
        let mut delivery = Vec::new();
        for (item, verdict) in open.items.iter_mut().zip(&answer.verdicts).rev() {
            if *verdict == Verdict::Unanswered && answer.end == WindowEnd::Stalled {
                if let Some(message) = item.as_ref().and_then(|(_, pending)| pending.message()) {
                    self.routes.stalled(message, now.mono);
                    let waiters = self.exchanges.met(message);
                    self.resume(waiters);
                }
                continue;
            }
            let Some((id, pending)) = item.take() else { continue };
            if *verdict == Verdict::Confirmed {
                delivery.push(now.since(pending.committed_us));
                self.confirm(now, id, pending);
            } else {
                self.reject(now, id, pending, *verdict, &answer.end, single);
            }
        }
        if !delivery.is_empty() {
            self.counters.published += delivery.len() as u64;
            self.effects.push_back(Effect::Delivered(Delivered { publish: answer.took, delivery }));
        }
        if answer.end == WindowEnd::Stalled {
            self.windows.stray(answer.window, open);
        }
    }

    /// What became of a piece of work on the quarantine table; without a [`Done`] its end was not seen, and it is
    /// done again.
    pub fn quarantined(&mut self, now: Now, id: WorkId, done: Option<Done>) {
        if let Some(done) = done {
            return self.work_done(now, id, done);
        }
        let (backoff, random) = (&self.settings.backoff, &mut self.random);
        self.works.failed(id, |failures| now.mono + backoff.wait(failures, random).min(WORK_AGAIN_MAX));
    }

    /// What a check of slot and publication found.
    pub fn checked(&mut self, now: Now, id: CheckId, checked: Checked) {
        self.reports.checked(now.mono, id, checked);
    }

    /// The relay ends: it reads no more than the rest of a transaction that is out in part, publishes what is
    /// complete, and reports at once.
    pub fn drain(&mut self) {
        self.draining = true;
        self.reports.hasten();
    }

    /// Whether a drain has nothing left to wait for: nothing is at the broker, nothing can be handed to
    /// it, and what was reached is reported.
    pub fn drained(&self) -> bool {
        let ready = matches!(self.broker, Broker::Ready(_));
        let fresh = self.aggregates.has(Course::Fresh) && !self.hold.stops_fresh();
        let publishable = ready && (fresh || self.aggregates.has(Course::Suspect));
        let reported = self.ledger.watermark() <= self.reports.reported();
        let stored = !self.works.owes() && !self.releases.has_delivered();
        let idle = self.windows.live() == 0 && !publishable && stored;
        self.draining && idle && !self.accepting() && reported
    }

    /// Whether another frame may be read: there is room by count and by bytes, and the quarantine table is known
    /// as far as the next event. One event over the limit of bytes is admitted when there is room at all.
    pub fn accepting(&self) -> bool {
        (!self.draining || self.finishing()) && self.has_room() && self.parked.is_ready()
    }

    /// The next thing to do, if there is one.
    pub fn poll(&mut self, now: Now) -> Option<Effect> {
        if let Some(effect) = self.effects.pop_front() {
            return Some(effect);
        }
        if let Some(due) = self.reports.poll(now.mono, self.ledger.watermark(), self.ledger.owes()) {
            return Some(match due {
                Due::Check(id) => Effect::Check(id),
                Due::Leave => Effect::LeavePostgres,
                Due::Report(watermark) => {
                    self.reported_events = self.ledger.counts().1;
                    Effect::Report(watermark)
                }
            });
        }
        self.aggregates.wake(now.mono);
        loop {
            self.sentence(now);
            let willing = matches!(self.broker, Broker::Ready(_));
            let (reads, pages) = (!self.draining, !self.draining && willing);
            if let Some((id, work)) =
                self.works.poll(now.mono, &self.parked, &mut self.releases, reads, pages)
            {
                return Some(Effect::Quarantine(id, work));
            }
            // Making a window may find events that do not go into one, or are the first to wait for a route.
            let effect = self.window(now).or_else(|| self.effects.pop_front());
            let probes = willing && self.routes.deadline().is_some_and(|due| due <= now.mono);
            if effect.is_some() || !(self.aggregates.has_open_fates() || probes) {
                return effect;
            }
        }
    }

    /// When to poll again, if nothing else happens; a time on [`Now::mono`].
    pub fn deadline(&self) -> Option<Duration> {
        let lane = matches!(self.broker, Broker::Ready(_)) && self.windows.lanes() < self.settings.lanes;
        let pace = self.pace.deadline().filter(|_| lane);
        let routes = self.routes.deadline().filter(|_| lane);
        let waits =
            [self.aggregates.deadline(), self.reports.deadline(), self.works.deadline(), routes, pace];
        waits.into_iter().flatten().min()
    }

    /// The relay's figures.
    pub fn snapshot(&self, now: Now) -> Snapshot {
        Snapshot {
            broker: self.broker,
            in_flight_events: self.events,
            in_flight_bytes: self.bytes,
            aggregates: self.aggregates.len(),
            held_events: self.hold.events,
            hold: self.hold.present(),
            quarantine_away: !self.parked.is_open() || self.works.is_failing(),
            quarantine_events: self.parked.undelivered,
            parked_aggregates: self.parked.len(),
            bad_routes: self.routes.len(),
            memory_bytes: self.bytes + self.releases.memory_bytes() + self.parked.memory_bytes(),
            oldest: self.ledger.oldest().map(|since| now.mono.saturating_sub(since)),
            unreported_events: self.ledger.counts().0 - self.reported_events,
            reached: self.ledger.watermark(),
            reported: self.reports.reported(),
            windows: self.windows.len(),
            strays: self.windows.strays(),
            saturated: !self.has_room() && now.mono.saturating_sub(self.moved) > Duration::from_secs(1),
            draining: self.draining,
            counters: self.counters.clone(),
        }
    }

    /// A drain follows a transaction to its end if some of it is out already: without its end that could not be
    /// acknowledged, and would arrive again.
    fn finishing(&self) -> bool {
        let ready = matches!(self.broker, Broker::Ready(_));
        self.draining && ready && self.transaction.is_out && self.ledger.open().is_some()
    }

    fn has_room(&self) -> bool {
        self.events < self.settings.in_flight_events && self.bytes < self.settings.in_flight_bytes
    }

    /// These aggregates wait no longer.
    fn resume(&mut self, waiters: impl IntoIterator<Item = AggregateId>) {
        for waiter in waiters {
            self.aggregates.resume(waiter, Next::Ready);
        }
    }

    fn retried(&mut self, reason: Reason) {
        *self.counters.retried.entry(reason).or_default() += 1;
    }

    fn ignored(&mut self, ignored: Ignored) {
        *self.counters.ignored.entry(ignored.as_str()).or_default() += 1;
    }

    fn tell(&mut self, notice: Notice) {
        self.effects.push_back(Effect::Notice(notice));
    }

    fn tell_once(&mut self, what: &str, notice: Notice) {
        if self.told.len() < 1000 && self.told.insert(what.to_owned()) {
            self.tell(notice);
        }
    }
}

impl Now {
    fn since(self, unix_us: i64) -> Duration {
        Duration::from_micros(u64::try_from(self.unix_us.saturating_sub(unix_us)).unwrap_or(0))
    }
}
