//! A backlog, written by the server itself: many transactions in little time.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::timeout;

use crate::Sql;

const LIMIT: Duration = Duration::from_secs(600);

/// One statement a transaction; the last commit flushes all of them. Events that one transaction has for one order
/// are numbered by how many of them come behind.
const BLOCK: &str = r#"do $$
begin
    for t in 1 .. :transactions loop
        perform set_config('synchronous_commit', case when t = :transactions then 'on' else 'off' end, true);
        with line as (
            select at, ((t::bigint * :events + at) % :orders)::text as order_id
              from generate_series(1, :events) at
        ), orders as (
            insert into shop.orders as o (id, seq, status)
            select order_id, count(*), 'placed' from line group by order_id order by order_id
            on conflict (id) do update set seq = o.seq + excluded.seq
            returning id, seq
        ), event as (
            insert into :outbox (aggregate_type, aggregate_id, event_type, payload, aggregate_seq)
            select 'order', id, 'placed',
                   (rpad(format('{ "t":%s,  "at":%s, "note":"', t, at), :payload_bytes - 3, 'x') || '" }')::json,
                   seq - count(*) over (partition by id order by at desc) + 1
              from line join orders on id = order_id
             order by at
            returning id, aggregate_type, aggregate_id, aggregate_seq, payload
        )
        insert into shop.ledger (id, aggregate_type, aggregate_id, aggregate_seq, payload)
        select id, aggregate_type, aggregate_id, aggregate_seq, payload::text from event;
        commit;
    end loop;
end $$"#;

/// What to write at once, before a relay runs or while it is away.
#[derive(Clone, Debug)]
pub struct Backlog {
    /// How many transactions.
    pub transactions: u32,
    /// Events in each of them.
    pub events: u32,
    /// How many orders they belong to, in turn.
    pub orders: u32,
    /// The size of a payload, at least about fifty bytes.
    pub payload_bytes: u32,
    /// The outbox table.
    pub outbox: String,
}

impl Default for Backlog {
    fn default() -> Self {
        Self {
            transactions: 10_000,
            events: 1,
            orders: 1_000,
            payload_bytes: 300,
            outbox: "postrider.outbox".to_owned(),
        }
    }
}

impl Backlog {
    /// Writes it into the shop, ledger and all, by one connection that waits for the disk only at the end.
    pub async fn write(&self, url: &str) -> Result<()> {
        let Self { transactions, events, orders, payload_bytes, outbox } = self;
        let sql = Sql::connect(url).await?;
        let block = BLOCK
            .replace(":transactions", &transactions.to_string())
            .replace(":events", &events.to_string())
            .replace(":orders", &orders.to_string())
            .replace(":payload_bytes", &payload_bytes.to_string())
            .replace(":outbox", outbox);
        timeout(LIMIT, sql.batch_execute(&block))
            .await
            .context("write a backlog in time")?
            .context("write a backlog")
    }
}
