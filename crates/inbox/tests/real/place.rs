//! A database with an inbox in it, and what the tests ask of it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use postrider_inbox::{INBOX_SQL, Inbox, Message, Verdict};
use testenv::{Scope, Sql, eventually};

/// Generous: never measured, only there so that a test that hangs ends.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Place {
    pub(crate) scope: Scope,
}

impl Place {
    /// A fresh database with the inbox, and the tables that the test's work writes to.
    pub(crate) async fn new(test: &str, tables: &str) -> Result<Self> {
        let scope = Scope::shared(test).await?;
        let sql = scope.connect().await?;
        sql.batch_execute(INBOX_SQL).await.context("install the inbox")?;
        sql.batch_execute(tables).await.context("create the test's tables")?;
        Ok(Self { scope })
    }

    pub(crate) async fn connect(&self) -> Result<Sql> {
        self.scope.connect().await
    }

    /// One number that the database answers.
    pub(crate) async fn number(&self, query: &str) -> Result<i64> {
        let row = self.connect().await?.query_one(query, &[]).await;
        Ok(row.with_context(|| format!("ask {query}"))?.get(0))
    }

    /// Ends a session as a crash of its client would: nothing of its transaction stays.
    pub(crate) async fn kill(&self, pid: i32) -> Result<()> {
        let sql = self.connect().await?;
        let killed: bool = sql.query_one("select pg_terminate_backend($1)", &[&pid]).await?.get(0);
        ensure!(killed, "session {pid} was not there");
        eventually(format!("session {pid} to end"), LIMIT, async || {
            let there = sql.query_opt("select from pg_stat_activity where pid = $1", &[&pid]).await?;
            Ok(there.is_none().then_some(()))
        })
        .await
    }

    /// Waits until a session waits for another transaction.
    pub(crate) async fn blocked(&self, pid: i32) -> Result<()> {
        let sql = self.connect().await?;
        eventually(format!("session {pid} to wait"), LIMIT, async || {
            let row = sql.query_one("select cardinality(pg_blocking_pids($1))", &[&pid]).await?;
            Ok((row.get::<_, i32>(0) > 0).then_some(()))
        })
        .await
    }
}

/// The server's process for this session.
pub(crate) async fn pid(sql: &Sql) -> Result<i32> {
    Ok(sql.query_one("select pg_backend_pid()", &[]).await?.get(0))
}

/// What a consumer does with each delivery: claim, work if told to, commit.
pub(crate) async fn deliver(
    sql: &mut Sql,
    inbox: &Inbox,
    message: Message<'_>,
    work: &str,
) -> Result<Verdict> {
    let transaction = sql.transaction().await?;
    let verdict = inbox.claim(&transaction, message).await?;
    if verdict == Verdict::Process {
        transaction.batch_execute(work).await?;
    }
    transaction.commit().await?;
    Ok(verdict)
}
