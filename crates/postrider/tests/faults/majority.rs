//! A cluster loses its majority: the quorum queue confirms nothing, and the queue beside it never feels that.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use testenv::Cluster;
use testenv::consumer::{Consumer, Queue, QueueKind, drain};
use testenv::oracle::{Kept, State, judge};
use testenv::{Ctl, eventually};
use tokio::time::sleep;

use crate::scene::{LIMIT, play};
use crate::setting::Setting;

const LANES: usize = 4;

/// The channels on the node; nobody but the relay keeps any. `list_channels` would ask the dead nodes too.
async fn channels(ctl: &Ctl) -> Result<usize> {
    let count = ctl.run(&["eval", "length(rabbit_channel:list_local())."]).await?;
    count.trim().parse().with_context(|| format!("read the number of channels: {count:?}"))
}

/// Second by second events of the healthy route are confirmed, and the channels stay few.
async fn flows(consumer: &Consumer, ctl: &Ctl, seconds: usize) -> Result<()> {
    let (mut rates, mut most) = (Vec::new(), 0);
    let mut arrived = consumer.distinct();
    for _ in 0..seconds {
        sleep(Duration::from_secs(1)).await;
        most = most.max(channels(ctl).await?);
        let now = consumer.distinct();
        rates.push(now - arrived);
        arrived = now;
    }
    println!(
        "healthy events while the other queue is deaf, look by look: {rates:?}; at most {most} channels"
    );
    ensure!(rates.iter().all(|rate| *rate >= 100), "see the healthy route flow all the time: {rates:?}");
    // The relay's lanes and strays, and the consumer's one. Beside them those that were closed and that the broker
    // keeps until the majority is back: the first of each lane, their event's second attempt, and a probe for each
    // `retry.max_ms` of the minute that this takes.
    let kept = LANES + 1 + 2;
    ensure!(
        (LANES..=2 * LANES + 1 + kept).contains(&most),
        "find a stray channel a lane at most: {most} channels"
    );
    Ok(())
}

#[tokio::test]
async fn a_queue_without_its_majority_stops_nobody_else() -> Result<()> {
    let mut cluster = Cluster::start().await?;
    let url = cluster.node().guest_url();
    let setting = Setting::default()
        .set("rabbitmq.lanes", "4")
        .set("rabbitmq.confirm_timeout_ms", "3000")
        .set("retry.attempts", "2");
    play("majority lost", setting, async |scene| {
        // The usual broker rests.
        let name = scene.rig.name().to_owned();
        scene.rig.queue.delete().await?;
        scene.rig.queue = Queue::declare(&url, &name, QueueKind::Classic, &[]).await?;
        scene.rig.queue.bind(&name, "order.#").await?;
        let quorum = Queue::declare(&url, &scene.rig.scope.named("quorum"), QueueKind::Quorum, &[]).await?;
        quorum.bind(&name, "single.#").await?;
        scene.program = scene.program.clone().set("rabbitmq.url", &url);
        // Its node is never taken away, so that this is exact.
        let healthy = Consumer::start(&scene.rig.queue).await?;
        scene.begin().await?;
        scene.write_singles(1, 50).await?;
        eventually("the quorum queue to fill", LIMIT, async || {
            Ok((quorum.depth().await? >= 50).then_some(()))
        })
        .await?;

        scene.rig.mark().await?;
        cluster.lose_majority().await?;
        scene.write_singles(101, 200).await?;
        flows(&healthy, cluster.node().ctl(), 10).await?;
        let tried = |row: &&Kept| row.reason == "unconfirmed" && row.attempts == 2;
        let found =
            scene.wait_quarantine("200 events in quarantine", |found| found.rows().len() >= 200).await?;
        ensure!(found.rows().iter().any(|row| tried(&row)), "find an event that was tried twice: {found:?}");
        ensure!(
            found.rows().iter().all(|row| row.reason == "unconfirmed"),
            "find all unconfirmed: {found:?}"
        );
        // The route is known now: new events of it are not tried, but for its probes.
        scene.write_singles(301, 200).await?;
        let found =
            scene.wait_quarantine("400 events in quarantine", |found| found.rows().len() >= 400).await?;
        let untried = found.rows().iter().filter(|row| row.attempts == 0).count();
        println!("{untried} of {} events went to quarantine untried", found.rows().len());
        ensure!(untried >= 190, "find new events put aside at once: only {untried}");
        flows(&healthy, cluster.node().ctl(), 3).await?;

        cluster.regain_majority().await?;
        // Nobody tells the relay: one of the new events finds out, and they flow.
        let mut next = 1001;
        eventually("new events to flow", LIMIT, async || {
            scene.write_singles(next, 1).await?;
            next += 1;
            let waits = scene.relay().status().await?["owed"]["bad_routes"] != 0;
            sleep(Duration::from_millis(200)).await;
            Ok((!waits).then_some(()))
        })
        .await?;
        let put_aside = scene.quarantine().await?.rows().len();
        scene.write_singles(2001, 100).await?;
        scene.wait_published(200).await?;
        let found = scene.quarantine().await?;
        ensure!(found.rows().len() == put_aside, "put no more events aside");
        scene.retry_all().await?;

        let mut writer = scene.writer.take().context("find the shop open")?;
        writer.stop().await?;
        scene.wait_followed().await?;
        // The aggregates of the two queues are different ones, so that it does not matter which is read first.
        let truth = scene.rig.truth().await?;
        let orders = truth.events().filter(|event| event.aggregate_type == "order").count();
        healthy.wait_distinct(orders, LIMIT).await?;
        let mut deliveries = healthy.stop().await?;
        deliveries.extend(drain(&quorum).await?);
        let quarantine = scene.quarantine().await?;
        ensure!(quarantine.in_state(State::Delivered).count() == put_aside, "find all rows delivered");
        let verdict = judge(&truth.with(&quarantine), &deliveries, &[]);
        verdict.expect_clean()?;
        ensure!(verdict.quarantined == 0, "find nothing left in quarantine:\n{verdict}");
        println!("{} events, {} copies", verdict.committed, verdict.duplicates);
        quorum.delete().await?;
        scene.end(LIMIT).await
    })
    .await
}
