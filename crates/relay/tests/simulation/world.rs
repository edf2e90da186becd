//! One seeded world: its parts, the step, and the time.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider_relay::{
    CheckId, Checked, Effect, Frame, Lsn, Notice, Now, QuarantineScope, Relay, Settings, Window,
};

use crate::broker::{Broker, Outcome};
use crate::fate::Fate;
use crate::judge::Judge;
use crate::quarantine::{Operator, Quarantine};
use crate::settings::seeded;
use crate::shop::Shop;
use crate::table::Row;
use crate::wal::{Wal, Walsender};

pub(crate) struct World {
    fate: Fate,
    now: Duration,
    settings: Settings,
    relay: Relay,
    shop: Shop,
    wal: Wal,
    walsender: Option<Walsender>,
    /// A check under way, and whether it has found the publication sound.
    check: Option<(CheckId, bool)>,
    broker: Broker,
    quarantine: Quarantine,
    operator: Operator,
    judge: Judge,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let settings = seeded(&mut random);
        // What can never be sent holds a relay that halts for ever.
        let shop = Shop::new(&mut random, settings.scope != QuarantineScope::Halt);
        Self {
            fate: Fate::new(random),
            now: Duration::ZERO,
            relay: Relay::new(settings.clone()),
            shop,
            wal: Wal::new(),
            walsender: None,
            check: None,
            broker: Broker::new(),
            quarantine: Quarantine::default(),
            operator: Operator::default(),
            judge: Judge::new(seed, settings.clone()),
            settings,
        }
    }

    /// Lives through the faults, then without them until nothing is owed; what happened is returned.
    pub(crate) fn run(mut self) -> BTreeMap<&'static str, u64> {
        for _ in 0..self.fate.random.usize(50..600) {
            self.step();
            self.act();
        }
        self.calm();
        let end = self.relay.snapshot(self.now());
        self.judge.end(&end, &self.wal, &self.quarantine.table);
        if end.counters.stored_before > 0 {
            self.fate.count("quarantine: event read again, paid by its row");
        }
        self.fate.counts
    }

    fn step(&mut self) {
        self.now += Duration::from_micros(self.fate.random.u64(..2000));
        match self.fate.random.u32(..1000) {
            0..250 if self.shop.is_quiet && self.fate.random.u32(..8) > 0 => {}
            0..250 => self.write(),
            250..600 => self.stream(),
            600..850 => self.broker_works(),
            850..875 => self.check_ends(),
            875..900 => self.work_ends(),
            900..925 => self.keepalive(),
            925..935 => self.wal.noise(500),
            935..950 => {
                let outcomes = self.broker.toggle(&mut self.fate);
                self.hear(outcomes);
            }
            950..960 => self.cut(),
            960..967 => self.crash(),
            967..975 => self.server_checkpoints(),
            975..980 => self.broker.rebind(&mut self.fate),
            980..984 => self.alter_publication(),
            984..990 => {
                let outcomes = self.broker.ghost_arrives(&mut self.fate);
                self.hear(outcomes);
            }
            990..993 => self.broker.choose_killer(&mut self.fate),
            993..996 => self.operator.ask(&mut self.fate, &self.quarantine.table, &mut self.wal),
            _ => self.now += Duration::from_millis(self.fate.random.u64(..40_000)),
        }
    }

    fn now(&self) -> Now {
        Now { mono: self.now, unix_us: i64::try_from(self.now.as_micros()).unwrap() }
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
                Effect::Quarantine(id, work) => self.quarantine.take(id, work),
                Effect::Notice(Notice::Held { .. }) => self.fate.count("poison held"),
                Effect::Notice(Notice::Quarantined { position, .. }) => {
                    self.fate.count("poison quarantined");
                    self.judge.condemned(self.wal.event_at(position));
                }
                Effect::Notice(Notice::PutBack { .. }) => self.fate.count("quarantine: row put back"),
                Effect::Delivered(_) | Effect::Notice(_) => {}
            }
        }
    }

    fn publish(&mut self, window: Window) {
        self.judge.published(&window, &self.quarantine.table);
        self.broker.take(window);
    }

    fn report(&mut self, position: Lsn) {
        self.judge.reported(position, &self.wal, &self.quarantine.table);
        self.wal.reported = self.wal.reported.max(position);
    }

    fn write(&mut self) {
        let rows = self.shop.rows(&mut self.fate.random);
        self.wal.commit(rows);
    }

    fn stream(&mut self) {
        if self.walsender.is_none() {
            self.walsender = Some(Walsender::start(&self.wal));
            self.judge.new_session();
            self.relay.session(self.now());
        }
        for _ in 0..self.fate.random.usize(1..40) {
            if !self.relay.accepting() {
                self.fate.count("limit full");
                // It may wait for the quarantine to be read, without which little would ever happen.
                if self.fate.random.bool() {
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
        } else if self.fate.random.u32(..4) == 0 {
            (Lsn(self.fate.random.u64(..=walsender.sent(&self.wal).0)), Some("stale keepalive"))
        } else {
            let owing = self.relay.snapshot(self.now()).oldest.is_some();
            (walsender.sent(&self.wal), owing.then_some("keepalive while owing"))
        };
        if let Some(fault) = fault {
            self.fate.count(fault);
        }
        let keepalive = Frame::Keepalive { wal_end, reply_requested: false };
        self.relay.ingest(self.now(), keepalive).expect("a keepalive fits anywhere");
    }

    fn broker_works(&mut self) {
        let outcomes = self.broker.work(&mut self.fate);
        self.hear(outcomes);
    }

    /// The judge sees what is stored, and the relay hears what is said.
    fn hear(&mut self, outcomes: impl IntoIterator<Item = Outcome>) {
        for outcome in outcomes {
            match outcome {
                Outcome::Stored(event) => {
                    self.judge.stored(event, &self.quarantine.table, &mut self.fate);
                }
                Outcome::Returned(event) => self.judge.returned(event),
                Outcome::State(state) => self.relay.broker(self.now(), state),
                Outcome::Answer(answer, confirmed) => {
                    let before = self.relay.snapshot(self.now()).counters;
                    self.relay.answer(self.now(), &answer);
                    let after = self.relay.snapshot(self.now()).counters;
                    if after.unrouted > before.unrouted {
                        self.fate.count("message returned and accepted");
                    }
                    if after.dead_answers > before.dead_answers {
                        self.fate.count("answer after its window was void");
                    } else {
                        self.judge.confirmed(confirmed);
                    }
                }
            }
        }
    }

    fn work_ends(&mut self) {
        let end = self.quarantine.end_work(&mut self.fate, &self.judge, self.wal.reported);
        if let Some((id, done)) = end {
            self.relay.quarantined(self.now(), id, done);
        }
    }

    fn check_ends(&mut self) {
        let Some((id, covered)) = self.check.take() else { return };
        if !covered {
            // The shell stops the relay; the operator mends the publication and starts again.
            self.mend_publication();
            return;
        }
        let unreachable = self.fate.faults && self.fate.random.u32(..8) == 0;
        if unreachable {
            self.fate.count("check unreachable");
        }
        self.relay.checked(self.now(), id, if unreachable { Checked::Unreachable } else { Checked::Sound });
    }

    fn alter_publication(&mut self) {
        if self.walsender.is_none() || !self.wal.covered {
            return;
        }
        self.wal.covered = false;
        self.fate.count("publication altered, events skipped");
        self.write();
        // With a check still under way that has seen nothing of it.
        self.stream();
        self.keepalive();
    }

    /// Events skipped are not in the promise once the operator knows.
    fn mend_publication(&mut self) {
        for event in self.wal.cover_again() {
            self.judge.skipped(event);
        }
        self.crash();
    }

    fn server_checkpoints(&mut self) {
        if self.fate.random.bool() {
            self.wal.persisted = self.wal.reported;
            return;
        }
        self.fate.count("crash of the server, slot position lost");
        self.end_session();
        self.wal.reported = self.wal.persisted;
    }

    fn cut(&mut self) {
        if self.walsender.is_some() {
            self.fate.count("rolled over by a new session");
            self.end_session();
        }
    }

    fn end_session(&mut self) {
        self.walsender = None;
        self.check = None;
        self.quarantine.end_session(&mut self.fate, &self.judge, self.wal.reported);
    }

    fn crash(&mut self) {
        self.fate.count("crash of the relay");
        self.end_session();
        self.settings.seed = self.fate.random.u64(..);
        self.relay = Relay::new(self.settings.clone());
        self.broker.lose_relay();
        self.judge.new_session();
    }

    /// Everything works again, for as long as it takes; what is in quarantine is sent again, or given up.
    fn calm(&mut self) {
        self.fate.faults = false;
        self.broker.mend();
        if !self.wal.covered {
            self.mend_publication();
        }
        // An event that closed connections goes alone for the rest of its session.
        self.crash();
        for round in 0..3000 {
            self.now += Duration::from_millis(100);
            let recovered = self.broker.recover();
            self.hear([recovered]);
            self.stream();
            self.act();
            while self.broker.has_windows() {
                self.broker_works();
                self.act();
            }
            self.keepalive();
            self.act();
            self.check_ends();
            self.act();
            while self.quarantine.is_busy() {
                self.work_ends();
                self.act();
            }
            let undelivered = self.quarantine.table.rows.values().any(Row::is_undelivered);
            if !undelivered && self.wal.reported.0 == self.wal.end {
                return;
            }
            if round % 30 == 29 {
                self.operator.clear(&mut self.fate, &self.quarantine.table, &mut self.wal);
                // A relay that holds after a burst waits for a success.
                self.write();
            }
        }
    }
}
