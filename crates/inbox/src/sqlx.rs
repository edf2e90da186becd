//! The same in a transaction of sqlx: the claim, the commit, and the failure after a rollback.
//!
//! ```
//! use postrider_inbox::{Inbox, Message, Verdict};
//!
//! # async fn acknowledge() {}
//! # async fn park() {}
//! # async fn consume(pool: &sqlx::PgPool, body: &[u8]) -> anyhow::Result<()> {
//! let inbox = Inbox::new("report-worker");
//! let mut transaction = pool.begin().await?;
//! match inbox.claim_sqlx(&mut transaction, Message::new("E-42").content(body)).await? {
//!     Verdict::Process => {
//!         sqlx::query("update report set counter = counter + 1 where id = 'daily'")
//!             .execute(&mut *transaction)
//!             .await?;
//!         postrider_inbox::sqlx::commit(transaction).await?;
//!         acknowledge().await;
//!     }
//!     Verdict::Duplicate | Verdict::Stale => acknowledge().await,
//!     Verdict::Mismatch | Verdict::Early => park().await,
//! }
//! # Ok(())
//! # }
//! # #[tokio::main]
//! # async fn main() -> anyhow::Result<()> {
//! #     let scope = testenv::Scope::shared("doc sqlx").await?;
//! #     let client = scope.connect().await?;
//! #     client.batch_execute(postrider_inbox::INBOX_SQL).await?;
//! #     client.batch_execute("create table report as select 'daily' as id, 6::bigint as counter").await?;
//! #     let pool = sqlx::PgPool::connect(&scope.admin_url()).await?;
//! #     for _ in 0..2 {
//! #         consume(&pool, b"body").await?;
//! #         let counter: i64 = client.query_one("select counter from report", &[]).await?.get(0);
//! #         assert_eq!(counter, 7);
//! #     }
//! #     Ok(())
//! # }
//! ```

use std::time::{Duration, UNIX_EPOCH};

use sqlx::{Executor as _, PgExecutor, Postgres, Row as _, Transaction};

use crate::error::Error;
use crate::inbox::{CLAIM, Failed, Inbox, Message, Verdict, without_nul};

impl Inbox {
    /// [`Inbox::claim`] in a transaction of sqlx: the first statement of it. It is one round trip, or two where the
    /// connection has not prepared it yet.
    pub async fn claim_sqlx(
        &self,
        transaction: &mut Transaction<'_, Postgres>,
        message: Message<'_>,
    ) -> Result<Verdict, Error> {
        let (aggregate, seq) = message.aggregate_and_seq();
        let (id, source) = message.id_and_source();
        let verdict = sqlx::query(CLAIM)
            .bind(self.consumer())
            .bind(id)
            .bind(source)
            .bind(aggregate)
            .bind(seq)
            .bind(self.starts_at_one())
            .bind(message.hash())
            .fetch_one(&mut **transaction)
            .await?;
        Verdict::parse(verdict.try_get(0)?)
    }

    /// [`Inbox::record_failure`] by sqlx: after the work's transaction was rolled back, outside of any.
    pub async fn record_failure_sqlx(
        &self,
        connection: impl PgExecutor<'_>,
        message: Message<'_>,
        error: &str,
    ) -> Result<Option<Failed>, Error> {
        let (id, source) = message.id_and_source();
        // Without a type for times, which are another feature of sqlx, of several.
        let failed = sqlx::query(
            "select attempts, extract(epoch from first_failed_at)::float8
             from postrider.inbox_record_failure($1, $2, $3, $4)",
        )
        .bind(self.consumer())
        .bind(id)
        .bind(without_nul(error))
        .bind(source)
        .fetch_one(connection)
        .await?;
        Ok(match failed.try_get(0)? {
            Some(attempts) => {
                let first_at = UNIX_EPOCH + Duration::from_secs_f64(failed.try_get(1)?);
                Some(Failed { attempts, first_at })
            }
            None => None,
        })
    }
}

/// [`commit`](crate::commit) of a transaction of sqlx, whose own `commit` does not look either.
///
/// # Errors
/// What Postgres says, with SQLSTATE 25P02 for a transaction in which a statement has failed, 25P01 for one that the work has ended.
pub async fn commit(mut transaction: Transaction<'_, Postgres>) -> Result<(), sqlx::Error> {
    transaction.execute("savepoint postrider_commit").await?;
    transaction.commit().await
}
