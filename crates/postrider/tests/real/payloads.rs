//! The body: the payload's bytes exactly as Postgres prints the column, whatever its type.

use anyhow::Result;
use testenv::Scope;
use testenv::consumer::{Properties, Value};

use crate::run;
use crate::stage::Stage;

#[tokio::test]
async fn a_null_payload_is_an_empty_body_with_a_header() -> Result<()> {
    let stage = Stage::new("payload null").await?;
    let mut relay = stage.ready().await?;
    stage
        .execute(
            "insert into postrider.outbox (aggregate_type, aggregate_id, event_type) values ('order', '1', 'gone')",
        )
        .await?;
    let delivery = stage.next_message().await?;
    assert_eq!(delivery.body, b"");
    assert_eq!(delivery.headers.get("payload_null"), Some(&Value::Bool(true)));
    assert_eq!(delivery.properties.content_type.as_deref(), Some("application/json"));
    // JSON's null is a payload.
    stage
        .execute(
            "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload)
             values ('order', '1', 'null', 'null')",
        )
        .await?;
    let delivery = stage.next_message().await?;
    assert_eq!(delivery.body, b"null");
    assert_eq!(delivery.headers.get("payload_null"), None);
    relay.expect_drain().await
}

#[tokio::test]
async fn other_outboxes_carry_jsonb_text_and_bytea() -> Result<()> {
    let mut stage = Stage::bare(Scope::shared("payload types").await?).await?;
    let tables = ["public.json_b", "public.text", "\"Über\".\"by.tea\""];
    let list = tables.join(",");
    stage.rig.admin = stage.rig.admin.clone().set("outbox.table", &list);
    stage.rig.program = stage.rig.program.clone().set("outbox.table", &list);
    // Tables of the user's own: `init` creates everything else.
    stage.execute("create schema \"Über\"").await?;
    for (table, payload) in tables.iter().zip(["jsonb", "text", "bytea"]) {
        stage
            .execute(&format!(
                "create table {table} (id text primary key, aggregate_type text, aggregate_id text,
                   event_type varchar(20), event_version integer, payload {payload}, content_type text)"
            ))
            .await?;
    }
    run::expect(&stage.rig.admin, "init", 0).await?;
    stage.rig.grant().await?;
    let mut relay = stage.ready().await?;

    let all: Vec<String> = (0..=255_u8).map(|byte| format!("{byte:02x}")).collect();
    let bytes = format!("'\\x{}'", all.concat());
    let json = "application/json";
    let text = "text/plain; charset=utf-8";
    let octets = "application/octet-stream";
    for (number, (table, payload, printed, content_type)) in [
        (0, r#"'{"b": 1.0, "a": "é", "p4yl04d": [1, 2e3]}'"#, None, json),
        (0, "'\"p4yl04d\"'", Some(b"\"p4yl04d\"".to_vec()), json),
        (1, "E'p4yl04d é\\n\\t\"\\\\x00'", Some("p4yl04d é\n\t\"\\x00".as_bytes().to_vec()), text),
        (1, "''", Some(Vec::new()), text),
        (2, bytes.as_str(), Some((0..=255).collect()), octets),
        (2, "''", Some(Vec::new()), octets),
    ]
    .into_iter()
    .enumerate()
    {
        let table = tables[table];
        let printed = match printed {
            Some(printed) => printed,
            None => stage.text(&format!("select {payload}::jsonb::text")).await?.into_bytes(),
        };
        let values = format!("('{number}', 'order', '{number}', 'placed', 3, {payload}, null)");
        stage.execute(&format!("insert into {table} values {values}")).await?;
        let delivery = stage.next_message().await?;
        assert_eq!(delivery.message_id(), number.to_string());
        assert_eq!(delivery.body, printed, "{payload}");
        assert_eq!(delivery.headers.get("event_version"), Some(&Value::Int(3)));
        assert_eq!(
            delivery.properties,
            Properties {
                content_type: Some(content_type.to_owned()),
                delivery_mode: Some(2),
                message_id: Some(number.to_string()),
                message_type: Some("placed".to_owned()),
                app_id: Some("postrider".to_owned()),
                ..Properties::default()
            },
            "a column that is not there is not sent"
        );
    }
    relay.expect_drain().await
}
