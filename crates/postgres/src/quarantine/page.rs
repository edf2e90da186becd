//! Reading released rows: first which, by the sizes of their bodies, then those.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use postrider_relay::Position;
use postrider_relay::quarantine::{Done, Draft, ParkedKey, Released, Scope};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::{Parameter, Transaction, headers, store};
use crate::columns::{self, Unreadable, position};
use crate::error::Error;

/// $2 aggregates that are on their way, $3 how many.
const SIZES: &str = "
select commit_lsn, index, coalesce(octet_length(body), 0)
from postrider.quarantine
where slot = $1 and state = 'released'
  and (scope <> 'key' or aggregate_key is null or aggregate_key <> all ($2))
order by commit_lsn, index limit $3";

/// $2, $3 positions, in order.
const ROWS: &str = "
select q.*
from unnest($2, $3) with ordinality n (commit_lsn, index, at)
cross join lateral (
  select commit_lsn, index, scope, aggregate_key, committed_at, exchange, routing_key, message_id, event_type,
    correlation_id, content_type, timestamp_s, headers::text, body, outbox_row::text
  from postrider.quarantine
  where slot = $1 and commit_lsn = n.commit_lsn and index = n.index limit 1) q
order by n.at";

impl Transaction<'_> {
    /// The lowest released rows beside the busy ones: at most `rows`, and of bodies at most `bytes`, but one
    /// row always.
    pub(super) async fn page(
        &self,
        busy: &[ParkedKey],
        busy_rows: &[Position],
        rows: usize,
        bytes: usize,
    ) -> Result<Done, Error> {
        let (chosen, more) = self.choose(busy, busy_rows, rows, bytes).await?;
        let (commit_lsns, indexes) = columns::of_all(&chosen);
        let parameters: [Parameter<'_>; 2] =
            [(&commit_lsns, Type::PG_LSN_ARRAY), (&indexes, Type::INT8_ARRAY)];
        let mut rows = Vec::with_capacity(chosen.len());
        self.each(ROWS, &parameters, |row| {
            rows.push(released(row)?);
            Ok(())
        })
        .await?;
        Ok(Done::Page { rows, more })
    }

    /// The positions, and whether there are others.
    async fn choose(
        &self,
        busy: &[ParkedKey],
        busy_rows: &[Position],
        rows: usize,
        bytes: usize,
    ) -> Result<(Vec<Position>, bool), Error> {
        let busy: Vec<&[u8]> = busy.iter().map(|ParkedKey(bytes)| bytes.as_slice()).collect();
        let busy_rows: HashSet<Position> = busy_rows.iter().copied().collect();
        // The busy rows are left out here, so that the server goes along its index; one more than asked for
        // tells whether there are more.
        let limit = rows.saturating_add(busy_rows.len()).saturating_add(1);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let parameters: [Parameter<'_>; 2] = [(&busy, Type::BYTEA_ARRAY), (&limit, Type::INT8)];
        let (mut chosen, mut chosen_bytes, mut more) = (Vec::new(), 0, false);
        self.each(SIZES, &parameters, |row| {
            let at = position(row, 0)?;
            if busy_rows.contains(&at) {
                return Ok(());
            }
            let size = usize::try_from(row.try_get::<_, i32>(2)?)?;
            more |= chosen.len() == rows || (!chosen.is_empty() && chosen_bytes + size > bytes);
            if !more {
                chosen.push(at);
                chosen_bytes += size;
            }
            Ok(())
        })
        .await?;
        Ok((chosen, more))
    }
}

/// A row in the order of [`ROWS`].
fn released(row: &Row) -> Result<Released, Unreadable> {
    let scope = match row.try_get(2)? {
        "key" => Scope::Key,
        "event" => Scope::Event,
        other => return Err(format!("{other:?} is no scope").into()),
    };
    let aggregate = match row.try_get::<_, Option<&[u8]>>(3)? {
        Some(bytes) => Some(ParkedKey(bytes.try_into()?)),
        None => None,
    };
    let (draft, fault) = match draft(row)? {
        Ok(draft) => (draft, None),
        Err(fault) => (Draft::default(), Some(fault)),
    };
    Ok(Released {
        position: position(row, 0)?,
        scope,
        aggregate,
        committed_us: store::unix_us(row.try_get::<_, SystemTime>(4)?),
        draft,
        fault,
    })
}

/// The message, or what an operator's edit has made unreadable.
fn draft(row: &Row) -> Result<Result<Draft, String>, Unreadable> {
    let text = |column: usize| row.try_get::<_, Option<&str>>(column);
    let Ok(timestamp_s) = row.try_get::<_, Option<i64>>(11)?.map(u64::try_from).transpose() else {
        return Ok(Err("timestamp_s is negative".to_owned()));
    };
    let headers = match headers::read(row.try_get(12)?) {
        Ok(headers) => headers,
        Err(fault) => return Ok(Err(fault)),
    };
    Ok(Ok(Draft {
        exchange: text(5)?.map(Arc::from),
        routing_key: text(6)?.map(Box::from),
        message_id: text(7)?.map(Box::from),
        event_type: text(8)?.map(Box::from),
        correlation_id: text(9)?.map(Box::from),
        content_type: text(10)?.map(Arc::from),
        timestamp_s,
        headers,
        bad_headers: Vec::new(),
        body: row.try_get::<_, Option<&[u8]>>(13)?.map(Bytes::copy_from_slice),
        row: text(14)?.map(Box::from),
    }))
}
