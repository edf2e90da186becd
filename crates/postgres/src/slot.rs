//! Replication slots as an operator sees them: list, create, drop, advance.

use std::time::Duration;

use postrider_relay::Lsn;
use serde::Deserialize;

use crate::admin::Admin;
use crate::error::{Error, Reason};
use crate::failure::Doing;
use crate::init::{Init, Progress};
use crate::inspect::lsn;
use crate::record;
use crate::subject::{Subject, literal};

/// One replication slot of the server, of whatever kind and database.
#[derive(Clone, Debug, Deserialize)]
pub struct Slot {
    /// Its name.
    pub name: String,
    /// The output plugin; None for a physical slot.
    pub plugin: Option<String>,
    /// The database; None for a physical slot.
    pub database: Option<String>,
    /// The process that uses it.
    pub active_pid: Option<i32>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// The oldest WAL it keeps.
    #[serde(deserialize_with = "lsn")]
    pub restart_lsn: Option<Lsn>,
    /// What its consumer has confirmed.
    #[serde(deserialize_with = "lsn")]
    pub confirmed_flush_lsn: Option<Lsn>,
    /// Bytes of WAL that the server keeps for it.
    pub retained_bytes: Option<i64>,
    /// Bytes of WAL that its consumer has not confirmed: what is lost with it.
    pub lag_bytes: Option<i64>,
    /// Bytes of WAL until it may be lost; None where there is no limit.
    pub safe_bytes: Option<i64>,
    /// PostgreSQL 17: kept up on standbys.
    pub failover: Option<bool>,
    /// It has a row in `postrider.relay`.
    pub recorded: bool,
}

/// Where to advance a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdvanceTo {
    /// A position; behind it if it lies inside a transaction.
    Lsn(Lsn),
    /// The end of the WAL.
    End,
}

/// Advancing reads all the WAL on the way.
const ADVANCE_LIMIT: Duration = Duration::from_secs(3600);

impl Admin {
    /// Every slot of the server, by name.
    pub async fn slot_list(&self) -> Result<Vec<Slot>, Error> {
        let rows = match self.slots("exists (select from postrider.relay r where r.slot = s.slot_name)").await
        {
            Err(Error::Stop(stop)) if matches!(stop.reason, Reason::NoSchema | Reason::Rights) => {
                self.slots("false").await
            }
            listed => listed,
        };
        serde_json::from_str(rows?.as_str())
            .map_err(|e| Error::Outage(format!("list the slots: read the server's answer: {e}")))
    }

    async fn slots(&self, recorded: &str) -> Result<String, Error> {
        let statement = format!(
            "select coalesce(jsonb_agg(to_jsonb(s) || jsonb_build_object('name', s.slot_name,
               'retained_bytes', case when not pg_is_in_recovery()
                 then pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::bigint end,
               'lag_bytes', case when not pg_is_in_recovery()
                 then pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn)::bigint end,
               'safe_bytes', s.safe_wal_size, 'recorded', {recorded}) order by s.slot_name), '[]')::text
             from pg_replication_slots s"
        );
        let rows = self.query("list the slots", Doing::Relay, &statement, &[]).await?;
        Ok(rows.first().map(|row| row.get(0)).unwrap_or_default())
    }

    /// Creates the subject's slot and records it; also records one that exists and is not recorded,
    /// if that is safe. Everything else must be in place: a [`Error::Stop`] says what is not.
    pub async fn slot_create(
        &self,
        subject: &Subject,
        options: Init,
        tell: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(), Error> {
        self.make_slot(subject, options, tell).await
    }

    /// Drops a slot; false if there is none. What it had not delivered is lost to the relay. Its row in
    /// `postrider.relay` stays, so that one made by hand in its place is noticed.
    pub async fn slot_drop(&self, slot: &str) -> Result<bool, Error> {
        let statement = "select pg_drop_replication_slot(slot_name)
                         from pg_replication_slots where slot_name = $1::text";
        match self.execute("drop the slot", Doing::Replicate, statement, slot).await {
            Ok(dropped) => Ok(dropped > 0),
            Err(e) => Err(self.named(e, slot).await),
        }
    }

    /// Moves a slot forward without reading; what lies between is lost to the relay. Returns where it
    /// then stands.
    pub async fn slot_advance(&self, slot: &str, to: AdvanceTo) -> Result<Lsn, Error> {
        let target = match to {
            AdvanceTo::Lsn(lsn) => format!("{}::pg_lsn", literal(&lsn.to_string())),
            AdvanceTo::End => "pg_current_wal_lsn()".to_owned(),
        };
        let statement =
            format!("select end_lsn::text from pg_replication_slot_advance({}, {target})", literal(slot));
        let advanced = self.0.client.query_typed_one(&statement, &[]);
        let row = match self.within("advance the slot", Doing::Replicate, ADVANCE_LIMIT, advanced).await {
            Ok(row) => row,
            Err(e) => return Err(self.named(e, slot).await),
        };
        let stands: &str = row.get(0);
        match self.execute("record the advance", Doing::Relay, record::ADVANCED, slot).await {
            Err(Error::Stop(stop)) if stop.reason == Reason::NoSchema => {}
            recorded => drop(recorded?),
        }
        stands.parse().map_err(|e| Error::Outage(format!("advance the slot: {e}")))
    }

    /// The same error with the pid that holds the slot, where it can be seen.
    async fn named(&self, error: Error, slot: &str) -> Error {
        let Error::Standby { pid: None } = error else { return error };
        let statement = "select active_pid from pg_replication_slots where slot_name = $1::text";
        let rows = self.query("look who holds the slot", Doing::Replicate, statement, &[slot]).await;
        Error::Standby { pid: rows.ok().and_then(|rows| rows.first()?.get(0)) }
    }
}
