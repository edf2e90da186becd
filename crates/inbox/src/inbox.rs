//! One phase: the claim in the consumer's own transaction.
//!
//! Invariant: [`Verdict::Process`] and the work it stands for become true with the same commit.

use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Transaction};

use crate::error::Error;

/// The claim: consumer, id, source, aggregate, number, whether it starts at one, hash.
pub(crate) const CLAIM: &str = "select postrider.inbox_claim($1, $2, $3, null, $4, $5, $6, $7)";

/// What to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Do the work in this transaction, commit, then acknowledge.
    Process,
    /// It was completed before: acknowledge, nothing else.
    Duplicate,
    /// The same id was completed with other content: park it and raise an alarm. Nothing was written.
    Mismatch,
    /// Its number is not above the last one handled of its aggregate: acknowledge.
    Stale,
    /// Numbers before it are missing: wait, resynchronise or park it. Nothing was written.
    Early,
}

/// A message as the inbox knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    id: &'a str,
    source: &'a str,
    content_sha256: Option<[u8; 32]>,
    sequence: Option<(&'a str, i64)>,
}

impl Verdict {
    /// By the word of `inbox_claim`.
    pub(crate) fn parse(word: &str) -> Result<Self, Error> {
        match word {
            "process" => Ok(Self::Process),
            "duplicate" => Ok(Self::Duplicate),
            "mismatch" => Ok(Self::Mismatch),
            "stale" => Ok(Self::Stale),
            "early" => Ok(Self::Early),
            other => Err(Error::Unknown(other.to_owned())),
        }
    }
}

impl<'a> Message<'a> {
    /// A message by its id, 1 to 255 bytes: AMQP's `message_id`, or the key of the business (an order's
    /// number) where the same thing can come under two ids.
    pub const fn new(id: &'a str) -> Self {
        Self { id, source: "", content_sha256: None, sequence: None }
    }

    /// Tells apart senders whose ids could meet; the default is one of no name.
    #[must_use]
    pub fn source(mut self, source: &'a str) -> Self {
        self.source = source;
        self
    }

    /// Remembers a hash of the content, so that the same id with another content is seen
    /// ([`Verdict::Mismatch`]).
    #[must_use]
    pub fn content(mut self, content: &[u8]) -> Self {
        self.content_sha256 = Some(content_sha256(content));
        self
    }

    /// Its aggregate (1 to 1000 bytes), and its number in it: 1, 2, 3 and so on, without gaps.
    #[must_use]
    pub fn sequence(mut self, aggregate: &'a str, seq: i64) -> Self {
        self.sequence = Some((aggregate, seq));
        self
    }

    pub(crate) fn id_and_source(&self) -> (&'a str, &'a str) {
        (self.id, self.source)
    }

    pub(crate) fn aggregate_and_seq(&self) -> (Option<&'a str>, Option<i64>) {
        self.sequence.unzip()
    }

    pub(crate) fn hash(&self) -> Option<&[u8]> {
        self.content_sha256.as_ref().map(<[u8; 32]>::as_slice)
    }
}

/// The hash that the inbox keeps of a content: SHA-256, the same as `sha256(content)` in Postgres.
pub fn content_sha256(content: &[u8]) -> [u8; 32] {
    Sha256::digest(content).into()
}

/// Commits the transaction of a message's work, after which the message may be acknowledged.
///
/// Postgres answers the COMMIT of a transaction in which a statement has failed with a ROLLBACK, and no error
/// (manual page of COMMIT; `Transaction::commit` does not look). Work that has kept such an error to itself
/// would be acknowledged and not be there, so a statement goes before, which such a transaction refuses. It is one
/// that is also refused where there is no transaction, because the work has ended it by a statement of its own.
///
/// # Errors
/// What Postgres says, with SQLSTATE 25P02 or 25P01 for such a transaction: the work has failed.
pub async fn commit(transaction: Transaction<'_>) -> Result<(), tokio_postgres::Error> {
    transaction.batch_execute("savepoint postrider_commit").await?;
    transaction.commit().await
}

/// Postgres takes no NUL in a text.
pub(crate) fn without_nul(text: &str) -> String {
    text.replace('\0', " ")
}

/// How often the work of a message has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// How many attempts have failed.
    pub attempts: i32,
    /// When the first one did, by the database's clock.
    pub first_at: SystemTime,
}

/// The inbox of one consumer: two consumers of one message do not know of each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inbox {
    consumer: String,
    start_at_one: bool,
}

impl Inbox {
    /// The inbox of the consumer of this name, 1 to 255 bytes; all its processes share it.
    pub fn new(consumer: impl Into<String>) -> Self {
        Self { consumer: consumer.into(), start_at_one: false }
    }

    /// Takes 1 for the first number of each aggregate. Without this it is the first that is seen, which suits
    /// a consumer that joins late.
    #[must_use]
    pub fn start_at_one(mut self) -> Self {
        self.start_at_one = true;
        self
    }

