//! From an outbox row to a complete message, or to the reason why there is none.
//!
//! A row is never dropped and never fatal, and no part of a payload or a value gets into a
//! refusal's text. What a message keeps is copied out of the frame, once: a slice of it would pin
//! the whole block that was read from the network.

use std::sync::Arc;

use crate::body::body;
use crate::columns::Columns;
use crate::decode::Value;
use crate::draft::Draft;
use crate::headers::{HeaderNames, Headers};
use crate::limits::SHORT_STRING_BYTES_MAX;
use crate::lsn::Position;
use crate::message::{HeaderValue, Message};
use crate::reason::Reason;
use crate::relation::{Kind, Layout, RelationName};
use crate::route::{RouteFields, RoutingKey};
use crate::row::{Refusal, Row};
use crate::timestamp::Timestamp;

/// How rows become messages; [`Settings::default`] has the documented defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The outbox tables, as the publication names them.
    pub tables: Vec<RelationName>,
    /// The table of operators' commands, whose rows are no events.
    pub command: Option<RelationName>,
    /// The names of the outbox tables' columns.
    pub columns: Columns,
    /// The exchange for rows that name none; at most 255 bytes.
    pub exchange: Arc<str>,
    /// Makes the routing key for rows that bring none.
    pub routing_key: RoutingKey,
    /// The largest body that the broker takes, in bytes.
    pub message_bytes_max: usize,
}

/// An event that became a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// The message.
    pub message: Message,
    /// The aggregate it belongs to.
    pub aggregate: AggregateKey,
    /// The names of the row's headers that were left out because they are ours; mostly empty.
    pub dropped_headers: Vec<Box<str>>,
}

/// An event that cannot become a message as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub reason: Reason,
    /// What exactly, for logs: names and sizes, never a value.
    pub detail: String,
    /// The aggregate it belongs to; without one it stands for itself.
    pub aggregate: Option<AggregateKey>,
    /// What could be made of it.
    pub draft: Box<Draft>,
}

/// Names one aggregate: its type and id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AggregateKey(Box<str>);

impl AggregateKey {
    /// The key of this aggregate; a NUL, which no text of Postgres holds, joins the two.
    pub fn new(aggregate_type: &str, aggregate_id: &str) -> AggregateKey {
        let mut key = String::with_capacity(aggregate_type.len() + 1 + aggregate_id.len());
        key.push_str(aggregate_type);
        key.push('\0');
        key.push_str(aggregate_id);
        AggregateKey(key.into())
    }

    /// The two as they are joined.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// The aggregate's type and id, for people.
    pub fn parts(&self) -> (&str, &str) {
        self.0.split_once('\0').unwrap_or((&self.0, ""))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            tables: vec![RelationName::new("postrider", "outbox")],
            command: Some(RelationName::new("postrider", "command")),
            columns: Columns::default(),
            exchange: "postrider".into(),
            routing_key: RoutingKey::default(),
            message_bytes_max: 16 << 20,
        }
    }
}

/// The settings, and the words that all messages share.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) settings: Settings,
    pub(crate) header_names: HeaderNames,
    json: Arc<str>,
    text: Arc<str>,
    bytes: Arc<str>,
}

impl Mapping {
    pub(crate) fn new(settings: Settings) -> Mapping {
        Mapping {
            settings,
            header_names: HeaderNames::new(),
            json: "application/json".into(),
            text: "text/plain; charset=utf-8".into(),
            bytes: "application/octet-stream".into(),
        }
    }

