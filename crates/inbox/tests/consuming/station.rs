//! A queue, its parking queue, a database with an inbox, and a consumer between them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use postrider_inbox::consumer::{Connect, Consumer, Counts, Handle, Retry, Settings, Tally, Urls};
use postrider_inbox::{INBOX_SQL, Inbox};
use testenv::consumer::{Delivery, Parcel, Properties, Queue, QueueKind, Value, publish};
use testenv::{Scope, Sql, eventually};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Generous: never measured, only there so that a test that hangs ends.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// What the handlers write: in the order of their commits within an aggregate.
const TABLES: &str = "create table handled (
    place bigint generated always as identity, id text not null, aggregate text, seq bigint);
    create table once (id text unique);
    insert into once values ('taken')";

pub(crate) struct Station {
    pub(crate) scope: Scope,
    pub(crate) sql: Sql,
    pub(crate) queue: Queue,
    pub(crate) settings: Settings,
    pub(crate) urls: Urls,
}

impl Station {
    pub(crate) async fn new(test: &str) -> Result<Self> {
        let station = Self::without_parking(test).await?;
        station.open_parking().await?;
        Ok(station)
    }

    /// Nothing takes what is parked, yet.
    pub(crate) async fn without_parking(test: &str) -> Result<Self> {
        let scope = Scope::shared(test).await?;
        let sql = scope.connect().await?;
        sql.batch_execute(INBOX_SQL).await.context("install the inbox")?;
        sql.batch_execute(TABLES).await.context("create the tables")?;
        let url = scope.amqp_url();
        let queue = Queue::declare(&url, &scope.named("q"), QueueKind::Quorum, &[]).await?;
        let mut settings = Settings::new(queue.name());
        settings.parking_key = scope.named("p");
        settings.retry =
            Retry { first: Duration::from_millis(20), max: Duration::from_millis(200), jitter: 0.2 };
        let urls = Urls { broker: url, database: scope.admin_url() };
        Ok(Self { scope, sql, queue, settings, urls })
    }

    pub(crate) async fn open_parking(&self) -> Result<Queue> {
        Queue::declare(self.queue.url(), &self.settings.parking_key, QueueKind::Classic, &[]).await
    }

    pub(crate) async fn publish(&self, parcels: Vec<Parcel>) -> Result<()> {
        publish(self.queue.url(), "", self.queue.name(), parcels).await
    }

    pub(crate) fn run(&self, handler: impl Handle) -> Running {
        self.run_as(Inbox::new("worker"), self.urls.clone(), handler)
    }

    pub(crate) fn run_as(&self, inbox: Inbox, connect: impl Connect, handler: impl Handle) -> Running {
        let consumer = Consumer::new(self.settings.clone(), inbox, connect, handler);
        let tally = consumer.tally();
        let (stop, stopped) = oneshot::channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(consumer.run(async move { drop(stopped.await) }));
        Running { tally, stop, tasks }
    }

    /// Takes a parked message.
    pub(crate) async fn parked(&self) -> Result<Delivery> {
        let queue = self.open_parking().await?;
        queue.wait_take(LIMIT).await
    }

    pub(crate) async fn number(&self, query: &str) -> Result<i64> {
        let row = self.sql.query_one(query, &[]).await;
        Ok(row.with_context(|| format!("ask {query}"))?.get(0))
    }

    /// Waits until a query answers this number.
    pub(crate) async fn wait_number(&self, query: &str, expected: i64) -> Result<()> {
        let mut last = 0;
        let reached = eventually(format!("{expected} from {query}"), LIMIT, async || {
            last = self.number(query).await?;
            Ok((last == expected).then_some(()))
        });
        reached.await.with_context(|| format!("the last answer was {last}"))
    }

    /// What was handled, as `aggregate seq` in the order of the commits.
    pub(crate) async fn handled(&self, aggregate: &str) -> Result<Vec<i64>> {
        let query = "select seq from handled where aggregate = $1 order by place";
        Ok(self.sql.query(query, &[&aggregate]).await?.iter().map(|row| row.get(0)).collect())
    }
}

/// A consumer at work. Dropped, it ends where it stands, as a killed process would.
pub(crate) struct Running {
    tally: Arc<Tally>,
    stop: oneshot::Sender<()>,
    tasks: JoinSet<()>,
}

impl Running {
    pub(crate) fn counts(&self) -> Counts {
        self.tally.counts()
    }

    pub(crate) async fn wait(&self, what: &str, there: impl Fn(Counts) -> bool) -> Result<()> {
        eventually(what, LIMIT, async || Ok(there(self.counts()).then_some(()))).await
    }

    /// Stops it as a signal would.
    pub(crate) async fn stop(mut self) -> Result<Counts> {
        let _ = self.stop.send(());
        let ended = timeout(LIMIT, self.tasks.join_next()).await.context("stop the consumer in time")?;
        ended.context("there is a consumer")?.context("run the consumer")?;
        Ok(self.tally.counts())
    }
}

/// A message of this id and type, without an aggregate.
pub(crate) fn message(id: &str, kind: &str) -> Parcel {
    Parcel {
        properties: Properties {
            message_id: Some(id.to_owned()),
            message_type: Some(kind.to_owned()),
            delivery_mode: Some(2),
            ..Properties::default()
        },
        headers: Vec::new(),
        body: id.as_bytes().to_vec(),
    }
}

/// Number `seq` of an aggregate.
pub(crate) fn numbered(aggregate: &str, seq: i64, kind: &str) -> Parcel {
    let mut parcel = message(&format!("{aggregate}-{seq}"), kind);
    parcel.headers = vec![
        ("aggregate_type".to_owned(), Value::Text("order".to_owned())),
        ("aggregate_id".to_owned(), Value::Text(aggregate.to_owned())),
        ("aggregate_seq".to_owned(), Value::Long(seq)),
    ];
    parcel
}
