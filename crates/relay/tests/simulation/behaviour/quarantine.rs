//! What goes into the quarantine, and how it comes back.

use std::time::Duration;

use postrider_relay::{Broker, BrokerLimits, Notice, Reason, Trouble, Verdict, WindowEnd};

use super::scene::{Scene, events};
use crate::wal::Event;

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
fn headers_over_the_frame_are_found_before_they_are_published() {
    let mut scene = Scene::new(|_| {});
    scene.relay.broker(scene.now(), Broker::Ready(BrokerLimits { frame_max: 50 }));
    scene.commit(1, 1);
    assert!(scene.windows().is_empty());
    assert!(matches!(scene.notices[..], [Notice::Quarantined { reason: Reason::HeaderTooLarge, .. }]));
}
