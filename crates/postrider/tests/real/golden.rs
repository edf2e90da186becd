//! The message as the contract has it: every property, and every header with its AMQP type.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use testenv::consumer::{Delivery, Properties, Value};

use crate::stage::{LIMIT, Stage};

/// Of the quorum queue, not of the message.
const DELIVERY_COUNT: &str = "x-delivery-count";

const ID: &str = "0190c5d4-77a1-7e10-8b1c-3f1a2b3c4d5e";

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

/// All headers. The position differs from run to run, so that its form is checked, and a quorum queue adds one.
fn headers(mut delivery: Delivery, expected: &[(&str, Value)]) -> Result<()> {
    delivery.headers.remove(DELIVERY_COUNT);
    let read = delivery.position().context("read the position")?;
    let position = delivery.text("postrider_position").context("find the position")?;
    assert_eq!(read.to_string(), position, "as Postgres prints an LSN");
    let mut expected: BTreeMap<String, Value> =
        expected.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    expected.insert("postrider_position".to_owned(), text(position));
    assert_eq!(delivery.headers, expected);
    Ok(())
}

#[tokio::test]
async fn a_row_of_defaults_becomes_a_message_of_defaults() -> Result<()> {
    let stage = Stage::new("golden defaults").await?;
    let mut relay = stage.ready().await?;
    let row = stage
        .sql
        .query_one(
            "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload)
             values ('order', '42', 'placed', '{\"p4yl04d\":  1}')
             returning id::text, extract(epoch from date_trunc('second', occurred_at))::bigint,
               to_char(occurred_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')",
            &[],
        )
        .await?;
    let (id, seconds, moment): (String, i64, String) = (row.get(0), row.get(1), row.get(2));
    let delivery = stage.next_message().await?;
    assert_eq!((delivery.exchange.as_str(), delivery.routing_key.as_str()), (stage.name(), "order.placed"));
    assert_eq!(delivery.body, b"{\"p4yl04d\":  1}");
    let properties = Properties {
        content_type: Some("application/json".to_owned()),
        delivery_mode: Some(2),
        message_id: Some(id),
        timestamp: Some(seconds.try_into()?),
        message_type: Some("placed".to_owned()),
        app_id: Some("postrider".to_owned()),
        ..Properties::default()
    };
    assert_eq!(delivery.properties, properties);
    assert_eq!(delivery.position().context("a position")?.index, 0);
    headers(
        delivery,
        &[
            ("aggregate_type", text("order")),
            ("aggregate_id", text("42")),
            ("event_version", Value::Int(1)),
            ("occurred_at", text(&moment)),
        ],
    )?;
    stage.expect_empty_queue().await?;
    relay.expect_drain().await
}

#[tokio::test]
async fn a_row_with_everything_becomes_a_message_with_everything() -> Result<()> {
    let stage = Stage::new("golden everything").await?;
    let elsewhere = stage.rig.scope.named("elsewhere");
    stage.rig.queue.bind(&elsewhere, "the.row's #key").await?;
    let mut relay = stage.ready().await?;
    stage
        .sql
        .execute(
            "insert into postrider.outbox values ($1::text::uuid, 'órder', 'Ä/1', 'p l a c e d', 7,
               '{ \"p4yl04d\" : [1.0, 1e2, \"\\u00e9é\"], \"p4yl04d\" : null }',
               '{\"text\": \"é\\n\", \"empty\": \"\", \"long\": 9223372036854775807, \"least\": -9223372036854775808,
                 \"more\": 9223372036854775808, \"fraction\": 1.50, \"large\": 1e300, \"yes\": true, \"no\": false,
                 \"nothing\": null, \"Traceparent\": \"theirs\"}',
               '2026-03-04 05:06:07.89+05:30', 9223372036854775807, 'cörrelation', 'causation',
               '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
               'the.row''s #key', $2, 'application/vnd.order+json; v=7')",
            &[&ID, &elsewhere],
        )
        .await?;
    let delivery = stage.next_message().await?;
    assert_eq!((delivery.exchange.as_str(), delivery.routing_key.as_str()), (&*elsewhere, "the.row's #key"));
    assert_eq!(
        String::from_utf8_lossy(&delivery.body),
        r#"{ "p4yl04d" : [1.0, 1e2, "\u00e9é"], "p4yl04d" : null }"#,
        "json keeps the bytes that were written"
    );
    let properties = Properties {
        content_type: Some("application/vnd.order+json; v=7".to_owned()),
        delivery_mode: Some(2),
        correlation_id: Some("cörrelation".to_owned()),
        message_id: Some(ID.to_owned()),
        timestamp: Some(1_772_580_967),
        message_type: Some("p l a c e d".to_owned()),
        app_id: Some("postrider".to_owned()),
        ..Properties::default()
    };
    assert_eq!(delivery.properties, properties);
    let large = format!("1{}", "0".repeat(300));
    headers(
        delivery,
        &[
            ("aggregate_type", text("órder")),
            ("aggregate_id", text("Ä/1")),
            ("event_version", Value::Int(7)),
            ("aggregate_seq", Value::Long(i64::MAX)),
            ("causation_id", text("causation")),
            ("occurred_at", text("2026-03-03T23:36:07.890000Z")),
            ("traceparent", text("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")),
            ("text", text("é\n")),
            ("empty", text("")),
            ("long", Value::Long(i64::MAX)),
            ("least", Value::Long(i64::MIN)),
            ("more", text("9223372036854775808")),
            ("fraction", text("1.50")),
            ("large", text(&large)),
            ("yes", Value::Bool(true)),
            ("no", Value::Bool(false)),
            ("Traceparent", text("theirs")),
        ],
    )?;
    relay.expect_drain().await
}

