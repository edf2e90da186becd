//! What the relay has put aside: released by the operator's command, and known to the judge.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use testenv::{Rig, eventually};

/// How many rows are in these states.
async fn count(rig: &Rig, states: &str) -> Result<i64> {
    let query = format!("select count(*) from postrider.quarantine where state in ({states})");
    Ok(rig.sql().await?.query_one(&query, &[]).await.context("count what is in quarantine")?.get(0))
}

/// Lets everything be sent again, as often as it takes, until nothing is parked and nothing is on its way; returns how
/// many events were ever put aside.
pub(super) async fn release(rig: &Rig, limit: Duration) -> Result<i64> {
    eventually("everything to leave the quarantine", limit, async || {
        if count(rig, "'parked', 'released'").await? == 0 {
            return Ok(Some(()));
        }
        let retried = rig.admin.output(&["quarantine", "retry", "--all"]).await?;
        if retried.code == Some(2) {
            bail!("run postrider quarantine retry: {retried}");
        }
        Ok(None)
    })
    .await?;
    count(rig, "'delivered', 'discarded'").await
}

/// The message ids of all that was ever put aside: it is sent from the table, whatever the slot has passed.
pub(super) async fn ids(rig: &Rig) -> Result<HashSet<String>> {
    let query = "select message_id from postrider.quarantine where message_id is not null";
    let rows = rig.sql().await?.query(query, &[]).await.context("read the quarantine")?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
