//! Where a slot stands, and whether it may.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio_postgres::Client;
use tokio_postgres::types::PgLsn;

use super::commits::{Commit, Commits};
use super::truth::Truth;
use super::verdict::Offender;
use crate::consumer::Delivery;
use crate::eventually;

/// One row of `pg_replication_slots`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Everything before it is acknowledged.
    pub confirmed_flush_lsn: PgLsn,
    /// The oldest WAL it still needs.
    pub restart_lsn: Option<PgLsn>,
    /// The walsender that reads it.
    pub active_pid: Option<i32>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
}

impl Slot {
    /// Reads the slot; `None` if there is none of that name.
    pub async fn read(sql: &Client, name: &str) -> Result<Option<Self>> {
        let row = sql
            .query_opt(
                "select confirmed_flush_lsn, restart_lsn, active_pid, wal_status
                   from pg_replication_slots where slot_name = $1",
                &[&name],
            )
            .await
            .with_context(|| format!("read slot {name}"))?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(Self {
            confirmed_flush_lsn: row.try_get(0).with_context(|| format!("read where slot {name} stands"))?,
            restart_lsn: row.get(1),
            active_pid: row.get(2),
            wal_status: row.get(3),
        }))
    }

    /// Waits until the slot satisfies `condition`, and returns it.
    pub async fn wait(
        sql: &Client,
        name: &str,
        what: &str,
        limit: Duration,
        condition: impl Fn(&Slot) -> bool,
    ) -> Result<Self> {
        eventually(&format!("slot {name} to be {what}"), limit, async || {
            Ok(Self::read(sql, name).await?.filter(&condition))
        })
        .await
    }

    /// Waits until nobody reads the slot: after a crash of its reader its position moves until then.
    pub async fn wait_free(sql: &Client, name: &str, limit: Duration) -> Result<Self> {
        Self::wait(sql, name, "free", limit, |slot| slot.active_pid.is_none()).await
    }

    /// Events that the slot has passed though they were not delivered and, as far as the truth knows of the quarantine
    /// ([`Truth::with`]), are not there either: each one breaks P1 at this very moment.
    ///
    /// Read the slot first, deliveries and quarantine after: what is paid in between offends nobody.
    pub fn passed_undelivered(
        &self,
        truth: &Truth,
        commits: &Commits,
        delivered: &[Delivery],
    ) -> Vec<Offender> {
        let passed: HashMap<u32, &Commit> = commits
            .iter()
            .filter(|commit| commit.commit_lsn < self.confirmed_flush_lsn)
            .map(|commit| (commit.xid, commit))
            .collect();
        let delivered: HashSet<&str> = delivered.iter().map(Delivery::message_id).collect();
        let mut found: Vec<_> = truth
            .awaited()
            .filter(|event| !delivered.contains(event.id.as_str()))
            .filter_map(|event| {
                let commit = passed.get(&event.place?.xid)?;
                let what =
                    format!("undelivered, yet the slot has passed its commit at {}", commit.commit_lsn);
                Some(Offender::new(event, what))
            })
            .collect();
        found.sort();
        found
    }
}
