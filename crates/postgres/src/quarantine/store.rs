//! Storing events: many rows in one statement, a large one in a statement of its own.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use postrider_relay::quarantine::{ParkedKey, Parking};
use tokio_postgres::types::Type;

use super::{Transaction, headers};
use crate::columns;
use crate::error::Error;

/// One statement holds at most so many rows.
const ROWS: usize = 1000;

/// And so many bytes of bodies, which are copied for the wire; a larger row stands alone.
const BYTES: usize = 1 << 20;

/// A row that is there already stays as it is. The body comes last: nothing behind it moves it again.
const STORE: &str = "
insert into postrider.quarantine (slot, commit_lsn, index, state, scope, reason, detail, attempts,
  aggregate_key, aggregate_type, aggregate_id, exchange, routing_key, message_id, event_type,
  correlation_id, content_type, timestamp_s, headers, outbox_row, committed_at, body)
select $1, commit_lsn, index, state, scope, reason, detail, attempts,
  aggregate_key, aggregate_type, aggregate_id, exchange, routing_key, message_id, event_type,
  correlation_id, content_type, timestamp_s, headers::json, outbox_row::json, committed_at, body
from unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)
  as t (commit_lsn, index, state, scope, reason, detail, attempts,
  aggregate_key, aggregate_type, aggregate_id, exchange, routing_key, message_id, event_type,
  correlation_id, content_type, timestamp_s, headers, outbox_row, committed_at, body)
on conflict do nothing";

impl Transaction<'_> {
    /// Inserts the rows; how many were not there.
    pub(super) async fn store(&self, rows: &[Parking]) -> Result<u64, Error> {
        let mut new = 0;
        let mut left = rows;
        while !left.is_empty() {
            let (now, later) = left.split_at(one_statement(left));
            new += self.insert(now).await?;
            left = later;
        }
        Ok(new)
    }

    async fn insert(&self, rows: &[Parking]) -> Result<u64, Error> {
        fn column<'a, T>(rows: &'a [Parking], value: impl FnMut(&'a Parking) -> T) -> Vec<T> {
            rows.iter().map(value).collect()
        }
        let (commit_lsn, index) = columns::of_all(&column(rows, |row| row.position));
        let state = column(rows, |row| if row.released { "released" } else { "parked" });
        let scope = column(rows, |row| row.scope.as_str());
        let reason = column(rows, |row| row.reason.as_str());
        let detail = column(rows, |row| words(&row.detail));
        let attempts = column(rows, |row| i32::try_from(row.attempts).unwrap_or(i32::MAX));
        let aggregate_keys = column(rows, |row| row.aggregate.as_ref().map(ParkedKey::of));
        let aggregate_key: Vec<_> =
            aggregate_keys.iter().map(|key| key.as_ref().map(|ParkedKey(bytes)| bytes.as_slice())).collect();
        let aggregate_type = column(rows, |row| row.aggregate.as_ref().map(|key| key.parts().0));
        let aggregate_id = column(rows, |row| row.aggregate.as_ref().map(|key| key.parts().1));
        let exchange = column(rows, |row| row.draft.exchange.as_deref());
        let routing_key = column(rows, |row| row.draft.routing_key.as_deref());
        let message_id = column(rows, |row| row.draft.message_id.as_deref());
        let event_type = column(rows, |row| row.draft.event_type.as_deref());
        let correlation_id = column(rows, |row| row.draft.correlation_id.as_deref());
        let content_type = column(rows, |row| row.draft.content_type.as_deref());
        // A timestamp of Postgres in seconds is far below.
        let timestamp_s =
            column(rows, |row| row.draft.timestamp_s.map(|s| i64::try_from(s).unwrap_or(i64::MAX)));
        let headers = column(rows, |row| headers::write(&row.draft.headers, &row.draft.bad_headers));
        let outbox_row = column(rows, |row| row.draft.row.as_deref());
        let committed_at = column(rows, |row| time(row.committed_us));
        let body = column(rows, |row| row.draft.body.as_deref());
        let parameters: [super::Parameter<'_>; 21] = [
            (&commit_lsn, Type::PG_LSN_ARRAY),
            (&index, Type::INT8_ARRAY),
            (&state, Type::TEXT_ARRAY),
            (&scope, Type::TEXT_ARRAY),
            (&reason, Type::TEXT_ARRAY),
            (&detail, Type::TEXT_ARRAY),
            (&attempts, Type::INT4_ARRAY),
            (&aggregate_key, Type::BYTEA_ARRAY),
            (&aggregate_type, Type::TEXT_ARRAY),
            (&aggregate_id, Type::TEXT_ARRAY),
            (&exchange, Type::TEXT_ARRAY),
            (&routing_key, Type::TEXT_ARRAY),
            (&message_id, Type::TEXT_ARRAY),
            (&event_type, Type::TEXT_ARRAY),
            (&correlation_id, Type::TEXT_ARRAY),
            (&content_type, Type::TEXT_ARRAY),
            (&timestamp_s, Type::INT8_ARRAY),
            (&headers, Type::TEXT_ARRAY),
            (&outbox_row, Type::TEXT_ARRAY),
            (&committed_at, Type::TIMESTAMPTZ_ARRAY),
            (&body, Type::BYTEA_ARRAY),
        ];
        self.execute(STORE, &parameters).await
    }
}

