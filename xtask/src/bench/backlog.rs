//! The events that every leg carries.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use testenv::Sql;
use testenv::consumer::QueueKind;
use tokio::time::timeout;
use tokio_postgres::types::PgLsn;

use super::table::thousands;

const LIMIT: Duration = Duration::from_secs(1800);

/// What is drained, and into which queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) queue: QueueKind,
    /// How many events.
    pub(super) events: u32,
    /// Events in one transaction.
    pub(super) rows: u32,
    /// How many aggregates they belong to, in no order.
    pub(super) aggregates: u32,
}

impl Case {
    /// Writes the events without waiting for the disk; returns where the log ends behind them.
    pub(super) async fn write(&self, sql: &Sql) -> Result<PgLsn> {
        let Self { events, rows, aggregates, .. } = self;
        ensure!(events % rows == 0, "write {events} events: they are no whole transactions of {rows}");
        let block = format!(
            r#"do $$
            begin
                for t in 0 .. {events} / {rows} - 1 loop
                    insert into postrider.outbox
                                (aggregate_type, aggregate_id, event_type, payload, aggregate_seq)
                    select 'order', ((hashint4(n) & 2147483647) % {aggregates})::text, 'placed',
                           (rpad(format('{{"order":%s,"note":"', n), 298, 'x') || '"}}')::json, n
                      from generate_series(t * {rows}, (t + 1) * {rows} - 1) n;
                    commit;
                end loop;
            end $$"#
        );
        sql.batch_execute("set synchronous_commit = off").await.context("set synchronous_commit")?;
        let written = timeout(LIMIT, sql.batch_execute(&block)).await.context("write the events in time")?;
        written.context("write the events")?;
        let end = sql.query_one("select pg_current_wal_insert_lsn()", &[]).await?.get(0);
        // Now, so that it does not happen while something is measured.
        for rest in ["vacuum (analyze) postrider.outbox", "checkpoint"] {
            sql.batch_execute(rest).await.with_context(|| format!("run {rest}"))?;
        }
        Ok(end)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, events, rows, aggregates } = *self;
        let queue = match queue {
            QueueKind::Classic => "classic",
            QueueKind::Quorum => "quorum",
        };
        let transactions = if rows == 1 { "one row".to_owned() } else { format!("{} rows", thousands(rows)) };
        let (events, aggregates) = (thousands(events), thousands(aggregates));
        write!(
            f,
            "{queue} queue: {events} events of 300 bytes, {transactions} a transaction, {aggregates} aggregates"
        )
    }
}
