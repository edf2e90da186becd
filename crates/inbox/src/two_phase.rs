//! Two phases: for effects outside the database, which no transaction undoes.
//!
//! Invariant: two workers never hold the same fence, and only the holder of the last one can complete.

use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::error::Error;
use crate::inbox::{Inbox, Message, without_nul};

/// What to do with a message whose effect lies outside the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Do the work, then [`TwoPhase::complete`]; or [`TwoPhase::fail`] if it had no effect.
    Process(Fence),
    /// It was completed before: acknowledge, nothing else.
    Duplicate,
    /// The same id came with other content: park it and raise an alarm. Nothing was written.
    Mismatch,
    /// Another worker has it: come back later.
    InProgress,
    /// A worker had it and was not heard of again. Ask the other system, by its idempotency key, or a person
    /// whether the effect took place; then complete or fail it.
    Reconcile(Fence),
}

/// The right to say what became of a message; void as soon as another worker takes the message over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    id: String,
    source: String,
    number: i64,
}

impl Fence {
    /// Its number, which grows each time the message is handed out: for systems that take one.
    pub fn number(&self) -> i64 {
        self.number
    }
}

/// The inbox of one consumer, for effects outside the database. Each call is a transaction of its own.
///
/// ```
/// # use postrider_inbox::{Begun, Inbox, Message, TwoPhase};
/// # use std::cell::Cell;
/// # thread_local!(static SENT: Cell<u32> = Cell::new(0));
/// # async fn send_mail(key: &str) -> anyhow::Result<String> {
/// #     SENT.with(|sent| sent.set(sent.get() + 1));
/// #     Ok(key.to_owned())
/// # }
/// # async fn was_sent(key: &str) -> anyhow::Result<Option<String>> {
/// #     Ok(SENT.with(|sent| sent.get() > 0).then(|| key.to_owned()))
/// # }
/// # async fn consume(client: &tokio_postgres::Client) -> anyhow::Result<()> {
/// let inbox = TwoPhase::new(Inbox::new("mailer"), std::time::Duration::from_secs(60));
/// match inbox.begin(client, Message::new("E-42")).await? {
///     Begun::Process(fence) => {
///         let receipt = send_mail("E-42").await?;
///         inbox.complete(client, &fence, Some(&receipt)).await?;
///     }
///     Begun::Reconcile(fence) => match was_sent("E-42").await? {
///         Some(receipt) => inbox.complete(client, &fence, Some(&receipt)).await?,
///         None => drop(inbox.fail(client, &fence, "the worker was lost before it sent").await?),
///     },
///     Begun::Duplicate => {}
///     Begun::InProgress => { /* wait, then ask again */ }
///     Begun::Mismatch => { /* park */ }
/// }
/// # Ok(())
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> anyhow::Result<()> {
/// #     let scope = testenv::Scope::shared("doc two phases").await?;
/// #     let client = scope.connect().await?;
/// #     client.batch_execute(postrider_inbox::INBOX_SQL).await?;
/// #     for _ in 0..2 {
/// #         consume(&client).await?;
/// #         assert_eq!(SENT.with(Cell::get), 1);
/// #     }
/// #     Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TwoPhase {
    inbox: Inbox,
    lease: Duration,
    owner: Option<String>,
}

impl TwoPhase {
    /// Leases each message for so long: what is not completed by then is [`Begun::Reconcile`] for the next
    /// worker.
    pub fn new(inbox: Inbox, lease: Duration) -> Self {
        Self { inbox, lease, owner: None }
    }

    /// How operators shall know this worker; the default is its `application_name` and the server's process
    /// id.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Asks for the message. Its number in an aggregate is not looked at.
    pub async fn begin(&self, client: &Client, message: Message<'_>) -> Result<Begun, Error> {
        let (id, source) = message.id_and_source();
        let begun = client
            .query_typed_one(
                "select verdict, fence
             from postrider.inbox_begin($1, $2, $3, null, make_interval(secs => $4), $5, $6)",
                &[
                    (&self.inbox.consumer(), Type::TEXT),
                    (&id, Type::TEXT),
                    (&source, Type::TEXT),
                    (&self.lease.as_secs_f64(), Type::FLOAT8),
                    (&self.owner, Type::TEXT),
                    (&message.hash(), Type::BYTEA),
                ],
            )
            .await?;
        let fence = || -> Result<Fence, Error> {
            Ok(Fence { id: id.to_owned(), source: source.to_owned(), number: begun.try_get(1)? })
        };
        match begun.try_get(0)? {
            "process" => Ok(Begun::Process(fence()?)),
            "duplicate" => Ok(Begun::Duplicate),
            "mismatch" => Ok(Begun::Mismatch),
            "in_progress" => Ok(Begun::InProgress),
            "reconcile" => Ok(Begun::Reconcile(fence()?)),
            other => Err(Error::Unknown(other.to_owned())),
        }
    }

    /// The effect took place. Again with the same fence it changes nothing, so that it can be asked again
    /// after a lost connection.
    ///
    /// # Errors
    /// [`Error::StaleFence`] if another worker has taken the message over.
    pub async fn complete(&self, client: &Client, fence: &Fence, outcome: Option<&str>) -> Result<(), Error> {
        let call = "select postrider.inbox_complete($1, $2, $3, $4, $5)";
        self.tell(client, call, fence, (&outcome, Type::TEXT)).await.map(drop)
    }

    /// The work failed and had no effect: the next worker that asks gets it. Returns how many attempts were
    /// begun.
    ///
    /// # Errors
    /// [`Error::StaleFence`] if another worker has taken the message over.
    pub async fn fail(&self, client: &Client, fence: &Fence, error: &str) -> Result<i32, Error> {
        let error = without_nul(error);
        let call = "select postrider.inbox_fail($1, $2, $3, $4, $5)";
        let begun = self.tell(client, call, fence, (&error, Type::TEXT)).await?;
        Ok(begun.try_get(0)?)
    }

    /// The work takes longer: the lease begins anew.
    ///
    /// # Errors
    /// [`Error::StaleFence`] if another worker has taken the message over: stop.
    pub async fn extend(&self, client: &Client, fence: &Fence) -> Result<(), Error> {
        let call = "select postrider.inbox_extend($1, $2, $3, make_interval(secs => $4), $5)";
        self.tell(client, call, fence, (&self.lease.as_secs_f64(), Type::FLOAT8)).await.map(drop)
    }

    /// Calls what takes consumer, message, fence, something of its own, and source, in this order.
    async fn tell(
        &self,
        client: &Client,
        call: &str,
        fence: &Fence,
        own: (&(dyn ToSql + Sync), Type),
    ) -> Result<Row, Error> {
        let arguments = [
            (&self.inbox.consumer() as &(dyn ToSql + Sync), Type::TEXT),
            (&fence.id, Type::TEXT),
            (&fence.number, Type::INT8),
            own,
            (&fence.source, Type::TEXT),
        ];
        Ok(client.query_typed_one(call, &arguments).await?)
    }
}
