//! The relay: frames in, windows out, answers in, watermarks out.
//!
//! Invariants: only the broker's confirm pays an event; a failure at the broker never ends the Postgres
//! session (its events go back to the heads of their queues); a new Postgres session voids everything.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::aggregate::{AggregateId, Aggregates, Course, Next, Pending, Taken, Wanted};
use crate::change::{Change, Ignored, Mapper};
use crate::ledger::{Ledger, ProtocolError, Watermark};
use crate::lsn::Position;
use crate::mapping::{AggregateKey, Refused};
use crate::message::{Answer, Broker, BrokerLimits, Message, Verdict, Window, WindowEnd};
use crate::pace::Pace;
use crate::reason::Reason;
use crate::report::{CheckId, Checked, Due, Reports};
use crate::retry::Backoff;
use crate::snapshot::{Counters, Snapshot};
use crate::window::Windows;
use crate::{Frame, mapping};

/// Time is an argument.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// A clock that never goes back, from any origin.
    pub mono: Duration,
    /// Microseconds since the Unix epoch.
    pub unix_us: i64,
}

/// The limits and habits of a relay.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How rows become messages.
    pub mapping: mapping::Settings,
    /// Windows at the broker at once.
    pub lanes: usize,
    /// Events in a window.
    pub window_events: usize,
    /// Events of one aggregate at the broker at once; more than 1 gives up the order on a rejection.
    pub events_per_key: usize,
    /// Reading stops at so many unpaid events.
    pub in_flight_events: usize,
    /// Reading stops at so many bytes of unpaid events; the last one may go over it.
    pub in_flight_bytes: usize,
    /// Events handed to the broker in a second, 0 for no limit.
    pub events_per_second: u32,
    /// The wait after a rejection.
    pub backoff: Backoff,
    /// How often slot and publication are checked and the watermark is reported.
    pub report_every: Duration,
    /// The seed of the jitter.
    pub seed: u64,
}

/// What the shell has to do.
#[derive(Debug)]
pub enum Effect {
    /// Publish this window on a free lane.
    Publish(Window),
    /// Check slot and publication, and answer with [`Relay::checked`].
    Check(CheckId),
    /// Acknowledge this position.
    Report(Watermark),
    /// Close the Postgres session and come back with the server.
    LeavePostgres,
    /// Events were confirmed.
    Delivered(Delivered),
    /// Something for the log.
    Notice(Notice),
}

/// Events of one window that were confirmed together.
#[derive(Debug)]
pub struct Delivered {
    /// From the hand-over to the broker to the confirm.
    pub publish: Duration,
    /// From the commit to the confirm, one for each event.
    pub delivery: Vec<Duration>,
}

/// Something an operator should read once; never with a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The event is not paid and its aggregate waits.
    Held {
        /// Where the event stands.
        position: Position,
        /// Why.
        reason: Reason,
        /// What exactly, in words.
        detail: String,
    },
    /// An event that was held has been confirmed.
    Released {
        /// Where the event stands.
        position: Position,
    },
    /// A header of this name is left out of every message because the name is ours.
    HeaderDropped {
        /// The name.
        name: String,
    },
    /// The stream has messages of a type that this version does not know.
    UnknownMessage {
        /// Its letter.
        letter: u8,
    },
}

