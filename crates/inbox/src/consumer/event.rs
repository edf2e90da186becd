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
        let header = |name| headers?.inner().get(name);
        let number = |name| header(name).and_then(whole);
        let text = |name| match header(name)? {
            AMQPValue::LongString(text) => Some(String::from_utf8_lossy(text.as_bytes()).into_owned()),
            AMQPValue::ShortString(text) => Some(text.to_string()),
            // An id that is a number at the sender's.
            other => whole(other).map(|number| number.to_string()),
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

    /// The name of its aggregate in the inbox: no two aggregates share one, whatever slashes they have.
    pub(super) fn aggregate(&self) -> Option<String> {
        let kind = self.aggregate_type.as_deref()?.replace('\\', "\\\\").replace('/', "\\/");
        Some(format!("{kind}/{}", self.aggregate_id.as_deref()?))
    }

    /// Whether it has a number that is none.
    pub(super) fn has_bad_number(&self) -> bool {
        let headers = self.properties.headers().as_ref();
        self.aggregate_seq.is_none()
            && headers.is_some_and(|headers| {
                headers.inner().get("aggregate_seq").is_some_and(|value| *value != AMQPValue::Void)
            })
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

/// A whole number; other senders' clients choose its kind by its size.
fn whole(value: &AMQPValue) -> Option<i64> {
    match value {
        AMQPValue::LongLongInt(number) => Some(*number),
        AMQPValue::LongInt(number) => Some(i64::from(*number)),
        AMQPValue::LongUInt(number) => Some(i64::from(*number)),
        AMQPValue::ShortInt(number) => Some(i64::from(*number)),
        AMQPValue::ShortUInt(number) => Some(i64::from(*number)),
        AMQPValue::ShortShortInt(number) => Some(i64::from(*number)),
        AMQPValue::ShortShortUInt(number) => Some(i64::from(*number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use lapin::types::{FieldTable, ShortString};

    use super::*;

    fn event(headers: &[(&str, AMQPValue)]) -> Event {
        let mut delivery =
            Delivery::mock(1, ShortString::default(), ShortString::default(), false, Vec::new());
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert(ShortString::from(*name), value.clone());
        }
        delivery.properties = BasicProperties::default().with_headers(table);
        Event::of(delivery)
    }

    #[test]
    fn a_number_is_one_in_whatever_kind_the_sender_has_chosen() {
        for value in [
            AMQPValue::ShortShortInt(7),
            AMQPValue::ShortShortUInt(7),
            AMQPValue::ShortInt(7),
            AMQPValue::ShortUInt(7),
            AMQPValue::LongInt(7),
            AMQPValue::LongUInt(7),
            AMQPValue::LongLongInt(7),
        ] {
            let event = event(&[("aggregate_seq", value)]);
            assert_eq!((event.aggregate_seq, event.has_bad_number()), (Some(7), false));
        }
        for value in [AMQPValue::Double(7.0), AMQPValue::LongString("7".into()), AMQPValue::Boolean(true)] {
            assert!(event(&[("aggregate_seq", value)]).has_bad_number());
        }
        assert!(!event(&[("aggregate_seq", AMQPValue::Void)]).has_bad_number());
        assert!(!event(&[]).has_bad_number());
    }

    #[test]
    fn an_aggregate_id_may_be_a_number() {
        let kind = ("aggregate_type", AMQPValue::LongString("order".into()));
        let event = event(&[kind, ("aggregate_id", AMQPValue::ShortShortInt(7))]);
        assert_eq!(event.aggregate().as_deref(), Some("order/7"));
    }

    #[test]
    fn two_aggregates_never_share_a_name() {
        let name = |kind: &str, id: &str| {
            let text = |text: &str| AMQPValue::LongString(text.into());
            event(&[("aggregate_type", text(kind)), ("aggregate_id", text(id))]).aggregate().expect("both")
        };
        assert_eq!(name("order", "1"), "order/1");
        assert_ne!(name("a", "b/c"), name("a/b", "c"));
        assert_ne!(name("a\\", "b/c"), name("a\\/b", "c"));
        assert_ne!(name("a\\", "/c"), name("a/", "c"));
    }
}
