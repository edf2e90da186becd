//! `postrider slot`: replication slots listed, created, dropped and moved.
//!
//! What destroys says first what would be lost, and does nothing without `--yes`.

use std::process::ExitCode;

use anyhow::bail;
use postrider_postgres::{Admin, AdvanceTo, Progress, Slot};
use postrider_relay::Lsn;
use serde::Serialize;

use super::table::{self, Size};
use super::{NOT_ASKED, init};
use crate::cli::{self, Target};
use crate::config::{Config, ConfigError};
use crate::peers;

/// Does what the command says.
pub(crate) async fn slot(config: &Config, command: &cli::Slot) -> anyhow::Result<ExitCode> {
    let server = peers::server(config)?;
    let configured = &config.postgres.slot;
    let name = |name: &Option<String>| name.clone().unwrap_or_else(|| configured.clone());
    match command {
        cli::Slot::List(output) => list(&Admin::connect(&server).await?, output.json).await,
        cli::Slot::Create { name: wanted, creation, output } => {
            create(config, &name(wanted), *creation, output.json).await
        }
        cli::Slot::Drop { name: wanted, yes, output } => {
            drop_slot(&Admin::connect(&server).await?, &name(wanted), *yes, output.json).await
        }
        cli::Slot::Advance { name: wanted, to, yes, output } => {
            advance(&Admin::connect(&server).await?, &name(wanted), *to, *yes, output.json).await
        }
    }
}

/// A slot as a document.
#[derive(Serialize)]
struct Document<'a> {
    /// Its name.
    slot: &'a str,
    /// The output plugin; null for a physical slot.
    plugin: Option<&'a str>,
    database: Option<&'a str>,
    /// The server's process that uses it; null if nobody does.
    active_pid: Option<i32>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    wal_status: Option<&'a str>,
    confirmed_flush_lsn: Option<String>,
    restart_lsn: Option<String>,
    /// What has not been confirmed, in bytes of the log.
    lag_bytes: Option<i64>,
    /// What the server keeps for it, in bytes.
    retained_bytes: Option<i64>,
    /// What may still be written before it may be lost; null without such a limit.
    safe_bytes: Option<i64>,
    /// Whether it is kept up on standbys; null before PostgreSQL 17.
    failover: Option<bool>,
    /// Whether `init` or `slot create` made it, as a relay demands.
    recorded: bool,
}

impl<'a> From<&'a Slot> for Document<'a> {
    fn from(slot: &'a Slot) -> Self {
        Self {
            slot: &slot.name,
            plugin: slot.plugin.as_deref(),
            database: slot.database.as_deref(),
            active_pid: slot.active_pid,
            wal_status: slot.wal_status.as_deref(),
            confirmed_flush_lsn: slot.confirmed_flush_lsn.map(|lsn| lsn.to_string()),
            restart_lsn: slot.restart_lsn.map(|lsn| lsn.to_string()),
            lag_bytes: slot.lag_bytes,
            retained_bytes: slot.retained_bytes,
            safe_bytes: slot.safe_bytes,
            failover: slot.failover,
            recorded: slot.recorded,
        }
    }
}

const HEADER: [&str; 11] = [
    "slot",
    "plugin",
    "database",
    "active",
    "wal",
    "confirmed",
    "restart",
    "lag",
    "retained",
    "safe",
    "recorded",
];

async fn list(admin: &Admin, json: bool) -> anyhow::Result<ExitCode> {
    let slots = admin.slot_list().await?;
    if json {
        let documents: Vec<Document<'_>> = slots.iter().map(Document::from).collect();
        return table::print_json(&documents);
    }
    let size = Size::for_stdout();
    let row = |slot: &Slot| {
        vec![
            slot.name.clone(),
            table::or_dash(slot.plugin.as_ref()),
            table::or_dash(slot.database.as_ref()),
            slot.active_pid.map_or_else(|| "no".to_owned(), |pid| format!("pid {pid}")),
            table::or_dash(slot.wal_status.as_ref()),
            table::or_dash(slot.confirmed_flush_lsn),
            table::or_dash(slot.restart_lsn),
            table::or_dash(slot.lag_bytes.map(|bytes| size.text(bytes))),
            table::or_dash(slot.retained_bytes.map(|bytes| size.text(bytes))),
            table::or_dash(slot.safe_bytes.map(|bytes| size.text(bytes))),
            if slot.recorded { "yes" } else { "no" }.to_owned(),
        ]
    };
    table::print(&HEADER, &slots.iter().map(row).collect::<Vec<_>>())?;
    Ok(ExitCode::SUCCESS)
}

/// What `slot create` has done.
#[derive(Serialize)]
struct Creation<'a> {
    slot: &'a str,
    /// False if it was there already.
    created: bool,
}

