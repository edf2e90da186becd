//! One connection's life: lanes, the windows on them, and what the broker says.
//!
//! Invariants: there are never more strays than lanes; each window is answered at most twice ([`WindowEnd::Stalled`],
//! then its end), and never after [`Session::run`] has returned. Which channels there are is [`Lanes`]' business.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt as _;
use postrider_relay::{BrokerLimits, Verdict, Window, WindowEnd};
use tokio::select;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::clock::Clock;
use crate::ending::{Lost, channel_end, connection_end, may_end_one_channel};
use crate::flight::Flight;
use crate::lanes::{Change, Lanes};
use crate::link::Link;
use crate::outage::{Outage, OutageKind};
use crate::publisher::{Event, SessionNumber, State, Told};
use crate::settings::Settings;

/// A window that took no step for so long gives up its lane.
const STALL: Duration = Duration::from_secs(1);
/// How often deadlines are looked at, and channels are opened for lanes that have none.
const TICK: Duration = Duration::from_millis(100);
/// How long lapin may take to say why a connection is gone.
const LAST_WORD: Duration = Duration::from_secs(1);
/// How long the broker may take to say farewell.
const FAREWELL: Duration = Duration::from_secs(2);

/// How a session ended.
pub(crate) enum End {
    /// The publisher was closed.
    Closed,
    /// The connection is gone; all windows are answered.
    Lost(Outage),
}

pub(crate) struct Session<'a> {
    settings: &'a Settings,
    number: SessionNumber,
    tell: &'a UnboundedSender<Told>,
    link: Link,
    limits: BrokerLimits,
    clock: Clock,
    lanes: Lanes,
    /// Windows that wait for a lane.
    waiting: VecDeque<Window>,
    /// Windows that are out: one on each busy lane, and the strays.
    flights: Vec<Flight>,
    /// Whether a window came to its end.
    useful: bool,
}

/// What happened.
enum Step {
    Broker(Option<lapin::Event>),
    Landed(usize, Result<(), lapin::Error>),
    Changed(Change),
    Handed(Option<(SessionNumber, Window)>),
    Tick,
}

impl<'a> Session<'a> {
    /// Opens the lanes.
    pub(crate) async fn open(
        link: Link,
        number: SessionNumber,
        settings: &'a Settings,
        tell: &'a UnboundedSender<Told>,
    ) -> Result<Self, Outage> {
        let lanes = Lanes::open(Arc::clone(&link.connection), &link.peer, settings).await?;
        let limits = BrokerLimits { frame_max: link.connection.configuration().frame_max() };
        Ok(Self {
            settings,
            number,
            tell,
            limits,
            clock: Clock::start(),
            lanes,
            waiting: VecDeque::new(),
            flights: Vec::new(),
            useful: false,
            link,
        })
    }

    /// Whether a window came to its end, as far as [`run`](Self::run) got.
    pub(crate) fn was_useful(&self) -> bool {
        self.useful
    }