    /// Maps one row of an outbox table.
    pub(crate) fn map(
        &self,
        layout: &Layout,
        values: &[Value<'_>],
        position: Position,
    ) -> Result<Mapped, Refused> {
        let row = layout.row(values);
        let refused = |(reason, detail), aggregate| Refused {
            reason,
            detail,
            aggregate,
            draft: Box::new(Draft::of_row(self, &row, layout.payload)),
        };
        let (aggregate_type, aggregate_id) = aggregate(&row).map_err(|refusal| refused(refusal, None))?;
        let aggregate = AggregateKey::new(aggregate_type, aggregate_id);
        match self.message(&row, layout.payload, aggregate_type, aggregate_id, position) {
            Ok((message, dropped_headers)) => Ok(Mapped { message, aggregate, dropped_headers }),
            Err(refusal) => Err(refused(refusal, Some(aggregate))),
        }
    }

    /// The message, and the names of the row's headers that it does not carry.
    fn message(
        &self,
        row: &Row<'_>,
        payload: Kind,
        aggregate_type: &str,
        aggregate_id: &str,
        position: Position,
    ) -> Result<(Message, Vec<Box<str>>), Refusal> {
        let event_type = row.event_type.required()?;
        let event_version = row.event_version.parse("32-bit integer")?;
        let occurred_at = row.occurred_at.parse("timestamp")?;
        let fields = RouteFields { aggregate_type, aggregate_id, event_type, event_version };
        let headers = self.headers(row, fields, occurred_at)?;
        let message = Message {
            position,
            exchange: match short("exchange", row.exchange.text()?)? {
                Some(exchange) => exchange.into(),
                None => self.settings.exchange.clone(),
            },
            routing_key: self.routing_key(row, fields)?,
            message_id: fitting("message id", row.id.required()?)?.into(),
            event_type: fitting("type", event_type)?.into(),
            correlation_id: short("correlation id", row.correlation_id.text()?)?.map(Box::from),
            content_type: match short("content type", row.content_type.text()?)? {
                Some(content_type) => content_type.into(),
                None => self.content_type(payload).clone(),
            },
            timestamp_s: occurred_at.and_then(Timestamp::amqp),
            headers: headers.all,
            body: body(row.payload, payload, self.settings.message_bytes_max)?,
        };
        Ok((message, headers.dropped))
    }

    pub(crate) fn headers(
        &self,
        row: &Row<'_>,
        fields: RouteFields<'_>,
        occurred_at: Option<Timestamp>,
    ) -> Result<Headers, Refusal> {
        let names = &self.header_names;
        let mut headers = Headers { all: Vec::with_capacity(8), ..Headers::default() };
        headers.text(&names.aggregate_type, fields.aggregate_type);
        headers.text(&names.aggregate_id, fields.aggregate_id);
        if let Some(version) = fields.event_version {
            headers.add(&names.event_version, HeaderValue::Int(version));
        }
        if let Some(seq) = row.aggregate_seq.parse("64-bit integer")? {
            headers.add(&names.aggregate_seq, HeaderValue::Long(seq));
        }
        if let Some(causation_id) = row.causation_id.text()? {
            headers.text(&names.causation_id, causation_id);
        }
        if let Some(occurred_at) = occurred_at.and_then(Timestamp::rfc3339) {
            headers.text(&names.occurred_at, occurred_at);
        }
        if let Some(traceparent) = row.traceparent.text()? {
            headers.text(&names.traceparent, traceparent);
        }
        if row.payload.bytes()?.is_none() {
            headers.add(&names.payload_null, HeaderValue::Bool(true));
        }
        if let Some(json) = row.headers.text()? {
            headers.add_row(names, json).map_err(|detail| (Reason::BadHeader, detail))?;
        }
        Ok(headers)
    }

    fn routing_key(&self, row: &Row<'_>, fields: RouteFields<'_>) -> Result<Box<str>, Refusal> {
        let what = "routing key";
        if let Some(key) = short(what, row.routing_key.text()?)? {
            return Ok(key.into());
        }
        let key = self.settings.routing_key.fill(fields).ok_or_else(|| row.event_version.null())?;
        fitting(what, &key)?;
        Ok(key.into())
    }

    pub(crate) fn content_type(&self, payload: Kind) -> &Arc<str> {
        match payload {
            Kind::Json => &self.json,
            Kind::Bytes => &self.bytes,
            Kind::Text => &self.text,
        }
    }
}

fn aggregate<'a>(row: &Row<'a>) -> Result<(&'a str, &'a str), Refusal> {
    Ok((row.aggregate_type.required()?, row.aggregate_id.required()?))
}

/// The text, if AMQP can carry it as a short string.
pub(crate) fn fitting<'a>(what: &str, text: &'a str) -> Result<&'a str, Refusal> {
    let bytes = text.len();
    if bytes <= SHORT_STRING_BYTES_MAX {
        return Ok(text);
    }
    let detail = format!("the {what} has {bytes} bytes, at most {SHORT_STRING_BYTES_MAX} can be carried");
    Err((Reason::ShortString, detail))
}

