//! A parked message: what it was, and what parking wrote beside it.
//!
//! Invariant: sent back it is what it was, but for what parking, or the queue, has written into its headers, and for
//! what would route it to further queues.

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use postrider_relay::HeaderValue;

use super::Way;

/// What parking writes into the headers begins so (`postrider_inbox::consumer`).
const PARKED: &str = "inbox_parked_";
/// Of these, the one that whoever parks writes, in any language (README, "The inbox").
const REASON: &str = "inbox_parked_reason";
/// What a quorum queue writes there (RabbitMQ manual, "Quorum Queues", "Poison Message Handling").
const DELIVERIES: &str = "x-delivery-count";

/// By these the broker routes a message to more queues (RabbitMQ manual, "Sender-selected Distribution"). It has done
/// so when the message first came; and a copy in such a queue would pass for one in the queue that is meant.
const COPIES: [&str; 2] = ["CC", "BCC"];

/// A message in a parking queue; other programs may have parked it, so that everything can be missing.
#[derive(Debug, PartialEq)]
pub struct ParkedMessage {
    tag: u64,
    properties: BasicProperties,
    body: Vec<u8>,
}

impl ParkedMessage {
    pub(super) fn of(delivery: Delivery) -> Self {
        Self { tag: delivery.delivery_tag, properties: delivery.properties, body: delivery.data }
    }

    pub(super) fn tag(&self) -> u64 {
        self.tag
    }

    /// The user who sent it, if it says so.
    pub(super) fn user_id(&self) -> Option<&str> {
        self.properties.user_id().as_ref().map(ShortString::as_str)
    }

    /// Its id.
    pub fn message_id(&self) -> Option<&str> {
        self.properties.message_id().as_ref().map(ShortString::as_str)
    }

    /// Its type.
    pub fn event_type(&self) -> Option<&str> {
        self.properties.kind().as_ref().map(ShortString::as_str)
    }

    /// Its content type.
    pub fn content_type(&self) -> Option<&str> {
        self.properties.content_type().as_ref().map(ShortString::as_str)
    }

    /// Its correlation id.
    pub fn correlation_id(&self) -> Option<&str> {
        self.properties.correlation_id().as_ref().map(ShortString::as_str)
    }

    /// The payload.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Whether it says that it was parked. What a queue of work holds does not: the mark is taken off what is sent
    /// back.
    pub fn is_marked(&self) -> bool {
        self.header(REASON).is_some()
    }

    /// Why it was parked, in a word: `mismatch`, `poison`, `exhausted` or `early`.
    pub fn reason(&self) -> Option<String> {
        self.text(REASON)
    }

    /// The error that it was parked with.
    pub fn error(&self) -> Option<String> {
        self.text("inbox_parked_error")
    }

    /// How often it had been tried.
    pub fn attempts(&self) -> Option<i64> {
        self.number("inbox_parked_attempts")
    }

    /// When it failed first, in seconds since the Unix epoch.
    pub fn first_failure_s(&self) -> Option<i64> {
        self.number("inbox_parked_first_failure")
    }

    /// How often a quorum queue has handed it out before, to lookers too; the queue may drop it at its
    /// `x-delivery-limit`.
    pub fn deliveries(&self) -> Option<i64> {
        self.number(DELIVERIES)
    }

    /// Who parked it, by its name in the inbox.
    pub fn consumer(&self) -> Option<String> {
        self.text("inbox_parked_consumer")
    }

    /// The queue from which it was parked.
    pub fn queue(&self) -> Option<Way> {
        Some(Way::Queue(self.text("inbox_parked_queue")?))
    }

    /// The exchange and the routing key with which it had come to that queue.
    pub fn exchange(&self) -> Option<Way> {
        let (exchange, routing_key) =
            (self.text("inbox_parked_exchange")?, self.text("inbox_parked_routing_key")?);
        Some(Way::Exchange { exchange, routing_key })
    }

