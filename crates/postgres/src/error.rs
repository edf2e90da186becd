//! What can go wrong, by what the caller does about it.

use std::fmt;

/// Why a Postgres operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Waiting does not help: the relay ends with exit 1 and prints what, why and the cure.
    #[error(transparent)]
    Stop(Box<Stop>),
    /// The slot is in use by another session: wait until it is free (SQLSTATE 55006).
    #[error("use the slot: it is active for another session{}", pid.map(|p| format!(" (pid {p})")).unwrap_or_default())]
    Standby {
        /// The other session's walsender, where the server tells it.
        pid: Option<i32>,
    },
    /// The server is away, starting, full or cut off: come back with backoff.
    #[error("{0}")]
    Outage(String),
}

impl Error {
    /// Whether the server, while a session of ours was open, said that it shuts down (SQLSTATE 57P01, 57P02,
    /// or 57P03 to a new connection).
    ///
    /// An administrator who terminates our admin session (`pg_terminate_backend`) looks the same; then the
    /// relay comes back at once.
    pub fn is_shutdown(&self) -> bool {
        match self {
            Error::Outage(text) => ["57P01", "57P02", "57P03"].iter().any(|code| text.contains(code)),
            Error::Stop(_) | Error::Standby { .. } => false,
        }
    }

    /// Whether the server has let go of the slot stream, though our end has not heard of it.
    pub fn is_session_over(&self) -> bool {
        matches!(self, Error::Outage(text) if text.starts_with(SESSION_OVER))
    }
}

/// How [`Error::is_session_over`] is told from other outages.
pub(crate) const SESSION_OVER: &str = "the server has ended our session";

impl From<Stop> for Error {
    fn from(stop: Stop) -> Error {
        Error::Stop(Box::new(stop))
    }
}

/// A state of the server that a person must mend.
///
/// Displays as `what: why`, then one line `  cure: …` for each step: exactly one SQL statement or
/// one `postrider` command, to be run in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Which rule is broken.
    pub reason: Reason,
    /// The object and its state, such as `the slot "postrider" does not exist`.
    pub what: String,
    /// Why the relay cannot go on, and what mending loses, if anything.
    pub why: String,
    /// The statements and commands that mend it, in order.
    pub cure: Vec<String>,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)?;
        self.cure.iter().try_for_each(|line| write!(f, "\n  cure: {line}"))
    }
}

impl std::error::Error for Stop {}

/// The rule that is broken (the stops of the relay's contract).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// `wal_level` is not `logical`.
    WalLevel,
    /// The schema `postrider` or a table in it is missing.
    NoSchema,
    /// An outbox table is missing.
    NoTable,
    /// An outbox table is unlogged or temporary: its rows are not in the WAL.
    TableNotLogged,
    /// The publication is missing.
    NoPublication,
    /// The publication is not the one that was there when the slot was created.
    PublicationReplaced,
    /// The publication may be younger than the slot.
    PublicationYounger,
    /// The publication does not cover an outbox table.
    PublicationWithoutTable,
    /// The publication covers a partitioned outbox by its partitions.
    PublicationByPartition,
    /// The publication does not publish inserts.
    PublicationWithoutInsert,
    /// The publication has a row filter or a column list on an outbox table.
    PublicationNarrowed,
    /// The slot is missing.
    NoSlot,
    /// The slot's WAL is gone (`wal_status = lost`), or it is invalidated.
    SlotLost,
    /// The slot is physical, temporary, of another plugin or of another database.
    SlotKind,
    /// The slot is not recorded in `postrider.relay`.
    SlotUnrecorded,
    /// The slot was moved, or dropped and created again, since a relay last used it.
    SlotReplaced,
    /// The slot was recorded on another server or another timeline.
    SlotElsewhere,
    /// The slot could not be created while transactions are open.
    OpenTransactions,
    /// 28P01: the password is wrong.
    Password,
    /// 28000: the server does not let the role in.
    Login,
    /// 3D000: the database does not exist.
    NoDatabase,
    /// 42501: the role may not replicate, or lacks a right.
    Rights,
}
