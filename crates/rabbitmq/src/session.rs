//! One connection's life: lanes, the windows on them, and what the broker says.
//!
//! Invariants: a lane is a channel that waits, a window out that is no stray, or a channel that is opened or to be,
//! and there are always `lanes` of them; there are never more strays than lanes, nor more channels than the broker
//! allows; too many channels that the broker was asked to close and has not end the connection; each window is
//! answered at most twice ([`WindowEnd::Stalled`], then its end), and never after [`Session::run`] has returned.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, try_join_all};
use futures_util::stream::FuturesUnordered;
use lapin::Channel;
use postrider_relay::{BrokerLimits, Verdict, Window, WindowEnd};
use tokio::select;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::clock::Clock;
use crate::ending::{Lost, channel_end, connection_end, may_end_one_channel};
use crate::flight::Flight;
use crate::link::{Link, open_lane, within};
use crate::outage::{Outage, OutageKind};
use crate::publisher::{Event, SessionNumber, State, Told};
use crate::settings::Settings;

/// A window that took no step for so long gives up its lane.
const STALL: Duration = Duration::from_secs(1);
/// A lane that is refused everything gets a fresh channel, at most one in so long. A quorum queue tells a channel
/// that it is full, and that it has room again when it shrinks below its limit; where the limit was lifted
/// instead, the channel goes on refusing (seen with RabbitMQ 3.10).
const RENEW: Duration = Duration::from_millis(500);
/// So many channels a lane may wait for the broker to close them. One that owes a confirm for a queue without a
/// majority is closed only when the queue has its majority back (seen with RabbitMQ 3.10), and every probe of such
/// a route leaves one behind: rather than run into `channel_max`, the connection is made anew, which ends them all.
const CLOSING_PER_LANE: usize = 8;
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
    /// Lanes that are free.
    free: Vec<Arc<Channel>>,
    /// Windows that wait for a lane.
    waiting: VecDeque<Window>,
    /// Windows that are out: one on each busy lane, and the strays.
    flights: Vec<Flight>,
    strays_max: usize,
    channel_max: usize,
    /// Lanes without a channel, for which none is being opened yet.
    bare: usize,
    /// Channels that could not be opened, one after the other.
    misses: usize,
    opening: FuturesUnordered<BoxFuture<'static, lapin::Result<Channel>>>,
    /// Since when lanes wait for a channel, or when one last got it, by the session's clock.
    asked: Duration,
    /// When a channel was last given up because it refused everything.
    renewed: Duration,
    closing: FuturesUnordered<BoxFuture<'static, ()>>,
    /// Whether a window came to its end.
    useful: bool,
}

/// What happened.
enum Step {
    Broker(Option<lapin::Event>),
    Landed(usize, Result<(), lapin::Error>),
    Opened(lapin::Result<Channel>),
    Closed,
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
        let negotiated = link.connection.configuration();
        let (lanes, channel_max) = (settings.lanes, usize::from(negotiated.channel_max()));
        if channel_max < lanes {
            let reason = format!("open {lanes} lanes: the broker allows {channel_max} channels a connection");
            return Err(Outage::new(OutageKind::Closed, reason));
        }
        let limits = BrokerLimits { frame_max: negotiated.frame_max() };
        let opening = async {
            let channels = (0..lanes).map(|_| open_lane(Arc::clone(&link.connection)));
            try_join_all(channels).await.map_err(|error| Outage::lost(&link.peer, &error))
        };
        // A stray's channel needs as much time to close as it needs.
        let strays_max = lanes.min((channel_max - lanes) / 2);
        let free = within(settings.confirm_timeout, "open the lanes", opening).await?;
        Ok(Self {
            settings,
            number,
            tell,
            limits,
            clock: Clock::start(),
            free: free.into_iter().map(Arc::new).collect(),
            waiting: VecDeque::new(),
            flights: Vec::new(),
            strays_max,
            channel_max,
            bare: 0,
            misses: 0,
            opening: FuturesUnordered::new(),
            asked: Duration::ZERO,
            renewed: Duration::ZERO,
            closing: FuturesUnordered::new(),
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
                Some(opened) = self.opening.next() => Step::Opened(opened),
                handed = windows.recv() => Step::Handed(handed),
                Some(()) = self.closing.next() => Step::Closed,
                // Last: what can be read is read before a deadline is judged.
                _ = ticks.tick() => Step::Tick,
            };
            let lost = match step {
                Step::Broker(event) => self.hear(event),
                Step::Landed(at, end) => self.land(at, end),
                Step::Opened(opened) => self.opened(opened),
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
                Step::Closed => None,
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
            let Some(channel) = self.free.pop() else { return };
            if !channel.status().connected() {
                self.lose_lane();
                continue;
            }
            let window = self.waiting.pop_front().expect("a window waits");
            match Flight::new(window, Arc::clone(&channel), self.clock.now()) {
                Ok(flight) => self.flights.push(flight),
                Err(answer) => {
                    self.free.push(channel);
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
                    self.close(flight);
                } else if refused && self.closing.is_empty() && now.saturating_sub(self.renewed) >= RENEW {
                    self.renewed = now;
                    self.lose_lane();
                    self.close(flight);
                } else {
                    self.free.push(flight.channel);
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
                    self.lose_lane();
                }
                None
            }
            // Then it ended all of them, and lapin will say why.
            Err(error) if may_end_one_channel(&error) => Some(Lost::Unknown),
            Err(error) => Some(Lost::Because(error)),
        }
    }