/// A window takes no further event once it holds so many bytes: the client copies what it publishes.
const WINDOW_BYTES: usize = 1 << 20;

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
    broker: Broker,
    transaction: Transaction,
    events: usize,
    bytes: usize,
    held: usize,
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
            broker: Broker::Down,
            transaction: Transaction::default(),
            events: 0,
            bytes: 0,
            held: 0,
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
        self.reports.clear(now.mono);
        self.transaction = Transaction::default();
        (self.events, self.bytes, self.held, self.reported_events) = (0, 0, 0, 0);
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
        self.broker = broker;
        if broker == Broker::Down {
            for (id, pending) in self.windows.take_all().flat_map(|open| open.items).flatten() {
                // It was rejected before, so it stays out of the windows of fresh events.
                let next = if pending.failures > 0 { Next::Waiting(now.mono) } else { Next::Ready };
                self.aggregates.put_back(id, pending, next);
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
                continue;
            }
            let Some((id, pending)) = item.take() else { continue };
            if *verdict == Verdict::Confirmed {
                delivery.push(now.since(pending.committed_us));
                self.pay(now, id, pending);
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
        let publishable =
            ready && (self.aggregates.has(Course::Fresh) || self.aggregates.has(Course::Suspect));
        let reported = self.ledger.watermark() <= self.reports.reported();
        self.draining && self.windows.live() == 0 && !publishable && !self.accepting() && reported
    }

    /// Whether another frame may be read: there is room by count and by bytes. One event over the limit
    /// of bytes is admitted when there is room at all.
    pub fn accepting(&self) -> bool {
        (!self.draining || self.finishing()) && self.has_room()
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
        // Making a window may have left something to tell.
        self.window(now).map(Effect::Publish).or_else(|| self.effects.pop_front())
    }

    /// When to poll again, if nothing else happens; a time on [`Now::mono`].
    pub fn deadline(&self) -> Option<Duration> {
        let lane = matches!(self.broker, Broker::Ready(_)) && self.windows.lanes() < self.settings.lanes;
        let pace = self.pace.deadline().filter(|_| lane);
        let waits = [self.aggregates.deadline(), self.reports.deadline(), pace];
        waits.into_iter().flatten().min()
    }

    /// The relay's figures.
    pub fn snapshot(&self, now: Now) -> Snapshot {
        Snapshot {
            broker: self.broker,
            in_flight_events: self.events,
            in_flight_bytes: self.bytes,
            aggregates: self.aggregates.len(),
            held_events: self.held,
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

    fn change(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        let commit_lsn = self.ledger.open();
        let position = Position { commit_lsn: commit_lsn.unwrap_or_default(), index: self.transaction.index };
        let change = match self.mapper.read(bytes, position) {
            Ok(change) => change,
            // It is a row, so it may be an event: owed, and never passed over.
            Err(error) if bytes.first() == Some(&b'I') => {
                let detail = format!("its row cannot be read: {error}");
                Change::Refused(Refused { reason: Reason::BadValue, detail, aggregate: None })
            }
            Err(error) => return Err(ProtocolError::Malformed(error.to_string())),
        };
        if change.is_row() {
            commit_lsn.ok_or(ProtocolError::Outside("a row change"))?;
            self.transaction.index += 1;
        }
        match change {
            Change::Event(mapped) => {
                self.counters.headers_dropped += mapped.dropped_headers.len() as u64;
                for name in mapped.dropped_headers {
                    self.tell_once(&name, Notice::HeaderDropped { name: name.to_string() });
                }
                self.admit(position, Some(mapped.aggregate), Some(Arc::new(mapped.message)), None)?;
            }
            Change::Refused(refused) => self.refuse(position, refused)?,
            Change::Ignored(ignored) => {
                if let Ignored::Unknown(letter) = ignored {
                    self.tell_once(&format!("letter {letter}"), Notice::UnknownMessage { letter });
                }
                self.ignored(ignored);
            }
            Change::Description => {}
        }
        Ok(())
    }

    fn refuse(&mut self, position: Position, refused: Refused) -> Result<(), ProtocolError> {
        let Refused { reason, detail, aggregate } = refused;
        self.admit(position, aggregate, None, Some(reason))?;
        self.hold(position, reason, detail);
        Ok(())
    }

    fn admit(
        &mut self,
        position: Position,
        aggregate: Option<AggregateKey>,
        message: Option<Arc<Message>>,
        held: Option<Reason>,
    ) -> Result<(), ProtocolError> {
        let ticket = self.ledger.issue()?;
        let bytes = size_of::<Pending>() + message.as_deref().map_or(0, Message::memory_bytes);
        let header_bytes = message.as_deref().map_or(0, Message::header_frame_bytes);
        self.events += 1;
        self.bytes += bytes;
        let committed_us = self.transaction.committed_us;
        let (failures, strikes, alone) = (0, 0, false);
        let pending = Pending {
            position,
            message,
            ticket,
            committed_us,
            bytes,
            header_bytes,
            failures,
            strikes,
            alone,
            held,
        };
        self.aggregates.push(aggregate, pending);
        Ok(())
    }

    fn pay(&mut self, now: Now, id: AggregateId, pending: Pending) {
        self.events -= 1;
        self.bytes -= pending.bytes;
        self.moved = now.mono;
        if pending.held.is_some() {
            self.held -= 1;
            self.effects.push_back(Effect::Notice(Notice::Released { position: pending.position }));
        }
        self.ledger.pay(pending.ticket);
        self.aggregates.paid(id);
    }

    /// An event came back without a confirm. `single`: it was alone in its window, so what happened to the
    /// channel is its doing.
    fn reject(
        &mut self,
        now: Now,
        id: AggregateId,
        mut pending: Pending,
        verdict: Verdict,
        end: &WindowEnd,
        single: bool,
    ) {
        let rejected = match (verdict, end) {
            (Verdict::Confirmed, _) => unreachable!("a confirm pays"),
            (Verdict::Nacked, _) => Rejected::Again(Reason::Nacked, None),
            (Verdict::Returned { code }, _) => {
                Rejected::Again(Reason::Unrouted, Some(unrouted(&pending, code)))
            }
            (Verdict::Unanswered, WindowEnd::Complete | WindowEnd::Stalled | WindowEnd::Overdue) => {
                Rejected::Again(Reason::Unconfirmed, None)
            }
            (Verdict::Unanswered, WindowEnd::ChannelClosed { code, text }) if single => {
                pending.alone = true;
                Rejected::Again(
                    Reason::ChannelClosed,
                    Some(format!("the broker closes the channel over it: {code} {text}")),
                )
            }
            (Verdict::Unanswered, WindowEnd::ChannelClosed { .. }) => {
                Rejected::Suspect(Reason::ChannelClosed)
            }
            (Verdict::Unanswered, WindowEnd::ConnectionClosed { code, text }) => {
                pending.strikes += 1;
                pending.alone |= pending.strikes >= 2;
                if single && pending.strikes > 2 {
                    Rejected::Never(
                        Reason::ConnectionClosed,
                        format!("the broker closes the connection over it: {code} {text}"),
                    )
                } else {
                    Rejected::Suspect(Reason::ConnectionClosed)
                }
            }
            (Verdict::Unanswered, WindowEnd::Disconnected) => Rejected::Innocent,
        };
        let next = match rejected {
            Rejected::Innocent => Next::Ready,
            Rejected::Suspect(reason) => {
                self.retried(reason);
                if reason == Reason::ConnectionClosed && !pending.alone { Next::Ready } else { Next::Suspect }
            }
            Rejected::Again(reason, held) => {
                self.retried(reason);
                pending.failures = pending.failures.saturating_add(1);
                if let Some(detail) = held.filter(|_| pending.held.is_none()) {
                    pending.held = Some(reason);
                    self.hold(pending.position, reason, detail);
                }
                Next::Waiting(now.mono + self.settings.backoff.wait(pending.failures, &mut self.random))
            }
            Rejected::Never(reason, detail) => {
                if pending.held.is_none() {
                    pending.held = Some(reason);
                    self.hold(pending.position, reason, detail);
                }
                Next::Held
            }
        };
        self.aggregates.put_back(id, pending, next);
    }

    /// Makes the next window, if there is a lane and something to put in it.
    fn window(&mut self, now: Now) -> Option<Window> {
        let Broker::Ready(limits) = self.broker else { return None };
        if self.windows.lanes() >= self.settings.lanes {
            return None;
        }
        let retries = self.windows.lanes_of_retries() < (self.settings.lanes / 2).max(1);
        let courses = if self.retries_first {
            [Course::Suspect, Course::Retry, Course::Fresh]
        } else {
            [Course::Fresh, Course::Suspect, Course::Retry]
        };
        let allowed = courses.into_iter().filter(|course| retries || *course == Course::Fresh);
        for course in allowed {
            let items = self.collect(now, course, limits);
            if !items.is_empty() {
                self.retries_first = course == Course::Fresh;
                let messages =
                    items.iter().flatten().filter_map(|(_, pending)| pending.message.clone()).collect();
                return Some(Window { id: self.windows.insert(items, course), messages });
            }
        }
        None
    }

    fn collect(
        &mut self,
        now: Now,
        course: Course,
        limits: BrokerLimits,
    ) -> Vec<Option<(AggregateId, Pending)>> {
        let most = if course == Course::Suspect { 1 } else { self.settings.window_events };
        let allowance = self.pace.allowance(now.mono, most);
        let mut items = Vec::new();
        let mut bytes = 0;
        let withheld = self.draining && !self.finishing();
        while items.len() < allowance && bytes < WINDOW_BYTES {
            let per_aggregate = self.settings.events_per_key.min(allowance - items.len());
            let ledger = &self.ledger;
            let mut oversized = None;
            let wanted = |head: &mut Pending| {
                if withheld && ledger.is_open(&head.ticket) {
                    // Its transaction cannot be acknowledged any more: it would only be a duplicate.
                    return Wanted::Never;
                }
                if head.message.is_none() {
                    return Wanted::Never;
                }
                if head.header_bytes > limits.frame_max as usize {
                    if head.held.is_none() {
                        head.held = Some(Reason::HeaderTooLarge);
                        oversized = Some((head.position, head.header_bytes));
                    }
                    return Wanted::Never;
                }
                if head.alone && course != Course::Suspect { Wanted::Alone } else { Wanted::Yes }
            };
            let taken = self.aggregates.take(course, per_aggregate, wanted, |id, pending| {
                bytes += pending.bytes;
                self.transaction.is_out |= ledger.is_open(&pending.ticket);
                items.push(Some((id, pending)));
            });
            if let Some((position, size)) = oversized {
                let detail =
                    format!("its headers take {size} bytes, the broker's frame_max is {}", limits.frame_max);
                self.hold(position, Reason::HeaderTooLarge, detail);
            }
            if taken == Taken::Nothing {
                break;
            }
        }
        self.pace.spend(items.len());
        items
    }

    fn hold(&mut self, position: Position, reason: Reason, detail: String) {
        self.held += 1;
        *self.counters.held.entry(reason).or_default() += 1;
        self.effects.push_back(Effect::Notice(Notice::Held { position, reason, detail }));
    }

    fn retried(&mut self, reason: Reason) {
        *self.counters.retried.entry(reason).or_default() += 1;
    }

    fn ignored(&mut self, ignored: Ignored) {
        *self.counters.ignored.entry(ignored.as_str()).or_default() += 1;
    }

    fn tell_once(&mut self, what: &str, notice: Notice) {
        if self.told.len() < 1000 && self.told.insert(what.to_owned()) {
            self.effects.push_back(Effect::Notice(notice));
        }
    }
}

/// What an event's coming back means for it.
enum Rejected {
    /// The connection was lost: no attempt.
    Innocent,
    /// It was among those over one of which the channel or the connection was closed.
    Suspect(Reason),
    /// After a wait; with words, it is held from now on.
    Again(Reason, Option<String>),
    /// Not in this session.
    Never(Reason, String),
}

fn unrouted(pending: &Pending, code: u16) -> String {
    let Some(message) = &pending.message else { return String::new() };
    let (exchange, key) = (&message.exchange, &message.routing_key);
    format!("returned with {code}: no queue is bound for exchange {exchange:?} and routing key {key:?}")
}

impl Now {
    fn since(self, unix_us: i64) -> Duration {
        Duration::from_micros(u64::try_from(self.unix_us.saturating_sub(unix_us)).unwrap_or(0))
    }
}
