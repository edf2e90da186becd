//! The one task around the core: it carries frames, windows, answers and reports, and decides nothing.
//!
//! Invariant: whatever waits here has an end: every turn of the loop serves signals first, then the broker,
//! then Postgres, and the core's deadline wakes it.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use postrider_postgres::{Error, Inspection, Server, Stop, Subject};
use postrider_rabbitmq::{Event, Publisher, State};
use postrider_relay::quarantine::{Done, WorkId};
use postrider_relay::{Effect, Now, Relay, Settings, Snapshot};
use tracing::{info, warn};

use crate::config::Config;
use crate::health::{Board, Health, NotReady, SlotFigures};
use crate::metrics::{Metrics, Side};
use crate::notices;
use crate::quarantine_link::QuarantineLink;
use crate::run::{CLOSE_LIMIT, EXIT_AT_ONCE, Signals};
use crate::slot_link::{Loss, SlotLink, Turn};

/// How a run ended.
#[derive(Debug)]
pub(crate) enum End {
    /// As asked; so many delivered events were not reported and will arrive again.
    Drained { repeat: u64 },
    /// Something that a person must mend.
    Stopped(Box<Stop>),
}

/// Frames taken in one turn, so that answers are never far behind.
const FRAMES_PER_TURN: usize = 512;
/// How often the board is written while nothing changes, and how often it may be written at all: a busy loop
/// turns thousands of times a second.
const PUBLISH_EVERY: Duration = Duration::from_millis(250);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The shell.
pub(crate) struct Shell {
    relay: Relay,
    publisher: Publisher,
    broker: Option<State>,
    postgres: SlotLink,
    quarantine: QuarantineLink,
    /// Why the last work on the quarantine was not done.
    quarantine_loss: Option<String>,
    board: Arc<Board>,
    metrics: Arc<Metrics>,
    stalled_after: Duration,
    drain_timeout: Duration,
    streaming: bool,
    loss: Option<Loss>,
    slot: Option<SlotFigures>,
    published: Option<(Instant, Result<(), NotReady>)>,
    origin: Instant,
}

