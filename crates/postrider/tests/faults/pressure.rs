//! A broker that takes little: a queue of twenty places, and a route that is there only now and then.
//!
//! Whatever is refused or returned goes again, and five aggregates keep their order through all of it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use testenv::consumer::{Consumer, QueueKind, Value};
use testenv::oracle::{Fault, Verdict};
use testenv::writer::Backlog;
use tokio::time::sleep;

use crate::scene::{LIMIT, Scene, play};
use crate::setting::Setting;

/// For how long the consumer is slow.
const SLOW: Duration = Duration::from_secs(8);
/// Nothing is poison here, however often it is refused.
const ATTEMPTS: &str = "100000";

fn small_queue(kind: QueueKind) -> Setting {
    let arguments =
        vec![("x-max-length", Value::Long(20)), ("x-overflow", Value::Text("reject-publish".to_owned()))];
    Setting { queue: kind, arguments, ..Setting::default() }.set("retry.attempts", ATTEMPTS)
}

/// Five aggregates with 300 events each.
fn orders() -> Backlog {
    Backlog { transactions: 300, events: 5, orders: 5, ..Backlog::default() }
}

/// A consumer that takes one message at a time, with a new connection for each.
async fn consume_slowly(scene: &mut Scene, time: Duration) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < time {
        scene.taken.extend(scene.rig.queue.take().await?);
    }
    Ok(())
}

/// The relay and the events, a slow consumer, whatever `harm` does meanwhile, and then a quick consumer.
async fn squeeze(
    row: &str,
    setting: Setting,
    harm: impl AsyncFnOnce(&mut Scene) -> Result<()>,
) -> Result<Verdict> {
    let mut found = Verdict::default();
    play(row, setting, async |scene| {
        scene.start().await?;
        scene.rig.write_backlog(&orders()).await?;
        harm(scene).await?;
        let metrics = scene.relay().metrics().await?;
        let retried = |reason| metrics.sum("postrider_events_retried_total", &[("reason", reason)]);
        println!(
            "{row}: {} taken slowly, {} refused, {} returned",
            scene.taken.len(),
            retried("nacked")?,
            retried("unrouted")?
        );
        scene.consumer = Some(Consumer::start(&scene.rig.queue).await?);
        found = scene.judge(&[], LIMIT).await?.0;
        scene.end(LIMIT).await
    })
    .await?;
    println!("{row}: {} out of order", found.out_of_order.len());
    Ok(found)
}

async fn ensure_refused(scene: &Scene) -> Result<()> {
    let metrics = scene.relays.last().context("find a relay")?.metrics().await?;
    let refused = metrics.sum("postrider_events_retried_total", &[("reason", "nacked")])?;
    ensure!(refused > 0.0, "see events refused");
    Ok(())
}

#[tokio::test]
async fn a_small_queue_with_a_slow_consumer_keeps_the_order() -> Result<()> {
    let verdict = squeeze("small queue", small_queue(QueueKind::Classic), async |scene| {
        consume_slowly(scene, SLOW).await?;
        ensure_refused(scene).await
    });
    let verdict = verdict.await?;
    verdict.expect_clean()?;
    ensure!(verdict.duplicates == 0, "find no copy: nothing had failed");
    Ok(())
}

#[tokio::test]
async fn with_more_events_of_a_key_out_a_small_queue_costs_the_order_and_nothing_else() -> Result<()> {
    let setting = small_queue(QueueKind::Classic).set("rabbitmq.events_per_key", "100");
    let mut verdict = squeeze("small queue, 100 events of a key", setting, async |scene| {
        consume_slowly(scene, SLOW).await?;
        ensure_refused(scene).await
    })
    .await?;
    ensure!(!verdict.out_of_order.is_empty(), "see what the setting gives up");
    verdict.out_of_order.clear();
    verdict.expect_clean()?;
    ensure!(verdict.duplicates == 0, "find no copy: nothing had failed");
    Ok(())
}

#[tokio::test]
async fn a_queue_that_is_bound_now_and_then_keeps_the_order() -> Result<()> {
    let setting = Setting { queue: QueueKind::Classic, ..Setting::default() }
        .set("retry.attempts", ATTEMPTS)
        // It lasts for as long as the binding comes and goes.
        .set("limits.events_per_second", "400");
    let verdict = squeeze("bound now and then", setting, async |scene| {
        let mut random = fastrand::Rng::with_seed(20);
        let name = scene.rig.name().to_owned();
        for _ in 0..10 {
            scene.rig.queue.unbind(&name, "#").await?;
            sleep(Duration::from_millis(random.u64(50..500))).await;
            scene.rig.queue.bind(&name, "#").await?;
            sleep(Duration::from_millis(random.u64(50..500))).await;
        }
        let returned = scene.relay().metrics().await?;
        let returned = returned.sum("postrider_events_retried_total", &[("reason", "unrouted")])?;
        ensure!(returned > 0.0, "see events returned");
        Ok(())
    });
    let verdict = verdict.await?;
    verdict.expect_clean()?;
    ensure!(verdict.duplicates == 0, "find no copy: nothing had failed");
    Ok(())
}

#[tokio::test]
async fn a_small_queue_whose_broker_is_killed_keeps_the_order() -> Result<()> {
    let verdict = squeeze("small queue, broker killed", small_queue(QueueKind::Quorum), async |scene| {
        consume_slowly(scene, SLOW / 4).await?;
        scene.servers.rabbitmq.remember_queues().await?;
        // The queue is full: it takes no mark.
        let persisted = scene.rig.slot().await?.confirmed_flush_lsn;
        scene.faults.push(Fault { arrived: scene.taken.len(), persisted });
        scene.servers.rabbitmq.sigkill().await?;
        scene.relay().wait_reason("broker", LIMIT).await?;
        scene.servers.rabbitmq.start_again().await?;
        scene.relay().wait_ready(LIMIT).await?;
        consume_slowly(scene, SLOW / 2).await?;
        ensure_refused(scene).await
    });
    verdict.await?.expect_clean()
}
