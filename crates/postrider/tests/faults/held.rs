//! One event cannot be delivered: it is owed until its row in quarantine is committed, and nobody else waits for it.

use anyhow::{Context as _, Result, ensure};
use testenv::oracle::{Commit, Slot};

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

/// Watches the slot for as long as the event has no row: it gets to the commit before, and no further.
async fn stands_before(scene: &Scene, message_id: &str, until: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let [before, commit] = around(scene, message_id).await?;
    let sql = scene.rig.sql().await?;
    let reached = |slot: &Slot| slot.confirmed_flush_lsn >= before.end_lsn;
    Slot::wait(&sql, scene.rig.name(), "at the commit before", LIMIT, reached).await?;
    let mut looks = 0;
    while !until().await? {
        let stands = scene.rig.slot().await?.confirmed_flush_lsn;
        // The slot first: a row that comes in between excuses nothing.
        if scene.quarantine().await?.of(message_id).is_some() {
            break;
        }
        ensure!(
            before.end_lsn <= stands && stands < commit.commit_lsn,
            "find the slot at or behind {} and before {}: it stands at {stands}",
            before.end_lsn,
            commit.commit_lsn
        );
        looks += 1;
    }
    println!("the slot stood before {} at {looks} looks", commit.commit_lsn);
    ensure!(looks > 3, "see the slot stand still: only {looks} looks");
    Ok(())
}

/// The event has its row, and the slot goes on.
async fn goes_on(scene: &Scene, message_id: &str) -> Result<()> {
    let [_, commit] = around(scene, message_id).await?;
    let sql = scene.rig.sql().await?;
    let passed = |slot: &Slot| slot.confirmed_flush_lsn >= commit.end_lsn;
    Slot::wait(&sql, scene.rig.name(), "past the commit", LIMIT, passed).await.map(drop)
}

#[tokio::test]
async fn an_unroutable_event_is_tried_and_then_put_aside() -> Result<()> {
    let setting = Setting { keys: "order.#", ..Setting::default() };
    play("unroutable", setting, async |scene| {
        scene.watch_commits().await?;
        scene.begin().await?;
        let first =
            scene.write_event(&Single { routing_key: Some("nowhere"), ..Single::new("a", 1) }).await?;
        // The next of its aggregate would be routed, and waits.
        let next = Single { routing_key: Some("order.x"), ..Single::new("a", 2) };
        let second = scene.write_event(&next).await?;
        let depth = scene.rig.queue.depth().await?;
        stands_before(scene, &first, async || Ok(false)).await?;
        let flowed = scene.rig.queue.depth().await? - depth;
        ensure!(flowed >= 1000, "see 1,000 others pass while it is tried: {flowed}");

        let found = scene.wait_parked(&second).await?;
        scene.expect_parked(&[(&first, "unrouted"), (&second, "follower")]).await?;
        let row = found.of(&first).context("find its row")?;
        ensure!(row.attempts == 12, "find all attempts made: {row:?}");
        let line = "event quarantined: returned with 312: no queue is bound for its route";
        let told = scene.relay().wait_log(line, LIMIT).await?;
        ensure!(told.contains(&format!("position={} ", row.position)), "find {} in {told:?}", row.position);
        goes_on(scene, &first).await?;
        scene.relay().wait_ready(LIMIT).await?;

        // One that comes later is parked behind them.
        let third = scene.write_event(&Single { seq: 3, ..next }).await?;
        scene.wait_parked(&third).await?;
        goes_on(scene, &third).await?;
        scene.rig.queue.bind(scene.rig.name(), "nowhere").await?;
        scene.retry_all().await?;
        // And with nothing left in quarantine the aggregate is as any other.
        scene.write_event(&Single { seq: 4, ..next }).await?;
        // Without a mark no copy is forgiven.
        scene.settle().await?;
        ensure!(scene.quarantine().await?.rows().len() == 3, "find three rows, all delivered");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_event_is_owed_until_its_row_is_committed() -> Result<()> {
    let setting = Setting { keys: "order.#", ..Setting::default() }.set("retry.attempts", "2");
    play("quarantine out of reach", setting, async |scene| {
        scene.watch_commits().await?;
        scene.begin().await?;
        // Whoever wants to write there waits.
        let lock = scene.rig.sql().await?;
        lock.batch_execute("begin; lock table postrider.quarantine in share mode").await?;
        let first =
            scene.write_event(&Single { routing_key: Some("nowhere"), ..Single::new("a", 1) }).await?;
        scene.relay().wait_log("event quarantined", LIMIT).await?;
        let depth = scene.rig.queue.depth().await?;
        let enough = async || Ok(scene.rig.queue.depth().await? >= depth + 1000);
        stands_before(scene, &first, enough).await?;
        ensure!(scene.quarantine().await?.rows().is_empty(), "find no row while the table is locked");
        lock.batch_execute("commit").await?;
        scene.wait_parked(&first).await?;
        goes_on(scene, &first).await?;
        // Without a mark no copy is forgiven.
        scene.settle_beside(&[&first]).await.map(drop)
    })
    .await
}

#[tokio::test]
async fn an_event_that_closes_its_channel_is_put_aside_at_once() -> Result<()> {
    survives("missing exchange", Setting::default(), async |scene| {
        scene.watch_commits().await?;
        let before = scene.connections().await?;
        ensure!(before.len() == 1, "find the relay's connection: {before:?}");
        let missing = scene.rig.scope.named("missing");
        let first = scene.write_event(&Single { exchange: Some(&missing), ..Single::new("a", 1) }).await?;
        let second = scene.write_event(&Single::new("a", 2)).await?;
        let found = scene.wait_parked(&second).await?;
        scene.expect_parked(&[(&first, "channel_closed"), (&second, "follower")]).await?;
        let row = found.of(&first).context("find its row")?;
        ensure!(row.attempts == 1, "find it put aside at once: {row:?}");
        goes_on(scene, &second).await?;
        scene.wait_published(500).await?;
        ensure!(scene.connections().await? == before, "keep the connection");
        scene.rig.queue.bind(&missing, "#").await?;
        scene.retry_all().await
    })
    .await
}
