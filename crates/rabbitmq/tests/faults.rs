//! Ring `fault`: brokers that are blocked, frozen, killed, cut off, or deaf on one route.

mod rig;

use std::time::Duration;

use anyhow::{Context as _, Result};
use postrider_rabbitmq::{Event, OutageKind, Publisher, State};
use postrider_relay::{Answer, Verdict, Window, WindowEnd, WindowId};
use rig::{Desk, LIMIT, answer, down, message, next, ready, settings, text, window};
use testenv::{Link, Protocol, RabbitMq, RabbitMqOptions, Turn, eventually};

const EXCHANGE: &str = "postrider";

fn batch(id: u64, queue: &str) -> Window {
    let first = u32::try_from(id).expect("few windows") * 100;
    window(id, (first..first + 100).map(|number| message(number, EXCHANGE, &format!("{queue}.x"))))
}

fn confirmed(answer: &Answer) -> usize {
    answer.verdicts.iter().filter(|verdict| **verdict == Verdict::Confirmed).count()
}

async fn blocked(publisher: &mut Publisher) -> Result<String> {
    match next(publisher).await? {
        Event::State(State::Blocked { reason }) => Ok(reason),
        other => panic!("expected blocked, got {other:?}"),
    }
}

/// Suspends (or resumes) a queue's process: it confirms nothing, as a quorum queue without a majority.
async fn order(server: &RabbitMq, queue: &str, what: &str) -> Result<()> {
    let call = format!(
        "{{ok, Queue}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"{queue}\">>)), \
         sys:{what}(amqqueue:get_pid(Queue))."
    );
    server.ctl().run(&["eval", &call]).await.map(drop)
}

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

    let stored: std::collections::HashSet<_> = desk.take_all("orders").await?.into_iter().collect();
    for answer in ends.iter().filter(|answer| answer.window != WindowId(0)) {
        for (at, verdict) in answer.verdicts.iter().enumerate() {
            let id = (answer.window.0 * 100 + at as u64).to_string();
            assert!(*verdict != Verdict::Confirmed || stored.contains(&id), "{id} was confirmed and is lost");
        }
    }
    Ok(())
}

