//! The doctor on real servers.

use anyhow::Result;
use postrider_postgres::{Severity, Symptom};
use testenv::PostgresOptions;

use crate::rig::{Rig, options, start};

const COLUMNS: &[&str] = &["id", "aggregate_type", "aggregate_id", "event_type", "payload"];

fn find<'a>(symptoms: &'a [Symptom], what: &str) -> Option<&'a Symptom> {
    symptoms.iter().find(|symptom| symptom.what.contains(what))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_hurts_is_found_and_the_cure_mends_it() -> Result<()> {
    let server = start(PostgresOptions { wal_sender_timeout_ms: Some(0), ..options() }).await?;
    let rig = Rig::ready_on(&server, "doctor").await?;
    // A setting in the file is overridden by the cure's.
    rig.execute("alter table postrider.outbox drop column payload").await?;
    rig.execute("revoke update on postrider.quarantine from postrider_relay").await?;
    let admin = rig.admin().await?;
    let before = admin.doctor(&rig.subject, COLUMNS).await?;
    assert!(before.is_sorted_by(|a, b| a.severity >= b.severity), "{before:?}");
    for (what, severity) in [
        ("has no column payload", Severity::Error),
        ("lacks a right", Severity::Error),
        ("max_slot_wal_keep_size is unlimited", Severity::Warning),
        ("wal_sender_timeout is off", Severity::Warning),
        ("fsync", Severity::Warning),
    ] {
        let symptom = find(&before, what).unwrap_or_else(|| panic!("{what}: {before:?}"));
        assert_eq!(symptom.severity, severity);
        assert!(!symptom.cure.is_empty());
        for statement in &symptom.cure {
            rig.execute(statement).await?;
        }
    }
    testenv::eventually("the settings to be read", crate::rig::LIMIT, async || {
        let after = rig.admin().await?.doctor(&rig.subject, COLUMNS).await?;
        let gone = ["payload", "lacks", "unlimited", "wal_sender_timeout", "fsync"];
        Ok(gone.iter().all(|what| find(&after, what).is_none()).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_could_not_run_is_an_error_with_the_stops_own_cure() -> Result<()> {
    let rig = Rig::ready("doctor_stop").await?;
    rig.execute("drop publication postrider").await?;
    let symptoms = rig.admin().await?.doctor(&rig.subject, COLUMNS).await?;
    let symptom = &symptoms[0];
    assert_eq!(symptom.severity, Severity::Error);
    assert_eq!(symptom.cure, ["postrider slot drop --yes", "postrider init"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_transaction_is_named() -> Result<()> {
    let server = start({
        let mut options = options();
        options.settings.push(("max_prepared_transactions".to_owned(), "2".to_owned()));
        options
    })
    .await?;
    let rig = Rig::ready_on(&server, "prepared").await?;
    rig.execute("begin; create table t (id int); prepare transaction 'forgotten'").await?;
    // Creating a slot waits for it as for any other.
    let hasty = postrider_postgres::Init { wait: std::time::Duration::from_secs(2), failover: false };
    let second = rig.subject.with_slot("second")?;
    let stop = crate::rig::stopped(rig.owner.slot_create(&second, hasty, &mut |_| {}).await)?;
    assert!(stop.why.contains("a prepared transaction"), "{stop}");
    rig.execute("rollback prepared 'forgotten'").await
}