    /// Its own headers, in the order of their names; a value of a rare type is its text.
    pub fn headers(&self) -> Vec<(String, HeaderValue)> {
        let own = self.own_headers();
        own.inner().iter().map(|(name, value)| (name.to_string(), plain(value))).collect()
    }

    /// What it is sent back with.
    pub(super) fn own_properties(&self) -> BasicProperties {
        let own = self.own_headers();
        if own.inner().is_empty() {
            without_headers(&self.properties)
        } else {
            self.properties.clone().with_headers(own)
        }
    }

    fn own_headers(&self) -> FieldTable {
        let headers = self.properties.headers().as_ref().map(FieldTable::inner);
        let own = headers.into_iter().flatten().filter(|(name, _)| {
            let name = name.as_str();
            !name.starts_with(PARKED) && name != DELIVERIES && !COPIES.contains(&name)
        });
        own.map(|(name, value)| (name.clone(), value.clone()))
            .collect::<std::collections::BTreeMap<_, _>>()
            .into()
    }

    fn header(&self, name: &str) -> Option<&AMQPValue> {
        self.properties.headers().as_ref()?.inner().get(name)
    }

    fn text(&self, name: &str) -> Option<String> {
        match plain(self.header(name)?) {
            HeaderValue::Text(text) => Some(text.into()),
            HeaderValue::Bool(_) | HeaderValue::Int(_) | HeaderValue::Long(_) => None,
        }
    }

    fn number(&self, name: &str) -> Option<i64> {
        match (self.header(name)?, plain(self.header(name)?)) {
            (AMQPValue::Timestamp(seconds), _) => i64::try_from(*seconds).ok(),
            (_, HeaderValue::Long(number)) => Some(number),
            (_, HeaderValue::Int(number)) => Some(number.into()),
            (_, HeaderValue::Text(_) | HeaderValue::Bool(_)) => None,
        }
    }
}

fn plain(value: &AMQPValue) -> HeaderValue {
    match value {
        AMQPValue::LongString(text) => HeaderValue::Text(String::from_utf8_lossy(text.as_bytes()).into()),
        AMQPValue::ShortString(text) => HeaderValue::Text(text.as_str().into()),
        AMQPValue::Boolean(yes) => HeaderValue::Bool(*yes),
        AMQPValue::ShortShortInt(number) => HeaderValue::Int((*number).into()),
        AMQPValue::ShortShortUInt(number) => HeaderValue::Int((*number).into()),
        AMQPValue::ShortInt(number) => HeaderValue::Int((*number).into()),
        AMQPValue::ShortUInt(number) => HeaderValue::Int((*number).into()),
        AMQPValue::LongInt(number) => HeaderValue::Int(*number),
        AMQPValue::LongUInt(number) => HeaderValue::Long((*number).into()),
        AMQPValue::LongLongInt(number) => HeaderValue::Long(*number),
        AMQPValue::Float(number) => HeaderValue::Text(number.to_string().into()),
        AMQPValue::Double(number) => HeaderValue::Text(number.to_string().into()),
        other @ (AMQPValue::DecimalValue(_)
        | AMQPValue::FieldArray(_)
        | AMQPValue::Timestamp(_)
        | AMQPValue::FieldTable(_)
        | AMQPValue::ByteArray(_)
        | AMQPValue::Void) => HeaderValue::Text(format!("{other:?}").into()),
    }
}

