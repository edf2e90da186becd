//! What a row tells the oracle, and asks it, on the way: marks, commits, and single events by hand.

use anyhow::{Context as _, Result, ensure};
use testenv::consumer::Consumer;
use testenv::oracle::{Commits, Slot};

use crate::scene::{LIMIT, Scene};

/// The slot that the oracle reads beside the relay's, and its publication.
const ORACLE: &str = "oracle";

/// An event that a row writes itself.
pub(crate) struct Single<'a> {
    /// The aggregate, of type `single`.
    pub(crate) aggregate: &'a str,
    /// 1, 2, 3 … in it.
    pub(crate) seq: i64,
    /// Another exchange than the configured one.
    pub(crate) exchange: Option<&'a str>,
    /// Another routing key than `single.placed`.
    pub(crate) routing_key: Option<&'a str>,
}

impl Scene {
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
                        (aggregate_type, aggregate_id, event_type, payload, aggregate_seq, exchange, routing_key)
                 values ('single', $1, 'placed', '{ \"alone\":1 }', $2, $3, $4)
                 returning id, aggregate_type, aggregate_id, aggregate_seq, payload
             )
             insert into shop.ledger (id, aggregate_type, aggregate_id, aggregate_seq, payload)
             select id, aggregate_type, aggregate_id, aggregate_seq, payload::text from event
             returning id::text";
        let Single { aggregate, seq, exchange, routing_key } = event;
        let sql = self.rig.sql().await?;
        let row = sql.query_one(statement, &[aggregate, seq, exchange, routing_key]).await;
        Ok(row.context("write an event")?.get(0))
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
