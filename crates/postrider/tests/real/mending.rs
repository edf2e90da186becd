//! Rows that an operator mends, and messages that leave the quarantine as they would have gone without it.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::json;
use testenv::consumer::Delivery;

use crate::rows::Row;
use crate::run::expect;
use crate::stage::{LIMIT, Stage};

/// As an operator, who has the rights of `sql/roles.sql` and no others.
async fn mend(stage: &Stage, set: &str, aggregate: &str) -> Result<()> {
    let changed = format!(
        "begin; set local role postrider_operator;
         update postrider.quarantine set {set} where aggregate_id = '{aggregate}'; commit"
    );
    stage.execute(&changed).await
}

/// Writes an event of this aggregate, one column wrong.
async fn write(stage: &Stage, aggregate: &str, column: &str, value: &str) -> Result<()> {
    let event_type = if column == "event_type" { "" } else { "event_type, " };
    let placed = if column == "event_type" { "" } else { "'placed', " };
    stage
        .execute(&format!(
            "insert into postrider.outbox (aggregate_type, aggregate_id, payload, {event_type}{column})
             values ('order', '{aggregate}', '\"p4yl04d\"', {placed}{value})"
        ))
        .await
}

fn of<'a>(rows: &'a [Row], aggregate: &str) -> &'a Row {
    rows.iter().find(|row| row["aggregate_id"] == aggregate).expect("its row")
}

#[tokio::test]
async fn a_row_that_was_mended_goes_and_one_that_stays_bad_is_parked_again() -> Result<()> {
    let stage = Stage::new("mended").await?;
    stage.execute("alter table postrider.outbox alter column event_type drop not null").await?;
    let mut relay = stage.ready().await?;
    write(&stage, "key", "routing_key", "repeat('r', 256)").await?;
    write(&stage, "type", "event_type", "null").await?;
    write(&stage, "id", "headers", "'{\"CC\": \"p4yl04d\"}'").await?;
    write(&stage, "same", "routing_key", "repeat('s', 256)").await?;
    write(&stage, "worse", "routing_key", "repeat('t', 256)").await?;
    write(&stage, "as it is", "headers", "'{\"deep\": {\"p4yl04d\": 1}}'").await?;
    let before = stage.wait_rows("six rows", |rows| rows.len() == 6).await?;
    mend(&stage, "routing_key = 'order.mended'", "key").await?;
    mend(&stage, "event_type = 'placed', routing_key = 'order.placed'", "type").await?;
    mend(
        &stage,
        "message_id = 'mended', headers = '{\"cc\": \"p4yl04d\", \"n\": 7}', body = 'p4yl04d'",
        "id",
    )
    .await?;
    mend(&stage, "routing_key = 'order.mended', headers = '{\"h\": {\"deep\": \"p4yl04d\"}}'", "worse")
        .await?;
    let (printed, said) = expect(&stage.rig.admin, "quarantine retry --all", 1).await?;
    for part in
        ["6 events", "short_string: the routing key has 256 bytes", "bad_header: the header \"h\" is nested"]
    {
        assert!(printed.contains(part), "expect {part:?} in {printed}");
    }
    assert!(printed.ends_with("3 delivered, 3 parked again\n"), "{printed}");
    assert!(said.contains("mend the cause, then retry"), "{said}");

    let mut delivered = BTreeMap::new();
    for _ in 0..3 {
        let delivery = stage.next_message().await?;
        delivered.insert(delivery.text("postrider_position").context("a position")?.to_owned(), delivery);
    }
    let sent = |aggregate: &str| {
        let row = of(&before, aggregate);
        let delivery = &delivered[row["position"].as_str().expect("text")];
        (row, delivery)
    };
    let (row, delivery) = sent("key");
    assert_eq!(
        (delivery.message_id(), &*delivery.routing_key),
        (row["message_id"].as_str().expect("text"), "order.mended")
    );
    assert_eq!(delivery.body, b"\"p4yl04d\"");
    let (row, delivery) = sent("type");
    assert_eq!(
        (delivery.message_id(), &*delivery.routing_key),
        (row["message_id"].as_str().expect("text"), "order.placed")
    );
    assert_eq!(delivery.properties.message_type.as_deref(), Some("placed"));
    let (_, delivery) = sent("id");
    assert_eq!((delivery.message_id(), &*delivery.body), ("mended", &b"p4yl04d"[..]));
    assert_eq!(delivery.text("cc"), Some("p4yl04d"));
    let names: Vec<_> = delivery.headers.keys().filter(|name| *name != "x-delivery-count").collect();
    assert_eq!(names, ["cc", "n", "postrider_position"], "the headers as they were written, and our own");

    let rows = stage
        .wait_rows("none on its way", |rows| {
            rows.iter().filter(|row| row["state"] == "delivered").count() == 3
                && rows.iter().all(|row| row["state"] != "released")
        })
        .await?;
    for (aggregate, reason, says) in [
        ("same", "short_string", "256 bytes"),
        ("worse", "bad_header", "the header \"h\" is nested"),
        ("as it is", "bad_header", "the header \"deep\" is nested"),
    ] {
        let row = of(&rows, aggregate);
        assert_eq!((&row["state"], &row["reason"]), (&json!("parked"), &json!(reason)), "{row}");
        assert!(row["detail"].as_str().is_some_and(|detail| detail.contains(says)), "{row}");
        let line =
            relay.wait_log(&format!("position={} ", row["position"].as_str().expect("text")), LIMIT).await?;
        assert!(line.contains("quarantined"), "{line}");
    }
    assert_eq!(relay.count_lines("parked again"), 3, "{}", relay.log_text());
    relay.wait_metric("postrider_quarantine_events", &[], 3.0).await?;
    stage.expect_empty_queue().await?;
    relay.expect_drain().await
}

