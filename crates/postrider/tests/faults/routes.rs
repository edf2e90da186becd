//! A route that does not take what is sent to it: it stops nobody else.

use anyhow::{Result, ensure};
use testenv::consumer::{Consumer, Queue, QueueKind, Value, drain};
use testenv::eventually;

use crate::scene::{LIMIT, Scene, play, survives};
use crate::setting::Setting;
use crate::witness::Single;

/// Suspends (or resumes) a queue's process: it confirms nothing, as a quorum queue without a majority.
async fn order(scene: &Scene, queue: &Queue, what: &str) -> Result<()> {
    let name = queue.name();
    let call = format!(
        "{{ok, Queue}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"{name}\">>)), \
         sys:{what}(amqqueue:get_pid(Queue))."
    );
    scene.servers.rabbitmq.ctl().run(&["eval", &call]).await.map(drop)
}

/// A queue that takes the single events beside the one that is judged, and confirms none of them.
async fn deaf_queue(scene: &Scene) -> Result<Queue> {
    let name = scene.rig.scope.named("deaf");
    let queue = Queue::declare(scene.rig.queue.url(), &name, QueueKind::Classic, &[]).await?;
    queue.bind(scene.rig.name(), "single.#").await?;
    order(scene, &queue, "suspend").await?;
    Ok(queue)
}

async fn write_deaf(scene: &Scene, aggregate: &str) -> Result<()> {
    for seq in 1..=3 {
        scene.write_event(&Single::new(aggregate, seq)).await?;
    }
    Ok(())
}

async fn hear_again(scene: &Scene, deaf: &Queue) -> Result<()> {
    order(scene, deaf, "resume").await?;
    let late = drain(deaf).await?;
    ensure!(!late.is_empty(), "find the deaf events in their own queue");
    deaf.delete().await
}

#[tokio::test]
async fn a_window_without_progress_gives_up_its_lane() -> Result<()> {
    // One lane, and more patience than this test has: whoever goes on does so on a fresh channel.
    let setting = Setting::default().set("rabbitmq.lanes", "1").set("rabbitmq.confirm_timeout_ms", "600000");
    play("window without progress", setting, async |scene| {
        scene.begin().await?;
        let deaf = deaf_queue(scene).await?;
        write_deaf(scene, "a").await?;
        scene.wait_published(2000).await?;
        hear_again(scene, &deaf).await?;
        // The confirm that came late was awaited: no copy is forgiven.
        scene.settle().await.map(drop)
    })
    .await
}

#[tokio::test]
async fn a_confirm_that_is_overdue_stops_nobody_else() -> Result<()> {
    let setting = Setting::default().set("rabbitmq.confirm_timeout_ms", "2000").set("rabbitmq.lanes", "2");
    survives("confirm overdue", setting, async |scene| {
        let deaf = deaf_queue(scene).await?;
        for aggregate in ["a", "b", "c"] {
            write_deaf(scene, aggregate).await?;
        }
        // One at a time goes out, is given up, and goes out again, while the orders flow in the lane that is left.
        let relay = scene.relay();
        eventually("the deaf events to be overdue", LIMIT, async || {
            let metrics = relay.metrics().await?;
            let overdue = metrics.sum("postrider_events_retried_total", &[("reason", "unconfirmed")])?;
            Ok((overdue >= 4.0).then_some(()))
        })
        .await?;
        scene.wait_published(500).await?;
        hear_again(scene, &deaf).await
    })
    .await
}

#[tokio::test]
async fn a_full_queue_pushes_back() -> Result<()> {
    let setting = Setting {
        queue: QueueKind::Classic,
        arguments: vec![
            ("x-max-length", Value::Long(100)),
            ("x-overflow", Value::Text("reject-publish".to_owned())),
        ],
        ..Setting::default()
    };
    play("full queue", setting, async |scene| {
        scene.begin().await?;
        let relay = scene.relay();
        eventually("events to be refused", LIMIT, async || {
            let metrics = relay.metrics().await?;
            let refused = metrics.sum("postrider_events_retried_total", &[("reason", "nacked")])?;
            Ok((refused >= 200.0).then_some(()))
        })
        .await?;
        scene.consumer = Some(Consumer::start(&scene.rig.queue).await?);
        // What is refused is not in the queue: no copy is forgiven.
        scene.settle().await.map(drop)
    })
    .await
}
