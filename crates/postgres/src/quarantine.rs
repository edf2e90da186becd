//! The quarantine table, as the core asks for it: one [`Work`], one transaction.
//!
//! Invariant: nothing is written but by the session that holds the slot. Each transaction first locks the
//! slot's row in `postrider.relay`, so that it waits for whatever an earlier session is still writing, and
//! then sees that the slot's `active_pid` is our walsender; else it rolls back.

mod delivery;
mod headers;
mod opening;
mod page;
mod request;
mod store;

use std::pin::pin;
use std::time::Duration;

use futures_util::TryStreamExt;
use futures_util::future::try_join_all;
use postrider_relay::quarantine::{Done, ParkedKey, Work};
use postrider_relay::{Lsn, Position};
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, SimpleQueryMessage};

use crate::admin::Admin;
use crate::columns::{self, Unreadable};
use crate::error::{Error, SESSION_OVER};
use crate::failure::{self, Doing, chain};
use crate::server::Server;
use crate::subject::{Subject, literal};

/// The quarantine table of one session of the slot, on a connection of its own.
///
/// After any error, and after a [`Self::perform`] that was not awaited to its end, drop it and connect
/// again: a transaction may be left open on it, which ends with the connection.
pub struct Quarantine {
    admin: Admin,
    slot: String,
    walsender_pid: i32,
    /// No transaction is left open.
    clean: bool,
}

impl Quarantine {
    /// Connects for the session of this walsender ([`crate::SlotStream::walsender_pid`]).
    pub async fn connect(
        server: &Server,
        subject: &Subject,
        walsender_pid: i32,
    ) -> Result<Quarantine, Error> {
        let admin = Admin::connect(server).await?;
        // What we have given up, or cannot hear the end of, must not go on and hold the lock. Not every
        // platform has them.
        for vigilance in ["set client_connection_check_interval = '1s'", "set tcp_user_timeout = '30s'"] {
            if let Err(e) = admin.batch("watch the connection", Doing::Relay, vigilance).await {
                tracing::debug!("failed to {e}");
            }
        }
        Ok(Quarantine { admin, slot: subject.slot().to_owned(), walsender_pid, clean: true })
    }

    /// Does one piece of work and commits it, durably (`synchronous_commit = on`).
    ///
    /// Doing it again does no harm, and finds the same aggregates released or free. Fails with
    /// [`Error::is_session_over`], and has written nothing, when the slot is no longer ours; stops where the
    /// table or a right is missing. Limits: ten minutes for what may concern every row ([`Work::Open`],
    /// [`Work::Release`], [`Work::Discard`], [`Work::PutBack`]), 30 s for the rest.
    pub async fn perform(&mut self, work: &Work) -> Result<Done, Error> {
        let (what, limit) = name_and_limit(work);
        if !self.clean {
            return Err(Error::Outage(format!("{what}: this connection has failed before")));
        }
        self.clean = false;
        let done = match timeout(limit, self.transaction(work, what, limit)).await {
            Ok(done) => done?,
            Err(_) => return Err(Error::Outage(format!("{what}: no answer within {} s", limit.as_secs()))),
        };
        self.clean = true;
        Ok(done)
    }

    async fn transaction(&self, work: &Work, what: &'static str, limit: Duration) -> Result<Done, Error> {
        let transaction = self.begin(what, limit).await?;
        let done = match work {
            Work::Open { positions } => transaction.open(*positions).await?,
            Work::Positions { after, positions } => {
                Done::Positions(transaction.positions(*after, *positions).await?)
            }
            Work::Store(rows) => Done::Stored { new: transaction.store(rows).await? },
            Work::Release(request) => transaction.release(request).await?,
            Work::Discard(request) => transaction.discard(request).await?,
            Work::Page { busy, busy_rows, rows, bytes } => {
                transaction.page(busy, busy_rows, *rows, *bytes).await?
            }
            Work::Delivered(positions) => transaction.delivered(positions).await?,
            Work::PutBack(row) => {
                transaction.put_back(row).await?;
                Done::PutBack
            }
        };
        transaction.commit().await?;
        Ok(done)
    }

