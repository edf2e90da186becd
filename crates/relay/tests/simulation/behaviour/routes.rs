//! Routes on which nothing is delivered: they hold up themselves and nothing else.

use std::time::Duration;

use postrider_relay::{Notice, Reason, Unrouted, Verdict, WindowEnd};

use super::scene::{Scene, events, unroutable};

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
