//! The RabbitMQ of the simulation: windows on their way, what resolves of them, and what arrives too late.
//!
//! It knows nothing of the promise: what it stores and says is handed out, in its order, as [`Outcome`]s.

use std::collections::BTreeSet;
use std::time::Duration;

use postrider_relay::{Answer, Broker as State, BrokerLimits, Verdict, Window, WindowEnd};

use crate::fate::Fate;
use crate::shop::aggregate;
use crate::wal::{Event, ROUTES, event, route};

pub(crate) const READY: State = State::Ready(BrokerLimits { frame_max: 131_072 });

/// What others see of the broker.
pub(crate) enum Outcome {
    /// A message is in the queue.
    Stored(Event),
    /// A message had nowhere to go.
    Returned(Event),
    /// An answer, and the events that it confirms.
    Answer(Answer, Vec<Event>),
    /// How it is from now on.
    State(State),
}

/// A window at the broker.
struct Flight {
    window: Window,
    verdicts: Vec<Verdict>,
    stalled: bool,
}

pub(crate) struct Broker {
    state: State,
    flights: Vec<Flight>,
    /// Windows whose answer nobody waits for, whose messages may still arrive.
    ghosts: Vec<Window>,
    unrouted: BTreeSet<u32>,
    /// The aggregate whose messages close their channel.
    channel_killer: Option<u32>,
}

impl Broker {
    pub(crate) fn new() -> Self {
        let (flights, ghosts) = (Vec::new(), Vec::new());
        Self { state: State::Down, flights, ghosts, unrouted: BTreeSet::new(), channel_killer: None }
    }

    pub(crate) fn take(&mut self, window: Window) {
        assert!(matches!(self.state, State::Ready(_)), "published to a broker that is not ready");
        let verdicts = vec![Verdict::Unanswered; window.messages.len()];
        self.flights.push(Flight { window, verdicts, stalled: false });
        assert!(self.flights.iter().filter(|flight| !flight.stalled).count() <= 3, "more windows than lanes");
    }

    pub(crate) fn has_windows(&self) -> bool {
        !self.flights.is_empty()
    }