    /// Begins, takes the lock, and sees that the slot is ours: one round trip.
    async fn begin(&self, what: &'static str, limit: Duration) -> Result<Transaction<'_>, Error> {
        let (slot, limit_ms, idle_ms) = (literal(&self.slot), limit.as_millis(), SOME.as_millis());
        // The server's limits end what we have given up, and a transaction whose client froze: until then
        // nobody else gets the lock.
        let begin = format!(
            "begin isolation level read committed;
             set local synchronous_commit = on;
             set local statement_timeout = {limit_ms};
             set local lock_timeout = {limit_ms};
             set local idle_in_transaction_session_timeout = {idle_ms};
             select slot from postrider.relay where slot = {slot} for update;
             select active_pid, confirmed_flush_lsn from pg_replication_slots where slot_name = {slot}"
        );
        let client = &self.admin.0.client;
        let server = &self.admin.0.server;
        let answer =
            client.simple_query(&begin).await.map_err(|e| failure::sql(what, Doing::Relay, &e, server))?;
        let mut recorded = false;
        let mut holder = None;
        let mut confirmed = None;
        for message in &answer {
            match message {
                SimpleQueryMessage::Row(row) if row.columns().len() == 1 => recorded = true,
                SimpleQueryMessage::Row(row) => {
                    holder = row.get(0).and_then(|pid| pid.parse::<i32>().ok());
                    confirmed = row.get(1).and_then(|lsn| lsn.parse().ok());
                }
                _ => {}
            }
        }
        match (recorded, confirmed) {
            (true, Some(confirmed)) if holder == Some(self.walsender_pid) => {
                Ok(Transaction { client, server, slot: &self.slot, what, confirmed })
            }
            (recorded, _) => {
                self.admin.batch(what, Doing::Relay, "rollback").await?;
                Err(Error::Outage(if holder == Some(self.walsender_pid) && !recorded {
                    format!("{what}: the slot {} is not recorded in postrider.relay", self.slot)
                } else {
                    let held = holder.map_or("free".to_owned(), |pid| format!("held by pid {pid}"));
                    format!("{SESSION_OVER}: {what}: the slot is {held}")
                }))
            }
        }
    }
}

/// What is asked of some rows.
const SOME: Duration = Duration::from_secs(30);

/// What may be asked of every row. A release that can never end would be read again for ever; a million rows
/// took 40 s on a small machine.
const ALL: Duration = Duration::from_secs(600);

/// For the words of errors, and how long it may take.
fn name_and_limit(work: &Work) -> (&'static str, Duration) {
    match work {
        Work::Open { .. } => ("open the quarantine", ALL),
        Work::Positions { .. } => ("read on in the quarantine", SOME),
        Work::Store(_) => ("store in the quarantine", SOME),
        Work::Release(_) => ("release from the quarantine", ALL),
        Work::Discard(_) => ("discard from the quarantine", ALL),
        Work::Page { .. } => ("read what is released from the quarantine", SOME),
        Work::Delivered(_) => ("mark what is delivered from the quarantine", SOME),
        Work::PutBack(_) => ("put back into the quarantine", ALL),
    }
}

/// An open transaction that holds the lock.
struct Transaction<'a> {
    client: &'a Client,
    server: &'a Server,
    slot: &'a str,
    what: &'static str,
    /// Where the slot stands: what is committed from there on is sent again.
    confirmed: Lsn,
}

/// So many statements are under way at once.
const PIPELINED: usize = 256;

/// A parameter with its type, from $2 on; $1 is always the slot.
type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

impl Transaction<'_> {
    /// Runs a statement; the number of rows it touched.
    async fn execute(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<u64, Error> {
        let all = self.with_slot(parameters);
        self.client.execute_typed(statement, &all).await.map_err(|e| self.failed(&e))
    }

    /// Runs a query and takes its rows as they come.
    async fn each(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
        mut take: impl FnMut(&Row) -> Result<(), Unreadable>,
    ) -> Result<(), Error> {
        let all = self.with_slot(parameters);
        let rows = self.client.query_typed_raw(statement, all).await.map_err(|e| self.failed(&e))?;
        let mut rows = pin!(rows);
        while let Some(row) = rows.try_next().await.map_err(|e| self.failed(&e))? {
            take(&row)
                .map_err(|e| Error::Outage(format!("{}: read a row of it: {}", self.what, chain(&*e))))?;
        }
        Ok(())
    }

    /// Runs a statement for each row ($2, $3; `more` from $4 on), one behind the other without waiting in
    /// between; how many it touched. A join would do as well where the statistics are good, and read all
    /// rows where the table has just filled up.
    async fn for_each(
        &self,
        statement: &str,
        rows: &[Position],
        more: &[Parameter<'_>],
    ) -> Result<u64, Error> {
        if rows.is_empty() {
            return Ok(0);
        }
        let types = [Type::TEXT, Type::PG_LSN, Type::INT8].into_iter();
        let types: Vec<Type> = types.chain(more.iter().map(|(_, kind)| kind.clone())).collect();
        let prepared = self.client.prepare_typed(statement, &types).await.map_err(|e| self.failed(&e))?;
        let mut touched = 0;
        for some in rows.chunks(PIPELINED) {
            let (commit_lsns, indexes) = columns::of_all(some);
            let runs = commit_lsns.iter().zip(&indexes).map(|(commit_lsn, index)| {
                let row: [&(dyn ToSql + Sync); 3] = [&self.slot, commit_lsn, index];
                let all: Vec<_> = row.into_iter().chain(more.iter().map(|(value, _)| *value)).collect();
                let prepared = &prepared;
                async move { self.client.execute(prepared, &all).await }
            });
            let counts = try_join_all(runs).await.map_err(|e| self.failed(&e))?;
            touched += counts.iter().sum::<u64>();
        }
        Ok(touched)
    }

    /// Runs a query that answers with aggregates.
    async fn keys(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<Vec<ParkedKey>, Error> {
        let mut keys = Vec::new();
        let take = |row: &Row| {
            keys.push(key(row, 0)?);
            Ok(())
        };
        self.each(statement, parameters, take).await?;
        Ok(keys)
    }

    async fn commit(self) -> Result<(), Error> {
        self.client.batch_execute("commit").await.map_err(|e| self.failed(&e))
    }

    fn with_slot<'p>(&'p self, parameters: &[Parameter<'p>]) -> Vec<Parameter<'p>> {
        let slot: Parameter<'p> = (&self.slot, Type::TEXT);
        [slot].into_iter().chain(parameters.iter().cloned()).collect()
    }

    fn failed(&self, error: &tokio_postgres::Error) -> Error {
        failure::sql(self.what, Doing::Relay, error, self.server)
    }
}

fn key(row: &Row, column: usize) -> Result<ParkedKey, Unreadable> {
    Ok(ParkedKey(row.try_get::<_, &[u8]>(column)?.try_into()?))
}
