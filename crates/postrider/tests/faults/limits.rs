//! Events that wait count against the limits: others flow until a limit is full, and then the relay reads no more.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::sleep;

use crate::scene::{LIMIT, play};
use crate::setting::Setting;

/// A route that has no queue for as long as it takes.
fn patient() -> Setting {
    Setting { keys: "order.#", ..Setting::default() }.set("retry.attempts", "100000")
}

#[tokio::test]
async fn events_that_wait_fill_the_limits_and_stop_all() -> Result<()> {
    let setting = patient().set("limits.in_flight_events", "60");
    play("saturated", setting, async |scene| {
        scene.begin().await?;
        let walsender = scene.rig.slot().await?.active_pid;
        scene.write_singles(1, 30).await?;
        scene.wait_owed(30).await?;
        scene.wait_published(1000).await?;
        scene.relay().wait_ready(LIMIT).await?;

        scene.write_singles(101, 40).await?;
        scene.relay().wait_reason("saturated", LIMIT).await?;
        ensure!(scene.wait_owed(60).await? == 60, "find the limit full, and not more than full");
        let published = scene.relay().metric("postrider_events_published_total").await?;
        sleep(Duration::from_secs(2)).await;
        let later = scene.relay().metric("postrider_events_published_total").await?;
        ensure!((later - published).abs() < 0.5, "see nothing read: {published}, and {later} later");
        ensure!(scene.quarantine().await?.rows().is_empty(), "put nothing aside");

        scene.rig.queue.bind(scene.rig.name(), "single.#").await?;
        scene.relay().wait_ready(LIMIT).await?;
        ensure!(scene.rig.slot().await?.active_pid == walsender, "keep the session");
        // Without a mark no copy is forgiven.
        scene.settle().await.map(drop)
    })
    .await
}

#[tokio::test]
async fn a_debt_that_grows_old_is_told_and_stops_nobody() -> Result<()> {
    let setting = patient().set("http.stalled_after_ms", "2000");
    play("stalled", setting, async |scene| {
        scene.begin().await?;
        scene.write_singles(1, 1).await?;
        scene.relay().wait_reason("stalled", LIMIT).await?;
        scene.wait_published(1000).await?;
        let unreported = scene.relay().metric("postrider_unreported_events").await?;
        ensure!(unreported >= 1000.0, "see what a crash would repeat: {unreported}");
        scene.rig.queue.bind(scene.rig.name(), "single.#").await?;
        scene.relay().wait_ready(LIMIT).await?;
        scene.settle().await.map(drop)
    })
    .await
}
