//! The quarantine as the database has it.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::Value;
use testenv::eventually;
use testenv::oracle::Slot;
use tokio_postgres::types::PgLsn;

use crate::run;
use crate::stage::{LIMIT, Stage};

/// One row, column by column; the body in hex.
pub(crate) type Row = Value;

impl Stage {
    /// The rows of our slot, in the order of the log; their order of columns and headers is not kept.
    pub(crate) async fn rows(&self) -> Result<Vec<Row>> {
        let query = format!(
            "select coalesce(json_agg(r order by commit_lsn, index), '[]')::text from (
               select *, commit_lsn::text || '/' || index as position
               from postrider.quarantine where slot = '{}') r",
            self.name()
        );
        serde_json::from_str(&self.text(&query).await?).context("read the quarantine")
    }

    /// Waits until the rows are as `right` wants them.
    pub(crate) async fn wait_rows(&self, what: &str, right: impl Fn(&[Row]) -> bool) -> Result<Vec<Row>> {
        let mut last = Vec::new();
        let waited = eventually(what, LIMIT, async || {
            last = self.rows().await?;
            Ok(right(&last).then_some(()))
        });
        waited.await.with_context(|| format!("the rows: {}", brief(&last)))?;
        Ok(last)
    }

    /// Waits until there are these rows in these states and no others; `(aggregate, state)`, in order.
    pub(crate) async fn wait_states(&self, expected: &[(&str, &str)]) -> Result<Vec<Row>> {
        self.wait_rows(&format!("the rows {expected:?}"), |rows| states(rows) == expected).await
    }

    /// `postrider quarantine retry` with these words, which delivers all that is meant.
    pub(crate) async fn retry(&self, words: &str) -> Result<()> {
        run::expect(&self.rig.admin, &format!("quarantine retry {words}"), 0).await.map(drop)
    }

    /// Waits until the slot has passed all that is committed now: everything is paid.
    pub(crate) async fn wait_paid(&self) -> Result<Slot> {
        let now: PgLsn = self.text("select pg_current_wal_lsn()::text").await?.parse().expect("an LSN");
        let passed = |slot: &Slot| slot.confirmed_flush_lsn >= now;
        Slot::wait(&self.sql, self.name(), &format!("at {now}"), LIMIT, passed).await
    }
}

/// Aggregate and state of each row.
pub(crate) fn states(rows: &[Row]) -> Vec<(&str, &str)> {
    rows.iter()
        .map(|row| (row["aggregate_id"].as_str().unwrap_or(""), row["state"].as_str().unwrap_or("")))
        .collect()
}

/// How many rows are in each state.
pub(crate) fn count_states(rows: &[Row]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for (_, state) in states(rows) {
        *counts.entry(state).or_default() += 1;
    }
    counts
}

/// The rows for a message of a failed test: no bodies.
fn brief(rows: &[Row]) -> String {
    let line = |row: &Row| {
        ["position", "aggregate_id", "state", "reason", "detail"].map(|key| row[key].to_string()).join(" ")
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}
