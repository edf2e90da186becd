//! The way back of a parked message: where it goes, and whether its inbox would have it.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::bail;
use postrider_postgres::{Admin, Error, InboxFilter, InboxRow};
use postrider_rabbitmq::{ParkedMessage, ParkingError, ParkingQueue, Way};
use serde::Serialize;

use crate::commands::inbox::NO_INBOX;
use crate::commands::table::{JsonArray, is_hidden, note, or_dash, plain, say};
use crate::config::Config;
use crate::peers;

/// Sends one message back, unless its inbox would not have it.
///
/// # Errors
/// A server is away; what comes after it has no better chance.
pub(super) async fn send(
    queue: &mut ParkingQueue,
    desk: &Desk,
    road: &Road<'_>,
    message: &ParkedMessage,
) -> anyhow::Result<Became> {
    let Some(way) = road.of(message) else {
        let why = "its headers do not say where it came from: say --to-queue".to_owned();
        return Ok(Became::Parked { why });
    };
    if let Some(why) = desk.objection(message).await? {
        return Ok(Became::Parked { why });
    }
    match queue.send_back(message, &way).await {
        Ok(()) => Ok(Became::Sent { to: way.to_string() }),
        Err(refused @ ParkingError::Refused { .. }) => {
            Ok(Became::Parked { why: format!("failed to {refused}") })
        }
        Err(error @ (ParkingError::Outage(_) | ParkingError::Queue { .. })) => Err(error.into()),
    }
}

/// Where messages are sent.
pub(super) struct Road<'a> {
    pub(super) to_queue: Option<&'a str>,
    pub(super) by_exchange: bool,
}

impl Road<'_> {
    fn of(&self, message: &ParkedMessage) -> Option<Way> {
        match self.to_queue {
            Some(queue) => Some(Way::Queue(queue.to_owned())),
            None if self.by_exchange => message.exchange(),
            None => message.queue(),
        }
    }
}

/// The inbox of who will get the messages, if it is known.
pub(super) struct Desk {
    admin: Option<Admin>,
    consumer: Option<String>,
    /// The inbox has no row of the consumer: it is a new one, or mistyped.
    stranger: bool,
}

impl Desk {
    /// Without a consumer, any inbox that is in the configured database.
    pub(super) async fn open(config: &Config, consumer: Option<&str>) -> anyhow::Result<Self> {
        let consumer = consumer.map(str::to_owned);
        if config.postgres.url.is_none() && consumer.is_none() {
            note("postrider: postgres.url is not set: no inbox is asked whether it will have the messages");
            return Ok(Self { admin: None, consumer, stranger: false });
        }
        let admin = Admin::connect(&peers::server(config)?).await?;
        if admin.has_inbox().await? {
            let stranger = match &consumer {
                Some(name) => admin.inbox_rows(&any(Some(name), None), 1).await?.is_empty(),
                None => false,
            };
            return Ok(Self { admin: Some(admin), consumer, stranger });
        }
        if consumer.is_some() {
            bail!(NO_INBOX);
        }
        note("postrider: the database has no inbox: none is asked whether it will have the messages");
        Ok(Self { admin: None, consumer, stranger: false })
    }

    /// Why an inbox would not have the message. The attempts of the consumer that was named are forgotten.
    async fn objection(&self, message: &ParkedMessage) -> anyhow::Result<Option<String>> {
        let id = message.message_id().unwrap_or_default();
        // Only an inbox minds; that one has parked it is in its mark.
        if id.is_empty() && (self.admin.is_some() || message.is_marked()) {
            let why = "it has no id, without which no inbox can tell it from another one, so that it would be parked \
                       again: discard it, or have it sent with an id";
            return Ok(Some(why.to_owned()));
        }
        let Some(admin) = &self.admin else { return Ok(None) };
        if id.contains('\0') {
            let why = "its id has a NUL, which no inbox can hold, so that it would be parked again: discard it, or have \
                       it sent under another id";
            return Ok(Some(why.to_owned()));
        }
        match self.ask(admin, message, id).await {
            // The question about the next message may be one that the server can take.
            Err(error) if error.is_about_a_value() => Ok(Some(format!(
                "failed to {error}: this database cannot take its id, so that it would be parked again: discard it, or have it \
                 sent under another id"
            ))),
            asked => Ok(asked?),
        }
    }

