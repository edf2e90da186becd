//! A delivered message, as a handler sees it.

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::AMQPValue;

use crate::inbox::Message;

/// A message of Postrider's: the fields that it always has, and everything else.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The event's id. A message without one cannot be told from another and is parked.
    pub message_id: String,
    /// The event's type; empty if the message has none.
    pub event_type: String,
    /// The aggregate's type.
    pub aggregate_type: Option<String>,
    /// The aggregate's id.
    pub aggregate_id: Option<String>,
    /// The event's number in its aggregate, from 1.
    pub aggregate_seq: Option<i64>,
    /// Where it was published.
    pub exchange: String,
    /// With this routing key.
    pub routing_key: String,
    /// Whether the broker has delivered it before, to anybody.
    pub redelivered: bool,
    /// All of its properties and headers.
    pub properties: BasicProperties,
    /// The payload.
    pub body: Vec<u8>,
}

impl Event {
    pub(super) fn of(delivery: Delivery) -> Self {
        let properties = delivery.properties;
        let headers = properties.headers().as_ref();
        let text = |name| match headers?.inner().get(name)? {
            AMQPValue::LongString(text) => Some(String::from_utf8_lossy(text.as_bytes()).into_owned()),
            AMQPValue::ShortString(text) => Some(text.to_string()),
            _ => None,
        };
        let number = |name| match headers?.inner().get(name)? {
            AMQPValue::LongLongInt(number) => Some(*number),
            AMQPValue::LongInt(number) => Some(i64::from(*number)),
            AMQPValue::LongUInt(number) => Some(i64::from(*number)),
            AMQPValue::ShortInt(number) => Some(i64::from(*number)),
            _ => None,
        };
        Self {
            message_id: properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default(),
            event_type: properties.kind().as_ref().map(ToString::to_string).unwrap_or_default(),
            aggregate_type: text("aggregate_type"),
            aggregate_id: text("aggregate_id"),
            aggregate_seq: number("aggregate_seq"),
            exchange: delivery.exchange.to_string(),
            routing_key: delivery.routing_key.to_string(),
            redelivered: delivery.redelivered,
            body: delivery.data,
            properties,
        }
    }

    /// The name of its aggregate in the inbox.
    pub(super) fn aggregate(&self) -> Option<String> {
        Some(format!("{}/{}", self.aggregate_type.as_deref()?, self.aggregate_id.as_deref()?))
    }

    /// The message as the inbox knows it.
    pub(super) fn message<'a>(&'a self, sequence: Option<(&'a str, i64)>) -> Message<'a> {
        let message = Message::new(&self.message_id).content(&self.body);
        match sequence {
            Some((aggregate, seq)) => message.sequence(aggregate, seq),
            None => message,
        }
    }
}
