//! A fast shutdown of Postgres waits for walsenders, so the relay must let go in whatever state it is.

use std::time::Duration;

use anyhow::Result;
use testenv::Stop;
use testenv::writer::Backlog;

use crate::scene::{LIMIT, Scene, play};
use crate::setting::Setting;

/// A few seconds; a relay that holds the server up does so until it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Stops the server; before the relay is let in again, the position is marked that the server has kept.
async fn stop_and_start(scene: &mut Scene) -> Result<()> {
    stop(scene).await?;
    start(scene).await
}

async fn stop(scene: &mut Scene) -> Result<()> {
    println!("pg_ctl stop: {:.1?}", scene.servers.postgres.stop_within(Stop::Fast, STOP_LIMIT).await?);
    scene.postgres_link().refuse().await
}

async fn start(scene: &mut Scene) -> Result<()> {
    scene.servers.postgres.start_again().await?;
    scene.mark_free().await?;
    scene.postgres_link().accept().await?;
    scene.relay().wait_ready(LIMIT).await
}

#[tokio::test]
async fn an_idle_relay_does_not_hold_up_a_shutdown() -> Result<()> {
    play("stop, idle", Setting::postgres_link(), async |scene| {
        scene.begin().await?;
        let mut writer = scene.writer.take().expect("it has begun");
        writer.stop().await?;
        scene.wait_followed().await?;
        stop_and_start(scene).await?;
        scene.write();
        scene.settle().await.map(drop)
    })
    .await
}

#[tokio::test]
async fn a_relay_under_load_does_not_hold_up_a_shutdown() -> Result<()> {
    play("stop, under load", Setting::postgres_link(), async |scene| {
        scene.begin().await?;
        stop_and_start(scene).await?;
        scene.settle().await.map(drop)
    })
    .await
}

#[tokio::test]
async fn a_relay_without_a_broker_does_not_hold_up_a_shutdown() -> Result<()> {
    play("stop, broker down", Setting::postgres_link(), async |scene| {
        scene.begin().await?;
        scene.servers.rabbitmq.stop().await?;
        println!("owed: {}", scene.wait_owed(1).await?);
        stop(scene).await?;
        scene.servers.rabbitmq.start_again().await?;
        start(scene).await?;
        scene.settle().await.map(drop)
    })
    .await
}

#[tokio::test]
async fn a_saturated_relay_does_not_hold_up_a_shutdown() -> Result<()> {
    let setting = Setting::postgres_link().set("limits.in_flight_events", "50");
    play("stop, saturated", setting, async |scene| {
        scene.begin().await?;
        scene.servers.rabbitmq.stop().await?;
        // More than the sockets between hold.
        scene.rig.write_backlog(&Backlog { transactions: 10_000, ..Backlog::default() }).await?;
        println!("owed: {}", scene.wait_owed(50).await?);
        stop(scene).await?;
        scene.servers.rabbitmq.start_again().await?;
        start(scene).await?;
        scene.settle().await.map(drop)
    })
    .await
}