    async fn ask(&self, admin: &Admin, message: &ParkedMessage, id: &str) -> Result<Option<String>, Error> {
        // A name that is in no row would switch off what the inbox knows of the message.
        let consumer = self.consumer.as_deref().filter(|_| !self.stranger);
        let rows = admin.inbox_rows(&any(consumer, Some(id)), 100).await?;
        if let Some(stranger) = self.consumer.as_deref().filter(|_| self.stranger) {
            return Ok(mistyped(stranger, &rows));
        }
        for row in rows {
            let who = plain(&row.consumer);
            let why = match row.status.as_str() {
                "failed" if self.consumer.is_some() => {
                    admin.inbox_retry(&row.consumer, &row.source, id).await?;
                    continue;
                }
                "failed" => format!(
                    "consumer {who} has failed on it {} times and would park it again at the next failure: before, \
                     `{}`, or say --consumer={}",
                    row.attempts,
                    retry(&row),
                    quoted(&row.consumer)
                ),
                "reconcile" => format!(
                    "the worker of consumer {who} was not heard of again: see whether its effect took place; if \
                     not, `{}`",
                    retry(&row)
                ),
                "processing" => format!("consumer {who} is at work on it"),
                "completed" if message.reason().as_deref() == Some("mismatch") => format!(
                    "consumer {who} has completed this id with other content and would park it again: discard it, \
                     or have it sent under an id of its own"
                ),
                // Handled afresh, or known for a duplicate.
                _ => continue,
            };
            return Ok(Some(why));
        }
        Ok(None)
    }
}

/// Rows in any state.
fn any(consumer: Option<&str>, message_id: Option<&str>) -> InboxFilter {
    InboxFilter {
        consumer: consumer.map(str::to_owned),
        message_id: message_id.map(str::to_owned),
        completed: true,
    }
}

/// Why a consumer that the inbox does not know may not be the one that is meant: others have the message.
fn mistyped(stranger: &str, rows: &[InboxRow]) -> Option<String> {
    let others: BTreeSet<_> = rows.iter().map(|row| plain(&row.consumer)).collect();
    let others = others.into_iter().collect::<Vec<_>>().join(", ");
    (!others.is_empty()).then(|| {
        format!(
            "the inbox has no row of consumer {}, but of this message rows of {others}: say one of these, or for \
             a consumer that is new leave --consumer out",
            plain(stranger)
        )
    })
}

/// To be pasted into a shell: ids come from whoever sends.
fn retry(row: &InboxRow) -> String {
    let source =
        if row.source.is_empty() { String::new() } else { format!(" --source={}", quoted(&row.source)) };
    format!(
        "postrider inbox retry --consumer={} --id={}{source}",
        quoted(&row.consumer),
        quoted(&row.message_id)
    )
}

/// One word of a shell. With what is not seen in it, it needs one that knows `$'…'`: bash, zsh, ksh, or any of POSIX 2024.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+".contains(c);
    if word.contains(is_hidden) {
        let mut written = String::new();
        for letter in word.chars() {
            match letter {
                '\'' | '\\' => written.extend(['\\', letter]),
                // All three digits of each byte, so that none of what follows is taken for one.
                _ if is_hidden(letter) => {
                    for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
                        write!(written, "\\{byte:03o}").expect("text takes text");
                    }
                }
                _ => written.push(letter),
            }
        }
        format!("$'{written}'")
    } else if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// What became of a message; its fields are keys of `--json`.
#[derive(Serialize)]
#[serde(tag = "became", rename_all = "snake_case")]
pub(super) enum Became {
    /// It is where it is said to be, and no longer parked.
    Sent { to: String },
    /// It stays parked.
    Parked { why: String },
    /// It stays where it is, and may not be a parked one.
    Left { why: String },
    /// It is gone.
    Discarded,
}

#[derive(Serialize)]
struct Outcome<'a> {
    message_id: Option<&'a str>,
    #[serde(flatten)]
    became: Became,
}

/// Tells what became of each as it happens.
pub(super) struct Report {
    array: Option<JsonArray>,
    left: u32,
}

impl Report {
    pub(super) fn new(json: bool) -> Self {
        Self { array: json.then(JsonArray::default), left: 0 }
    }

    pub(super) fn tell(&mut self, message: &ParkedMessage, became: Became) -> anyhow::Result<()> {
        let id = or_dash(message.message_id().map(plain));
        if let Became::Parked { why } | Became::Left { why } = &became {
            self.left += 1;
            let place = if matches!(became, Became::Parked { .. }) { "parked" } else { "in the queue" };
            note(&format!("postrider: {id} stays {place}: {why}"));
        }
        match (&mut self.array, &became) {
            (Some(array), _) => array.print(&[Outcome { message_id: message.message_id(), became }]),
            (None, Became::Sent { to }) => say(&format!("sent {id} to {to}\n")),
            (None, Became::Discarded) => say(&format!("discarded {id}\n")),
            (None, Became::Parked { .. } | Became::Left { .. }) => Ok(()),
        }
    }

    /// Returns how many stay parked.
    pub(super) fn end(self) -> anyhow::Result<u32> {
        if let Some(array) = self.array {
            array.end()?;
        }
        Ok(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_word_of_a_sender_stays_one_word() {
        for (word, shell) in [
            ("E-42", "E-42"),
            ("", "''"),
            ("my worker", "'my worker'"),
            ("x'; touch y; '", r"'x'\''; touch y; '\'''"),
            ("$(id)", "'$(id)'"),
            ("-dash", "-dash"),
            ("é", "'é'"),
            ("a\t1", r"$'a\0111'"),
            ("\u{1b}[2J\u{9b}\n'x\\", r"$'\033[2J\302\233\012\'x\\'"),
        ] {
            assert_eq!(quoted(word), shell);
        }
    }
}
