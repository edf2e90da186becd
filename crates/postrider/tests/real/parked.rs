//! An aggregate behind its poison: parked across restarts, sent again in order while new events arrive, and
//! live again.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use serde_json::json;
use testenv::consumer::{Consumer, Delivery, Properties, Queue, QueueKind, Value};
use testenv::oracle::Slot;
use testenv::{Sql, eventually};
use tokio_postgres::types::PgLsn;

use crate::rows::{Row, states};
use crate::run::{Run, expect, let_pass};
use crate::stage::{LIMIT, Stage};

/// Writes an event of this aggregate, alone in its transaction, and returns its id.
async fn write(sql: &Sql, aggregate: &str, seq: u32, routing_key: Option<&str>) -> Result<String> {
    let row = sql
        .query_one(
            "insert into postrider.outbox
               (aggregate_type, aggregate_id, event_type, payload, aggregate_seq, routing_key)
             values ('order', $1, 'placed', '\"p4yl04d\"', $2, $3) returning id::text",
            &[&aggregate, &i64::from(seq), &routing_key],
        )
        .await
        .context("write an event")?;
    Ok(row.get(0))
}

/// The numbers of this aggregate's events as they arrived.
fn arrived(deliveries: &[Delivery], aggregate: &str) -> Vec<i64> {
    let seq = |delivery: &Delivery| match delivery.headers.get("aggregate_seq") {
        Some(Value::Long(seq)) => *seq,
        other => panic!("{other:?} is no number of an event"),
    };
    deliveries.iter().filter(|delivery| delivery.text("aggregate_id") == Some(aggregate)).map(seq).collect()
}

#[tokio::test]
async fn a_parked_aggregate_comes_back_in_order_while_new_events_arrive() -> Result<()> {
    let mut stage = Stage::new("parked").await?;
    stage.rig.program = stage.rig.program.clone().set("retry.attempts", "1");
    let name = stage.name().to_owned();
    stage.rig.queue.unbind(&name, "#").await?;
    stage.rig.queue.bind(&name, "order.#").await?;
    let consumer = Consumer::start(&stage.rig.queue).await?;
    let mut relay = stage.ready().await?;
    for seq in 1..=5 {
        write(&stage.sql, "a", seq, (seq == 2).then_some("nowhere")).await?;
    }
    let rows = stage.wait_states(&[("a", "parked"); 4]).await?;
    let seq = |row: &Row| row["headers"]["aggregate_seq"].clone();
    let found: Vec<_> = rows.iter().map(|row| (row["reason"].clone(), seq(row))).collect();
    let expected = [("unrouted", 2), ("follower", 3), ("follower", 4), ("follower", 5)];
    assert_eq!(found, expected.map(|(reason, seq)| (json!(reason), json!(seq))));
    assert_eq!(arrived(&consumer.deliveries(), "a"), [1]);
    stage.wait_paid().await?;
    relay.expect_drain().await?;

    let mut relay = stage.ready().await?;
    write(&stage.sql, "a", 6, None).await?;
    stage.wait_states(&[("a", "parked"); 5]).await?;
    assert_eq!(arrived(&consumer.deliveries(), "a"), [1]);

    // Mended; `retry` comes in the middle of new events, its own and others'.
    stage.rig.queue.bind(&name, "nowhere").await?;
    let (writer, others) = (stage.rig.sql().await?, stage.rig.sql().await?);
    let own = async {
        for seq in 7..=300 {
            write(&writer, "a", seq, None).await?;
        }
        anyhow::Ok(())
    };
    let other = async {
        for seq in 1..=300 {
            write(&others, &format!("other {}", seq % 7), seq, None).await?;
        }
        anyhow::Ok(())
    };
    let retry = async {
        stage.wait_rows("newer events parked as well", |rows| rows.len() >= 20).await?;
        consumer.wait_distinct(12, LIMIT).await?;
        stage.retry("--aggregate order/a").await
    };
    tokio::try_join!(own, other, retry)?;
    consumer.wait_distinct(600, LIMIT).await?;
    stage.wait_paid().await?;
    let rows =
        stage.wait_rows("none undelivered", |rows| states(rows).iter().all(|row| row.1 == "delivered"));
    let stored = rows.await?.len();
    // Live again: the next is not stored.
    relay.wait_metric("postrider_quarantine_events", &[], 0.0).await?;
    assert_eq!(relay.status().await?["quarantine"], json!({ "events": 0, "aggregates": 0 }));
    write(&stage.sql, "a", 301, None).await?;
    consumer.wait_distinct(601, LIMIT).await?;
    stage.wait_paid().await?;
    let rows = stage.rows().await?;
    assert_eq!(rows.len(), stored, "it went straight through");

    let deliveries = consumer.stop().await?;
    assert_eq!(arrived(&deliveries, "a"), (1..=301).collect::<Vec<_>>(), "each once and in order");
    for other in 0..7 {
        let expected: Vec<i64> = (1..=300).filter(|seq| seq % 7 == other).collect();
        assert_eq!(arrived(&deliveries, &format!("other {other}")), expected);
    }
    let at = |of: &str| deliveries.iter().position(|delivery| delivery.message_id() == of);
    let sent: HashMap<_, _> =
        deliveries.iter().map(|sent| (sent.message_id(), sent.text("postrider_position"))).collect();
    for row in &rows {
        let id = row["message_id"].as_str().context("an id")?;
        assert!(at(id).is_some(), "{id} was delivered");
        assert_eq!(sent[id], row["position"].as_str(), "its own position");
    }
    // The others did not wait for the aggregate: some arrived before the first event of it that was parked.
    let second = deliveries.iter().position(|one| {
        one.text("aggregate_id") == Some("a") && one.headers["aggregate_seq"] == Value::Long(2)
    });
    let before = &deliveries[..second.context("its second event")?];
    assert!(before.len() >= 12, "others flowed while it was parked: {}", before.len());
    relay.expect_drain().await
}

