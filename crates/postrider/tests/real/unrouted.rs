//! An event type that nobody binds, under each word of `quarantine.unrouted`.

use anyhow::Result;
use serde_json::json;
use testenv::consumer::{Queue, QueueKind};

use crate::run::Run;
use crate::stage::{LIMIT, Stage};

/// The queue takes orders that are placed, and nobody takes those that are cancelled.
async fn stage(unrouted: &str) -> Result<Stage> {
    let mut stage = Stage::new(&format!("unrouted {unrouted}")).await?;
    stage.rig.program = stage
        .rig
        .program
        .clone()
        .set("quarantine.unrouted", unrouted)
        .set("retry.attempts", "2")
        .set("retry.first_ms", "20")
        .set("retry.max_ms", "300");
    stage.rig.queue.unbind(stage.name(), "#").await?;
    stage.rig.queue.bind(stage.name(), "order.placed").await?;
    Ok(stage)
}

/// Writes one event of this aggregate and returns its id.
async fn write(stage: &Stage, aggregate: &str, event_type: &str) -> Result<String> {
    stage
        .text(&format!(
            "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload)
             values ('order', '{aggregate}', '{event_type}', '\"p4yl04d\"') returning id::text"
        ))
        .await
}

/// The log names the route once, and what can be done about it.
async fn expect_hint(relay: &Run) -> Result<()> {
    let line = relay.wait_log("given up on this route", LIMIT).await?;
    for part in [
        "order.cancelled",
        "postrider quarantine retry",
        "quarantine.unrouted",
        "key parks",
        "event parks",
        "accept counts",
        "rabbitmqctl set_policy",
        "alternate-exchange",
    ] {
        assert!(line.contains(part), "expect {part:?} in {line}");
    }
    assert_eq!(relay.count_lines("given up on this route"), 1, "{}", relay.log_text());
    assert_eq!(relay.count_lines("its events wait and are tried again"), 1, "{}", relay.log_text());
    Ok(())
}

#[tokio::test]
async fn under_key_the_aggregate_waits_behind_it() -> Result<()> {
    let stage = stage("key").await?;
    let mut relay = stage.ready().await?;
    let placed = write(&stage, "1", "placed").await?;
    write(&stage, "1", "cancelled").await?;
    write(&stage, "1", "placed").await?;
    let rows = stage.wait_states(&[("1", "parked"), ("1", "parked")]).await?;
    assert_eq!(
        (&rows[0]["reason"], &rows[0]["scope"], &rows[0]["attempts"]),
        (&json!("unrouted"), &json!("key"), &json!(2))
    );
    assert_eq!((&rows[1]["reason"], &rows[1]["scope"]), (&json!("follower"), &json!("key")));
    expect_hint(&relay).await?;
    assert_eq!(stage.next_message().await?.message_id(), placed);
    // The route is known: those who come later do not wait out all attempts.
    write(&stage, "2", "cancelled").await?;
    let other = write(&stage, "3", "placed").await?;
    stage.wait_states(&[("1", "parked"), ("1", "parked"), ("2", "parked")]).await?;
    assert_eq!(stage.next_message().await?.message_id(), other);
    stage.wait_paid().await?;
    relay.wait_ready(LIMIT).await?;
    relay.wait_metric("postrider_events_unrouted_total", &[], 0.0).await?;
    expect_hint(&relay).await?;
    stage.expect_empty_queue().await?;
    relay.expect_drain().await
}

#[tokio::test]
async fn under_event_it_waits_alone() -> Result<()> {
    let stage = stage("event").await?;
    let mut relay = stage.ready().await?;
    let before = write(&stage, "1", "placed").await?;
    let cancelled = write(&stage, "1", "cancelled").await?;
    let behind = write(&stage, "1", "placed").await?;
    assert_eq!(stage.next_message().await?.message_id(), before);
    assert_eq!(stage.next_message().await?.message_id(), behind);
    let rows = stage.wait_states(&[("1", "parked")]).await?;
    assert_eq!((&rows[0]["reason"], &rows[0]["scope"]), (&json!("unrouted"), &json!("event")));
    assert_eq!(rows[0]["message_id"], cancelled.as_str());
    expect_hint(&relay).await?;
    stage.wait_paid().await?;
    relay.wait_metric("postrider_quarantine_events", &[], 1.0).await?;
    assert_eq!(relay.status().await?["quarantine"], json!({ "events": 1, "aggregates": 0 }));
    relay.expect_drain().await
}

#[tokio::test]
async fn under_accept_it_is_paid_and_counted() -> Result<()> {
    let stage = stage("accept").await?;
    let mut relay = stage.ready().await?;
    let before = write(&stage, "1", "placed").await?;
    write(&stage, "1", "cancelled").await?;
    let behind = write(&stage, "1", "placed").await?;
    assert_eq!(stage.next_message().await?.message_id(), before);
    assert_eq!(stage.next_message().await?.message_id(), behind);
    stage.wait_paid().await?;
    assert!(stage.rows().await?.is_empty());
    relay.wait_metric("postrider_events_unrouted_total", &[], 1.0).await?;
    relay.wait_metric("postrider_events_published_total", &[], 2.0).await?;
    expect_hint(&relay).await?;
    write(&stage, "2", "cancelled").await?;
    stage.wait_paid().await?;
    relay.wait_metric("postrider_events_unrouted_total", &[], 2.0).await?;
    relay.wait_ready(LIMIT).await?;
    stage.expect_empty_queue().await?;
    relay.expect_drain().await
}

#[tokio::test]
async fn with_the_hint_s_policy_the_broker_keeps_it() -> Result<()> {
    let stage = stage("key").await?;
    let (ctl, unrouted) = (stage.rig.scope.ctl(), stage.rig.scope.named("unrouted"));
    // A topic exchange with a queue for every key serves as a fanout exchange does.
    let kept = Queue::bound(stage.rig.queue.url(), &unrouted, QueueKind::Classic, &unrouted).await?;
    let definition = format!("{{\"alternate-exchange\":\"{unrouted}\"}}");
    let pattern = format!("^{}$", stage.name());
    ctl.run(&["set_policy", &unrouted, &pattern, &definition, "--apply-to", "exchanges"]).await?;
    let mut relay = stage.ready().await?;
    let id = write(&stage, "1", "cancelled").await?;
    let delivery = kept.wait_take(LIMIT).await?;
    assert_eq!((delivery.message_id(), &*delivery.routing_key), (&*id, "order.cancelled"));
    stage.wait_paid().await?;
    relay.wait_metric("postrider_events_published_total", &[], 1.0).await?;
    relay.wait_metric("postrider_events_retried_total", &[], 0.0).await?;
    assert!(stage.rows().await?.is_empty());
    relay.expect_drain().await?;
    ctl.run(&["clear_policy", &unrouted]).await.map(drop)
}