    /// Publishes until the connection is gone or the publisher is closed.
    pub(crate) async fn run(&mut self, windows: &mut UnboundedReceiver<(SessionNumber, Window)>) -> End {
        self.say(State::Ready(self.limits));
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.start_waiting();
            let now = self.clock.now();
            let step = select! {
                biased;
                // A blocked broker stops the clock before a tick reads it.
                event = self.link.events.next() => Step::Broker(event),
                // Answers free lanes, so before new windows.
                (at, end) = poll_fn(|cx| poll_flights(&mut self.flights, cx, now)) => Step::Landed(at, end),
                change = self.lanes.change() => Step::Changed(change),
                handed = windows.recv() => Step::Handed(handed),
                // Last: what can be read is read before a deadline is judged.
                _ = ticks.tick() => Step::Tick,
            };
            let lost = match step {
                Step::Broker(event) => self.hear(event),
                Step::Landed(at, end) => self.land(at, end),
                Step::Changed(Change::Opened(opened)) => self.lanes.opened(self.clock.now(), opened),
                Step::Changed(Change::Closed) => None,
                Step::Handed(Some((session, window))) => {
                    // A window made for an earlier connection is void: the relay knows.
                    if session == self.number {
                        self.waiting.push_back(window);
                    }
                    None
                }
                Step::Handed(None) => {
                    self.take_leave().await;
                    return End::Closed;
                }
                Step::Tick => self.judge_deadlines(),
            };
            if let Some(lost) = lost {
                return End::Lost(self.lost(lost).await);
            }
        }
    }

    /// Puts waiting windows on free lanes, unless the broker is blocked.
    fn start_waiting(&mut self) {
        while !self.clock.stands_still() && !self.waiting.is_empty() {
            let now = self.clock.now();
            let Some(channel) = self.lanes.take(now) else { return };
            let window = self.waiting.pop_front().expect("a window waits");
            match Flight::new(window, Arc::clone(&channel), now) {
                Ok(flight) => self.flights.push(flight),
                Err(answer) => {
                    self.lanes.give_back(channel);
                    self.tell(Event::Answer(answer));
                }
            }
        }
    }

    /// What lapin tells of the connection.
    fn hear(&mut self, event: Option<lapin::Event>) -> Option<Lost> {
        match event {
            Some(lapin::Event::ConnectionBlocked(reason)) => {
                self.clock.stop();
                self.say(State::Blocked { reason });
                None
            }
            Some(lapin::Event::ConnectionUnblocked) => {
                self.clock.go_on();
                self.say(State::Ready(self.limits));
                None
            }
            // Errors of single channels come here as well; their windows say more.
            Some(lapin::Event::Error(error)) if error.is_amqp_soft_error() || self.connected() => None,
            Some(lapin::Event::Error(error)) => Some(Lost::Because(error)),
            // RabbitMQ uses no channel.flow, and a connection is made once.
            Some(_) => None,
            None => Some(Lost::Unknown),
        }
    }

    /// A window has all its words, or its channel broke.
    fn land(&mut self, at: usize, end: Result<(), lapin::Error>) -> Option<Lost> {
        match end {
            Ok(()) => {
                let mut flight = self.flights.swap_remove(at);
                self.useful = true;
                let now = self.clock.now();
                let answer = flight.answer(now, WindowEnd::Complete);
                let refused = answer.verdicts.iter().all(|verdict| *verdict == Verdict::Nacked);
                self.tell(Event::Answer(answer));
                if flight.stray {
                    self.lanes.close(flight);
                } else if refused && self.lanes.renews(now) {
                    self.lanes.lose(now);
                    self.lanes.close(flight);
                } else {
                    self.lanes.give_back(flight.channel);
                }
                None
            }
            Err(error) if self.connected() && may_end_one_channel(&error) => {
                let mut flight = self.flights.swap_remove(at);
                let now = self.clock.now();
                flight.sweep(now);
                let end = channel_end(flight.error().unwrap_or(&error));
                self.useful = true;
                self.tell(Event::Answer(flight.answer(now, end)));
                if !flight.stray {
                    self.lanes.lose(now);
                }
                None
            }
            // Then it ended all of them, and lapin will say why.
            Err(error) if may_end_one_channel(&error) => Some(Lost::Unknown),
            Err(error) => Some(Lost::Because(error)),
        }
    }

    /// Gives up lanes and windows that took too long. Stands still while the broker is blocked.
    fn judge_deadlines(&mut self) -> Option<Lost> {
        if !self.connected() {
            return Some(Lost::Unknown);
        }
        if self.clock.stands_still() {
            return None;
        }
        let (now, patience) = (self.clock.now(), self.settings.confirm_timeout);
        if let Some(lost) = self.lanes.fill(now, self.flights.len()) {
            return Some(lost);
        }
        let strays_max = self.lanes.strays_max();
        let mut strays = self.flights.iter().filter(|flight| flight.stray).count();
        let mut at = 0;
        while at < self.flights.len() {
            let flight = &mut self.flights[at];
            // Only the oldest message of a window is watched: see whether another moved.
            if now.saturating_sub(flight.alive) >= 2 * TICK {
                flight.sweep(now);
            }
            let (age, silence) = (now.saturating_sub(flight.since), now.saturating_sub(flight.alive));
            if flight.is_over() {
                // The next poll says so, and how.
            } else if age > patience {
                let flight = self.flights.swap_remove(at);
                self.overdue(flight);
                continue;
            } else if !flight.stray && silence >= STALL && strays < strays_max {
                let answer = flight.answer(now, WindowEnd::Stalled);
                // Else it ended just now, and the next poll says so.
                if answer.end == WindowEnd::Stalled {
                    flight.stray = true;
                    strays += 1;
                    self.tell(Event::Answer(answer));
                    self.lanes.lose(now);
                }
            }
            at += 1;
        }
        None
    }

    fn overdue(&mut self, mut flight: Flight) {
        let now = self.clock.now();
        self.tell(Event::Answer(flight.answer(now, WindowEnd::Overdue)));
        if !flight.stray {
            self.lanes.lose(now);
        }
        self.lanes.close(flight);
    }

    fn connected(&self) -> bool {
        self.link.connection.status().connected()
    }

    /// Answers every window that is out, and says why the connection is gone.
    async fn lost(&mut self, lost: Lost) -> Outage {
        let error = match lost {
            Lost::Because(error) => Ok(error),
            Lost::Silent(outage) => Err(outage),
            Lost::Unknown => timeout(LAST_WORD, self.last_word()).await.ok().flatten().ok_or_else(|| {
                let reason = format!("keep the connection to {}: it was closed", self.link.peer);
                Outage::new(OutageKind::Broken, reason)
            }),
        };
        let end = connection_end(error.as_ref().ok());
        let now = self.clock.now();
        for mut flight in std::mem::take(&mut self.flights) {
            self.tell(Event::Answer(flight.answer(now, end.clone())));
        }
        error.map_or_else(|outage| outage, |error| Outage::lost(&self.link.peer, &error))
    }

    /// The error that ended the connection.
    async fn last_word(&mut self) -> Option<lapin::Error> {
        loop {
            match self.link.events.next().await {
                Some(lapin::Event::Error(error)) if !error.is_amqp_soft_error() => return Some(error),
                Some(_) => {}
                None => return None,
            }
        }
    }

    async fn take_leave(&mut self) {
        // A blocked broker reads no farewell.
        if !self.clock.stands_still() {
            self.link.close(FAREWELL).await;
        }
    }

    fn say(&self, state: State) {
        self.tell(Event::State(state));
    }

    fn tell(&self, event: Event) {
        // The handle is gone only if it was dropped, and this task with it.
        let _ = self.tell.send(Told { session: self.number, event });
    }
}

/// The first window that came to an end.
fn poll_flights(
    flights: &mut [Flight],
    cx: &mut std::task::Context<'_>,
    now: Duration,
) -> Poll<(usize, Result<(), lapin::Error>)> {
    for (at, flight) in flights.iter_mut().enumerate() {
        if let Poll::Ready(end) = flight.poll(cx, now) {
            return Poll::Ready((at, end));
        }
    }
    Poll::Pending
}
