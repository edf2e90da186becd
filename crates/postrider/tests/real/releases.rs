//! Rows on their way from the quarantine, and what comes between: a second poison, the end of the relay, a row
//! that nobody can tell the aggregate of.

use anyhow::{Context as _, Result};
use serde_json::json;
use testenv::consumer::{Consumer, Value};
use testenv::relay::Program;

use crate::rows::{count_states, states};
use crate::run::{Run, expect};
use crate::stage::{LIMIT, Stage};

/// The queue takes `order.#`, and an event that no queue takes is given up at once.
async fn stage(test: &str) -> Result<Stage> {
    let mut stage = Stage::new(test).await?;
    stage.rig.program = stage.rig.program.clone().set("retry.attempts", "1");
    stage.rig.queue.unbind(stage.name(), "#").await?;
    stage.rig.queue.bind(stage.name(), "order.#").await?;
    Ok(stage)
}

/// Writes events `1..=events` of each of these aggregates in one transaction, all to this route.
async fn write(stage: &Stage, aggregates: u32, events: u32, routing_key: &str) -> Result<()> {
    stage
        .execute(&format!(
            "insert into postrider.outbox
               (aggregate_type, aggregate_id, event_type, payload, aggregate_seq, routing_key)
             select 'order', a::text, 'placed', '\"p4yl04d\"', n, '{routing_key}'
             from generate_series(1, {events}) n, generate_series(1, {aggregates}) a order by n, a"
        ))
        .await
}

#[tokio::test]
async fn a_second_poison_on_the_way_parks_the_rest_again() -> Result<()> {
    let stage = stage("second poison").await?;
    let mut relay = stage.ready().await?;
    for (seq, routing_key) in [(1, "first"), (2, "order.a"), (3, "second"), (4, "order.a")] {
        stage
            .execute(&format!(
                "insert into postrider.outbox
                   (aggregate_type, aggregate_id, event_type, payload, aggregate_seq, routing_key)
                 values ('order', '1', 'placed', '\"p4yl04d\"', {seq}, '{routing_key}')"
            ))
            .await?;
    }
    stage.wait_states(&[("1", "parked"); 4]).await?;
    assert_eq!(relay.count_lines("event quarantined"), 1, "{}", relay.log_text());
    stage.rig.queue.bind(stage.name(), "first").await?;
    let (printed, _) = expect(&stage.rig.admin, "quarantine retry --all", 1).await?;
    assert!(printed.ends_with("2 delivered, 2 parked again\n"), "{printed}");
    let rows = stage.wait_states(&[("1", "delivered"), ("1", "delivered"), ("1", "parked"), ("1", "parked")]);
    let rows = rows.await?;
    assert_eq!((&rows[2]["reason"], &rows[2]["attempts"]), (&json!("unrouted"), &json!(1)));
    assert_eq!((&rows[3]["reason"], &rows[3]["attempts"]), (&json!("follower"), &json!(0)));
    for seq in [1, 2] {
        assert_eq!(stage.next_message().await?.headers["aggregate_seq"], Value::Long(seq));
    }
    stage.expect_empty_queue().await?;
    // It is parked still: what follows goes behind.
    write(&stage, 1, 1, "order.a").await?;
    stage.wait_rows("a fifth row", |rows| rows.len() == 5).await?;
    stage.rig.queue.bind(stage.name(), "second").await?;
    stage.retry("--reason unrouted").await?;
    for seq in [3, 4, 1] {
        assert_eq!(stage.next_message().await?.headers["aggregate_seq"], Value::Long(seq));
    }
    relay.wait_metric("postrider_quarantine_events", &[], 0.0).await?;
    relay.expect_drain().await
}

