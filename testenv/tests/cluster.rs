//! A cluster without its majority: one queue confirms nothing, the other is healthy.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use testenv::Cluster;
use testenv::consumer::{Parcel, Queue, QueueKind, publish};
use tokio::time::timeout;

/// Many times what a confirm takes.
const PATIENCE: Duration = Duration::from_secs(5);

async fn publish_to(queue: &Queue) -> Result<()> {
    publish(queue.url(), "", queue.name(), vec![Parcel::default(); 3]).await
}

#[tokio::test]
async fn without_two_of_three_nodes_a_quorum_queue_confirms_nothing() -> Result<()> {
    let started = Instant::now();
    let mut cluster = Cluster::start().await?;
    println!("cluster: start {:.1?}", started.elapsed());
    let url = cluster.node().guest_url();
    let quorum = Queue::declare(&url, "quorum", QueueKind::Quorum, &[]).await?;
    let classic = Queue::declare(&url, "classic", QueueKind::Classic, &[]).await?;
    publish_to(&quorum).await?;
    publish_to(&classic).await?;

    cluster.lose_majority().await?;
    let unconfirmed = timeout(PATIENCE, publish_to(&quorum)).await;
    ensure!(unconfirmed.is_err(), "see nothing confirmed: {unconfirmed:?}");
    publish_to(&classic).await.context("publish to the healthy queue")?;
    ensure!(classic.depth().await? == 6, "find what was confirmed in the healthy queue");

    let started = Instant::now();
    cluster.regain_majority().await?;
    println!("cluster: two nodes back {:.1?}", started.elapsed());
    publish_to(&quorum).await.context("publish to the queue that has its majority back")?;
    // What was published without a majority may be in it or not: nobody was told.
    ensure!(quorum.depth().await? >= 6, "find what was confirmed in the quorum queue");
    Ok(())
}
