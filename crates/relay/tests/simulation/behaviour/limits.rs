//! Limits: on what is in flight, on the rate, and on the patience of a server.

use std::time::Duration;

use postrider_relay::{Frame, Lsn, Trouble, Verdict};

use super::scene::Scene;

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
