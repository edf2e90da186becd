//! The pages for machines and the log.

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::run::{Run, expect};
use crate::stage::{LIMIT, Stage};
use crate::stops::expect_stop;

/// Section 7 of the contract, and what is held.
const METRICS: [&str; 19] = [
    "postrider_delivery_seconds",
    "postrider_events_held_total",
    "postrider_events_ignored_total",
    "postrider_events_published_total",
    "postrider_events_quarantined_total",
    "postrider_events_retried_total",
    "postrider_events_unrouted_total",
    "postrider_headers_dropped_total",
    "postrider_in_flight_bytes",
    "postrider_in_flight_events",
    "postrider_oldest_unconfirmed_seconds",
    "postrider_publish_seconds",
    "postrider_quarantine_events",
    "postrider_ready",
    "postrider_sessions_total",
    "postrider_slot_lag_bytes",
    "postrider_slot_retained_bytes",
    "postrider_slot_safe_bytes",
    "postrider_unreported_events",
];

/// The metrics of a page, by their TYPE lines, sorted; every series has the slot's label.
fn metrics(page: &str, slot: &str) -> Vec<String> {
    let label = format!("slot={slot:?}");
    for line in page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        assert!(line.contains(&label), "{line}");
    }
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let mut names: Vec<String> = types.map(str::to_owned).collect();
    names.sort();
    names
}

