//! What operators ask: release rows, or discard them.
//!
//! A request moves only what was parked before it and was not moved by it already: read again after a
//! restart, it finds nothing to do.

use postrider_relay::quarantine::{Done, ParkedKey, Request};
use tokio_postgres::types::{PgLsn, Type};

use super::{Parameter, Transaction, columns_of};
use crate::error::Error;

/// What a request may move: $2, $3 is its position.
const MOVABLE: &str = "q.state = 'parked' and (q.commit_lsn, q.index) < ($2, $3)
  and (q.command_lsn is null or (q.command_lsn, q.command_index) < ($2, $3))";

/// The aggregates of a release: with a row of scope `key` its aggregate is meant.
const WHOLE: &str = "
  select unnest($4) as aggregate_key
  union select aggregate_key from named where scope = 'key' and aggregate_key is not null";

/// The aggregates of a discard: a row means itself.
const NAMED: &str = "select distinct unnest($4) as aggregate_key";

/// The aggregates that this request has released, now or when it was read before.
const RELEASED: &str = "
select distinct aggregate_key from postrider.quarantine
where slot = $1 and state = 'released' and scope = 'key' and aggregate_key is not null
  and command_lsn = $2 and command_index = $3";

/// Those of the named aggregates ($2), and of the named rows' ($3, $4), in which nothing is undelivered.
pub(super) const FREE: &str = "
select k.aggregate_key
from (
  select unnest($2) as aggregate_key
  union
  select q.aggregate_key
  from unnest($3, $4) n (commit_lsn, index)
  join postrider.quarantine q on q.slot = $1 and q.commit_lsn = n.commit_lsn and q.index = n.index
  where q.scope = 'key' and q.aggregate_key is not null) k
where not exists (
  select from postrider.quarantine u
  where u.slot = $1 and u.aggregate_key = k.aggregate_key and u.state in ('parked', 'released')
    and u.scope = 'key')";

impl Transaction<'_> {
    /// Parked rows become `released`.
    pub(super) async fn release(&self, request: &Request) -> Result<Done, Error> {
        let rows = self.moved(&statement("released", WHOLE), request).await?;
        let (at, index) = place(request);
        let aggregates = self.keys(RELEASED, &[(&at, Type::PG_LSN), (&index, Type::INT8)]).await?;
        Ok(Done::Released { rows, aggregates })
    }

    /// Parked rows become `discarded`.
    pub(super) async fn discard(&self, request: &Request) -> Result<Done, Error> {
        let rows = self.moved(&statement("discarded", NAMED), request).await?;
        let free = self.free(&keys_of(&request.aggregates), &columns_of(&request.positions)).await?;
        Ok(Done::Discarded { rows, free })
    }

    async fn moved(&self, statement: &str, request: &Request) -> Result<u64, Error> {
        let (at, index) = place(request);
        let aggregates = keys_of(&request.aggregates);
        let (commit_lsns, indexes) = columns_of(&request.positions);
        let parameters: [Parameter<'_>; 7] = [
            (&at, Type::PG_LSN),
            (&index, Type::INT8),
            (&aggregates, Type::BYTEA_ARRAY),
            (&commit_lsns, Type::PG_LSN_ARRAY),
            (&indexes, Type::INT8_ARRAY),
            (&request.id, Type::INT8),
            (&request.by, Type::TEXT),
        ];
        self.execute(statement, &parameters).await
    }

    /// See [`FREE`].
    pub(super) async fn free(
        &self,
        aggregates: &[&[u8]],
        (commit_lsns, indexes): &(Vec<PgLsn>, Vec<i64>),
    ) -> Result<Vec<ParkedKey>, Error> {
        let parameters: [Parameter<'_>; 3] = [
            (&aggregates, Type::BYTEA_ARRAY),
            (commit_lsns, Type::PG_LSN_ARRAY),
            (indexes, Type::INT8_ARRAY),
        ];
        self.keys(FREE, &parameters).await
    }
}

/// $4 aggregates, $5, $6 positions, $7 the request's id, $8 whose it is.
fn statement(state: &str, aggregates: &str) -> String {
    format!(
        "
with named as (
  select q.commit_lsn, q.index, q.scope, q.aggregate_key
  from unnest($5, $6) n (commit_lsn, index)
  join postrider.quarantine q on q.slot = $1 and q.commit_lsn = n.commit_lsn and q.index = n.index
  where {MOVABLE}
), meant as (
  select q.commit_lsn, q.index
  from ({aggregates}) k
  join postrider.quarantine q on q.slot = $1 and q.aggregate_key = k.aggregate_key
  where q.scope = 'key' and {MOVABLE}
  union
  select commit_lsn, index from named
)
update postrider.quarantine q
set state = '{state}', command_lsn = $2, command_index = $3, command_id = $7, changed_by = $8,
  changed_at = now()
from meant
where q.slot = $1 and q.commit_lsn = meant.commit_lsn and q.index = meant.index and q.state = 'parked'"
    )
}

fn place(request: &Request) -> (PgLsn, i64) {
    (PgLsn::from(request.position.commit_lsn.0), request.position.index.into())
}

fn keys_of(keys: &[ParkedKey]) -> Vec<&[u8]> {
    keys.iter().map(|ParkedKey(bytes)| bytes.as_slice()).collect()
}
