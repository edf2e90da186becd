//! `postrider quarantine show`: events in full; the payload only when it is asked for.

use std::process::ExitCode;

use postrider_postgres::{Admin, MessageRest, ParkedEvent, ParkedMessage};
use serde::Serialize;

use super::{Pages, aggregate};
use crate::cli::Look;
use crate::commands::payload::Payload;
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
    let page =
        lines.iter().fold(String::new(), |page, (name, value)| page + &format!("{name:<13} {value}\n"));
    page + &payload.map_or_else(String::new, Payload::lines)
}