fn short<'a>(what: &str, text: Option<&'a str>) -> Result<Option<&'a str>, Refusal> {
    text.map(|text| fitting(what, text)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;
    use crate::relation::Place;

    const POSITION: Position = Position { commit_lsn: Lsn(1), index: 2 };

    /// A table of the four required columns, the payload and two more, in this order.
    fn layout(payload: Kind) -> Layout {
        let order = [
            "id",
            "aggregate_type",
            "aggregate_id",
            "event_type",
            "payload",
            "event_version",
            "correlation_id",
        ];
        let places = Columns::default().map(|name| Place {
            name: name.clone(),
            index: order.iter().position(|column| **column == **name),
        });
        Layout { places, width: order.len(), payload }
    }

    fn row<'a>(payload: Value<'a>, version: Value<'a>, correlation_id: Value<'a>) -> [Value<'a>; 7] {
        let text = |text: &'static str| Value::Text(text.as_bytes());
        [text("1"), text("order"), text("42"), text("placed"), payload, version, correlation_id]
    }

    /// What no server sends under the settings that our session pins, beside what the corpus has.
    #[test]
    fn what_cannot_be_read_is_refused_and_not_shown() {
        let mapping = Mapping::new(Settings::default());
        let check = |kind, row: [Value<'_>; 7], expected: (Reason, &str)| {
            let refused = mapping.map(&layout(kind), &row, POSITION).unwrap_err();
            assert_eq!((refused.reason, &*refused.detail), expected);
            assert_eq!(refused.aggregate, Some(AggregateKey::new("order", "42")));
        };
        let payload = |payload| row(payload, Value::Null, Value::Null);
        let no_hex = (Reason::BadValue, "the column payload is not printed in hex");
        check(Kind::Bytes, payload(Value::Text(b"secret\\000")), no_hex);
        check(Kind::Bytes, payload(Value::Text(b"\\x0")), no_hex);
        check(Kind::Bytes, payload(Value::Text(b"\\x0g")), no_hex);
        check(Kind::Bytes, payload(Value::Text(b"\\x+1")), no_hex);
        let no_text = (Reason::BadValue, "the column payload was not sent as text");
        check(Kind::Json, payload(Value::Binary(b"secret")), no_text);
        check(Kind::Json, payload(Value::Unchanged), no_text);
        let no_utf8 = (Reason::BadValue, "the column correlation_id holds text that is no UTF-8");
        check(Kind::Json, row(Value::Null, Value::Null, Value::Text(b"\xff")), no_utf8);
        let no_integer = (Reason::BadValue, "the column event_version holds no 32-bit integer");
        check(Kind::Json, row(Value::Null, Value::Text(b"1.0"), Value::Null), no_integer);
        let mut unnamed = payload(Value::Null);
        unnamed[0] = Value::Null;
        check(Kind::Json, unnamed, (Reason::NullColumn, "the column id is NULL"));
    }

    #[test]
    fn a_body_is_carried_byte_for_byte() {
        let mapping = Mapping::new(Settings { message_bytes_max: 4, ..Settings::default() });
        let check = |kind, printed: &[u8], expected: Result<&[u8], Reason>| {
            let row = row(Value::Text(printed), Value::Null, Value::Null);
            let body = mapping.map(&layout(kind), &row, POSITION).map(|event| event.message.body);
            assert_eq!(body.as_deref().map_err(|refused| refused.reason), expected, "{printed:?}");
        };
        check(Kind::Text, b"\xff\\x0", Ok(b"\xff\\x0"));
        check(Kind::Json, b" {} ", Ok(b" {} "));
        check(Kind::Json, b"12345", Err(Reason::MessageTooLarge));
        check(Kind::Bytes, b"\\x0aFf5c00", Ok(b"\x0a\xff\x5c\x00"));
        check(Kind::Bytes, b"\\x", Ok(b""));
        check(Kind::Bytes, b"\\x0102030405", Err(Reason::MessageTooLarge));
    }

    #[test]
    fn a_key_made_from_the_version_needs_one() {
        let routing_key = "{aggregate_id}.v{event_version}".parse().unwrap();
        let mapping = Mapping::new(Settings { routing_key, ..Settings::default() });
        let check = |version, expected: Result<&str, (Reason, &str)>| {
            let mut layout = layout(Kind::Json);
            if version == Value::Unchanged {
                layout.places.event_version.index = None;
            }
            let mapped = mapping.map(&layout, &row(Value::Null, version, Value::Null), POSITION);
            let key = mapped.as_ref().map(|mapped| &*mapped.message.routing_key);
            assert_eq!(key.map_err(|refused| (refused.reason, &*refused.detail)), expected);
        };
        check(Value::Text(b"007"), Ok("42.v7"));
        check(Value::Null, Err((Reason::NullColumn, "the column event_version is NULL")));
        check(Value::Unchanged, Err((Reason::MissingColumn, "the table has no column event_version")));
    }

    #[test]
    fn two_aggregates_have_two_keys() {
        assert_ne!(AggregateKey::new("a", "bc"), AggregateKey::new("ab", "c"));
        assert_eq!(AggregateKey::new("a", "bc").parts(), ("a", "bc"));
    }
}
