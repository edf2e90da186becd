//! Who may write, and what stops it.

use anyhow::{Context as _, Result};
use postrider_postgres::{Error, Quarantine, Reason, SlotStream};
use postrider_relay::quarantine::{Done, PutBack, Work};

use testenv::{Sql, eventually};

use super::{Ward, row};
use crate::rig::{LIMIT, Rig, shared, socket_url, stopped};

#[tokio::test(flavor = "multi_thread")]
async fn who_has_lost_the_slot_writes_nothing() -> Result<()> {
    let mut ward = Ward::ready("quarantine_lost").await?;
    let rows = vec![super::released(ward.row(1, "a")), ward.row(2, "a")];
    ward.store(rows).await?;
    let before = whole(&ward.rig).await?;
    let lost = ward.stream.walsender_pid();
    drop(ward.stream);
    ward.rig.slot_is_free().await?;
    let put_back = PutBack {
        position: super::at(ward.start + 1),
        reason: postrider_relay::Reason::Nacked,
        detail: "x".to_owned(),
        attempts: 1,
    };
    let request = postrider_relay::quarantine::Request {
        position: super::at(ward.start + 9),
        id: 1,
        by: "me".to_owned(),
        aggregates: super::keys(&["a"]),
        positions: Vec::new(),
    };
    let works = [
        Work::Store(vec![row(super::at(ward.start + 3), "a")]),
        Work::Release(request.clone()),
        Work::Discard(request),
        Work::Delivered(vec![super::at(ward.start + 1)]),
        Work::PutBack(put_back),
        Work::Open { positions: 1 },
    ];
    // Once while nobody has it, once while another does.
    for holder in [false, true] {
        let next = if holder { Some(ward.rig.run().await?) } else { None };
        for work in &works {
            let mut quarantine = Quarantine::connect(&ward.rig.server(), &ward.rig.subject, lost).await?;
            let refused = quarantine.perform(work).await;
            let error = refused.expect_err("the slot is not ours");
            assert!(error.is_session_over(), "{error}");
            // And nobody waits for it.
            assert!(quarantine.perform(work).await.is_err_and(|e| !e.is_session_over()));
            if let Some((_admin, stream)) = &next {
                let mut other = connect(&ward.rig, stream).await?;
                other.perform(&Work::Open { positions: 1 }).await?;
            }
        }
    }
    assert_eq!(whole(&ward.rig).await?, before);
    Ok(())
}

async fn connect(rig: &Rig, stream: &SlotStream) -> Result<Quarantine, Error> {
    Quarantine::connect(&rig.server(), &rig.subject, stream.walsender_pid()).await
}

async fn whole(rig: &Rig) -> Result<String> {
    let rows = "select string_agg(q::text, '; ' order by q.commit_lsn) from postrider.quarantine q";
    Ok(rig.sql.query_one(rows, &[]).await?.get(0))
}

/// Another connection to the database, in a transaction that holds a lock.
async fn blocker(database: &str, lock: &str) -> Result<Sql> {
    let blocker = Sql::connect(&socket_url(shared().await?, "postgres", database)).await?;
    blocker.batch_execute(&format!("begin; {lock}")).await?;
    Ok(blocker)
}

