//! The parking exchange: what cannot be handled, with the reason beside it.
//!
//! Invariant: a message counts as parked only when the broker has confirmed it *and* not returned it. One is
//! published at a time, because lapin hands a returned message to whichever confirm resolves next.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::connect::BoxError;
use super::event::Event;
use super::{PEER_LIMIT, Settings};

/// Why a message is parked, and what is known of its past.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parking {
    pub(super) reason: Reason,
    pub(super) error: String,
    pub(super) attempts: i32,
    pub(super) first_failed_at: SystemTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Mismatch,
    Poison,
    Exhausted,
    Early,
}

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Mismatch => "mismatch",
            Self::Poison => "poison",
            Self::Exhausted => "exhausted",
            Self::Early => "early",
        }
    }
}

/// Where to park; a refusal closes its channel, and it opens another.
pub(super) struct Lot {
    channel: Mutex<Option<Channel>>,
}

impl Lot {
    pub(super) fn new() -> Self {
        Self { channel: Mutex::new(None) }
    }

    /// Parks one message.
    pub(super) async fn park(
        &self,
        connection: &Connection,
        settings: &Settings,
        consumer: &str,
        event: &Event,
        parking: &Parking,
    ) -> Result<(), BoxError> {
        let mut kept = self.channel.lock().await;
        // Put back when all is well: a channel of which it is not known what it will say next is not used
        // again.
        let channel = match kept.take().filter(|channel| channel.status().connected()) {
            Some(channel) => channel,
            None => timeout(PEER_LIMIT, open(connection)).await??,
        };
        let publish = async {
            let exchange = ShortString::try_new(settings.parking_exchange.as_str())?;
            let key = ShortString::try_new(settings.parking_key.as_str())?;
            let options = BasicPublishOptions { mandatory: true, immediate: false };
            let frame_max = connection.configuration().frame_max() as usize;
            let properties = properties_within(frame_max, settings, consumer, event, parking);
            let confirm = channel.basic_publish(exchange, key, options, &event.body, properties).await?;
            match confirm.await? {
                Confirmation::Ack(None) => Ok(()),
                Confirmation::Ack(Some(_)) => Err("no queue is bound for the parking key".into()),
                Confirmation::Nack(_) => Err("the broker refused it".into()),
                Confirmation::NotRequested => Err("the channel is not in confirm mode".into()),
            }
        };
        let parked: Result<(), BoxError> = timeout(PEER_LIMIT, publish).await?;
        if parked.is_ok() {
            *kept = Some(channel);
        }
        parked
    }
}

async fn open(connection: &Connection) -> lapin::Result<Channel> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

/// With as much of ours as there is room for in the frame: the broker would close the connection over a larger one,
/// and again when the message comes back.
fn properties_within(
    frame_max: usize,
    settings: &Settings,
    consumer: &str,
    event: &Event,
    parking: &Parking,
) -> BasicProperties {
    let whole = properties(settings, consumer, event, parking);
    if header_frame_bytes(&whole) <= frame_max {
        return whole;
    }
    let brief = properties(settings, consumer, event, &Parking { error: String::new(), ..parking.clone() });
    if header_frame_bytes(&brief) <= frame_max {
        return brief;
    }
    tracing::warn!(
        message_id = event.message_id,
        "parked without the reason: its own headers fill the frame"
    );
    let own = whole.headers().clone().unwrap_or_default().inner().clone();
    let own: BTreeMap<_, _> = own.into_iter().filter(|(name, _)| !OURS.contains(&name.as_str())).collect();
    whole.with_headers(own.into())
}