/// A queue of its own that takes nothing, so that events of its route wait for ever, and what fills it.
async fn full_queue(stage: &Stage, routing_key: &str) -> Result<Queue> {
    let arguments =
        [("x-max-length", Value::Int(1)), ("x-overflow", Value::Text("reject-publish".to_owned()))];
    let name = stage.rig.scope.named("full");
    let queue = Queue::declare(&stage.rig.scope.amqp_url(), &name, QueueKind::Classic, &arguments).await?;
    queue.bind(stage.name(), routing_key).await?;
    let parcel = testenv::consumer::Parcel {
        properties: Properties::default(),
        headers: Vec::new(),
        body: b"in the way".to_vec(),
    };
    testenv::consumer::publish(&stage.rig.scope.amqp_url(), "", &name, vec![parcel]).await?;
    Ok(queue)
}

fn commit_lsn(row: &Row) -> Option<PgLsn> {
    row["commit_lsn"].as_str()?.parse().ok()
}

#[tokio::test]
async fn what_was_discarded_or_delivered_does_not_come_back_after_a_kill() -> Result<()> {
    let mut stage = Stage::new("discarded").await?;
    stage.rig.program = stage.rig.program.clone().set("retry.attempts", "1").set("retry.max_ms", "300");
    let name = stage.name().to_owned();
    stage.rig.queue.unbind(&name, "#").await?;
    stage.rig.queue.bind(&name, "order.#").await?;
    let full = full_queue(&stage, "full").await?;
    let mut relay = stage.ready().await?;
    let before = stage.wait_paid().await?;
    // The slot waits for this one.
    let oldest = write(&stage.sql, "waits", 1, Some("full")).await?;
    eventually("a rejection", LIMIT, async || {
        let nacks = relay.metrics().await?.sum("postrider_events_retried_total", &[("reason", "nacked")])?;
        Ok((nacks > 0.0).then_some(()))
    })
    .await?;
    write(&stage.sql, "discarded", 1, Some("nowhere")).await?;
    write(&stage.sql, "discarded", 2, None).await?;
    let delivered = write(&stage.sql, "retried", 1, Some("elsewhere")).await?;
    write(&stage.sql, "parked", 1, Some("nowhere")).await?;
    stage.wait_rows("four rows", |rows| rows.len() == 4).await?;
    stage.rig.queue.bind(&name, "elsewhere").await?;
    stage.retry("--aggregate order/retried").await?;
    expect(&stage.rig.admin, "quarantine discard --aggregate order/discarded --yes", 0).await?;
    let expected = [
        ("discarded", "discarded"),
        ("discarded", "discarded"),
        ("retried", "delivered"),
        ("parked", "parked"),
    ];
    let rows = stage.wait_states(&expected).await?;
    assert_eq!(stage.next_message().await?.message_id(), delivered);
    // Its aggregate is live again; the slot has passed none of them.
    let live = write(&stage.sql, "discarded", 3, None).await?;
    stage.wait_message(&live).await?;
    let slot = Slot::read(&stage.sql, &name).await?.context("the slot")?;
    let above = |row| commit_lsn(row).is_some_and(|lsn| lsn > slot.confirmed_flush_lsn);
    assert!(rows.iter().all(above), "{slot:?}");
    assert!(slot.confirmed_flush_lsn >= before.confirmed_flush_lsn);
    relay.kill().await?;
    stage.wait_slot_free().await?;

    let mut relay = stage.ready().await?;
    // What is behind them in the log arrives again, so they have been read.
    stage.wait_message(&live).await?;
    assert_eq!(stage.wait_states(&expected).await?, rows, "nothing stored twice, nothing changed");
    full.purge().await?;
    assert_eq!(full.wait_take(LIMIT).await?.message_id(), oldest);
    stage.wait_paid().await?;
    assert_eq!(stage.rows().await?, rows);
    relay.wait_metric("postrider_events_quarantined_total", &[], 0.0).await?;
    relay.wait_metric("postrider_quarantine_events", &[], 1.0).await?;
    stage.expect_empty_queue().await?;
    relay.expect_drain().await
}

