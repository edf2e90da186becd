//! Events that cannot be sent go to the quarantine, complete: named once, counted, never shown, paid by their
//! rows, and the rest flows.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use testenv::consumer::{Queue, QueueKind};
use testenv::oracle::Commits;
use testenv::relay::Program;

use crate::rows::{Row, states};
use crate::stage::{LIMIT, MARKER, Stage};

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

/// Every column of a row that does not depend on why it is here, as the event of this aggregate makes it.
fn expect_event(row: &Row, stage: &Stage, aggregate: &str, position: &str) {
    for (column, value) in [
        ("position", json!(position)),
        ("state", json!("parked")),
        ("scope", json!("key")),
        ("attempts", json!(0)),
        ("aggregate_type", json!("order")),
        ("aggregate_id", json!(aggregate)),
        ("exchange", json!(stage.name())),
        ("command_lsn", Value::Null),
        ("command_index", Value::Null),
        ("command_id", Value::Null),
        ("changed_by", Value::Null),
    ] {
        assert_eq!(row[column], value, "{column} of {row}");
    }
    assert!(row["message_id"].as_str().is_some_and(|id| id.len() == 36), "{row}");
    assert!(row["timestamp_s"].as_i64().is_some_and(|seconds| seconds > 1_700_000_000), "{row}");
    let headers = &row["headers"];
    assert_eq!((&headers["aggregate_type"], &headers["aggregate_id"]), (&json!("order"), &json!(aggregate)));
    assert_eq!(headers["event_version"], json!(1));
    assert!(headers["occurred_at"].is_string() && headers.get("postrider_position").is_none(), "{row}");
}

/// The body as the table prints it.
fn hex(body: &str) -> String {
    let digits: Vec<String> = body.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("\\x{}", digits.concat())
}

#[tokio::test]
async fn what_cannot_be_carried_is_quarantined_and_the_rest_flows() -> Result<()> {
    let mut stage = Stage::new("poison").await?;
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

    // Every row pays its event: the slot passes them all.
    stage.wait_paid().await?;
    relay.wait_ready(LIMIT).await?;
    let rows = stage.rows().await?;
    assert_eq!(rows.len(), 2 * BAD.len());
    let commits = Commits::read(&stage.sql, &witness, stage.name()).await?;
    let commits: Vec<_> = commits.iter().collect();
    for (number, bad) in BAD.iter().enumerate() {
        let [poison, follower] = &rows[2 * number..2 * number + 2] else { unreachable!("two rows each") };
        let aggregate = format!("bad {number}");
        let positions = [0, 1].map(|nth| format!("{}/0", commits[3 * number + nth].commit_lsn));
        expect_event(poison, &stage, &aggregate, &positions[0]);
        expect_event(follower, &stage, &aggregate, &positions[1]);
        assert_eq!(poison["reason"], bad.reason);
        assert!(poison["detail"].as_str().is_some_and(|detail| detail.contains(bad.detail)), "{poison}");
        expect_poison(poison, number);

        assert_eq!(follower["reason"], "follower");
        assert_eq!(
            (&follower["routing_key"], &follower["event_type"]),
            (&json!("order.placed"), &json!("placed"))
        );
        assert_eq!(follower["content_type"], "application/json");
        assert_eq!(follower["body"], hex("\"p4yl04d\""));
        assert_eq!(follower["outbox_row"], Value::Null, "it is a message");
        assert_eq!(follower["aggregate_key"], poison["aggregate_key"]);

        let line = relay.wait_log(&format!("position={} ", positions[0]), LIMIT).await?;
        assert!(line.contains("WARN") && line.contains("event quarantined"), "{line}");
        assert!(line.contains(&format!("reason={}", bad.reason)) && line.contains(bad.detail), "{line}");
        let count = BAD.iter().filter(|other| other.reason == bad.reason).fold(0.0, |sum, _| sum + 1.0);
        let labels = [("reason", bad.reason)];
        relay.wait_metric("postrider_events_quarantined_total", &labels, count).await?;
    }
    assert_eq!(relay.count_lines("event quarantined"), BAD.len(), "each once:\n{}", relay.log_text());
    relay.wait_metric("postrider_events_quarantined_total", &[("reason", "follower")], 9.0).await?;
    for (name, value) in [
        ("postrider_events_held_total", 0.0),
        ("postrider_events_published_total", 11.0),
        ("postrider_sessions_total", 0.0),
        ("postrider_in_flight_events", 0.0),
        ("postrider_in_flight_bytes", 0.0),
        ("postrider_quarantine_events", 18.0),
    ] {
        relay.wait_metric(name, &[], value).await?;
    }
    let status = relay.status().await?;
    assert_eq!(status["quarantine"], json!({ "events": 18, "aggregates": 9 }));
    assert_eq!((&status["owed"]["events"], &status["owed"]["held"]), (&json!(0), &json!(0)), "{status}");
    assert_eq!((&status["events"]["quarantined"]["bad_header"], &status["ready"]), (&json!(3), &json!(true)));
    stage.expect_empty_queue().await?;
    relay.expect_drain().await?;

    // The next relay knows them, and what follows goes behind them.
    let mut relay = stage.ready().await?;
    relay.wait_metric("postrider_quarantine_events", &[], 18.0).await?;
    write(&stage, "bad 3", "payload", "'\"p4yl04d\"'").await?;
    let rows = stage.wait_rows("a follower of an earlier life", |rows| rows.len() == 19).await?;
    assert_eq!((&rows[18]["reason"], &rows[18]["aggregate_id"]), (&json!("follower"), &json!("bad 3")));
    stage.expect_empty_queue().await?;
    relay.expect_drain().await
}

