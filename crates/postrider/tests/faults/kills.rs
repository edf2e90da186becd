//! The relay dies by SIGKILL, again and again.

use anyhow::{Result, ensure};
use testenv::consumer::{Consumer, Delivery, Position};
use testenv::writer::{self, Load};

use crate::scene::{LIMIT, play};
use crate::setting::Setting;

const KILLS: usize = 10;

#[tokio::test]
async fn ten_sigkills_under_load() -> Result<()> {
    // Few orders, drawn by lot: some have longer queues than others, and wait while younger events pass.
    let load = Load { orders: 40, ..Load::default() };
    let gentle = Load { transactions_per_second: Some(200.0), seed: 2, ..load.clone() };
    let setting = Setting { load: gentle, ..Setting::default() }
        .set("limits.in_flight_events", "2000")
        // No life is long, and the slot has to move in it.
        .set("postgres.report_every_ms", "100");
    play("ten kills", setting, async |scene| {
        scene.watch_commits().await?;
        // Enough for all lives; the shop adds to it.
        writer::write(&scene.rig.scope.admin_url(), &load, 6_000).await?;
        let consumer = Consumer::start(&scene.rig.queue).await?;
        scene.write();
        for number in 0..KILLS {
            scene.start().await?;
            // Each life carries on from where the one before ended, and each is of another length.
            consumer.wait_distinct(consumer.distinct() + 200 + 50 * number, LIMIT).await?;
            let owed = scene.wait_owed(100).await?;
            scene.relay().kill().await?;
            let slot = scene.mark_free().await?;
            let marks = |deliveries: &[Delivery]| deliveries.iter().filter_map(Delivery::mark).count();
            consumer
                .wait_until("the mark behind what the dead relay sent", LIMIT, |deliveries| {
                    marks(deliveries) == number + 1
                })
                .await?;
            scene.ensure_nothing_passed(&slot, &consumer).await?;
            println!("kill {number}: {owed} events owed, the slot at {}", slot.confirmed_flush_lsn);
        }
        scene.start().await?;
        scene.consumer = Some(consumer);
        let deliveries = scene.settle().await?;
        for (number, count) in unconfirmed(&deliveries).into_iter().enumerate() {
            println!("kill {number}: {count} events were read and certainly not confirmed");
            ensure!(count > 0, "find events that were unconfirmed at kill {number}");
        }
        Ok(())
    })
    .await
}

/// For each life that ended with a mark: how many events the relay had read, because it had delivered one from behind
/// them, and that were not in the queue when it died.
fn unconfirmed(deliveries: &[Delivery]) -> Vec<usize> {
    let mut counts = Vec::new();
    let mut arrived = std::collections::HashSet::new();
    let mut rest = deliveries;
    while let Some(end) = rest.iter().position(|delivery| delivery.mark().is_some()) {
        let (life, later) = (&rest[..end], &rest[end + 1..]);
        arrived.extend(life.iter().map(Delivery::message_id));
        let furthest = life.iter().filter_map(Delivery::position).max();
        let read = |position: Position| furthest.is_some_and(|furthest| position < furthest);
        let mut missing: Vec<_> = later
            .iter()
            .filter(|delivery| delivery.position().is_some_and(read))
            .map(Delivery::message_id)
            .filter(|id| !arrived.contains(id))
            .collect();
        missing.sort_unstable();
        missing.dedup();
        counts.push(missing.len());
        rest = later;
    }
    counts
}
