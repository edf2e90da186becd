//! The scenarios that every consumer meets, with and without the inbox.

use anyhow::{Context as _, Result};
use postrider_inbox::{Inbox, Message, Verdict};
use testenv::Sql;

use crate::place::{Place, deliver, pid};

const REPORT: &str = "create table report (id text primary key, counter bigint not null);
    insert into report values ('daily', 6)";
const COUNT: &str = "update report set counter = counter + 1 where id = 'daily'";
const COUNTER: &str = "select counter from report where id = 'daily'";

const STOCK: &str = "create table stock (sku text primary key, reserved bigint not null);
    insert into stock values ('S-1', 0);
    create table handled (message_id text primary key)";
const RESERVE: &str = "update stock set reserved = reserved + 2 where sku = 'S-1'";
const RESERVED: &str = "select reserved from stock where sku = 'S-1'";

#[tokio::test]
async fn a_redelivered_message_counts_once() -> Result<()> {
    let place = Place::new("report", REPORT).await?;
    let mut sql = place.connect().await?;
    let inbox = Inbox::new("report-worker");
    assert_eq!(deliver(&mut sql, &inbox, Message::new("E-42"), COUNT).await?, Verdict::Process);
    assert_eq!(place.number(COUNTER).await?, 7);
    assert_eq!(deliver(&mut sql, &inbox, Message::new("E-42"), COUNT).await?, Verdict::Duplicate);
    assert_eq!(place.number(COUNTER).await?, 7);
    Ok(())
}

#[tokio::test]
async fn a_crash_before_the_commit_leaves_nothing_and_the_next_delivery_counts() -> Result<()> {
    let place = Place::new("report crash", REPORT).await?;
    let inbox = Inbox::new("report-worker");
    let mut first = place.connect().await?;
    let victim = pid(&first).await?;
    let transaction = first.transaction().await?;
    assert_eq!(inbox.claim(&transaction, Message::new("E-42")).await?, Verdict::Process);
    transaction.batch_execute(COUNT).await?;
    place.kill(victim).await?;
    assert_eq!(place.number(COUNTER).await?, 6);
    assert_eq!(place.number("select count(*) from postrider.inbox").await?, 0);
    let mut second = place.connect().await?;
    assert_eq!(deliver(&mut second, &inbox, Message::new("E-42"), COUNT).await?, Verdict::Process);
    assert_eq!(place.number(COUNTER).await?, 7);
    Ok(())
}

#[tokio::test]
async fn stock_is_reserved_twice_without_the_inbox_and_once_with_it() -> Result<()> {
    let place = Place::new("stock", STOCK).await?;
    let mut sql = place.connect().await?;
    for _ in 0..2 {
        sql.batch_execute(RESERVE).await?;
    }
    assert_eq!(place.number(RESERVED).await?, 4, "naive");
    sql.batch_execute("update stock set reserved = 0").await?;
    let inbox = Inbox::new("stock-worker");
    let mut verdicts = Vec::new();
    for _ in 0..2 {
        verdicts.push(deliver(&mut sql, &inbox, Message::new("E-42"), RESERVE).await?);
    }
    assert_eq!(verdicts, [Verdict::Process, Verdict::Duplicate]);
    assert_eq!(place.number(RESERVED).await?, 2);
    Ok(())
}

#[tokio::test]
async fn a_check_before_and_a_mark_after_lose_to_a_crash_and_a_claim_does_not() -> Result<()> {
    let place = Place::new("check then process", STOCK).await?;
    let mut first = place.connect().await?;
    let mut second = place.connect().await?;
    assert!(check_then_process(&first).await?);
    // The crash, before the mark is made; then the redelivery.
    place.kill(pid(&first).await?).await?;
    assert!(check_then_process(&second).await?);
    assert_eq!(place.number(RESERVED).await?, 4, "check, then process");

    second.batch_execute("update stock set reserved = 0").await?;
    first = place.connect().await?;
    let inbox = Inbox::new("stock-worker");
    assert_eq!(deliver(&mut first, &inbox, Message::new("E-42"), RESERVE).await?, Verdict::Process);
    // The crash, after the commit and before the acknowledgement; then the redelivery.
    place.kill(pid(&first).await?).await?;
    assert_eq!(deliver(&mut second, &inbox, Message::new("E-42"), RESERVE).await?, Verdict::Duplicate);
    assert_eq!(place.number(RESERVED).await?, 2);
    Ok(())
}

/// What many a consumer does, up to the mark that it makes at last: whether it worked.
async fn check_then_process(sql: &Sql) -> Result<bool> {
    let seen = sql.query_opt("select from handled where message_id = 'E-42'", &[]).await?;
    if seen.is_none() {
        sql.batch_execute(RESERVE).await?;
    }
    Ok(seen.is_none())
}

