//! A queue, its parking queue, a database with a report that counts to 6, and a program that counts on.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use postrider_inbox::INBOX_SQL;
use testenv::consumer::{Delivery, Parcel, Properties, Queue, QueueKind, publish};
use testenv::{Scope, Sql, Worker, eventually, languages};

/// Generous: never measured, only there so that a test that hangs ends.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// After how many failures the programs give up.
pub(crate) const ATTEMPTS: i32 = 4;

const PASSWORD: &str = "secret";

#[derive(Clone, Copy, Debug)]
pub(crate) enum Language {
    Python,
    Node,
}

pub(crate) struct Station {
    language: Language,
    pub(crate) sql: Sql,
    pub(crate) queue: Queue,
    pub(crate) scope: Scope,
    /// Where the program finds the broker.
    pub(crate) amqp_url: String,
    /// The program's login: a member of `postrider_consumer` that may count.
    pub(crate) role: String,
}

impl Station {
    pub(crate) async fn new(language: Language, test: &str) -> Result<Self> {
        let station = Self::without_parking(language, test).await?;
        station.open_parking().await?;
        Ok(station)
    }

    /// Nothing takes what is parked, yet.
    pub(crate) async fn without_parking(language: Language, test: &str) -> Result<Self> {
        let scope = Scope::shared(&format!("{language:?} {test}")).await?;
        let sql = scope.connect().await?;
        let role = scope.named("r");
        sql.batch_execute(INBOX_SQL).await.context("install the inbox")?;
        let report = format!(
            "create table report (id text primary key, counter bigint not null);
             insert into report values ('daily', 6);
             create role {role} login password '{PASSWORD}' in role postrider_consumer;
             grant select, update on report to {role}"
        );
        sql.batch_execute(&report).await.context("create the report")?;
        let queue = Queue::declare(&scope.amqp_url(), &scope.named("q"), QueueKind::Quorum, &[]).await?;
        let amqp_url = scope.amqp_url();
        Ok(Self { language, sql, queue, scope, amqp_url, role })
    }

    pub(crate) async fn open_parking(&self) -> Result<Queue> {
        let name = format!("{}.parked", self.queue.name());
        Queue::declare(self.queue.url(), &name, QueueKind::Classic, &[]).await
    }

    pub(crate) async fn connect(&self) -> Result<Sql> {
        self.scope.connect().await
    }

    /// Starts the program as it stands in `clients`.
    pub(crate) async fn run(&self) -> Result<Worker> {
        self.start(&self.language.program()).await
    }

    /// Starts another program of the same language.
    pub(crate) async fn start(&self, program: &Path) -> Result<Worker> {
        let language = self.language;
        let found = tokio::task::spawn_blocking(move || language.interpreter());
        let mut command = Command::new(found.await.context("look for the language")??);
        command
            .arg(program)
            .arg(self.queue.name())
            .env("DATABASE_URL", self.scope.postgres_url(&self.role, PASSWORD))
            .env("AMQP_URL", &self.amqp_url)
            .env("ATTEMPTS", ATTEMPTS.to_string());
        Worker::start(command)
    }

    /// Sends a message of this id and content; an empty id is none.
    pub(crate) async fn send(&self, message_id: &str, content: &str) -> Result<()> {
        let properties = Properties {
            message_id: Some(message_id.to_owned()).filter(|id| !id.is_empty()),
            message_type: Some("printed".to_owned()),
            expiration: Some("3600000".to_owned()),
            delivery_mode: Some(2),
            ..Properties::default()
        };
        let parcel = Parcel { properties, headers: Vec::new(), body: content.as_bytes().to_vec() };
        publish(self.queue.url(), "", self.queue.name(), vec![parcel]).await
    }

    /// Takes a parked message.
    pub(crate) async fn parked(&self) -> Result<Delivery> {
        self.open_parking().await?.wait_take(LIMIT).await
    }

    pub(crate) async fn counter(&self) -> Result<i64> {
        self.number("select counter from report where id = 'daily'").await
    }

    pub(crate) async fn wait_counter(&self, expected: i64, worker: &Worker) -> Result<()> {
        let what = format!("the counter to be {expected}");
        let reached = eventually(what, LIMIT, async || Ok((self.counter().await? == expected).then_some(())));
        reached.await.with_context(|| format!("the worker's log:\n{}", worker.log().join("\n")))
    }

    pub(crate) async fn number(&self, query: &str) -> Result<i64> {
        let row = self.sql.query_one(query, &[]).await;
        Ok(row.with_context(|| format!("ask {query}"))?.get(0))
    }

    /// Waits until the program's session waits for somebody else's lock, and returns the server's process for it.
    pub(crate) async fn blocked(&self, worker: &Worker) -> Result<i32> {
        let waiting =
            "select pid from pg_stat_activity where usename = $1 and cardinality(pg_blocking_pids(pid)) > 0";
        let blocked = eventually("the worker's session to wait", LIMIT, async || {
            Ok(self.sql.query_opt(waiting, &[&self.role]).await?.map(|row| row.get(0)))
        });
        blocked.await.with_context(|| format!("the worker's log:\n{}", worker.log().join("\n")))
    }

    /// Waits until the server has no session of the program any more.
    pub(crate) async fn no_session(&self) -> Result<()> {
        let sessions = "select count(*) from pg_stat_activity where usename = $1";
        eventually("the worker's session to end", LIMIT, async || {
            let left: i64 = self.sql.query_one(sessions, &[&self.role]).await?.get(0);
            Ok((left == 0).then_some(()))
        })
        .await
    }

    /// Waits until every message before is acknowledged: the program takes one at a time, so the broker delivers
    /// this last one, which counts as well, only then.
    pub(crate) async fn all_acknowledged(&self, worker: &Worker) -> Result<()> {
        self.send("last", "last").await?;
        worker.wait_log("last: process", LIMIT).await.map(drop)
    }
}

impl Language {
    /// The program's folder, with the libraries that npm installs.
    pub(crate) fn folder(self) -> PathBuf {
        let folder = if matches!(self, Self::Python) { "python" } else { "node" };
        Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(folder)
    }

    /// The program as it stands in `clients`.
    pub(crate) fn program(self) -> PathBuf {
        self.folder().join(if matches!(self, Self::Python) { "worker.py" } else { "worker.mjs" })
    }

    fn interpreter(self) -> Result<PathBuf> {
        match self {
            Self::Python => languages::python(),
            Self::Node => languages::node(&self.folder()),
        }
    }
}
