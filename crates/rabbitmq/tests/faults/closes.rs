//! Connections and channels that close: by the link, by the broker, and by a message.

use anyhow::Result;
use postrider_rabbitmq::{OutageKind, Publisher};
use postrider_relay::{Verdict, WindowEnd};
use testenv::{Link, Protocol, RabbitMq, RabbitMqOptions, Turn};

use crate::rig::{Desk, answer, down, message, ready, settings, window};
use crate::{EXCHANGE, batch, confirmed, order};

/// A publisher that is ready, and reaches its broker through the link.
async fn behind_a_link() -> Result<(RabbitMq, Desk, Link, Publisher)> {
    let server = RabbitMq::start(RabbitMqOptions::default()).await?;
    let desk = Desk::open(&server.guest_url()).await?;
    let link = Link::start(server.port(), Protocol::Amqp)?;
    let mut publisher = Publisher::start(settings(&link.through(&server.guest_url()), EXCHANGE)?);
    ready(&mut publisher).await?;
    Ok((server, desk, link, publisher))
}

#[tokio::test]
async fn a_cut_link_and_a_forced_close_are_not_the_messages_fault() -> Result<()> {
    let _turn = Turn::take().await?;
    let (server, desk, link, mut publisher) = behind_a_link().await?;
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
    let (_server, desk, link, mut publisher) = behind_a_link().await?;
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
