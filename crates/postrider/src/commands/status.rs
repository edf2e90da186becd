//! `postrider status`: slot, lag, quarantine and the relay's health on one screen.
//!
//! Both sides are asked for themselves: the server about the slot, the relay about itself. One that does
//! not answer does not hide the other.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use postrider_postgres::{Admin, Inspection, Stop, Undelivered};
use serde::Serialize;

use super::table;
use crate::config::Config;
use crate::http;
use crate::peers;
use crate::status::Status;

/// The whole answer as a document.
#[derive(Serialize)]
struct Document {
    /// The slot as the server has it; null if it does not exist or the server does not answer.
    slot: Option<SlotNow>,
    /// Why the server does not answer.
    postgres_error: Option<String>,
    /// What would stop a relay, if anything.
    trouble: Option<Trouble>,
    /// What is in quarantine and undelivered: `parked`, `released`, both by `reasons`; `complete` is false where
    /// more are there than were counted. Null if that cannot be read.
    quarantine: Option<Undelivered>,
    /// Why it cannot be read.
    quarantine_error: Option<String>,
    /// The relay's own page `/status`; null if it does not answer.
    relay: Option<Status>,
    /// Why the relay does not answer.
    relay_error: Option<String>,
}

#[derive(Serialize)]
struct SlotNow {
    name: String,
    active_pid: Option<i32>,
    wal_status: Option<String>,
    confirmed_flush_lsn: Option<String>,
    restart_lsn: Option<String>,
    server_lsn: String,
    lag_bytes: Option<u64>,
    retained_bytes: Option<u64>,
    safe_bytes: Option<i64>,
}

#[derive(Serialize)]
struct Trouble {
    what: String,
    why: String,
    /// Statements and commands, in order.
    cure: Vec<String>,
}

/// Exit code 1 if the server does not answer.
pub(crate) async fn status(config: &Config, json: bool) -> anyhow::Result<ExitCode> {
    let server = peers::server(config)?;
    let subject = peers::subject(config)?;
    let look = async {
        let admin = Admin::connect(&server).await?;
        let seen = admin.inspect(&subject).await?;
        Ok::<_, postrider_postgres::Error>((seen, admin.undelivered(subject.slot()).await))
    };
    let (seen, page) = tokio::join!(look, relay_page(config));
    let (seen, quarantine, postgres_error) = match seen {
        Ok((seen, quarantine)) => (Some(seen), Some(quarantine), None),
        Err(error) => (None, None, Some(error.to_string())),
    };
    let (quarantine, quarantine_error) = match quarantine.transpose() {
        Ok(quarantine) => (quarantine, None),
        Err(error) => (None, Some(error.to_string())),
    };
    let (relay, relay_error) = match page {
        Ok(page) => (Some(page), None),
        Err(words) => (None, Some(words)),
    };
    let document = Document {
        slot: seen.as_ref().and_then(|seen| slot_now(subject.slot(), seen)),
        trouble: seen.as_ref().and_then(|seen| seen.verdict(&subject).err()).map(Trouble::from),
        postgres_error,
        quarantine,
        quarantine_error,
        relay,
        relay_error,
    };
    if json {
        table::print_json(&document)?;
    } else {
        table::say(&screen(&document, subject.slot()))?;
    }
    Ok(if document.postgres_error.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn slot_now(name: &str, seen: &Inspection) -> Option<SlotNow> {
    let slot = seen.slot.as_ref()?;
    let figures = crate::health::SlotFigures {
        wal_lsn: seen.wal_lsn,
        confirmed_flush_lsn: slot.confirmed_flush_lsn,
        restart_lsn: slot.restart_lsn,
        safe_bytes: slot.safe_wal_size,
    };
    Some(SlotNow {
        name: name.to_owned(),
        active_pid: slot.active_pid,
        wal_status: slot.wal_status.clone(),
        confirmed_flush_lsn: slot.confirmed_flush_lsn.map(|lsn| lsn.to_string()),
        restart_lsn: slot.restart_lsn.map(|lsn| lsn.to_string()),
        server_lsn: seen.wal_lsn.to_string(),
        lag_bytes: figures.lag_bytes(),
        retained_bytes: figures.retained_bytes(),
        safe_bytes: slot.safe_wal_size,
    })
}

impl From<Stop> for Trouble {
    fn from(stop: Stop) -> Self {
        Self { what: stop.what, why: stop.why, cure: stop.cure }
    }
}

/// The relay's own word, if it can be reached from here.
async fn relay_page(config: &Config) -> Result<Status, String> {
    let listen = &config.http.listen;
    if listen.is_empty() {
        return Err("http.listen is empty, so that no relay can be asked".to_owned());
    }
    let address = reachable(listen);
    if address.ends_with(":0") {
        return Err("http.listen has port 0: only the relay's log says which port it took".to_owned());
    }
    let (code, body) = http::fetch(&address, "/status")
        .await
        .map_err(|error| format!("no relay answers on http://{address}: {error}"))?;
    let page: Status = serde_json::from_str(&body)
        .map_err(|_| format!("http://{address}/status answers {code}, and not as a relay does"))?;
    if page.slot != config.postgres.slot {
        return Err(format!("the relay on http://{address} has another slot: {}", page.slot));
    }
    Ok(page)
}

/// An address that is listened to everywhere is asked here.
fn reachable(listen: &str) -> String {
    match listen.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_unspecified() => {
            SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), address.port()).to_string()
        }
        _ => listen.to_owned(),
    }
}