#[tokio::test]
async fn two_consumers_of_one_message_do_not_silence_each_other() -> Result<()> {
    let place = Place::new("two consumers", REPORT).await?;
    let mut sql = place.connect().await?;
    for consumer in ["report-worker", "mail-worker"] {
        let inbox = Inbox::new(consumer);
        let verdict = deliver(&mut sql, &inbox, Message::new("E-42"), COUNT).await?;
        assert_eq!(verdict, Verdict::Process, "{consumer}");
    }
    let other = Message::new("E-42").source("another shop");
    assert_eq!(deliver(&mut sql, &Inbox::new("report-worker"), other, COUNT).await?, Verdict::Process);
    assert_eq!(place.number(COUNTER).await?, 9);
    Ok(())
}

#[tokio::test]
async fn one_order_under_two_message_ids_is_one_by_its_business_key() -> Result<()> {
    let place = Place::new("business key", STOCK).await?;
    let mut sql = place.connect().await?;
    let inbox = Inbox::new("stock-worker");
    for message_id in ["E-42", "E-43"] {
        deliver(&mut sql, &inbox, Message::new(message_id), RESERVE).await?;
    }
    assert_eq!(place.number(RESERVED).await?, 4, "by the ids");
    sql.batch_execute("update stock set reserved = 0").await?;
    let mut verdicts = Vec::new();
    for _message_id in ["E-42", "E-43"] {
        let order = Message::new("order 1001").source("orders");
        verdicts.push(deliver(&mut sql, &inbox, order, RESERVE).await?);
    }
    assert_eq!(verdicts, [Verdict::Process, Verdict::Duplicate]);
    assert_eq!(place.number(RESERVED).await?, 2);
    Ok(())
}

#[tokio::test]
async fn another_content_under_the_same_id_is_a_mismatch_and_overwrites_nothing() -> Result<()> {
    let place = Place::new("mismatch", REPORT).await?;
    let mut sql = place.connect().await?;
    let inbox = Inbox::new("report-worker");
    let rows = "select md5(string_agg(i::text, '')) from postrider.inbox i";
    let first = Message::new("E-42").content(b"one");
    assert_eq!(deliver(&mut sql, &inbox, first, COUNT).await?, Verdict::Process);
    let before: String = sql.query_one(rows, &[]).await?.get(0);
    let other = Message::new("E-42").content(b"two");
    assert_eq!(deliver(&mut sql, &inbox, other, COUNT).await?, Verdict::Mismatch);
    assert_eq!(deliver(&mut sql, &inbox, first, COUNT).await?, Verdict::Duplicate);
    // Without content there is nothing to compare.
    assert_eq!(deliver(&mut sql, &inbox, Message::new("E-42"), COUNT).await?, Verdict::Duplicate);
    assert_eq!(sql.query_one(rows, &[]).await?.get::<_, String>(0), before);
    assert_eq!(place.number(COUNTER).await?, 7);

    // Postgres hashes as we do: another language gives the content itself.
    let call = "select postrider.inbox_claim('report-worker', 'E-42', content => $1::bytea)";
    for (content, verdict) in [(&b"one"[..], "duplicate"), (b"two", "mismatch")] {
        assert_eq!(sql.query_one(call, &[&content]).await?.get::<_, &str>(0), verdict);
    }
    Ok(())
}

#[tokio::test]
async fn a_failed_message_is_claimed_again_and_its_attempts_are_counted() -> Result<()> {
    let place = Place::new("failed", REPORT).await?;
    let mut sql = place.connect().await?;
    let inbox = Inbox::new("report-worker");
    let message = Message::new("E-42").content(b"one");
    let mut first = None;
    for attempt in 1..=3 {
        let transaction = sql.transaction().await?;
        assert_eq!(inbox.claim(&transaction, message).await?, Verdict::Process);
        transaction.batch_execute(COUNT).await?;
        transaction.rollback().await?;
        let failed = inbox.record_failure(&sql, message, "no\0 paper").await?.context("it has failed")?;
        assert_eq!(failed.attempts, attempt);
        assert_eq!(*first.get_or_insert(failed.first_at), failed.first_at);
    }
    let row =
        sql.query_one("select status, attempts, last_error, completed_at from postrider.inbox", &[]).await?;
    let (status, attempts, error): (&str, i32, &str) = (row.get(0), row.get(1), row.get(2));
    assert_eq!((status, attempts, error), ("failed", 3, "no  paper"));
    assert!(row.get::<_, Option<std::time::SystemTime>>(3).is_none());
    assert_eq!(deliver(&mut sql, &inbox, message, COUNT).await?, Verdict::Process);
    assert_eq!(place.number(COUNTER).await?, 7);
    // The commit came through, its answer did not: nothing has failed.
    assert_eq!(inbox.record_failure(&sql, message, "the connection was lost").await?, None);
    assert_eq!(deliver(&mut sql, &inbox, message, COUNT).await?, Verdict::Duplicate);
    let row = sql.query_one("select status, attempts, last_error from postrider.inbox", &[]).await?;
    assert_eq!((row.get(0), row.get(1), row.get(2)), ("completed", 4, "no  paper"));
    Ok(())
}
