//! (moves into the ledger)
use crate::lsn::Lsn;

/// A position that may be acknowledged to Postgres. Only the ledger makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watermark(Lsn);

impl Watermark {
    /// The position.
    pub fn lsn(self) -> Lsn {
        self.0
    }
}
