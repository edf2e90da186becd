//! Memory is bounded by the limits and the largest row (P5), whatever the size of a transaction or the length of an
//! outage; and Postgres is answered all the time.
//!
//! The rows are smaller than they could be; `POSTRIDER_FAULTS=full` makes them as large as the promise is meant,
//! which takes half an hour.

use std::time::Duration;

use anyhow::{Result, ensure};
use testenv::eventually;
use testenv::writer::Backlog;
use tokio::time::{Instant, sleep};

use crate::scene::{LIMIT, Scene, play, survives};
use crate::setting::{Setting, size};

/// With the default limits.
const PEAK_BYTES: u64 = 192 << 20;
const LARGEST_ROW: u32 = 50_000_000;

fn limit() -> Duration {
    LIMIT * size(1, 10)
}

/// A server that gives up whoever is silent for three seconds.
fn impatient() -> Setting {
    Setting { session: vec!["wal_sender_timeout=3s"], ..Setting::default() }
}

/// So many events arrive once, over one session, and the relay stays below `peak`.
async fn stays_below(
    scene: &mut Scene,
    row: &str,
    events: u32,
    walsender: Option<i32>,
    peak: u64,
) -> Result<()> {
    eventually("all to be published", limit(), async || {
        let published = scene.relay().metric("postrider_events_published_total").await?;
        Ok((published >= f64::from(events)).then_some(()))
    })
    .await?;
    let (verdict, _) = scene.judge(&[], limit()).await?;
    let used = scene.relay().usage()?.peak_rss_bytes;
    println!("{row}: {} events, peak RSS {} MiB of {} MiB", verdict.committed, used >> 20, peak >> 20);
    // Without a mark no copy is forgiven.
    verdict.expect_clean()?;
    ensure!(used <= peak, "stay below {peak} bytes: {used}");
    let now = scene.rig.slot().await?.active_pid;
    ensure!(walsender.is_some() && walsender == now, "keep the session of {walsender:?}: it is {now:?}");
    let log = scene.servers.postgres.log();
    let timeout = log
        .lines()
        .find(|line| line.contains(scene.rig.name()) && line.contains("due to replication timeout"));
    ensure!(timeout.is_none(), "find no timeout in the log: {timeout:?}");
    scene.end(LIMIT).await
}

#[tokio::test]
async fn a_large_transaction_and_a_slow_broker_take_little_memory() -> Result<()> {
    // In the short form so slow that the relay is full for several times the server's patience.
    let [events, rate] = [size(36_000, 200_000), size(2_000, 1_000)];
    let mut setting = impatient();
    setting.configuration.push(("limits.events_per_second", if rate == 1_000 { "1000" } else { "2000" }));
    play("large transaction", setting, async |scene| {
        scene.start().await?;
        let walsender = scene.rig.slot().await?.active_pid;
        scene.rig.write_backlog(&Backlog { transactions: 1, events, ..Backlog::default() }).await?;
        stays_below(scene, "large transaction", events, walsender, PEAK_BYTES).await
    })
    .await
}

#[tokio::test]
async fn large_rows_take_little_memory() -> Result<()> {
    play("large rows", impatient(), async |scene| {
        scene.start().await?;
        let walsender = scene.rig.slot().await?.active_pid;
        let events = size(200, 2_000);
        let rows =
            Backlog { transactions: 1, events, orders: 100, payload_bytes: 1_000_000, ..Backlog::default() };
        scene.rig.write_backlog(&rows).await?;
        stays_below(scene, "large rows", events, walsender, PEAK_BYTES).await
    })
    .await
}

#[tokio::test]
async fn a_huge_row_takes_four_times_its_size() -> Result<()> {
    let setting = impatient().set("rabbitmq.message_bytes_max", "67108864");
    play("huge row", setting, async |scene| {
        scene.start().await?;
        let walsender = scene.rig.slot().await?.active_pid;
        let row = Backlog { transactions: 1, events: 1, payload_bytes: LARGEST_ROW, ..Backlog::default() };
        scene.rig.write_backlog(&row).await?;
        let peak = PEAK_BYTES + 4 * u64::from(LARGEST_ROW);
        stays_below(scene, "huge row", 1, walsender, peak).await
    })
    .await
}

#[tokio::test]
async fn a_huge_row_that_no_broker_takes_goes_to_quarantine_in_little_memory() -> Result<()> {
    play("huge poisonous row", impatient(), async |scene| {
        scene.start().await?;
        let row = Backlog { transactions: 1, events: 1, payload_bytes: LARGEST_ROW, ..Backlog::default() };
        scene.rig.write_backlog(&row).await?;
        let found = scene.wait_quarantine("the row in quarantine", |found| found.undelivered() == 1).await?;
        ensure!(found.rows()[0].reason == "message_too_large", "find why: {found:?}");
        let used = scene.relay().usage()?.peak_rss_bytes;
        println!("huge poisonous row: peak RSS {} MiB", used >> 20);
        ensure!(used <= PEAK_BYTES + 4 * u64::from(LARGEST_ROW), "stay below the limit: {used}");
        let id = found.rows()[0].message_id.clone().unwrap_or_default();
        scene.settle_beside(&[&id]).await.map(drop)
    })
    .await
}

#[tokio::test]
async fn an_outage_under_load_takes_little_memory() -> Result<()> {
    survives("outage under load", impatient(), async |scene| {
        scene.servers.rabbitmq.stop().await?;
        let walsender = scene.rig.slot().await?.active_pid;
        // The shop sells on beside it.
        let outage = Duration::from_secs(size(6, 600).into());
        let begun = Instant::now();
        while begun.elapsed() < outage {
            let load = Backlog { transactions: 10_000, orders: 5_000, ..Backlog::default() };
            scene.rig.write_backlog(&load).await?;
            sleep(outage / 50).await;
        }
        scene.relay().wait_reason("broker", LIMIT).await?;
        let status = scene.relay().status().await?;
        println!("at the end of the outage: {}", status["owed"]);
        let now = scene.rig.slot().await?.active_pid;
        ensure!(walsender.is_some() && walsender == now, "keep the session of {walsender:?}: it is {now:?}");
        scene.servers.rabbitmq.start_again().await?;
        scene.relay().wait_ready(LIMIT).await?;
        let mut writer = scene.writer.take().expect("it has begun");
        writer.stop().await?;
        eventually("the relay to catch up", limit(), async || {
            Ok((scene.relay().status().await?["owed"]["events"] == 0).then_some(()))
        })
        .await?;
        let used = scene.relay().usage()?.peak_rss_bytes;
        println!("outage under load: peak RSS {} MiB", used >> 20);
        ensure!(used <= PEAK_BYTES, "stay below {PEAK_BYTES} bytes: {used}");
        Ok(())
    })
    .await
}