impl Shell {
    /// Nothing is connected yet; the broker's connection begins to come up.
    pub(crate) fn new(
        config: &Config,
        server: Server,
        subject: Subject,
        publisher: postrider_rabbitmq::Settings,
        relay: Settings,
        board: Arc<Board>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            relay: Relay::new(relay),
            publisher: Publisher::start(publisher),
            broker: None,
            quarantine: QuarantineLink::new(server.clone(), subject.clone()),
            quarantine_loss: None,
            postgres: SlotLink::new(server, subject, config.postgres.report_every),
            board,
            metrics,
            stalled_after: config.http.stalled_after,
            drain_timeout: config.limits.drain_timeout,
            streaming: false,
            loss: None,
            slot: None,
            published: None,
            origin: Instant::now(),
        }
    }

    /// Turns until a signal has been followed or something stops the relay.
    pub(crate) async fn run(mut self, mut signals: Signals) -> End {
        let mut ending: Option<Instant> = None;
        loop {
            self.act();
            self.publish_health();
            if let Some(end_by) = ending
                && (self.relay.drained() || Instant::now() >= end_by)
            {
                return self.close(end_by).await;
            }
            let deadline = self.deadline(ending);
            let accepting = self.relay.accepting();
            tokio::select! {
                // In the order of urgency: who asks us to end, who may pay debts, who may stop us, who brings
                // new debts.
                biased;
                name = signals.next() => {
                    if ending.is_some() {
                        warn!(signal = name, "told again to end: ending at once");
                        std::process::exit(EXIT_AT_ONCE);
                    }
                    info!(signal = name, "told to end: reading no more, waiting for what is out");
                    ending = Some(Instant::now() + self.drain_timeout.saturating_sub(self.close_limit()));
                    self.relay.drain();
                }
                event = self.publisher.next() => self.broker_event(event),
                (id, done) = self.quarantine.next() => {
                    if let Some(stop) = self.quarantined(id, done) {
                        return self.stop(stop).await;
                    }
                }
                turn = self.postgres.next(accepting) => {
                    if let Some(stop) = self.turn(turn) {
                        return self.stop(stop).await;
                    }
                }
                () = tokio::time::sleep_until(deadline.into()) => {}
            }
        }
    }

    /// One turn at Postgres, and the frames that are there already. Something that stops the relay is returned.
    fn turn(&mut self, turn: Turn) -> Option<Box<Stop>> {
        let mut turn = turn;
        // Frames that are there already have come at the same time.
        let now = self.now();
        for _ in 0..FRAMES_PER_TURN {
            match turn {
                Turn::Frame(frame) => {
                    if let Err(error) = self.relay.ingest(now, frame) {
                        turn = self.postgres.leave(&error.to_string());
                        continue;
                    }
                }
                Turn::Connected { walsender_pid, endpoint } => {
                    self.loss = None;
                    self.streaming = true;
                    self.quarantine.begin(walsender_pid);
                    self.relay.session(self.now());
                    info!(walsender_pid, "the slot streams from {endpoint}");
                    return None;
                }
                Turn::Lost(loss) => {
                    self.lost(loss);
                    return None;
                }
                Turn::Checked(id, checked, seen) => {
                    if let Some(seen) = seen {
                        self.slot = Some(figures(&seen));
                    }
                    self.relay.checked(self.now(), id, checked);
                    return None;
                }
                Turn::Stop(stop) => return Some(stop),
            }
            if !self.relay.accepting() {
                return None;
            }
            turn = self.postgres.try_next()?;
        }
        None
    }

    /// The session is over: its debts are void, the next one streams them again.
    fn lost(&mut self, loss: Loss) {
        if self.streaming {
            self.streaming = false;
            self.quarantine.end();
            self.relay.session(self.now());
        }
        if self.loss.as_ref() != Some(&loss) {
            let reason = match &loss {
                Loss::Standby { .. } => "standby",
                Loss::Outage(_) => "outage",
            };
            self.metrics.session(Side::Postgres, reason);
            match &loss {
                Loss::Standby { pid } => info!(pid, "standby: another session has the slot"),
                Loss::Outage(text) => warn!("lost Postgres, coming back: {text}"),
            }
        }
        self.loss = Some(loss);
    }

    /// Work on the quarantine has ended. Something that stops the relay is returned.
    fn quarantined(&mut self, id: WorkId, done: Result<Done, Error>) -> Option<Box<Stop>> {
        match done {
            Ok(done) => {
                if self.quarantine_loss.take().is_some() {
                    info!("the quarantine is in reach again");
                }
                self.relay.quarantined(self.now(), id, Some(done));
            }
            Err(Error::Stop(stop)) => return Some(stop),
            Err(error) if error.is_session_over() => {
                if let Turn::Lost(loss) = self.postgres.leave(&error.to_string()) {
                    self.lost(loss);
                }
            }
            Err(error) => {
                let text = error.to_string();
                if self.quarantine_loss.as_ref() != Some(&text) {
                    warn!("the quarantine is out of reach, coming back: {text}");
                }
                self.quarantine_loss = Some(text);
                self.relay.quarantined(self.now(), id, None);
            }
        }
        None
    }

    fn broker_event(&mut self, event: Event) {
        match event {
            Event::Answer(answer) => self.relay.answer(self.now(), &answer),
            Event::State(state) => {
                match &state {
                    State::Ready(limits) => info!(frame_max = limits.frame_max, "the broker takes messages"),
                    State::Blocked { reason } => warn!("the broker is blocked: {reason}"),
                    State::Down(outage) => {
                        self.metrics.session(Side::Broker, outage.kind.as_str());
                        warn!("no broker, coming back: failed to {outage}");
                    }
                }
                self.relay.broker(self.now(), state.broker());
                self.broker = Some(state);
            }
        }
    }

    /// Does what the core wants done.
    fn act(&mut self) {
        while let Some(effect) = self.relay.poll(self.now()) {
            match effect {
                Effect::Publish(window) => self.publisher.publish(window),
                Effect::Quarantine(id, work) => self.quarantine.start(id, work),
                Effect::Check(id) => self.postgres.check(id),
                Effect::Report(watermark) => self.postgres.report(watermark),
                Effect::LeavePostgres => {
                    if let Turn::Lost(loss) = self.postgres.leave("the server is shutting down") {
                        self.lost(loss);
                    }
                }
                Effect::Delivered(delivered) => self.metrics.delivered(&delivered),
                Effect::Notice(notice) => notices::tell(&notice),
            }
        }
    }

    fn deadline(&self, ending: Option<Instant>) -> Instant {
        let core = self.relay.deadline().map(|mono| self.origin + mono);
        let turns = [core, ending, Some(Instant::now() + PUBLISH_EVERY)];
        turns.into_iter().flatten().min().expect("one is always there")
    }

    fn publish_health(&mut self) {
        self.board.turn();
        let now = Instant::now();
        if self.published.is_some_and(|(at, _)| now < at + LOOK_EVERY) {
            return;
        }
        let snapshot = self.relay.snapshot(self.now());
        let (ready, detail) = self.readiness(&snapshot);
        let due = |(at, was): (Instant, Result<(), NotReady>)| was != ready || now >= at + PUBLISH_EVERY;
        if self.published.is_none_or(due) {
            self.published = Some((now, ready));
            let (relay, slot) = (Some(snapshot), self.slot.clone());
            self.board.publish(Health { ready, detail, relay, slot });
        }
    }

    fn readiness(&self, snapshot: &Snapshot) -> (Result<(), NotReady>, String) {
        if snapshot.draining {
            return (Err(NotReady::Draining), "the relay is ending".to_owned());
        }
        if !self.streaming {
            return match &self.loss {
                None => (Err(NotReady::Starting), "nothing has answered yet".to_owned()),
                Some(Loss::Standby { pid: Some(pid) }) => {
                    (Err(NotReady::Standby), format!("the slot is held by process {pid} of the server"))
                }
                Some(Loss::Standby { pid: None }) => (Err(NotReady::Standby), "the slot is held".to_owned()),
                Some(Loss::Outage(text)) => (Err(NotReady::Postgres), text.clone()),
            };
        }
        let Some(trouble) = snapshot.trouble(self.stalled_after) else { return (Ok(()), String::new()) };
        let detail = match (&self.broker, NotReady::from(trouble)) {
            (None, NotReady::Broker) => {
                return (Err(NotReady::Starting), "no broker has answered yet".to_owned());
            }
            (Some(State::Down(outage)), NotReady::Broker) => outage.to_string(),
            (Some(State::Blocked { reason }), NotReady::Blocked) => reason.clone(),
            (_, NotReady::Held) => {
                let why = snapshot.hold.map_or("", notices::hold);
                format!(
                    "events held: {}, for {why}; the log names each with its reason",
                    snapshot.held_events
                )
            }
            (_, NotReady::Postgres) => {
                let why = self.quarantine_loss.as_deref().unwrap_or("no answer yet");
                format!("the quarantine is out of reach: {why}")
            }
            (_, reason) => reason.as_str().to_owned(),
        };
        (Err(NotReady::from(trouble)), detail)
    }

    /// The end as asked: the last report is sent and stored, the broker is left.
    async fn close(mut self, end_by: Instant) -> End {
        self.act();
        let snapshot = self.relay.snapshot(self.now());
        let repeat = snapshot.unreported_events;
        if !self.relay.drained() {
            let windows = snapshot.windows;
            warn!(
                windows,
                unreported = repeat,
                "out of time: not all that is out was confirmed and reported"
            );
        }
        let limit = self.close_limit() + end_by.saturating_duration_since(Instant::now());
        let last = snapshot.reported;
        let (stands, ()) = tokio::join!(self.postgres.close(last, limit), self.publisher.close(limit));
        match (last, stands) {
            (Some(last), Some(stands)) if stands >= last.lsn() => {
                info!(position = %stands, "the slot stands");
            }
            (Some(last), _) => warn!(position = %last.lsn(), "the last report was not seen stored"),
            (None, _) => {}
        }
        End::Drained { repeat }
    }

    /// What is left of the drain timeout for closing the connections.
    fn close_limit(&self) -> Duration {
        CLOSE_LIMIT.min(self.drain_timeout / 2)
    }

    async fn stop(self, stop: Box<Stop>) -> End {
        self.publisher.close(CLOSE_LIMIT).await;
        End::Stopped(stop)
    }

    fn now(&self) -> Now {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { mono: self.origin.elapsed(), unix_us: i64::try_from(unix.as_micros()).unwrap_or(i64::MAX) }
    }
}

fn figures(seen: &Inspection) -> SlotFigures {
    SlotFigures {
        wal_lsn: seen.wal_lsn,
        confirmed_flush_lsn: seen.slot.as_ref().and_then(|slot| slot.confirmed_flush_lsn),
        restart_lsn: seen.slot.as_ref().and_then(|slot| slot.restart_lsn),
        safe_bytes: seen.slot.as_ref().and_then(|slot| slot.safe_wal_size),
    }
}