    /// The consumer's name.
    pub fn consumer(&self) -> &str {
        &self.consumer
    }

    #[cfg(feature = "sqlx")]
    pub(crate) fn starts_at_one(&self) -> bool {
        self.start_at_one
    }

    /// Whether messages could be claimed now: claims one that is none, and rolls it back.
    #[cfg(feature = "consumer")]
    pub(crate) async fn look(&self, client: &mut Client) -> Result<(), Error> {
        let level = tokio_postgres::IsolationLevel::ReadCommitted;
        let transaction = client.build_transaction().isolation_level(level).start().await?;
        self.claim(&transaction, Message::new("postrider-inbox: no message")).await?;
        Ok(transaction.rollback().await?)
    }

    /// Claims a message: the first statement of the transaction, one round trip. A concurrent copy waits here
    /// until the first one's transaction ends.
    pub async fn claim(&self, transaction: &Transaction<'_>, message: Message<'_>) -> Result<Verdict, Error> {
        let (aggregate, seq) = message.aggregate_and_seq();
        let verdict = transaction
            .query_typed_one(
                CLAIM,
                &[
                    (&self.consumer, Type::TEXT),
                    (&message.id, Type::TEXT),
                    (&message.source, Type::TEXT),
                    (&aggregate, Type::TEXT),
                    (&seq, Type::INT8),
                    (&self.start_at_one, Type::BOOL),
                    (&message.hash(), Type::BYTEA),
                ],
            )
            .await?;
        Verdict::parse(verdict.try_get(0)?)
    }

    /// Remembers that the work failed, after its transaction was rolled back. None if the message is completed
    /// after all, because the commit came through and its answer did not.
    pub async fn record_failure(
        &self,
        client: &Client,
        message: Message<'_>,
        error: &str,
    ) -> Result<Option<Failed>, Error> {
        let error = without_nul(error);
        match self.record(client, message, &error).await {
            // Not every database can hold every character; the failure must be counted nevertheless.
            Err(Error::Argument(_)) if !error.is_ascii() => {
                self.record(client, message, &error.replace(|c: char| !c.is_ascii(), "?")).await
            }
            recorded => recorded,
        }
    }

    async fn record(
        &self,
        client: &Client,
        message: Message<'_>,
        error: &str,
    ) -> Result<Option<Failed>, Error> {
        let failed = client
            .query_typed_one(
                "select attempts, first_failed_at from postrider.inbox_record_failure($1, $2, $3, $4)",
                &[
                    (&self.consumer, Type::TEXT),
                    (&message.id, Type::TEXT),
                    (&error, Type::TEXT),
                    (&message.source, Type::TEXT),
                ],
            )
            .await?;
        Ok(match failed.try_get(0)? {
            Some(attempts) => Some(Failed { attempts, first_at: failed.try_get(1)? }),
            None => None,
        })
    }

    /// Goes on with an aggregate behind a gap: the next number to be handled is `seq`. Never goes back.
    pub async fn resynchronise(
        &self,
        client: &Client,
        source: &str,
        aggregate: &str,
        seq: i64,
    ) -> Result<(), Error> {
        client
            .query_typed_one(
                "select postrider.inbox_resynchronise($1, $2, $3, $4)",
                &[
                    (&self.consumer, Type::TEXT),
                    (&aggregate, Type::TEXT),
                    (&seq, Type::INT8),
                    (&source, Type::TEXT),
                ],
            )
            .await?;
        Ok(())
    }

    /// Deletes at most `batch` of this consumer's completed rows that are older than that, by the consumer's
    /// own activity: a pause counts for an hour at most. Returns how many; call it until it is 0.
    ///
    /// # Errors
    /// [`Error::InsideWindow`] if `older_than` is shorter than the duplicate window (22 days, unless
    /// `postrider.inbox_window` says otherwise).
    pub async fn prune(&self, client: &Client, older_than: Duration, batch: i32) -> Result<i64, Error> {
        let pruned = client
            .query_typed_one(
                "select postrider.inbox_prune(make_interval(secs => $1), $2, $3)",
                &[
                    (&older_than.as_secs_f64(), Type::FLOAT8),
                    (&batch, Type::INT4),
                    (&self.consumer, Type::TEXT),
                ],
            )
            .await?;
        Ok(pruned.try_get(0)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn claimed(inbox: Inbox, mut client: Client) -> Result<(), Error> {
        let id = String::from("E-42");
        let transaction = client.transaction().await?;
        inbox.claim(&transaction, Message::new(&id).sequence(&id, 1)).await?;
        transaction.rollback().await?;
        inbox.record_failure(&client, Message::new(&id), "no paper").await?;
        Ok(())
    }

    #[test]
    fn a_claim_can_be_awaited_in_a_task_of_its_own() {
        fn takes<F: Future + Send>(_: fn(Inbox, Client) -> F) {}
        takes(claimed);
    }

    #[test]
    fn the_hash_is_sha256() {
        let hash =
            content_sha256(b"abc").iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        assert_eq!(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