/// The bytes of a content header frame (AMQP 0-9-1 sections 2.3.5 and 2.3.5.2), or a few more.
fn header_frame_bytes(properties: &BasicProperties) -> usize {
    const FRAME: usize = 7 + 1;
    const CLASS_WEIGHT_BODY_SIZE_FLAGS: usize = 2 + 2 + 8 + 2;
    const MODE_PRIORITY_TIMESTAMP: usize = 1 + 1 + 8;
    let texts = [
        properties.content_type(),
        properties.content_encoding(),
        properties.correlation_id(),
        properties.reply_to(),
        properties.message_id(),
        properties.kind(),
        properties.app_id(),
        properties.cluster_id(),
    ];
    let texts: usize = texts.into_iter().flatten().map(|text| 1 + text.as_str().len()).sum();
    let headers = properties.headers().as_ref().map_or(0, table_bytes);
    FRAME + CLASS_WEIGHT_BODY_SIZE_FLAGS + MODE_PRIORITY_TIMESTAMP + texts + headers
}

fn table_bytes(table: &FieldTable) -> usize {
    4 + table.inner().iter().map(|(name, value)| 1 + name.as_str().len() + value_bytes(value)).sum::<usize>()
}

/// With its type.
fn value_bytes(value: &AMQPValue) -> usize {
    1 + match value {
        AMQPValue::Void => 0,
        AMQPValue::Boolean(_) | AMQPValue::ShortShortInt(_) | AMQPValue::ShortShortUInt(_) => 1,
        AMQPValue::ShortInt(_) | AMQPValue::ShortUInt(_) => 2,
        AMQPValue::LongInt(_) | AMQPValue::LongUInt(_) | AMQPValue::Float(_) => 4,
        AMQPValue::DecimalValue(_) => 5,
        AMQPValue::LongLongInt(_) | AMQPValue::Double(_) | AMQPValue::Timestamp(_) => 8,
        AMQPValue::ShortString(text) => 1 + text.as_str().len(),
        AMQPValue::LongString(text) => 4 + text.as_bytes().len(),
        AMQPValue::ByteArray(bytes) => 4 + bytes.as_slice().len(),
        AMQPValue::FieldArray(values) => 4 + values.as_slice().iter().map(value_bytes).sum::<usize>(),
        AMQPValue::FieldTable(table) => table_bytes(table),
    }
}

/// The names of the headers that are ours.
const OURS: [&str; 8] = [
    "inbox_parked_reason",
    "inbox_parked_error",
    "inbox_parked_attempts",
    "inbox_parked_first_failure",
    "inbox_parked_consumer",
    "inbox_parked_queue",
    "inbox_parked_exchange",
    "inbox_parked_routing_key",
];

/// Its own, and ours: the same id, so that it can be sent back. Without an expiration, by which the broker would
/// drop it where it waits for a person, without the header that would route more copies, and without the name of
/// another user, for which the broker would refuse it: <https://www.rabbitmq.com/docs/validated-user-id>.
fn properties(settings: &Settings, consumer: &str, event: &Event, parking: &Parking) -> BasicProperties {
    let text = |text: &str| AMQPValue::LongString(LongString::from(text));
    let mut headers = event.properties.headers().as_ref().map(FieldTable::inner).cloned().unwrap_or_default();
    headers.remove("CC");
    let since = parking.first_failed_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let values = [
        text(parking.reason.as_str()),
        text(cut(&parking.error)),
        AMQPValue::LongInt(parking.attempts),
        AMQPValue::Timestamp(since),
        text(consumer),
        text(&settings.queue),
        text(&event.exchange),
        text(&event.routing_key),
    ];
    for (name, value) in OURS.into_iter().zip(values) {
        headers.insert(ShortString::from(name), value);
    }
    kept(&event.properties).with_headers(headers.into()).with_delivery_mode(2)
}

