//! The inbox of Postrider: each message handled once, though it is delivered at least once.
//!
//! A broker delivers again whatever was not acknowledged, so a consumer that crashes between its commit and
//! its acknowledgement sees the message twice. The inbox is a table in the consumer's own database: the
//! consumer claims the message in the transaction of its work, and the claim's verdict says whether there is
//! anything to do. Work and claim commit together or not at all; that is all there is to it.
//!
//! ```
//! use postrider_inbox::{Inbox, Message, Verdict};
//!
//! # async fn acknowledge() {}
//! # async fn park() {}
//! # async fn consume(client: &mut tokio_postgres::Client, body: &[u8]) -> anyhow::Result<()> {
//! let inbox = Inbox::new("report-worker");
//! let transaction = client.transaction().await?;
//! match inbox.claim(&transaction, Message::new("E-42").content(body)).await? {
//!     Verdict::Process => {
//!         transaction.execute("update report set counter = counter + 1 where id = 'daily'", &[]).await?;
//!         postrider_inbox::commit(transaction).await?;
//!         acknowledge().await;
//!     }
//!     Verdict::Duplicate | Verdict::Stale => acknowledge().await,
//!     Verdict::Mismatch | Verdict::Early => park().await,
//! }
//! # Ok(())
//! # }
//! # #[tokio::main]
//! # async fn main() -> anyhow::Result<()> {
//! #     let scope = testenv::Scope::shared("doc claim").await?;
//! #     let mut client = scope.connect().await?;
//! #     client.batch_execute(postrider_inbox::INBOX_SQL).await?;
//! #     client.batch_execute("create table report as select 'daily' as id, 6::bigint as counter").await?;
//! #     for _ in 0..2 {
//! #         consume(&mut client, b"body").await?;
//! #         let counter: i64 = client.query_one("select counter from report", &[]).await?.get(0);
//! #         assert_eq!(counter, 7);
//! #     }
//! #     Ok(())
//! # }
//! ```
//!
//! The rules, and what each prevents:
//!
//! - *Claim first, in the work's transaction.* A check before it and a mark after it both have a gap in which
//!   a crash loses or repeats the work.
//! - *Acknowledge after the commit.* Before it, a crash loses the message.
//! - *Commit by [`commit`]*, which tells when there is nothing to commit: a transaction in which a statement has
//!   failed is rolled back by its COMMIT, without an error.
//! - *READ COMMITTED only.* A concurrent copy waits for the first, then has to see what it did; under other
//!   isolation levels it would fail instead ([`Error::NotReadCommitted`]).
//! - *Effects outside the database need two phases* ([`TwoPhase`]): no transaction spans an e-mail, so after
//!   a crash somebody has to ask whether it was sent.
//! - *Content is hashed* ([`Message::content`]): the same id with another content is a bug of the sender, and
//!   taking it for a duplicate would lose a message in silence. Without content there is no such check.
//!
//! With the feature `consumer` (on unless turned off) the [`consumer`] module runs the whole loop on lapin: claim,
//! handle, commit, acknowledge; retry, park, wait for what is missing.
//!
//! With the feature `sqlx` (off unless turned on) the claim can be a part of a transaction of sqlx.
//!
//! The objects in the database are made by [`INBOX_SQL`]; the consumer's login is a member of
//! `postrider_consumer`, which can call the functions and do nothing else.

#[cfg(feature = "consumer")]
pub mod consumer;
mod error;
mod inbox;
#[cfg(feature = "sqlx")]
pub mod sqlx;
mod two_phase;

pub use error::Error;
pub use inbox::{Failed, Inbox, Message, Verdict, commit, content_sha256};
pub use two_phase::{Begun, Fence, TwoPhase};

/// Makes the inbox in a database, or completes it: one script of several statements that an administrator
/// runs.
pub const INBOX_SQL: &str = include_str!("../../../sql/inbox.sql");
