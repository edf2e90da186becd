//! What a session must know before its first event: what is parked, and what the slot will send again.

use postrider_relay::Position;
use postrider_relay::quarantine::{Done, ParkedAggregate, PositionPage};
use tokio_postgres::types::{PgLsn, Type};

use super::{Transaction, key};
use crate::columns::position;
use crate::error::Error;

/// Aggregates with rows of scope `key` that are undelivered, each with the lowest of them. One way through the
/// index, or one sort, whatever the statistics say: a join is slow where they are missing.
const PARKED: &str = "
select distinct on (aggregate_key) aggregate_key, commit_lsn, index,
  bool_or(state = 'released') over (partition by aggregate_key order by commit_lsn, index
    rows between unbounded preceding and unbounded following)
from postrider.quarantine
where slot = $1 and state in ('parked', 'released') and scope = 'key' and aggregate_key is not null
order by aggregate_key, commit_lsn, index";

const COUNTS: &str = "
select
  (select count(*) from postrider.quarantine where slot = $1 and state in ('parked', 'released')),
  exists (select from postrider.quarantine where slot = $1 and state = 'released')";

/// $2, $3 the position below, $4 how many.
const POSITIONS: &str = "
select commit_lsn, index from postrider.quarantine
where slot = $1 and (commit_lsn, index) > ($2, $3)
order by commit_lsn, index limit $4";

impl Transaction<'_> {
    /// [`postrider_relay::quarantine::Work::Open`]. The aggregates are read as they come: a million of them
    /// are held once.
    pub(super) async fn open(&self, positions: usize) -> Result<Done, Error> {
        let mut parked = Vec::new();
        self.each(PARKED, &[], |row| {
            let releasing = row.try_get(3)?;
            parked.push(ParkedAggregate { key: key(row, 0)?, first: position(row, 1)?, releasing });
            Ok(())
        })
        .await?;
        let (mut undelivered, mut released) = (0, false);
        self.each(COUNTS, &[], |row| {
            undelivered = u64::try_from(row.try_get::<_, i64>(0)?)?;
            released = row.try_get(1)?;
            Ok(())
        })
        .await?;
        // A transaction is sent again if its commit record is at or above the slot's position.
        let page = self.positions_above(self.confirmed.0, -1, positions).await?;
        Ok(Done::Opened { parked, undelivered, released, page })
    }

    /// The next page of positions.
    pub(super) async fn positions(&self, after: Position, positions: usize) -> Result<PositionPage, Error> {
        self.positions_above(after.commit_lsn.0, after.index.into(), positions).await
    }

    async fn positions_above(
        &self,
        commit_lsn: u64,
        index: i64,
        positions: usize,
    ) -> Result<PositionPage, Error> {
        // One more than asked for tells whether there are more.
        let limit = i64::try_from(positions).unwrap_or(i64::MAX).saturating_add(1);
        let mut page = PositionPage { positions: Vec::new(), complete: true };
        let above = PgLsn::from(commit_lsn);
        let parameters: [super::Parameter<'_>; 3] =
            [(&above, Type::PG_LSN), (&index, Type::INT8), (&limit, Type::INT8)];
        self.each(POSITIONS, &parameters, |row| {
            if page.positions.len() < positions {
                page.positions.push(position(row, 0)?);
            } else {
                page.complete = false;
            }
            Ok(())
        })
        .await?;
        Ok(page)
    }
}
