//! The lanes, and what closes channels and connections.

use std::time::Duration;

use postrider_relay::{Broker, Notice, Reason, Verdict, Window, WindowEnd};

use super::scene::{READY, Scene, events};
use crate::wal::{ELSEWHERE, Event};

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
