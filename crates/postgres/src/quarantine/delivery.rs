//! What became of released rows: delivered, or failed and put back.

use postrider_relay::Position;
use postrider_relay::quarantine::{Done, PutBack};
use tokio_postgres::types::Type;

use super::{Parameter, Transaction, store};
use crate::columns;
use crate::error::Error;

/// $2, $3 a row.
const DELIVERED: &str = "
update postrider.quarantine set state = 'delivered', changed_at = now()
where slot = $1 and commit_lsn = $2 and index = $3 and state = 'released'";

/// $2, $3 a row, $4 reason, $5 detail, $6 further attempts. Returns its aggregate where that goes with it.
const PUT_BACK: &str = "
update postrider.quarantine
set state = 'parked', reason = $4, detail = $5, changed_at = now(),
  attempts = least(attempts::bigint + $6, 2147483647)::integer
where slot = $1 and commit_lsn = $2 and index = $3 and state = 'released'
returning case when scope = 'key' then aggregate_key end";

/// $2 an aggregate.
const PUT_BACK_ALL: &str = "
update postrider.quarantine set state = 'parked', changed_at = now()
where slot = $1 and aggregate_key = $2 and state = 'released' and scope = 'key'";

impl Transaction<'_> {
    /// Released rows become `delivered`.
    pub(super) async fn delivered(&self, positions: &[Position]) -> Result<Done, Error> {
        let rows = self.for_each(DELIVERED, positions, &[]).await?;
        Ok(Done::Delivered { rows, free: self.free(&[], positions).await? })
    }

    /// A released row, and with it those of its aggregate, are parked again.
    pub(super) async fn put_back(&self, row: &PutBack) -> Result<(), Error> {
        let (commit_lsn, index) = columns::of(row.position);
        let attempts = i64::from(row.attempts);
        let detail = store::words(&row.detail);
        let parameters: [Parameter<'_>; 5] = [
            (&commit_lsn, Type::PG_LSN),
            (&index, Type::INT8),
            (&row.reason.as_str(), Type::TEXT),
            (&detail, Type::TEXT),
            (&attempts, Type::INT8),
        ];
        let mut aggregate = None;
        self.each(PUT_BACK, &parameters, |row| {
            aggregate = row.try_get::<_, Option<Vec<u8>>>(0)?;
            Ok(())
        })
        .await?;
        if let Some(key) = aggregate {
            self.execute(PUT_BACK_ALL, &[(&key, Type::BYTEA)]).await?;
        }
        Ok(())
    }
}
