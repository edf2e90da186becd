//! What comes back from the quarantine while relay and broker die: in order, and nothing lost.

use std::collections::HashSet;

use anyhow::{Context as _, Result, ensure};
use testenv::consumer::Delivery;
use testenv::oracle::{Quarantine, State};
use testenv::writer::Load;
use testenv::{Sql, eventually};

use crate::scene::{LIMIT, Scene, play};
use crate::setting::Setting;
use crate::witness::Single;

/// Events of the aggregate that are parked when the retry begins, and when it is over.
const PARKED: i64 = 400;
const ALL: i64 = 600;

/// Writes the aggregate's next events, each in its own transaction.
async fn write_next(sql: &Sql, from: i64, to: i64) -> Result<()> {
    let block = "do $$
        declare written uuid;
        begin
            for n in :from .. :to loop
                insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload, aggregate_seq)
                values ('single', 'a', 'placed', '{ \"n\":1 }', n) returning id into written;
                insert into shop.ledger (id, aggregate_type, aggregate_id, aggregate_seq, payload)
                values (written, 'single', 'a', n, '{ \"n\":1 }');
                commit;
            end loop;
        end $$"
        .replace(":from", &from.to_string())
        .replace(":to", &to.to_string());
    sql.batch_execute(&block).await.context("write the aggregate's next events")
}

/// Waits until so many rows of the table have come back.
async fn wait_returned(scene: &Scene, count: usize) -> Result<()> {
    let enough =
        |found: &Quarantine| found.in_state(State::Delivered).count() >= count || found.undelivered() == 0;
    scene.wait_quarantine(&format!("{count} events to come back"), enough).await.map(drop)
}

/// The ids of the rows that are marked as delivered.
async fn delivered(scene: &Scene) -> Result<HashSet<String>> {
    let found = scene.quarantine().await?;
    Ok(found.in_state(State::Delivered).filter_map(|row| row.message_id.clone()).collect())
}

/// What arrived behind the mark of a death, and is among the ids of that death.
fn again<'a>(ids: &[HashSet<String>], deliveries: &'a [Delivery]) -> Vec<&'a str> {
    let mut deaths = 0;
    let mut found = Vec::new();
    for delivery in deliveries {
        deaths += usize::from(delivery.mark().is_some());
        let id = delivery.message_id();
        found.extend(ids[..deaths].iter().any(|ids| ids.contains(id)).then_some(id));
    }
    found
}

#[tokio::test]
async fn relay_and_broker_die_while_an_aggregate_comes_back() -> Result<()> {
    let load = Load { orders: 100, transactions_per_second: Some(40.0), ..Load::default() };
    // Slow enough to be met on the way.
    let setting = Setting { load, ..Setting::default() }.set("limits.events_per_second", "400");
    play("retry under fire", setting, async |scene| {
        scene.begin().await?;
        let late = scene.rig.scope.named("late");
        scene.write_event(&Single { exchange: Some(&late), ..Single::new("a", 1) }).await?;
        let sql = scene.rig.sql().await?;
        write_next(&sql, 2, PARKED).await?;
        let all = usize::try_from(PARKED)?;
        scene.wait_quarantine("the aggregate to be parked", |found| found.rows().len() >= all).await?;
        scene.rig.queue.bind(&late, "#").await?;
        scene.servers.rabbitmq.remember_queues().await?;
        scene.retry().await?;

        let mut random = fastrand::Rng::with_seed(4);
        let mut returned = 0;
        // By death: the rows that were marked as delivered before, and never go again.
        let mut marked = Vec::new();
        for (number, broker) in [false, true, false, true, false].into_iter().enumerate() {
            returned += random.usize(30..80);
            wait_returned(scene, returned).await?;
            let from = PARKED + 1 + 40 * i64::try_from(number)?;
            write_next(&sql, from, from + 39).await?;
            let undelivered = scene.quarantine().await?.undelivered();
            ensure!(undelivered > 0, "meet the aggregate on its way");
            marked.push(delivered(scene).await?);
            println!(
                "{} dies with {undelivered} rows to come",
                if broker { "the broker" } else { "the relay" }
            );
            if broker {
                scene.rig.mark().await?;
                scene.servers.rabbitmq.sigkill().await?;
                scene.relay().wait_reason("broker", LIMIT).await?;
                scene.servers.rabbitmq.start_again().await?;
                scene.relay().wait_ready(LIMIT).await?;
            } else {
                scene.relay().kill().await?;
                scene.mark_free().await?;
                scene.start().await?;
            }
        }
        eventually("all to come back", LIMIT, async || {
            Ok((scene.quarantine().await?.undelivered() == 0).then_some(()))
        })
        .await?;
        let rows = scene.quarantine().await?.rows().len();
        println!("{rows} of {ALL} events of the aggregate went through the quarantine");
        let deliveries = scene.settle().await?;
        let again = again(&marked, &deliveries);
        ensure!(again.is_empty(), "send no row again that was marked before a death: {again:?}");
        ensure!(scene.quarantine().await?.undelivered() == 0, "find nothing parked again");
        Ok(())
    })
    .await
}
