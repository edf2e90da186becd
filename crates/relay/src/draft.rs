//! What the quarantine keeps of an event: its message, or of a row that is none what can be made of it.
//!
//! Nothing of a row is lost in it, whatever its size: what a message could not carry stands beside the rest.

use std::sync::Arc;

use bytes::Bytes;

use crate::body::body;
use crate::limits::SHORT_STRING_BYTES_MAX;
use crate::lsn::Position;
use crate::mapping::{Mapping, fitting};
use crate::message::{HeaderValue, Message};
use crate::reason::Reason;
use crate::relation::Kind;
use crate::route::RouteFields;
use crate::row::{Cell, Row};
use crate::timestamp::Timestamp;

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
    /// What can be made of a row that is no message: each part as it is, whatever its size, and the row beside it.
    pub(crate) fn of_row(mapping: &Mapping, row: &Row<'_>, payload: Kind) -> Draft {
        let text = |cell: Cell<'_>| cell.text().ok().flatten().map(Box::<str>::from);
        let fields = RouteFields {
            aggregate_type: row.aggregate_type.text().ok().flatten().unwrap_or_default(),
            aggregate_id: row.aggregate_id.text().ok().flatten().unwrap_or_default(),
            event_type: row.event_type.text().ok().flatten().unwrap_or_default(),
            event_version: row.event_version.parse("32-bit integer").ok().flatten(),
        };
        let named = [row.aggregate_type, row.aggregate_id, row.event_type];
        let routable = named.into_iter().all(|cell| cell.required().is_ok());
        let filled = || mapping.settings.routing_key.fill(fields).filter(|_| routable).map(Box::<str>::from);
        let occurred_at = row.occurred_at.parse::<Timestamp>("timestamp").ok().flatten();
        let without_its_own = Row { headers: row.headers.emptied(), ..*row };
        let mut headers = mapping.headers(&without_its_own, fields, occurred_at).unwrap_or_default();
        if let Ok(Some(json)) = row.headers.text() {
            headers.add_row_in_part(&mapping.header_names, json);
        }
        Draft {
            exchange: match row.exchange.text() {
                Ok(Some(exchange)) => Some(exchange.into()),
                Ok(None) => Some(mapping.settings.exchange.clone()),
                Err(_) => None,
            },
            routing_key: text(row.routing_key).or_else(filled),
            message_id: text(row.id),
            event_type: text(row.event_type),
            correlation_id: text(row.correlation_id),
            content_type: text(row.content_type)
                .map(Arc::from)
                .or_else(|| Some(mapping.content_type(payload).clone())),
            timestamp_s: occurred_at.and_then(Timestamp::amqp),
            headers: headers.all,
            bad_headers: headers.bad,
            body: body(row.payload, payload, usize::MAX).ok(),
            row: Some(row.to_json().into()),
        }
    }

    /// The message, if nothing that it needs is missing and AMQP can carry it (the header table is measured
    /// when the broker has told its `frame_max`); else why not.
    pub fn complete(self, position: Position, message_bytes_max: usize) -> Result<Message, (Reason, String)> {
        fn needed<T: std::ops::Deref<Target = str>>(
            what: &str,
            text: Option<T>,
        ) -> Result<T, (Reason, String)> {
            let text =
                text.ok_or_else(|| (Reason::NullColumn, format!("the quarantined message has no {what}")))?;
            fitting(what, &text)?;
            Ok(text)
        }
        let body = self.body.unwrap_or_default();
        if body.len() > message_bytes_max {
            let detail =
                format!("the body has {} bytes, at most {message_bytes_max} can be carried", body.len());
            return Err((Reason::MessageTooLarge, detail));
        }
        if let Some(text) = &self.correlation_id {
            fitting("correlation id", text)?;
        }
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
