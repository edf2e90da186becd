//! Postgres breaks, or the way to it.

use std::time::Duration;

use anyhow::{Result, ensure};
use testenv::{Direction, Frame, Stop};
use tokio::time::sleep;

use crate::scene::{LIMIT, Scene, play, survives};
use crate::setting::Setting;

/// What follows a crash of the server: the slot may be further back than it was, and before the relay is let in, that
/// is marked.
async fn recover(scene: &mut Scene) -> Result<()> {
    scene.servers.postgres.start_again().await?;
    scene.mark_free().await?;
    scene.postgres_link().accept().await?;
    scene.relay().wait_ready(LIMIT).await
}

#[tokio::test]
async fn postgres_restarts_at_once() -> Result<()> {
    survives("Postgres restarts (immediate)", Setting::postgres_link(), async |scene| {
        scene.servers.postgres.stop(Stop::Immediate).await?;
        scene.postgres_link().refuse().await?;
        scene.relay().wait_reason("postgres", LIMIT).await?;
        recover(scene).await
    })
    .await
}

#[tokio::test]
async fn postgres_is_killed() -> Result<()> {
    survives("Postgres killed", Setting::postgres_link(), async |scene| {
        scene.servers.postgres.sigkill().await?;
        scene.postgres_link().refuse().await?;
        recover(scene).await
    })
    .await
}

#[tokio::test]
async fn the_walsender_is_terminated() -> Result<()> {
    survives("walsender terminated", Setting::default(), async |scene| {
        for _ in 0..3 {
            ensure!(scene.servers.postgres.terminate_walsenders().await? > 0, "terminate a walsender");
            scene.wait_published(100).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_server_without_a_free_connection_is_waited_for() -> Result<()> {
    survives("no connection free", Setting::default(), async |scene| {
        let sql = scene.rig.sql().await?;
        sql.batch_execute("alter role postrider_relay connection limit 0").await?;
        sql.batch_execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'postrider_relay'",
        )
        .await?;
        scene.relay().wait_log("53300", LIMIT).await?;
        scene.relay().wait_reason("postgres", LIMIT).await?;
        sql.batch_execute("alter role postrider_relay connection limit -1").await?;
        scene.relay().wait_ready(LIMIT).await
    })
    .await
}

#[tokio::test]
async fn the_connection_to_postgres_is_cut_inside_a_frame() -> Result<()> {
    type Wanted = fn(&Frame) -> bool;
    let cuts: [Wanted; 3] =
        [|frame| frame.is_wal(b'I'), |frame| frame.is_wal(b'C'), |frame| frame.is_wal(b'B')];
    survives("Postgres' link cut inside a frame", Setting::postgres_link(), async |scene| {
        for wanted in cuts {
            let cut = scene.postgres_link().cut_inside_frame(Direction::ToClient, wanted);
            println!("{}", cut.fired(LIMIT).await?);
            scene.wait_published(100).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn all_connections_to_postgres_are_cut() -> Result<()> {
    survives("Postgres' link cut", Setting::postgres_link(), async |scene| {
        for _ in 0..3 {
            ensure!(scene.postgres_link().cut().await? > 1, "cut the stream and what stands beside it");
            scene.wait_published(100).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_short_silence_of_postgres_costs_nothing() -> Result<()> {
    play("Postgres' link silent for a while", Setting::postgres_link(), async |scene| {
        scene.begin().await?;
        scene.postgres_link().stall();
        sleep(Duration::from_secs(3)).await;
        scene.postgres_link().resume();
        // Without a mark no copy is forgiven.
        scene.settle().await.map(drop)
    })
    .await
}

/// A server that gives up a silent relay after four seconds, and tells so to a relay that wants to know.
fn impatient() -> Setting {
    Setting { session: vec!["wal_sender_timeout=4s"], ..Setting::postgres_link() }
}

#[tokio::test]
async fn a_long_silence_of_postgres_ends_the_session() -> Result<()> {
    survives("Postgres' link silent for long", impatient(), async |scene| {
        scene.postgres_link().stall();
        scene.relay().wait_reason("postgres", LIMIT).await?;
        scene.postgres_link().resume();
        scene.relay().wait_ready(LIMIT).await
    })
    .await
}

#[tokio::test]
async fn a_host_of_postgres_that_is_lost_and_comes_back_is_found_again() -> Result<()> {
    survives("Postgres' link silent, then refused", impatient(), async |scene| {
        scene.postgres_link().stall();
        scene.relay().wait_reason("postgres", LIMIT).await?;
        scene.postgres_link().refuse().await?;
        scene.postgres_link().cut().await?;
        scene.postgres_link().resume();
        sleep(Duration::from_secs(1)).await;
        scene.postgres_link().accept().await?;
        scene.relay().wait_ready(LIMIT).await
    })
    .await
}

#[tokio::test]
async fn a_relay_that_is_full_keeps_its_session() -> Result<()> {
    let setting = impatient().set("limits.in_flight_events", "50");
    play("broker away for longer than wal_sender_timeout", setting, async |scene| {
        scene.begin().await?;
        // What is out when the broker goes may be there already and come again.
        scene.rig.mark().await?;
        scene.servers.rabbitmq.stop().await?;
        scene.wait_owed(50).await?;
        let walsender = scene.rig.slot().await?.active_pid;
        // Three times the server's patience, with frames that nobody takes.
        sleep(Duration::from_secs(12)).await;
        scene.relay().wait_reason("broker", LIMIT).await?;
        ensure!(walsender.is_some() && scene.rig.slot().await?.active_pid == walsender, "keep the session");
        scene.servers.rabbitmq.start_again().await?;
        scene.settle().await.map(drop)
    })
    .await
}
