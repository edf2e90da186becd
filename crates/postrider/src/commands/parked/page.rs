//! How a parked message is shown.

use postrider_rabbitmq::{ParkedMessage, Way};
use postrider_relay::{HeaderValue, rfc3339};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::commands::payload::Payload;
use crate::commands::table::{self, Size, or_dash, plain};

pub(super) const HEADER: [&str; 9] =
    ["id", "type", "reason", "attempts", "first failure", "queue", "bytes", "deliveries", "error"];

/// A parked message in a list; its fields are the keys of `--json`.
#[derive(Serialize)]
pub(super) struct Summary {
    message_id: Option<String>,
    event_type: Option<String>,
    reason: Option<String>,
    error: Option<String>,
    attempts: Option<i64>,
    first_failure_at: Option<String>,
    /// Who parked it.
    consumer: Option<String>,
    /// From which it was parked.
    queue: Option<String>,
    /// By which it came there.
    exchange: Option<String>,
    routing_key: Option<String>,
    bytes: usize,
    /// By a quorum queue, before.
    deliveries: Option<i64>,
}

impl Summary {
    pub(super) fn of(message: &ParkedMessage) -> Self {
        let queue = match message.queue() {
            Some(Way::Queue(queue)) => Some(queue),
            Some(Way::Exchange { .. }) | None => None,
        };
        let (exchange, routing_key) = match message.exchange() {
            Some(Way::Exchange { exchange, routing_key }) => (Some(exchange), Some(routing_key)),
            Some(Way::Queue(_)) | None => (None, None),
        };
        Self {
            message_id: message.message_id().map(str::to_owned),
            event_type: message.event_type().map(str::to_owned),
            reason: message.reason(),
            error: message.error(),
            attempts: message.attempts(),
            first_failure_at: message.first_failure_s().and_then(rfc3339),
            consumer: message.consumer(),
            queue,
            exchange,
            routing_key,
            bytes: message.body().len(),
            deliveries: message.deliveries(),
        }
    }

    pub(super) fn cells(&self) -> Vec<String> {
        let text = |text: &Option<String>| or_dash(text.as_deref().map(plain));
        vec![
            text(&self.message_id),
            text(&self.event_type),
            text(&self.reason),
            or_dash(self.attempts),
            text(&self.first_failure_at),
            text(&self.queue),
            Size::for_stdout().text(i64::try_from(self.bytes).unwrap_or(i64::MAX)),
            or_dash(self.deliveries),
            text(&self.error),
        ]
    }
}

/// A parked message as a document: the keys of the list, and these.
#[derive(Serialize)]
pub(super) struct Document {
    #[serde(flatten)]
    summary: Summary,
    correlation_id: Option<String>,
    content_type: Option<String>,
    /// Its own, without what parking has added.
    headers: Map<String, Value>,
    /// Only with `--payload`.
    #[serde(flatten)]
    payload: Option<Payload>,
}

impl Document {
    pub(super) fn of(message: &ParkedMessage, payload: bool) -> Self {
        let value = |value| match value {
            HeaderValue::Text(text) => Value::from(String::from(text)),
            HeaderValue::Bool(yes) => Value::from(yes),
            HeaderValue::Int(number) => Value::from(number),
            HeaderValue::Long(number) => Value::from(number),
        };
        Self {
            summary: Summary::of(message),
            correlation_id: message.correlation_id().map(str::to_owned),
            content_type: message.content_type().map(str::to_owned),
            headers: message.headers().into_iter().map(|(name, header)| (name, value(header))).collect(),
            payload: payload.then(|| Payload::from(Some(message.body().to_vec()))),
        }
    }
}

/// For people: one property a line, the payload below; an empty line before all but the first.
pub(super) fn page(message: &ParkedMessage, payload: bool, first: bool) -> String {
    let Document { summary, correlation_id, content_type, headers, payload } = Document::of(message, payload);
    let text = |text: &Option<String>| or_dash(text.as_deref().map(plain));
    let exchange = or_dash(summary.exchange.as_ref().map(|name| format!("{name:?}")));
    let lines = [
        ("id", text(&summary.message_id)),
        ("type", text(&summary.event_type)),
        ("reason", text(&summary.reason)),
        ("error", text(&summary.error)),
        ("attempts", or_dash(summary.attempts)),
        ("first failure", text(&summary.first_failure_at)),
        ("consumer", text(&summary.consumer)),
        ("queue", text(&summary.queue)),
        ("exchange", exchange),
        ("routing key", text(&summary.routing_key)),
        ("deliveries", or_dash(summary.deliveries)),
        ("correlation", text(&correlation_id)),
        ("content type", text(&content_type)),
        ("headers", plain(&Value::from(headers).to_string())),
        ("payload", table::bytes(i64::try_from(summary.bytes).unwrap_or(i64::MAX))),
    ];
    let gap = if first { "" } else { "\n" };
    gap.to_owned() + &table::page(&lines) + &payload.map_or_else(String::new, |payload| payload.lines())
}
