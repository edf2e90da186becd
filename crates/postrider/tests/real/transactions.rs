//! From a transaction to its events: what counts in the position, and what is no event at all.

use anyhow::{Context as _, Result};
use testenv::consumer::Delivery;
use testenv::oracle::{Commits, Slot};

use crate::stage::{LIMIT, Stage};

fn event(id: &str) -> String {
    format!(
        "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload)
         values ('order', '{id}', 'placed', '\"p4yl04d\"');"
    )
}

/// The aggregate's id and the index.
fn place(delivery: &Delivery) -> Result<(String, u32)> {
    let id = delivery.text("aggregate_id").context("an aggregate")?;
    Ok((id.to_owned(), delivery.position().context("a position")?.index))
}

async fn places(stage: &Stage, count: usize) -> Result<Vec<(String, u32)>> {
    let mut places = Vec::new();
    for _ in 0..count {
        places.push(place(&stage.next_message().await?)?);
    }
    // Lanes may overtake each other: only the events of one aggregate are in order.
    places.sort();
    Ok(places)
}

fn expected(places: &[(&str, u32)]) -> Vec<(String, u32)> {
    places.iter().map(|(id, index)| ((*id).to_owned(), *index)).collect()
}

#[tokio::test]
async fn the_index_counts_every_row_change_and_only_inserts_are_events() -> Result<()> {
    let stage = Stage::new("transaction index").await?;
    let everything =
        format!("alter publication {} set (publish = 'insert, update, delete, truncate')", stage.name());
    stage.execute(&everything).await?;
    let witness = stage.rig.scope.named("witness");
    Commits::watch(&stage.sql, &witness).await?;
    let mut relay = stage.ready().await?;
    let (a, b, c) = (event("a"), event("b"), event("c"));
    stage
        .execute(&format!(
            "begin; {a} update postrider.outbox set event_version = 2 where aggregate_id = 'a'; {b}
             delete from postrider.outbox where aggregate_id = 'a';
             insert into postrider.command (verb) values ('nothing'); {c} commit"
        ))
        .await?;
    let first = stage.next_message().await?;
    let mut found = vec![place(&first)?];
    let commit = Commits::read(&stage.sql, &witness, stage.name()).await?.last().context("a commit")?;
    assert_eq!(first.position().context("a position")?.commit_lsn, commit.commit_lsn);
    found.extend(places(&stage, 2).await?);
    found.sort();
    assert_eq!(found, expected(&[("a", 0), ("b", 2), ("c", 5)]));

    stage.execute(&format!("begin; truncate postrider.outbox; {a} commit")).await?;
    assert_eq!(places(&stage, 1).await?, expected(&[("a", 0)]), "a truncation is no row");
    for (op, count) in [("update", 1.0), ("delete", 1.0), ("truncate", 1.0), ("command", 1.0)] {
        relay.wait_metric("postrider_events_ignored_total", &[("op", op)], count).await?;
    }
    relay.wait_metric("postrider_events_published_total", &[], 4.0).await?;
    stage.expect_empty_queue().await?;
    relay.expect_drain().await
}

#[tokio::test]
async fn what_is_rolled_back_is_never_published() -> Result<()> {
    let stage = Stage::new("transaction rollback").await?;
    let mut relay = stage.ready().await?;
    let [kept, gone, again, last] = ["kept", "lost", "again", "last"].map(event);
    stage
        .execute(&format!(
            "begin; {gone} rollback;
             begin; {kept} savepoint a; {gone} savepoint b; {gone} release b; rollback to a; {again} release a;
             savepoint c; {gone} rollback to c; commit"
        ))
        .await?;
    assert_eq!(places(&stage, 2).await?, expected(&[("again", 1), ("kept", 0)]));
    stage.execute(&last).await?;
    assert_eq!(places(&stage, 1).await?, expected(&[("last", 0)]));
    stage.expect_empty_queue().await?;
    relay.expect_drain().await
}

#[tokio::test]
async fn a_row_that_is_deleted_at_once_is_an_event() -> Result<()> {
    let stage = Stage::new("transaction deleted").await?;
    let mut relay = stage.ready().await?;
    stage.execute(&format!("begin; {} delete from postrider.outbox; commit", event("a"))).await?;
    assert_eq!(places(&stage, 1).await?, expected(&[("a", 0)]));
    assert_eq!(stage.text("select count(*)::text from postrider.outbox").await?, "0");
    let ignored = relay.metrics().await?.sum("postrider_events_ignored_total", &[("op", "delete")])?;
    assert!(ignored.abs() < 1e-9, "the publication does not send deletes");
    relay.expect_drain().await
}

#[tokio::test]
async fn logical_messages_owe_nothing() -> Result<()> {
    let stage = Stage::new("transaction messages").await?;
    let mut relay = stage.ready().await?;
    stage
        .execute(&format!(
            "select pg_logical_emit_message(false, 'postrider', 'p4yl04d');
             select pg_logical_emit_message(true, 'other', 'p4yl04d');
             begin; {} select pg_logical_emit_message(true, 'postrider', 'p4yl04d');
             select pg_logical_emit_message(false, 'other', 'p4yl04d'); {} commit",
            event("a"),
            event("b")
        ))
        .await?;
    assert_eq!(places(&stage, 2).await?, expected(&[("a", 0), ("b", 1)]), "a message is no row");
    relay.wait_metric("postrider_events_ignored_total", &[("op", "message")], 4.0).await?;
    let end = stage.sql.query_one("select pg_current_wal_lsn()", &[]).await?.get(0);
    Slot::wait(&stage.sql, stage.name(), "past the messages", LIMIT, |slot| slot.confirmed_flush_lsn >= end)
        .await?;
    stage.expect_empty_queue().await?;
    relay.expect_drain().await
}
