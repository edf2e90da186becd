//! What the consumer loop calls: the work itself, and what to do about a gap.

use tokio_postgres::Transaction;

use super::connect::BoxError;
use super::event::Event;

/// The work of a consumer.
pub trait Handle: Send + Sync + 'static {
    /// Does the work of one message in the transaction, which is committed if this is `Ok` and rolled back if
    /// not. Whatever it does outside the transaction can be done again. It neither commits nor rolls back; and if
    /// a statement of it has failed (outside a savepoint), so has the work, whatever is returned. The connection is
    /// used again: what is set for the session and not for the transaction (`set` without `local`, temporary tables,
    /// advisory locks of the session) is there for a later message as well.
    fn handle(
        &self,
        event: &Event,
        transaction: &Transaction<'_>,
    ) -> impl Future<Output = Result<(), HandleError>> + Send;

    /// Messages before these have not come in time. [`GapAnswer::Park`] unless it says otherwise.
    fn gap(&self, gap: &Gap) -> impl Future<Output = GapAnswer> + Send {
        let _ = gap;
        std::future::ready(GapAnswer::Park)
    }
}

/// A hole in the numbers of an aggregate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The aggregate, `type/id`.
    pub aggregate: String,
    /// The numbers that wait behind it, in order.
    pub waiting: Vec<i64>,
}

/// What to do about a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapAnswer {
    /// Park what waits, in order.
    Park,
    /// Go on with what waits: the hook has made up for what is missing, which will be stale if it still
    /// comes.
    Resynchronise,
}

/// Why the work failed.
#[derive(Debug, thiserror::Error)]
pub enum HandleError {
    /// It may work next time: the message is tried again, [`Settings::attempts`](super::Settings) times in
    /// all.
    #[error("{0}")]
    Transient(#[source] BoxError),
    /// It will never work: the message is parked at once.
    #[error("{0}")]
    Poison(#[source] BoxError),
}

impl HandleError {
    /// It may work next time.
    pub fn transient(error: impl Into<BoxError>) -> Self {
        Self::Transient(error.into())
    }

    /// It will never work.
    pub fn poison(error: impl Into<BoxError>) -> Self {
        Self::Poison(error.into())
    }
}

impl From<tokio_postgres::Error> for HandleError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::transient(error)
    }
}
