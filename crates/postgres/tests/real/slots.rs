//! Slots as an operator handles them.

use anyhow::{Context as _, Result};
use postrider_postgres::{AdvanceTo, Error, Reason};

use crate::rig::{Rig, receives, stopped};

#[tokio::test(flavor = "multi_thread")]
async fn slots_are_listed() -> Result<()> {
    let rig = Rig::ready("listed").await?;
    rig.execute("select pg_create_physical_replication_slot('listed_physical')").await?;
    rig.insert("pending").await?;
    let slots = rig.admin().await?.slot_list().await?;
    let ours = slots.iter().find(|slot| slot.name == "listed").context("find our slot")?;
    assert!(ours.recorded && ours.lag_bytes > Some(0) && ours.retained_bytes >= ours.lag_bytes, "{ours:?}");
    assert_eq!((ours.plugin.as_deref(), ours.database.as_deref()), (Some("pgoutput"), Some("listed")));
    let physical = slots.iter().find(|slot| slot.name == "listed_physical").context("find the other")?;
    assert!(
        !physical.recorded && physical.plugin.is_none() && physical.restart_lsn.is_none(),
        "{physical:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_advanced_slot_is_still_the_recorded_one() -> Result<()> {
    let rig = Rig::ready("advanced").await?;
    rig.insert("skipped").await?;
    let admin = rig.admin().await?;
    let stands = admin.slot_advance("advanced", AdvanceTo::End).await?;
    assert_eq!(rig.inspect().await?.slot.and_then(|slot| slot.confirmed_flush_lsn), Some(stands));
    let (_admin, mut stream) = rig.run().await?;
    rig.insert("read").await?;
    receives(&mut stream, "read").await?;
    let end = rig.inspect().await?.wal_lsn;
    match admin.slot_advance("advanced", AdvanceTo::Lsn(end)).await {
        Err(Error::Standby { pid }) => assert_eq!(pid, Some(stream.walsender_pid())),
        other => panic!("{other:?}"),
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_in_use_is_not_dropped() -> Result<()> {
    let rig = Rig::ready("dropped").await?;
    let (admin, stream) = rig.run().await?;
    match admin.slot_drop("dropped").await {
        Err(Error::Standby { pid }) => assert_eq!(pid, Some(stream.walsender_pid())),
        other => panic!("{other:?}"),
    }
    drop(stream);
    rig.slot_is_free().await?;
    assert!(admin.slot_drop("dropped").await?);
    assert!(!admin.slot_drop("dropped").await?);
    let stop = stopped(rig.run().await)?;
    assert_eq!(stop.reason, Reason::NoSlot, "{stop}");
    assert!(stop.why.contains("dropped"), "{stop}");
    rig.mend(stop).await
}
