//! One seeded world: what happens in it, and what must hold in it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use postrider_relay::{
    Answer, Backoff, Broker, BrokerLimits, CheckId, Checked, Effect, Frame, Lsn, MappingSettings, Now, Relay,
    Settings, Verdict, Window, WindowEnd,
};

use crate::wal::{Event, Wal, Walsender, event};

/// Everything that must have happened somewhere in a run of many seeds.
pub(crate) const FAULTS: [&str; 20] = [
    "answer after its window was void",
    "broker blocked",
    "broker down",
    "channel closed",
    "check unreachable",
    "connection closed by a message",
    "confirm overdue",
    "crash of the relay",
    "crash of the server, slot position lost",
    "duplicate delivered",
    "keepalive inside a transaction",
    "keepalive while owing",
    "limit full",
    "message returned",
    "nack",
    "poison held",
    "publication altered, events skipped",
    "rolled over by a new session",
    "stale keepalive",
    "window stalled",
];

const READY: Broker = Broker::Ready(BrokerLimits { frame_max: 131_072 });

/// A window at the simulated broker.
struct Flight {
    window: Window,
    verdicts: Vec<Verdict>,
    stalled: bool,
}

pub(crate) struct World {
    seed: u64,
    random: fastrand::Rng,
    now: Duration,
    wal: Wal,
    walsender: Option<Walsender>,
    relay: Relay,
    flights: Vec<Flight>,
    /// Windows whose answer nobody waits for, whose messages may still arrive.
    ghosts: Vec<Window>,
    check: Option<(CheckId, bool)>,
    broker: Broker,
    /// The queue: every delivery in order.
    queue: Vec<Event>,
    delivered: BTreeSet<Event>,
    /// What the broker has confirmed to this relay, by the session in which it did.
    confirmed: BTreeSet<Event>,
    confirmed_in_session: BTreeSet<Event>,
    unrouted: BTreeSet<u32>,
    channel_killer: Option<u32>,
    next_seq: BTreeMap<u32, u32>,
    poison_left: u32,
    poisoned: BTreeMap<u32, u32>,
    faults: bool,
    counts: BTreeMap<&'static str, u64>,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let poison_left = u32::from(random.u32(..5) == 0);
        let relay = relay(&mut random);
        let wal = Wal::new();
        let (walsender, check, channel_killer) = (None, None, None);
        let (flights, ghosts, queue) = (Vec::new(), Vec::new(), Vec::new());
        let (delivered, confirmed, confirmed_in_session) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (unrouted, next_seq, poisoned, counts) =
            (BTreeSet::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (now, broker, faults) = (Duration::ZERO, Broker::Down, true);
        Self {
            seed,
            random,
            now,
            wal,
            walsender,
            relay,
            flights,
            ghosts,
            check,
            broker,
            queue,
            delivered,
            confirmed,
            confirmed_in_session,
            unrouted,
            channel_killer,
            next_seq,
            poison_left,
            poisoned,
            faults,
            counts,
        }
    }