/// A property can be set and not taken away.
fn kept(own: &BasicProperties) -> BasicProperties {
    type With = fn(BasicProperties, ShortString) -> BasicProperties;
    let texts: [(&Option<ShortString>, With); 8] = [
        (own.content_type(), BasicProperties::with_content_type),
        (own.content_encoding(), BasicProperties::with_content_encoding),
        (own.correlation_id(), BasicProperties::with_correlation_id),
        (own.reply_to(), BasicProperties::with_reply_to),
        (own.message_id(), BasicProperties::with_message_id),
        (own.kind(), BasicProperties::with_type),
        (own.app_id(), BasicProperties::with_app_id),
        (own.cluster_id(), BasicProperties::with_cluster_id),
    ];
    let mut kept = BasicProperties::default();
    for (text, with) in texts {
        if let Some(text) = text {
            kept = with(kept, text.clone());
        }
    }
    if let Some(priority) = own.priority() {
        kept = kept.with_priority(*priority);
    }
    if let Some(timestamp) = own.timestamp() {
        kept = kept.with_timestamp(*timestamp);
    }
    kept
}

/// An error in a header: long ones would not fit into the frame.
fn cut(text: &str) -> &str {
    let end = text.char_indices().map(|(at, _)| at).find(|at| *at >= 1000);
    &text[..end.unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(properties: BasicProperties) -> Event {
        Event {
            message_id: "f".to_owned(),
            event_type: "g".to_owned(),
            aggregate_type: None,
            aggregate_id: None,
            aggregate_seq: None,
            exchange: String::new(),
            routing_key: "q".to_owned(),
            redelivered: false,
            properties,
            body: Vec::new(),
        }
    }

    #[test]
    fn a_copy_keeps_what_is_its_own_and_nothing_that_would_lose_or_multiply_it() {
        let text = |text: &str| ShortString::from(text);
        let mut headers = FieldTable::default();
        headers.insert(text("aggregate_type"), AMQPValue::LongString("order".into()));
        headers.insert(text("CC"), AMQPValue::FieldArray(vec![AMQPValue::LongString("q".into())].into()));
        let own = BasicProperties::default()
            .with_content_type(text("a"))
            .with_content_encoding(text("b"))
            .with_priority(3)
            .with_correlation_id(text("d"))
            .with_reply_to(text("e"))
            .with_message_id(text("f"))
            .with_timestamp(7)
            .with_type(text("g"))
            .with_app_id(text("h"))
            .with_cluster_id(text("i"))
            .with_delivery_mode(2);
        let with_more =
            own.clone().with_headers(headers).with_expiration(text("60000")).with_user_id(text("shop"));
        let event = event(with_more);
        let parking = Parking {
            reason: Reason::Poison,
            error: "it cannot be read".to_owned(),
            attempts: 1,
            first_failed_at: UNIX_EPOCH,
        };
        let parked = properties(&Settings::new("q"), "w", &event, &parking);
        let headers = parked.headers().clone().expect("headers");
        assert!(headers.contains_key("aggregate_type") && headers.contains_key("inbox_parked_reason"));
        assert!(!headers.contains_key("CC"));
        assert_eq!(parked, own.with_headers(headers));
    }
    #[test]
    fn a_copy_has_as_much_of_ours_as_its_frame_has_room_for() {
        let mut headers = FieldTable::default();
        headers.insert(ShortString::from("large"), AMQPValue::LongString("x".repeat(4000).into()));
        let event = event(BasicProperties::default().with_headers(headers.clone()));
        let settings = Settings::new("q");
        let parking = Parking {
            reason: Reason::Poison,
            error: "why ".repeat(250),
            attempts: 1,
            first_failed_at: UNIX_EPOCH,
        };
        let names = |frame_max| {
            let parked = properties_within(frame_max, &settings, "w", &event, &parking);
            assert!(header_frame_bytes(&parked) <= frame_max);
            let parked = parked.headers().clone().expect("headers");
            assert_eq!(parked.inner().get("large"), headers.inner().get("large"));
            let error = parked.inner().get("inbox_parked_error").cloned();
            (parked.inner().len(), error)
        };
        assert_eq!(names(8192), (9, Some(AMQPValue::LongString("why ".repeat(250).into()))));
        assert_eq!(names(5000), (9, Some(AMQPValue::LongString("".into()))));
        assert_eq!(names(4096), (1, None));
    }
}