/// What is particular to the poison of this number in [`BAD`].
fn expect_poison(row: &Row, number: usize) {
    let bad = &BAD[number];
    let own = &row["outbox_row"];
    if bad.reason == "header_too_large" {
        // A message, but for the broker that it met.
        assert_eq!(own, &Value::Null, "{}", row["reason"]);
        assert_eq!(row["headers"]["a"].as_str().map(str::len), Some(160_000));
        return;
    }
    // The row beside what could be made of it, but not the payload, which is the body.
    assert!(own.get("payload").is_none() && own["aggregate_id"] == row["aggregate_id"], "{own}");
    assert_eq!(own["id"], row["message_id"]);
    match bad.reason {
        "bad_header" => {
            assert!(own["headers"].as_str().is_some_and(|headers| headers.contains(MARKER)), "{own}");
            let name = ["a", "headers", "CC"][number];
            let kept = &row["headers"][name][0];
            assert!(kept.as_str().is_some_and(|printed| printed.contains(MARKER)), "to be mended: {row}");
            assert_eq!((&row["routing_key"], &row["body"]), (&json!("order.placed"), &json!("\\x")));
        }
        "null_column" => {
            assert_eq!((&own["event_type"], &row["event_type"]), (&Value::Null, &Value::Null));
            assert_eq!((&row["routing_key"], &row["body"]), (&Value::Null, &json!(hex("\"p4yl04d\""))));
        }
        "short_string" => {
            let long = row["routing_key"].as_str().into_iter().chain(row["correlation_id"].as_str());
            let long: Vec<_> =
                long.chain(row["content_type"].as_str()).filter(|text| text.len() > 255).collect();
            assert_eq!(long.len(), 1, "the long one as it is: {row}");
        }
        "message_too_large" => {
            assert_eq!(row["body"].as_str().map(str::len), Some(2 + 2 * 1002), "all of it");
        }
        other => panic!("{other} is not among the bad"),
    }
}

/// Two tries, and none that lasts.
fn patient(stage: &Stage) -> Program {
    let program = stage.rig.program.clone().set("retry.attempts", "2").set("retry.first_ms", "20");
    program.set("retry.max_ms", "300")
}

