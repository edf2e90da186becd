//! The broker breaks, or the way to it.

use std::time::Duration;

use anyhow::{Result, ensure};
use testenv::{Direction, Frame};
use tokio::time::sleep;

use crate::scene::{LIMIT, Scene, play, survives};
use crate::setting::{Setting, size};

#[tokio::test]
async fn the_broker_restarts() -> Result<()> {
    survives("broker restarts", Setting::default(), async |scene| scene.servers.rabbitmq.restart().await)
        .await
}

#[tokio::test]
async fn the_broker_is_killed() -> Result<()> {
    survives("broker killed", Setting::default(), async |scene| {
        scene.servers.rabbitmq.remember_queues().await?;
        scene.servers.rabbitmq.sigkill().await?;
        scene.relay().wait_reason("broker", LIMIT).await?;
        scene.servers.rabbitmq.start_again().await
    })
    .await
}

#[tokio::test]
async fn the_broker_freezes() -> Result<()> {
    survives("broker frozen", Setting::default().set("rabbitmq.heartbeat_s", "2"), async |scene| {
        scene.servers.rabbitmq.pause()?;
        scene.relay().wait_reason("broker", LIMIT).await?;
        scene.servers.rabbitmq.resume()
    })
    .await
}

#[tokio::test]
async fn relay_and_broker_are_killed_together() -> Result<()> {
    survives("relay and broker killed", Setting::default(), async |scene| {
        scene.servers.rabbitmq.remember_queues().await?;
        scene.wait_owed(1).await?;
        let Scene { servers, relays, .. } = scene;
        let relay = relays.last_mut().expect("it runs");
        let (broker, relay) = tokio::join!(servers.rabbitmq.sigkill(), relay.kill());
        broker.and(relay)?;
        scene.servers.rabbitmq.start_again().await?;
        scene.mark_free().await?;
        scene.start().await
    })
    .await
}

#[tokio::test]
async fn the_connection_to_the_broker_is_cut() -> Result<()> {
    survives("broker's link cut", Setting::broker_link(), async |scene| {
        for _ in 0..3 {
            // So slow that much is on the way, and lost with it.
            scene.broker_link().rate(Some(100_000));
            scene.wait_owed(100).await?;
            ensure!(scene.broker_link().cut().await? > 0, "cut a connection");
            scene.broker_link().rate(None);
            scene.wait_published(100).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_connection_to_the_broker_is_cut_inside_a_frame() -> Result<()> {
    type Wanted = fn(&Frame) -> bool;
    let cuts: [(Direction, Wanted); 3] = [
        (Direction::ToServer, Frame::is_body),
        (Direction::ToServer, |frame| frame.is_method(60, 40)),
        (Direction::ToClient, |frame| frame.is_method(60, 80)),
    ];
    survives("broker's link cut inside a frame", Setting::broker_link(), async |scene| {
        for (direction, wanted) in cuts {
            println!("{}", scene.broker_link().cut_inside_frame(direction, wanted).fired(LIMIT).await?);
            scene.wait_published(100).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_operator_closes_the_connection_to_the_broker() -> Result<()> {
    survives("broker closes the connection", Setting::default(), async |scene| {
        scene.servers.rabbitmq.ctl().close_all_connections("a test asks").await?;
        scene.wait_published(100).await
    })
    .await
}

#[tokio::test]
async fn a_short_silence_of_the_broker_costs_nothing() -> Result<()> {
    play("broker's link silent for a while", Setting::broker_link(), async |scene| {
        scene.begin().await?;
        // Long enough for windows to lose their lanes, too short for anything to be given up.
        scene.broker_link().stall();
        sleep(Duration::from_secs(3)).await;
        scene.broker_link().resume();
        // Without a mark no copy is forgiven.
        scene.settle().await.map(drop)
    })
    .await
}

#[tokio::test]
async fn a_long_silence_of_the_broker_ends_the_connection() -> Result<()> {
    let setting = Setting::broker_link().set("rabbitmq.confirm_timeout_ms", "2000");
    survives("broker's link silent for long", setting, async |scene| {
        scene.broker_link().stall();
        scene.relay().wait_reason("broker", LIMIT).await?;
        scene.broker_link().resume();
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_blocked_broker_is_waited_for() -> Result<()> {
    let setting = Setting::broker_link().set("rabbitmq.confirm_timeout_ms", "4000");
    play("broker blocked", setting, async |scene| {
        scene.begin().await?;
        // So slow that windows are on the way when the broker stops reading.
        scene.broker_link().rate(Some(100_000));
        scene.wait_owed(500).await?;
        scene.servers.rabbitmq.block().await?;
        scene.relay().wait_reason("blocked", LIMIT).await?;
        scene.broker_link().rate(None);
        // Longer than a confirm may take: its clock stands still, so that no copy is forgiven.
        sleep(Duration::from_secs(6)).await;
        scene.relay().wait_reason("blocked", LIMIT).await?;
        let status = scene.relay().status().await?;
        ensure!(status["owed"]["windows"].as_u64() > Some(0), "find windows that are out: {status}");
        scene.servers.rabbitmq.unblock().await?;
        scene.settle().await.map(drop)
    })
    .await
}

#[tokio::test]
async fn a_blocked_broker_does_not_hold_up_the_end() -> Result<()> {
    survives("SIGTERM while the broker is blocked", Setting::default(), async |scene| {
        let connection = scene.connections().await?;
        scene.servers.rabbitmq.block().await?;
        scene.relay().wait_reason("blocked", LIMIT).await?;
        // Under load, as memory alarms are, and for longer than heartbeats take to end a connection.
        for _ in 0..size(20, 60) {
            sleep(Duration::from_secs(1)).await;
            scene.relay().wait_reason("blocked", LIMIT).await?;
        }
        ensure!(scene.connections().await? == connection, "keep the connection through the alarm");
        scene.wait_owed(1000).await?;
        // Within `limits.drain_timeout_ms`, which is ten seconds.
        scene.end(Duration::from_secs(15)).await?;
        scene.servers.rabbitmq.unblock().await?;
        scene.mark_free().await?;
        scene.start().await
    })
    .await
}
