//! The quarantine as data: what the core asks of the table, and what comes back.
//!
//! Invariants: one [`Work`] is one transaction, and one is under way at a time, in the order in which the
//! core asked; each may be done twice without harm, so that one whose end was not seen is simply done again.

use sha2::{Digest, Sha256};

use crate::lsn::Position;
use crate::mapping::AggregateKey;
use crate::reason::Reason;

pub use crate::draft::Draft;

/// Names one piece of work; unique for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkId(pub u64);

/// One transaction on the quarantine table.
#[derive(Clone, Debug)]
pub enum Work {
    /// A session begins: what is parked, and the first page of positions that the slot will send again.
    /// It must wait for whatever the session before is still writing.
    Open {
        /// At most so many positions.
        positions: usize,
    },
    /// The next page of positions, in order.
    Positions {
        /// All are above this one.
        after: Position,
        /// At most so many.
        positions: usize,
    },
    /// Insert these rows; one that is there already stays as it is.
    Store(Vec<Parking>),
    /// Mark rows `released` that were parked before the request and are not its own doing.
    Release(Request),
    /// Mark rows `discarded` that are parked and were so before the request.
    Discard(Request),
    /// Read released rows, lowest positions first, but of no aggregate that is `busy`, and no row that is.
    Page {
        /// Aggregates whose rows are on their way.
        busy: Vec<ParkedKey>,
        /// Rows of no aggregate that are on their way, or that stand for themselves.
        busy_rows: Vec<Position>,
        /// At most so many rows.
        rows: usize,
        /// No further row once so many bytes of bodies are reached; the first is always read.
        bytes: usize,
    },
    /// Mark released rows `delivered`.
    Delivered(Vec<Position>),
    /// A released row has failed: it is parked again, and with it, under [`Scope::Key`], every other
    /// released row of its aggregate.
    PutBack(PutBack),
}

/// What became of a [`Work`]; the variants follow it one by one.
#[derive(Clone, Debug)]
pub enum Done {
    /// For [`Work::Open`].
    Opened {
        /// Every aggregate with a row of [`Scope::Key`] that is parked or released.
        parked: Vec<ParkedAggregate>,
        /// Rows that are parked or released.
        undelivered: u64,
        /// Whether any row is released.
        released: bool,
        /// Positions at or above the slot's, of rows in any state.
        page: PositionPage,
    },
    /// For [`Work::Positions`].
    Positions(PositionPage),
    /// For [`Work::Store`].
    Stored {
        /// Rows that were not there before.
        new: u64,
    },
    /// For [`Work::Release`].
    Released {
        /// Rows that are released now.
        rows: u64,
        /// Their aggregates, as far as rows of [`Scope::Key`] are concerned.
        aggregates: Vec<ParkedKey>,
    },
    /// For [`Work::Discard`].
    Discarded {
        /// Rows that are discarded now.
        rows: u64,
        /// Their aggregates in which nothing is parked or released any more.
        free: Vec<ParkedKey>,
    },
    /// For [`Work::Page`].
    Page {
        /// The rows, by position.
        rows: Vec<Released>,
        /// Whether others are released beside these and the busy ones.
        more: bool,
    },
    /// For [`Work::Delivered`].
    Delivered {
        /// Rows that are delivered now.
        rows: u64,
        /// Their aggregates in which nothing is parked or released any more.
        free: Vec<ParkedKey>,
    },
    /// For [`Work::PutBack`].
    PutBack,
}

/// Positions of rows that the slot sends again, in order.
#[derive(Clone, Debug, Default)]
pub struct PositionPage {
    /// The positions.
    pub positions: Vec<Position>,
    /// Whether there are none above the last.
    pub complete: bool,
}

/// An aggregate with undelivered rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkedAggregate {
    /// Its name in the table.
    pub key: ParkedKey,
    /// The lowest undelivered position.
    pub first: Position,
    /// Whether rows of it are released.
    pub releasing: bool,
}

/// One event for the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parking {
    /// Where the event stands.
    pub position: Position,
    /// What is parked with it.
    pub scope: Scope,
    /// Stored as `released`, because its aggregate is being sent from the table; else as `parked`.
    pub released: bool,
    /// Why.
    pub reason: Reason,
    /// What exactly, in words.
    pub detail: String,
    /// Attempts made.
    pub attempts: u32,
    /// The aggregate; `None` where the row does not tell.
    pub aggregate: Option<AggregateKey>,
    /// When its transaction was committed, microseconds since the Unix epoch.
    pub committed_us: i64,
    /// The message, or what could be made of it.
    pub draft: Draft,
}

/// A row that is to be sent from the table.
#[derive(Clone, Debug)]
pub struct Released {
    /// Where the event stands.
    pub position: Position,
    /// What was parked with it.
    pub scope: Scope,
    /// The aggregate; `None` where the row does not tell.
    pub aggregate: Option<ParkedKey>,
    /// When its transaction was committed, microseconds since the Unix epoch.
    pub committed_us: i64,
    /// The message as it stands in the table.
    pub draft: Draft,
    /// What an edit has made of it that cannot be read, in words; the rest of the draft is then void.
    pub fault: Option<String>,
}

/// A released row that has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutBack {
    /// The row.
    pub position: Position,
    /// Why.
    pub reason: Reason,
    /// What exactly, in words.
    pub detail: String,
    /// Attempts made this time.
    pub attempts: u32,
}

/// What an operator asks of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Where the request stands in the log; rows behind it are not meant.
    pub position: Position,
    /// The request's `id` in `postrider.command`.
    pub id: i64,
    /// Who asks.
    pub by: String,
    /// Every row of these aggregates.
    pub aggregates: Vec<ParkedKey>,
    /// These rows.
    pub positions: Vec<Position>,
}

/// What goes into quarantine with a poisonous event (`quarantine.scope`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The later events of its aggregate are parked behind it.
    Key,
    /// Only the event.
    Event,
}

impl Scope {
    /// The word in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Key => "key",
            Scope::Event => "event",
        }
    }
}

/// Names an aggregate in 16 bytes, however long its type and id are: the first half of the SHA-256 of the
/// type, a NUL, and the id, in UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParkedKey(pub [u8; 16]);

impl ParkedKey {
    /// The aggregate's name in the table.
    pub fn of(key: &AggregateKey) -> Self {
        let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let (half, _) = digest.split_at(16);
        Self(half.try_into().expect("half of 32 bytes"))
    }
}
