//! One message at work: claim, handle, commit; or remember the failure; or park.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::FutureExt as _;
use lapin::Connection;
use tokio::time::{Instant, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, IsolationLevel};

use super::connect::{BoxError, Connect, Database, words};
use super::event::Event;
use super::handle::{Gap, GapAnswer, Handle, HandleError};
use super::lanes::Item;
use super::parking::{Lot, Parking, Reason};
use super::{PEER_LIMIT, Shared};
use crate::error::Error;
use crate::inbox::{Verdict, commit};

/// Where the work takes place.
pub(super) struct Place<C, H> {
    pub(super) shared: Arc<Shared<C, H>>,
    pub(super) connection: Arc<Connection>,
    pub(super) lot: Arc<Lot>,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It can be acknowledged.
    Settled,
    /// It is to be tried again when its time has come.
    Again,
    /// Messages before it are missing.
    Early,
}

/// How an attempt ended.
enum Ending {
    Settled,
    Early,
    /// The work failed.
    Failed(String),
    /// It can never work.
    Hopeless(Reason, String),
    /// A peer is away: not an attempt.
    Outage(String),
}

impl<C: Connect, H> Shared<C, H> {
    /// A new connection to the database.
    pub(super) async fn database(&self) -> Result<Database, BoxError> {
        let connecting = async {
            let database = self.connect.database().await?;
            // A statement that was given up must not go on: until it ends, nobody gets the message. Not every
            // platform has this.
            let vigilance = "set client_connection_check_interval = '1s'";
            if let Err(error) = database.client.batch_execute(vigilance).await {
                tracing::debug!("failed to watch the connection: {error}");
            }
            Ok(database)
        };
        timeout(PEER_LIMIT, connecting).await?
    }
}

impl<C: Connect, H: Handle> Place<C, H> {
    /// Works on a message; the connection comes back if it is still good.
    pub(super) async fn work(
        self,
        mut item: Item,
        database: Option<Database>,
    ) -> (Item, Outcome, Option<Database>) {
        let mut kept = None;
        let outcome = match self.step(&mut item, database, &mut kept).await {
            Ok(outcome) => outcome,
            Err(outage) => {
                item.outages += 1;
                item.not_before = Instant::now() + self.shared.settings.retry.delay(item.outages);
                if item.outages == 1 {
                    tracing::warn!(
                        message_id = item.event.message_id,
                        "the message waits: {}",
                        words(&*outage)
                    );
                }
                Outcome::Again
            }
        };
        if outcome != Outcome::Again {
            item.outages = 0;
        }
        (item, outcome, kept)
    }

    /// # Errors
    /// A peer is away.
    async fn step(
        &self,
        item: &mut Item,
        database: Option<Database>,
        kept: &mut Option<Database>,
    ) -> Result<Outcome, BoxError> {
        let settings = &self.shared.settings;
        if item.parking.is_none() {
            let mut database = match database {
                Some(database) => database,
                None => self.shared.database().await?,
            };
            let attempt = timeout(settings.handle_limit, self.attempt(&item.event, &mut database.client));
            let ending = if let Ok(ending) = attempt.await {
                ending
            } else {
                // What that connection is in the middle of ends with it.
                database = self.shared.database().await?;
                Ending::Failed(format!("it was not handled within {:?}", settings.handle_limit))
            };
            let judged = self.judge(item, &database.client, ending).await?;
            *kept = Some(database);
            if let Some(outcome) = judged {
                return Ok(outcome);
            }
        } else {
            *kept = database;
        }
        let Some(parking) = &item.parking else { return Ok(Outcome::Again) };
        self.lot.park(&self.connection, settings, self.shared.inbox.consumer(), &item.event, parking).await?;
        self.shared.tally.parked.up();
        let (id, reason) = (&item.event.message_id, parking.reason);
        tracing::warn!(message_id = id, ?reason, "parked: {}", parking.error);
        Ok(Outcome::Settled)
    }

    /// What follows from an attempt. None: the message is to be parked, or tried again.
    async fn judge(
        &self,
        item: &mut Item,
        client: &Client,
        ending: Ending,
    ) -> Result<Option<Outcome>, BoxError> {
        let (shared, event) = (&self.shared, Arc::clone(&item.event));
        let (mut reason, error) = match ending {
            Ending::Settled => return Ok(Some(Outcome::Settled)),
            Ending::Early => return Ok(Some(Outcome::Early)),
            Ending::Outage(error) => return Err(error.into()),
            Ending::Failed(error) | Ending::Hopeless(Reason::Poison, error) if client.is_closed() => {
                return Err(error.into());
            }
            Ending::Failed(error) => (None, error),
            Ending::Hopeless(reason, error) => (Some(reason), error),
        };
        let (mut attempts, mut first_failed_at) = (0, SystemTime::now());
        if reason != Some(Reason::Mismatch) {
            let recorded = shared.inbox.record_failure(client, event.message(None), &error);
            match timeout(PEER_LIMIT, recorded).await? {
                Ok(None) => return Ok(Some(Outcome::Settled)),
                Ok(Some(failed)) => (attempts, first_failed_at) = (failed.attempts, failed.first_at),
                // It cannot be remembered under such an id, nor ever be given up.
                Err(Error::Argument(_) | Error::TwoPhase(_)) => {
                    (attempts, reason) = (1, Some(reason.unwrap_or(Reason::Poison)));
                }
                Err(outage) => return Err(outage.into()),
            }
        }
        let failures = u32::try_from(attempts).unwrap_or(0);
        if reason.is_some() || failures >= shared.settings.attempts {
            let reason = reason.unwrap_or(Reason::Exhausted);
            item.parking = Some(Parking { reason, error, attempts, first_failed_at });
        } else {
            shared.tally.retries.up();
            tracing::info!(message_id = event.message_id, failures, "failed, and is tried again: {error}");
            item.not_before = Instant::now() + shared.settings.retry.delay(failures);
        }
        Ok(None)
    }

