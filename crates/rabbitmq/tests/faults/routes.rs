//! One route that is deaf or full while the broker is well: it costs its own messages and no others.

use std::time::Duration;

use anyhow::Result;
use postrider_rabbitmq::Publisher;
use postrider_relay::{Verdict, WindowEnd, WindowId};
use testenv::{RabbitMq, RabbitMqOptions, Turn, eventually};

use crate::rig::{Desk, LIMIT, answer, message, ready, settings, text, window};
use crate::{EXCHANGE, batch, confirmed, order};

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
