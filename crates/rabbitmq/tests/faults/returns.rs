//! Returned messages: each return finds its message, however the confirms come in.

use std::time::Duration;

use anyhow::Result;
use postrider_rabbitmq::Publisher;
use postrider_relay::{Verdict, WindowEnd};
use testenv::{RabbitMq, RabbitMqOptions, Turn};

use crate::EXCHANGE;
use crate::rig::{Desk, answer, message, ready, settings, window};

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