    /// Works on one window at random.
    pub(crate) fn work(&mut self, fate: &mut Fate) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        if self.flights.is_empty() || !matches!(self.state, State::Ready(_)) {
            return outcomes;
        }
        let at = fate.random.usize(..self.flights.len());
        let mut flight = self.flights.swap_remove(at);
        for at in 0..flight.window.messages.len() {
            if flight.verdicts[at] != Verdict::Unanswered {
                continue;
            }
            let event = event(&flight.window.messages[at].message_id);
            if self.channel_killer == Some(event.aggregate) && fate.faults {
                self.close(fate, flight, &mut outcomes);
                return outcomes;
            }
            match fate.random.u32(..if fate.faults { 40 } else { 1 }) {
                // Its confirm is still to come.
                1 => outcomes.push(Outcome::Stored(event)),
                2 => {
                    fate.count("nack");
                    flight.verdicts[at] = Verdict::Nacked;
                }
                3 => {}
                _ if self.unrouted.contains(&route(event)) => {
                    fate.count("message returned");
                    outcomes.push(Outcome::Returned(event));
                    flight.verdicts[at] = Verdict::Returned { code: 312 };
                }
                _ => {
                    outcomes.push(Outcome::Stored(event));
                    flight.verdicts[at] = Verdict::Confirmed;
                }
            }
        }
        outcomes.extend(self.settle(fate, flight));
        outcomes
    }

    /// A message has closed its channel, or the connection with every window.
    fn close(&mut self, fate: &mut Fate, flight: Flight, outcomes: &mut Vec<Outcome>) {
        let text = "no exchange".to_owned();
        if fate.random.u32(..4) > 0 {
            fate.count("channel closed");
            let end = WindowEnd::ChannelClosed { code: 404, text };
            outcomes.push(answer(&flight.window, flight.verdicts, end));
            return;
        }
        fate.count("connection closed by a message");
        let end = WindowEnd::ConnectionClosed { code: 501, text };
        outcomes.push(answer(&flight.window, flight.verdicts, end));
        self.lose_connection(fate, outcomes);
        self.become_state(State::Down, outcomes);
    }

    fn settle(&mut self, fate: &mut Fate, mut flight: Flight) -> Option<Outcome> {
        if !flight.verdicts.contains(&Verdict::Unanswered) {
            return Some(answer(&flight.window, flight.verdicts, WindowEnd::Complete));
        }
        if !flight.stalled && fate.random.bool() {
            fate.count("window stalled");
            flight.stalled = true;
            let stalled = answer(&flight.window, flight.verdicts.clone(), WindowEnd::Stalled);
            self.flights.push(flight);
            return Some(stalled);
        }
        if fate.random.u32(..4) == 0 {
            fate.count("confirm overdue");
            let overdue = answer(&flight.window, flight.verdicts, WindowEnd::Overdue);
            self.ghosts.push(flight.window);
            return Some(overdue);
        }
        self.flights.push(flight);
        None
    }

    pub(crate) fn toggle(&mut self, fate: &mut Fate) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        let state = match (self.state, fate.random.u32(..3)) {
            (State::Ready(_) | State::Blocked, 0) => {
                fate.count("broker down");
                self.lose_connection(fate, &mut outcomes);
                State::Down
            }
            (State::Ready(_), 1) => {
                fate.count("broker blocked");
                State::Blocked
            }
            _ => READY,
        };
        self.become_state(state, &mut outcomes);
        outcomes
    }

    fn become_state(&mut self, state: State, outcomes: &mut Vec<Outcome>) {
        self.state = state;
        outcomes.push(Outcome::State(state));
    }

    /// Every window ends: what had resolved is told, or the answer is lost on the way.
    fn lose_connection(&mut self, fate: &mut Fate, outcomes: &mut Vec<Outcome>) {
        for flight in std::mem::take(&mut self.flights) {
            if fate.random.bool() {
                outcomes.push(answer(&flight.window, flight.verdicts, WindowEnd::Disconnected));
            }
            self.ghosts.push(flight.window);
        }
    }

    /// The relay is gone, and its connection with it.
    pub(crate) fn lose_relay(&mut self) {
        self.state = State::Down;
        self.ghosts.extend(std::mem::take(&mut self.flights).into_iter().map(|flight| flight.window));
    }

    /// A message of a lost connection or a given-up window arrives after all.
    pub(crate) fn ghost_arrives(&mut self, fate: &mut Fate) -> Vec<Outcome> {
        if self.ghosts.is_empty() {
            return Vec::new();
        }
        let at = fate.random.usize(..self.ghosts.len());
        let window = self.ghosts.swap_remove(at);
        let events = window.messages.iter().map(|message| event(&message.message_id));
        events.filter(|event| !self.unrouted.contains(&route(*event))).map(Outcome::Stored).collect()
    }

    pub(crate) fn rebind(&mut self, fate: &mut Fate) {
        let route = fate.random.u32(..ROUTES);
        if !self.unrouted.remove(&route) {
            self.unrouted.insert(route);
        }
    }

    pub(crate) fn choose_killer(&mut self, fate: &mut Fate) {
        self.channel_killer = fate.random.bool().then(|| aggregate(&mut fate.random));
    }

    /// Every route has a queue, and no message closes anything.
    pub(crate) fn mend(&mut self) {
        self.channel_killer = None;
        self.unrouted.clear();
    }

    pub(crate) fn recover(&mut self) -> Outcome {
        self.state = READY;
        Outcome::State(READY)
    }
}

fn answer(window: &Window, verdicts: Vec<Verdict>, end: WindowEnd) -> Outcome {
    let answered = window.messages.iter().zip(&verdicts);
    let confirmed = answered.filter(|(_, verdict)| **verdict == Verdict::Confirmed);
    let confirmed = confirmed.map(|(message, _)| event(&message.message_id)).collect();
    let answer = Answer { window: window.id, verdicts, end, took: Duration::from_millis(1) };
    Outcome::Answer(answer, confirmed)
}
