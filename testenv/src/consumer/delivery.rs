//! One message as the broker handed it over: every property, and every header with its AMQP type.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Instant, SystemTime};

use amqprs::{BasicProperties, FieldTable, FieldValue};
use tokio_postgres::types::PgLsn;

/// The header of a mark: a message that a test writes into the queue itself, see [`super::Queue::mark`].
pub(super) const MARK: &str = "testenv_persisted";

/// One message as it arrived.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// The exchange it was published to.
    pub exchange: String,
    /// The routing key it was published with.
    pub routing_key: String,
    /// The broker's own word that it may have handed this message out before.
    pub redelivered: bool,
    /// Which of the consumer's connections it came over, from 0.
    pub session: u32,
    /// When it arrived, on the monotonic clock.
    pub arrived: Instant,
    /// When it arrived, on the wall clock.
    pub arrived_at: SystemTime,
    /// The properties of the content header but the header table.
    pub properties: Properties,
    /// The header table. A name that was sent twice is here once.
    pub headers: BTreeMap<String, Value>,
    /// The body.
    pub body: Vec<u8>,
}

/// The properties of the content header (AMQP 0-9-1 section 1.8, class basic); `None` is not sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the protocol's")]
pub struct Properties {
    pub content_type: Option<String>,
    pub content_encoding: Option<String>,
    pub delivery_mode: Option<u8>,
    pub priority: Option<u8>,
    pub correlation_id: Option<String>,
    pub reply_to: Option<String>,
    pub expiration: Option<String>,
    pub message_id: Option<String>,
    pub timestamp: Option<u64>,
    pub message_type: Option<String>,
    pub user_id: Option<String>,
    pub app_id: Option<String>,
    pub cluster_id: Option<String>,
}

/// A header's value by its AMQP type.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `S`, long string.
    Text(String),
    /// `t`, boolean.
    Bool(bool),
    /// `I`, signed 32-bit integer.
    Int(i32),
    /// `l`, signed 64-bit integer.
    Long(i64),
    /// `T`, seconds since the Unix epoch.
    Timestamp(u64),
    /// Every type that Postrider never sends.
    Other {
        /// The type's letter on the wire.
        letter: char,
        /// The value, as the client prints it.
        text: String,
    },
}

/// What the header `postrider_position` says, such as `0/16B3748/3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Where the transaction's commit record stands.
    pub commit_lsn: PgLsn,
    /// The row change's index in the transaction.
    pub index: u32,
}

impl Delivery {
    pub(super) fn new(
        (exchange, routing_key, redelivered): (String, String, bool),
        session: u32,
        properties: &BasicProperties,
        body: Vec<u8>,
    ) -> Self {
        Self {
            exchange,
            routing_key,
            redelivered,
            session,
            arrived: Instant::now(),
            arrived_at: SystemTime::now(),
            properties: Properties::from(properties),
            headers: properties.headers().map(headers).unwrap_or_default(),
            body,
        }
    }

    /// The property `message_id`, or nothing.
    pub fn message_id(&self) -> &str {
        self.properties.message_id.as_deref().unwrap_or_default()
    }

    /// The header of that name as text, if it is a long string.
    pub fn text(&self, header: &str) -> Option<&str> {
        match self.headers.get(header) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// What the header `postrider_position` says; `None` if it is missing or unreadable.
    pub fn position(&self) -> Option<Position> {
        let (lsn, index) = self.text("postrider_position")?.rsplit_once('/')?;
        Some(Position { commit_lsn: lsn.parse().ok()?, index: index.parse().ok()? })
    }

    /// The slot's position if this is a mark and no event.
    pub fn mark(&self) -> Option<PgLsn> {
        self.text(MARK)?.parse().ok()
    }
}

impl Value {
    /// The type's letter on the wire (RabbitMQ's "AMQP 0-9-1 Errata", section 3).
    pub fn letter(&self) -> char {
        match self {
            Value::Text(_) => 'S',
            Value::Bool(_) => 't',
            Value::Int(_) => 'I',
            Value::Long(_) => 'l',
            Value::Timestamp(_) => 'T',
            Value::Other { letter, .. } => *letter,
        }
    }

    pub(super) fn field(&self) -> anyhow::Result<FieldValue> {
        Ok(match self {
            Value::Text(text) => FieldValue::S(text.as_str().try_into()?),
            Value::Bool(value) => FieldValue::t(*value),
            Value::Int(value) => FieldValue::I(*value),
            Value::Long(value) => FieldValue::l(*value),
            Value::Timestamp(value) => FieldValue::T(*value),
            Value::Other { letter, .. } => anyhow::bail!("send a field of type {letter}: not supported"),
        })
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => write!(f, "S {text:?}"),
            Value::Bool(value) => write!(f, "t {value}"),
            Value::Int(value) => write!(f, "I {value}"),
            Value::Long(value) => write!(f, "l {value}"),
            Value::Timestamp(value) => write!(f, "T {value}"),
            Value::Other { letter, text } => write!(f, "{letter} {text}"),
        }
    }
}

impl From<&FieldValue> for Value {
    fn from(field: &FieldValue) -> Self {
        let letter = match field {
            FieldValue::S(text) => return Value::Text(text.as_ref().clone()),
            FieldValue::t(value) => return Value::Bool(*value),
            FieldValue::I(value) => return Value::Int(*value),
            FieldValue::l(value) => return Value::Long(*value),
            FieldValue::T(value) => return Value::Timestamp(*value),
            FieldValue::b(_) => 'b',
            FieldValue::B(_) => 'B',
            FieldValue::s(_) => 's',
            FieldValue::u(_) => 'u',
            FieldValue::i(_) => 'i',
            FieldValue::f(_) => 'f',
            FieldValue::d(_) => 'd',
            FieldValue::D(_) => 'D',
            FieldValue::A(_) => 'A',
            FieldValue::F(_) => 'F',
            FieldValue::V => 'V',
            FieldValue::x(_) => 'x',
        };
        Value::Other { letter, text: format!("{field:?}") }
    }
}

impl From<&BasicProperties> for Properties {
    fn from(sent: &BasicProperties) -> Self {
        Self {
            content_type: sent.content_type().cloned(),
            content_encoding: sent.content_encoding().cloned(),
            delivery_mode: sent.delivery_mode(),
            priority: sent.priority(),
            correlation_id: sent.correlation_id().cloned(),
            reply_to: sent.reply_to().cloned(),
            expiration: sent.expiration().cloned(),
            message_id: sent.message_id().cloned(),
            timestamp: sent.timestamp(),
            message_type: sent.message_type().cloned(),
            user_id: sent.user_id().cloned(),
            app_id: sent.app_id().cloned(),
            cluster_id: sent.cluster_id().cloned(),
        }
    }
}

fn headers(table: &FieldTable) -> BTreeMap<String, Value> {
    table.as_ref().iter().map(|(name, value)| (name.as_ref().clone(), Value::from(value))).collect()
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.commit_lsn, self.index)
    }
}
