//! Single rules, each shown with a handful of frames and answers.

use std::time::Duration;

use postrider_relay::{
    Answer, Broker, BrokerLimits, Checked, Effect, Frame, HoldCause, Lsn, Notice, Now, Position,
    QuarantineScope, Reason, Relay, Settings, Trouble, Unrouted, Verdict, Window, WindowEnd,
};

use crate::table::Table;
use crate::wal::{Command, ELSEWHERE, Event, Wal, Walsender, event, route};
use crate::world::settings;

struct Scene {
    relay: Relay,
    now: Duration,
    wal: Wal,
    walsender: Walsender,
    notices: Vec<Notice>,
    reported: Option<Lsn>,
    left: bool,
    table: Table,
}

impl Scene {
    fn new(change: impl FnOnce(&mut Settings)) -> Self {
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

    fn now(&self) -> Now {
        Now { mono: self.now, unix_us: 0 }
    }

    /// Commits one event of an aggregate in a transaction of its own, and streams it.
    fn commit(&mut self, aggregate: u32, seq: u32) {
        self.commit_unread(aggregate, seq);
        self.stream();
    }

    /// The same, not yet streamed.
    fn commit_unread(&mut self, aggregate: u32, seq: u32) {
        self.wal.commit(vec![Some(Event { aggregate, seq, poison: false })]);
    }

    /// An operator asks for these rows.
    fn request(&mut self, verb: &'static str, positions: &[Position]) {
        self.wal.commit_with(Vec::new(), Some(Command::new(1, verb, positions)));
        self.stream();
    }

    fn stream(&mut self) {
        while let Some(frame) = self.walsender.next(&self.wal) {
            self.relay.ingest(self.now(), frame).unwrap();
        }
    }

    /// The windows that the relay hands out now; checks are answered, reports taken.
    fn windows(&mut self) -> Vec<Window> {
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

    fn answer(&mut self, window: &Window, verdict: impl Fn(Event) -> Verdict, end: WindowEnd) {
        let verdicts = window.messages.iter().map(|message| verdict(event(&message.message_id))).collect();
        let answer = Answer { window: window.id, verdicts, end, took: Duration::ZERO };
        self.relay.answer(self.now(), &answer);
    }

    /// Answers every window until none comes any more; what went out is returned.
    fn settle(&mut self, verdict: impl Fn(Event) -> Verdict) -> Vec<Event> {
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

    fn later(&mut self, by: Duration) {
        self.now += by;
    }
}

const READY: Broker = Broker::Ready(BrokerLimits { frame_max: 131_072 });
const RETURNED: Verdict = Verdict::Returned { code: 312 };

fn events(window: &Window) -> Vec<(u32, u32)> {
    let of = |id: &str| (event(id).aggregate, event(id).seq);
    window.messages.iter().map(|message| of(&message.message_id)).collect()
}

#[test]
fn one_unroutable_event_holds_the_slot_and_nothing_else() {
    let mut scene = Scene::new(|_| {});
    scene.commit(0, 1);
    scene.settle(|_| Verdict::Confirmed);
    let before = scene.wal.transactions[0].end_lsn;
    scene.commit(5001, 1);
    for aggregate in 1..=1000 {
        scene.commit(aggregate * 5, 1);
    }
    for _ in 0..11 {
        scene.settle(unroutable);
        scene.later(Duration::from_secs(36));
    }
    let snapshot = scene.relay.snapshot(scene.now());
    assert_eq!(snapshot.counters.published, 1001);
    assert_eq!((snapshot.in_flight_events, snapshot.bad_routes), (1, 1));
    assert_eq!(snapshot.unreported_events, 1000);
    let reported = scene.reported.unwrap();
    assert!(before <= reported && reported < scene.wal.transactions[1].commit_lsn, "{reported}");
    assert!(matches!(scene.notices[..], [Notice::BadRoute { settled: false, .. }]), "{:?}", scene.notices);

    assert_eq!(scene.settle(unroutable).len(), 1, "the last attempt");
    scene.later(Duration::from_secs(1));
    scene.settle(unroutable);
    assert_eq!(scene.reported, scene.wal.transactions.last().map(|last| last.end_lsn));
    let told = &scene.notices[1..];
    let quarantined = matches!(
        told,
        [Notice::BadRoute { settled: true, .. }, Notice::Quarantined { reason: Reason::Unrouted, .. }]
    );
    assert!(quarantined, "{told:?}");
}

fn unroutable(event: Event) -> Verdict {
    if route(event) == 1 { RETURNED } else { Verdict::Confirmed }
}

/// Events of route 1 are returned until none is tried any more.
fn settle_route_1(scene: &mut Scene) {
    scene.commit(1, 1);
    for _ in 0..12 {
        scene.settle(unroutable);
        scene.later(Duration::from_secs(36));
    }
    assert_eq!(scene.table.rows.len(), 1);
}

#[test]
fn a_route_that_was_given_up_is_probed_by_one_event_in_a_while() {
    let mut scene = Scene::new(|_| {});
    settle_route_1(&mut scene);
    scene.commit(6, 1);
    assert_eq!(scene.settle(unroutable).len(), 1, "the probe is due");
    assert_eq!(scene.table.rows.len(), 2, "one attempt, for its route is given up");
    for aggregate in 2..12 {
        scene.commit(1 + aggregate * 5, 1);
    }
    assert_eq!(scene.settle(unroutable), [], "none is sent");
    assert_eq!(scene.table.rows.len(), 12);
    scene.later(Duration::from_secs(40));
    scene.commit(101, 1);
    scene.commit(106, 1);
    assert_eq!(scene.settle(|_| Verdict::Confirmed).len(), 2, "the probe, and who waited for it");
    assert_eq!(scene.relay.snapshot(scene.now()).bad_routes, 0);
}

#[test]
fn a_route_without_confirms_takes_one_lane_at_a_time() {
    let mut scene = Scene::new(|_| {});
    scene.commit(1, 1);
    let stalled = scene.windows().remove(0);
    scene.answer(&stalled, |_| Verdict::Unanswered, WindowEnd::Stalled);
    for aggregate in 1..50 {
        scene.commit(1 + aggregate * 5, 1);
        scene.commit(aggregate * 5, 1);
    }
    assert_eq!(scene.settle(|_| Verdict::Confirmed).len(), 49, "those of the other route");
    scene.answer(&stalled, |_| Verdict::Unanswered, WindowEnd::Overdue);
    assert!(scene.windows().is_empty());
    scene.later(Duration::from_millis(130));
    let probe = scene.windows();
    assert_eq!(probe.iter().map(events).collect::<Vec<_>>(), [[(1, 1)]], "the one that has waited");
    scene.answer(&probe[0], |_| Verdict::Unanswered, WindowEnd::Stalled);
    assert!(scene.windows().is_empty());
    scene.answer(&probe[0], |_| Verdict::Confirmed, WindowEnd::Complete);
    assert_eq!(scene.settle(|_| Verdict::Confirmed).len(), 49, "everybody else");
    assert_eq!(scene.relay.snapshot(scene.now()).counters.retried[&Reason::Unconfirmed], 1);
}

#[test]
fn the_first_event_to_an_exchange_has_none_behind_it() {
    let mut scene = Scene::new(|_| {});
    for aggregate in (0..30).chain(ELSEWHERE..ELSEWHERE + 10) {
        scene.commit(aggregate, 1);
    }
    let windows = scene.windows();
    let elsewhere = |window: &Window| window.messages.iter().any(|message| &*message.exchange == "elsewhere");
    let (first, others): (Vec<_>, Vec<_>) = windows.into_iter().partition(elsewhere);
    assert_eq!(first.iter().map(events).collect::<Vec<_>>(), [[(ELSEWHERE, 1)]]);
    assert_eq!(others.iter().map(|window| window.messages.len()).sum::<usize>(), 30, "the others flow");
    let closed = WindowEnd::ChannelClosed { code: 404, text: "no exchange".to_owned() };
    scene.answer(&first[0], |_| Verdict::Unanswered, closed);
    let second = scene.windows();
    assert_eq!(second.iter().map(events).collect::<Vec<_>>(), [[(ELSEWHERE + 1, 1)]], "the next one tries");
    scene.answer(&second[0], |_| Verdict::Confirmed, WindowEnd::Complete);
    let rest = scene.windows();
    assert_eq!(rest.iter().map(|window| window.messages.len()).collect::<Vec<_>>(), [8], "it is known now");
    scene.relay.broker(scene.now(), Broker::Down);
    scene.relay.broker(scene.now(), READY);
    let again = scene.windows();
    let alone = again.iter().filter(|window| elsewhere(window)).map(|window| window.messages.len());
    assert_eq!(alone.collect::<Vec<_>>(), [1], "another connection, another broker");
}

#[test]
fn a_nack_is_no_attempt() {
    let mut scene = Scene::new(|settings| settings.attempts = 3);
    scene.commit(1, 1);
    for _ in 0..10 {
        scene.settle(|_| Verdict::Nacked);
        scene.later(Duration::from_secs(36));
    }
    for _ in 0..2 {
        assert_eq!(scene.settle(unroutable).len(), 1);
        assert_eq!(scene.table.rows.len(), 0);
        scene.later(Duration::from_secs(36));
    }
    scene.settle(unroutable);
    assert_eq!(scene.table.rows.len(), 1, "the third attempt");
}

#[test]
fn a_burst_of_undeliverable_events_is_held_until_one_is_delivered() {
    let mut scene = Scene::new(|settings| (settings.burst_events, settings.attempts) = (5, 1));
    for aggregate in 0..20 {
        scene.commit(aggregate * 5 + 1, 1);
        scene.settle(unroutable);
    }
    let snapshot = scene.relay.snapshot(scene.now());
    assert_eq!((scene.table.rows.len(), snapshot.in_flight_events), (5, 15));
    assert_eq!(snapshot.trouble(Duration::MAX), Some(Trouble::Held));
    assert_eq!(snapshot.hold, Some(HoldCause::Burst));
    assert!(scene.relay.accepting(), "it reads on");
    scene.later(Duration::from_secs(40));
    assert_eq!(scene.settle(unroutable).len(), 1, "one is tried");
    assert_eq!(scene.table.rows.len(), 5, "and not stored");
    scene.later(Duration::from_secs(40));
    assert_eq!(scene.settle(|_| Verdict::Confirmed).len(), 15, "the first success resumes");
    let snapshot = scene.relay.snapshot(scene.now());
    assert_eq!((snapshot.hold, snapshot.in_flight_events, snapshot.trouble(Duration::MAX)), (None, 0, None));
}

#[test]
fn until_the_quarantine_has_been_read_nothing_else_is_and_that_is_said() {
    let mut scene = Scene::new(|_| ());
    scene.relay.session(scene.now());
    let trouble = |scene: &Scene| scene.relay.snapshot(scene.now()).trouble(Duration::MAX);
    assert!(!scene.relay.accepting());
    assert_eq!(trouble(&scene), Some(Trouble::Quarantine));
    scene.windows();
    assert!(scene.relay.accepting());
    assert_eq!(trouble(&scene), None);
}

#[test]
fn the_end_of_a_hold_asks_every_route_before_it_gives_more_up() {
    let mut scene = Scene::new(|settings| (settings.burst_events, settings.attempts) = (5, 1));
    for aggregate in 0..40 {
        scene.commit(aggregate, 1);
        scene.settle(|_| RETURNED);
    }
    assert_eq!(scene.table.rows.len(), 5);
    scene.later(Duration::from_secs(40));
    scene.settle(|_| Verdict::Confirmed);
    let snapshot = scene.relay.snapshot(scene.now());
    assert_eq!((scene.table.rows.len(), snapshot.counters.published), (5, 35), "all was mended at once");
    assert_eq!((snapshot.hold, snapshot.bad_routes), (None, 0));
}

#[test]
fn a_hold_probes_on_and_on() {
    let mut scene = Scene::new(|settings| (settings.burst_events, settings.attempts) = (5, 1));
    for aggregate in 0..60 {
        scene.commit(aggregate, 1);
        scene.commit(aggregate, 2);
        scene.settle(|_| RETURNED);
    }
    for round in 0..20 {
        scene.later(Duration::from_secs(40));
        let probes: Vec<_> = scene.settle(|_| RETURNED).into_iter().map(route).collect();
        assert_eq!(probes.len(), 5, "one for each route in round {round}: {probes:?}");
    }
    scene.later(Duration::from_secs(40));
    assert_eq!(scene.settle(|_| Verdict::Confirmed).len(), 110);
}

#[test]
fn a_success_between_is_no_burst() {
    let mut scene = Scene::new(|settings| (settings.burst_events, settings.attempts) = (5, 1));
    for aggregate in 0..20 {
        scene.commit(aggregate * 5 + 1, 1);
        scene.commit(aggregate * 5, 1);
        scene.settle(unroutable);
    }
    assert_eq!(scene.table.rows.len(), 20);
}

#[test]
fn a_relay_that_halts_stores_nothing_and_goes_on_where_it_stopped() {
    let mut scene = Scene::new(|settings| (settings.scope, settings.attempts) = (QuarantineScope::Halt, 1));
    scene.commit(1, 1);
    scene.settle(unroutable);
    for aggregate in 0..20 {
        scene.commit(aggregate * 5, 1);
    }
    assert_eq!(scene.settle(unroutable), [], "nothing fresh goes out");
    let snapshot = scene.relay.snapshot(scene.now());
    assert_eq!((snapshot.hold, scene.table.rows.len()), (Some(HoldCause::Halt), 0));
    scene.later(Duration::from_secs(40));
    assert_eq!(scene.settle(|_| Verdict::Confirmed).len(), 21);
    assert_eq!(scene.relay.snapshot(scene.now()).hold, None);
}

#[test]
fn an_accepted_event_is_paid_and_its_route_is_tried_by_each() {
    let mut scene = Scene::new(|settings| (settings.unrouted, settings.attempts) = (Unrouted::Accept, 2));
    scene.commit(1, 1);
    scene.settle(unroutable);
    scene.later(Duration::from_secs(1));
    scene.settle(unroutable);
    for aggregate in 1..10 {
        scene.commit(aggregate * 5 + 1, 1);
    }
    assert_eq!(scene.settle(unroutable).len(), 9, "each goes out, in case a queue is bound by now");
    let snapshot = scene.relay.snapshot(scene.now());
    assert_eq!((snapshot.counters.unrouted, snapshot.in_flight_events), (10, 0));
    assert_eq!((snapshot.counters.published, scene.table.rows.len()), (0, 0));
}

#[test]
fn later_events_of_a_poisonous_one_are_parked_and_come_back_in_order() {
    let mut scene = Scene::new(|_| {});
    scene.commit(7, 1);
    scene.wal.commit(vec![Some(Event { aggregate: 7, seq: 2, poison: true })]);
    scene.commit(7, 3);
    scene.commit(8, 1);
    let sent = scene.settle(|_| Verdict::Confirmed);
    assert_eq!(sent.len(), 2, "{sent:?}");
    scene.commit(7, 4);
    assert_eq!(scene.settle(|_| Verdict::Confirmed), []);
    let parked = |scene: &Scene| -> Vec<u32> {
        scene.table.rows.values().filter(|row| row.is_undelivered()).map(|row| row.event.seq).collect()
    };
    assert_eq!(parked(&scene), [2, 3, 4]);
    let positions: Vec<_> = scene.table.rows.keys().copied().collect();
    scene.request("retry", &positions);
    assert_eq!(scene.settle(|_| Verdict::Confirmed), [], "2 cannot be sent as it is");
    assert!(scene.notices.iter().any(|notice| matches!(notice, Notice::PutBack { .. })));
    scene.request("discard", &positions[..1]);
    scene.request("retry", &positions[1..2]);
    let released = scene.windows();
    assert_eq!(released.iter().map(events).collect::<Vec<_>>(), [[(7, 3)]]);
    scene.commit(7, 5);
    assert!(scene.windows().is_empty(), "5 goes to the table while 3 and 4 are on their way");
    scene.answer(&released[0], |_| Verdict::Confirmed, WindowEnd::Complete);
    let sent: Vec<_> = scene.settle(|_| Verdict::Confirmed).iter().map(|event| event.seq).collect();
    assert_eq!((sent, parked(&scene)), (vec![4, 5], vec![]));
    scene.commit(7, 6);
    assert_eq!(scene.settle(|_| Verdict::Confirmed).len(), 1);
    assert_eq!(scene.table.rows.len(), 4, "6 went as any other");
}

#[test]
fn poison_behind_poison_is_named_as_well() {
    let mut scene = Scene::new(|_| {});
    // Behind it in the queue, and behind its row.
    for seq in 1..=2 {
        scene.wal.commit(vec![Some(Event { aggregate: 7, seq, poison: true })]);
    }
    scene.commit(7, 3);
    scene.settle(|_| Verdict::Confirmed);
    scene.wal.commit(vec![Some(Event { aggregate: 7, seq: 4, poison: true })]);
    scene.commit(7, 5);
    scene.settle(|_| Verdict::Confirmed);
    let named = scene.notices.iter().map(|notice| match notice {
        Notice::Quarantined { position, reason: Reason::NullColumn, .. } => {
            scene.table.rows[position].event.seq
        }
        other => panic!("{other:?}"),
    });
    let mut named: Vec<_> = named.collect();
    named.sort_unstable();
    assert_eq!(named, [1, 2, 4]);
    assert_eq!(scene.table.rows.len(), 5);
}

#[test]
fn the_event_that_closes_the_channel_names_itself() {
    let mut scene = Scene::new(|_| {});
    for aggregate in 1..=20 {
        scene.commit(aggregate, 1);
        scene.commit(aggregate, 2);
    }
    let closed = WindowEnd::ChannelClosed { code: 404, text: "no exchange".to_owned() };
    let mut published = Vec::new();
    for _ in 0..100 {
        for window in scene.windows() {
            let culprit = events(&window).contains(&(7, 1));
            if culprit && window.messages.len() > 1 {
                scene.answer(&window, |_| Verdict::Unanswered, closed.clone());
            } else if culprit {
                scene.answer(&window, |_| Verdict::Unanswered, closed.clone());
            } else {
                published.extend(events(&window));
                scene.answer(&window, |_| Verdict::Confirmed, WindowEnd::Complete);
            }
        }
    }
    assert_eq!(published.len(), 38, "everything but aggregate 7: {published:?}");
    let [Notice::Quarantined { position, reason: Reason::ChannelClosed, followers: 1, .. }] =
        &scene.notices[..]
    else {
        panic!("{:?}", scene.notices)
    };
    let culprit = scene.wal.transactions.iter().find(|transaction| {
        transaction.rows.iter().flatten().any(|event| (event.aggregate, event.seq) == (7, 1))
    });
    assert_eq!(position.commit_lsn, culprit.unwrap().commit_lsn);
}

#[test]
fn an_event_that_closes_connections_is_given_up_and_the_others_flow() {
    let mut scene = Scene::new(|_| {});
    for aggregate in 1..=20 {
        scene.commit(aggregate, 1);
    }
    let mut published = Vec::new();
    for _ in 0..20 {
        let windows = scene.windows();
        let killer = windows.iter().position(|window| events(window).contains(&(7, 1)));
        for (at, window) in windows.iter().enumerate() {
            if Some(at) == killer {
                let end = WindowEnd::ConnectionClosed { code: 501, text: "frame".to_owned() };
                scene.answer(window, |_| Verdict::Unanswered, end);
            } else if killer.is_some() {
                scene.answer(window, |_| Verdict::Unanswered, WindowEnd::Disconnected);
            } else {
                published.extend(events(window));
                scene.answer(window, |_| Verdict::Confirmed, WindowEnd::Complete);
            }
        }
        if killer.is_some() {
            scene.relay.broker(scene.now(), Broker::Down);
            scene.relay.broker(scene.now(), READY);
        }
    }
    assert_eq!(published.len(), 19, "{published:?}");
    assert_eq!(scene.relay.snapshot(scene.now()).counters.quarantined[&Reason::ConnectionClosed], 1);
}

#[test]
fn an_aggregate_has_one_event_out_and_retries_do_not_meet_fresh_ones() {
    let mut scene = Scene::new(|_| {});
    for seq in 1..=3 {
        scene.commit(1, seq);
    }
    let first = scene.windows();
    assert_eq!(first.iter().map(events).collect::<Vec<_>>(), [[(1, 1)]]);
    scene.answer(&first[0], |_| Verdict::Nacked, WindowEnd::Complete);
    scene.commit(2, 1);
    assert_eq!(scene.windows().iter().map(events).collect::<Vec<_>>(), [[(2, 1)]], "aggregate 1 waits");
    scene.later(Duration::from_millis(130));
    scene.commit(3, 1);
    let windows = scene.windows();
    assert!(
        windows.iter().all(|window| window.messages.len() == 1),
        "a retry shares no window with a fresh event"
    );
    assert_eq!(windows.len(), 2);
}

#[test]
fn a_lane_is_free_again_when_its_window_stalls() {
    let mut scene = Scene::new(|settings| settings.lanes = 1);
    scene.commit(1, 1);
    scene.commit(2, 1);
    let stalled = scene.windows().remove(0);
    scene.commit(3, 1);
    assert!(scene.windows().is_empty(), "one lane, one window");
    let half = |event: Event| if event.aggregate == 2 { Verdict::Confirmed } else { Verdict::Unanswered };
    scene.answer(&stalled, half, WindowEnd::Stalled);
    let next = scene.windows();
    assert_eq!(next.iter().map(events).collect::<Vec<_>>(), [[(3, 1)]]);
    scene.answer(&next[0], |_| Verdict::Confirmed, WindowEnd::Complete);
    scene.answer(&stalled, |_| Verdict::Confirmed, WindowEnd::Complete);
    scene.later(Duration::from_secs(1));
    scene.windows();
    assert_eq!(scene.reported, scene.wal.transactions.last().map(|last| last.end_lsn));
}

#[test]
fn headers_over_the_frame_are_found_before_they_are_published() {
    let mut scene = Scene::new(|_| {});
    scene.relay.broker(scene.now(), Broker::Ready(BrokerLimits { frame_max: 50 }));
    scene.commit(1, 1);
    assert!(scene.windows().is_empty());
    assert!(matches!(scene.notices[..], [Notice::Quarantined { reason: Reason::HeaderTooLarge, .. }]));
}

#[test]
fn a_full_limit_stops_reading_and_says_so_when_nothing_moves() {
    let mut scene = Scene::new(|settings| settings.in_flight_events = 3);
    for seq in 1..=3 {
        scene.commit(1, seq);
    }
    assert!(!scene.relay.accepting());
    assert_eq!(
        scene.relay.snapshot(scene.now()).trouble(Duration::MAX),
        None,
        "it has only just become full"
    );
    scene.later(Duration::from_secs(2));
    assert_eq!(scene.relay.snapshot(scene.now()).trouble(Duration::MAX), Some(Trouble::Saturated));
    assert_eq!(scene.settle(|_| Verdict::Confirmed).len(), 3);
    assert!(scene.relay.accepting());
}

#[test]
fn a_limit_of_bytes_admits_one_event_over_it() {
    let mut scene = Scene::new(|settings| settings.in_flight_bytes = 1);
    assert!(scene.relay.accepting());
    scene.commit(1, 1);
    assert!(!scene.relay.accepting());
    scene.settle(|_| Verdict::Confirmed);
    assert!(scene.relay.accepting());
}

#[test]
fn a_drain_publishes_what_is_committed_and_not_the_open_transaction() {
    let mut scene = Scene::new(|settings| settings.lanes = 1);
    scene.commit(1, 1);
    let out = scene.windows().remove(0);
    scene.commit(2, 1);
    let rows = (1..=5).map(|seq| Some(Event { aggregate: 3, seq, poison: false })).collect();
    scene.wal.commit(rows);
    for _ in 0..3 {
        let frame = scene.walsender.next(&scene.wal).unwrap();
        scene.relay.ingest(scene.now(), frame).unwrap();
    }
    scene.relay.drain();
    assert!(!scene.relay.accepting() && !scene.relay.drained());
    scene.answer(&out, |_| Verdict::Confirmed, WindowEnd::Complete);
    let drained = scene.settle(|_| Verdict::Confirmed);
    assert_eq!(drained.iter().map(|event| event.aggregate).collect::<Vec<_>>(), [2]);
    scene.later(Duration::from_millis(20));
    scene.windows();
    assert!(scene.relay.drained());
    assert_eq!(scene.reported, Some(scene.wal.transactions[1].end_lsn));
}

#[test]
fn a_drain_follows_a_transaction_that_is_out_in_part_to_its_end() {
    let mut scene = Scene::new(|_| {});
    scene.wal.commit((1..=5).map(|seq| Some(Event { aggregate: seq, seq: 1, poison: false })).collect());
    for _ in 0..4 {
        let frame = scene.walsender.next(&scene.wal).unwrap();
        scene.relay.ingest(scene.now(), frame).unwrap();
    }
    let out = scene.windows().remove(0);
    assert!(out.messages.len() < 5);
    scene.commit_unread(9, 1);
    scene.relay.drain();
    scene.answer(&out, |_| Verdict::Confirmed, WindowEnd::Complete);
    assert!(scene.relay.accepting() && !scene.relay.drained());
    while scene.relay.accepting() {
        let frame = scene.walsender.next(&scene.wal).unwrap();
        scene.relay.ingest(scene.now(), frame).unwrap();
    }
    assert_eq!(out.messages.len() + scene.settle(|_| Verdict::Confirmed).len(), 5);
    scene.later(Duration::from_millis(20));
    scene.windows();
    assert!(scene.relay.drained());
    assert_eq!(scene.reported, Some(scene.wal.transactions[0].end_lsn));
    assert_eq!(scene.relay.snapshot(scene.now()).unreported_events, 0);
}

#[test]
fn a_drain_follows_no_transaction_without_a_broker() {
    let mut scene = Scene::new(|_| {});
    scene.wal.commit((1..=5).map(|seq| Some(Event { aggregate: seq, seq: 1, poison: false })).collect());
    for _ in 0..4 {
        let frame = scene.walsender.next(&scene.wal).unwrap();
        scene.relay.ingest(scene.now(), frame).unwrap();
    }
    assert_eq!(scene.windows().len(), 1);
    scene.relay.drain();
    scene.relay.broker(scene.now(), Broker::Down);
    assert!(!scene.relay.accepting() && scene.relay.drained());
}

#[test]
fn a_server_that_waits_for_us_while_we_owe_is_left() {
    let mut scene = Scene::new(|_| {});
    scene.commit(1, 1);
    scene.windows();
    for _ in 0..100 {
        let keepalive = Frame::Keepalive { wal_end: Lsn(1), reply_requested: true };
        scene.relay.ingest(scene.now(), keepalive).unwrap();
    }
    scene.windows();
    assert!(scene.left);
}

#[test]
fn so_many_events_go_out_in_a_second_and_no_more() {
    let mut scene = Scene::new(|settings| settings.events_per_second = 100);
    for aggregate in 0..500 {
        scene.commit(aggregate, 1);
    }
    let mut sent = 0;
    for _ in 0..1000 {
        scene.later(Duration::from_millis(1));
        sent += scene.settle(|_| Verdict::Confirmed).len();
    }
    assert!((90..=120).contains(&sent), "{sent} in a second");
}

#[test]
fn with_more_events_of_a_key_out_nothing_is_lost() {
    let mut scene = Scene::new(|settings| settings.events_per_key = 10);
    for seq in 1..=25 {
        scene.commit(1, seq);
    }
    let first = scene.windows().remove(0);
    assert_eq!(first.messages.len(), 10);
    let some = |event: Event| if event.seq.is_multiple_of(3) { Verdict::Nacked } else { Verdict::Confirmed };
    scene.answer(&first, some, WindowEnd::Complete);
    scene.later(Duration::from_secs(1));
    let mut rest: Vec<_> = scene.settle(|_| Verdict::Confirmed).iter().map(|event| event.seq).collect();
    assert_eq!(rest[..3], [3, 6, 9], "what was rejected goes first, in order");
    rest.sort_unstable();
    assert_eq!(rest.len(), 18);
    assert_eq!(scene.relay.snapshot(scene.now()).in_flight_events, 0);
}