fn screen(document: &Document, name: &str) -> String {
    let bytes = |count: Option<u64>| match count.map(i64::try_from) {
        Some(count) => table::bytes(count.unwrap_or(i64::MAX)),
        None => "unknown".to_owned(),
    };
    let mut lines: Vec<(&str, String)> = Vec::new();
    match (&document.slot, &document.postgres_error) {
        (Some(slot), _) => {
            let user = slot
                .active_pid
                .map_or_else(|| "nobody reads it".to_owned(), |pid| format!("read by pid {pid}"));
            let status = slot.wal_status.as_deref().unwrap_or("unknown");
            lines.push(("slot", format!("{} ({user}; log {status})", slot.name)));
            let confirmed = table::or_dash(slot.confirmed_flush_lsn.as_ref());
            lines.push(("position", format!("{confirmed}, the server is at {}", slot.server_lsn)));
            lines.push(("lag", bytes(slot.lag_bytes)));
            let safe = slot.safe_bytes.map_or_else(
                || "no limit".to_owned(),
                |safe| format!("lost after {} more", table::bytes(safe)),
            );
            lines.push(("retained", format!("{} ({safe})", bytes(slot.retained_bytes))));
        }
        (None, Some(error)) => lines.push(("slot", format!("unknown: failed to {error}"))),
        (None, None) => lines.push(("slot", format!("{name} does not exist"))),
    }
    if let Some(trouble) = &document.trouble {
        lines.push(("trouble", format!("{}: {}", trouble.what, trouble.why)));
        lines.extend(trouble.cure.iter().map(|cure| ("cure", cure.clone())));
    }
    match (&document.quarantine, &document.quarantine_error) {
        (Some(quarantine), _) => lines.push(("quarantine", quarantine_words(quarantine))),
        // What and why are on the first line, cures below.
        (None, Some(error)) => {
            lines.push(("quarantine", format!("unknown: {}", error.lines().next().unwrap_or_default())));
        }
        (None, None) => {}
    }
    match (&document.relay, &document.relay_error) {
        (Some(relay), _) => lines.extend(relay_lines(relay)),
        (None, error) => lines.push(("relay", table::or_dash(error.as_ref()))),
    }
    lines.iter().fold(String::new(), |screen, (name, value)| screen + &format!("{name:<10} {value}\n"))
}

