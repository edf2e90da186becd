//! The consumer loop: a queue, a database, and a handler that is called once for each message.
//!
//! Each message is claimed, handled and committed in one transaction, and acknowledged after that. Messages
//! of one aggregate (`aggregate_type`, `aggregate_id`) are handled one after the other, in the order of their
//! delivery; different ones side by side. What cannot be handled is published to the parking exchange,
//! confirmed there, and only then acknowledged. Nothing is sent back to the queue to be tried again at once:
//! what waits, waits here, and how often it was tried stands in the database, where a restart does not lose
//! it.
//!
//! Invariant: a message is acknowledged only when its work is committed (now or before), or its copy is
//! parked.
//!
//! lapin logs a returned message with its body (target `lapin::returned_messages`, WARN): whoever installs a
//! log subscriber turns that target off.

mod connect;
mod event;
mod handle;
mod lanes;
mod parking;
mod retry;
mod session;
mod tally;
mod work;

use std::sync::Arc;
use std::time::Duration;

use tokio::select;
use tokio::time::sleep;

pub use connect::{BoxError, Connect, Database, Urls};
pub use event::Event;
pub use handle::{Gap, GapAnswer, Handle, HandleError};
pub use retry::Retry;
pub use tally::{Counts, Tally};

use crate::inbox::Inbox;
use session::{End, Session};

/// How long any single word of a peer may take.
const PEER_LIMIT: Duration = Duration::from_secs(30);

/// As good as for ever; a longer time cannot be added to a clock.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Giving back what waits renews the connection; more often than this would be a hot loop.
const SHORTEST_HOLD: Duration = Duration::from_secs(1);

/// How to consume. Where 0 would mean that nothing is ever done (`prefetch`, `workers`), it is taken for 1;
/// `Duration::MAX` is as good as for ever.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The queue; it must be there.
    pub queue: String,
    /// Where to publish what cannot be handled: an exchange that must be there (the empty name is the default
    /// exchange) and a routing key for which a queue is bound. Default: the default exchange.
    pub parking_exchange: String,
    /// The routing key for it. Default: the queue's name and `.parked`.
    pub parking_key: String,
    /// How many messages are here at once, those that wait included. Default: 64.
    pub prefetch: u16,
    /// How many are handled at once, each on a connection of its own to the database. Default: 8.
    pub workers: usize,
    /// How often a message's work may fail before it is parked. Default: 8.
    pub attempts: u32,
    /// How long to wait between them. Default: [`Retry::default`].
    pub retry: Retry,
    /// Whether to check `aggregate_seq`: a message is handled only after all before it. One that is parked is
    /// then missing for those behind it; but if it was the first that was seen of its aggregate, the next one
    /// is, unless [`Inbox::start_at_one`] says better, and the parked one is stale when it is sent back. A
    /// message without an aggregate or without a number is not checked. Default: no.
    pub check_sequence: bool,
    /// How long a message waits for the missing ones before it; then [`Handle::gap`] is asked. Default: 30 s.
    pub early_wait: Duration,
    /// How long one message may take, from claim to commit. Default: 60 s.
    pub handle_limit: Duration,
    /// How long a message may wait here before everything is given back to the queue by a new connection, once
    /// what is being handled is done; at least a second. Together with `handle_limit` stay below the broker's
    /// `consumer_timeout` (30 minutes), which would close the channel over and over, and nothing longer would
    /// ever be done. Default: 15 minutes.
    pub hold_limit: Duration,
    /// How long to wait for what is being handled when it is told to stop; and then for the broker to say goodbye.
    /// Default: 10 s.
    pub drain_limit: Duration,
}

impl Settings {
    /// The defaults, for this queue; parking is by the default exchange, in the queue `<queue>.parked`.
    pub fn new(queue: impl Into<String>) -> Self {
        let queue = queue.into();
        Self {
            parking_exchange: String::new(),
            parking_key: format!("{queue}.parked"),
            queue,
            prefetch: 64,
            workers: 8,
            attempts: 8,
            retry: Retry::default(),
            check_sequence: false,
            early_wait: Duration::from_secs(30),
            handle_limit: Duration::from_secs(60),
            hold_limit: Duration::from_secs(15 * 60),
            drain_limit: Duration::from_secs(10),
        }
    }

    /// Without what would stand still, spin, or overflow a clock.
    fn sane(self) -> Self {
        let bounded = |time: Duration| time.min(LONGEST);
        Self {
            prefetch: self.prefetch.max(1),
            workers: self.workers.max(1),
            retry: Retry { first: bounded(self.retry.first), max: bounded(self.retry.max), ..self.retry },
            early_wait: bounded(self.early_wait),
            handle_limit: bounded(self.handle_limit),
            hold_limit: bounded(self.hold_limit).max(SHORTEST_HOLD),
            drain_limit: bounded(self.drain_limit),
            ..self
        }
    }
}