#[tokio::test]
async fn a_relay_that_has_lost_its_slot_writes_nothing() -> Result<()> {
    let stage = Stage::new("lost to another").await?;
    let mut first = stage.ready().await?;
    // Its work on the quarantine has begun, and waits for this.
    let lock = stage.rig.sql().await?;
    let name = stage.name();
    lock.batch_execute(&format!("begin; select from postrider.relay where slot = '{name}' for update"))
        .await?;
    stage
        .execute(
            "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
             values ('order', '1', 'placed', '\"p4yl04d\"', '{\"CC\": 1}')",
        )
        .await?;
    first.wait_log("event quarantined", LIMIT).await?;
    let waits = format!(
        "select count(*)::text from pg_stat_activity where datname = '{name}' and wait_event_type = 'Lock'"
    );
    eventually("the work to wait", LIMIT, async || Ok((stage.text(&waits).await? == "1").then_some(())))
        .await?;
    first.signal(Signal::SIGSTOP)?;
    let holder = format!("select active_pid::text from pg_replication_slots where slot_name = '{name}'");
    let walsender = stage.text(&holder).await?;
    stage.execute(&format!("select pg_terminate_backend({walsender})")).await?;
    stage.wait_slot_free().await?;
    // The second would hold, so that every row is the first's.
    let mut second = Run::start(&stage.rig.program.clone().set("quarantine.scope", "halt"))?;
    second.wait_log("the slot streams", LIMIT).await?;
    assert_ne!(stage.text(&holder).await?, walsender);
    lock.batch_execute("rollback").await?;
    first.signal(Signal::SIGCONT)?;
    first.wait_reason("standby", LIMIT).await?;
    second.wait_reason("held", LIMIT).await?;
    let_pass(Duration::from_millis(500)).await;
    assert!(stage.rows().await?.is_empty());
    first.wait_metric("postrider_events_quarantined_total", &[], 0.0).await?;
    // It goes on where the other leaves, and stores it then.
    second.expect_drain().await?;
    first.wait_ready(LIMIT).await?;
    stage.wait_states(&[("1", "parked")]).await?;
    stage.wait_paid().await?;
    first.expect_drain().await
}