async fn create(
    config: &Config,
    name: &str,
    creation: cli::Creation,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let subject = peers::subject(config)?.with_slot(name).map_err(|error| ConfigError(error.to_string()))?;
    let admin = Admin::connect(&peers::server(config)?).await?;
    let mut created = false;
    let mut tell = |progress: Progress| {
        if !json {
            init::tell(&progress);
            return;
        }
        // The first object is the slot, the second its record.
        created |=
            matches!(&progress, Progress::Object { object, created: true } if object.starts_with("slot "));
        init::tell_waiting(&progress);
    };
    admin.slot_create(&subject, init::options(creation), &mut tell).await?;
    if json {
        return table::print_json(&Creation { slot: name, created });
    }
    Ok(ExitCode::SUCCESS)
}

/// What `slot drop` has done.
#[derive(Serialize)]
struct Removal<'a> {
    slot: &'a str,
    /// False without `--yes`.
    dropped: bool,
    /// What it had not confirmed, in bytes of the log.
    lost_bytes: Option<i64>,
}

async fn drop_slot(admin: &Admin, name: &str, yes: bool, json: bool) -> anyhow::Result<ExitCode> {
    let slot = find(admin, name, "drop").await?;
    let lost = slot.lag_bytes.map_or_else(|| "an unknown amount".to_owned(), table::bytes);
    if !yes {
        let standing = slot.confirmed_flush_lsn.map_or_else(String::new, |lsn| format!(" behind {lsn}"));
        table::note(&format!(
            "postrider: dropping the slot {name} loses every event that it has not delivered: \
             {lost} of the log{standing}; to do it, say --yes"
        ));
    } else if !admin.slot_drop(name).await? {
        bail!("drop the slot {name}: it does not exist");
    } else if !json {
        table::say(&format!("slot {name}: dropped, with {lost} of the log undelivered\n"))?;
    }
    if json {
        table::print_json(&Removal { slot: name, dropped: yes, lost_bytes: slot.lag_bytes })?;
    }
    Ok(ExitCode::from(if yes { 0 } else { NOT_ASKED }))
}

/// What `slot advance` has done.
#[derive(Serialize)]
struct Advance<'a> {
    slot: &'a str,
    /// False without `--yes`.
    advanced: bool,
    /// Where it stood before.
    from_lsn: Option<String>,
    /// Where it stands now, or would stand; null for the end that nobody went to.
    to_lsn: Option<String>,
}

async fn advance(admin: &Admin, name: &str, to: Target, yes: bool, json: bool) -> anyhow::Result<ExitCode> {
    let slot = find(admin, name, "advance").await?;
    let from = table::or_dash(slot.confirmed_flush_lsn);
    let (target, words) = match to {
        Target::Lsn(lsn) => (AdvanceTo::Lsn(lsn), lsn.to_string()),
        Target::End => (AdvanceTo::End, "the end of the log".to_owned()),
    };
    let mut stands = match to {
        Target::Lsn(lsn) => Some(lsn),
        Target::End => None,
    };
    if yes {
        let now = admin.slot_advance(name, target).await?;
        stands = Some(now);
        if !json {
            table::say(&format!("slot {name}: advanced from {from} to {now}\n"))?;
        }
    } else {
        table::note(&format!(
            "postrider: advancing the slot {name} from {from} to {words} loses every event between: \
             {}; to do it, say --yes",
            lost(&slot, to)
        ));
    }
    if json {
        let from_lsn = slot.confirmed_flush_lsn.map(|lsn| lsn.to_string());
        let to_lsn = stands.map(|lsn| lsn.to_string());
        table::print_json(&Advance { slot: name, advanced: yes, from_lsn, to_lsn })?;
    }
    Ok(ExitCode::from(if yes { 0 } else { NOT_ASKED }))
}

/// How much of the log is passed over.
fn lost(slot: &Slot, to: Target) -> String {
    let bytes = match (to, slot.confirmed_flush_lsn) {
        (Target::End, _) => slot.lag_bytes,
        (Target::Lsn(Lsn(to)), Some(Lsn(from))) => i64::try_from(to.saturating_sub(from)).ok(),
        (Target::Lsn(_), None) => None,
    };
    bytes
        .map_or_else(|| "an unknown amount".to_owned(), |bytes| format!("{} of the log", table::bytes(bytes)))
}

async fn find(admin: &Admin, name: &str, doing: &str) -> anyhow::Result<Slot> {
    match admin.slot_list().await?.into_iter().find(|slot| slot.name == name) {
        Some(slot) => Ok(slot),
        None => bail!("{doing} the slot {name}: it does not exist"),
    }
}
