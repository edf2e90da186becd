//! One seeded world: what happens in it, and what must hold in it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use postrider_relay::quarantine::{Scope, Work, WorkId};
use postrider_relay::{
    Answer, Backoff, Broker, BrokerLimits, CheckId, Checked, Effect, Frame, Lsn, MappingSettings, Notice,
    Now, QuarantineScope, Relay, Settings, Unrouted, Verdict, Window, WindowEnd,
};

use crate::table::{State, Table};
use crate::wal::{Command, ELSEWHERE, Event, ROUTES, Wal, Walsender, event, route};

/// Everything that must have happened somewhere in a run of many seeds.
pub(crate) const FAULTS: [&str; 30] = [
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
    "message returned and accepted",
    "nack",
    "poison held",
    "poison quarantined",
    "publication altered, events skipped",
    "quarantine: discard asked",
    "quarantine: event read again, paid by its row",
    "quarantine: position page turned",
    "quarantine: retry asked",
    "quarantine: row put back",
    "quarantine: row delivered",
    "quarantine: work done, and nobody told",
    "quarantine: work lost",
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
    table: Table,
    work: Option<(WorkId, std::sync::Arc<Work>)>,
    /// Returned, and not expected to be delivered.
    accepted: BTreeSet<Event>,
    /// Found poisonous.
    condemned: BTreeSet<Event>,
    requests: u32,
    settings: Settings,
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
    faults: bool,
    /// Little is written, so that often nothing is owed.
    is_quiet: bool,
    counts: BTreeMap<&'static str, u64>,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let settings = random_settings(&mut random);
        // What can never be sent holds a relay that halts for ever.
        let halts = settings.scope == QuarantineScope::Halt;
        let poison_left = if halts || random.bool() { 0 } else { random.u32(1..4) };
        let relay = Relay::new(settings.clone());
        let wal = Wal::new();
        let (walsender, check, channel_killer) = (None, None, None);
        let (flights, ghosts, queue) = (Vec::new(), Vec::new(), Vec::new());
        let (delivered, confirmed, confirmed_in_session) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (unrouted, next_seq, counts) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        let (table, work, accepted, requests) = (Table::default(), None, BTreeSet::new(), 0);
        let (now, broker, faults) = (Duration::ZERO, Broker::Down, true);
        let is_quiet = random.u32(..4) == 0;
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
            table,
            work,
            accepted,
            condemned: BTreeSet::new(),
            requests,
            settings,
            broker,
            queue,
            delivered,
            confirmed,
            confirmed_in_session,
            unrouted,
            channel_killer,
            next_seq,
            poison_left,
            faults,
            is_quiet,
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
            0..250 if self.is_quiet && self.random.u32(..8) > 0 => {}
            0..250 => self.write(),
            250..600 => self.stream(),
            600..850 => self.broker_works(),
            850..875 => self.check_ends(),
            875..900 => self.work_ends(),
            900..925 => self.keepalive(),
            925..935 => self.wal.noise(500),
            935..950 => self.toggle_broker(),
            950..960 => self.cut(),
            960..967 => self.crash(),
            967..975 => self.server_checkpoints(),
            975..980 => self.rebind(),
            980..984 => self.alter_publication(),
            984..990 => self.ghost_arrives(),
            990..993 => self.channel_killer = self.random.bool().then(|| aggregate(&mut self.random)),
            993..996 => self.ask(),
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
            let aggregate = aggregate(&mut self.random);
            let seq = self.next_seq.entry(aggregate).or_default();
            *seq += 1;
            let seq = *seq;
            let poison = self.poison_left > 0 && self.random.u32(..30) == 0;
            if poison {
                self.poison_left -= 1;
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
                // It may wait for the quarantine to be read, without which little would ever happen.
                if self.random.bool() {
                    self.work_ends();
                }
                return;
            }
            let Some(frame) = self.walsender.as_mut().and_then(|walsender| walsender.next(&self.wal)) else {
                return;
            };
            self.relay.ingest(self.now(), frame).expect("the stream is in order");
            let events = self.relay.snapshot(self.now()).in_flight_events;
            assert!(events <= self.settings.in_flight_events, "{events} in flight are over the limit");
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
                Effect::LeavePostgres => self.end_session(),
                // Without a session there is no connection to do it on.
                Effect::Quarantine(..) if self.walsender.is_none() => {}
                Effect::Quarantine(id, work) => {
                    assert!(self.work.is_none(), "two pieces of work at once");
                    self.work = Some((id, work));
                }
                Effect::Notice(Notice::Held { .. }) => self.count("poison held"),
                Effect::Notice(Notice::Quarantined { position, .. }) => {
                    self.count("poison quarantined");
                    self.condemned.extend(self.wal.event_at(position));
                }
                Effect::Notice(Notice::PutBack { .. }) => self.count("quarantine: row put back"),
                Effect::Delivered(_) | Effect::Notice(_) => {}
            }
        }
    }

    /// The work under way comes to its end, or its connection does.
    fn work_ends(&mut self) {
        let Some((id, work)) = self.work.take() else { return };
        let fate = if self.faults { self.random.u32(..6) } else { 9 };
        if fate == 0 {
            self.count("quarantine: work lost");
            return self.relay.quarantined(self.now(), id, None);
        }
        let done = self.perform(&work);
        if fate == 1 {
            self.count("quarantine: work done, and nobody told");
            return self.relay.quarantined(self.now(), id, None);
        }
        self.relay.quarantined(self.now(), id, Some(done));
    }

    fn perform(&mut self, work: &Work) -> postrider_relay::quarantine::Done {
        match work {
            Work::Delivered(positions) => {
                for at in positions {
                    let event = self.table.rows[at].event;
                    assert!(self.confirmed.contains(&event), "{event:?} is marked delivered unconfirmed");
                }
                self.count("quarantine: row delivered");
            }
            Work::Positions { .. } => self.count("quarantine: position page turned"),
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
        self.table.perform(&work, self.wal.reported)
    }

    /// An operator asks for a row, or for all.
    fn ask(&mut self) {
        let parked = self.table.rows.iter().filter(|(_, row)| row.state == State::Parked);
        let parked: Vec<_> = parked.map(|(at, _)| *at).collect();
        if parked.is_empty() {
            return;
        }
        let all = self.random.bool();
        let one = parked[self.random.usize(..parked.len())];
        let positions = if all { parked } else { vec![one] };
        let verb = if self.random.u32(..4) == 0 { "discard" } else { "retry" };
        self.request(verb, &positions);
    }

    fn request(&mut self, verb: &'static str, positions: &[postrider_relay::Position]) {
        self.count(if verb == "retry" { "quarantine: retry asked" } else { "quarantine: discard asked" });
        self.requests += 1;
        self.wal.commit_with(Vec::new(), Some(Command::new(self.requests, verb, positions)));
    }

    fn end_session(&mut self) {
        self.walsender = None;
        self.check = None;
        // The connection of the quarantine ends with the session, before or after the commit.
        if let Some((_, work)) = self.work.take()
            && self.random.bool()
        {
            self.perform(&work);
        }
    }

    fn publish(&mut self, window: Window) {
        assert!(matches!(self.broker, Broker::Ready(_)), "published to a broker that is not ready");
        for message in &window.messages {
            let event = event(&message.message_id);
            assert!(!self.confirmed_in_session.contains(&event), "{event:?} is published after its confirm");
            let state = self.table.rows.get(&message.position).map(|row| row.state);
            assert!(
                state.is_none_or(|state| state == State::Released),
                "{event:?} is published, and in the quarantine it is {state:?}"
            );
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
            // A stale keepalive names any old position.
            let whole = transaction.end_lsn <= position || position <= self.wal.reported;
            assert!(whole, "a position inside a transaction was reported");
            for (index, event) in (0..).zip(&transaction.rows) {
                let Some(event) = event else { continue };
                let at = postrider_relay::Position { commit_lsn: transaction.commit_lsn, index };
                let paid = self.confirmed.contains(event)
                    || self.table.rows.contains_key(&at)
                    || self.accepted.contains(event);
                assert!(paid, "{event:?} was acknowledged unpaid at {position}");
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
        // With a check still under way that has seen nothing of it.
        self.stream();
        self.keepalive();
    }

    /// Events skipped are not in the promise once the operator knows; their numbers are not missed.
    fn mend(&mut self) {
        assert!(self.wal.transactions.iter().all(|t| !t.skipped || t.commit_lsn >= self.wal.reported));
        for transaction in self.wal.transactions.iter_mut().filter(|transaction| transaction.skipped) {
            for event in std::mem::take(&mut transaction.rows).into_iter().flatten() {
                self.delivered.insert(Event { poison: false, ..event });
            }
            transaction.command = None;
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
                _ if self.unrouted.contains(&route(event)) => {
                    self.count("message returned");
                    if self.settings.unrouted == Unrouted::Accept {
                        self.accepted.insert(event);
                    }
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
        let counters = self.relay.snapshot(self.now()).counters;
        let (before, unrouted) = (counters.dead_answers, counters.unrouted);
        let confirmed =
            window.messages.iter().zip(&verdicts).filter(|(_, verdict)| **verdict == Verdict::Confirmed);
        let confirmed: Vec<_> = confirmed.map(|(message, _)| event(&message.message_id)).collect();
        let answer = Answer { window: window.id, verdicts, end, took: Duration::from_millis(1) };
        self.relay.answer(self.now(), &answer);
        let counters = self.relay.snapshot(self.now()).counters;
        if counters.unrouted > unrouted {
            self.count("message returned and accepted");
        }
        if counters.dead_answers > before {
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
        let elders = (1..event.seq).map(|seq| Event { seq, ..event });
        let missing: Vec<_> = elders.filter(|elder| !self.delivered.contains(elder)).collect();
        if missing.is_empty() {
            return;
        }
        // Its row may not be there yet.
        let alone =
            self.settings.scope == QuarantineScope::Event || self.settings.unrouted == Unrouted::Event;
        // What is given up, or was quarantined alone, is not waited for.
        let excused = |row: &crate::table::Row| row.state == State::Discarded || row.scope == Scope::Event;
        let excused: BTreeSet<_> = self
            .table
            .rows
            .values()
            .filter(|row| row.event.aggregate == event.aggregate && excused(row))
            .map(|row| Event { poison: false, ..row.event })
            .chain(self.accepted.iter().copied())
            .chain(self.condemned.iter().copied().filter(|_| alone))
            .collect();
        if let Some(elder) = missing.iter().find(|elder| !excused.contains(elder)) {
            let row = self
                .table
                .rows
                .iter()
                .find(|(_, row)| row.event.aggregate == elder.aggregate && row.event.seq == elder.seq);
            panic!("{event:?} overtook {elder:?}, of which the quarantine has {row:?}; {:?}", self.settings);
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
            if !self.unrouted.contains(&route(event)) {
                self.deliver(event);
            }
        }
    }

    fn rebind(&mut self) {
        let route = self.random.u32(..ROUTES);
        if !self.unrouted.remove(&route) {
            self.unrouted.insert(route);
        }
    }

    fn server_checkpoints(&mut self) {
        if self.random.bool() {
            self.wal.persisted = self.wal.reported;
            return;
        }
        self.count("crash of the server, slot position lost");
        self.end_session();
        self.wal.reported = self.wal.persisted;
    }

    fn cut(&mut self) {
        if self.walsender.is_some() {
            self.count("rolled over by a new session");
            self.end_session();
        }
    }

    fn crash(&mut self) {
        self.count("crash of the relay");
        self.end_session();
        self.settings.seed = self.random.u64(..);
        self.relay = Relay::new(self.settings.clone());
        self.broker = Broker::Down;
        self.ghosts.extend(std::mem::take(&mut self.flights).into_iter().map(|flight| flight.window));
        self.confirmed_in_session.clear();
    }

    fn void_session(&mut self) {
        self.confirmed_in_session.clear();
    }

    /// Everything works again, for as long as it takes; what is in quarantine is sent again, or given up.
    fn calm(&mut self) {
        self.faults = false;
        self.channel_killer = None;
        self.unrouted.clear();
        if !self.wal.covered {
            self.mend();
        }
        // An event that closed connections goes alone for the rest of its session.
        self.crash();
        for round in 0..3000 {
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
            while self.work.is_some() {
                self.work_ends();
                self.act();
            }
            let undelivered = self.table.rows.values().any(crate::table::Row::is_undelivered);
            if !undelivered && self.wal.reported.0 == self.wal.end {
                return;
            }
            if round % 30 == 29 {
                self.clear_quarantine();
                // A relay that holds after a burst waits for a success.
                self.write();
            }
        }
    }

    fn clear_quarantine(&mut self) {
        let parked = |refused: bool| {
            let rows = self.table.rows.iter();
            let rows = rows.filter(|(_, row)| row.state == State::Parked && row.refused == refused);
            rows.map(|(at, _)| *at).collect::<Vec<_>>()
        };
        let (refused, parked) = (parked(true), parked(false));
        if !refused.is_empty() {
            self.request("discard", &refused);
        } else if !parked.is_empty() {
            self.request("retry", &parked);
        }
    }

    fn judge(&mut self) {
        let seed = self.seed;
        let end = self.relay.snapshot(self.now());
        for transaction in &self.wal.transactions {
            for (index, event) in (0..).zip(&transaction.rows) {
                let Some(event) = event else { continue };
                let at = postrider_relay::Position { commit_lsn: transaction.commit_lsn, index };
                let state = self.table.rows.get(&at).map(|row| row.state);
                assert!(
                    matches!(state, None | Some(State::Delivered | State::Discarded)),
                    "seed {seed}: {event:?} is still {state:?}"
                );
                let given_up = state == Some(State::Discarded) || self.accepted.contains(event);
                assert!(given_up || self.delivered.contains(event), "seed {seed}: {event:?} is lost");
            }
        }
        assert_eq!(self.wal.reported.0, self.wal.end, "seed {seed}: the slot does not follow the log");
        let left = (end.quarantine_events, end.parked_aggregates, end.held_events);
        assert_eq!(left, (0, 0, 0), "seed {seed}: counted in quarantine, parked, held");
        if end.counters.stored_before > 0 {
            self.count("quarantine: event read again, paid by its row");
        }
    }
}

fn aggregate(random: &mut fastrand::Rng) -> u32 {
    match random.u32(..12) {
        other @ 9.. => ELSEWHERE + other,
        own => own,
    }
}

fn random_settings(random: &mut fastrand::Rng) -> Settings {
    let scopes = [QuarantineScope::Key, QuarantineScope::Key, QuarantineScope::Event, QuarantineScope::Halt];
    let unrouted = [Unrouted::Key, Unrouted::Key, Unrouted::Event, Unrouted::Accept];
    Settings {
        window_events: random.usize(1..8),
        scope: scopes[random.usize(..scopes.len())],
        unrouted: unrouted[random.usize(..unrouted.len())],
        burst_events: [0, 1, 3, 50][random.usize(..4)],
        attempts: random.u32(1..5),
        ..settings(random.u64(..))
    }
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
        slot: "postrider".to_owned(),
        attempts: 12,
        scope: QuarantineScope::Key,
        unrouted: Unrouted::Key,
        burst_events: 50,
        backoff: Backoff { first, max: Duration::from_secs(30), jitter: 0.2 },
        report_every: Duration::from_millis(50),
        seed,
    }
}