/// A property can be set and not taken away.
fn without_headers(own: &BasicProperties) -> BasicProperties {
    type With = fn(BasicProperties, ShortString) -> BasicProperties;
    let texts: [(&Option<ShortString>, With); 10] = [
        (own.content_type(), BasicProperties::with_content_type),
        (own.content_encoding(), BasicProperties::with_content_encoding),
        (own.correlation_id(), BasicProperties::with_correlation_id),
        (own.reply_to(), BasicProperties::with_reply_to),
        (own.expiration(), BasicProperties::with_expiration),
        (own.message_id(), BasicProperties::with_message_id),
        (own.kind(), BasicProperties::with_type),
        (own.user_id(), BasicProperties::with_user_id),
        (own.app_id(), BasicProperties::with_app_id),
        (own.cluster_id(), BasicProperties::with_cluster_id),
    ];
    let mut kept = BasicProperties::default();
    for (text, with) in texts {
        if let Some(text) = text {
            kept = with(kept, text.clone());
        }
    }
    if let Some(mode) = own.delivery_mode() {
        kept = kept.with_delivery_mode(*mode);
    }
    if let Some(priority) = own.priority() {
        kept = kept.with_priority(*priority);
    }
    if let Some(timestamp) = own.timestamp() {
        kept = kept.with_timestamp(*timestamp);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> ShortString {
        ShortString::from(text)
    }

    /// Every property but the headers.
    fn full() -> BasicProperties {
        BasicProperties::default()
            .with_content_type(text("a"))
            .with_content_encoding(text("b"))
            .with_delivery_mode(2)
            .with_priority(3)
            .with_correlation_id(text("d"))
            .with_reply_to(text("e"))
            .with_expiration(text("60000"))
            .with_message_id(text("f"))
            .with_timestamp(7)
            .with_type(text("g"))
            .with_user_id(text("shop"))
            .with_app_id(text("h"))
            .with_cluster_id(text("i"))
    }

    fn parked(own: &[(&str, AMQPValue)]) -> ParkedMessage {
        let mut headers = FieldTable::default();
        for (name, value) in own {
            headers.insert(text(name), value.clone());
        }
        for (name, value) in [
            ("inbox_parked_reason", AMQPValue::LongString("exhausted".into())),
            ("inbox_parked_attempts", AMQPValue::LongInt(8)),
            ("inbox_parked_first_failure", AMQPValue::Timestamp(1_764_475_200)),
            ("inbox_parked_queue", AMQPValue::LongString("orders".into())),
            ("inbox_parked_exchange", AMQPValue::LongString("".into())),
            ("inbox_parked_routing_key", AMQPValue::LongString("order.placed".into())),
            ("x-delivery-count", AMQPValue::LongLongInt(2)),
            ("CC", AMQPValue::FieldArray(vec![AMQPValue::LongString("others".into())].into())),
            ("BCC", AMQPValue::FieldArray(vec![AMQPValue::LongString("others".into())].into())),
        ] {
            headers.insert(text(name), value);
        }
        ParkedMessage { tag: 1, properties: full().with_headers(headers), body: Vec::new() }
    }

    #[test]
    fn sent_back_it_is_what_it_was() {
        assert_eq!(parked(&[]).own_properties(), full());
        let own = [
            ("aggregate_id", AMQPValue::LongString("42".into())),
            ("nested", AMQPValue::FieldArray(vec![AMQPValue::Void].into())),
            ("x-death", AMQPValue::ShortUInt(7)),
        ];
        let mut headers = FieldTable::default();
        for (name, value) in &own {
            headers.insert(text(name), value.clone());
        }
        assert_eq!(parked(&own).own_properties(), full().with_headers(headers));
    }

    #[test]
    fn what_parking_wrote_is_read() {
        let message = parked(&[]);
        assert_eq!(message.reason().as_deref(), Some("exhausted"));
        let numbers = (message.attempts(), message.first_failure_s(), message.deliveries());
        assert_eq!(numbers, (Some(8), Some(1_764_475_200), Some(2)));
        assert_eq!(message.queue(), Some(Way::Queue("orders".to_owned())));
        let (exchange, routing_key) = (String::new(), "order.placed".to_owned());
        assert_eq!(message.exchange(), Some(Way::Exchange { exchange, routing_key }));
        assert_eq!(message.error(), None);
        assert_eq!(message.headers(), []);
    }
}