fn quarantine_words(quarantine: &Undelivered) -> String {
    let Undelivered { parked, released, reasons, complete } = quarantine;
    if *parked + *released == 0 {
        return "empty".to_owned();
    }
    let reasons: Vec<String> = reasons.iter().map(|(reason, events)| format!("{reason} {events}")).collect();
    let more = if *complete { "" } else { ", and more" };
    format!("{parked} parked, {released} released{more} ({})", reasons.join(", "))
}

fn relay_lines(relay: &Status) -> Vec<(&'static str, String)> {
    let state = match &relay.reason {
        None => "ready".to_owned(),
        Some(reason) if relay.detail.is_empty() => format!("not ready: {reason}"),
        Some(reason) => format!("not ready: {reason}: {}", relay.detail),
    };
    let mut lines = vec![("relay", format!("{state} (for {} s; version {})", relay.since_s, relay.version))];
    if let Some(broker) = &relay.broker {
        lines.push(("broker", broker.clone()));
    }
    if let Some(owed) = &relay.owed {
        let bytes = i64::try_from(owed.bytes).unwrap_or(i64::MAX);
        let oldest = owed.oldest_s.map_or_else(String::new, |age| format!(", the oldest for {age:.1} s"));
        let size = table::bytes(bytes);
        lines.push(("in flight", format!("{} events, {size}{oldest}; {} held", owed.events, owed.held)));
    }
    lines.push(("published", format!("{} events in {} s", relay.events.published, relay.uptime_s)));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_that_listens_everywhere_is_asked_here() {
        for (listen, asked) in [
            ("127.0.0.1:9465", "127.0.0.1:9465"),
            ("0.0.0.0:9465", "127.0.0.1:9465"),
            ("[::]:9465", "127.0.0.1:9465"),
            ("relay.internal:80", "relay.internal:80"),
        ] {
            assert_eq!(reachable(listen), asked);
        }
    }

    #[test]
    fn one_side_that_does_not_answer_does_not_hide_the_other() {
        let slot = SlotNow {
            name: "postrider".to_owned(),
            active_pid: Some(7),
            wal_status: Some("reserved".to_owned()),
            confirmed_flush_lsn: Some("0/10".to_owned()),
            restart_lsn: None,
            server_lsn: "0/800".to_owned(),
            lag_bytes: Some(2032),
            retained_bytes: None,
            safe_bytes: None,
        };
        let mut document = Document {
            slot: Some(slot),
            postgres_error: None,
            trouble: None,
            quarantine: Some(Undelivered {
                parked: 12,
                released: 3,
                reasons: [("follower".to_owned(), 10), ("unrouted".to_owned(), 5)].into(),
                complete: true,
            }),
            quarantine_error: None,
            relay: None,
            relay_error: Some("no relay answers".to_owned()),
        };
        assert_eq!(
            screen(&document, "postrider"),
            "slot       postrider (read by pid 7; log reserved)\n\
             position   0/10, the server is at 0/800\n\
             lag        1.9 kB\n\
             retained   unknown (no limit)\n\
             quarantine 12 parked, 3 released (follower 10, unrouted 5)\n\
             relay      no relay answers\n"
        );
        document.slot = None;
        document.quarantine = None;
        document.quarantine_error = Some("count the quarantine: no right\n  cure: x".to_owned());
        document.trouble = Some(Trouble {
            what: "the slot does not exist".to_owned(),
            why: "there is nothing to read".to_owned(),
            cure: vec!["postrider init".to_owned()],
        });
        assert_eq!(
            screen(&document, "postrider"),
            "slot       postrider does not exist\n\
             trouble    the slot does not exist: there is nothing to read\n\
             cure       postrider init\n\
             quarantine unknown: count the quarantine: no right\n\
             relay      no relay answers\n"
        );
    }
}