    /// Lives through the faults, then without them until nothing is owed; what happened is returned.
    pub(crate) fn run(mut self) -> BTreeMap<&'static str, u64> {
        for _ in 0..self.random.usize(50..600) {
            self.step();
            self.act();
        }
        self.calm();
        self.judge();
        self.counts
    }

    fn step(&mut self) {
        self.now += Duration::from_micros(self.random.u64(..2000));
        match self.random.u32(..1000) {
            0..250 => self.write(),
            250..600 => self.stream(),
            600..850 => self.broker_works(),
            850..900 => self.check_ends(),
            900..925 => self.keepalive(),
            925..935 => self.wal.noise(500),
            935..950 => self.toggle_broker(),
            950..960 => self.cut(),
            960..967 => self.crash(),
            967..975 => self.server_checkpoints(),
            975..980 => self.rebind(),
            980..984 => self.alter_publication(),
            984..990 => self.ghost_arrives(),
            990..994 => self.channel_killer = self.random.bool().then(|| self.random.u32(..12)),
            _ => self.now += Duration::from_millis(self.random.u64(..40_000)),
        }
    }

    fn now(&self) -> Now {
        Now { mono: self.now, unix_us: i64::try_from(self.now.as_micros()).unwrap() }
    }

    fn count(&mut self, fault: &'static str) {
        *self.counts.entry(fault).or_default() += 1;
    }

    fn write(&mut self) {
        let rows = self.random.usize(1..6);
        let rows = (0..rows).map(|_| {
            if self.random.u32(..10) == 0 {
                return None;
            }
            let aggregate = self.random.u32(..12);
            let seq = self.next_seq.entry(aggregate).or_default();
            *seq += 1;
            let seq = *seq;
            let poison = self.poison_left > 0 && self.random.u32(..30) == 0;
            if poison {
                self.poison_left -= 1;
                self.poisoned.insert(aggregate, seq);
            }
            Some(Event { aggregate, seq, poison })
        });
        let rows = rows.collect();
        self.wal.commit(rows);
    }

    fn stream(&mut self) {
        if self.walsender.is_none() {
            self.walsender = Some(Walsender::start(&self.wal));
            self.void_session();
            self.relay.session(self.now());
        }
        for _ in 0..self.random.usize(1..40) {
            if !self.relay.accepting() {
                self.count("limit full");
                return;
            }
            let Some(frame) = self.walsender.as_mut().and_then(|walsender| walsender.next(&self.wal)) else {
                return;
            };
            self.relay.ingest(self.now(), frame).expect("the stream is in order");
        }
    }

    fn keepalive(&mut self) {
        let Some(walsender) = &self.walsender else { return };
        let (wal_end, fault) = if walsender.inside() {
            // Adversarial: it names the end of what is only half sent.
            (walsender.sending(&self.wal), Some("keepalive inside a transaction"))
        } else if self.random.u32(..4) == 0 {
            (Lsn(self.random.u64(..=walsender.sent(&self.wal).0)), Some("stale keepalive"))
        } else {
            let owing = self.relay.snapshot(self.now()).oldest.is_some();
            (walsender.sent(&self.wal), owing.then_some("keepalive while owing"))
        };
        if let Some(fault) = fault {
            self.count(fault);
        }
        let keepalive = Frame::Keepalive { wal_end, reply_requested: false };
        self.relay.ingest(self.now(), keepalive).expect("a keepalive fits anywhere");
    }

    /// Does what the relay wants done.
    fn act(&mut self) {
        while let Some(effect) = self.relay.poll(self.now()) {
            match effect {
                Effect::Publish(window) => self.publish(window),
                Effect::Check(id) => self.check = Some((id, self.wal.covered)),
                Effect::Report(watermark) => self.report(watermark.lsn()),
                Effect::LeavePostgres => self.walsender = None,
                Effect::Delivered(_) => {}
                Effect::Notice(notice) => {
                    if let postrider_relay::Notice::Held { reason, .. } = notice
                        && reason == postrider_relay::Reason::NullColumn
                    {
                        self.count("poison held");
                    }
                }
            }
        }
    }

    fn publish(&mut self, window: Window) {
        assert!(matches!(self.broker, Broker::Ready(_)), "published to a broker that is not ready");
        for message in &window.messages {
            let event = event(&message.message_id);
            assert!(!self.confirmed_in_session.contains(&event), "{event:?} is published after its confirm");
        }
        let verdicts = vec![Verdict::Unanswered; window.messages.len()];
        self.flights.push(Flight { window, verdicts, stalled: false });
        assert!(self.flights.iter().filter(|flight| !flight.stalled).count() <= 3, "more windows than lanes");
    }

    fn report(&mut self, position: Lsn) {
        assert!(position.0 <= self.wal.end, "reported a position that was never written");
        for transaction in
            self.wal.transactions.iter().filter(|transaction| transaction.commit_lsn < position)
        {
            assert!(!transaction.skipped, "a skipped event at {} was passed over", transaction.commit_lsn);
            assert!(transaction.end_lsn <= position, "a position inside a transaction was reported");
            for event in transaction.rows.iter().flatten() {
                assert!(self.confirmed.contains(event), "{event:?} was acknowledged unpaid at {position}");
            }
        }
        self.wal.reported = self.wal.reported.max(position);
    }

    fn check_ends(&mut self) {
        let Some((id, covered)) = self.check.take() else { return };
        if !covered {
            // The shell stops the relay; the operator mends the publication and starts again.
            self.mend();
            return;
        }
        let unreachable = self.faults && self.random.u32(..8) == 0;
        if unreachable {
            self.count("check unreachable");
        }
        self.relay.checked(self.now(), id, if unreachable { Checked::Unreachable } else { Checked::Sound });
    }

    fn alter_publication(&mut self) {
        if self.walsender.is_none() || !self.wal.covered {
            return;
        }
        self.wal.covered = false;
        self.count("publication altered, events skipped");
        self.write();
    }

    /// Events skipped are not in the promise once the operator knows; their numbers are not missed.
    fn mend(&mut self) {
        assert!(self.wal.transactions.iter().all(|t| !t.skipped || t.commit_lsn >= self.wal.reported));
        for transaction in self.wal.transactions.iter_mut().filter(|transaction| transaction.skipped) {
            for event in std::mem::take(&mut transaction.rows).into_iter().flatten() {
                self.delivered.insert(Event { poison: false, ..event });
                if self.poisoned.get(&event.aggregate) == Some(&event.seq) {
                    self.poisoned.remove(&event.aggregate);
                }
            }
            transaction.skipped = false;
        }
        self.wal.covered = true;
        self.crash();
    }

    fn toggle_broker(&mut self) {
        self.broker = match (self.broker, self.random.u32(..3)) {
            (Broker::Ready(_) | Broker::Blocked, 0) => {
                self.count("broker down");
                self.lose_connection(&WindowEnd::Disconnected);
                Broker::Down
            }
            (Broker::Ready(_), 1) => {
                self.count("broker blocked");
                Broker::Blocked
            }
            _ => READY,
        };
        self.relay.broker(self.now(), self.broker);
    }

    /// Every window ends: what had resolved is told, or the answer is lost on the way.
    fn lose_connection(&mut self, end: &WindowEnd) {
        for flight in std::mem::take(&mut self.flights) {
            self.ghosts.push(flight.window.clone());
            if self.random.bool() {
                self.answer(&flight.window, flight.verdicts, end.clone());
            }
        }
    }

    /// The broker works on one window at random.
    fn broker_works(&mut self) {
        if self.flights.is_empty() || !matches!(self.broker, Broker::Ready(_)) {
            return;
        }
        let at = self.random.usize(..self.flights.len());
        let mut flight = self.flights.swap_remove(at);
        let killer = self.channel_killer;
        for at in 0..flight.window.messages.len() {
            if flight.verdicts[at] != Verdict::Unanswered {
                continue;
            }
            let event = event(&flight.window.messages[at].message_id);
            if killer == Some(event.aggregate) && self.faults {
                let text = "no exchange".to_owned();
                let end = if self.random.u32(..4) == 0 {
                    self.count("connection closed by a message");
                    self.answer(
                        &flight.window,
                        flight.verdicts,
                        WindowEnd::ConnectionClosed { code: 501, text },
                    );
                    self.lose_connection(&WindowEnd::Disconnected);
                    self.broker = Broker::Down;
                    self.relay.broker(self.now(), Broker::Down);
                    return;
                } else {
                    self.count("channel closed");
                    WindowEnd::ChannelClosed { code: 404, text }
                };
                self.answer(&flight.window, flight.verdicts, end);
                return;
            }
            match self.random.u32(..if self.faults { 40 } else { 1 }) {
                // Stored, and its confirm is still to come.
                1 => self.deliver(event),
                2 => {
                    self.count("nack");
                    flight.verdicts[at] = Verdict::Nacked;
                }
                3 => {}
                _ if self.unrouted.contains(&event.aggregate) => {
                    self.count("message returned");
                    flight.verdicts[at] = Verdict::Returned { code: 312 };
                }
                _ => {
                    self.deliver(event);
                    flight.verdicts[at] = Verdict::Confirmed;
                }
            }
        }
        self.settle(flight);
    }

    fn settle(&mut self, mut flight: Flight) {
        if !flight.verdicts.contains(&Verdict::Unanswered) {
            self.answer(&flight.window, flight.verdicts, WindowEnd::Complete);
        } else if !flight.stalled && self.random.bool() {
            self.count("window stalled");
            flight.stalled = true;
            self.answer(&flight.window, flight.verdicts.clone(), WindowEnd::Stalled);
            self.flights.push(flight);
        } else if self.random.u32(..4) == 0 {
            self.count("confirm overdue");
            self.ghosts.push(flight.window.clone());
            self.answer(&flight.window, flight.verdicts, WindowEnd::Overdue);
        } else {
            self.flights.push(flight);
        }
    }

    fn answer(&mut self, window: &Window, verdicts: Vec<Verdict>, end: WindowEnd) {
        let before = self.relay.snapshot(self.now()).counters.dead_answers;
        let confirmed =
            window.messages.iter().zip(&verdicts).filter(|(_, verdict)| **verdict == Verdict::Confirmed);
        let confirmed: Vec<_> = confirmed.map(|(message, _)| event(&message.message_id)).collect();
        let answer = Answer { window: window.id, verdicts, end, took: Duration::from_millis(1) };
        self.relay.answer(self.now(), &answer);
        if self.relay.snapshot(self.now()).counters.dead_answers > before {
            self.count("answer after its window was void");
        } else {
            self.confirmed.extend(confirmed.iter().copied());
            self.confirmed_in_session.extend(confirmed);
        }
    }

    fn deliver(&mut self, event: Event) {
        self.queue.push(event);
        if !self.delivered.insert(event) {
            self.count("duplicate delivered");
            return;
        }
        let elder = (1..event.seq).find(|seq| !self.delivered.contains(&Event { seq: *seq, ..event }));
        if let Some(elder) = elder {
            panic!("{event:?} overtook {elder}");
        }
    }

    /// A message of a lost connection or a given-up window arrives after all.
    fn ghost_arrives(&mut self) {
        if self.ghosts.is_empty() {
            return;
        }
        let at = self.random.usize(..self.ghosts.len());
        for message in self.ghosts.swap_remove(at).messages {
            let event = event(&message.message_id);
            if !self.unrouted.contains(&event.aggregate) {
                self.deliver(event);
            }
        }
    }

    fn rebind(&mut self) {
        let aggregate = self.random.u32(..12);
        if !self.unrouted.remove(&aggregate) {
            self.unrouted.insert(aggregate);
        }
    }

    fn server_checkpoints(&mut self) {
        if self.random.bool() {
            self.wal.persisted = self.wal.reported;
            return;
        }
        self.count("crash of the server, slot position lost");
        self.wal.reported = self.wal.persisted;
        self.walsender = None;
        self.check = None;
    }

    fn cut(&mut self) {
        if self.walsender.take().is_some() {
            self.count("rolled over by a new session");
            self.check = None;
        }
    }

    fn crash(&mut self) {
        self.count("crash of the relay");
        self.relay = relay(&mut self.random);
        self.walsender = None;
        self.check = None;
        self.broker = Broker::Down;
        self.ghosts.extend(std::mem::take(&mut self.flights).into_iter().map(|flight| flight.window));
        self.confirmed_in_session.clear();
    }

    fn void_session(&mut self) {
        self.confirmed_in_session.clear();
    }

    /// Everything works again, for as long as it takes.
    fn calm(&mut self) {
        self.faults = false;
        self.channel_killer = None;
        self.unrouted.clear();
        if !self.wal.covered {
            self.mend();
        }
        // An event that closed connections is held for the rest of its session.
        self.crash();
        for _ in 0..3000 {
            self.now += Duration::from_millis(100);
            self.broker = READY;
            self.relay.broker(self.now(), READY);
            self.stream();
            self.act();
            while !self.flights.is_empty() {
                self.broker_works();
                self.act();
            }
            self.keepalive();
            self.act();
            self.check_ends();
            self.act();
            if self.poisoned.is_empty() && self.wal.reported.0 == self.wal.end {
                return;
            }
        }
    }

    fn judge(&mut self) {
        let seed = self.seed;
        let limits = self.relay.snapshot(self.now());
        assert!(limits.in_flight_events <= 40, "seed {seed}: more events in flight than the limit");
        let mut held_up = None;
        for transaction in &self.wal.transactions {
            for event in transaction.rows.iter().flatten() {
                let behind_poison = self.poisoned.get(&event.aggregate).is_some_and(|seq| event.seq >= *seq);
                if behind_poison {
                    held_up = held_up.or(Some(transaction.commit_lsn));
                    assert!(
                        !self.queue.contains(event),
                        "seed {seed}: {event:?} passed the poison before it"
                    );
                } else if held_up.is_none() || self.relay.accepting() {
                    assert!(self.delivered.contains(event), "seed {seed}: {event:?} is lost");
                }
            }
        }
        let end = held_up.unwrap_or(Lsn(self.wal.end + 1));
        assert!(self.wal.reported < end, "seed {seed}: the slot passed what is held at {end}");
        if held_up.is_none() {
            assert_eq!(self.wal.reported.0, self.wal.end, "seed {seed}: the slot does not follow the log");
        }
    }
}

fn relay(random: &mut fastrand::Rng) -> Relay {
    Relay::new(Settings { window_events: random.usize(1..8), ..settings(random.u64(..)) })
}

pub(crate) fn settings(seed: u64) -> Settings {
    let first = Duration::from_millis(100);
    Settings {
        mapping: MappingSettings::default(),
        lanes: 3,
        window_events: 4,
        events_per_key: 1,
        in_flight_events: 40,
        in_flight_bytes: 1 << 20,
        events_per_second: 0,
        backoff: Backoff { first, max: Duration::from_secs(30), jitter: 0.2 },
        report_every: Duration::from_millis(50),
        seed,
    }
}
