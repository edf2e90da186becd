//! A broker that is blocked, killed or frozen: the publisher says which, and answers for every window.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use postrider_rabbitmq::{Event, OutageKind, Publisher, State};
use postrider_relay::{Verdict, WindowEnd, WindowId};
use testenv::{RabbitMq, RabbitMqOptions, Turn, eventually};

use crate::rig::{Desk, LIMIT, answer, down, next, ready, settings, text};
use crate::{EXCHANGE, batch, confirmed, order};

#[tokio::test]
async fn a_blocked_broker_stops_the_clocks_and_nothing_else() -> Result<()> {
    let _turn = Turn::take().await?;
    let server = RabbitMq::start(RabbitMqOptions::default()).await?;
    let desk = Desk::open(&server.guest_url()).await?;
    let mut settings = settings(&server.guest_url(), EXCHANGE)?;
    settings.confirm_timeout = Duration::from_secs(3);
    let mut publisher = Publisher::start(settings.clone());
    let limits = ready(&mut publisher).await?;
    desk.queue(EXCHANGE, "orders", &[]).await?;

    server.block().await?;
    publisher.publish(batch(1, "orders"));
    // The broker says so when it first sees a publish.
    assert!(blocked(&mut publisher).await?.contains("memory"));
    publisher.publish(batch(2, "orders"));
    // Longer than the confirm timeout and the stall together: not a word.
    let word = tokio::time::timeout(Duration::from_secs(6), publisher.next()).await;
    assert!(word.is_err(), "{word:?}");
    server.unblock().await?;
    assert_eq!(ready(&mut publisher).await?, limits);
    let mut done = [answer(&mut publisher).await?, answer(&mut publisher).await?];
    done.sort_by_key(|answer| answer.window);
    for (id, answer) in (1..).zip(&done) {
        assert_eq!(
            (answer.window, &answer.end, confirmed(answer)),
            (WindowId(id), &WindowEnd::Complete, 100)
        );
    }
    assert_eq!(desk.take_all("orders").await?.len(), 200);

    server.block().await?;
    publisher.publish(batch(3, "orders"));
    blocked(&mut publisher).await?;
    // It does not wait for its own limit.
    tokio::time::timeout(LIMIT, publisher.close(60 * LIMIT)).await.context("leave a blocked broker")?;
    Ok(())
}

#[tokio::test]
async fn a_killed_broker_ends_every_window_before_the_outage() -> Result<()> {
    let _turn = Turn::take().await?;
    let mut server = RabbitMq::start(RabbitMqOptions::default()).await?;
    let desk = Desk::open(&server.guest_url()).await?;
    let mut publisher = Publisher::start(settings(&server.guest_url(), EXCHANGE)?);
    ready(&mut publisher).await?;
    desk.queue(EXCHANGE, "orders", &[("x-queue-type", text("quorum"))]).await?;
    desk.queue(EXCHANGE, "deaf", &[]).await?;
    server.remember_queues().await?;
    order(&server, "deaf", "suspend").await?;

    // One window waits for ever; the others keep the broker busy when it dies.
    publisher.publish(batch(0, "deaf"));
    let (mut handed, mut ends) = (1, Vec::new());
    while ends.len() < 200 {
        while handed < ends.len() as u64 + 8 {
            publisher.publish(batch(handed, "orders"));
            handed += 1;
        }
        let answer = answer(&mut publisher).await?;
        if answer.end != WindowEnd::Stalled {
            ends.push(answer);
        }
    }
    server.sigkill().await?;
    let outage = loop {
        match next(&mut publisher).await? {
            Event::Answer(answer) => ends.push(answer),
            Event::State(State::Down(outage)) => break outage,
            Event::State(other) => panic!("the state is {other:?}"),
        }
    };
    assert_eq!(outage.kind, OutageKind::Broken, "{outage}");
    let lost: Vec<_> = ends.iter().filter(|answer| answer.end == WindowEnd::Disconnected).collect();
    assert!(lost.iter().any(|answer| answer.window == WindowId(0) && confirmed(answer) == 0));
    assert_eq!(ends.iter().filter(|answer| answer.end != WindowEnd::Stalled).count() as u64, handed);

    // A window for the dead connection is void; the next connection's are not.
    publisher.publish(batch(handed, "orders"));
    assert_eq!(down(&mut publisher).await?.kind, OutageKind::Unreachable);
    server.start_again().await?;
    let ready = loop {
        match next(&mut publisher).await? {
            Event::State(State::Ready(limits)) => break limits,
            // A booting broker may have further reasons.
            Event::State(State::Down(_)) => {}
            other => panic!("expected ready, got {other:?}"),
        }
    };
    assert_eq!(ready.frame_max, 131_072);
    // A quorum queue may still look for its leader.
    let desk = Desk::open(&server.guest_url()).await?;
    desk.queue(EXCHANGE, "later", &[]).await?;
    publisher.publish(batch(handed + 1, "later"));
    let after = answer(&mut publisher).await?;
    assert_eq!((after.window, confirmed(&after)), (WindowId(handed + 1), 100));

    let stored: HashSet<_> = desk.take_all("orders").await?.into_iter().collect();
    for answer in ends.iter().filter(|answer| answer.window != WindowId(0)) {
        for (at, verdict) in answer.verdicts.iter().enumerate() {
            let id = (answer.window.0 * 100 + at as u64).to_string();
            assert!(*verdict != Verdict::Confirmed || stored.contains(&id), "{id} was confirmed and is lost");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_frozen_broker_is_given_up_after_two_heartbeats() -> Result<()> {
    let _turn = Turn::take().await?;
    let server = RabbitMq::start(RabbitMqOptions::default()).await?;
    let desk = Desk::open(&server.guest_url()).await?;
    let mut settings = settings(&server.guest_url(), EXCHANGE)?;
    settings.heartbeat = Duration::from_secs(2);
    let mut publisher = Publisher::start(settings.clone());
    ready(&mut publisher).await?;
    desk.queue(EXCHANGE, "orders", &[]).await?;
    server.pause()?;
    publisher.publish(batch(1, "orders"));
    let first = answer(&mut publisher).await?;
    assert_eq!((&first.end, confirmed(&first)), (&WindowEnd::Stalled, 0));
    let last = answer(&mut publisher).await?;
    assert_eq!((&last.end, confirmed(&last)), (&WindowEnd::Disconnected, 0));
    let outage = down(&mut publisher).await?;
    assert_eq!(outage.kind, OutageKind::Silent, "{outage}");
    // It accepts connections, and never greets.
    let outage = down(&mut publisher).await?;
    assert_eq!(outage.kind, OutageKind::Silent, "{outage}");
    server.resume()?;
    ready(&mut publisher).await?;

    server.pause()?;
    publisher.publish(batch(2, "orders"));
    tokio::time::timeout(LIMIT, publisher.close(60 * LIMIT)).await.context("leave a frozen broker")?;
    // What was given up leaves no thread behind.
    eventually("lapin's threads to be gone", LIMIT, async || {
        let threads = std::fs::read_dir("/proc/self/task").context("list this process' threads")?;
        let names =
            threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        // The desk has one.
        Ok((names.filter(|name| name.starts_with("lapin-io")).count() == 1).then_some(()))
    })
    .await?;
    server.resume()
}

async fn blocked(publisher: &mut Publisher) -> Result<String> {
    match next(publisher).await? {
        Event::State(State::Blocked { reason }) => Ok(reason),
        other => panic!("expected blocked, got {other:?}"),
    }
}
