//! The quarantine out of reach: a missing right is a stop, anything else an outage that ends by itself.

use anyhow::Result;
use testenv::eventually;

use crate::rows::count_states;
use crate::run::Run;
use crate::stage::{LIMIT, Stage};
use crate::stops::stopped;

/// Writes a poisonous event of this aggregate.
async fn write_poison(stage: &Stage, aggregate: &str) -> Result<()> {
    stage
        .execute(&format!(
            "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
             values ('order', '{aggregate}', 'placed', '\"p4yl04d\"', '{{\"CC\": 1}}')"
        ))
        .await
}

#[tokio::test]
async fn a_right_that_is_missing_is_a_stop() -> Result<()> {
    let stage = Stage::new("quarantine rights").await?;
    let mut relay = stage.ready().await?;
    stage.execute("revoke insert on postrider.quarantine from postrider_relay").await?;
    let id = stage.write_event().await?;
    stage.wait_message(&id).await?;
    write_poison(&stage, "1").await?;
    let says = ["SQLSTATE 42501", "store in the quarantine", "quarantine"];
    let stop = stopped(&mut relay, &says).await?;
    let grant = "grant select, insert, update on postrider.quarantine to postrider_relay";
    assert!(stop.cures.iter().any(|cure| cure == grant), "{:?}", stop.cures);
    stage.wait_slot_free().await?;
    stage.mend(&stop).await?;
    let mut relay = stage.ready().await?;
    stage.wait_states(&[("1", "parked")]).await?;
    stage.wait_paid().await?;
    relay.expect_drain().await?;

    // Without the right to read it no event can be judged: the same at the start.
    stage.execute("revoke select on postrider.quarantine from postrider_relay").await?;
    let mut relay = Run::start(&stage.rig.program)?;
    let stop = stopped(&mut relay, &["lacks a right on postrider.quarantine"]).await?;
    stage.wait_slot_free().await?;
    stage.mend(&stop).await?;
    stage.expect_delivery().await
}

#[tokio::test]
async fn a_table_that_does_not_answer_is_an_outage_and_others_flow() -> Result<()> {
    let mut stage = Stage::new("quarantine locked").await?;
    stage.rig.program =
        stage.rig.program.clone().set("limits.in_flight_events", "40").set("quarantine.burst_events", "1000");
    let mut relay = stage.ready().await?;
    let lock = stage.rig.sql().await?;
    lock.batch_execute("begin; lock table postrider.quarantine in access exclusive mode").await?;
    write_poison(&stage, "0").await?;
    // What would end by the server's limit in half a minute ends now.
    let waiting = format!(
        "select coalesce(max(pid), 0)::text from pg_stat_activity
         where datname = '{}' and usename = 'postrider_relay' and wait_event_type = 'Lock'",
        stage.name()
    );
    let pid = eventually("the store to wait", LIMIT, async || {
        Ok(Some(stage.text(&waiting).await?).filter(|pid| pid != "0"))
    })
    .await?;
    stage.execute(&format!("select pg_cancel_backend({pid})")).await?;
    relay.wait_reason("postgres", LIMIT).await?;
    let line = relay.wait_log("the quarantine is out of reach", LIMIT).await?;
    assert!(line.contains("WARN") && line.contains("store in the quarantine"), "{line}");
    let status = relay.status().await?;
    let detail = status["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("the quarantine is out of reach"), "{status}");

    // The slot streams, and others flow.
    for _ in 0..5 {
        let id = stage.write_event().await?;
        stage.wait_message(&id).await?;
    }
    // Until the limits are full of what waits for the table.
    for aggregate in 1..60 {
        write_poison(&stage, &aggregate.to_string()).await?;
    }
    relay.wait_metric("postrider_in_flight_events", &[], 40.0).await?;
    let id = stage.write_event().await?;
    relay.wait_reason("postgres", LIMIT).await?;
    stage.expect_empty_queue().await?;
    relay.wait_metric("postrider_events_quarantined_total", &[], 0.0).await?;

    lock.batch_execute("rollback").await?;
    stage.wait_message(&id).await?;
    let rows = stage.wait_rows("all of them", |rows| rows.len() == 60).await?;
    assert_eq!(count_states(&rows), [("parked", 60)].into());
    relay.wait_ready(LIMIT).await?;
    stage.wait_paid().await?;
    assert_eq!(relay.count_lines("the quarantine is in reach again"), 1, "{}", relay.log_text());
    relay.wait_metric("postrider_in_flight_events", &[], 0.0).await?;
    relay.expect_drain().await
}

#[tokio::test]
async fn a_relay_that_cannot_read_it_yet_is_not_ready_and_reads_nothing_else() -> Result<()> {
    let stage = Stage::new("quarantine unread").await?;
    let lock = stage.rig.sql().await?;
    lock.batch_execute("begin; lock table postrider.quarantine in access exclusive mode").await?;
    let mut relay = Run::start(&stage.rig.program)?;
    relay.wait_log("the slot streams", LIMIT).await?;
    relay.wait_log("the broker takes messages", LIMIT).await?;
    let id = stage.write_event().await?;
    relay.wait_reason("postgres", LIMIT).await?;
    let status = relay.status().await?;
    assert_eq!(status["detail"], "the quarantine is out of reach: no answer yet", "{status}");
    stage.expect_empty_queue().await?;
    lock.batch_execute("rollback").await?;
    stage.wait_message(&id).await?;
    relay.wait_ready(LIMIT).await?;
    relay.expect_drain().await
}