#[tokio::test]
async fn headers_whose_name_is_ours_are_left_out_and_said_once() -> Result<()> {
    let stage = Stage::new("golden reserved").await?;
    let mut relay = stage.ready().await?;
    for aggregate in ["1", "2"] {
        stage
            .sql
            .execute(
                "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
                 values ('order', $1, 'placed', '1', '{\"aggregate_id\": \"x\", \"payload_null\": true,
                   \"postrider_position\": \"0/0/0\", \"postrider_mine\": 1, \"kept\": \"y\"}')",
                &[&aggregate],
            )
            .await?;
        let delivery = stage.next_message().await?;
        let names: Vec<&str> =
            delivery.headers.keys().map(String::as_str).filter(|name| *name != DELIVERY_COUNT).collect();
        let expected =
            ["aggregate_id", "aggregate_type", "event_version", "kept", "occurred_at", "postrider_position"];
        assert_eq!(names, expected);
        assert_eq!(delivery.text("aggregate_id"), Some(aggregate));
        assert_ne!(delivery.text("postrider_position"), Some("0/0/0"));
    }
    relay.wait_metric("postrider_headers_dropped_total", &[], 8.0).await?;
    for name in ["aggregate_id", "payload_null", "postrider_position", "postrider_mine"] {
        assert_eq!(relay.count_lines(&format!("name=\"{name}\"")), 1, "{}", relay.log_text());
    }
    relay.expect_drain().await
}

#[tokio::test]
async fn a_moment_is_sent_as_far_as_it_can_be_carried() -> Result<()> {
    let stage = Stage::new("golden moments").await?;
    let mut relay = stage.ready().await?;
    for (moment, timestamp, header) in [
        ("1970-01-01 00:00:00+00", Some(0), Some("1970-01-01T00:00:00.000000Z")),
        ("1969-12-31 23:59:59.999999+00", None, Some("1969-12-31T23:59:59.999999Z")),
        ("0001-01-01 00:00:00+00", None, Some("0001-01-01T00:00:00.000000Z")),
        ("0044-03-15 12:00:00+00 BC", None, None),
        ("9999-12-31 23:59:59.5+00", Some(253_402_300_799), Some("9999-12-31T23:59:59.500000Z")),
        ("12026-01-01 00:00:00+00", Some(317_336_745_600), None),
        ("infinity", None, None),
        ("-infinity", None, None),
    ] {
        stage
            .sql
            .execute(
                "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload, occurred_at)
                 values ('order', $1, 'placed', '1', $1::text::timestamptz)",
                &[&moment],
            )
            .await?;
        let delivery = stage.next_message().await?;
        assert_eq!(delivery.text("aggregate_id"), Some(moment));
        assert_eq!(delivery.properties.timestamp, timestamp, "{moment}");
        assert_eq!(delivery.text("occurred_at"), header, "{moment}");
    }
    relay.wait_log("listening on", LIMIT).await?;
    relay.expect_drain().await
}
