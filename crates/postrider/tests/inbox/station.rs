//! A consumer that cannot do its work yet, what it has parked, and the operator's program.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use postrider_inbox::consumer::{Consumer, Event, Handle, HandleError, Retry, Settings, Tally, Urls};
use postrider_inbox::{INBOX_SQL, Inbox};
use serde_json::Value as Json;
use testenv::consumer::{Parcel, Properties, Queue, QueueKind, Value, publish};
use testenv::relay::{Output, Program};
use testenv::{Scope, Sql, eventually};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_postgres::Transaction;

use crate::BINARY;

/// Generous: never measured, only there so that a test that hangs ends.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Cannot do its work until it is mended; keeps what it sees.
#[derive(Clone, Default)]
pub(crate) struct Work {
    pub(crate) mended: Arc<AtomicBool>,
    pub(crate) seen: Arc<Mutex<Vec<Event>>>,
}

impl Handle for Work {
    async fn handle(&self, event: &Event, transaction: &Transaction<'_>) -> Result<(), HandleError> {
        self.seen.lock().expect("no holder panics").push(event.clone());
        if !self.mended.load(SeqCst) {
            return Err(HandleError::transient("no paper"));
        }
        transaction.execute("insert into handled values ($1)", &[&event.message_id]).await?;
        Ok(())
    }
}

/// A queue, its parking queue, a consumer with an inbox, and the operator's program.
pub(crate) struct Station {
    pub(crate) scope: Scope,
    pub(crate) sql: Sql,
    pub(crate) queue: Queue,
    pub(crate) parking: Queue,
    pub(crate) work: Work,
    pub(crate) tally: Arc<Tally>,
    stop: oneshot::Sender<()>,
    tasks: JoinSet<()>,
    pub(crate) program: Program,
}

impl Station {
    pub(crate) async fn new(test: &str, kind: QueueKind) -> Result<Self> {
        let scope = Scope::shared(test).await?;
        let sql = scope.connect().await?;
        sql.batch_execute(INBOX_SQL).await.context("install the inbox")?;
        sql.batch_execute("create table handled (id text)").await?;
        let url = scope.amqp_url();
        let queue = Queue::declare(&url, &scope.named("q"), QueueKind::Classic, &[]).await?;
        let parking = Queue::declare(&url, &scope.named("p"), kind, &[]).await?;
        let settings = Settings {
            parking_key: parking.name().to_owned(),
            attempts: 2,
            retry: Retry { first: Duration::from_millis(1), max: Duration::from_millis(10), jitter: 0.2 },
            ..Settings::new(queue.name())
        };
        let urls = Urls { broker: url.clone(), database: scope.admin_url() };
        let work = Work::default();
        let consumer = Consumer::new(settings, Inbox::new("worker"), urls, work.clone());
        let (tally, mut tasks) = (consumer.tally(), JoinSet::new());
        let (stop, stopped) = oneshot::channel();
        tasks.spawn(consumer.run(async move { drop(stopped.await) }));
        let program = Program::new(BINARY).set("postgres.url", scope.admin_url()).set("rabbitmq.url", url);
        Ok(Self { scope, sql, queue, parking, work, tally, stop, tasks, program })
    }

    /// Sends messages of these ids and waits until they are parked.
    pub(crate) async fn park(&self, ids: &[&str]) -> Result<()> {
        let before = self.tally.counts().parked;
        publish(self.queue.url(), "", self.queue.name(), ids.iter().map(|id| parcel(id)).collect()).await?;
        self.wait("the messages to be parked", || {
            self.tally.counts().parked == before + u64::try_from(ids.len()).expect("few")
        })
        .await
    }

    pub(crate) async fn wait(&self, what: &str, there: impl Fn() -> bool) -> Result<()> {
        eventually(what, LIMIT, async || Ok(there().then_some(()))).await
    }

    /// Says `postrider parked <verb> --queue <the parking queue> <words>`.
    pub(crate) async fn call(&self, line: &str, code: i32) -> Result<Output> {
        let (verb, words) = line.split_once(' ').unwrap_or((line, ""));
        let mut all = vec!["parked", verb, "--queue", self.parking.name()];
        all.extend(words.split_whitespace());
        let output = self.program.output(&all).await?;
        ensure!(output.code == Some(code), "{line}: {output}");
        Ok(output)
    }

    /// The ids in the parking queue, as the program lists them.
    pub(crate) async fn listed(&self) -> Result<Vec<String>> {
        let listed: Vec<Json> =
            serde_json::from_str(&self.call("list --json --limit 1000", 0).await?.stdout)?;
        Ok(listed.iter().map(|row| row["message_id"].as_str().unwrap_or("-").to_owned()).collect())
    }

    /// The ids that were handled, in order.
    pub(crate) async fn handled(&self) -> Result<Vec<String>> {
        let rows = self.sql.query("select id from handled order by id", &[]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    pub(crate) async fn wait_handled(&self, ids: &[&str]) -> Result<()> {
        let mut last = Vec::new();
        let waited = eventually("the messages to be handled", LIMIT, async || {
            last = self.handled().await?;
            Ok((last.len() >= ids.len()).then_some(()))
        });
        waited.await.with_context(|| format!("{last:?}"))?;
        ensure!(last == ids, "{last:?}");
        Ok(())
    }

    /// Stops the consumer; nothing may be left in its queue.
    pub(crate) async fn end(self) -> Result<()> {
        eventually("the queue to be empty", LIMIT, async || {
            Ok((self.queue.depth().await? == 0).then_some(()))
        })
        .await?;
        let _ = self.stop.send(());
        self.tasks.join_all().await;
        ensure!(self.queue.left().await? == 0);
        Ok(())
    }
}

pub(crate) fn parcel(id: &str) -> Parcel {
    Parcel {
        properties: Properties {
            content_type: Some("application/json".to_owned()),
            content_encoding: Some("none".to_owned()),
            delivery_mode: Some(2),
            priority: Some(3),
            correlation_id: Some("c".to_owned()),
            reply_to: Some("r".to_owned()),
            message_id: Some(id.to_owned()),
            timestamp: Some(1_764_475_200),
            message_type: Some("placed".to_owned()),
            app_id: Some("shop".to_owned()),
            ..Properties::default()
        },
        headers: vec![
            ("aggregate_seq".to_owned(), Value::Long(7)),
            ("traceparent".to_owned(), Value::Text("00-é".to_owned())),
            ("urgent".to_owned(), Value::Bool(true)),
        ],
        body: [id.as_bytes(), &[0, 0xFF]].concat(),
    }
}
