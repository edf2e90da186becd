//! When poison is not quarantined: the relay holds, says why, and goes on by itself once the cause is mended.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use testenv::consumer::Consumer;
use testenv::oracle::Slot;
use testenv::relay::Program;
use tokio_postgres::types::PgLsn;

use crate::rows::count_states;
use crate::run::Run;
use crate::stage::{LIMIT, Stage};

fn impatient(stage: &Stage) -> Program {
    let program = stage.rig.program.clone().set("retry.attempts", "2");
    program.set("retry.first_ms", "20").set("retry.max_ms", "300")
}

/// Not ready, and the reason in words.
async fn expect_held(relay: &mut Run, says: &str) -> Result<()> {
    relay.wait_reason("held", LIMIT).await?;
    let page = relay.get("/readyz").await?;
    let answer: Value = serde_json::from_str(&page.body)?;
    assert_eq!((page.status, &answer["ready"], &answer["reason"]), (503, &json!(false), &json!("held")));
    let status = relay.status().await?;
    assert!(status["detail"].as_str().is_some_and(|detail| detail.contains(says)), "{status}");
    Ok(())
}

/// Events of so many aggregates, two each, one transaction for each event.
async fn write_pairs(stage: &Stage, aggregates: u32) -> Result<()> {
    for seq in 1..=2 {
        for aggregate in 1..=aggregates {
            stage
                .execute(&format!(
                    "insert into postrider.outbox
                       (aggregate_type, aggregate_id, event_type, payload, aggregate_seq)
                     values ('order', '{aggregate}', 'placed', '\"p4yl04d\"', {seq})"
                ))
                .await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_wrong_binding_for_everything_holds_at_the_burst_and_flows_once_mended() -> Result<()> {
    let mut stage = Stage::new("burst").await?;
    stage.rig.program = impatient(&stage).set("quarantine.burst_events", "50");
    let name = stage.name().to_owned();
    stage.rig.queue.unbind(&name, "#").await?;
    stage.rig.queue.bind(&name, "wrong.#").await?;
    let consumer = Consumer::start(&stage.rig.queue).await?;
    let mut relay = stage.ready().await?;
    write_pairs(&stage, 120).await?;
    expect_held(&mut relay, "quarantine.burst_events").await?;
    // Found poison: 50, and no more while it holds. Their followers are parked with them.
    relay.wait_metric("postrider_events_quarantined_total", &[("reason", "unrouted")], 50.0).await?;
    relay.wait_log("event held", LIMIT).await?;
    let quarantined = stage
        .wait_rows("the followers of the 50", |rows| {
            rows.iter().filter(|row| row["reason"] == "follower").count() == 50
        })
        .await?;
    assert_eq!(quarantined.len(), 100, "50 that were found, and one behind each");
    let found = quarantined.iter().filter(|row| row["reason"] == "unrouted").count();
    assert_eq!(found, 50, "{:?}", count_states(&quarantined));
    assert_eq!(consumer.count(), 0);
    expect_held(&mut relay, "quarantine.burst_events").await?;
    assert_eq!(relay.count_lines("event quarantined"), 50);

    stage.rig.queue.bind(&name, "order.#").await?;
    relay.wait_ready(LIMIT).await?;
    consumer.wait_distinct(140, LIMIT).await?;
    assert_eq!(relay.count_lines("a delivery has ended the hold"), 1, "{}", relay.log_text());
    assert_eq!(stage.rows().await?.len(), 100, "nothing more was parked");
    stage.retry("--all").await?;
    consumer.wait_distinct(240, LIMIT).await?;
    stage.wait_paid().await?;
    let rows = stage.rows().await?;
    assert_eq!(count_states(&rows), [("delivered", 100)].into());
    relay.wait_metric("postrider_in_flight_events", &[], 0.0).await?;
    relay.wait_metric("postrider_quarantine_events", &[], 0.0).await?;
    expect_pairs_in_order(consumer, 120).await?;
    relay.expect_drain().await
}

/// Both events of each aggregate have arrived, each once, the first before the second.
async fn expect_pairs_in_order(consumer: Consumer, aggregates: usize) -> Result<()> {
    let deliveries = consumer.stop().await?;
    assert_eq!(deliveries.len(), 2 * aggregates, "each once");
    let mut last = std::collections::HashMap::new();
    for delivery in &deliveries {
        let aggregate = delivery.text("aggregate_id").context("an aggregate")?;
        let seq = format!("{:?}", delivery.headers["aggregate_seq"]);
        let before = last.insert(aggregate.to_owned(), seq.clone());
        assert_eq!(before.is_some(), seq == "Long(2)", "{aggregate}: {before:?}, then {seq}");
    }
    assert_eq!(last.len(), aggregates);
    Ok(())
}

#[tokio::test]
async fn a_relay_that_halts_stores_nothing_and_lets_nothing_pass() -> Result<()> {
    let mut stage = Stage::new("halt").await?;
    stage.rig.program = impatient(&stage).set("quarantine.scope", "halt");
    let name = stage.name().to_owned();
    stage.rig.queue.unbind(&name, "#").await?;
    stage.rig.queue.bind(&name, "order.placed").await?;
    let mut relay = stage.ready().await?;
    let before = stage.wait_paid().await?;
    let unrouted = stage
        .text(
            "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload)
             values ('order', '1', 'cancelled', '\"p4yl04d\"') returning id::text",
        )
        .await?;
    expect_held(&mut relay, "quarantine.scope is halt").await?;
    let line = relay.wait_log("event held", LIMIT).await?;
    assert!(line.contains("reason=unrouted") && line.contains("order.cancelled"), "{line}");
    // Nobody overtakes it, whatever its aggregate.
    let behind = stage.write_event().await?;
    relay.wait_metric("postrider_in_flight_events", &[], 2.0).await?;
    stage.expect_empty_queue().await?;
    assert!(stage.rows().await?.is_empty());
    relay.wait_metric("postrider_events_held_total", &[("reason", "unrouted")], 1.0).await?;
    relay.wait_metric("postrider_events_quarantined_total", &[], 0.0).await?;
    let slot = Slot::read(&stage.sql, &name).await?.context("the slot")?;
    let now: PgLsn = stage.text("select pg_current_wal_lsn()::text").await?.parse().expect("an LSN");
    assert!(
        before.confirmed_flush_lsn <= slot.confirmed_flush_lsn && slot.confirmed_flush_lsn < now,
        "{slot:?}"
    );

    // It is tried again by itself.
    stage.rig.queue.bind(&name, "order.cancelled").await?;
    assert_eq!(stage.next_message().await?.message_id(), unrouted);
    assert_eq!(stage.next_message().await?.message_id(), behind);
    relay.wait_ready(LIMIT).await?;
    assert_eq!(relay.count_lines("event delivered that was held"), 1, "{}", relay.log_text());
    stage.wait_paid().await?;
    assert!(stage.rows().await?.is_empty());
    relay.expect_drain().await
}

#[tokio::test]
async fn a_long_hold_ends_with_its_cause() -> Result<()> {
    let mut stage = Stage::new("long hold").await?;
    let program = stage.rig.program.clone().set("retry.attempts", "5").set("retry.max_ms", "1000");
    stage.rig.program = program.set("rabbitmq.confirm_timeout_ms", "4000");
    let name = stage.name().to_owned();
    let consumer = Consumer::start(&stage.rig.queue).await?;
    let mut relay = stage.ready().await?;
    stage.rig.queue.unbind(&name, "#").await?;
    for round in 0..200 {
        for event_type in ["placed", "paid", "packed", "shipped"] {
            stage
                .execute(&format!(
                    "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload)
                     select 'order', 'a' || (random() * 400)::int, '{event_type}', '\"p4yl04d\"'
                     from generate_series(1, 3 + {round} % 2)"
                ))
                .await?;
        }
    }
    expect_held(&mut relay, "quarantine.burst_events").await?;
    tokio::time::sleep(std::time::Duration::from_secs(8)).await;
    expect_held(&mut relay, "quarantine.burst_events").await?;
    stage.rig.queue.bind(&name, "#").await?;
    stage.retry("--all --no-wait").await?;
    relay.wait_ready(LIMIT).await.with_context(|| relay.log_text())?;
    consumer.wait_distinct(2800, LIMIT).await?;
    stage.wait_paid().await?;
    relay.expect_drain().await
}
