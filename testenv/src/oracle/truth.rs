//! The truth: which events are committed, read from Postgres itself.

use std::collections::HashMap;

use anyhow::{Context as _, Result, ensure};
use tokio_postgres::Client;
use tokio_postgres::types::PgLsn;

use super::quarantine::{Kept, Quarantine, State};
use super::verdict::Offender;
use crate::consumer::{Delivery, Value};

/// Every committed event, and how many were written at all.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    events: HashMap<String, Event>,
    kept: HashMap<String, Kept>,
    attempted: u64,
}

/// One committed event, as the ledger or the outbox has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The outbox row's `id`.
    pub id: String,
    /// The aggregate's type.
    pub aggregate_type: String,
    /// The aggregate.
    pub aggregate_id: String,
    /// 1, 2, 3 … in the order of commits; its header is sent only if the outbox has it.
    pub aggregate_seq: i64,
    /// The payload's bytes as Postgres prints them; `None` for SQL NULL.
    pub payload: Option<Vec<u8>>,
    /// Where the writer saw it go into the log; `None` for events that the writer did not write.
    pub place: Option<Place>,
}

/// What the writer's transaction saw of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The transaction, the lower 32 bits of its id.
    pub xid: u32,
    /// The event's index among the transaction's surviving events, from 0.
    pub index: u32,
    /// The end of the log when it was inserted: the commit record cannot stand before it.
    pub written_lsn: PgLsn,
    /// The end of the log when a later transaction inserted the aggregate's next event, which it could do only after
    /// this one's commit record.
    pub next_lsn: Option<PgLsn>,
}

impl Truth {
    /// Reads the writer's ledger; it holds even if the outbox rows are deleted.
    pub async fn of_ledger(sql: &Client) -> Result<Self> {
        let rows = sql
            .query(
                "select id::text, aggregate_type, aggregate_id, aggregate_seq, payload, xid::text, written_lsn,
                        row_number() over (partition by xid order by n) - 1,
                        case when lead(xid) over later <> xid then lead(written_lsn) over later end
                   from shop.ledger
                 window later as (partition by aggregate_type, aggregate_id order by aggregate_seq)",
                &[],
            )
            .await
            .context("read the ledger")?;
        let mut truth = Self::default();
        for row in rows {
            let xid: u64 = row.get::<_, &str>(5).parse().context("read a transaction id")?;
            let place = Place {
                xid: u32::try_from(xid & u64::from(u32::MAX))?,
                index: u32::try_from(row.get::<_, i64>(7))?,
                written_lsn: row.get(6),
                next_lsn: row.get(8),
            };
            truth.add(Event {
                id: row.get(0),
                aggregate_type: row.get(1),
                aggregate_id: row.get(2),
                aggregate_seq: row.get(3),
                payload: row.get::<_, Option<String>>(4).map(String::into_bytes),
                place: Some(place),
            })?;
        }
        let sequence = "select case when is_called then last_value else 0 end from shop.ledger_n_seq";
        let attempted: i64 = sql.query_one(sequence, &[]).await.context("read the ledger's sequence")?.get(0);
        truth.attempted = u64::try_from(attempted)?;
        Ok(truth)
    }

    /// Reads an outbox table whose rows stay and carry `aggregate_seq`, for events that a test wrote by hand.
    pub async fn of_outbox(sql: &Client, table: &str) -> Result<Self> {
        let query = format!(
            "select id::text, aggregate_type, aggregate_id, aggregate_seq, payload::text from {table}"
        );
        let mut truth = Self::default();
        for row in sql.query(&query, &[]).await.with_context(|| format!("read {table}"))? {
            truth.add(Event {
                id: row.get(0),
                aggregate_type: row.get(1),
                aggregate_id: row.get(2),
                aggregate_seq: row.try_get(3).context("read aggregate_seq, which order is judged by")?,
                payload: row.get::<_, Option<String>>(4).map(String::into_bytes),
                place: None,
            })?;
        }
        truth.attempted = truth.events.len() as u64;
        Ok(truth)
    }

    /// Adds one event; its id must be new.
    pub fn add(&mut self, event: Event) -> Result<()> {
        self.attempted += 1;
        let id = event.id.clone();
        ensure!(self.events.insert(event.id.clone(), event).is_none(), "add event {id}: it is there already");
        Ok(())
    }

    /// From now on what stands in quarantine counts as accounted for; without this it is lost.
    #[must_use]
    pub fn with(mut self, quarantine: &Quarantine) -> Self {
        let named = |row: &Kept| Some((row.message_id.clone()?, row.clone()));
        self.kept = quarantine.rows().iter().filter_map(named).collect();
        self
    }

    /// Only the events that are not among these deliveries: what is still to come, for a consumer to wait for.
    #[must_use]
    pub fn without(mut self, deliveries: &[Delivery]) -> Self {
        for delivery in deliveries {
            self.events.remove(delivery.message_id());
        }
        self
    }

    /// The event's row in quarantine, in whatever state.
    pub(super) fn kept(&self, message_id: &str) -> Option<&Kept> {
        self.kept.get(message_id)
    }

    /// Whether the event is accounted for without having arrived.
    pub(super) fn is_kept(&self, message_id: &str) -> bool {
        self.kept(message_id).is_some_and(|row| row.state != State::Delivered)
    }

    /// Rows in quarantine of events that are not committed.
    pub(super) fn uncommitted(&self) -> impl Iterator<Item = &Kept> {
        self.kept.iter().filter(|(id, _)| !self.events.contains_key(*id)).map(|(_, row)| row)
    }

    /// The events that have to arrive: all but those that stand in quarantine.
    pub fn awaited(&self) -> impl Iterator<Item = &Event> {
        self.events().filter(|event| !self.is_kept(&event.id))
    }

    /// How many events are committed.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing is committed.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// How many events were written and rolled back. A crash of Postgres may skip up to 32 of the sequence's
    /// numbers, which then count here.
    pub fn rolled_back(&self) -> u64 {
        self.attempted.saturating_sub(self.events.len() as u64)
    }

    /// Every committed event, in no order.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.events.values()
    }

    /// The event with this message id.
    pub fn event(&self, message_id: &str) -> Option<&Event> {
        self.events.get(message_id)
    }
}

impl Event {
    /// Where a delivery says something else than the database.
    pub(super) fn differences(&self, delivery: &Delivery) -> Vec<Offender> {
        let mut found = Vec::new();
        if delivery.body != self.payload.as_deref().unwrap_or_default() {
            found.push(Offender::new(self, "the body is not what Postgres prints"));
        }
        let is_null = delivery.headers.get("payload_null") == Some(&Value::Bool(true));
        if is_null != self.payload.is_none() {
            found.push(Offender::new(self, format!("the header payload_null says {is_null}")));
        }
        let expected = [
            ("aggregate_type", Value::Text(self.aggregate_type.clone())),
            ("aggregate_id", Value::Text(self.aggregate_id.clone())),
            ("aggregate_seq", Value::Long(self.aggregate_seq)),
        ];
        for (name, expected) in expected {
            let sent = delivery.headers.get(name);
            if sent != Some(&expected) {
                let sent = sent.map_or("nothing".to_owned(), Value::to_string);
                found.push(Offender::new(self, format!("the header {name} is {sent} and not {expected}")));
            }
        }
        found
    }
}
