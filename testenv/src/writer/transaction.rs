//! One transaction: drawn by lot, then played against Postgres.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Error, Statement, Transaction};

use super::{Load, ledger};
use crate::Sql;

/// A server that does not answer a whole transaction for so long is as good as lost.
const LIMIT: Duration = Duration::from_secs(60);

/// What one transaction writes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Script {
    lines: Vec<Line>,
    commit: bool,
}

/// One event, and whether a savepoint around it is rolled back.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    order: String,
    payload: Option<String>,
    headers: Option<String>,
    correlation_id: Option<String>,
    traceparent: Option<String>,
    undone: bool,
}

/// How a transaction ended.
#[derive(Debug)]
pub(super) enum End {
    Committed {
        message_ids: Vec<String>,
        at: Instant,
    },
    RolledBack,
    /// The server chose this transaction to end a deadlock.
    Deadlock,
    /// The connection is gone; whether the transaction is committed only the database knows.
    Lost,
}

impl Script {
    pub(super) fn draw(load: &Load, random: &mut fastrand::Rng) -> Self {
        let count = random.u32(load.events.clone());
        let mut orders: Vec<u32> = (0..count).map(|_| random.u32(0..load.orders)).collect();
        // All transactions lock in one order, so that they seldom deadlock.
        orders.sort_unstable();
        let mut lines = Vec::new();
        for order in orders {
            lines.push(Line::draw(order, load, random));
            if random.f64() < load.savepoints {
                lines.push(Line { undone: true, ..Line::draw(order, load, random) });
            }
        }
        Self { lines, commit: random.f64() >= load.rolled_back }
    }
}

impl Line {
    fn draw(order: u32, load: &Load, random: &mut fastrand::Rng) -> Self {
        let customer = random.u32(1..1_000);
        let trace = random.u128(1..);
        let mut sometimes = |text: String| random.bool().then_some(text);
        let headers = sometimes(format!(r#"{{"channel":"web","attempt":{customer},"gift":true}}"#));
        let correlation_id = sometimes(format!("cart-{customer}"));
        let traceparent = sometimes(format!("00-{trace:032x}-{customer:016x}-01"));
        Self {
            order: format!("{order}"),
            payload: (random.f64() >= load.null_payloads)
                .then(|| payload(load.payload_bytes, customer, random)),
            headers,
            correlation_id,
            traceparent,
            undone: false,
        }
    }
}

/// JSON that tells when somebody has parsed and printed it: odd spaces, a repeated key, digits beyond a double's,
/// escapes beside the characters they stand for.
fn payload(bytes: usize, customer: u32, random: &mut fastrand::Rng) -> String {
    let total = random.u32(..);
    let head = format!(
        r#"{{ "customer":{customer},  "total": {total}.10, "n":1e2,"n":12345678901234567890123, "s":"\u00e9é\/","note":""#
    );
    let filling = bytes.saturating_sub(head.len() + 3);
    let note: String = (0..filling).map(|_| random.lowercase()).collect();
    format!("{head}{note}\" }}")
}

/// A writer's connection, with the statement prepared on it.
pub(super) struct Pen {
    sql: Sql,
    event: Statement,
}

impl Pen {
    pub(super) async fn connect(url: &str, outbox: &str) -> Result<Self> {
        let sql = Sql::connect(url).await?;
        let event = timeout(LIMIT, sql.prepare(&ledger::event(outbox))).await.context("prepare in time")?;
        Ok(Self { sql, event: event.context("prepare the statement that writes an event")? })
    }

    /// Plays a script.
    ///
    /// # Errors
    /// Everything that is neither a lost connection nor a deadlock: the test is wrong then.
    pub(super) async fn play(&mut self, script: &Script) -> Result<End> {
        match timeout(LIMIT, self.play_out(script)).await {
            Err(_) => Ok(End::Lost),
            Ok(Ok(end)) => Ok(end),
            Ok(Err(error)) if is_lost(&error) => Ok(End::Lost),
            Ok(Err(error)) if error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) => Ok(End::Deadlock),
            Ok(Err(error)) => Err(error).context("write a transaction"),
        }
    }

    async fn play_out(&mut self, script: &Script) -> Result<End, Error> {
        let mut transaction = self.sql.transaction().await?;
        let mut message_ids = Vec::new();
        for line in &script.lines {
            if line.undone {
                let savepoint = transaction.savepoint("undone").await?;
                line.write(&savepoint, &self.event).await?;
                savepoint.rollback().await?;
            } else {
                message_ids.push(line.write(&transaction, &self.event).await?);
            }
        }
        if !script.commit {
            transaction.rollback().await?;
            return Ok(End::RolledBack);
        }
        let at = Instant::now();
        transaction.commit().await?;
        Ok(End::Committed { message_ids, at })
    }
}

impl Line {
    async fn write(&self, transaction: &Transaction<'_>, event: &Statement) -> Result<String, Error> {
        let Line { order, payload, headers, correlation_id, traceparent, undone: _ } = self;
        let row =
            transaction.query_one(event, &[order, payload, headers, correlation_id, traceparent]).await?;
        Ok(row.get(0))
    }
}

/// The server has gone or is going (class 08; 57P01 to 57P03), or the client found the connection closed.
fn is_lost(error: &Error) -> bool {
    match error.code() {
        Some(code) => code.code().starts_with("08") || code.code().starts_with("57P"),
        None => error.is_closed() || error.as_db_error().is_none(),
    }
}
