//! What became of released rows: delivered, or failed and put back.

use postrider_relay::Position;
use postrider_relay::quarantine::{Done, PutBack};
use tokio_postgres::types::{PgLsn, Type};

use super::{Parameter, Transaction, columns_of, store};
use crate::error::Error;

/// $2, $3 positions.
const DELIVERED: &str = "
update postrider.quarantine q set state = 'delivered', changed_at = now()
from unnest($2, $3) n (commit_lsn, index)
where q.slot = $1 and q.commit_lsn = n.commit_lsn and q.index = n.index and q.state = 'released'";

/// The row itself ($2, $3), with $4 reason, $5 detail, $6 further attempts; and where its scope is `key`, the
/// other released rows of its aggregate. One statement sees both as they were before it.
const PUT_BACK: &str = "
with failed as (
  update postrider.quarantine q
  set state = 'parked', reason = $4, detail = $5, changed_at = now(),
    attempts = least(attempts::bigint + $6, 2147483647)::integer
  where q.slot = $1 and q.commit_lsn = $2 and q.index = $3 and q.state = 'released'
  returning q.scope, q.aggregate_key
)
update postrider.quarantine q set state = 'parked', changed_at = now()
from failed
where failed.scope = 'key' and q.slot = $1 and q.aggregate_key = failed.aggregate_key
  and q.state = 'released' and q.scope = 'key'
  and (q.commit_lsn, q.index) <> ($2, $3)";

impl Transaction<'_> {
    /// Released rows become `delivered`.
    pub(super) async fn delivered(&self, positions: &[Position]) -> Result<Done, Error> {
        let columns = columns_of(positions);
        let parameters: [Parameter<'_>; 2] =
            [(&columns.0, Type::PG_LSN_ARRAY), (&columns.1, Type::INT8_ARRAY)];
        let rows = self.execute(DELIVERED, &parameters).await?;
        Ok(Done::Delivered { rows, free: self.free(&[], &columns).await? })
    }

    /// A released row, and with it those of its aggregate, are parked again.
    pub(super) async fn put_back(&self, row: &PutBack) -> Result<(), Error> {
        let commit_lsn = PgLsn::from(row.position.commit_lsn.0);
        let index = i64::from(row.position.index);
        let attempts = i64::from(row.attempts);
        let detail = store::words(&row.detail);
        let parameters: [Parameter<'_>; 5] = [
            (&commit_lsn, Type::PG_LSN),
            (&index, Type::INT8),
            (&row.reason.as_str(), Type::TEXT),
            (&detail, Type::TEXT),
            (&attempts, Type::INT8),
        ];
        self.execute(PUT_BACK, &parameters).await?;
        Ok(())
    }
}
