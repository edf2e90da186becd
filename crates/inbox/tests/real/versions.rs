//! The same functions on the oldest and the newest PostgreSQL that is supported.

use std::path::PathBuf;

use anyhow::Result;
use postrider_inbox::{Begun, INBOX_SQL, Inbox, Message, TwoPhase, Verdict};
use testenv::{Postgres, PostgresOptions, install};

use crate::place::{LIMIT, deliver};

async fn check(bin: PathBuf) -> Result<()> {
    let options = PostgresOptions { bin: Some(bin), fsync: false, ..PostgresOptions::default() };
    let server = Postgres::start(options).await?;
    let mut sql = server.connect("postgres").await?;
    sql.batch_execute(INBOX_SQL).await?;
    sql.batch_execute(INBOX_SQL).await?;
    let inbox = Inbox::new("worker");
    let message = Message::new("E-42").content(b"one").sequence("order 1", 1);
    assert_eq!(deliver(&mut sql, &inbox, message, "").await?, Verdict::Process);
    assert_eq!(deliver(&mut sql, &inbox, message, "").await?, Verdict::Duplicate);
    assert_eq!(deliver(&mut sql, &inbox, message.content(b"two"), "").await?, Verdict::Mismatch);
    let later = Message::new("E-44").sequence("order 1", 3);
    assert_eq!(deliver(&mut sql, &inbox, later, "").await?, Verdict::Early);
    inbox.resynchronise(&sql, "", "order 1", 3).await?;
    assert_eq!(deliver(&mut sql, &inbox, later, "").await?, Verdict::Process);
    assert!(inbox.record_failure(&sql, Message::new("E-45"), "no paper").await?.is_some());
    let two = TwoPhase::new(Inbox::new("mailer"), LIMIT);
    let Begun::Process(fence) = two.begin(&sql, message).await? else { anyhow::bail!("it is new") };
    two.extend(&sql, &fence).await?;
    two.complete(&sql, &fence, Some("sent")).await?;
    assert_eq!(two.begin(&sql, message).await?, Begun::Duplicate);
    assert_eq!(inbox.prune(&sql, std::time::Duration::from_secs(22 * 24 * 3600), 100).await?, 0);
    Ok(())
}

#[tokio::test]
async fn it_works_on_postgresql_14() -> Result<()> {
    check(install::postgres_14()?).await
}

#[tokio::test]
async fn it_works_on_postgresql_18() -> Result<()> {
    check(install::postgres_18()?).await
}
