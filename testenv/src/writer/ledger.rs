//! The shop's own tables: orders, whose rows are the locks, and the ledger, which is the truth.

use anyhow::{Context as _, Result};
use tokio_postgres::Client;

/// The ledger has one row for each event, written by the statement that wrote the event. Its sequence counts
/// what was rolled back as well, as no rollback turns a sequence back.
const SHOP: &str = "
create schema shop;
create table shop.orders (
    id     text primary key,
    seq    bigint not null,
    status text not null
) with (fillfactor = 50);
create table shop.ledger (
    n              bigserial primary key,
    id             uuid not null unique,
    aggregate_type text not null,
    aggregate_id   text not null,
    aggregate_seq  bigint not null,
    payload        text,
    xid            xid8 not null default pg_current_xact_id(),
    written_lsn    pg_lsn not null default pg_current_wal_insert_lsn()
);
";

/// Creates the schema `shop`.
pub async fn create(sql: &Client) -> Result<()> {
    sql.batch_execute(SHOP).await.context("create the shop's tables")
}

/// The statement that writes one event of one order: `$1` order, `$2` payload, `$3` headers, `$4` correlation
/// id, `$5` trace context. It locks the order's row, or its place in the index while it is new.
pub(super) fn event(outbox: &str) -> String {
    format!(
        "with orders as (
             insert into shop.orders as o (id, seq, status) values ($1, 1, 'placed')
             on conflict (id) do update
                 set seq = o.seq + 1, status = (array['placed', 'paid', 'packed', 'shipped'])[1 + o.seq % 4]
             returning id, seq, status
         ), event as (
             insert into {outbox} (aggregate_type, aggregate_id, event_type, payload, headers, aggregate_seq,
                                   correlation_id, traceparent)
             select 'order', id, status, $2::text::json, $3::text::jsonb, seq, $4, $5 from orders
             returning id, aggregate_type, aggregate_id, aggregate_seq, payload
         )
         insert into shop.ledger (id, aggregate_type, aggregate_id, aggregate_seq, payload)
         select id, aggregate_type, aggregate_id, aggregate_seq, payload::text from event
         returning id::text"
    )
}
