//! Slots that are missing, lost, replaced or somebody else's.

use anyhow::{Context as _, Result};
use testenv::{Postgres, PostgresOptions, eventually};

use crate::run::Run;
use crate::stage::{LIMIT, Stage};
use crate::stops::{expect_stop, stopped};

#[tokio::test]
async fn a_missing_slot_is_a_stop_and_never_made_in_silence() -> Result<()> {
    let stage = Stage::new("no slot").await?;
    stage.expect_delivery().await?;
    stage.execute(&format!("select pg_drop_replication_slot('{}')", stage.name())).await?;
    let says = format!("the slot {} does not exist", stage.name());
    let stop = expect_stop(&stage.rig.program, &[&says, "a relay never creates a slot"]).await?;
    let query =
        format!("select count(*)::text from pg_replication_slots where slot_name = '{}'", stage.name());
    assert_eq!(stage.text(&query).await?, "0");
    assert_eq!(stop.cures, ["postrider slot create"]);
    stage.mend(&stop).await?;
    stage.expect_delivery().await
}

#[tokio::test]
async fn a_lost_slot_is_a_stop_while_running_and_at_the_start() -> Result<()> {
    let options = PostgresOptions {
        fsync: false,
        max_slot_wal_keep_size_mb: Some(1),
        settings: vec![
            ("min_wal_size".to_owned(), "32MB".to_owned()),
            ("max_wal_size".to_owned(), "48MB".to_owned()),
        ],
        ..PostgresOptions::default()
    };
    let server = Postgres::start(options).await?;
    let mut stage = Stage::on_server(&server, "lost slot").await?;
    stage.rig.program = stage.rig.program.clone().set("quarantine.scope", "halt");
    let mut relay = stage.ready().await?;
    // An event that is held: the slot cannot follow.
    stage
        .execute(
            "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, headers)
             values ('order', '1', 'placed', '{\"CC\": 1}')",
        )
        .await?;
    relay.wait_reason("held", LIMIT).await?;
    lose(&stage).await?;
    let says = format!("the slot {} is lost (", stage.name());
    let stop = stopped(&mut relay, &[&says, "insert those rows again"]).await?;
    assert_eq!(stop.cures, ["postrider slot drop --yes", "postrider slot create"]);
    let stop = expect_stop(&stage.rig.program, &[&says]).await?;
    stage.mend(&stop).await?;
    stage.expect_delivery().await?;

    lose(&stage).await?;
    stage.expect_stop_and_cure(&[&says]).await.map(drop)
}

/// Writes WAL until the server gives the slot up.
async fn lose(stage: &Stage) -> Result<()> {
    let lost = format!("select wal_status from pg_replication_slots where slot_name = '{}'", stage.name());
    eventually("the slot to be lost", LIMIT, async || {
        stage.execute("create table if not exists filler (a text); insert into filler values ('x')").await?;
        stage.execute("select pg_switch_wal()").await?;
        stage.execute("checkpoint").await?;
        Ok((stage.text(&lost).await? == "lost").then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_slot_made_again_behind_a_stopped_relay_is_noticed() -> Result<()> {
    let stage = Stage::new("replaced slot").await?;
    stage.expect_delivery().await?;
    replace(&stage).await?;
    let stop = stage
        .expect_stop_and_cure(&["is not the one that was recorded", "but the last relay left it at"])
        .await?;
    assert_eq!(stop.cures.len(), 1, "the gap is accepted by one statement: {:?}", stop.cures);
    Ok(())
}

#[tokio::test]
async fn a_slot_made_again_behind_a_killed_relay_is_noticed() -> Result<()> {
    let stage = Stage::new("replaced slot killed").await?;
    let mut relay = stage.ready().await?;
    let id = stage.write_event().await?;
    stage.wait_message(&id).await?;
    // It is known only by what it has decoded, once the server has said so.
    let counted =
        format!("select (decoded_txns > 0)::text from postrider.relay where slot = '{}'", stage.name());
    eventually("the count of decoded transactions", LIMIT, async || {
        stage.write_event().await?;
        Ok((stage.text(&counted).await? == "true").then_some(()))
    })
    .await?;
    relay.kill().await?;
    stage.wait_slot_free().await?;
    replace(&stage).await?;
    let stop = expect_stop(
        &stage.rig.program,
        &["is not the one that was recorded", "transactions, but the recorded one"],
    )
    .await?;
    stage.mend(&stop).await?;
    stage.rig.queue.purge().await?;
    stage.expect_delivery().await
}

/// Drops the slot and makes one of the same name, with an event in between.
async fn replace(stage: &Stage) -> Result<()> {
    let name = stage.name();
    stage.execute(&format!("select pg_drop_replication_slot('{name}')")).await?;
    stage.write_event().await?;
    stage.execute(&format!("select pg_create_logical_replication_slot('{name}', 'pgoutput')")).await
}

#[tokio::test]
async fn a_slot_made_by_hand_is_taken_once_it_is_recorded() -> Result<()> {
    // Another slot of the server would lend the new one its age, and nobody could tell what it has missed.
    let server = Postgres::start(PostgresOptions { fsync: false, ..PostgresOptions::default() }).await?;
    let stage = Stage::on_server(&server, "unrecorded slot").await?;
    let name = stage.name();
    stage.execute(&format!("select pg_drop_replication_slot('{name}'); delete from postrider.relay")).await?;
    stage.execute(&format!("select pg_create_logical_replication_slot('{name}', 'pgoutput')")).await?;
    let stop = stage.expect_stop_and_cure(&["is not recorded in postrider.relay"]).await?;
    assert_eq!(stop.cures, ["postrider init"]);
    Ok(())
}

#[tokio::test]
async fn a_slot_of_another_kind_or_database_is_a_stop() -> Result<()> {
    let stage = Stage::new("other slot").await?;
    let name = stage.name();
    stage
        .execute(&format!(
            "select pg_drop_replication_slot('{name}'); select pg_create_physical_replication_slot('{name}')"
        ))
        .await?;
    let stop = stage.expect_stop_and_cure(&["is a physical slot"]).await?;
    assert_eq!(stop.cures, ["postrider slot drop --yes", "postrider slot create"]);

    let other = Stage::new("other slot elsewhere").await?;
    stage.execute(&format!("select pg_drop_replication_slot('{name}')")).await?;
    other.execute(&format!("select pg_create_logical_replication_slot('{name}', 'pgoutput')")).await?;
    let stop =
        expect_stop(&stage.rig.program, &[&format!("is a slot of the database {}", other.name())]).await?;
    stage.mend(&stop).await.context("drop a slot of another database")?;
    stage.expect_delivery().await
}

#[tokio::test]
async fn a_second_relay_stands_by_and_says_so_once() -> Result<()> {
    let stage = Stage::new("standby").await?;
    let mut first = stage.ready().await?;
    let mut second = Run::start(&stage.rig.program)?;
    second.wait_reason("standby", LIMIT).await?;
    assert_eq!(second.get("/readyz?standby=ok").await?.status, 200);
    let id = stage.write_event().await?;
    stage.wait_message(&id).await?;
    crate::run::let_pass(std::time::Duration::from_secs(1)).await;
    assert_eq!(second.count_lines("standby: another session"), 1, "{}", second.log_text());
    first.expect_drain().await?;
    second.wait_ready(LIMIT).await?;
    let id = stage.write_event().await?;
    stage.wait_message(&id).await?;
    second.expect_drain().await
}
