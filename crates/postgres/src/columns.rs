//! The two columns of an event's position, `commit_lsn pg_lsn` and `index bigint`.

use postrider_relay::{Lsn, Position};
use tokio_postgres::Row;
use tokio_postgres::types::PgLsn;

/// A row that is not as we write them.
pub(crate) type Unreadable = Box<dyn std::error::Error + Send + Sync>;

/// A position as parameters.
pub(crate) fn of(position: Position) -> (PgLsn, i64) {
    (PgLsn::from(position.commit_lsn.0), position.index.into())
}

/// Positions as two arrays, `pg_lsn[]` and `bigint[]`.
pub(crate) fn of_all(positions: &[Position]) -> (Vec<PgLsn>, Vec<i64>) {
    positions.iter().copied().map(of).unzip()
}

/// The position in this column and the next.
pub(crate) fn position(row: &Row, first: usize) -> Result<Position, Unreadable> {
    let commit_lsn: PgLsn = row.try_get(first)?;
    let index: i64 = row.try_get(first + 1)?;
    let index = u32::try_from(index).map_err(|_| format!("{index} is the index of no event"))?;
    Ok(Position { commit_lsn: Lsn(commit_lsn.into()), index })
}
