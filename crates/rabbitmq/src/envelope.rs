//! A message as lapin takes it: exchange, routing key, properties.

use std::collections::BTreeMap;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, MAX_SHORT_STRING_LENGTH, ShortString};
use postrider_relay::{HeaderValue, Message};

/// The header that names the event, and by which a returned message is known again.
pub(crate) const POSITION: &str = "postrider_position";

const APP_ID: &str = "postrider";
const PERSISTENT: u8 = 2;

/// All of a message but its body.
#[derive(Debug)]
pub(crate) struct Envelope {
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
}

/// A short string of the message is longer than AMQP can carry; the relay should have found it before.
#[derive(Debug, thiserror::Error)]
#[error("encode {0}: longer than 255 bytes")]
pub(crate) struct TooLong(&'static str);

impl Envelope {
    /// Whether AMQP can carry the message's short strings.
    pub(crate) fn check(message: &Message) -> Result<(), TooLong> {
        let Message { exchange, routing_key, message_id, event_type, content_type, .. } = message;
        let correlation_id = message.correlation_id.as_deref().unwrap_or_default();
        let properties: [(_, &str); 6] = [
            ("the exchange", exchange),
            ("the routing key", routing_key),
            ("the message id", message_id),
            ("the event type", event_type),
            ("the content type", content_type),
            ("the correlation id", correlation_id),
        ];
        let headers = message.headers.iter().map(|(name, _)| ("a header's name", &**name));
        match properties.into_iter().chain(headers).find(|(_, text)| text.len() > MAX_SHORT_STRING_LENGTH) {
            Some((what, _)) => Err(TooLong(what)),
            None => Ok(()),
        }
    }

    /// The envelope of a message that was [checked](Self::check).
    pub(crate) fn of(message: &Message) -> Self {
        // lapin keeps tables sorted by name, so the position is last among ours only on paper; AMQP tables
        // have no order.
        let mut headers = BTreeMap::new();
        for (name, value) in &message.headers {
            headers.insert(short(name), table_value(value));
        }
        let position = AMQPValue::LongString(LongString::from(message.position.to_string()));
        headers.insert(short(POSITION), position);

        let mut properties = BasicProperties::default()
            .with_headers(FieldTable::from(headers))
            .with_delivery_mode(PERSISTENT)
            .with_message_id(short(&message.message_id))
            .with_type(short(&message.event_type))
            .with_content_type(short(&message.content_type))
            .with_app_id(short(APP_ID));
        if let Some(id) = &message.correlation_id {
            properties = properties.with_correlation_id(short(id));
        }
        if let Some(seconds) = message.timestamp_s {
            properties = properties.with_timestamp(seconds);
        }
        Self { exchange: short(&message.exchange), routing_key: short(&message.routing_key), properties }
    }
}

fn short(text: &str) -> ShortString {
    ShortString::from(text)
}

/// Never a short string: RabbitMQ does not accept one in a table (RabbitMQ, "AMQP 0-9-1 Errata").
fn table_value(value: &HeaderValue) -> AMQPValue {
    match value {
        HeaderValue::Text(text) => AMQPValue::LongString(LongString::from(&**text)),
        HeaderValue::Bool(value) => AMQPValue::Boolean(*value),
        HeaderValue::Int(value) => AMQPValue::LongInt(*value),
        HeaderValue::Long(value) => AMQPValue::LongLongInt(*value),
    }
}

/// The position that a message which came back carries.
pub(crate) fn position_of(properties: &BasicProperties) -> Option<&[u8]> {
    match properties.headers().as_ref()?.inner().get(POSITION)? {
        AMQPValue::LongString(text) => Some(text.as_bytes()),
        _ => None,
    }
}