/// Every kind of row that goes directly: aggregate, table, columns and values.
const ROWS: [(&str, &str, &str, &str); 7] = [
    ("plain", "postrider.outbox", "payload", "'{ \"p4yl04d\" :  1.0, \"p4yl04d\" : null }'"),
    ("null", "postrider.outbox", "event_version", "7"),
    (
        "full",
        "postrider.outbox",
        "payload, headers, occurred_at, aggregate_seq, correlation_id, causation_id, traceparent,
         content_type, event_version",
        "'[]', '{\"text\": \"é\\n\\u0001\", \"empty\": \"\", \"long\": 9223372036854775807,
            \"least\": -9223372036854775808, \"more\": 9223372036854775808, \"fraction\": 1.50, \"yes\": true,
            \"no\": false, \"nothing\": null, \"event_versions\": 3, \"Event_version\": 4}',
         '2026-03-04 05:06:07.89+05:30', 9223372036854775807, 'cörrelation', 'causation',
         '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', 'application/vnd.order+json; v=7',
         -2147483648",
    ),
    ("ancient", "postrider.outbox", "payload, occurred_at", "'\"\"', '0044-03-15 12:00:00+00 BC'"),
    ("binary", "postrider.binary", "payload", "'\\x00ff7034796c30346400'"),
    ("nothing", "postrider.binary", "payload", "''"),
    ("words", "postrider.words", "payload", "E'p4yl04d é\\n\\\\x00'"),
];

/// Writes all of them, with the same ids each time, and takes them out of the tables again.
async fn write_all(stage: &Stage) -> Result<()> {
    for (aggregate, table, columns, values) in ROWS {
        let id = format!("md5('{aggregate}')::uuid");
        let at = if columns.contains("occurred_at") {
            ("", "")
        } else {
            ("occurred_at, ", "'2026-01-02 03:04:05.6Z', ")
        };
        stage
            .execute(&format!(
                "insert into {table} (id, aggregate_type, aggregate_id, event_type, {}{columns})
                 values ({id}, 'order', '{aggregate}', 'placed', {}{values});
                 delete from {table}",
                at.0, at.1
            ))
            .await?;
    }
    Ok(())
}

/// One of each, by aggregate.
async fn take_all(stage: &Stage) -> Result<BTreeMap<String, Delivery>> {
    let mut all = BTreeMap::new();
    while all.len() < ROWS.len() {
        let delivery = stage.next_message().await?;
        all.insert(delivery.text("aggregate_id").context("an aggregate")?.to_owned(), delivery);
    }
    stage.expect_empty_queue().await?;
    Ok(all)
}

#[tokio::test]
async fn a_message_comes_out_as_it_would_have_gone() -> Result<()> {
    let mut stage = Stage::new("unaltered").await?;
    let name = stage.name().to_owned();
    for (table, payload) in [("binary", "bytea"), ("words", "text")] {
        stage
            .execute(&format!(
                "create table postrider.{table} (like postrider.outbox including all);
                 alter table postrider.{table} alter payload type {payload} using null;
                 alter publication {name} add table postrider.{table}"
            ))
            .await?;
    }
    stage.rig.program = stage
        .rig
        .program
        .clone()
        .set("outbox.table", "postrider.outbox,postrider.binary,postrider.words")
        .set("retry.attempts", "1");
    let mut relay = stage.ready().await?;
    write_all(&stage).await?;
    let direct = take_all(&stage).await?;

    stage.rig.queue.unbind(&name, "#").await?;
    write_all(&stage).await?;
    let rows = stage.wait_rows("all of them", |rows| rows.len() == ROWS.len()).await?;
    stage.wait_paid().await?;
    stage.rig.queue.bind(&name, "#").await?;
    stage.retry("--all").await?;
    let retried = take_all(&stage).await?;
    for (aggregate, mut direct) in direct {
        let mut retried = retried[&aggregate].clone();
        let own = |delivery: &mut Delivery| {
            delivery.headers.remove("x-delivery-count");
            delivery.headers.remove("postrider_position")
        };
        let (before, position) = (own(&mut direct), own(&mut retried));
        assert_ne!(before, position);
        assert_eq!(retried.text("aggregate_id"), Some(&*aggregate));
        let row = of(&rows, &aggregate);
        let text = position.map(|position| format!("{position}"));
        assert_eq!(text, Some(format!("S {}", row["position"])), "its own place in the log");
        assert_eq!(retried.properties, direct.properties, "{aggregate}");
        assert_eq!(retried.headers, direct.headers, "{aggregate}");
        assert_eq!(retried.body, direct.body, "{aggregate}");
        assert_eq!((&retried.exchange, &retried.routing_key), (&direct.exchange, &direct.routing_key));
    }
    relay.wait_metric("postrider_quarantine_events", &[], 0.0).await?;
    relay.expect_drain().await
}