/// How many of the rows go into one statement; at least one.
fn one_statement(rows: &[Parking]) -> usize {
    let mut bytes = 0;
    let mut count = 0;
    for row in rows.iter().take(ROWS) {
        let body = row.draft.body.as_ref().map_or(0, Bytes::len);
        if count > 0 && bytes + body > BYTES {
            break;
        }
        bytes += body;
        count += 1;
    }
    count
}

/// A detail as the table can hold it: it may quote the broker, and no text of Postgres holds a NUL.
pub(super) fn words(detail: &str) -> String {
    detail.replace('\0', "\u{FFFD}")
}

/// Microseconds since the Unix epoch as a time; exact.
fn time(unix_us: i64) -> SystemTime {
    let away = Duration::from_micros(unix_us.unsigned_abs());
    if unix_us < 0 { UNIX_EPOCH - away } else { UNIX_EPOCH + away }
}

/// The same back.
pub(super) fn unix_us(time: SystemTime) -> i64 {
    let us = |away: Duration| i64::try_from(away.as_micros()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => us(since),
        Err(before) => -us(before.duration()),
    }
}

#[cfg(test)]
mod tests {
    use postrider_relay::quarantine::{Draft, Scope};
    use postrider_relay::{Lsn, Position, Reason};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_time_is_exact_to_the_microsecond(us in -(1_i64 << 57)..1 << 58) {
            prop_assert_eq!(unix_us(time(us)), us);
        }
    }

    #[test]
    fn a_large_row_has_a_statement_of_its_own() {
        let row = |bytes: usize| Parking {
            position: Position { commit_lsn: Lsn(1), index: 0 },
            scope: Scope::Key,
            released: false,
            reason: Reason::Unrouted,
            detail: String::new(),
            attempts: 0,
            aggregate: None,
            committed_us: 0,
            draft: Draft { body: Some(vec![0; bytes].into()), ..Draft::default() },
        };
        let check = |sizes: &[usize], expected: usize| {
            let rows: Vec<Parking> = sizes.iter().map(|&bytes| row(bytes)).collect();
            assert_eq!(one_statement(&rows), expected, "{sizes:?}");
        };
        check(&[0], 1);
        check(&[3 * BYTES, 1], 1);
        check(&[1, 3 * BYTES, 1], 1);
        check(&[BYTES / 2, BYTES / 2, 1], 2);
        check(&[1; ROWS + 1], ROWS);
    }
}
