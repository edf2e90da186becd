//! The quarantine as data: what the core asks of the table, and what comes back.
//!
//! Invariants: one [`Work`] is one transaction, and one is under way at a time, in the order in which the
//! core asked; each may be done twice without harm, so that one whose end was not seen is simply done again.

use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::sync::Arc;

use crate::limits::SHORT_STRING_BYTES_MAX;
use crate::lsn::Position;
use crate::mapping::AggregateKey;
use crate::message::{HeaderValue, Message};
use crate::reason::Reason;

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

/// A message of which parts may be missing: what the table holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draft {
    /// The exchange; the empty one is the default exchange.
    pub exchange: Option<Arc<str>>,
    /// The routing key.
    pub routing_key: Option<Box<str>>,
    /// The property `message_id`.
    pub message_id: Option<Box<str>>,
    /// The property `type`.
    pub event_type: Option<Box<str>>,
    /// The property `correlation_id`.
    pub correlation_id: Option<Box<str>>,
    /// The property `content_type`.
    pub content_type: Option<Arc<str>>,
    /// The property `timestamp`, whole seconds since the Unix epoch.
    pub timestamp_s: Option<u64>,
    /// Every header but `postrider_position`.
    pub headers: Vec<(Arc<str>, HeaderValue)>,
    /// Those of the row's own headers that cannot be carried, each as Postgres printed it: while there are any,
    /// the message is not complete.
    pub bad_headers: Vec<(Box<str>, Box<str>)>,
    /// The body; `None` where the row had no readable payload.
    pub body: Option<Bytes>,
    /// Of a row that could not be mapped: its columns but the payload as Postgres printed them, a JSON object
    /// of strings and nulls.
    pub row: Option<Box<str>>,
}

impl From<&Message> for Draft {
    fn from(message: &Message) -> Draft {
        Draft {
            exchange: Some(Arc::clone(&message.exchange)),
            routing_key: Some(message.routing_key.clone()),
            message_id: Some(message.message_id.clone()),
            event_type: Some(message.event_type.clone()),
            correlation_id: message.correlation_id.clone(),
            content_type: Some(Arc::clone(&message.content_type)),
            timestamp_s: message.timestamp_s,
            headers: message.headers.clone(),
            bad_headers: Vec::new(),
            body: Some(message.body.clone()),
            row: None,
        }
    }
}

impl Draft {
    /// The message, if nothing that it needs is missing and AMQP can carry it (the header table is measured
    /// when the broker has told its `frame_max`); else why not.
    pub fn complete(self, position: Position, message_bytes_max: usize) -> Result<Message, (Reason, String)> {
        fn needed<T: std::ops::Deref<Target = str>>(
            what: &str,
            text: Option<T>,
        ) -> Result<T, (Reason, String)> {
            let text =
                text.ok_or_else(|| (Reason::NullColumn, format!("the quarantined message has no {what}")))?;
            short(what, &text).map(|()| text)
        }
        fn short(what: &str, text: &str) -> Result<(), (Reason, String)> {
            let bytes = text.len();
            if bytes <= SHORT_STRING_BYTES_MAX {
                return Ok(());
            }
            let detail =
                format!("the {what} has {bytes} bytes, at most {SHORT_STRING_BYTES_MAX} can be carried");
            Err((Reason::ShortString, detail))
        }
        let body = self.body.unwrap_or_default();
        if body.len() > message_bytes_max {
            let detail =
                format!("the body has {} bytes, at most {message_bytes_max} can be carried", body.len());
            return Err((Reason::MessageTooLarge, detail));
        }
        self.correlation_id.as_deref().map_or(Ok(()), |text| short("correlation id", text))?;
        if let Some((name, _)) = self.bad_headers.first() {
            return Err((Reason::BadHeader, format!("the header {name:?} cannot be carried")));
        }
        if let Some((name, _)) = self.headers.iter().find(|(name, _)| name.len() > SHORT_STRING_BYTES_MAX) {
            let detail = format!("a header's name has {} bytes", name.len());
            return Err((Reason::BadHeader, detail));
        }
        Ok(Message {
            position,
            exchange: needed("exchange", self.exchange)?,
            routing_key: needed("routing key", self.routing_key)?,
            message_id: needed("message id", self.message_id)?,
            event_type: needed("type", self.event_type)?,
            correlation_id: self.correlation_id,
            content_type: needed("content type", self.content_type)?,
            timestamp_s: self.timestamp_s,
            headers: self.headers,
            body,
        })
    }

    /// About what the draft holds in memory, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let texts = [&self.routing_key, &self.message_id, &self.event_type, &self.correlation_id, &self.row];
        let texts = texts.into_iter().flatten().map(|text| text.len() + 16).sum::<usize>();
        let headers = self.headers.iter().map(|(_, value)| match value {
            HeaderValue::Text(text) => 64 + text.len(),
            HeaderValue::Bool(_) | HeaderValue::Int(_) | HeaderValue::Long(_) => 64,
        });
        let bad = self.bad_headers.iter().map(|(name, raw)| 32 + name.len() + raw.len()).sum::<usize>();
        size_of::<Self>() + texts + bad + headers.sum::<usize>() + self.body.as_ref().map_or(0, Bytes::len)
    }
}
