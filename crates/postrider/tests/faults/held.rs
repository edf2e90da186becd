//! One event cannot be delivered: it holds the slot, and nothing else.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use testenv::oracle::{Commit, Slot};
use tokio::time::sleep;

use crate::scene::{LIMIT, Scene, play, survives};
use crate::setting::Setting;
use crate::witness::Single;

/// The commit of an event, and the one before it.
async fn around(scene: &Scene, message_id: &str) -> Result<[Commit; 2]> {
    let truth = scene.rig.truth().await?;
    let commits = scene.commits().await?;
    let event = truth.event(message_id).context("find the event in the ledger")?;
    let commit = commits.of(event).context("find the event's commit")?;
    let before = commits.before(commit.commit_lsn).context("find the commit before it")?;
    Ok([before, commit])
}

/// The relay says `held`, and its log names the event by its place.
async fn named(scene: &mut Scene, commit: Commit, words: &str) -> Result<()> {
    scene.relay().wait_reason("held", LIMIT).await?;
    let line = scene.relay().wait_log(&format!("position={}/0", commit.commit_lsn), LIMIT).await?;
    ensure!(line.contains(words), "find {words:?} in {line:?}");
    Ok(())
}

#[tokio::test]
async fn an_unroutable_event_holds_the_slot_and_nobody_else() -> Result<()> {
    let setting = Setting { keys: "order.#", ..Setting::default() };
    play("unroutable", setting, async |scene| {
        scene.watch_commits().await?;
        scene.begin().await?;
        let single = Single { aggregate: "a", seq: 1, exchange: None, routing_key: Some("nowhere") };
        let message_id = scene.write_event(&single).await?;
        // The next of its aggregate would be routed, and waits.
        let next = Single { aggregate: "a", seq: 2, exchange: None, routing_key: Some("order.x") };
        scene.write_event(&next).await?;
        let [before, commit] = around(scene, &message_id).await?;
        named(scene, commit, "no queue is bound").await?;

        let depth = scene.rig.queue.depth().await?;
        scene.wait_published(1000).await?;
        let passed = scene.rig.queue.depth().await? - depth;
        ensure!(passed >= 1000, "see 1,000 others pass: {passed}");
        let sql = scene.rig.sql().await?;
        let reached = |slot: &Slot| slot.confirmed_flush_lsn >= before.end_lsn;
        Slot::wait(&sql, scene.rig.name(), "at the commit before", LIMIT, reached).await?;
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(5) {
            let stands = scene.rig.slot().await?.confirmed_flush_lsn;
            ensure!(
                before.end_lsn <= stands && stands < commit.commit_lsn,
                "find the slot at or behind {} and before {}: it stands at {stands}",
                before.end_lsn,
                commit.commit_lsn
            );
            sleep(Duration::from_millis(100)).await;
        }
        scene.relay().wait_reason("held", LIMIT).await?;

        scene.rig.queue.bind(scene.rig.name(), "nowhere").await?;
        scene.relay().wait_ready(LIMIT).await?;
        // Without a mark no copy is forgiven.
        scene.settle().await.map(drop)
    })
    .await
}

#[tokio::test]
async fn an_event_that_closes_its_channel_is_found_out() -> Result<()> {
    survives("missing exchange", Setting::default(), async |scene| {
        scene.watch_commits().await?;
        let before = connections(scene).await?;
        ensure!(before.len() == 1, "find the relay's connection: {before:?}");
        let missing = scene.rig.scope.named("missing");
        let single = Single { aggregate: "a", seq: 1, exchange: Some(&missing), routing_key: None };
        let message_id = scene.write_event(&single).await?;
        let next = Single { aggregate: "a", seq: 2, exchange: None, routing_key: None };
        scene.write_event(&next).await?;
        let [_, commit] = around(scene, &message_id).await?;
        named(scene, commit, "404").await?;
        scene.wait_published(500).await?;
        ensure!(connections(scene).await? == before, "keep the connection");
        scene.rig.queue.bind(&missing, "#").await?;
        scene.relay().wait_ready(LIMIT).await
    })
    .await
}

/// The relay's connections at the broker, each by the process that serves it.
async fn connections(scene: &Scene) -> Result<Vec<String>> {
    let list = scene.servers.rabbitmq.ctl().run(&["list_connections", "pid", "client_properties"]).await?;
    let ours = format!("postrider {}", scene.rig.name());
    let pid = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
    Ok(list.lines().filter(|line| line.contains(&ours)).map(pid).collect())
}
