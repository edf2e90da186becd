//! The events as messages, as the contract has them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use testenv::Sql;
use tokio::time::timeout;
use tokio_postgres::Row;

const LIMIT: Duration = Duration::from_secs(120);
const READ: &str = r#"
    select id::text, aggregate_type, aggregate_id, event_type, event_version, payload::text, aggregate_seq,
           to_char(occurred_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
           extract(epoch from occurred_at)::bigint
      from postrider.outbox"#;

/// One message.
pub(super) struct Message {
    id: String,
    aggregate_type: String,
    aggregate_id: String,
    event_type: String,
    event_version: i32,
    pub(super) body: Vec<u8>,
    aggregate_seq: i64,
    occurred_at: String,
    timestamp: u64,
    /// As long as a real one.
    position: String,
}

/// All that stands in the outbox.
pub(super) async fn read(url: &str) -> Result<Vec<Message>> {
    let sql = Sql::connect(url).await?;
    let rows = timeout(LIMIT, sql.query(READ, &[])).await.context("read the outbox in time")?;
    let rows = rows.context("read the outbox")?;
    rows.into_iter().enumerate().map(|(number, row)| Message::of(number, &row)).collect()
}

impl Message {
    fn of(number: usize, row: &Row) -> Result<Self> {
        let timestamp: i64 = row.try_get(8)?;
        Ok(Self {
            id: row.try_get(0)?,
            aggregate_type: row.try_get(1)?,
            aggregate_id: row.try_get(2)?,
            event_type: row.try_get(3)?,
            event_version: row.try_get(4)?,
            body: row.try_get::<_, String>(5)?.into_bytes(),
            aggregate_seq: row.try_get(6)?,
            occurred_at: row.try_get(7)?,
            timestamp: timestamp.try_into().context("read occurred_at")?,
            position: format!("0/{:08X}/0", 0x1000_0000 + number),
        })
    }

    pub(super) fn routing_key(&self) -> String {
        format!("{}.{}", self.aggregate_type, self.event_type)
    }

    pub(super) fn properties(&self) -> BasicProperties {
        let text = |text: &str| AMQPValue::LongString(text.into());
        let headers = [
            ("aggregate_type", text(&self.aggregate_type)),
            ("aggregate_id", text(&self.aggregate_id)),
            ("event_version", AMQPValue::LongInt(self.event_version)),
            ("aggregate_seq", AMQPValue::LongLongInt(self.aggregate_seq)),
            ("occurred_at", text(&self.occurred_at)),
            ("postrider_position", text(&self.position)),
        ];
        let headers: BTreeMap<ShortString, _> =
            headers.into_iter().map(|(name, value)| (name.into(), value)).collect();
        BasicProperties::default()
            .with_headers(FieldTable::from(headers))
            .with_delivery_mode(2)
            .with_message_id(self.id.as_str().into())
            .with_type(self.event_type.as_str().into())
            .with_content_type("application/json".into())
            .with_app_id("postrider".into())
            .with_timestamp(self.timestamp)
    }
}