    /// Claims, handles and commits, or rolls back.
    async fn attempt(&self, event: &Event, client: &mut Client) -> Ending {
        let (shared, tally) = (&self.shared, &self.shared.tally);
        let start = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start();
        let transaction = match start.await {
            Ok(transaction) => transaction,
            Err(error) => return Ending::Outage(words(&error)),
        };
        if shared.settings.check_sequence && event.has_bad_number() {
            let error = "its aggregate_seq is not a whole number of 64 bits".to_owned();
            return Ending::Hopeless(Reason::Poison, error);
        }
        let aggregate = event.aggregate().filter(|_| shared.settings.check_sequence);
        let message = event.message(aggregate.as_deref().zip(event.aggregate_seq));
        match shared.inbox.claim(&transaction, message).await {
            Ok(Verdict::Process) => {}
            Ok(Verdict::Duplicate) => {
                tally.duplicates.up();
                return Ending::Settled;
            }
            Ok(Verdict::Stale) => {
                tally.stale.up();
                return Ending::Settled;
            }
            Ok(Verdict::Early) => {
                tally.early.up();
                return Ending::Early;
            }
            Ok(Verdict::Mismatch) => {
                tally.mismatches.up();
                let error = "its id was completed with other content".to_owned();
                return Ending::Hopeless(Reason::Mismatch, error);
            }
            Err(error @ (Error::Argument(_) | Error::TwoPhase(_))) => {
                return Ending::Hopeless(Reason::Poison, words(&error));
            }
            Err(error) => return Ending::Outage(words(&error)),
        }
        let started = Instant::now();
        // A panic is a failure of this message, not of the others.
        let handled = AssertUnwindSafe(shared.handler.handle(event, &transaction)).catch_unwind().await;
        tally.handler_took(started.elapsed());
        let error = match handled {
            Ok(Ok(())) => match commit(transaction).await {
                Ok(()) => {
                    tally.handled.up();
                    return Ending::Settled;
                }
                // A deferred constraint, say, or a failure that the handler has kept to itself. Else it may be committed: the next claim tells.
                Err(error) if error.as_db_error().is_some() => HandleError::from(error),
                Err(error) => return Ending::Outage(words(&error)),
            },
            Ok(Err(error)) => {
                // If it fails, the connection is gone, and the transaction with it.
                let _ = transaction.rollback().await;
                error
            }
            Err(_) => HandleError::transient("the handler panicked"),
        };
        match error {
            HandleError::Poison(error) => Ending::Hopeless(Reason::Poison, words(&*error)),
            HandleError::Transient(error) => {
                let code = error.downcast_ref().and_then(tokio_postgres::Error::code);
                if code == Some(&SqlState::UNIQUE_VIOLATION) {
                    tally.unique_violations.up();
                }
                Ending::Failed(words(&*error))
            }
        }
    }

    /// Closes a gap: what waited is to be parked, or goes on.
    pub(super) async fn close_gap(self, mut items: Vec<Item>) -> Vec<Item> {
        let now = Instant::now();
        if let Err(outage) = self.ask_about_gap(&mut items).await {
            tracing::warn!("the gap stays: {}", words(&*outage));
            let later = now + self.shared.settings.retry.max;
            for item in &mut items {
                item.not_before = later;
            }
        }
        items
    }

    async fn ask_about_gap(&self, items: &mut [Item]) -> Result<(), BoxError> {
        let waiting: Vec<i64> = items.iter().filter_map(|item| item.event.aggregate_seq).collect();
        let aggregate = items.first().and_then(|item| item.event.aggregate()).unwrap_or_default();
        let gap = Gap { aggregate, waiting };
        let asked = AssertUnwindSafe(self.shared.handler.gap(&gap)).catch_unwind();
        match timeout(self.shared.settings.handle_limit, asked).await?.map_err(|_| "the hook panicked")? {
            GapAnswer::Park => {
                let error = format!("messages of {} before it are missing", gap.aggregate);
                for item in &mut *items {
                    item.parking = Some(Parking {
                        reason: Reason::Early,
                        error: error.clone(),
                        attempts: 0,
                        first_failed_at: SystemTime::now(),
                    });
                }
            }
            GapAnswer::Resynchronise => {
                let first = gap.waiting.first().copied().unwrap_or(1);
                let database = self.shared.database().await?;
                let done = self.shared.inbox.resynchronise(&database.client, "", &gap.aggregate, first);
                timeout(PEER_LIMIT, done).await??;
            }
        }
        let now = Instant::now();
        for item in items {
            (item.not_before, item.early_since) = (now, None);
        }
        Ok(())
    }
}