#[tokio::test]
async fn a_relay_that_ends_leaves_the_rest_to_the_next() -> Result<()> {
    let stage = stage("drained release").await?;
    let mut relay = stage.ready().await?;
    write(&stage, 40, 20, "nowhere").await?;
    stage.wait_rows("all of them", |rows| rows.len() == 800).await?;
    relay.expect_drain().await?;
    stage.rig.queue.bind(stage.name(), "nowhere").await?;
    // The request waits in the log for a relay; this one is slow.
    expect(&stage.rig.admin, "quarantine retry --all --no-wait", 0).await?;
    let consumer = Consumer::start(&stage.rig.queue).await?;
    let slow: Program = stage.rig.program.clone().set("limits.events_per_second", "200");
    let mut relay = Run::start(&slow)?;
    consumer.wait_distinct(200, LIMIT).await?;
    // An event of a parked aggregate goes behind its rows, also now.
    write(&stage, 1, 1, "order.late").await?;
    relay.expect_drain().await?;
    let rows = stage.rows().await?;
    let counts = count_states(&rows);
    let delivered = counts["delivered"];
    assert!((200..800).contains(&delivered), "it ended on the way: {counts:?}");
    assert_eq!(consumer.distinct(), delivered, "what was confirmed is marked");
    assert_eq!(counts.get("released").copied().unwrap_or(0) + delivered, rows.len(), "{counts:?}");

    let mut relay = stage.ready().await?;
    consumer.wait_distinct(801, LIMIT).await?;
    stage.wait_rows("all delivered", |rows| states(rows).iter().all(|row| row.1 == "delivered")).await?;
    stage.wait_paid().await?;
    let deliveries = consumer.stop().await?;
    assert_eq!(deliveries.len(), 801, "nothing twice");
    for aggregate in 1..=40 {
        let aggregate = aggregate.to_string();
        let own = deliveries.iter().filter(|one| one.text("aggregate_id") == Some(&aggregate));
        let seq: Vec<_> = own.map(|one| one.headers["aggregate_seq"].clone()).collect();
        let late = (aggregate == "1").then_some(1);
        assert_eq!(seq, (1..=20).chain(late).map(Value::Long).collect::<Vec<_>>(), "{aggregate}");
    }
    relay.expect_drain().await
}

#[tokio::test]
async fn an_event_without_an_aggregate_stands_for_itself() -> Result<()> {
    let stage = stage("no aggregate").await?;
    stage.execute("alter table postrider.outbox alter column aggregate_id drop not null").await?;
    let mut relay = stage.ready().await?;
    for _ in 0..2 {
        stage
            .execute(
                "insert into postrider.outbox (aggregate_type, event_type, payload)
                 values ('order', 'placed', '\"p4yl04d\"')",
            )
            .await?;
    }
    let rows = stage.wait_states(&[("", "parked"), ("", "parked")]).await?;
    for row in &rows {
        assert_eq!((&row["reason"], &row["scope"]), (&json!("null_column"), &json!("key")), "not a follower");
        assert_eq!((&row["aggregate_key"], &row["aggregate_type"]), (&json!(null), &json!(null)));
        assert_eq!(row["outbox_row"]["aggregate_type"], "order", "{row}");
    }
    relay.wait_metric("postrider_quarantine_events", &[], 2.0).await?;
    assert_eq!(relay.status().await?["quarantine"], json!({ "events": 2, "aggregates": 0 }));
    let position = rows[0]["position"].as_str().context("a position")?;
    stage
        .execute(&format!(
            "update postrider.quarantine set routing_key = 'order.mended'
             where commit_lsn::text || '/' || index = '{position}'"
        ))
        .await?;
    stage.retry(&format!("--position {position}")).await?;
    let delivery = stage.next_message().await?;
    assert_eq!(delivery.message_id(), rows[0]["message_id"].as_str().context("an id")?);
    assert_eq!((delivery.text("postrider_position"), &*delivery.body), (Some(position), &b"\"p4yl04d\""[..]));
    stage.wait_states(&[("", "delivered"), ("", "parked")]).await?;
    stage.expect_empty_queue().await?;
    relay.expect_drain().await
}
