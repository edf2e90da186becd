//! What the relay puts aside: poison written for it, mended and released by the operator's command, and known to the
//! judge.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use testenv::{Rig, eventually};

/// No exchange has this name: the broker closes the channel over a message to it.
const NOWHERE: &str = "nowhere";

/// Writes three events of one aggregate, each in a transaction of its own; the second is poison.
pub(super) async fn poison(rig: &Rig, aggregate: &str) -> Result<()> {
    let statement = "with event as (
             insert into postrider.outbox
                    (aggregate_type, aggregate_id, event_type, payload, aggregate_seq, exchange)
             values ('poisoned', $1, 'placed', '{ \"seq\":1 }', $2, $3)
             returning id, aggregate_type, aggregate_id, aggregate_seq, payload
         )
         insert into shop.ledger (id, aggregate_type, aggregate_id, aggregate_seq, payload)
         select id, aggregate_type, aggregate_id, aggregate_seq, payload::text from event";
    let sql = rig.sql().await?;
    for (seq, exchange) in [(1_i64, None), (2, Some(NOWHERE)), (3, None)] {
        sql.execute(statement, &[&aggregate, &seq, &exchange]).await.context("write poison")?;
    }
    Ok(())
}

/// Mends what is poison, and lets everything be sent again; what becomes of it is not waited for.
pub(super) async fn retry(rig: &Rig) -> Result<()> {
    let mend = "update postrider.quarantine set exchange = $1 where exchange = $2";
    rig.sql().await?.execute(mend, &[&rig.name(), &NOWHERE]).await.context("mend the poison")?;
    rig.admin.expect(&["quarantine", "retry", "--all", "--no-wait"]).await.map(drop)
}

/// What has failed on its way is parked again, and asked for again.
const AGAIN: Duration = Duration::from_secs(5);

/// How many rows are in these states.
async fn count(rig: &Rig, states: &str) -> Result<i64> {
    let query = format!("select count(*) from postrider.quarantine where state in ({states})");
    Ok(rig.sql().await?.query_one(&query, &[]).await.context("count what is in quarantine")?.get(0))
}

/// Lets everything be sent again, as often as it takes, until nothing is parked and nothing is on its way; returns
/// how many events were ever put aside.
pub(super) async fn release(rig: &Rig, limit: Duration) -> Result<i64> {
    let mut asked = None;
    eventually("everything to leave the quarantine", limit, async || {
        if count(rig, "'parked', 'released'").await? == 0 {
            return Ok(Some(()));
        }
        if asked.is_none_or(|asked: Instant| asked.elapsed() > AGAIN) {
            asked = Some(Instant::now());
            retry(rig).await?;
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
