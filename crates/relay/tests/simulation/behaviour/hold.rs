//! A relay that holds: after a burst, or because it is set to halt.

use std::time::Duration;

use postrider_relay::{HoldCause, QuarantineScope, Trouble, Verdict};

use super::scene::{RETURNED, Scene, unroutable};
use crate::wal::route;

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
