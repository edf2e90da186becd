//! What operators ask: release rows, or discard them.
//!
//! A request moves only what was parked before it and was not moved by it already: read again after a
//! restart, it finds nothing to do.

use postrider_relay::Position;
use postrider_relay::quarantine::{Done, ParkedKey, Request};
use tokio_postgres::types::Type;

use super::{Parameter, Transaction};
use crate::columns;
use crate::error::Error;

/// $2, $3 the request; $4, $5 the rows it names: the aggregates of those of scope `key`.
const MEANT_BY_ROWS: &str = "
select distinct q.aggregate_key
from unnest($4, $5) n (commit_lsn, index)
cross join lateral (
  select aggregate_key from postrider.quarantine
  where slot = $1 and commit_lsn = n.commit_lsn and index = n.index
    and scope = 'key' and aggregate_key is not null and {movable by $2, $3} limit 1) q";

/// $2, $3 the request, $4 its id, $5 whose it is; $6 aggregates.
const MOVE_AGGREGATES: &str = "
update postrider.quarantine
set state = '{state}', command_lsn = $2, command_index = $3, command_id = $4, changed_by = $5,
  changed_at = now()
where slot = $1 and aggregate_key = any ($6) and scope = 'key' and {movable by $2, $3}";

/// $2, $3 a row; $4, $5 the request, $6 its id, $7 whose it is.
const MOVE_ROW: &str = "
update postrider.quarantine
set state = '{state}', command_lsn = $4, command_index = $5, command_id = $6, changed_by = $7,
  changed_at = now()
where slot = $1 and commit_lsn = $2 and index = $3 and {movable by $4, $5}";

/// The aggregates that this request ($2, $3) has released, now or when it was read before.
const RELEASED: &str = "
select distinct aggregate_key from postrider.quarantine
where slot = $1 and state = 'released' and scope = 'key' and aggregate_key is not null
  and command_lsn = $2 and command_index = $3";

/// Those of the aggregates ($2), and of the rows' ($3, $4), in which nothing is undelivered.
const FREE: &str = "
select k.aggregate_key
from (
  select unnest($2) as aggregate_key
  union
  select q.aggregate_key
  from unnest($3, $4) n (commit_lsn, index)
  cross join lateral (
    select aggregate_key from postrider.quarantine
    where slot = $1 and commit_lsn = n.commit_lsn and index = n.index
      and scope = 'key' and aggregate_key is not null limit 1) q) k
left join lateral (
  select true as waits from postrider.quarantine
  where slot = $1 and aggregate_key = k.aggregate_key and state in ('parked', 'released')
    and scope = 'key' limit 1) u on true
where u.waits is null";

impl Transaction<'_> {
    /// Parked rows become `released`; a row of scope `key` means its aggregate.
    pub(super) async fn release(&self, request: &Request) -> Result<Done, Error> {
        let (at, index) = columns::of(request.position);
        let this: [Parameter<'_>; 2] = [(&at, Type::PG_LSN), (&index, Type::INT8)];
        let mut meant = request.aggregates.clone();
        if !request.positions.is_empty() {
            let (commit_lsns, indexes) = columns::of_all(&request.positions);
            let named: [Parameter<'_>; 2] =
                [(&commit_lsns, Type::PG_LSN_ARRAY), (&indexes, Type::INT8_ARRAY)];
            meant.extend(self.keys(&filled(MEANT_BY_ROWS, ""), &[this.clone(), named].concat()).await?);
        }
        let rows = self.moved("released", request, &meant).await?;
        Ok(Done::Released { rows, aggregates: self.keys(RELEASED, &this).await? })
    }

    /// Parked rows become `discarded`; a row means itself.
    pub(super) async fn discard(&self, request: &Request) -> Result<Done, Error> {
        let rows = self.moved("discarded", request, &request.aggregates).await?;
        Ok(Done::Discarded { rows, free: self.free(&request.aggregates, &request.positions).await? })
    }

    /// Moves the rows of the aggregates, and those that the request names one by one; how many.
    async fn moved(&self, state: &str, request: &Request, aggregates: &[ParkedKey]) -> Result<u64, Error> {
        let (at, index) = columns::of(request.position);
        let keys = bytes_of(aggregates);
        let this: [Parameter<'_>; 4] =
            [(&at, Type::PG_LSN), (&index, Type::INT8), (&request.id, Type::INT8), (&request.by, Type::TEXT)];
        let mut rows = 0;
        if !keys.is_empty() {
            let all: Parameter<'_> = (&keys, Type::BYTEA_ARRAY);
            let statement = filled(MOVE_AGGREGATES, state);
            rows += self.execute(&statement, &[&this[..], &[all]].concat()).await?;
        }
        rows += self.for_each(&filled(MOVE_ROW, state), &request.positions, &this).await?;
        Ok(rows)
    }

    /// See [`FREE`].
    pub(super) async fn free(
        &self,
        aggregates: &[ParkedKey],
        rows: &[Position],
    ) -> Result<Vec<ParkedKey>, Error> {
        let keys = bytes_of(aggregates);
        let (commit_lsns, indexes) = columns::of_all(rows);
        let parameters: [Parameter<'_>; 3] =
            [(&keys, Type::BYTEA_ARRAY), (&commit_lsns, Type::PG_LSN_ARRAY), (&indexes, Type::INT8_ARRAY)];
        self.keys(FREE, &parameters).await
    }
}

/// A statement with its state, and with what a request may move: what was parked before it, and by nobody later.
fn filled(statement: &str, state: &str) -> String {
    let movable = |request| {
        format!(
            "state = 'parked' and (commit_lsn, index) < ({request}) \
             and (command_lsn is null or (command_lsn, command_index) < ({request}))"
        )
    };
    statement
        .replace("{state}", state)
        .replace("{movable by $2, $3}", &movable("$2, $3"))
        .replace("{movable by $4, $5}", &movable("$4, $5"))
}

fn bytes_of(keys: &[ParkedKey]) -> Vec<&[u8]> {
    keys.iter().map(|ParkedKey(bytes)| bytes.as_slice()).collect()
}