/// What sessions and their work share.
struct Shared<C, H> {
    settings: Settings,
    inbox: Inbox,
    connect: C,
    handler: H,
    tally: Arc<Tally>,
}

/// A consumer; [`run`](Self::run) is its life.
///
/// ```
/// use postrider_inbox::Inbox;
/// use postrider_inbox::consumer::{Consumer, Event, Handle, HandleError, Settings, Urls};
/// use tokio_postgres::Transaction;
///
/// struct Report;
///
/// impl Handle for Report {
///     async fn handle(&self, event: &Event, transaction: &Transaction<'_>) -> Result<(), HandleError> {
///         if event.event_type != "placed" {
///             return Err(HandleError::poison("a type that is not known here"));
///         }
///         transaction.execute("update report set counter = counter + 1 where id = 'daily'", &[]).await?;
///         Ok(())
///     }
/// }
///
/// /// Until `stop` ends: `tokio::signal::ctrl_c()`, say.
/// async fn consume(urls: Urls, stop: impl Future<Output = ()>) {
///     let consumer = Consumer::new(Settings::new("reports"), Inbox::new("report-worker"), urls, Report);
///     consumer.run(stop).await;
/// }
/// # #[tokio::main]
/// # async fn main() -> anyhow::Result<()> {
/// #     use testenv::consumer::{Parcel, Properties, Queue, QueueKind, publish};
/// #     let mut scope = testenv::Scope::shared("doc loop").await?;
/// #     scope.take_vhost().await?;
/// #     let sql = scope.connect().await?;
/// #     sql.batch_execute(postrider_inbox::INBOX_SQL).await?;
/// #     sql.batch_execute("create table report as select 'daily' as id, 6::bigint as counter").await?;
/// #     let urls = Urls { broker: scope.amqp_url(), database: scope.admin_url() };
/// #     let queue = Queue::declare(&urls.broker, "reports", QueueKind::Quorum, &[]).await?;
/// #     let [id, kind] = ["E-42", "placed"].map(|text| Some(text.to_owned()));
/// #     let properties = Properties { message_id: id, message_type: kind, ..Properties::default() };
/// #     let parcel = Parcel { properties, ..Parcel::default() };
/// #     publish(&urls.broker, "", "reports", vec![parcel.clone(), parcel]).await?;
/// #     let limit = std::time::Duration::from_secs(60);
/// #     let handled = testenv::eventually("the queue to be empty", limit, async || {
/// #         let counter: i64 = sql.query_one("select counter from report", &[]).await?.get(0);
/// #         Ok((counter > 6 && queue.depth().await? == 0).then_some(()))
/// #     });
/// #     consume(urls, async { handled.await.expect("handle it") }).await;
/// #     assert_eq!(queue.left().await?, 0);
/// #     assert_eq!(sql.query_one("select counter from report", &[]).await?.get::<_, i64>(0), 7);
/// #     Ok(())
/// # }
/// ```
pub struct Consumer<C, H>(Arc<Shared<C, H>>);

impl<C: Connect, H: Handle> Consumer<C, H> {
    /// A consumer under this name in the inbox. What it counts goes to the `metrics` recorder that is installed by
    /// then, labelled `consumer` and `queue`.
    pub fn new(settings: Settings, inbox: Inbox, connect: C, handler: H) -> Self {
        let settings = settings.sane();
        let tally = Arc::new(Tally::new(inbox.consumer(), &settings.queue));
        Self(Arc::new(Shared { settings, inbox, connect, handler, tally }))
    }

    /// What it counts, to be read by its own program.
    pub fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.0.tally)
    }

    /// Consumes until `stop` ends, through any outage of its peers. Then it takes no more, waits for what is
    /// being handled ([`Settings::drain_limit`]), acknowledges it and returns; what was waiting is delivered
    /// again.
    ///
    /// Dropping it instead loses nothing, but lapin then cancels the consumer, and a quorum queue may deliver
    /// what was at work behind all others.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        let mut told = String::new();
        let mut outages = 0;
        loop {
            let opened = select! {
                biased;
                // Who stops does not wait for a broker.
                () = &mut stop => return,
                opened = Session::open(Arc::clone(&self.0)) => opened,
            };
            let outage = match opened {
                Ok(mut session) => match session.run(stop.as_mut()).await {
                    End::Stopped => {
                        session.close(self.0.settings.drain_limit).await;
                        return;
                    }
                    End::Renewed => {
                        session.close(PEER_LIMIT).await;
                        continue;
                    }
                    End::Lost(outage) => {
                        if session.was_useful() {
                            outages = 0;
                            told.clear();
                        }
                        outage
                    }
                },
                Err(outage) => outage,
            };
            if told != outage {
                tracing::warn!(queue = self.0.settings.queue, "the consumer is interrupted: {outage}");
                told = outage;
            }
            outages += 1;
            select! {
                biased;
                () = &mut stop => return,
                () = sleep(Retry::default().delay(outages)) => {}
            }
        }
    }
}