    fn opened(&mut self, opened: lapin::Result<Channel>) -> Option<Lost> {
        match opened {
            Ok(channel) => {
                (self.asked, self.misses) = (self.clock.now(), 0);
                self.free.push(Arc::new(channel));
                None
            }
            Err(_) if !self.connected() => Some(Lost::Unknown),
            // lapin refuses whatever goes to a number whose channel the server has once closed, with the error of
            // then (seen with 4.12); and a number is free only a moment after its close was confirmed. The next try
            // has the next number.
            Err(error) if may_have_the_next_number(&error) && self.misses < self.channel_max => {
                self.misses += 1;
                self.bare += 1;
                None
            }
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
        if self.closing.len() > CLOSING_PER_LANE * self.settings.lanes {
            let reason = format!("close {} channels: the broker has not closed them yet", self.closing.len());
            return Some(Lost::Silent(Outage::new(OutageKind::Silent, reason)));
        }
        if self.lacks_channels() && now.saturating_sub(self.asked) > patience {
            return Some(Lost::Silent(Outage::silent("open a channel", patience)));
        }
        self.open_channels();
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
            } else if !flight.stray && silence >= STALL && strays < self.strays_max {
                let answer = flight.answer(now, WindowEnd::Stalled);
                // Else it ended just now, and the next poll says so.
                if answer.end == WindowEnd::Stalled {
                    flight.stray = true;
                    strays += 1;
                    self.tell(Event::Answer(answer));
                    self.lose_lane();
                }
            }
            at += 1;
        }
        None
    }

    fn overdue(&mut self, mut flight: Flight) {
        self.tell(Event::Answer(flight.answer(self.clock.now(), WindowEnd::Overdue)));
        if !flight.stray {
            self.lose_lane();
        }
        self.close(flight);
    }

    /// A lane is without a channel.
    fn lose_lane(&mut self) {
        if !self.lacks_channels() {
            self.asked = self.clock.now();
        }
        self.bare += 1;
    }

    fn lacks_channels(&self) -> bool {
        self.bare > 0 || !self.opening.is_empty()
    }

    /// Opens channels for lanes that have none, as many as the broker allows beside those that are still closing.
    fn open_channels(&mut self) {
        let open = self.free.len() + self.flights.len() + self.opening.len() + self.closing.len();
        let room = self.channel_max.saturating_sub(open);
        for _ in 0..self.bare.min(room) {
            self.bare -= 1;
            self.opening.push(Box::pin(open_lane(Arc::clone(&self.link.connection))));
        }
    }

    /// Closes a channel in the background. It takes as long as the connection lives at most.
    fn close(&self, flight: Flight) {
        self.closing.push(Box::pin(flight.close()));
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

fn may_have_the_next_number(error: &lapin::Error) -> bool {
    error.is_amqp_soft_error() || matches!(error.kind(), lapin::ErrorKind::ChannelsLimitReached)
}
