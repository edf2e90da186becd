//! `postrider quarantine show`: events in full; the payload only when it is asked for.

use std::fmt::Write;
use std::process::ExitCode;

use postrider_postgres::{Admin, MessageRest, ParkedEvent, ParkedMessage};
use serde::Serialize;

use super::{Pages, aggregate};
use crate::cli::Look;
use crate::commands::table::{self, JsonArray};

/// An event as a document: the keys of `quarantine list --json`, and these.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    event: &'a ParkedEvent,
    #[serde(flatten)]
    rest: &'a MessageRest,
    /// Only with `--payload`.
    #[serde(flatten)]
    payload: Option<Payload>,
}

#[derive(Serialize)]
struct Payload {
    /// The body as text if it is UTF-8, else in hexadecimal digits; null if there is none.
    payload: Option<String>,
    /// `utf-8` or `hex`; null if there is none.
    payload_encoding: Option<&'static str>,
}

impl From<Option<Vec<u8>>> for Payload {
    fn from(body: Option<Vec<u8>>) -> Self {
        let (payload, payload_encoding) = match body.map(String::from_utf8) {
            None => (None, None),
            Some(Ok(text)) => (Some(text), Some("utf-8")),
            Some(Err(binary)) => (Some(hex(binary.as_bytes())), Some("hex")),
        };
        Self { payload, payload_encoding }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("text takes text");
        text
    })
}

/// One event after the other: each is read by itself, because a body may be large.
pub(super) async fn show(admin: &Admin, slot: &str, look: &Look, payload: bool) -> anyhow::Result<ExitCode> {
    let mut pages = Pages::new(admin, slot, look);
    let mut array = look.output.json.then(JsonArray::default);
    let mut found = 0;
    while let Some(positions) = pages.next().await? {
        for position in positions {
            // One that has been deleted meanwhile is not there.
            let Some(message) = admin.parked_message(slot, position, payload).await? else { continue };
            let ParkedMessage { event, rest, body } = message;
            let payload = payload.then(|| Payload::from(body));
            if let Some(array) = &mut array {
                array.print(&[Document { event: &event, rest: &rest, payload }])?;
            } else {
                let gap = if found == 0 { "" } else { "\n" };
                table::say(&(gap.to_owned() + &page_of(&event, &rest, payload.as_ref())))?;
            }
            found += 1;
        }
    }
    pages.end(array, found)
}

/// For people: one property a line, the payload below.
fn page_of(event: &ParkedEvent, rest: &MessageRest, payload: Option<&Payload>) -> String {
    let text = |text: &Option<String>| table::or_dash(text.as_deref().map(table::plain));
    let by = event.changed_by.as_deref().map_or_else(String::new, |who| format!(" by {}", table::plain(who)));
    let request = rest.command_id.map_or_else(String::new, |id| format!(" (request {id})"));
    let bytes = event.bytes.map_or_else(|| "none".to_owned(), table::bytes);
    let lines = [
        ("position", event.position.to_string()),
        ("state", format!("{} since {}{by}{request}", event.state, event.changed_at)),
        ("reason", format!("{}: {}", event.reason, table::plain(&event.detail))),
        ("attempts", event.attempts.to_string()),
        ("scope", event.scope.clone()),
        ("aggregate", aggregate(event)),
        ("committed", event.committed_at.clone()),
        ("parked", event.parked_at.clone()),
        ("exchange", event.exchange.as_deref().map_or_else(|| text(&None), |name| format!("{name:?}"))),
        ("routing key", text(&event.routing_key)),
        ("id", text(&event.message_id)),
        ("type", text(&event.event_type)),
        ("correlation", text(&rest.correlation_id)),
        ("content type", text(&rest.content_type)),
        ("timestamp", table::or_dash(rest.timestamp_s)),
        ("headers", table::plain(rest.headers.get())),
        ("outbox row", table::or_dash(rest.outbox_row.as_ref().map(|row| table::plain(row.get())))),
        ("payload", bytes),
    ];
    let mut page =
        lines.iter().fold(String::new(), |page, (name, value)| page + &format!("{name:<13} {value}\n"));
    if let Some(Payload { payload: Some(payload), payload_encoding }) = payload {
        if *payload_encoding == Some("hex") {
            page.push_str("(not UTF-8: in hexadecimal digits)\n");
        }
        // Its lines stay lines.
        let lines: Vec<String> = payload.split('\n').map(table::plain).collect();
        page += &(lines.join("\n") + "\n");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_text_or_hexadecimal() {
        for (body, text, encoding) in [
            (None, None, None),
            (Some(vec![]), Some(""), Some("utf-8")),
            (Some("é".into()), Some("é"), Some("utf-8")),
            (Some(vec![0xFF, 0x0A]), Some("ff0a"), Some("hex")),
        ] {
            let payload = Payload::from(body);
            assert_eq!((payload.payload.as_deref(), payload.payload_encoding), (text, encoding));
        }
    }
}
