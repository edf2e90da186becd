//! Events that cannot be sent are held: named once, counted, never shown, and the rest flows.

use anyhow::{Context as _, Result};
use testenv::eventually;
use testenv::oracle::{Commits, Slot};

use crate::stage::{LIMIT, Stage};

/// A row: the columns besides aggregate and type, and their values.
struct Bad {
    reason: &'static str,
    columns: &'static str,
    values: &'static str,
    /// What the log says of it.
    detail: &'static str,
}

const fn bad(reason: &'static str, columns: &'static str, values: &'static str, detail: &'static str) -> Bad {
    Bad { reason, columns, values, detail }
}

const BAD: [Bad; 9] = [
    bad("bad_header", "headers", r#"'{"a": {"p4yl04d": 1}}'"#, "the header \"a\" is nested"),
    bad("bad_header", "headers", r#"'["p4yl04d"]'"#, "no JSON object"),
    bad(
        "bad_header",
        "headers",
        r#"'{"CC": "p4yl04d"}'"#,
        "the header CC would make the broker route copies",
    ),
    bad("null_column", "payload, event_type", "'\"p4yl04d\"', null", "the column event_type is NULL"),
    bad("short_string", "routing_key", "repeat('r', 256)", "the routing key has 256 bytes, at most 255"),
    bad(
        "short_string",
        "correlation_id",
        "repeat('é', 128)",
        "the correlation id has 256 bytes, at most 255",
    ),
    bad("short_string", "content_type", "repeat('p4yl04d', 37)", "the content type has 259 bytes"),
    bad(
        "message_too_large",
        "payload",
        "to_json(repeat('p4yl04d!', 125))",
        "the body has 1002 bytes, at most 1000",
    ),
    bad(
        "header_too_large",
        "headers",
        "json_build_object('a', repeat('p4yl04d!', 20000))",
        "frame_max is 131072",
    ),
];

/// Writes an event of this aggregate in a transaction of its own; later columns win.
async fn write(stage: &Stage, aggregate: &str, columns: &str, values: &str) -> Result<()> {
    let event_type = if columns.contains("event_type") { ("", "") } else { (", event_type", ", 'placed'") };
    stage
        .execute(&format!(
            "insert into postrider.outbox (aggregate_type, aggregate_id{}, {columns})
             values ('order', '{aggregate}'{}, {values})",
            event_type.0, event_type.1
        ))
        .await
}

#[tokio::test]
async fn what_cannot_be_carried_is_held_and_the_rest_flows() -> Result<()> {
    let mut stage = Stage::new("held").await?;
    stage.rig.program = stage.rig.program.clone().set("rabbitmq.message_bytes_max", "1000");
    stage.execute("alter table postrider.outbox alter column event_type drop not null").await?;
    let witness = stage.rig.scope.named("witness");
    Commits::watch(&stage.sql, &witness).await?;
    let mut relay = stage.ready().await?;
    for (number, row) in BAD.iter().enumerate() {
        let aggregate = format!("bad {number}");
        write(&stage, &aggregate, row.columns, row.values).await?;
        write(&stage, &aggregate, "payload", "'\"p4yl04d\"'").await?;
        write(&stage, &format!("good {number}"), "payload", "'\"p4yl04d\"'").await?;
    }
    // The largest that can be carried.
    write(&stage, "good 9", "payload", "to_json(rpad('p4yl04d', 998, '!'))").await?;
    write(&stage, "good 10", "routing_key", "repeat('r', 255)").await?;
    let mut delivered = Vec::new();
    while delivered.len() < BAD.len() + 2 {
        let delivery = stage.next_message().await?;
        delivered.push(delivery.text("aggregate_id").context("an aggregate")?.to_owned());
    }
    delivered.sort();
    let mut expected: Vec<String> = (0..BAD.len() + 2).map(|number| format!("good {number}")).collect();
    expected.sort();
    assert_eq!(delivered, expected, "events of other aggregates, and no others");

    relay.wait_reason("held", LIMIT).await?;
    relay.wait_metric("postrider_events_held_total", &[], 9.0).await?;
    let commits = Commits::read(&stage.sql, &witness, stage.name()).await?;
    let commits: Vec<_> = commits.iter().collect();
    for (number, row) in BAD.iter().enumerate() {
        let position = format!("position={}/0 ", commits[3 * number].commit_lsn);
        let line = relay.wait_log(&position, LIMIT).await?;
        assert!(line.contains("WARN") && line.contains("event held"), "{line}");
        assert!(line.contains(&format!("reason={}", row.reason)) && line.contains(row.detail), "{line}");
        let count = BAD.iter().filter(|other| other.reason == row.reason).count();
        let labels = [("reason", row.reason)];
        let held = relay.metrics().await?.sum("postrider_events_held_total", &labels)?;
        assert_eq!(format!("{held}"), count.to_string(), "{}", row.reason);
    }
    assert_eq!(relay.count_lines("event held"), BAD.len(), "each once:\n{}", relay.log_text());

    // The held ones, and those behind them.
    relay.wait_metric("postrider_in_flight_events", &[], 18.0).await?;
    let status = relay.status().await?;
    assert_eq!((&status["owed"]["held"], &status["reason"]), (&9.into(), &"held".into()), "{status}");
    assert!(relay.metric("postrider_sessions_total").await?.abs() < 1e-9, "no connection was lost");
    let slot = Slot::read(&stage.sql, stage.name()).await?.context("the slot")?;
    assert!(slot.confirmed_flush_lsn <= commits[0].commit_lsn, "the slot stands before the first: {slot:?}");
    stage.expect_empty_queue().await?;
    relay.expect_drain().await?;
    let slot = Slot::read(&stage.sql, stage.name()).await?.context("the slot")?;
    assert!(slot.confirmed_flush_lsn <= commits[0].commit_lsn, "a drain pays nothing: {slot:?}");
    Ok(())
}

#[tokio::test]
async fn a_route_that_comes_to_be_releases_what_was_held() -> Result<()> {
    let mut stage = Stage::new("held routes").await?;
    stage.rig.program = stage.rig.program.clone().set("retry.max_ms", "400");
    let mut relay = stage.ready().await?;
    // An exchange without a queue returns the message, one that is missing closes the channel.
    let (unbound, missing) = (stage.rig.scope.named("unbound"), stage.rig.scope.named("missing"));
    testenv::consumer::Queue::bound(
        &stage.rig.scope.amqp_url(),
        &stage.rig.scope.named("other"),
        testenv::consumer::QueueKind::Classic,
        &unbound,
    )
    .await?
    .delete()
    .await?;
    for (aggregate, exchange) in [("unbound", &unbound), ("missing", &missing)] {
        write(&stage, aggregate, "payload, exchange", &format!("'\"p4yl04d\"', '{exchange}'")).await?;
        write(&stage, aggregate, "payload", "'\"p4yl04d\"'").await?;
    }
    let id = stage.write_event().await?;
    assert_eq!(stage.next_message().await?.message_id(), id, "others flow");
    let line = relay.wait_log("reason=unrouted", LIMIT).await?;
    assert!(line.contains(&format!("no queue is bound for exchange {unbound:?}")), "{line}");
    let line = relay.wait_log("reason=channel_closed", LIMIT).await?;
    assert!(line.contains("404") && line.contains(&missing), "{line}");
    relay.wait_reason("held", LIMIT).await?;
    // Several tries later it is still said once, and nothing has overtaken.
    eventually("more tries", LIMIT, async || {
        let metrics = relay.metrics().await?;
        let tries = |reason| metrics.sum("postrider_events_retried_total", &[("reason", reason)]);
        Ok((tries("unrouted")? >= 3.0 && tries("channel_closed")? >= 3.0).then_some(()))
    })
    .await?;
    assert_eq!(relay.count_lines("event held"), 2, "{}", relay.log_text());
    stage.expect_empty_queue().await?;

    stage.rig.queue.bind(&unbound, "#").await?;
    stage.rig.queue.bind(&missing, "#").await?;
    let mut exchanges: std::collections::HashMap<String, Vec<String>> = std::collections::HashMap::new();
    for _ in 0..4 {
        let delivery = stage.next_message().await?;
        let aggregate = delivery.text("aggregate_id").context("an aggregate")?.to_owned();
        exchanges.entry(aggregate).or_default().push(delivery.exchange);
    }
    let own = stage.name().to_owned();
    assert_eq!(exchanges["unbound"], [unbound, own.clone()]);
    assert_eq!(exchanges["missing"], [missing, own]);
    relay.wait_ready(LIMIT).await?;
    assert_eq!(relay.count_lines("event delivered that was held"), 2);
    relay.expect_drain().await
}

#[tokio::test]
async fn a_column_that_goes_is_missed_from_then_on() -> Result<()> {
    let stage = Stage::new("held column").await?;
    let mut relay = stage.ready().await?;
    let id = stage.write_event().await?;
    stage.wait_message(&id).await?;
    stage.execute("alter table postrider.outbox rename column event_type to kind").await?;
    stage
        .execute(
            "insert into postrider.outbox (aggregate_type, aggregate_id, kind, payload)
             values ('order', '1', 'placed', '\"p4yl04d\"')",
        )
        .await?;
    let line = relay.wait_log("reason=missing_column", LIMIT).await?;
    assert!(line.contains("the table has no column event_type"), "{line}");
    relay.wait_reason("held", LIMIT).await?;
    stage.expect_empty_queue().await?;
    relay.expect_drain().await
}
