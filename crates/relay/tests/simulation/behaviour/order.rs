//! The order of an aggregate's events, with one of them out and with several.

use std::time::Duration;

use postrider_relay::{Verdict, WindowEnd};

use super::scene::{Scene, events};
use crate::wal::Event;

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
