//! The oldest and the newest server.

use anyhow::{Context as _, Result};
use postrider_postgres::Reason;
use testenv::{PostgresOptions, install};

use crate::rig::{LIMIT, Rig, options, receive_commit, receives, start, stopped, watermark};

async fn serves(bin: std::path::PathBuf, major: u32) -> Result<()> {
    let server = start(PostgresOptions { bin: Some(bin), ..options() }).await?;
    let rig = Rig::ready_on(&server, "version").await?;
    let (admin, mut stream) = rig.run().await?;
    assert_eq!(admin.version(), major);
    rig.insert("one").await?;
    let end = receive_commit(&mut stream, "one").await?;
    let seen = admin.check(&rig.subject, Some(stream.walsender_pid())).await?;
    let slot = seen.slot.context("find the slot")?;
    assert_eq!(slot.failover, (major >= 17).then_some(true));
    // Only a role that may see all statistics is told how far the server has sent.
    assert_eq!(slot.sent_lsn, None);
    // The server writes it down after sending.
    testenv::eventually("the server to say how far it has sent", LIMIT, async || {
        let slot = rig.inspect().await?.slot.context("find the slot")?;
        Ok(slot.sent_lsn.filter(|&sent| sent >= end))
    })
    .await?;
    assert_eq!(stream.close(Some(watermark(end)), LIMIT).await, Some(end));

    // The slot is replaced after a relay was killed.
    let (admin, mut stream) = rig.run().await?;
    rig.insert("two").await?;
    receives(&mut stream, "two").await?;
    testenv::eventually("the count to be recorded", LIMIT, async || {
        let seen = admin.check(&rig.subject, Some(stream.walsender_pid())).await?;
        Ok(seen.record.filter(|record| record.decoded_txns > 0))
    })
    .await?;
    drop(stream);
    rig.slot_is_free().await?;
    rig.execute("select pg_drop_replication_slot('version')").await?;
    rig.execute("select pg_create_logical_replication_slot('version', 'pgoutput')").await?;
    // PostgreSQL 14 collects statistics every half second.
    testenv::eventually("the new slot's count", LIMIT, async || {
        let slot = rig.inspect().await?.slot.context("find the slot")?;
        Ok((slot.decoded_txns == Some(0)).then_some(()))
    })
    .await?;
    rig.stops_and_is_mended(Reason::SlotReplaced).await?;
    rig.slot_is_free().await?;

    // The publication is dropped under the relay; what is inserted meanwhile is not passed over.
    let (admin, stream) = rig.run().await?;
    rig.execute("drop publication postrider").await?;
    rig.insert("unpublished").await?;
    let stop = stopped(admin.check(&rig.subject, Some(stream.walsender_pid())).await)?;
    assert_eq!(stop.reason, Reason::NoPublication, "{stop}");
    drop(stream);
    rig.slot_is_free().await?;
    rig.mend(stop).await?;
    rig.slot_is_free().await?;
    let (_admin, stream) = rig.run().await?;
    crate::quarantine::serves(rig, stream).await
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_14() -> Result<()> {
    serves(tokio::task::spawn_blocking(install::postgres_14).await??, 14).await
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_18() -> Result<()> {
    serves(tokio::task::spawn_blocking(install::postgres_18).await??, 18).await
}
