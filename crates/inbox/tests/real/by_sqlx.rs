//! The claim in transactions of sqlx: the same verdicts, the same errors.

use anyhow::{Context as _, Result};
use postrider_inbox::{Error, Inbox, Message, Verdict};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::place::Place;

const REPORT: &str = "create table report as select 6::bigint as counter";
const WORK: &str = "update report set counter = counter + 1";

async fn pool(place: &Place) -> Result<PgPool> {
    PgPoolOptions::new().max_connections(2).connect(&place.scope.admin_url()).await.context("connect by sqlx")
}

async fn deliver(pool: &PgPool, inbox: &Inbox, message: Message<'_>, crash: bool) -> Result<Verdict> {
    let mut transaction = pool.begin().await?;
    let verdict = inbox.claim_sqlx(&mut transaction, message).await?;
    if verdict == Verdict::Process {
        sqlx::query(WORK).execute(&mut *transaction).await?;
    }
    if !crash {
        postrider_inbox::sqlx::commit(transaction).await?;
    }
    Ok(verdict)
}

#[tokio::test]
async fn a_message_counts_once() -> Result<()> {
    let place = Place::new("sqlx once", REPORT).await?;
    let (pool, inbox) = (pool(&place).await?, Inbox::new("report-worker"));
    let message = Message::new("E-42").content(b"body");
    for (crash, expected, counter) in
        [(true, Verdict::Process, 6), (false, Verdict::Process, 7), (false, Verdict::Duplicate, 7)]
    {
        assert_eq!(deliver(&pool, &inbox, message, crash).await?, expected);
        assert_eq!(place.number("select counter from report").await?, counter);
    }
    let other = Message::new("E-42").content(b"another body");
    assert_eq!(deliver(&pool, &inbox, other, false).await?, Verdict::Mismatch);
    // What one client has claimed is a duplicate for the other.
    let mut sql = place.connect().await?;
    let transaction = sql.transaction().await?;
    assert_eq!(inbox.claim(&transaction, message).await?, Verdict::Duplicate);
    Ok(())
}

#[tokio::test]
async fn numbers_and_failures_are_the_same() -> Result<()> {
    let place = Place::new("sqlx numbers", REPORT).await?;
    let (pool, inbox) = (pool(&place).await?, Inbox::new("worker").start_at_one());
    for (seq, expected) in
        [(2, Verdict::Early), (1, Verdict::Process), (2, Verdict::Process), (4, Verdict::Early)]
    {
        let id = format!("E-{seq}");
        let message = Message::new(&id).sequence("order/1", seq);
        assert_eq!(deliver(&pool, &inbox, message, false).await?, expected, "{seq}");
    }
    let stale = Message::new("late").sequence("order/1", 1);
    assert_eq!(deliver(&pool, &inbox, stale, false).await?, Verdict::Stale);

    let failing = Message::new("E-3");
    let first = inbox.record_failure_sqlx(&pool, failing, "no\0paper").await?.context("count it")?;
    let second = inbox.record_failure_sqlx(&pool, failing, "no paper").await?.context("count it")?;
    assert_eq!((first.attempts, second.attempts), (1, 2));
    let sql = place.connect().await?;
    let third = inbox.record_failure(&sql, failing, "no paper").await?.context("count it")?;
    let apart = third.first_at.duration_since(second.first_at).unwrap_or_else(|error| error.duration());
    assert!(apart.as_micros() <= 1, "{apart:?}");
    assert_eq!(inbox.record_failure_sqlx(&pool, Message::new("E-1"), "late").await?, None, "it is completed");
    Ok(())
}

#[tokio::test]
async fn errors_are_told_apart() -> Result<()> {
    let place = Place::new("sqlx errors", REPORT).await?;
    let (pool, inbox) = (pool(&place).await?, Inbox::new("worker"));
    for id in ["", "a\0b"] {
        let error = deliver(&pool, &inbox, Message::new(id), false).await.expect_err("no such id");
        let error = error.downcast_ref();
        assert!(matches!(error, Some(Error::Argument(_))), "{id:?}: {error:?}");
    }
    let mut transaction = pool.begin().await?;
    sqlx::query("set transaction isolation level repeatable read").execute(&mut *transaction).await?;
    let error = inbox.claim_sqlx(&mut transaction, Message::new("E-1")).await.expect_err("not so");
    assert!(matches!(&error, Error::NotReadCommitted(text) if text.contains("; begin it with")), "{error:?}");
    drop(transaction);

    // Work that keeps an error of its transaction to itself.
    let mut transaction = pool.begin().await?;
    assert_eq!(inbox.claim_sqlx(&mut transaction, Message::new("E-1")).await?, Verdict::Process);
    sqlx::query("select 1 / 0").execute(&mut *transaction).await.expect_err("divide by zero");
    let error = postrider_inbox::sqlx::commit(transaction).await.expect_err("nothing to commit");
    let code = error.as_database_error().and_then(|error| error.code().map(String::from));
    assert_eq!(code.as_deref(), Some("25P02"));

    let sql = place.connect().await?;
    sql.batch_execute("drop schema postrider cascade").await?;
    let error = deliver(&pool, &inbox, Message::new("E-1"), false).await.expect_err("no inbox");
    assert!(matches!(error.downcast_ref(), Some(Error::NotInstalled(_))), "{error:?}");
    Ok(())
}