/// Until so many wait for a lock.
async fn waiting(rig: &Rig, count: i64) -> Result<()> {
    let waiting = "select count(*) from pg_stat_activity
                   where datname = current_database() and wait_event_type = 'Lock'";
    eventually("somebody to wait for a lock", LIMIT, async || {
        let found: i64 = rig.sql.query_one(waiting, &[]).await?.get(0);
        Ok((found == count).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn who_loses_the_slot_while_it_waits_writes_nothing() -> Result<()> {
    let mut ward = Ward::ready("quarantine_late").await?;
    let blocker = blocker("quarantine_late", "select from postrider.relay for update").await?;
    let store = Work::Store(vec![ward.row(1, "a")]);
    let Ward { rig, stream, quarantine, .. } = &mut ward;
    let losing = async {
        waiting(rig, 1).await?;
        rig.execute(&format!("select pg_terminate_backend({})", stream.walsender_pid())).await?;
        rig.slot_is_free().await?;
        blocker.batch_execute("commit").await.context("let the store go on")
    };
    let (stored, lost) = tokio::join!(quarantine.perform(&store), losing);
    lost?;
    let error = stored.expect_err("the slot was lost before the lock was there");
    assert!(error.is_session_over(), "{error}");
    assert_eq!(ward.states().await?, "");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_opens_behind_what_the_one_before_is_writing() -> Result<()> {
    let mut ward = Ward::ready("quarantine_handover").await?;
    let store = Work::Store(vec![ward.row(1, "a")]);
    // The store gets as far as its insert.
    let blocker = blocker("quarantine_handover", "lock table postrider.quarantine in share mode").await?;
    let Ward { rig, stream, quarantine, .. } = &mut ward;
    let handover = async {
        waiting(rig, 1).await?;
        let (pid, subject) = (stream.walsender_pid(), &rig.subject);
        rig.execute(&format!("select pg_terminate_backend({pid})")).await?;
        rig.slot_is_free().await?;
        let (_admin, next) = rig.run().await?;
        let mut successor = Quarantine::connect(&rig.server(), subject, next.walsender_pid()).await?;
        let open = Work::Open { positions: 10 };
        let end = async {
            waiting(rig, 2).await?;
            blocker.batch_execute("commit").await.context("let the store go on")
        };
        let (opened, ended) = tokio::join!(successor.perform(&open), end);
        ended?;
        Ok::<Done, anyhow::Error>(opened?)
    };
    let (stored, opened) = tokio::join!(quarantine.perform(&store), handover);
    assert!(matches!(stored?, Done::Stored { new: 1 }));
    let opened = opened?;
    let Done::Opened { undelivered: 1, page, .. } = &opened else { panic!("{opened:?}") };
    assert_eq!(page.positions, [super::at(ward.start + 1)]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_was_given_up_holds_up_nobody() -> Result<()> {
    let mut ward = Ward::ready("quarantine_given_up").await?;
    let blocker = blocker("quarantine_given_up", "lock table postrider.quarantine in share mode").await?;
    let release = Work::Release(ward.request(9, &["a"], &[]));
    // The server would let it wait for ten minutes.
    tokio::select! {
        // An end of the release is worth more than that nobody waits.
        biased;
        released = ward.quarantine.perform(&release) => panic!("nothing waited: {released:?}"),
        stuck = waiting(&ward.rig, 1) => stuck?,
    }
    // A transaction is left open on it.
    let again = ward.quarantine.perform(&Work::Open { positions: 1 }).await;
    assert!(matches!(again, Err(Error::Outage(_))), "{again:?}");
    ward.quarantine = connect(&ward.rig, &ward.stream).await?;
    let opened = tokio::time::timeout(LIMIT, ward.open(1)).await.context("wait for the lock")?;
    let (_, undelivered, _, _) = opened?;
    assert_eq!(undelivered, 0);
    blocker.batch_execute("commit").await?;
    assert_eq!(ward.store(vec![ward.row(1, "a")]).await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_stops_and_the_cure_mends_it() -> Result<()> {
    let mut ward = Ward::ready("quarantine_stops").await?;
    let work = Work::Store(vec![ward.row(1, "a")]);
    for (breaking, reason) in [
        ("drop table postrider.quarantine", Reason::NoSchema),
        ("revoke insert on postrider.quarantine from postrider_relay", Reason::Rights),
        ("revoke all on postrider.relay from postrider_relay", Reason::Rights),
        ("revoke usage on schema postrider from postrider_relay", Reason::Rights),
    ] {
        ward.rig.execute(breaking).await?;
        let stop = stopped(ward.quarantine.perform(&work).await)?;
        assert_eq!(stop.reason, reason, "{breaking}: {stop}");
        ward.rig.apply(&stop).await?;
        ward.quarantine = connect(&ward.rig, &ward.stream).await?;
        ward.quarantine.perform(&work).await.with_context(|| format!("after the cure of {breaking}"))?;
        ward.rig.execute("delete from postrider.quarantine").await?;
    }
    ward.rig.execute("alter table postrider.quarantine drop column outbox_row").await?;
    let stop = stopped(ward.quarantine.perform(&work).await)?;
    assert_eq!(stop.reason, Reason::NoSchema, "{stop}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_without_a_record_is_not_written_for() -> Result<()> {
    let mut ward = Ward::ready("quarantine_unrecorded").await?;
    ward.rig.execute("delete from postrider.relay").await?;
    let refused = ward.store(vec![ward.row(1, "a")]).await;
    let error = refused.expect_err("there is nothing to lock");
    assert!(error.to_string().contains("not recorded"), "{error}");
    assert_eq!(ward.states().await?, "");
    Ok(())
}