#[tokio::test]
async fn every_page_answers_from_the_start_to_the_end() -> Result<()> {
    let stage = Stage::new("pages").await?;
    // Nobody answers there: everything is still to come.
    let away = stage
        .rig
        .program
        .clone()
        .set("postgres.url", "postgres://a@127.0.0.1:1/b")
        .set("rabbitmq.url", "amqp://127.0.0.1:1");
    let mut relay = Run::start(&away)?;
    let page = relay.get("/metrics").await?;
    assert_eq!(metrics(&page.body, stage.name()), METRICS);
    assert_eq!(relay.get("/livez").await?.status, 200);
    assert_eq!(relay.get("/readyz").await?.status, 503);
    relay.expect_drain().await?;

    let mut relay = stage.ready().await?;
    let id = stage.write_event().await?;
    stage.wait_message(&id).await?;
    relay.wait_metric("postrider_events_published_total", &[], 1.0).await?;
    let page = relay.get("/metrics").await?;
    assert_eq!(metrics(&page.body, stage.name()), METRICS, "no series comes or goes");
    assert!(page.head.to_lowercase().contains("content-type: text/plain; version=0.0.4"), "{}", page.head);
    let figures = relay.metrics().await?;
    for (name, labels, value) in [
        ("postrider_ready", &[("reason", "ready")][..], 1.0),
        ("postrider_ready", &[], 1.0),
        ("postrider_in_flight_events", &[], 0.0),
        ("postrider_publish_seconds_count", &[], 1.0),
        ("postrider_delivery_seconds_count", &[], 1.0),
        ("postrider_oldest_unconfirmed_seconds", &[], 0.0),
        ("postrider_sessions_total", &[], 0.0),
    ] {
        let found = figures.sum(name, labels)?;
        assert!((found - value).abs() < 1e-9, "{name} is {found}, not {value}");
    }
    let ready = relay.get("/readyz").await?;
    assert_eq!((ready.status, ready.body.trim()), (200, r#"{"ready":true}"#));
    assert!(ready.head.to_lowercase().contains("content-type: application/json"), "{}", ready.head);
    // The report follows within its interval, and the slot after it.
    relay.wait_metric("postrider_unreported_events", &[], 0.0).await?;
    let status = relay.status().await?;
    for key in [
        "version",
        "slot",
        "ready",
        "reason",
        "detail",
        "since_s",
        "uptime_s",
        "broker",
        "owed",
        "lsn",
        "slot_bytes",
        "events",
    ] {
        assert!(status.get(key).is_some(), "find {key} in {status}");
    }
    assert_eq!((&status["slot"], &status["broker"]), (&stage.name().into(), &"ready".into()));
    assert_eq!((&status["owed"]["events"], &status["events"]["published"]), (&0.into(), &1.into()));
    assert_eq!(relay.get("/").await?.status, 404);
    relay.expect_drain().await
}

/// Every line is one JSON object; returns them.
fn objects(log: &[String]) -> Result<Vec<Value>> {
    let read = |line: &String| serde_json::from_str(line).with_context(|| format!("read the line {line}"));
    log.iter().map(read).collect()
}

#[tokio::test]
async fn a_json_log_is_one_object_a_line() -> Result<()> {
    let stage = Stage::new("json log").await?;
    let program = stage.rig.program.clone().set("log.format", "json");
    let mut relay = Run::start(&program)?;
    relay.wait_ready(LIMIT).await?;
    stage
        .execute(
            "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
             values ('order', '1', 'placed', '\"p4yl04d\"', '{\"a\": []}')",
        )
        .await?;
    stage.wait_states(&[("1", "parked")]).await?;
    relay.expect_drain().await?;
    let lines = objects(&relay.log())?;
    let event = lines.iter().find(|line| line["reason"] == "bad_header").context("the quarantined event")?;
    assert_eq!(event["level"], "WARN");
    assert!(event["position"].as_str().is_some_and(|position| position.ends_with("/0")), "{event}");
    assert!(event["message"].as_str().is_some_and(|text| text.starts_with("event quarantined: ")), "{event}");
    assert!(
        lines.iter().all(|line| line["timestamp"].is_string() && line["message"].is_string()),
        "{lines:?}"
    );

    stage.execute(&format!("select pg_drop_replication_slot('{}')", stage.name())).await?;
    let mut relay = Run::start(&program)?;
    relay.expect_end(1).await?;
    let lines = objects(&relay.log())?;
    let stop = lines.iter().find(|line| line["level"] == "ERROR").context("the stop")?;
    assert!(
        stop["message"].as_str().is_some_and(|text| text.contains("\n  cure: postrider slot create")),
        "{stop}"
    );
    Ok(())
}

#[tokio::test]
async fn the_most_talkative_log_shows_no_payload_and_no_secret() -> Result<()> {
    let stage = Stage::new("trace log").await?;
    let level = "trace,lapin=trace,lapin::returned_messages=trace,amq_protocol=trace,tokio_postgres=trace,\
                 pgwire_replication=trace,async_rs=trace,hyper=trace,rustls=trace";
    let program = stage.rig.program.clone().set("log.level", level).set("retry.attempts", "2");
    let mut relay = Run::start(&program)?;
    relay.wait_ready(LIMIT).await?;
    let nobody = stage.rig.scope.named("nobody");
    // Delivered, refused, and closing the channel.
    for columns in [
        ("headers", r#"{"h": "p4yl04d"}"#.to_owned()),
        ("headers", r#"{"h": ["p4yl04d"]}"#.to_owned()),
        ("exchange", nobody),
    ] {
        let (column, value) = columns;
        stage
            .execute(&format!(
                "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload, {column})
                 values ('order', gen_random_uuid(), 'placed', '\"p4yl04d\"', '{value}')"
            ))
            .await?;
    }
    stage.next_message().await?;
    relay.wait_log("reason=channel_closed", LIMIT).await?;
    relay.wait_log("reason=bad_header", LIMIT).await?;
    // Returned: the broker hands the whole message back.
    let unbound = stage.rig.queue.clone();
    unbound.delete().await?;
    stage.write_event().await?;
    relay.wait_log("reason=unrouted", LIMIT).await?;
    // And back from the table.
    let rows = stage.wait_rows("three rows", |rows| rows.len() == 3).await?;
    assert!(rows.iter().any(|row| row["reason"] == "unrouted"), "{rows:?}");
    let (printed, _) = expect(&stage.rig.admin, "quarantine retry --all", 1).await?;
    assert!(printed.contains("3 parked again"), "{printed}");
    relay.expect_drain().await?;
    assert!(relay.count_lines(" DEBUG ") > 0, "it is talkative:\n{}", relay.log_text());
    drop(relay);
    // A server that refuses the login quotes nothing of it.
    let url = stage.rig.scope.postgres_url("postrider_relay", "wr0ng-secret");
    expect_stop(&program.set("postgres.url", url), &["28P01"]).await.map(drop)
}
