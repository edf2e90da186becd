//! What a row tells the oracle, and asks it, on the way: marks, commits, and single events by hand.

use anyhow::{Context as _, Result, ensure};
use testenv::consumer::Consumer;
use testenv::oracle::{Commits, Slot};
use tokio_postgres::types::ToSql;

use crate::scene::{LIMIT, Scene};

/// The slot that the oracle reads beside the relay's, and its publication.
const ORACLE: &str = "oracle";

/// An event that a row writes itself.
#[derive(Clone, Copy)]
pub(crate) struct Single<'a> {
    /// The aggregate, of type `single`.
    pub(crate) aggregate: &'a str,
    /// 1, 2, 3 … in it.
    pub(crate) seq: i64,
    /// Another exchange than the configured one.
    pub(crate) exchange: Option<&'a str>,
    /// Another routing key than `single.placed`.
    pub(crate) routing_key: Option<&'a str>,
    /// Another event type than `placed`, or none.
    pub(crate) event_type: Option<&'a str>,
    /// Headers, a JSON object.
    pub(crate) headers: Option<&'a str>,
    /// The size of the payload, at least thirty bytes.
    pub(crate) payload_bytes: i32,
}

impl<'a> Single<'a> {
    /// Event `seq` of an aggregate, by the configured route.
    pub(crate) fn new(aggregate: &'a str, seq: i64) -> Self {
        Self {
            aggregate,
            seq,
            exchange: None,
            routing_key: None,
            event_type: Some("placed"),
            headers: None,
            payload_bytes: 30,
        }
    }
}

impl Scene {
    /// The relay's connections at the broker, each by the process that serves it.
    pub(crate) async fn connections(&self) -> Result<Vec<String>> {
        let list = self.servers.rabbitmq.ctl().run(&["list_connections", "pid", "client_properties"]).await?;
        let ours = format!("postrider {}", self.rig.name());
        let pid = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
        Ok(list.lines().filter(|line| line.contains(&ours)).map(pid).collect())
    }

    /// Marks where the slot stands once nobody has it: after the relay was killed, or kept away from Postgres.
    pub(crate) async fn mark_free(&mut self) -> Result<Slot> {
        let slot = Slot::wait_free(&*self.rig.sql().await?, self.rig.name(), LIMIT).await?;
        self.rig.queue.mark(slot.confirmed_flush_lsn).await?;
        Ok(slot)
    }

    /// Writes one event, in a transaction of its own, beside those of the shop; returns its message id.
    pub(crate) async fn write_event(&self, event: &Single<'_>) -> Result<String> {
        let statement = "with event as (
                 insert into postrider.outbox
                        (aggregate_type, aggregate_id, event_type, payload, aggregate_seq, exchange, routing_key,
                         headers)
                 values ('single', $1, $5, (rpad('{ \"alone\":\"', $6 - 3, 'x') || '\" }')::json, $2, $3, $4,
                         $7::text::jsonb)
                 returning id, aggregate_type, aggregate_id, aggregate_seq, payload
             )
             insert into shop.ledger (id, aggregate_type, aggregate_id, aggregate_seq, payload)
             select id, aggregate_type, aggregate_id, aggregate_seq, payload::text from event
             returning id::text";
        let Single { aggregate, seq, exchange, routing_key, event_type, headers, payload_bytes } = event;
        let sql = self.rig.sql().await?;
        let values: [&(dyn ToSql + Sync); 7] =
            [aggregate, seq, exchange, routing_key, event_type, payload_bytes, headers];
        let row = sql.query_one(statement, &values).await;
        Ok(row.context("write an event")?.get(0))
    }

    /// Writes so many single events in one transaction, each of an aggregate of its own; `from` is the first's name.
    pub(crate) async fn write_singles(&self, from: i32, count: i32) -> Result<()> {
        let statement = "with event as (
                insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload, aggregate_seq)
                select 'single', n::text, 'placed', '{ \"alone\":1 }', 1
                  from generate_series($1::int, $1::int + $2::int - 1) n
                returning id, aggregate_type, aggregate_id, aggregate_seq, payload
            )
            insert into shop.ledger (id, aggregate_type, aggregate_id, aggregate_seq, payload)
            select id, aggregate_type, aggregate_id, aggregate_seq, payload::text from event";
        let sql = self.rig.sql().await?;
        sql.execute(statement, &[&from, &count]).await.context("write single events").map(drop)
    }

    /// From now on the oracle knows where each commit stands, also if the relay's publication goes.
    pub(crate) async fn watch_commits(&self) -> Result<()> {
        let sql = self.rig.sql().await?;
        sql.batch_execute(&format!("create publication {ORACLE} for table postrider.outbox"))
            .await
            .context("create the oracle's publication")?;
        Commits::watch(&sql, &self.rig.scope.named(ORACLE)).await
    }

    /// The commits since [`Self::watch_commits`].
    pub(crate) async fn commits(&self) -> Result<Commits> {
        Commits::read(&*self.rig.sql().await?, &self.rig.scope.named(ORACLE), ORACLE).await
    }

    /// Holds P1 against a slot and what had been delivered when it stood there.
    pub(crate) async fn ensure_nothing_passed(&self, slot: &Slot, consumer: &Consumer) -> Result<()> {
        let passed =
            slot.passed_undelivered(&self.rig.truth().await?, &self.commits().await?, &consumer.deliveries());
        ensure!(
            passed.is_empty(),
            "find nothing passed: {} events, the first is {}",
            passed.len(),
            passed[0]
        );
        Ok(())
    }
}
