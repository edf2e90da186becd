//! A drain: it goes to the end of what is out in part, and no further.

use std::time::Duration;

use postrider_relay::{Broker, Verdict, WindowEnd};

use super::scene::Scene;
use crate::wal::Event;

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