#[tokio::test]
async fn routes_that_take_nothing_are_given_up_and_come_back() -> Result<()> {
    let mut stage = Stage::new("poison routes").await?;
    stage.rig.program = patient(&stage);
    let mut relay = stage.ready().await?;
    // An exchange without a queue returns the message, one that is missing closes the channel.
    let (unbound, missing) = (stage.rig.scope.named("unbound"), stage.rig.scope.named("missing"));
    let other = stage.rig.scope.named("other");
    let url = stage.rig.scope.amqp_url();
    Queue::bound(&url, &other, QueueKind::Classic, &unbound).await?.delete().await?;
    for (aggregate, exchange) in [("unbound", &unbound), ("missing", &missing)] {
        write(&stage, aggregate, "payload, exchange", &format!("'\"p4yl04d\"', '{exchange}'")).await?;
        write(&stage, aggregate, "payload", "'\"p4yl04d\"'").await?;
    }
    let id = stage.write_event().await?;
    assert_eq!(stage.next_message().await?.message_id(), id, "others flow");
    let line = relay.wait_log("reason=unrouted", LIMIT).await?;
    assert!(line.contains(&format!("no queue is bound for its route: exchange {unbound:?}")), "{line}");
    let line = relay.wait_log("reason=channel_closed", LIMIT).await?;
    assert!(line.contains("404") && line.contains(&missing), "{line}");
    stage.wait_paid().await?;
    let rows = stage.rows().await?;
    let parked = [("unbound", "parked"), ("unbound", "parked"), ("missing", "parked"), ("missing", "parked")];
    assert_eq!(states(&rows), parked);
    let found: Vec<_> = rows.iter().map(|row| (row["reason"].clone(), row["attempts"].clone())).collect();
    assert_eq!(found[0], (json!("unrouted"), json!(2)), "retry.attempts");
    assert_eq!((&found[1], &found[3]), (&(json!("follower"), json!(0)), &(json!("follower"), json!(0))));
    assert_eq!(found[2].0, json!("channel_closed"));
    relay.wait_ready(LIMIT).await?;
    assert_eq!(relay.count_lines("event quarantined"), 2, "{}", relay.log_text());
    stage.expect_empty_queue().await?;

    stage.rig.queue.bind(&unbound, "#").await?;
    stage.rig.queue.bind(&missing, "#").await?;
    stage.retry("--all").await?;
    let mut exchanges: HashMap<String, Vec<String>> = HashMap::new();
    for _ in 0..4 {
        let delivery = stage.next_message().await?;
        let aggregate = delivery.text("aggregate_id").context("an aggregate")?.to_owned();
        exchanges.entry(aggregate).or_default().push(delivery.exchange);
    }
    let own = stage.name().to_owned();
    assert_eq!(exchanges["unbound"], [unbound, own.clone()]);
    assert_eq!(exchanges["missing"], [missing, own]);
    relay.wait_metric("postrider_quarantine_events", &[], 0.0).await?;
    relay.expect_drain().await
}

#[tokio::test]
async fn a_column_that_goes_is_missed_from_then_on() -> Result<()> {
    let stage = Stage::new("poison column").await?;
    let mut relay = stage.ready().await?;
    let id = stage.write_event().await?;
    stage.wait_message(&id).await?;
    stage.execute("alter table postrider.outbox rename column event_type to kind").await?;
    let insert = "insert into postrider.outbox (aggregate_type, aggregate_id, kind, payload)
                  values ('order', '1', 'placed', '\"p4yl04d\"')";
    stage.execute(insert).await?;
    let line = relay.wait_log("reason=missing_column", LIMIT).await?;
    assert!(line.contains("the table has no column event_type"), "{line}");
    stage.wait_paid().await?;
    let rows = stage.wait_states(&[("1", "parked")]).await?;
    assert_eq!((&rows[0]["reason"], &rows[0]["event_type"]), (&json!("missing_column"), &Value::Null));
    assert_eq!((&rows[0]["aggregate_id"], &rows[0]["body"]), (&json!("1"), &json!(hex("\"p4yl04d\""))));
    assert_eq!(rows[0]["outbox_row"]["aggregate_id"], "1", "{}", rows[0]);
    stage.expect_empty_queue().await?;
    relay.expect_drain().await
}
