//! A relay with its log and its quarantine table, and a test in the place of the broker.

use std::time::Duration;

use postrider_relay::{
    Answer, Broker, BrokerLimits, Checked, Effect, Lsn, Notice, Now, Position, Relay, Settings, Verdict,
    Window, WindowEnd,
};

use crate::settings::settings;
use crate::table::Table;
use crate::wal::{Command, Event, Wal, Walsender, event, route};

pub(super) struct Scene {
    pub(super) relay: Relay,
    pub(super) now: Duration,
    pub(super) wal: Wal,
    pub(super) walsender: Walsender,
    pub(super) notices: Vec<Notice>,
    pub(super) reported: Option<Lsn>,
    pub(super) left: bool,
    pub(super) table: Table,
}

impl Scene {
    pub(super) fn new(change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings { lanes: 8, window_events: 128, ..settings(1) };
        settings.in_flight_events = 16_384;
        change(&mut settings);
        let wal = Wal::new();
        let walsender = Walsender::start(&wal);
        let (notices, reported, left) = (Vec::new(), None, false);
        let mut relay = Relay::new(settings);
        let now = Duration::from_secs(1);
        relay.session(Now { mono: now, unix_us: 0 });
        relay.broker(Now { mono: now, unix_us: 0 }, READY);
        let mut scene = Self { relay, now, wal, walsender, notices, reported, left, table: Table::default() };
        scene.windows();
        scene
    }

    pub(super) fn now(&self) -> Now {
        Now { mono: self.now, unix_us: 0 }
    }

    /// Commits one event of an aggregate in a transaction of its own, and streams it.
    pub(super) fn commit(&mut self, aggregate: u32, seq: u32) {
        self.commit_unread(aggregate, seq);
        self.stream();
    }

    /// The same, not yet streamed.
    pub(super) fn commit_unread(&mut self, aggregate: u32, seq: u32) {
        self.wal.commit(vec![Some(Event { aggregate, seq, poison: false })]);
    }

    /// An operator asks for these rows.
    pub(super) fn request(&mut self, verb: &'static str, positions: &[Position]) {
        self.wal.commit_with(Vec::new(), Some(Command::new(1, verb, positions)));
        self.stream();
    }

    pub(super) fn stream(&mut self) {
        while let Some(frame) = self.walsender.next(&self.wal) {
            self.relay.ingest(self.now(), frame).unwrap();
        }
    }

    /// The windows that the relay hands out now; checks are answered, reports taken.
    pub(super) fn windows(&mut self) -> Vec<Window> {
        let mut windows = Vec::new();
        while let Some(effect) = self.relay.poll(self.now()) {
            match effect {
                Effect::Publish(window) => windows.push(window),
                Effect::Check(id) => self.relay.checked(self.now(), id, Checked::Sound),
                Effect::Report(watermark) => self.reported = Some(watermark.lsn()),
                Effect::Notice(notice) => self.notices.push(notice),
                Effect::Quarantine(id, work) => {
                    let done = self.table.perform(&work, Lsn(0));
                    self.relay.quarantined(self.now(), id, Some(done));
                }
                Effect::Delivered(_) => {}
                Effect::LeavePostgres => self.left = true,
            }
        }
        windows
    }

    pub(super) fn answer(&mut self, window: &Window, verdict: impl Fn(Event) -> Verdict, end: WindowEnd) {
        let verdicts = window.messages.iter().map(|message| verdict(event(&message.message_id))).collect();
        let answer = Answer { window: window.id, verdicts, end, took: Duration::ZERO };
        self.relay.answer(self.now(), &answer);
    }

    /// Answers every window until none comes any more; what went out is returned.
    pub(super) fn settle(&mut self, verdict: impl Fn(Event) -> Verdict) -> Vec<Event> {
        let mut out = Vec::new();
        loop {
            let windows = self.windows();
            if windows.is_empty() {
                return out;
            }
            for window in windows {
                out.extend(window.messages.iter().map(|message| event(&message.message_id)));
                self.answer(&window, &verdict, WindowEnd::Complete);
            }
        }
    }

    pub(super) fn later(&mut self, by: Duration) {
        self.now += by;
    }
}

pub(super) const READY: Broker = Broker::Ready(BrokerLimits { frame_max: 131_072 });
pub(super) const RETURNED: Verdict = Verdict::Returned { code: 312 };

pub(super) fn events(window: &Window) -> Vec<(u32, u32)> {
    let of = |id: &str| (event(id).aggregate, event(id).seq);
    window.messages.iter().map(|message| of(&message.message_id)).collect()
}

pub(super) fn unroutable(event: Event) -> Verdict {
    if route(event) == 1 { RETURNED } else { Verdict::Confirmed }
}
