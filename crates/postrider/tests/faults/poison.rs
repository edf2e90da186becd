//! Poison of every kind among ten thousand good events: it alone goes to the quarantine, with what comes behind it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use testenv::writer::Backlog;

use crate::scene::{LIMIT, Scene, play};
use crate::setting::Setting;
use crate::witness::Single;

/// Good events come in so many parts, with one poisonous event of each kind behind each.
const PARTS: i64 = 5;

/// One of each kind, each with a good event behind it; returns the ids and why each is put aside, in their order.
async fn write_poison(scene: &Scene, part: i64) -> Result<Vec<(String, &'static str)>> {
    let missing = scene.rig.scope.named("missing");
    let long = format!("{{ \"long\": \"{}\" }}", "x".repeat(140_000));
    let good = Single::new("", 1);
    let kinds = [
        ("null_column", Single { event_type: None, ..good }),
        ("bad_header", Single { headers: Some("{ \"nested\": { \"a\": 1 } }"), ..good }),
        ("message_too_large", Single { payload_bytes: 200_000, ..good }),
        ("header_too_large", Single { headers: Some(&long), ..good }),
        ("channel_closed", Single { exchange: Some(&missing), ..good }),
        ("unrouted", Single { routing_key: Some("nowhere"), ..good }),
    ];
    let mut written = Vec::new();
    for (reason, poison) in kinds {
        let aggregate = format!("{reason} {part}");
        let aggregate = aggregate.as_str();
        written.push((scene.write_event(&Single { aggregate, ..poison }).await?, reason));
        written.push((scene.write_event(&Single::new(aggregate, 2)).await?, "follower"));
    }
    Ok(written)
}

#[tokio::test]
async fn poison_among_good_events_is_put_aside_and_nothing_else() -> Result<()> {
    let setting = Setting { keys: "order.#", ..Setting::default() }
        .set("rabbitmq.message_bytes_max", "100000")
        .set("retry.attempts", "3");
    play("poison", setting, async |scene| {
        let sql = scene.rig.sql().await?;
        let allow = "alter table postrider.outbox alter event_type drop not null";
        sql.batch_execute(allow).await.context("let an event have no type")?;
        scene.rig.queue.bind(scene.rig.name(), "single.#").await?;
        scene.start().await?;
        let connection = scene.connections().await?;
        let mut poison = Vec::new();
        for part in 0..PARTS {
            // The last in transactions of many events.
            let [transactions, events] = if part == PARTS - 1 { [20, 100] } else { [500, 4] };
            let good = Backlog { transactions, events, orders: 200, ..Backlog::default() };
            scene.rig.write_backlog(&good).await?;
            poison.extend(write_poison(scene, part).await?);
        }
        let enough = poison.len();
        let found =
            scene.wait_quarantine("all poison in quarantine", |found| found.rows().len() >= enough).await?;
        for (id, reason) in &poison {
            let row = found.of(id).with_context(|| format!("find the row of {reason} {id}"))?;
            ensure!(row.reason == *reason, "find it put aside as {reason}: {row:?}");
        }
        let ids: Vec<_> = poison.iter().map(|(id, _)| id.as_str()).collect();
        // Neither loss nor copy is forgiven, and the slot gets to the end of the log.
        let (verdict, _) = scene.judge(&ids, LIMIT).await?;
        verdict.expect_clean()?;
        ensure!(
            verdict.delivered == 10_000 && verdict.duplicates == 0,
            "find the good ones once:\n{verdict}"
        );
        ensure!(connection.len() == 1 && scene.connections().await? == connection, "keep the connection");
        scene.relay().wait_ready(LIMIT).await?;
        scene.end(Duration::from_secs(15)).await
    })
    .await
}