#[tokio::test]
async fn returns_find_their_messages_when_confirms_come_in_heaps() -> Result<()> {
    let _turn = Turn::take().await?;
    let server = RabbitMq::start(RabbitMqOptions::default()).await?;
    let desk = Desk::open(&server.guest_url()).await?;
    let mut publisher = Publisher::start(settings(&server.guest_url(), EXCHANGE)?);
    ready(&mut publisher).await?;
    desk.swift_queue(EXCHANGE, "orders").await?;
    let lost = |number: u32| number % 7 == 3 || number % 100 < 20;
    for round in 0..20 {
        // A broker that finds whole windows in its socket confirms many at once, and lapin then hands returns to
        // whichever confirm it takes first.
        server.pause()?;
        for id in round * 8..round * 8 + 8 {
            let first = u32::try_from(id * 100)?;
            let route = |number| if lost(number) { "nobody.x" } else { "orders.x" };
            let messages = (first..first + 100).map(|number| message(number, EXCHANGE, route(number)));
            publisher.publish(window(id, messages));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.resume()?;
        let mut open = 8;
        while open > 0 {
            let answer = answer(&mut publisher).await?;
            if answer.end == WindowEnd::Stalled {
                continue;
            }
            open -= 1;
            assert_eq!(answer.end, WindowEnd::Complete);
            for (number, verdict) in (u32::try_from(answer.window.0 * 100)?..).zip(&answer.verdicts) {
                let expected =
                    if lost(number) { Verdict::Returned { code: 312 } } else { Verdict::Confirmed };
                assert_eq!(*verdict, expected, "message {number}");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_deaf_route_gives_up_its_lanes_and_then_its_windows() -> Result<()> {
    let _turn = Turn::take().await?;
    let server = RabbitMq::start(RabbitMqOptions::default()).await?;
    let desk = Desk::open(&server.guest_url()).await?;
    let mut settings = settings(&server.guest_url(), EXCHANGE)?;
    (settings.lanes, settings.confirm_timeout) = (2, Duration::from_secs(10));
    let mut publisher = Publisher::start(settings);
    ready(&mut publisher).await?;
    desk.queue(EXCHANGE, "orders", &[]).await?;
    desk.queue(EXCHANGE, "deaf", &[]).await?;
    order(&server, "deaf", "suspend").await?;

    // A window in which every third message is for the deaf route, and every seventh for none.
    let mixed = |id: u64| {
        let first = u32::try_from(id).expect("few windows") * 100;
        window(
            id,
            (first..first + 100).map(|number| {
                let queue = if number % 3 == 0 {
                    "deaf"
                } else if number % 7 == 0 {
                    "nobody"
                } else {
                    "orders"
                };
                message(number, EXCHANGE, &format!("{queue}.x"))
            }),
        )
    };
    let expected = |id: u64| -> Vec<Verdict> {
        let verdict = |number: u64| match number {
            number if number % 3 == 0 => Verdict::Unanswered,
            number if number % 7 == 0 => Verdict::Returned { code: 312 },
            _ => Verdict::Confirmed,
        };
        (id * 100..id * 100 + 100).map(verdict).collect()
    };
    publisher.publish(mixed(1));
    publisher.publish(mixed(2));
    for _ in 0..2 {
        let stalled = answer(&mut publisher).await?;
        assert_eq!(stalled.end, WindowEnd::Stalled);
        assert_eq!(stalled.verdicts, expected(stalled.window.0), "what resolved is exact");
    }
    // Both lanes are free again, and others flow.
    for id in 10..30 {
        publisher.publish(batch(id, "orders"));
        let answer = answer(&mut publisher).await?;
        assert_eq!((answer.window, confirmed(&answer)), (WindowId(id), 100));
    }
    // There are as many strays as lanes: this one keeps its lane until a stray is overdue.
    publisher.publish(mixed(3));
    let ends =
        [(1, WindowEnd::Overdue), (2, WindowEnd::Overdue), (3, WindowEnd::Stalled), (3, WindowEnd::Overdue)];
    for (id, end) in ends {
        let answer = answer(&mut publisher).await?;
        assert_eq!((answer.window, &answer.end), (WindowId(id), &end));
        assert_eq!(answer.verdicts, expected(id));
    }
    publisher.publish(mixed(4));
    assert_eq!(answer(&mut publisher).await?.end, WindowEnd::Stalled);
    order(&server, "deaf", "resume").await?;
    let late = answer(&mut publisher).await?;
    assert_eq!((late.window, &late.end), (WindowId(4), &WindowEnd::Complete));
    assert_eq!(late.verdicts.iter().filter(|verdict| **verdict == Verdict::Unanswered).count(), 0);
    // The channels that were given up are closed: below the headline stand two lanes and the desk's.
    eventually("the old channels to be closed", LIMIT, async || {
        let channels = server.ctl().run(&["list_channels", "number"]).await?;
        Ok((channels.lines().count() == 4).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_queue_whose_limit_is_lifted_takes_messages_again() -> Result<()> {
    let _turn = Turn::take().await?;
    let server = RabbitMq::start(RabbitMqOptions::default()).await?;
    let desk = Desk::open(&server.guest_url()).await?;
    desk.exchange(EXCHANGE).await?;
    desk.queue(EXCHANGE, "orders", &[("x-queue-type", text("quorum"))]).await?;
    let full = r#"{"max-length": 1, "overflow": "reject-publish"}"#;
    server.ctl().run(&["set_policy", "--apply-to", "queues", "full", "^orders$", full]).await?;
    let mut filler = Publisher::start(settings(&server.guest_url(), EXCHANGE)?);
    ready(&mut filler).await?;
    filler.publish(batch(1, "orders"));
    answer(&mut filler).await?;
    // This one knows the queue only as full.
    let mut settings = settings(&server.guest_url(), EXCHANGE)?;
    settings.lanes = 2;
    let mut publisher = Publisher::start(settings);
    ready(&mut publisher).await?;
    publisher.publish(batch(2, "orders"));
    let refused = answer(&mut publisher).await?;
    assert!(refused.verdicts.iter().all(|verdict| *verdict == Verdict::Nacked), "{refused:?}");
    server.ctl().run(&["clear_policy", "full"]).await?;
    let mut id = 2;
    eventually("the queue to take a whole window", LIMIT, async || {
        id += 1;
        publisher.publish(batch(id, "orders"));
        Ok((confirmed(&answer(&mut publisher).await?) == 100).then_some(()))
    })
    .await?;
    filler.close(LIMIT).await;
    publisher.close(LIMIT).await;
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

#[tokio::test]
async fn a_cut_link_and_a_forced_close_are_not_the_messages_fault() -> Result<()> {
    let _turn = Turn::take().await?;
    let server = RabbitMq::start(RabbitMqOptions::default()).await?;
    let desk = Desk::open(&server.guest_url()).await?;
    let link = Link::start(server.port(), Protocol::Amqp)?;
    let mut publisher = Publisher::start(settings(&link.through(&server.guest_url()), EXCHANGE)?);
    ready(&mut publisher).await?;
    desk.queue(EXCHANGE, "deaf", &[]).await?;
    order(&server, "deaf", "suspend").await?;
    publisher.publish(batch(1, "deaf"));
    assert_eq!(answer(&mut publisher).await?.end, WindowEnd::Stalled);
    link.cut().await?;
    assert_eq!(answer(&mut publisher).await?.end, WindowEnd::Disconnected);
    assert_eq!(down(&mut publisher).await?.kind, OutageKind::Broken);
    ready(&mut publisher).await?;

    publisher.publish(batch(2, "deaf"));
    assert_eq!(answer(&mut publisher).await?.end, WindowEnd::Stalled);
    server.ctl().close_all_connections("a test asks").await?;
    assert_eq!(answer(&mut publisher).await?.end, WindowEnd::Disconnected);
    let outage = down(&mut publisher).await?;
    assert_eq!(outage.kind, OutageKind::Closed);
    assert!(outage.reason.contains("320") && outage.reason.contains("a test asks"), "{outage}");
    ready(&mut publisher).await?;
    Ok(())
}

#[tokio::test]
async fn a_message_that_closes_the_connection_is_told_with_its_code() -> Result<()> {
    let _turn = Turn::take().await?;
    let server = RabbitMq::start(RabbitMqOptions::default()).await?;
    let mut publisher = Publisher::start(settings(&server.guest_url(), EXCHANGE)?);
    let limits = ready(&mut publisher).await?;
    let mut headed = message(1, EXCHANGE, "x");
    let long = "h".repeat(limits.frame_max as usize);
    headed.headers = vec![("long".into(), postrider_relay::HeaderValue::Text(long.into()))];
    publisher.publish(window(1, [headed]));
    let end = answer(&mut publisher).await?;
    assert_eq!(end.verdicts, [Verdict::Unanswered]);
    assert!(matches!(end.end, WindowEnd::ConnectionClosed { code: 501, .. }), "{:?}", end.end);
    assert_eq!(down(&mut publisher).await?.kind, OutageKind::Closed);
    ready(&mut publisher).await?;
    Ok(())
}

#[tokio::test]
async fn a_channel_that_closes_while_its_window_is_written_closes_alone() -> Result<()> {
    let _turn = Turn::take().await?;
    let server = RabbitMq::start(RabbitMqOptions::default()).await?;
    let desk = Desk::open(&server.guest_url()).await?;
    let link = Link::start(server.port(), Protocol::Amqp)?;
    let mut publisher = Publisher::start(settings(&link.through(&server.guest_url()), EXCHANGE)?);
    ready(&mut publisher).await?;
    desk.queue(EXCHANGE, "orders", &[]).await?;
    link.rate(Some(4_000_000));
    let large = |number: u32, exchange: &str| {
        let mut message = message(number, exchange, "orders.x");
        message.body = vec![b'x'; 100_000].into();
        message
    };
    publisher.publish(window(1, (0..120).map(|n| large(n, if n == 0 { "gone" } else { EXCHANGE }))));
    publisher.publish(window(2, (200..320).map(|n| large(n, EXCHANGE))));
    let mut ends = Vec::new();
    while ends.len() < 2 {
        let answer = answer(&mut publisher).await?;
        if answer.end != WindowEnd::Stalled {
            ends.push(answer);
        }
    }
    ends.sort_by_key(|answer| answer.window);
    assert!(matches!(ends[0].end, WindowEnd::ChannelClosed { code: 404, .. }), "{:?}", ends[0].end);
    // lapin may write on to the closed channel, and the broker then closes the connection (504): the other window
    // loses its lane, and no event an attempt.
    let other = (&ends[1].end, confirmed(&ends[1]));
    assert!(matches!(other, (WindowEnd::Complete, 120) | (WindowEnd::Disconnected, _)), "{other:?}");
    Ok(())
}
