//! The relay is told to end.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use testenv::Stop;
use testenv::writer::Backlog;

use crate::scene::{LIMIT, play, survives};
use crate::setting::Setting;

#[tokio::test]
async fn a_relay_that_is_told_to_end_leaves_nothing_to_repeat() -> Result<()> {
    play("drain", Setting::default(), async |scene| {
        scene.begin().await?;
        for _ in 0..3 {
            scene.wait_published(200).await?;
            // Within `limits.drain_timeout_ms`, which is ten seconds.
            scene.end(Duration::from_secs(15)).await?;
            let slot = scene.rig.slot().await?;
            ensure!(slot.active_pid.is_none(), "leave the slot");
            let log = scene.relay().log();
            let said = log
                .iter()
                .find(|line| line.contains("the slot stands"))
                .context("read where the slot stands")?;
            let stands = format!("position={}", slot.confirmed_flush_lsn);
            ensure!(said.contains(&stands), "find {stands} in {said:?}");
            scene.start().await?;
        }
        // Without a mark no copy is forgiven.
        scene.settle().await.map(drop)
    })
    .await
}

#[tokio::test]
async fn a_relay_without_a_broker_ends_when_it_is_told() -> Result<()> {
    survives("drain while the broker is away", Setting::default(), async |scene| {
        scene.servers.rabbitmq.stop().await?;
        scene.relay().wait_reason("broker", LIMIT).await?;
        let owed = scene.wait_owed(100).await?;
        scene.end(Duration::from_secs(15)).await?;
        ensure!(scene.relay().log_text().contains("told to end"), "read that it was told: {owed} were owed");
        scene.servers.rabbitmq.start_again().await?;
        scene.mark_free().await?;
        scene.start().await
    })
    .await
}

#[tokio::test]
async fn a_second_signal_ends_the_relay_at_once() -> Result<()> {
    survives("two signals", Setting::default(), async |scene| {
        scene.servers.rabbitmq.block().await?;
        scene.relay().wait_reason("blocked", LIMIT).await?;
        scene.wait_owed(100).await?;
        scene.relay().signal(Signal::SIGTERM)?;
        scene.relay().wait_log("told to end", LIMIT).await?;
        scene.relay().signal(Signal::SIGINT)?;
        let exit = scene.relay().wait_exit(LIMIT).await?;
        ensure!(exit.code() == Some(130), "end at once: {exit}");
        scene.servers.rabbitmq.unblock().await?;
        scene.mark_free().await?;
        scene.start().await
    })
    .await
}

#[tokio::test]
async fn a_relay_without_postgres_ends_when_it_is_told() -> Result<()> {
    survives("drain while Postgres is away", Setting::postgres_link(), async |scene| {
        scene.servers.postgres.stop(Stop::Immediate).await?;
        scene.postgres_link().refuse().await?;
        scene.relay().wait_reason("postgres", LIMIT).await?;
        scene.end(Duration::from_secs(15)).await?;
        scene.servers.postgres.start_again().await?;
        scene.mark_free().await?;
        scene.postgres_link().accept().await?;
        scene.start().await
    })
    .await
}

#[tokio::test]
async fn a_transaction_too_large_for_the_drain_does_not_hold_up_the_end() -> Result<()> {
    let setting =
        Setting::default().set("limits.events_per_second", "1000").set("limits.drain_timeout_ms", "3000");
    play("drain inside a large transaction", setting, async |scene| {
        scene.start().await?;
        let large = Backlog { transactions: 1, events: 10_000, ..Backlog::default() };
        scene.rig.write_backlog(&large).await?;
        scene.wait_published(500).await?;
        scene.end(Duration::from_secs(10)).await?;
        let log = scene.relay().log_text();
        ensure!(log.contains("may arrive again"), "read how many may repeat");
        scene.mark_free().await?;
        scene.program = scene.program.clone().set("limits.events_per_second", "0");
        scene.start().await?;
        scene.write();
        scene.settle().await.map(drop)
    })
    .await
}
